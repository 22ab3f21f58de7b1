"""Trips of a core's loop side by side: the same bits as one after the other, and one after the other where they meet."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator import trips
from npu_tools.emulator.run import RunResult, run_program
from npu_tools.recipes import recipe

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
ROWS = 12
SHAPES = {
    "rmsnorm": ("64x96", {}),
    "layernorm": ("40x64", {}),
    "qk_norm": ("96x64", {"herd_x": 4}),
    "qkv_bias": ("48x96", {"in_cols": 128}),
    "eltwise_add": ("8192", {"tile": 128}),
    "gelu": ("8192", {"tile": 128, "rows": 1}),
    "rope": ("72x64", {}),
    "silu_mul": ("8192", {"tile": 256}),
}


def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trips, "FEWEST", 1 << 40)


@pytest.mark.parametrize("name", SHAPES)
def test_trips_side_by_side_give_the_bits_of_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    each = recipe(KERNELS, name)
    resolved = each.resolve(*SHAPES[name])
    program = parse_program(each.program(resolved), f"{name}.mlir")
    arranged = each.arrange(each.inputs(resolved), resolved)
    arguments = each.arguments(resolved)
    inputs = {f"arg{at}": arranged[one.name] for at, one in enumerate(arguments) if one.name in arranged}
    abreast = run_program(program, inputs)
    monkeypatch.setattr(trips, "BYTES", 1 << 12)
    in_parts = run_program(program, inputs)
    one_by_one(monkeypatch)
    single = run_program(program, inputs)
    per_tile = run_program(program, inputs, grouping="per-tile")
    assert abreast.counters.instructions < min(in_parts.counters.instructions, single.counters.instructions)
    assert abreast.counters.dma_bits == in_parts.counters.dma_bits == single.counters.dma_bits
    last = f"arg{len(arguments) - 1}"
    for other in (in_parts, single, per_tile):
        assert other.ok
        assert np.array_equal(abreast.outputs[last], other.outputs[last])


def program_of(body: str, behind: str = "") -> str:
    """Two cores that go through `body` six times each, with a row of %x and of %y a trip, and `behind` after that."""
    row = "memref<16xbf16, 2 : i32>"
    whole = f"memref<{ROWS * 16}xbf16>"
    return f"""
    func.func @f(%x: {whole}, %y: {whole}) {{
      %one = arith.constant 1 : index
      air.launch (%l) in (%n=%one) args(%lx=%x, %ly=%y) : {whole}, {whole} {{
        air.segment @seg args(%sx=%lx, %sy=%ly) : {whole}, {whole} {{
          %c1 = arith.constant 1 : index
          %c2 = arith.constant 2 : index
          air.herd @h tile (%tx, %ty) in (%hx=%c2, %hy=%c1) args(%gx=%sx, %gy=%sy) : {whole}, {whole} {{
            %c0 = arith.constant 0 : index
            %c6 = arith.constant 6 : index
            %step = arith.constant 1 : index
            %zero = arith.constant 0.0 : bf16
            %none = vector.broadcast %zero : bf16 to vector<16xbf16>
            %a = memref.alloc() : {row}
            %b = memref.alloc() : {row}
            %s = memref.alloc() : {row}
            vector.transfer_write %none, %s[%c0] {{in_bounds = [true]}} : vector<16xbf16>, {row}
            scf.for %i = %c0 to %c6 step %step {{
              %at = affine.apply affine_map<(d0, d1) -> (d0 * 96 + d1 * 16)>(%tx, %i)
              {body}
            }}
            {behind}
          }}
        }}
      }}
      return
    }}
    """


ROW = "memref<16xbf16, 2 : i32>"
WHOLE = f"memref<{ROWS * 16}xbf16>"
IN = f"air.dma_memcpy_nd (%a[] [] [], %gx[%at] [16] [1]) : ({ROW}, {WHOLE})"
OUT = f"air.dma_memcpy_nd (%gy[%at] [16] [1], %b[] [] []) : ({WHOLE}, {ROW})"
HALF_IN = f"air.dma_memcpy_nd (%a[%c0] [8] [1], %gx[%at] [8] [1]) : ({ROW}, {WHOLE})"
ADD = f"""%p = vector.transfer_read %a[%c0], %zero {{in_bounds = [true]}} : {ROW}, vector<16xbf16>
    %r = vector.transfer_read %s[%c0], %zero {{in_bounds = [true]}} : {ROW}, vector<16xbf16>
    %q = arith.addf %p, %r : vector<16xbf16>
    vector.transfer_write %q, %b[%c0] {{in_bounds = [true]}} : vector<16xbf16>, {ROW}"""
KEEP = f"vector.transfer_write %q, %s[%c0] {{in_bounds = [true]}} : vector<16xbf16>, {ROW}"
SAME = f"air.dma_memcpy_nd (%gy[%c0] [16] [1], %b[] [] []) : ({WHOLE}, {ROW})"
NEAR = f"""%close = affine.apply affine_map<(d0, d1) -> (d0 * 96 + d1 * 8)>(%tx, %i)
    air.dma_memcpy_nd (%gy[%close] [16] [1], %b[] [] []) : ({WHOLE}, {ROW})"""
BACK = f"air.dma_memcpy_nd (%a[] [] [], %gy[%at] [16] [1]) : ({ROW}, {WHOLE})"
BEYOND = f"""%far = affine.apply affine_map<(d0, d1) -> (d0 * 96 + d1 * 20)>(%tx, %i)
    air.dma_memcpy_nd (%gy[%far] [16] [1], %b[] [] []) : ({WHOLE}, {ROW})"""
PIECE = f"""%place = affine.apply affine_map<(d0) -> (d0 * 2)>(%i)
    air.dma_memcpy_nd (%b[%place] [2] [1], %gx[%at] [2] [1]) : ({ROW}, {WHOLE})"""
BODIES = {
    "met: a row put together piece by piece": (
        PIECE,
        f"""vector.transfer_write %none, %s[%c0] {{in_bounds = [true]}} : vector<16xbf16>, {ROW}
        %end = affine.apply affine_map<(d0) -> (d0 * 96)>(%tx)
        air.dma_memcpy_nd (%gy[%end] [12] [1], %b[%c0] [12] [1]) : ({WHOLE}, {ROW})""",
    ),
    "alone": (f"{IN}\n{ADD}\n{OUT}", ""),
    "alone, and the last row is looked at": (
        f"{IN}\n{ADD}\n{OUT}",
        f"""%last = affine.apply affine_map<(d0) -> (d0 * 96 + 80)>(%tx)
        air.dma_memcpy_nd (%gy[%last] [16] [1], %a[] [] []) : ({WHOLE}, {ROW})""",
    ),
    "alone, but the last trip goes too far": (f"{IN}\n{ADD}\n{BEYOND}", ""),
    "met: a sum over all trips": (f"{IN}\n{ADD}\n{KEEP}\n{OUT}", ""),
    "met: all write to one place": (f"{IN}\n{ADD}\n{SAME}", ""),
    "met: windows overlap": (f"{IN}\n{ADD}\n{NEAR}", ""),
    "met: what is written is read": (f"{IN}\n{ADD}\n{OUT}\n{BACK}", ""),
    "met: half of a row is kept from the trip before": (f"{HALF_IN}\n{ADD}\n{OUT}", ""),
    "met: written after it is read": (f"{ADD}\n{IN}\n{OUT}", ""),
}


@pytest.mark.parametrize("case", BODIES)
def test_trips_that_meet_go_one_by_one(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(program_of(*BODIES[case]), "trips.mlir")
    values = np.random.default_rng(0).standard_normal(ROWS * 16).astype(ml_dtypes.bfloat16)

    def told(result: RunResult) -> list[tuple[str, int | None]]:
        return [(finding.code, finding.line) for finding in result.findings]

    abreast = run_program(program, [values, np.zeros(ROWS * 16, ml_dtypes.bfloat16)])
    one_by_one(monkeypatch)
    single = run_program(program, [values, np.zeros(ROWS * 16, ml_dtypes.bfloat16)])
    assert told(abreast) == told(single)
    assert abreast.outputs["arg1"].tobytes() == single.outputs["arg1"].tobytes()
    assert (abreast.counters.instructions < single.counters.instructions) == case.startswith("alone")
