"""Custom forms of linalg's named ops, including those that xDSL lacks."""

from __future__ import annotations

from typing import Final, cast

from xdsl.dialects.builtin import DenseArrayBase, IntegerAttr, MemRefType, TensorType, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from npu_tools.air.affine_forms import results_clause
from npu_tools.air.reader import Form, NamedOp, Reader
from npu_tools.air.syntax import grouped, mixed_list

MISSING: Final = (
    *("batch_matvec", "batch_vecmat", "batch_reduce_matmul", "batch_mmt4d", "matmul_transpose_a", "matmul_transpose_b"),
    *("batch_matmul_transpose_a", "batch_matmul_transpose_b", "matvec", "vecmat", "dot", "mmt4d", "elementwise"),
    *("conv_1d", "conv_2d", "conv_3d", "conv_1d_ncw_fcw", "conv_1d_nwc_wcf", "conv_2d_nhwc_fhwc", "conv_2d_nhwc_hwcf"),
    *("conv_2d_ngchw_fgchw", "conv_2d_ngchw_gfchw", "depthwise_conv_1d_nwc_wc", "depthwise_conv_2d_nhwc_hwc"),
    *("depthwise_conv_2d_nchw_chw", "depthwise_conv_2d_nhwc_hwcm", "pooling_nhwc_sum", "pooling_nhwc_max"),
    *("pooling_nhwc_min", "pooling_nchw_sum", "pooling_ncw_sum", "pooling_nwc_sum", "pooling_nwc_max"),
    *(
        "ceil",
        "erf",
        "floor",
        "negf",
        "powf",
        "reciprocal",
        "round",
        "rsqrt",
        "square",
        "tanh",
        "div_unsigned",
        "batch_matmul",
        "contract",
    ),
)
"""Named ops that xDSL does not declare."""


def group(reader: Reader, word: str) -> list[SSAValue]:
    """`ins(%a, %b : T, T)`, or nothing."""
    if reader.parse_optional_keyword(word) is None:
        return []
    with reader.in_parens():
        names = reader.operand_names()
        if not names:
            return []
        reader.parse_punctuation(":")
        place = reader.pos
        return list(reader.resolve_operands(names, reader.type_list(), place))


def named(reader: Reader, name: str) -> Operation:
    """`{…} ins(…) outs(…) {…} [dimensions = [0]] [-> T]`."""
    attributes = reader.parse_optional_attr_dict()
    for word in ("indexing_maps", "kind"):
        if reader.parse_optional_keyword(word) is not None:
            reader.parse_punctuation("=")
            attributes[word] = reader.parse_attribute()
    groups = [group(reader, "ins"), group(reader, "outs")]
    attributes.update(reader.parse_optional_attr_dict())
    for word in ("dimensions", "permutation"):
        if reader.parse_optional_keyword(word) is not None:
            reader.parse_punctuation("=")
            dims = reader.parse_comma_separated_list(
                reader.Delimiter.SQUARE, lambda: reader.parse_integer(allow_boolean=False)
            )
            attributes[word] = DenseArrayBase.from_list(i64, dims)
    return grouped(reader, name, groups, results_clause(reader), attributes)


def payload(reader: Reader, name: str) -> Operation:
    """map and reduce: `[{ op {…} }] ins(…) outs(…) [dimensions = […]] {…} [(%a: T, …) {…}] [-> T]`."""
    short = reader.at_text("{") and reader.payload_follows()
    inner: tuple[str, dict[str, Attribute]] | None = None
    if short:
        with reader.in_braces():
            inner = reader.parse_identifier(), reader.parse_optional_attr_dict()
    groups = [group(reader, "ins"), group(reader, "outs")]
    attributes: dict[str, Attribute] = {}
    if reader.parse_optional_keyword("dimensions") is not None:
        reader.parse_punctuation("=")
        dims = reader.parse_comma_separated_list(
            reader.Delimiter.SQUARE, lambda: reader.parse_integer(allow_boolean=False)
        )
        attributes["dimensions"] = DenseArrayBase.from_list(i64, dims)
    attributes.update(reader.parse_optional_attr_dict())
    if inner is None:
        arguments = reader.parse_comma_separated_list(reader.Delimiter.PAREN, reader.parse_argument)
        region = reader.parse_region(arguments)
    else:
        region = _short_body(reader, name, groups, inner)
    outs: list[Attribute] = [value.type for value in groups[1]]
    results = results_clause(reader) or [type for type in outs if isinstance(type, TensorType)]
    operands = [value for values in groups for value in values]
    return reader.make(name, operands, results, attributes, [region])


