"""Custom forms of arith that xDSL reads too strictly (casts, comparisons and `arith.select` of vectors), and of index."""

from __future__ import annotations

from typing import Final, cast

from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import IntegerAttr, StringAttr, TensorType, VectorType, i1, i64
from xdsl.ir import Attribute, Operation

from npu_tools.air.formats import format_form
from npu_tools.air.reader import Form, Reader

CASTS: Final = (
    "bitcast",
    "extf",
    "extsi",
    "extui",
    "fptosi",
    "fptoui",
    "index_cast",
    "index_castui",
    "sitofp",
    "truncf",
    "trunci",
    "uitofp",
)


INTEGER_PREDICATES: Final = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
FLOAT_PREDICATES: Final = (
    *("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
    *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"),
)
"""In the order of their numbers."""


def cast_form(reader: Reader, name: str) -> Operation:
    """`%x [to_nearest_even] [fastmath<…>] {…} : T to T`."""
    operand = reader.parse_unresolved_operand()
    attributes: dict[str, Attribute] = {}
    while (word := reader.parse_optional_identifier()) is not None:
        if word == "fastmath":
            attributes["fastmath"] = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(reader))
        elif word == "overflow":
            attributes["overflowFlags"] = StringAttr(reader.angle_text())
        else:
            attributes["roundingmode"] = StringAttr(word)
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    source = reader.parse_type()
    reader.parse_keyword("to")
    return reader.make(name, [reader.resolve_operand(operand, source)], [reader.parse_type()], attributes)


def select(reader: Reader, name: str) -> Operation:
    """`%c, %a, %b {…} : T` or `: condition type, T`."""
    operands = reader.operand_names()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.type_list()
    condition = types[0] if len(types) == 2 else i1
    return reader.make(
        name, reader.resolve_operands(operands, [condition, types[-1], types[-1]], place), [types[-1]], attributes
    )


def comparison(predicates: tuple[str, ...]) -> Form:
    """`predicate, %a, %b [fastmath<…>] {…} : T`; the result is i1 in the shape of T."""

    def form(reader: Reader, name: str) -> Operation:
        place = reader.pos
        word = reader.parse_optional_str_literal() or reader.parse_identifier()
        if word not in predicates:
            reader.raise_error(f"'{word}' is no predicate of {name}; there are {', '.join(predicates)}", place)
        reader.parse_punctuation(",")
        operands = reader.operand_names()
        attributes: dict[str, Attribute] = {"predicate": IntegerAttr(predicates.index(word), i64)}
        if reader.parse_optional_keyword("fastmath") is not None:
            attributes["fastmath"] = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(reader))
        attributes.update(reader.parse_optional_attr_dict())
        reader.parse_punctuation(":")
        place = reader.pos
        type = reader.parse_type()
        return reader.make(
            name, reader.resolve_operands(operands, [type, type], place), [with_element(type, i1)], attributes
        )

    return form


def same_types(reader: Reader, name: str) -> Operation:
    """`%a, %b [fastmath<…>] {…} : T`."""
    operands = reader.operand_names()
    attributes: dict[str, Attribute] = {}
    if reader.parse_optional_keyword("fastmath") is not None:
        attributes["fastmath"] = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(reader))
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    type = reader.parse_type()
    return reader.make(name, [reader.resolve_operand(operand, type) for operand in operands], [type], attributes)


def classify(reader: Reader, name: str) -> Operation:
    """`%x [fastmath<…>] {…} : T`; the result is i1 in the shape of T."""
    operand = reader.parse_unresolved_operand()
    attributes: dict[str, Attribute] = {}
    if reader.parse_optional_keyword("fastmath") is not None:
        attributes["fastmath"] = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(reader))
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    type = reader.parse_type()
    return reader.make(name, [reader.resolve_operand(operand, type)], [with_element(type, i1)], attributes)


def with_element(type: Attribute, element: Attribute) -> Attribute:
    """The type in whose shape the elements are `element`; a scalar becomes `element`."""
    if isinstance(type, VectorType):
        vector = cast("VectorType[Attribute]", type)
        return VectorType(element, vector.get_shape(), vector.scalable_dims)
    if isinstance(type, TensorType):
        return TensorType(element, cast("TensorType[Attribute]", type).get_shape())
    return element


INDEX_FORMS: Final[dict[str, Form]] = {
    f"index.{name}": format_form("$0:index , $1:index {} R=index")
    for name in (
        *("add", "sub", "mul", "divs", "divu", "ceildivs", "ceildivu", "floordivs", "rems", "remu"),
        *("maxs", "maxu", "mins", "minu", "shl", "shrs", "shru", "and", "or", "xor"),
    )
}

FORMS: dict[str, Form] = (
    {f"arith.{name}": cast_form for name in CASTS}
    | INDEX_FORMS
    | {
        "arith.cmpf": comparison(FLOAT_PREDICATES),
        "arith.cmpi": comparison(INTEGER_PREDICATES),
        "arith.select": select,
        "arith.remf": same_types,
        "math.isfinite": classify,
        "math.isinf": classify,
        "math.isnan": classify,
        "math.isnormal": classify,
        "index.bool.constant": format_form("#value {} R=i1"),
        "index.casts": format_form("$0 {} : T0 to R"),
        "index.castu": format_form("$0 {} : T0 to R"),
        "index.cmp": format_form("=pred ( $0:index , $1:index ) {} R=i1"),
        "index.constant": format_form("#value:index {} R=index"),
    }
)
