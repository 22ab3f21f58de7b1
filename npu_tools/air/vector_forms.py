"""Custom forms of vector that xDSL lacks."""

from __future__ import annotations

from typing import cast

from xdsl.dialects.builtin import DenseArrayBase, VectorType, i64
from xdsl.dialects.vector import CombiningKindAttr
from xdsl.ir import Attribute, Operation

from npu_tools.air.formats import format_form
from npu_tools.air.reader import Form, Reader


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


FORMS: dict[str, Form] = {
    "vector.contract": contract,
    "vector.multi_reduction": multi_reduction,
    "vector.transpose": transpose,
    "vector.extract_strided_slice": strided_slice,
    "vector.insert_strided_slice": strided_slice,
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