def _short_body(
    reader: Reader, name: str, groups: list[list[SSAValue]], inner: tuple[str, dict[str, Attribute]]
) -> Region:
    taken = groups[0] if name == "linalg.map" else [*groups[0], *groups[1]]
    block = Block(arg_types=[_element(reader, value) for value in taken])
    # A reduction's op takes what was accumulated first.
    operands = [*block.args] if name == "linalg.map" else [*reversed(block.args)]
    op = reader.make(inner[0], operands, [_element(reader, value) for value in groups[1]], inner[1])
    block.add_ops([op, reader.make("linalg.yield", op.results)])
    return Region(block)


def _element(reader: Reader, value: SSAValue) -> Attribute:
    type: Attribute = value.type
    if isinstance(type, MemRefType):
        return cast("MemRefType[Attribute]", type).element_type
    return cast("TensorType[Attribute]", type).element_type if isinstance(type, TensorType) else type


def matmul(reader: Reader, name: str) -> Operation:
    """xDSL's form, or ours where the maps are written out."""
    op_type = reader.op_type(name)
    if reader.at_text("indexing_maps") or issubclass(op_type, NamedOp):
        return named(reader, name)
    return op_type.parse(reader)


def softmax(reader: Reader, name: str) -> Operation:
    """`{…} dimension(1) ins(…) outs(…) [-> T]`."""
    attributes = reader.parse_optional_attr_dict()
    reader.parse_keyword("dimension")
    with reader.in_parens():
        attributes["dimension"] = IntegerAttr(reader.parse_integer(allow_boolean=False), i64)
    operands = [*group(reader, "ins"), *group(reader, "outs")]
    return reader.make(name, operands, results_clause(reader), attributes)


def pack(reader: Reader, name: str) -> Operation:
    """`%s [padding_value(%p : T)] [outer_dims_perm = […]] inner_dims_pos = […] inner_tiles = […] into %d : T -> T`."""
    source = reader.parse_unresolved_operand()
    padding: list[SSAValue] = []
    attributes: dict[str, Attribute] = {}
    if reader.parse_optional_keyword("padding_value") is not None:
        with reader.in_parens():
            value = reader.parse_unresolved_operand()
            reader.parse_punctuation(":")
            padding = [reader.resolve_operand(value, reader.parse_type())]
    for word in ("outer_dims_perm", "inner_dims_pos"):
        if reader.parse_optional_keyword(word) is not None:
            reader.parse_punctuation("=")
            dims = reader.parse_comma_separated_list(
                reader.Delimiter.SQUARE, lambda: reader.parse_integer(allow_boolean=False)
            )
            attributes[word] = DenseArrayBase.from_list(i64, dims)
    reader.parse_keyword("inner_tiles")
    reader.parse_punctuation("=")
    attributes["static_inner_tiles"], tiles = mixed_list(reader)
    reader.parse_keyword("into")
    dest = reader.parse_unresolved_operand()
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    source_type = reader.parse_type()
    reader.parse_punctuation("->")
    dest_type = reader.parse_type()
    results = [dest_type] if reader.result_count else []
    values = [reader.resolve_operand(source, source_type)], [reader.resolve_operand(dest, dest_type)]
    if name == "linalg.unpack":
        return reader.make(name, [*values[0], *values[1], *tiles], results, attributes)
    return grouped(reader, name, [*values, padding, tiles], results, attributes)


FORMS: dict[str, Form] = {f"linalg.{name}": named for name in MISSING} | {
    "linalg.map": payload,
    "linalg.matmul": matmul,
    "linalg.pack": pack,
    "linalg.reduce": payload,
    "linalg.softmax": softmax,
    "linalg.unpack": pack,
}
