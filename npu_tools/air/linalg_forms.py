"""Custom forms of linalg's named ops, including those that xDSL lacks."""

from __future__ import annotations

from typing import Final

from xdsl.dialects.builtin import DenseArrayBase, i64
from xdsl.ir import Attribute, Operation, SSAValue

from npu_tools.air.affine_forms import results_clause
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import grouped, mixed_list

MISSING: Final = (
    *("batch_matvec", "batch_vecmat", "batch_reduce_matmul", "batch_mmt4d", "matmul_transpose_a", "matmul_transpose_b"),
    *("batch_matmul_transpose_a", "batch_matmul_transpose_b", "matvec", "vecmat", "dot", "mmt4d", "elementwise"),
    *("conv_1d", "conv_2d", "conv_3d", "conv_1d_ncw_fcw", "conv_1d_nwc_wcf", "conv_2d_nhwc_fhwc", "conv_2d_nhwc_hwcf"),
    *("conv_2d_ngchw_fgchw", "conv_2d_ngchw_gfchw", "depthwise_conv_1d_nwc_wc", "depthwise_conv_2d_nhwc_hwc"),
    *("depthwise_conv_2d_nchw_chw", "depthwise_conv_2d_nhwc_hwcm", "pooling_nhwc_sum", "pooling_nhwc_max"),
    *("pooling_nhwc_min", "pooling_nchw_sum", "pooling_ncw_sum", "pooling_nwc_sum", "pooling_nwc_max"),
    *("ceil", "erf", "floor", "negf", "powf", "reciprocal", "round", "rsqrt", "square", "tanh", "div_unsigned", "map"),
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


FORMS: dict[str, Form] = {f"linalg.{name}": named for name in MISSING} | {"linalg.pack": pack, "linalg.unpack": pack}
