"""Loops of vectors executed at once: the same bits as the loop, and the loop itself where anything is out of the way."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator import strips
from npu_tools.emulator.run import RunResult, run_program
from npu_tools.recipes import recipe

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
SHAPES = {
    "rmsnorm": "24x96",
    "layernorm": "16x64",
    "qk_norm": "48x64",
    "qkv_bias": "16x96",
    "eltwise_add": "4096",
    "gelu": "8192",
}


def by_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strips, "FEWEST", 1 << 40)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("grouping", ["lifted", "per-tile"])
def test_strips_at_once_give_the_bits_of_the_loop(name: str, grouping, monkeypatch: pytest.MonkeyPatch) -> None:
    each = recipe(KERNELS, name)
    resolved = each.resolve(SHAPES[name])
    program = parse_program(each.program(resolved), f"{name}.mlir")
    arranged = each.arrange(each.inputs(resolved), resolved)
    arguments = each.arguments(resolved)
    inputs = {f"arg{at}": arranged[one.name] for at, one in enumerate(arguments) if one.name in arranged}
    at_once = run_program(program, inputs, grouping=grouping)
    by_text(monkeypatch)
    looped = run_program(program, inputs, grouping=grouping)
    assert at_once.counters.instructions * 2 < looped.counters.instructions
    last = f"arg{len(arguments) - 1}"
    assert at_once.ok
    assert looped.ok
    assert np.array_equal(at_once.outputs[last], looped.outputs[last])


def program_of(body: str) -> str:
    """A core that takes 64 elements, runs `body` on %a, %b, %s and gives 64 back."""
    strip = "memref<16xbf16, strided<[1], offset: ?>, 2 : i32>"
    views = "\n".join(
        f"%{name} = memref.subview %{buffer}[%i] [16] [1] : memref<64xbf16, 2 : i32> to {strip}"
        for name, buffer in (("va", "a"), ("vb", "b"))
    )
    for short, kind in (("!strip", strip), ("!v", "vector<16xbf16>"), ("!s", "memref<16xbf16, 2 : i32>")):
        body = body.replace(short, kind)
    return """
    func.func @f(%x: memref<64xbf16>, %y: memref<64xbf16>) {
      %one = arith.constant 1 : index
      air.launch (%l) in (%n=%one) args(%lx=%x, %ly=%y) : memref<64xbf16>, memref<64xbf16> {
        air.segment @seg args(%sx=%lx, %sy=%ly) : memref<64xbf16>, memref<64xbf16> {
          %c1 = arith.constant 1 : index
          air.herd @h tile (%tx, %ty) in (%hx=%c1, %hy=%c1) args(%gx=%sx, %gy=%sy) : memref<64xbf16>, memref<64xbf16> {
            %c0 = arith.constant 0 : index
            %c16 = arith.constant 16 : index
            %c32 = arith.constant 32 : index
            %c48 = arith.constant 48 : index
            %c64 = arith.constant 64 : index
            %zero = arith.constant 0.0 : bf16
            %a = memref.alloc() : memref<64xbf16, 2 : i32>
            %b = memref.alloc() : memref<64xbf16, 2 : i32>
            %s = memref.alloc() : memref<16xbf16, 2 : i32>
            air.dma_memcpy_nd (%a[] [] [], %gx[] [] []) : (memref<64xbf16, 2 : i32>, memref<64xbf16>)
            BODY
            air.dma_memcpy_nd (%gy[] [] [], %b[] [] []) : (memref<64xbf16>, memref<64xbf16, 2 : i32>)
          }
        }
      }
      return
    }
    """.replace("BODY", body.replace("VIEWS", views))


READ_A = "%p = vector.transfer_read %va[%c0], %zero {in_bounds = [true]} : !strip, !v"
WRITE_B = "vector.transfer_write %q, %vb[%c0] {in_bounds = [true]} : !v, !strip"
BODIES = {
    "a scratch buffer written, then read": f"""
      scf.for %i = %c0 to %c64 step %c16 {{
        VIEWS
        {READ_A}
        vector.transfer_write %p, %s[%c0] {{in_bounds = [true]}} : !v, !s
        %r = vector.transfer_read %s[%c0], %zero {{in_bounds = [true]}} : !s, !v
        %q = arith.addf %r, %p : !v
        {WRITE_B}
      }}""",
    "in place, half of the loop": f"""
      air.dma_memcpy_nd (%b[] [] [], %gx[] [] []) : (memref<64xbf16, 2 : i32>, memref<64xbf16>)
      scf.for %i = %c16 to %c48 step %c16 {{
        VIEWS
        {READ_A}
        %r = vector.transfer_read %vb[%c0], %zero {{in_bounds = [true]}} : !strip, !v
        %q = arith.mulf %r, %p : !v
        {WRITE_B}
      }}""",
    "a strip read that the iteration before wrote": f"""
      air.dma_memcpy_nd (%b[] [] [], %gx[] [] []) : (memref<64xbf16, 2 : i32>, memref<64xbf16>)
      scf.for %i = %c16 to %c64 step %c16 {{
        VIEWS
        %j = arith.subi %i, %c16 : index
        %before = memref.subview %b[%j] [16] [1] : memref<64xbf16, 2 : i32> to !strip
        {READ_A}
        %r = vector.transfer_read %before[%c0], %zero {{in_bounds = [true]}} : !strip, !v
        %q = arith.addf %r, %p : !v
        {WRITE_B}
      }}""",
    "a bf16 sum, rounded every time": f"""
      %none = vector.broadcast %zero : bf16 to !v
      vector.transfer_write %none, %s[%c0] {{in_bounds = [true]}} : !v, !s
      scf.for %i = %c0 to %c64 step %c16 {{
        VIEWS
        {READ_A}
        %r = vector.transfer_read %s[%c0], %zero {{in_bounds = [true]}} : !s, !v
        %q = arith.addf %r, %p : !v
        vector.transfer_write %q, %s[%c0] {{in_bounds = [true]}} : !v, !s
        {WRITE_B}
      }}""",
    "a buffer nobody wrote": f"""
      scf.for %i = %c0 to %c64 step %c16 {{
        VIEWS
        {READ_A}
        %r = vector.transfer_read %vb[%c0], %zero {{in_bounds = [true]}} : !strip, !v
        %q = arith.addf %r, %p : !v
        {WRITE_B}
      }}""",
    "half of a buffer": f"""
      scf.for %i = %c0 to %c32 step %c16 {{
        VIEWS
        %q = vector.transfer_read %va[%c0], %zero {{in_bounds = [true]}} : !strip, !v
        {WRITE_B}
      }}""",
}


@pytest.mark.parametrize("case", BODIES)
def test_what_iterations_can_notice_is_left_to_the_loop(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(program_of(BODIES[case]), "strips.mlir")
    values = np.random.default_rng(0).standard_normal(64).astype(ml_dtypes.bfloat16)

    def told(result: RunResult) -> list[tuple[str, int | None, str]]:
        return [(finding.code, finding.line, finding.message) for finding in result.findings]

    at_once = run_program(program, [values])
    by_text(monkeypatch)
    looped = run_program(program, [values])
    assert told(at_once) == told(looped)
    assert at_once.outputs["arg1"].tobytes() == looped.outputs["arg1"].tobytes()
    alone = case.startswith(("a scratch", "in place", "half"))
    assert (at_once.counters.instructions < looped.counters.instructions) == alone
