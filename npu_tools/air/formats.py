"""Custom forms described in one line: a small format language for ops whose syntax has nothing special.

`"$0 , $1 {} : T0 to T1"` reads `%a, %b {…} : memref<4xf32> to memref<4xf32>`. The words, separated by blanks:

| Word | Reads |
|---|---|
| `$N`, `$N?`, `$N*` | one operand, an operand or none, a comma-separated list of any length, into slot N |
| `$N:index` | an operand whose type is not written; any name in `KNOWN_TYPES` |
| `TN`, `TN*` | the type of slot N; the types of the list in slot N |
| `TALL*` | the types of all operands, in order |
| `R`, `R*` | the type of the result, of all results |
| `R=N`, `R=index` | nothing: a result has the type of slot N, or a known type |
| `F` | the types of all operands and results, `(T, T) -> T` |
| `{}`, `attributes{}` | an optional attribute dictionary, in the second form after the keyword |
| `@name`, `@name?`, `@@name` | a symbol as a reference, the same or none, a symbol that is defined, stored as that attribute |
| `#name`, `#name:i32` | an attribute; an integer of that type |
| `=name`, `=name:a\\|b` | a bare word, kept as a string; only one of those |
| `region`, `region:op` | a region; one that ends with `op` even where the text leaves it out |
| `fastmath` | `fastmath<…>` or nothing |
| `^*` | successor blocks in brackets or none |
| `sizes` | nothing: the op carries operandSegmentSizes, a number for each slot |
| `?( … )?` | a part that is there when its first word (a literal or an operand) is |
| anything else | itself, a keyword or punctuation |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import IndexType, IntegerAttr, IntegerType, StringAttr, SymbolRefAttr, f32, i1, i8, i32, i64
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.parser import UnresolvedOperand
from xdsl.utils.lexer import Position

from npu_tools.air.dialect import SEGMENT_SIZES
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import close_region, keyword_attributes, segment_sizes

KNOWN_TYPES: Final[Mapping[str, Attribute]] = {
    "index": IndexType(),
    "i1": i1,
    "i8": i8,
    "i32": i32,
    "i64": i64,
    "f32": f32,
}


@dataclass(slots=True)
class _Draft:
    """What was read of one op so far."""

    slots: dict[int, list[UnresolvedOperand]] = field(default_factory=dict[int, list[UnresolvedOperand]])
    types: dict[int, Sequence[Attribute]] = field(default_factory=dict[int, Sequence[Attribute]])
    all_types: list[Attribute] | None = None
    results: list[Attribute | int] = field(default_factory=list[Attribute | int])
    """Types, or the slot whose type a result has."""
    attributes: dict[str, Attribute] = field(default_factory=dict[str, Attribute])
    regions: list[Region] = field(default_factory=list[Region])
    successors: list[Block] = field(default_factory=list[Block])
    sized: bool = False
    place: Position = 0


_Step = Callable[[Reader, _Draft], None]


def format_form(text: str) -> Form:
    """The form that the format describes."""
    steps, rest = _compile(text.split())
    if rest:
        raise ValueError(f"unbalanced ')?' in {text!r}")

    def form(reader: Reader, name: str) -> Operation:
        draft = _Draft()
        for step in steps:
            step(reader, draft)
        return _finish(reader, name, draft)

    return form


def _finish(reader: Reader, name: str, draft: _Draft) -> Operation:
    slots = [draft.slots.get(slot, []) for slot in range(max(draft.slots, default=-1) + 1)]
    groups: list[Sequence[SSAValue]]
    if draft.all_types is not None:
        names = [operand for slot in slots for operand in slot]
        values = list(reader.resolve_operands(names, draft.all_types, draft.place))
        groups = []
        for slot in slots:
            groups.append(values[: len(slot)])
            values = values[len(slot) :]
    else:
        groups = [
            reader.resolve_operands(slot, draft.types.get(number, ()), draft.place) for number, slot in enumerate(slots)
        ]
    if draft.sized:
        draft.attributes[SEGMENT_SIZES] = segment_sizes(*(len(group) for group in groups))
    results = [groups[result][0].type if isinstance(result, int) else result for result in draft.results]
    operands = [value for group in groups for value in group]
    return reader.make(name, operands, results, draft.attributes, draft.regions, draft.successors)


def _compile(words: list[str]) -> tuple[list[_Step], list[str]]:
    steps: list[_Step] = []
    while words:
        word, *words = words
        if word == ")?":
            return steps, [")?", *words]
        if word == "?(":
            first, *words = words
            inner, words = _compile(words)
            words = words[1:]
            steps.append(_optional(first, inner))
        else:
            steps.append(_step(word))
    return steps, words


def _optional(first: str, inner: list[_Step]) -> _Step:
    lead = _step(first)

    def step(reader: Reader, draft: _Draft) -> None:
        if reader.at_operand() if first.startswith("$") else reader.at_text(first):
            for part in (lead, *inner):
                part(reader, draft)

    return step


def _step(word: str) -> _Step:
    kind, rest = word[0], word[1:]
    if kind == "$":
        return _operand_step(rest)
    if kind == "T" and (rest.rstrip("*").isdigit() or rest == "ALL*"):
        return _type_step(rest)
    if kind == "R" and (rest in ("", "*") or rest.startswith("=")):
        return _result_step(rest)
    if kind == "@" and rest:
        return _symbol_step(rest)
    if kind == "#" and rest:
        return _attribute_step(rest)
    if kind == "=" and rest:
        return _word_step(rest)
    if word in ("{}", "attributes{}"):
        return _dictionary_step(word)
    if word.startswith("region"):
        return _region_step(word.removeprefix("region").removeprefix(":"))
    if word == "^*":
        return lambda reader, draft: draft.successors.extend(reader.parse_optional_successors() or ())
    if word == "sizes":
        return _sized
    if word == "fastmath":
        return _fast_math
    if word == "F":
        return _function_step
    return lambda reader, draft: reader.expect_text(word)


def _sized(reader: Reader, draft: _Draft) -> None:
    draft.sized = True


def _fast_math(reader: Reader, draft: _Draft) -> None:
    if reader.parse_optional_keyword("fastmath") is not None:
        draft.attributes["fastmath"] = FastMathFlagsAttr(FastMathFlagsAttr.parse_parameter(reader))


def _function_step(reader: Reader, draft: _Draft) -> None:
    draft.place = reader.pos
    type = reader.parse_function_type()
    draft.all_types = [*type.inputs.data]
    draft.results.extend(type.outputs.data)


def _operand_step(rest: str) -> _Step:
    spec, _, known = rest.partition(":")
    number = int(spec.rstrip("*?"))

    def step(reader: Reader, draft: _Draft) -> None:
        draft.place = reader.pos
        if spec.endswith("*"):
            operands = reader.operand_names()
        elif spec.endswith("?"):
            operand = reader.parse_optional_unresolved_operand()
            operands = [] if operand is None else [operand]
        else:
            operands = [reader.parse_unresolved_operand()]
        draft.slots[number] = operands
        if known:
            draft.types[number] = [KNOWN_TYPES[known]] * len(operands)

    return step


def _type_step(rest: str) -> _Step:
    if rest == "ALL*":

        def all_step(reader: Reader, draft: _Draft) -> None:
            draft.place = reader.pos
            draft.all_types = reader.type_list() if any(draft.slots.values()) else []

        return all_step
    number = int(rest.rstrip("*"))

    def step(reader: Reader, draft: _Draft) -> None:
        draft.place = reader.pos
        if rest.endswith("*"):
            draft.types[number] = reader.type_list() if draft.slots.get(number) else []
        else:
            draft.types[number] = [reader.parse_type()] * len(draft.slots.get(number, ()))

    return step


def _result_step(rest: str) -> _Step:
    if rest == "":
        return lambda reader, draft: draft.results.append(reader.parse_type())
    if rest == "*":
        return lambda reader, draft: draft.results.extend(reader.type_list())
    source = rest[1:]
    if source.isdigit():
        return lambda reader, draft: draft.results.append(int(source))
    return lambda reader, draft: draft.results.append(KNOWN_TYPES[source])


def _symbol_step(rest: str) -> _Step:
    name = rest.lstrip("@").rstrip("?")

    def step(reader: Reader, draft: _Draft) -> None:
        if rest.startswith("@"):
            symbol = reader.parse_optional_symbol_name() if rest.endswith("?") else reader.parse_symbol_name()
            if symbol is not None:
                draft.attributes[name] = symbol
        elif not rest.endswith("?") or reader.at_symbol():
            attribute = reader.parse_attribute()
            if not isinstance(attribute, SymbolRefAttr):
                reader.raise_error("a symbol (@name) was expected")
            draft.attributes[name] = attribute

    return step


def _attribute_step(rest: str) -> _Step:
    name, _, known = rest.partition(":")

    def step(reader: Reader, draft: _Draft) -> None:
        if not known:
            draft.attributes[name] = reader.parse_attribute()
            return
        type = KNOWN_TYPES[known]
        assert isinstance(type, IntegerType | IndexType)
        value = reader.parse_integer(allow_boolean=False)
        draft.attributes[name] = IntegerAttr(value, type)

    return step


def _word_step(rest: str) -> _Step:
    name, _, choices = rest.partition(":")
    allowed = choices.split("|") if choices else []

    def step(reader: Reader, draft: _Draft) -> None:
        place = reader.pos
        word = reader.parse_identifier()
        if allowed and word not in allowed:
            reader.raise_error(f"one of {', '.join(allowed)} was expected, found '{word}'", place)
        draft.attributes[name] = StringAttr(word)

    return step


def _dictionary_step(word: str) -> _Step:
    def step(reader: Reader, draft: _Draft) -> None:
        draft.attributes.update(reader.parse_optional_attr_dict() if word == "{}" else keyword_attributes(reader))

    return step


def _region_step(terminator: str) -> _Step:
    def step(reader: Reader, draft: _Draft) -> None:
        region = reader.parse_region()
        if terminator:
            close_region(reader, region, terminator)
        draft.regions.append(region)

    return step
