"""Custom forms of scf that xDSL lacks."""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr, i1
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.parser import Parser, UnresolvedOperand

from npu_tools.air.affine_forms import results_clause
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import INDEX, close_region, keyword_attributes, mixed_list, segment_sizes


def index_list(reader: Reader) -> list[SSAValue]:
    """`(%a, %b)`."""
    return reader.parse_comma_separated_list(reader.Delimiter.PAREN, lambda: reader.parse_operand(INDEX))


def parallel(reader: Reader, name: str) -> Operation:
    """`(%i, %j) = (%a, %b) to (%c, %d) step (%e, %f) [init (%v) -> T] {…}`."""
    ivs = reader.parse_comma_separated_list(reader.Delimiter.PAREN, lambda: reader.parse_argument(expect_type=False))
    reader.parse_punctuation("=")
    lower = index_list(reader)
    reader.parse_keyword("to")
    upper = index_list(reader)
    reader.parse_keyword("step")
    steps = index_list(reader)
    inits: list[SSAValue] = []
    results: list[Attribute] = []
    if reader.parse_optional_keyword("init") is not None:
        names = reader.parse_comma_separated_list(reader.Delimiter.PAREN, reader.parse_unresolved_operand)
        place = reader.pos
        results = results_clause(reader)
        inits = list(reader.resolve_operands(names, results, place))
    region = reader.parse_region([iv.resolve(INDEX) for iv in ivs])
    close_region(reader, region, "scf.reduce")
    attributes = reader.parse_optional_attr_dict()
    return _with_region(reader, name, [lower, upper, steps, inits], results, attributes, region)


def _with_region(
    reader: Reader,
    name: str,
    groups: list[list[SSAValue]],
    results: list[Attribute],
    attributes: dict[str, Attribute],
    region: Region,
) -> Operation:
    sizes = {"operandSegmentSizes": segment_sizes(*(len(group) for group in groups))}
    operands = [value for group in groups for value in group]
    return reader.make(name, operands, results, {**attributes, **sizes}, [region])


def for_form(reader: Reader, name: str) -> Operation:
    """`[unsigned] %i = %a to %b step %c [iter_args(%x = %y) -> (T)] [: T] {…}`."""
    attributes: dict[str, Attribute] = {}
    if reader.parse_optional_keyword("unsigned") is not None:
        attributes["unsignedCmp"] = UnitAttr()
    iv = reader.parse_argument(expect_type=False)
    reader.parse_punctuation("=")
    bounds = [reader.parse_unresolved_operand()]
    for word in ("to", "step"):
        reader.parse_keyword(word)
        bounds.append(reader.parse_unresolved_operand())
    names: list[Parser.UnresolvedArgument] = []
    values: list[UnresolvedOperand] = []
    results: list[Attribute] = []
    place = reader.pos
    if reader.parse_optional_keyword("iter_args") is not None:

        def entry() -> None:
            names.append(reader.parse_argument(expect_type=False))
            reader.parse_punctuation("=")
            values.append(reader.parse_unresolved_operand())

        reader.parse_comma_separated_list(reader.Delimiter.PAREN, entry)
        place = reader.pos
        results = results_clause(reader)
    type: Attribute = INDEX
    if reader.parse_optional_punctuation(":") is not None:
        type = reader.parse_type()
    inits = reader.resolve_operands(values, results, place)
    operands = [reader.resolve_operand(bound, type) for bound in bounds]
    arguments = [iv.resolve(type), *(name.resolve(kind) for name, kind in zip(names, results, strict=True))]
    region = reader.parse_region(arguments)
    if not results:
        close_region(reader, region, "scf.yield")
    attributes.update(reader.parse_optional_attr_dict())
    return reader.make(name, [*operands, *inits], results, attributes, [region])


def if_form(reader: Reader, name: str) -> Operation:
    """`%c [-> (T)] {…} [else {…}] {…}`."""
    condition = reader.parse_operand(i1)
    results = results_clause(reader)
    regions = [reader.parse_region(), Region()]
    if reader.parse_optional_keyword("else") is not None:
        regions[1] = reader.parse_region()
    for region in regions:
        if not results and region.blocks:
            close_region(reader, region, "scf.yield")
    return reader.make(name, [condition], results, reader.parse_optional_attr_dict(), regions)


