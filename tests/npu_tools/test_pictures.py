"""Pictures of a run: they are drawn, they charge memory to the tiles that hold it, and say what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator.pictures import draw_tile_map, draw_timeline, peak_bytes
from npu_tools.emulator.run import run_program
from npu_tools.emulator.trace import Trace
from npu_tools.errors import UnusableInput

SHARED = """
func.func @f(%a: memref<2x2x16xi32>) {
  air.launch () in () args(%l=%a) : memref<2x2x16xi32> {
    air.segment @seg args(%s=%l) : memref<2x2x16xi32> {
      %c2 = arith.constant 2 : index
      %all = memref.alloc() : memref<2x2x16xi32, 2>
      air.herd @h tile (%x, %y) in (%sx=%c2, %sy=%c2) args(%m=%all, %o=%s) : memref<2x2x16xi32, 2>, memref<2x2x16xi32> {
        %own = memref.alloc() : memref<16xi32, 2>
        air.dma_memcpy_nd (%own[] [] [], %o[%x, %y, 0] [1, 1, 16] [32, 16, 1]) : (memref<16xi32, 2>, memref<2x2x16xi32>)
        air.dma_memcpy_nd (%o[%x, %y, 0] [1, 1, 16] [32, 16, 1], %own[] [] []) : (memref<2x2x16xi32>, memref<16xi32, 2>)
        memref.dealloc %own : memref<16xi32, 2>
      }
      memref.dealloc %all : memref<2x2x16xi32, 2>
    }
  }
  return
}
"""


def traced() -> Trace:
    result = run_program(parse_program(SHARED, "shared.mlir"), [np.zeros((2, 2, 16), np.int32)], trace=True)
    assert result.ok, result.findings
    assert result.trace is not None
    return result.trace


def test_a_buffer_the_herd_shares_is_divided_among_its_tiles() -> None:
    peaks, l2 = peak_bytes(traced())
    assert peaks == {(x, y): 2 * 16 * 4 for x in range(2) for y in range(2)}
    assert l2 == 0


@pytest.mark.parametrize("ending", [".svg", ".png"])
def test_both_pictures_are_drawn(tmp_path: Path, ending: str) -> None:
    trace = traced()
    draw_timeline(trace, tmp_path / f"new/time{ending}")
    draw_tile_map(trace, tmp_path / f"tiles{ending}")
    assert (tmp_path / f"new/time{ending}").stat().st_size > 1000
    assert (tmp_path / f"tiles{ending}").stat().st_size > 1000


def test_other_endings_and_empty_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match=r"\.svg"):
        draw_timeline(traced(), tmp_path / "time.gif")
    with pytest.raises(UnusableInput, match="nothing was traced"):
        draw_tile_map(Trace(), tmp_path / "tiles.svg")
