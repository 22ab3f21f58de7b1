"""Text that is no program: one kind of error, at its place, whatever the text."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from npu_tools.air import parse_program
from npu_tools.errors import ProgramSyntaxError

DATA = Path(__file__).parents[1] / "data" / "air"

HERD = "func.func @f(%n: index, %m: memref<4xi32>) {{\n  {}\n  return\n}}\n"

REFUSED = [
    ("unknown custom form", "module {\n  foo.bar %x\n}", 2, 3, "'foo.bar' (dialect 'foo')"),
    ("unknown op of a known dialect", "arith.wonder", 1, 1, "'arith.wonder' (dialect 'arith')"),
    ("undefined value", HERD.format("air.wait_all [%t]"), 2, 17, "%t is used but never defined"),
    (
        "value from outside an isolated region",
        HERD.format("air.herd tile (%x) in (%s = %n) {\n    memref.dealloc %m : memref<4xi32>\n  }"),
        3,
        20,
        "isolated from above",
    ),
    (
        "value defined only inside a later region",
        HERD.format("scf.for %j = %n to %late step %n {\n    %late = arith.constant 4 : index\n  }"),
        2,
        22,
        "%late is used but never defined",
    ),
    ("async without a name", HERD.format("air.wait_all async"), 2, 16, "its result needs a name"),
    (
        "too few types",
        HERD.format("air.launch () in () args(%a = %m, %b = %n) : index {\n  }"),
        2,
        48,
        "2 values but 1 types",
    ),
    ("wrong name", HERD.format("air.herd tyle (%x) in (%s = %n) {\n  }"), 2, 12, "tile"),
    ("window without strides", HERD.format("air.channel.put @c[] (%m[0] [4]) : (memref<4xi32>)"), 2, 34, "["),
    ("values bound", HERD.format("%a, %b = air.wait_all async"), 2, 12, "returns 1 values, but 2 names"),
    (
        "operand groups",
        HERD.format('"air.herd"(%n) <{operandSegmentSizes = array<i32: 0, 2, 0>}> ({^bb0:}) : (index) -> ()'),
        2,
        3,
        "take 2 operands, but it has 1",
    ),
    (
        "markers and values",
        HERD.format(
            '"air.channel.get"(%m) {chan_name = @c, operandSegmentSizes = array<i32: 0, 0, 1, 0, 0, 0>, '
            "static_dst_offsets = array<i64: -9223372036854775808>} : (memref<4xi32>) -> ()"
        ),
        2,
        3,
        "1 places for SSA values but 0 values",
    ),
    (
        "no region",
        HERD.format('"air.herd"(%n) {operandSegmentSizes = array<i32: 0, 1, 0>} : (index) -> ()'),
        2,
        3,
        "0 regions",
    ),
    ("empty", "", 1, 1, "no operation"),
    ("comments alone", "// nothing\n", 1, 1, "no operation"),
    ("no end", "module {\n  func.func @f() {\n", 3, 1, ""),
    ("second program of a split file", "module {}\n// -----\nmodule {\n  what\n}\n", 4, 3, "'what'"),
    ("bad predicate", HERD.format("%c = arith.cmpi larger, %n, %n : index"), 2, 19, "'larger' is no predicate"),
    ("unclosed string", HERD.format('"air.wait_all() : () -> ()'), 2, 3, "never closed"),
    ("unknown character", HERD.format("$"), 2, 3, "means nothing here"),
    ("resources without end", "module {}\n{-# dialect_resources", 2, 1, "'#-}' is missing"),
]


@pytest.mark.parametrize(
    ("text", "line", "column", "part"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_an_error_names_line_and_column_and_shows_the_line(text: str, line: int, column: int, part: str) -> None:
    with pytest.raises(ProgramSyntaxError) as caught:
        parse_program(text, name="design.mlir")
    error = caught.value
    assert (error.line, error.column) == (line, column), error
    assert part in error.message
    assert str(error).startswith(f"design.mlir:{line}:{column}: ")
    lines = text.splitlines()
    if len(lines) >= line and len(lines[line - 1]) <= 160:
        assert error.snippet == f"{lines[line - 1]}\n{' ' * (column - 1)}^"


ABSURD = {
    "regions": "scf.if %c {" * 5000,
    "parentheses": "#m = affine_map<(d0) -> (" + "(" * 20000,
    "sum": "#m = affine_map<(d0) -> (" + " + ".join(["d0 mod 3"] * 5000) + ")>\nmodule {}",
    "negation": "#m = affine_map<(d0) -> (" + "-" * 20000 + "d0)>",
    "arrays": "#a = " + "[" * 20000,
    "tuples": "!t = " + "tuple<" * 5000,
    "function types": "!t = " + "() -> " * 5000 + "()",
    "number": "%0 = arith.constant " + "9" * 10000 + " : i32",
    "out of range": "%0 = arith.constant 99999999999999999999999 : i32",
    "integer width": "%0 = arith.constant 1 : i999999999999",
    "constant": "%0 = arith.constant dense<0> : tensor<999999999999x999999xf32>",
    "hexadecimal constant": '%0 = arith.constant dense<"0x00000000"> : tensor<99999999999xf32>',
    "results": "%0:999999999999 = arith.constant 1 : i32",
    "result index": "func.func @f(%a: index) {\n  air.wait_all [%a#99999999999]\n}",
    "locations": "module {} loc(" + "callsite(" * 5000,
    "string with no end": '"air.channel"() {sym_name = "a" ' + '"abc' * 200 + "\\",
    "comment in a split file": "// a b // c d" * 2000 + "\n// -----\nmodule {",
    "attribute with no end": "module attributes {a = #x.y<" + "<" * 20000,
}


@pytest.mark.parametrize("text", ABSURD.values(), ids=ABSURD.keys())
def test_absurd_text_is_refused_with_a_place(text: str) -> None:
    with pytest.raises(ProgramSyntaxError) as caught:
        parse_program(text)
    assert caught.value.line is not None


def test_a_text_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(ProgramSyntaxError, match="more than the 100 that are read"):
        parse_program("module {}" + " " * 100, max_characters=100)


def test_many_regions_among_many_values_stay_quick() -> None:
    """xDSL copies all names for each region; ours must not, or this is a billion steps."""
    body = "\n".join(f"  %v{i} = arith.constant {i} : index\n  scf.if %b {{\n  }}" for i in range(1500))
    parsed = parse_program(f"func.func @f(%b: i1) {{\n{body}\n  return\n}}\n")
    assert sum(op.name == "scf.if" for op in parsed.module.walk()) == 1500


def _mutated(text: str, random_: random.Random) -> str:
    """The text with one to four places cut, doubled, swapped or overwritten."""
    for _ in range(random_.randint(1, 4)):
        start = random_.randrange(len(text))
        end = min(len(text), start + random_.choice((1, 1, 2, 5, 20, 80)))
        piece = random_.choice(
            (
                "",
                text[start:end] * 2,
                random_.choice('{}()[]<>%@#^!"-=:,.0x\\\n\0é'),
                random_.choice(("index", "air.herd", "-1")),
            )
        )
        text = text[:start] + piece + text[end:]
        if not text:
            return " "
    return text


@pytest.mark.parametrize(
    "name", ["form_hierarchy", "form_generic", "form_control_flow", "form_memory", "form_below_air", "form_odds"]
)
def test_truncated_and_mutated_programs_are_read_or_refused_with_a_place(name: str) -> None:
    text = (DATA / f"{name}.mlir").read_text(encoding="utf-8")
    seeded = random.Random(name)
    cases = [text[: seeded.randrange(len(text))] for _ in range(4)] + [_mutated(text, seeded) for _ in range(8)]
    for case in cases:
        assert 1 <= _line_of_refusal(case, name) <= case.count("\n") + 1


def _line_of_refusal(text: str, name: str) -> int:
    """The line an error names, 1 where the text is a program."""
    try:
        parse_program(text, name).print_generic()
    except ProgramSyntaxError as error:
        return error.line or 0
    return 1
