"""Custom forms of vector that xDSL lacks."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import DenseArrayBase, VectorType, i64
from xdsl.dialects.vector import CombiningKindAttr
from xdsl.ir import Attribute, Operation

from npu_tools.air.affine_forms import results_clause
from npu_tools.air.formats import format_form
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import INDEX


def contract(reader: Reader, name: str) -> Operation:
    """`{…} %a, %b, %c [, %masks] : T, T into T`."""
    attributes = reader.parse_optional_attr_dict()
    operands = reader.operand_names()
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.type_list()
    reader.parse_keyword("into")
    result = reader.parse_type()
    types = [*types[:2], result, *types[2:]]
    return reader.make(name, reader.resolve_operands(operands, types, place), [result], attributes)


def combining(reader: Reader) -> dict[str, Attribute]:
    """`<add>`: the kind of a reduction."""
    return {"kind": CombiningKindAttr(CombiningKindAttr.parse_parameter(reader))}


def multi_reduction(reader: Reader, name: str) -> Operation:
    """`<add>, %a, %acc {…} [0, 1] : T to T`."""
    attributes = combining(reader)
    reader.parse_punctuation(",")
    operands = reader.operand_names()
    attributes.update(reader.parse_optional_attr_dict())
    dims = reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_integer(allow_boolean=False))
    attributes["reduction_dims"] = DenseArrayBase.from_list(i64, dims)
    reader.parse_punctuation(":")
    place = reader.pos
    source = reader.parse_type()
    reader.parse_keyword("to")
    result = reader.parse_type()
    return reader.make(name, reader.resolve_operands(operands, [source, result], place), [result], attributes)


def transpose(reader: Reader, name: str) -> Operation:
    """`%a, [1, 0] {…} : T to T`."""
    source = reader.parse_unresolved_operand()
    reader.parse_punctuation(",")
    order = reader.parse_comma_separated_list(
        reader.Delimiter.SQUARE, lambda: reader.parse_integer(allow_boolean=False)
    )
    attributes: dict[str, Attribute] = {"permutation": DenseArrayBase.from_list(i64, order)}
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    type = reader.parse_type()
    reader.parse_keyword("to")
    return reader.make(name, [reader.resolve_operand(source, type)], [reader.parse_type()], attributes)


def strided_slice(reader: Reader, name: str) -> Operation:
    """`%a {…} : T to T` and `%a, %b {…} : T into T`."""
    operands = reader.operand_names()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    place = reader.pos
    source = reader.parse_type()
    if reader.parse_optional_keyword("into") is None:
        reader.parse_keyword("to")
        return reader.make(name, reader.resolve_operands(operands, [source], place), [reader.parse_type()], attributes)
    result = reader.parse_type()
    return reader.make(name, reader.resolve_operands(operands, [source, result], place), [result], attributes)


def elements(reader: Reader, name: str) -> Operation:
    """`%a, %b {…} : T`: scalars that fill a vector of type T."""
    operands = reader.operand_names()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    place = reader.pos
    type = reader.parse_type()
    if not isinstance(type, VectorType):
        reader.raise_error("a vector type was expected", place)
    vector = cast("VectorType[Attribute]", type)
    element = vector.element_type
    return reader.make(name, reader.resolve_operands(operands, [element] * len(operands), place), [vector], attributes)


def constant_mask(reader: Reader, name: str) -> Operation:
    """`[4, 2] {…} : T`."""
    sizes = reader.parse_comma_separated_list(
        reader.Delimiter.SQUARE, lambda: reader.parse_integer(allow_boolean=False)
    )
    attributes: dict[str, Attribute] = {"mask_dim_sizes": DenseArrayBase.from_list(i64, sizes)}
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    return reader.make(name, [], [reader.parse_type()], attributes)


def outerproduct(reader: Reader, name: str) -> Operation:
    """`%a, %b [, %acc] {…} : T, T`."""
    operands = reader.operand_names()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.type_list()
    left = types[0]
    if len(types) != 2 or not isinstance(left, VectorType):
        reader.raise_error("the types of a vector and of its other factor were expected", place)
    vector = cast("VectorType[Attribute]", left)
    result: Attribute = vector
    if isinstance(types[1], VectorType):
        extents = [*vector.get_shape(), *cast("VectorType[Attribute]", types[1]).get_shape()]
        result = VectorType(vector.element_type, extents)
    wanted = [*types, result][: len(operands)]
    return reader.make(name, reader.resolve_operands(operands, wanted, place), [result], attributes)


def gather(reader: Reader, name: str) -> Operation:
    """`%m[%i] [%v], %mask, %x {…} : T, T, T, T [into T]`: gather and scatter."""
    base = reader.parse_unresolved_operand()
    offsets = reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_operand(INDEX))
    with reader.in_square_brackets():
        indices = reader.parse_unresolved_operand()
    reader.parse_punctuation(",")
    rest = reader.operand_names()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.type_list()
    results = [reader.parse_type()] if reader.parse_optional_keyword("into") is not None else []
    values = reader.resolve_operands([base, indices, *rest], types, place)
    return reader.make(name, [values[0], *offsets, *values[1:]], results, attributes)


def scan(reader: Reader, name: str) -> Operation:
    """`<add>, %a, %init {…} : T, T`."""
    attributes = combining(reader)
    reader.parse_punctuation(",")
    operands = reader.operand_names()
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.type_list()
    return reader.make(name, reader.resolve_operands(operands, types, place), types, attributes)


def mask(reader: Reader, name: str) -> Operation:
    """`%mask [, %else] {…} {…} : T [-> T]`."""
    operands = reader.operand_names()
    region = reader.parse_region()
    inner = region.blocks[0].last_op if region.blocks else None
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    type = reader.parse_type()
    results = results_clause(reader)
    if inner is not None and inner.name != "vector.yield":
        end = reader.make("vector.yield", inner.results)
        region.blocks[0].add_op(end)
        reader.offsets[end] = reader.last_brace()
    values = [reader.resolve_operand(operand, kind) for operand, kind in zip(operands, [type, *results], strict=False)]
    return reader.make(name, values, results, attributes, [region])


FORMS: dict[str, Form] = {
    "vector.contract": contract,
    "vector.multi_reduction": multi_reduction,
    "vector.transpose": transpose,
    "vector.extract_strided_slice": strided_slice,
    "vector.insert_strided_slice": strided_slice,
    "vector.outerproduct": outerproduct,
    "vector.gather": gather,
    "vector.scatter": gather,
    "vector.scan": scan,
    "vector.mask": mask,
    "vector.yield": format_form("{} $0* ?( : T0* )?"),
    "vector.print": format_form("$0 {} : T0"),
    "vector.constant_mask": constant_mask,
    "vector.shape_cast": format_form("$0 {} : T0 to R"),
    "vector.bitcast": format_form("$0 {} : T0 to R"),
    "vector.broadcast": format_form("$0 {} : T0 to R"),
    "vector.splat": elements,
    "vector.interleave": format_form("$0 , $1 {} : T0 -> R"),
    "vector.from_elements": elements,
    "vector.type_cast": format_form("$0 {} : T0 to R"),
    "vector.vscale": format_form("{} R=index"),
    "vector.step": format_form("{} : R"),
}
