"""What cannot be right on any device is refused with its place; the twin that is right is not."""

from __future__ import annotations

import pytest

from npu_tools.check import check_program_text
from npu_tools.device import device

NPU2 = device("npu2")


def program(body: str, arguments: str = "%a: memref<64xi32>, %b: memref<64xi32>") -> str:
    return f"func.func @f({arguments}) {{\n{body}\n  return\n}}\n"


def codes(text: str) -> dict[str, int | None]:
    report = check_program_text(text, "p.mlir", NPU2)
    assert report.parsed, report.findings
    return {finding.code: finding.line for finding in reversed(report.findings) if finding.severity == "error"}


HERD = """  air.launch () in () args(%la=%a, %lb=%b) : memref<64xi32>, memref<64xi32> {
    air.segment @s args(%sa=%la, %sb=%lb) : memref<64xi32>, memref<64xi32> {
      %n = arith.constant SIZE : index
      %one = arith.constant 1 : index
      air.herd @h tile (%x, %y) in (%nx=%n, %ny=%one) args(%ha=%sa, %hb=%sb) : memref<64xi32>, memref<64xi32> {
        %buf = memref.alloc() : memref<64xi32, 2>
        air.dma_memcpy_nd (%buf[] [] [], %ha[%c] [COUNT] [%d]) : (memref<64xi32, 2>, memref<64xi32>)
        %i = arith.constant INDEX : index
        %v = memref.load %buf[%i] : memref<64xi32, 2>
        memref.store %v, %buf[%i] : memref<64xi32, 2>
        air.dma_memcpy_nd (%hb[] [] [], %buf[] [] []) : (memref<64xi32>, memref<64xi32, 2>)
      }
    }
  }"""


def herd(size: int = 1, count: int = 64, index: int = 0) -> str:
    inner = "        %c = arith.constant 0 : index\n        %d = arith.constant 1 : index\n        %buf = "
    body = HERD.replace("        %buf = ", inner, 1).replace("SIZE", str(size)).replace("COUNT", str(count))
    return program(body.replace("INDEX", str(index)))


def test_a_program_without_faults_has_none() -> None:
    assert codes(herd()) == {}


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (herd(size=0), "hierarchy-size", 6),
        (herd(size=-3), "hierarchy-size", 6),
        (herd(count=32), "count-mismatch", 10),
        (herd(index=64), "index-out-of-bounds", 12),
        (program('  "foo.bar"() : () -> ()'), "unknown-dialect", 2),
        (program("", "%a: memref<?xi32>"), "dynamic-shape", 1),
    ],
)
def test_a_fault_is_told_at_its_line(text: str, code: str, line: int) -> None:
    assert codes(text).get(code) == line, codes(text)


def test_a_loop_that_never_ends_is_told() -> None:
    loop = (
        "  %c0 = arith.constant 0 : index\n  %c8 = arith.constant 8 : index\n  scf.for %i = %c0 to %c8 step STEP {\n  }"
    )
    assert "loop-step-zero" in codes(program(loop.replace("STEP", "%c0")))
    assert "loop-step-zero" not in codes(program(loop.replace("STEP", "%c8")))


def test_a_module_without_a_function_is_told() -> None:
    report = check_program_text("module {\n}\n", "p.mlir", NPU2)
    assert [finding.code for finding in report.findings] == ["no-function"]
    assert report.ok