def while_form(reader: Reader, name: str) -> Operation:
    """`[(%x = %y, …)] : (T) -> T {…} do {…} [attributes {…}]`."""
    names: list[Parser.UnresolvedArgument] = []
    values: list[UnresolvedOperand] = []

    def entry() -> None:
        names.append(reader.parse_argument(expect_type=False))
        reader.parse_punctuation("=")
        values.append(reader.parse_unresolved_operand())

    reader.parse_optional_comma_separated_list(reader.Delimiter.PAREN, entry)
    reader.parse_punctuation(":")
    place = reader.pos
    type = reader.parse_function_type()
    operands = reader.resolve_operands(values, type.inputs.data, place)
    before = reader.parse_region([name.resolve(kind) for name, kind in zip(names, type.inputs.data, strict=True)])
    reader.parse_keyword("do")
    regions = [before, reader.parse_region()]
    return reader.make(name, operands, type.outputs.data, keyword_attributes(reader), regions)


def forall(reader: Reader, name: str) -> Operation:
    """`(%i) in (4)` or `(%i) = (0) to (4) step (1)`, then `[shared_outs(%a = %b) -> T] {…} {mapping = […]}`."""
    ivs = reader.parse_comma_separated_list(reader.Delimiter.PAREN, lambda: reader.parse_argument(expect_type=False))
    attributes: dict[str, Attribute] = {}
    if reader.parse_optional_keyword("in") is not None:
        rank = len(ivs)
        attributes["staticLowerBound"], lower = reader.i64_array([0] * rank), list[SSAValue]()
        attributes["staticUpperBound"], upper = mixed_list(reader, reader.Delimiter.PAREN)
        attributes["staticStep"], steps = reader.i64_array([1] * rank), list[SSAValue]()
    else:
        reader.parse_punctuation("=")
        attributes["staticLowerBound"], lower = mixed_list(reader, reader.Delimiter.PAREN)
        reader.parse_keyword("to")
        attributes["staticUpperBound"], upper = mixed_list(reader, reader.Delimiter.PAREN)
        reader.parse_keyword("step")
        attributes["staticStep"], steps = mixed_list(reader, reader.Delimiter.PAREN)
    arguments: list[Parser.Argument] = [iv.resolve(INDEX) for iv in ivs]
    outs: list[SSAValue] = []
    results: list[Attribute] = []
    if reader.parse_optional_keyword("shared_outs") is not None:
        values: list[UnresolvedOperand] = []

        def entry() -> Parser.UnresolvedArgument:
            argument = reader.parse_argument(expect_type=False)
            reader.parse_punctuation("=")
            values.append(reader.parse_unresolved_operand())
            return argument

        names = reader.parse_comma_separated_list(reader.Delimiter.PAREN, entry)
        place = reader.pos
        results = results_clause(reader)
        outs = list(reader.resolve_operands(values, results, place))
        arguments += [argument.resolve(type) for argument, type in zip(names, results, strict=True)]
    region = reader.parse_region(arguments)
    close_region(reader, region, "scf.forall.in_parallel")
    attributes.update(reader.parse_optional_attr_dict())
    return _with_region(reader, name, [lower, upper, steps, outs], results, attributes, region)


def in_parallel(reader: Reader, name: str) -> Operation:
    """`{…}`."""
    region = reader.parse_region()
    return reader.make(name, attributes=reader.parse_optional_attr_dict(), regions=[region])


def reduce(reader: Reader, name: str) -> Operation:
    """`(%a, … : T, …) {…}, {…}` or nothing."""
    operands: list[SSAValue] = []
    regions: list[Region] = []
    if reader.parse_optional_punctuation("(") is not None:
        names = reader.operand_names()
        if reader.parse_optional_punctuation(":") is not None:
            place = reader.pos
            operands = list(reader.resolve_operands(names, reader.type_list(), place))
        reader.parse_punctuation(")")
        if reader.parse_optional_punctuation(":") is not None:  # the form before MLIR 18: types outside
            place = reader.pos
            operands = list(reader.resolve_operands(names, reader.type_list(), place))
        regions = [reader.parse_region()]
        while reader.parse_optional_punctuation(",") is not None:
            regions.append(reader.parse_region())
    return reader.make(name, operands, [], reader.parse_optional_attr_dict(), regions)


FORMS: dict[str, Form] = {
    "scf.for": for_form,
    "scf.if": if_form,
    "scf.while": while_form,
    "scf.parallel": parallel,
    "scf.forall": forall,
    "scf.forall.in_parallel": in_parallel,
    "scf.reduce": reduce,
}
