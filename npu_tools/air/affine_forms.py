"""Custom forms of affine that xDSL lacks."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import (
    AffineMapAttr,
    AffineSetAttr,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    StringAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.parser import Parser

from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import INDEX, close_region, grouped, mixed_list


def dimensions_and_symbols(reader: Reader) -> tuple[list[SSAValue], list[SSAValue]]:
    """`(%d, …)[%s, …]`, both optional lists of index values."""

    def values(delimiter: Parser.Delimiter) -> list[SSAValue]:
        return reader.parse_optional_comma_separated_list(delimiter, lambda: reader.parse_operand(INDEX)) or []

    return values(reader.Delimiter.PAREN), values(reader.Delimiter.SQUARE)


def results_clause(reader: Reader) -> list[Attribute]:
    """`-> T`, `-> (T, …)` or nothing."""
    if reader.parse_optional_punctuation("->") is None:
        return []
    types = reader.parse_optional_comma_separated_list(reader.Delimiter.PAREN, reader.parse_type)
    return [reader.parse_type()] if types is None else [*types]


def if_form(reader: Reader, name: str) -> Operation:
    """`#set(%d)[%s] [-> T] {…} [else {…}] {…}`."""
    place = reader.pos
    condition = reader.parse_attribute()
    if not isinstance(condition, AffineSetAttr):
        reader.raise_error("affine.if takes an affine_set, or an alias of one", place)
    dims, symbols = dimensions_and_symbols(reader)
    results = results_clause(reader)
    regions = [reader.parse_region(), Region()]
    if reader.parse_optional_keyword("else") is not None:
        regions[1] = reader.parse_region()
    for region in regions:
        if not results and region.blocks:
            close_region(reader, region, "affine.yield")
    attributes: dict[str, Attribute] = {"condition": condition, **reader.parse_optional_attr_dict()}
    return reader.make(name, [*dims, *symbols], results, attributes, regions)


def parallel(reader: Reader, name: str) -> Operation:
    """`(%i, %j) = (0, 0) to (%n, 4) [step (1, 2)] [reduce ("addf")] [-> (T)] {…}`."""
    ivs = reader.parse_comma_separated_list(reader.Delimiter.PAREN, lambda: reader.parse_argument(expect_type=False))
    reader.parse_punctuation("=")
    lower, lower_operands, lower_groups = bound_list(reader, "max")
    reader.parse_keyword("to")
    upper, upper_operands, upper_groups = bound_list(reader, "min")
    steps = [1] * len(ivs)
    if reader.parse_optional_keyword("step") is not None:
        steps = reader.parse_comma_separated_list(
            reader.Delimiter.PAREN, lambda: reader.parse_integer(allow_boolean=False)
        )
    reductions: list[Attribute] = []
    if reader.parse_optional_keyword("reduce") is not None:
        words = reader.parse_comma_separated_list(reader.Delimiter.PAREN, reader.parse_str_literal)
        reductions = [StringAttr(word) for word in words]
    results = results_clause(reader)
    region = reader.parse_region([iv.resolve(INDEX) for iv in ivs])
    close_region(reader, region, "affine.yield")
    attributes: dict[str, Attribute] = {
        "reductions": ArrayAttr(reductions),
        "lowerBoundsMap": AffineMapAttr(lower),
        "lowerBoundsGroups": groups_attr(lower_groups),
        "upperBoundsMap": AffineMapAttr(upper),
        "upperBoundsGroups": groups_attr(upper_groups),
        "steps": ArrayAttr([IntegerAttr(step, i64) for step in steps]),
        **reader.parse_optional_attr_dict(),
    }
    return reader.make(name, [*lower_operands, *upper_operands], results, attributes, [region])


def groups_attr(groups: Sequence[int]) -> DenseIntOrFPElementsAttr:
    """How many results of the bounds map belong to each loop."""
    return DenseIntOrFPElementsAttr.from_list(TensorType(i32, [len(groups)]), groups)


def bound_list(reader: Reader, combine: str) -> tuple[AffineMap, list[SSAValue], list[int]]:
    """`(0, %n, max(%a, 3))`: one map for all bounds, its operands, and the results for each loop."""
    reader.parse_punctuation("(")
    maps: list[tuple[AffineMap, Sequence[SSAValue]]] = []
    groups: list[int] = []
    while not reader.at_text(")"):
        if groups:
            reader.parse_punctuation(",")
        several = reader.parse_optional_keyword(combine) is not None
        map_, operands = reader.affine_expressions(reader.Delimiter.PAREN if several else None)
        maps.append((map_, operands))
        groups.append(len(map_.results))
    reader.parse_punctuation(")")
    results: list[AffineExpr] = []
    values: list[SSAValue] = []
    for map_, operands in maps:
        renamed = [AffineExpr.dimension(len(values) + i) for i in range(map_.num_symbols)]
        results += [result.replace_dims_and_symbols([], renamed) for result in map_.results]
        values += operands
    return AffineMap(len(values), 0, tuple(results)), values, groups


def delinearize_index(reader: Reader, name: str) -> Operation:
    """`%i into (2, %n) {…} : index, index`."""
    operand = reader.parse_operand(INDEX)
    reader.parse_keyword("into")
    static, values = mixed_list(reader, reader.Delimiter.PAREN)
    attributes: dict[str, Attribute] = {"static_basis": static, **reader.parse_optional_attr_dict()}
    reader.parse_punctuation(":")
    return reader.make(name, [operand, *values], reader.type_list(), attributes)


def linearize_index(reader: Reader, name: str) -> Operation:
    """`[disjoint] [%i, %j] by (2, %n) {…} : index`."""
    attributes: dict[str, Attribute] = {}
    disjoint = reader.parse_optional_keyword("disjoint") is not None
    if disjoint:
        attributes["disjoint"] = reader.unit()
    indices = reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_operand(INDEX))
    reader.parse_keyword("by")
    attributes["static_basis"], values = mixed_list(reader, reader.Delimiter.PAREN)
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    results = reader.type_list()
    return grouped(reader, name, [indices, values], results, attributes)


def min_max(reader: Reader, name: str) -> Operation:
    """`#map(%d)[%s] {…}`."""
    place = reader.pos
    map_ = reader.parse_attribute()
    if not isinstance(map_, AffineMapAttr):
        reader.raise_error(f"{name} takes an affine_map, or an alias of one", place)
    dims, symbols = dimensions_and_symbols(reader)
    attributes: dict[str, Attribute] = {"map": map_, **reader.parse_optional_attr_dict()}
    return reader.make(name, [*dims, *symbols], [INDEX], attributes)


FORMS: dict[str, Form] = {
    "affine.if": if_form,
    "affine.parallel": parallel,
    "affine.delinearize_index": delinearize_index,
    "affine.linearize_index": linearize_index,
    "affine.max": min_max,
    "affine.min": min_max,
}
