"""Pieces of syntax that many custom forms share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from xdsl.dialects.builtin import DenseArrayBase, IndexType, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.parser import Parser
from xdsl.traits import IsTerminator

from npu_tools.air.dialect import SEGMENT_SIZES
from npu_tools.air.reader import Reader
from npu_tools.air.windows import DYNAMIC

INDEX: Final = IndexType()


def segment_sizes(*sizes: int) -> DenseArrayBase:
    """`operandSegmentSizes`."""
    return DenseArrayBase.from_list(i32, sizes)


def mixed_list(
    reader: Reader, delimiter: Parser.Delimiter = Parser.Delimiter.SQUARE
) -> tuple[DenseArrayBase, list[SSAValue]]:
    """`[0, %i, 64]`: the static array and the values for its markers."""
    values: list[SSAValue] = []

    def entry() -> int:
        if (operand := reader.parse_optional_unresolved_operand()) is None:
            return reader.parse_integer(allow_boolean=False)
        values.append(reader.resolve_operand(operand, INDEX))
        return DYNAMIC

    static = reader.parse_comma_separated_list(delimiter, entry, " in a list of offsets, sizes or strides")
    return DenseArrayBase.from_list(i64, static), values


def keyword_attributes(reader: Reader) -> dict[str, Attribute]:
    """`attributes {…}` or nothing."""
    given = reader.parse_optional_attr_dict_with_keyword()
    return {} if given is None else dict(given.data)


def close_region(reader: Reader, region: Region, terminator: str) -> None:
    """Add the terminator where the only block has none; its place is where the region closes."""
    if not region.blocks:
        region.add_block(Block())
    block = region.blocks[-1]
    if block.last_op is None or not block.last_op.has_trait(IsTerminator, value_if_unregistered=False):
        op = reader.make(terminator)
        block.add_op(op)
        reader.offsets[op] = reader.last_brace()


def grouped(
    reader: Reader,
    name: str,
    groups: Sequence[Sequence[SSAValue]],
    results: Sequence[Attribute],
    attributes: Mapping[str, Attribute],
) -> Operation:
    """An op from its operand groups."""
    sizes = segment_sizes(*(len(group) for group in groups))
    operands = [value for group in groups for value in group]
    return reader.make(name, operands, results, {**attributes, SEGMENT_SIZES: sizes})
