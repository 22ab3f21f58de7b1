"""Custom forms of the transform dialect, upstream's extensions `transform.air.*` among them.

Only what such an op takes and returns is kept; nobody here runs a transform script.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DictionaryAttr, FunctionType, StringAttr
from xdsl.dialects.utils import parse_func_op_like
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, TypeAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser

from npu_tools.air.formats import format_form
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import close_region


class _Handle(ParametrizedAttribute, TypeAttribute):
    """A handle type; what stands in angle brackets behind it is skipped, as MLIR's own parser does."""

    name = "transform.handle"

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        """Skip `<…>`."""
        if isinstance(parser, Reader) and parser.at_text("<"):
            parser.angle_text()
        return []


@irdl_attr_definition
class AnyOpType(_Handle):
    """`!transform.any_op`."""

    name = "transform.any_op"


@irdl_attr_definition
class AnyValueType(_Handle):
    """`!transform.any_value`."""

    name = "transform.any_value"


@irdl_attr_definition
class AnyParamType(_Handle):
    """`!transform.any_param`."""

    name = "transform.any_param"


TRANSFORM = Dialect("transform", [], [AnyOpType, AnyValueType, AnyParamType])


def match(reader: Reader, name: str) -> Operation:
    """`[ops{["a.b"]}] [interface{…}] [attributes{…}] [filter_… = …] in %x {…} : (T) -> T`."""
    attributes: dict[str, Attribute] = {}
    while not reader.at_text("in"):
        place = reader.pos
        word = reader.parse_identifier()
        if word in ("ops", "interface"):
            with reader.in_braces():
                attributes[word] = reader.parse_attribute() if word == "ops" else StringAttr(reader.parse_identifier())
        elif word == "attributes":
            attributes["op_attrs"] = DictionaryAttr(reader.parse_optional_attr_dict())
        elif word in ("filter_result_type", "filter_operand_types"):
            reader.parse_punctuation("=")
            attributes[word] = reader.parse_attribute()
        else:
            reader.raise_error(f"'{word}' is no part of {name}", place)
    reader.parse_keyword("in")
    operand = reader.parse_unresolved_operand()
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    place = reader.pos
    type = reader.parse_function_type()
    return reader.make(name, reader.resolve_operands([operand], type.inputs.data, place), type.outputs.data, attributes)


def named_sequence(reader: Reader, name: str) -> Operation:
    """`@name(%a: T {…}) [-> T] [attributes {…}] [{…}]`."""
    symbol, inputs, outputs, region, extra, arguments, results = parse_func_op_like(
        reader, reserved_attr_names=("sym_name",)
    )
    attributes: dict[str, Attribute] = {
        "sym_name": StringAttr(symbol),
        "function_type": FunctionType.from_lists(inputs, outputs),
    }
    if arguments is not None:
        attributes["arg_attrs"] = arguments
    if results is not None:
        attributes["res_attrs"] = results
    attributes.update({} if extra is None else extra.data)
    if region.blocks:
        close_region(reader, region, "transform.yield")
    return reader.make(name, attributes=attributes, regions=[region])


def bufferize_to_allocation(reader: Reader, name: str) -> Operation:
    """`%x {…} : T`; returns the buffer and the new ops."""
    operand = reader.parse_unresolved_operand()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    value = reader.resolve_operand(operand, reader.parse_type())
    return reader.make(name, [value], [AnyValueType(), AnyOpType()], attributes)


def any_other(reader: Reader, name: str) -> Operation:
    """`%a, %b {…} [: (T, T) -> T]` or `: T, T`: what most ops of the dialect look like."""
    operands = reader.operand_names()
    attributes = reader.parse_optional_attr_dict()
    if reader.parse_optional_punctuation(":") is None:
        if operands:
            reader.raise_error(f"':' and the types of {name} were expected, found {reader.shown()}")
        return reader.make(name, attributes=attributes)
    place = reader.pos
    if reader.at_text("("):
        type = reader.parse_function_type()
        return reader.make(
            name, reader.resolve_operands(operands, type.inputs.data, place), type.outputs.data, attributes
        )
    types = reader.type_list()
    return reader.make(name, reader.resolve_operands(operands, types, place), [], attributes)


FORMS: dict[str, Form] = {
    "transform.named_sequence": named_sequence,
    "transform.sequence": format_form("?( $0 : T0 )? failures ( =failure_propagation_mode ) {} region"),
    "transform.yield": format_form("$0* {} ?( : T0* )?"),
    "transform.include": format_form("@target failures ( =failure_propagation_mode ) ( $0* ) {} : F"),
    "transform.annotate": format_form("$0 #name ?( = $1 )? {} : TALL*"),
    "transform.merge_handles": format_form("?( deduplicate )? $0* {} : T0 R=0"),
    "transform.param.constant": format_form("#value {} -> R"),
    "transform.apply_cse": format_form("to $0 {} : T0"),
    "transform.apply_dce": format_form("to $0 {} : T0"),
    "transform.apply_licm": format_form("to $0 {} : T0"),
    "transform.apply_patterns": format_form("to $0 region {} : T0"),
    "transform.get_consumers_of_result": format_form("$0 [ #result_number:i64 ] {} : F"),
    "transform.get_operand": format_form("$0 [ #raw_position_list:i64 ] {} : F"),
    "transform.get_result": format_form("$0 [ #raw_position_list:i64 ] {} : F"),
    "transform.get_producer_of_operand": format_form("$0 [ #operand_number:i64 ] {} : F"),
    "transform.loop.fuse_sibling": format_form("$0 into $1 {} : F"),
    "transform.loop.unroll": format_form("$0 {} : T0"),
    "transform.structured.match": match,
    "transform.structured.bufferize_to_allocation": bufferize_to_allocation,
    "transform.structured.fuse_into_containing_op": format_form("$0 into $1 {} : F"),
    "transform.structured.interchange": format_form("$0 ?( iterator_interchange = #iterator_interchange )? {} : F"),
    "transform.structured.pack": format_form("$0 packed_sizes = #static_packed_sizes {} : F"),
    "transform.structured.pack_transpose": format_form(
        "$0 with_compute_op ( $1 ) ?( outer_perm = #outer_perm )? ?( inner_perm = #inner_perm )? {} : F"
    ),
    "transform.structured.promote_tensor": format_form("?( to #memory_space )? $0 {} : T0 R=0"),
    "transform.structured.tile_using_for": format_form(
        "$0 ?( tile_sizes #static_sizes )? ?( interchange = #interchange )? {} : F"
    ),
    "transform.structured.tile_using_forall": format_form(
        "$0 ?( num_threads #static_num_threads )? ?( tile_sizes #static_tile_sizes )? ?( ( mapping = #mapping ) )? {} : F"
    ),
    "transform.structured.tile_reduction_using_for": format_form(
        "$0 by ?( reduction_dims = #reduction_dims )? ?( tile_sizes = #tile_sizes )? {} : F"
    ),
    "transform.structured.tile_reduction_using_forall": format_form(
        "$0 by ?( num_threads = #num_threads )? ?( , tile_sizes = #tile_sizes )? ?( , mapping = #mapping )? {} : F"
    ),
}

PREFIX_FORMS: dict[str, Form] = {
    "transform.apply_patterns.": format_form("?( lowering_strategy = #lowering_strategy )? {}"),
    "transform.": any_other,
}
