"""Structural rules: each has a program that breaks it, and a program that keeps all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_tools.air import parse_program, verify

DATA = Path(__file__).parents[1] / "data" / "air"

FRAME = """air.channel @c [2, 2]
func.func private @kernel(memref<4xi32>)
func.func @f(%m: memref<4xi32>, %n: index, %i: i32, %b: memref<4xbf16>) {{
  {}
  return
}}
"""

BROKEN = [
    ("channel-undeclared", "error", "air.channel.put @d[%n] (%m[] [] []) : (memref<4xi32>)"),
    ("channel-index-count", "error", "air.channel.put @c[] (%m[] [] []) : (memref<4xi32>)"),
    ("channel-index-count", "warning", "air.channel.put @c[%n, %n, %n] (%m[] [] []) : (memref<4xi32>)"),
    ("dma-rank", "error", "air.dma_memcpy_nd (%m[] [] [], %m[0] [4] []) : (memref<4xi32>, memref<4xi32>)"),
    ("dma-rank", "warning", "air.dma_memcpy_nd (%m[] [] [], %m[0, 0] [4] [1]) : (memref<4xi32>, memref<4xi32>)"),
    ("dma-element-type", "warning", "air.dma_memcpy_nd (%m[] [] [], %b[] [] []) : (memref<4xi32>, memref<4xbf16>)"),
    ("window-negative", "error", "air.channel.put @c[%n, %n] (%m[0] [-4] [1]) : (memref<4xi32>)"),
    ("call-undeclared", "error", "func.call @nobody(%m) : (memref<4xi32>) -> ()"),
    ("call-signature", "error", "func.call @kernel(%b) : (memref<4xbf16>) -> ()"),
    (
        "hierarchy-arguments",
        "error",
        '"air.herd"(%n) <{operandSegmentSizes = array<i32: 0, 1, 0>}> ({^bb0(%x: index): "air.herd_terminator"() : () -> ()}) : (index) -> ()',
    ),
    (
        "hierarchy-arguments",
        "error",
        '"air.launch"(%m) <{operandSegmentSizes = array<i32: 0, 0, 1>}> ({^bb0(%x: index): "air.launch_terminator"() : () -> ()}) : (memref<4xi32>) -> ()',
    ),
    (
        "terminator-missing",
        "error",
        '"air.launch"() <{operandSegmentSizes = array<i32: 0, 0, 0>}> ({"air.wait_all"() : () -> ()}) : () -> ()',
    ),
    ("terminator-parent", "error", "air.launch () in () {\n  air.herd_terminator\n }"),
    (
        "terminator-early",
        "error",
        "air.launch () in () {\n  air.launch_terminator\n  air.wait_all\n  air.launch_terminator\n }",
    ),
    (
        "hierarchy-nesting",
        "warning",
        "air.herd tile (%x) in (%s = %n) {\n  air.herd tile (%y) in (%t = %x) {\n }\n }",
    ),
    (
        "hierarchy-nesting",
        "error",
        "air.segment {\n  %c = arith.constant 1 : index\n  air.rank (%y) in (%t = %c) {\n }\n }",
    ),
    ("herd-rank", "warning", "air.herd tile () in () {\n }"),
    ("execute-results", "error", "%t, %v = air.execute -> (index) {\n  air.execute_terminator %i : i32\n }"),
    ("use-before-definition", "error", "%a = arith.addi %z, %z : index\n  %z = arith.constant 1 : index"),
    (
        "async-dependency",
        "error",
        '"air.wait_all"(%n) : (index) -> ()',
    ),
]


@pytest.mark.parametrize(
    ("code", "severity", "line"), BROKEN, ids=[f"{row[0]}-{number}" for number, row in enumerate(BROKEN)]
)
def test_a_broken_rule_is_found_with_its_place_and_a_remedy(code: str, severity: str, line: str) -> None:
    program = parse_program(FRAME.format(line))
    found = [finding for finding in verify(program) if finding.code == code]
    assert found, [finding.code for finding in verify(program)]
    finding = found[0]
    assert finding.severity == severity
    assert finding.line is not None
    assert finding.line >= 4
    assert finding.remedy
    assert finding.op is not None
    assert finding.message.startswith(finding.op)


def test_a_symbol_declared_twice_names_the_first_place() -> None:
    (finding,) = verify(parse_program("air.channel @c []\nair.channel @c []\n"))
    assert (finding.code, finding.line) == ("symbol-redefined", 2)
    assert "line 1" in finding.message


def test_a_value_from_outside_an_isolated_op_is_found_in_programs_made_by_code() -> None:
    """Text cannot say it: the reader refuses the name. Programs that passes have changed can."""
    program = parse_program(
        "func.func @f(%m: memref<4xi32>) {\n  air.launch () in () {\n    air.wait_all\n  }\n  return\n}\n"
    )
    wait = next(op for op in program.module.walk() if op.name == "air.wait_all")
    wait.operands = [program.functions()[0].body.block.args[0]]
    assert "isolated-from-above" in [finding.code for finding in verify(program)]


def test_operand_groups_that_do_not_add_up_are_found_in_programs_made_by_code() -> None:
    program = parse_program(FRAME.format("air.channel.put @c[%n, %n] (%m[] [] []) : (memref<4xi32>)"))
    put = next(op for op in program.module.walk() if op.name == "air.channel.put")
    put.operands = put.operands[:1]
    assert [finding.code for finding in verify(program)] == ["operand-groups"]


@pytest.mark.parametrize(
    "name", ["form_hierarchy", "form_generic", "form_control_flow", "form_memory", "form_below_air"]
)
def test_programs_that_keep_the_rules_have_no_findings(name: str) -> None:
    program = parse_program((DATA / f"{name}.mlir").read_text(encoding="utf-8"), name)
    assert verify(program) == []


def test_upstream_s_printed_programs_keep_the_rules(air_ir: Path) -> None:
    for path in sorted(air_ir.glob("*.mlir")):
        assert verify(parse_program(path.read_text(encoding="utf-8"), path.name)) == [], path.name
