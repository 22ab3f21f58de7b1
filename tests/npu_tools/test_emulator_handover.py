"""An L2 buffer that a loop of the segment fills, or drains, while a herd behind that loop does the reverse."""

from __future__ import annotations

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator import run_program

ROUNDS, TILES, PARTS, PART = 5, 2, 3, 4
"""Fills of the buffer, tiles, transfers of a tile a fill, elements a transfer."""
SHARE = PARTS * PART


def program(*, herd_rounds: int = ROUNDS) -> str:
    """Every fill is taken in parts by each tile, written to another L2 buffer, and that is drained as often."""
    whole = TILES * SHARE
    return f"""
#fill = affine_map<()[s0] -> (s0 * {whole})>
#part = affine_map<()[s0, s1] -> (s0 * {SHARE} + s1 * {PART})>
module {{
  func.func @relayed(%a: memref<{ROUNDS * whole}xi32>, %b: memref<{ROUNDS * whole}xi32>) {{
    air.launch () in () args(%x=%a, %y=%b) : memref<{ROUNDS * whole}xi32>, memref<{ROUNDS * whole}xi32> {{
      air.segment @seg args(%p=%x, %q=%y) : memref<{ROUNDS * whole}xi32>, memref<{ROUNDS * whole}xi32> {{
        %c0 = arith.constant 0 : index
        %c1 = arith.constant 1 : index
        %rounds = arith.constant {ROUNDS} : index
        %tiles = arith.constant {TILES} : index
        %in = memref.alloc() : memref<{whole}xi32, 1 : i32>
        %out = memref.alloc() : memref<{whole}xi32, 1 : i32>
        scf.for %i = %c0 to %rounds step %c1 {{
          %at = affine.apply #fill()[%i]
          air.dma_memcpy_nd (%in[] [] [], %p[%at] [{whole}] [1]) : (memref<{whole}xi32, 1 : i32>, memref<{ROUNDS * whole}xi32>)
        }}
        air.herd @cores tile (%tx, %ty) in (%w=%tiles, %h=%c1) args(%from=%in, %to=%out) : memref<{whole}xi32, 1 : i32>, memref<{whole}xi32, 1 : i32> {{
          %h0 = arith.constant 0 : index
          %h1 = arith.constant 1 : index
          %hr = arith.constant {herd_rounds} : index
          %hp = arith.constant {PARTS} : index
          %mine = memref.alloc() : memref<{PART}xi32, 2 : i32>
          scf.for %i = %h0 to %hr step %h1 {{
            scf.for %j = %h0 to %hp step %h1 {{
              %at = affine.apply #part()[%tx, %j]
              air.dma_memcpy_nd (%mine[] [] [], %from[%at] [{PART}] [1]) : (memref<{PART}xi32, 2 : i32>, memref<{whole}xi32, 1 : i32>)
              air.dma_memcpy_nd (%to[%at] [{PART}] [1], %mine[] [] []) : (memref<{whole}xi32, 1 : i32>, memref<{PART}xi32, 2 : i32>)
            }}
          }}
          memref.dealloc %mine : memref<{PART}xi32, 2 : i32>
        }}
        scf.for %i = %c0 to %rounds step %c1 {{
          %at = affine.apply #fill()[%i]
          air.dma_memcpy_nd (%q[%at] [{whole}] [1], %out[] [] []) : (memref<{ROUNDS * whole}xi32>, memref<{whole}xi32, 1 : i32>)
        }}
        memref.dealloc %in : memref<{whole}xi32, 1 : i32>
        memref.dealloc %out : memref<{whole}xi32, 1 : i32>
      }}
    }}
    return
  }}
}}
"""


@pytest.mark.parametrize("grouping", ["lifted", "per-tile"])
def test_every_fill_reaches_the_cores_and_every_result_the_host(grouping) -> None:
    values = np.arange(ROUNDS * TILES * SHARE, dtype=np.int32)
    result = run_program(parse_program(program(), "relayed"), [values], grouping=grouping)
    assert not result.findings
    assert np.array_equal(result.outputs["arg1"], values)


def test_a_herd_that_takes_no_whole_number_of_parts_a_fill_gets_the_text_s_order() -> None:
    """No handover can be read from the text then: the loop is through before the herd begins."""
    values = np.arange(ROUNDS * TILES * SHARE, dtype=np.int32)
    result = run_program(parse_program(program(herd_rounds=ROUNDS + 1), "relayed"), [values])
    last = values[-TILES * SHARE :]
    assert np.array_equal(result.outputs["arg1"], np.tile(last, ROUNDS))
