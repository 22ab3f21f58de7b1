"""Loops over single elements done at once: the same bits as element by element, and the same findings."""

from __future__ import annotations

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator import RunResult, run_program, sweeps

ROWS, COLUMNS = 6, 8


def program(body: str, *, tiles: int = 2) -> str:
    """Each tile takes its rows of %a, runs `body` on %mine and %more into %result, and gives that to %b."""
    count = ROWS * COLUMNS
    return f"""
module {{
  func.func @elements(%a: memref<{tiles * count}xi32>, %b: memref<{tiles * count}xi8>) {{
    air.launch () in () args(%x=%a, %y=%b) : memref<{tiles * count}xi32>, memref<{tiles * count}xi8> {{
      air.segment @seg args(%p=%x, %q=%y) : memref<{tiles * count}xi32>, memref<{tiles * count}xi8> {{
        %tiles = arith.constant {tiles} : index
        %one = arith.constant 1 : index
        air.herd @cores tile (%tx, %ty) in (%w=%tiles, %h=%one) args(%from=%p, %to=%q) : memref<{tiles * count}xi32>, memref<{tiles * count}xi8> {{
          %c0 = arith.constant 0 : index
          %c1 = arith.constant 1 : index
          %c2 = arith.constant 2 : index
          %rows = arith.constant {ROWS} : index
          %columns = arith.constant {COLUMNS} : index
          %count = arith.constant {count} : index
          %zero = arith.constant 0 : i32
          %most = arith.constant 127 : i32
          %shift = arith.constant 2 : i32
          %mine = memref.alloc() : memref<{ROWS}x{COLUMNS}xi32, 2 : i32>
          %more = memref.alloc() : memref<{ROWS}x{COLUMNS}xi32, 2 : i32>
          %result = memref.alloc() : memref<{count}xi8, 2 : i32>
          %at = arith.muli %tx, %count : index
          air.dma_memcpy_nd (%mine[] [] [], %from[%at] [{count}] [1]) : (memref<{ROWS}x{COLUMNS}xi32, 2 : i32>, memref<{tiles * count}xi32>)
          air.dma_memcpy_nd (%more[] [] [], %from[%c0] [{count}] [1]) : (memref<{ROWS}x{COLUMNS}xi32, 2 : i32>, memref<{tiles * count}xi32>)
{body}
          air.dma_memcpy_nd (%to[%at] [{count}] [1], %result[] [] []) : (memref<{tiles * count}xi8>, memref<{count}xi8, 2 : i32>)
        }}
      }}
    }}
    return
  }}
}}
"""


def nest(inner: str, *, rows: str = "%rows", start: str = "%c0") -> str:
    return f"""
          scf.for %i = %c0 to {rows} step %c1 {{
            %base = arith.muli %i, %columns : index
            scf.for %j = {start} to %columns step %c1 {{
              %place = arith.addi %base, %j : index
{inner}
            }}
          }}
"""


MINE = f"memref<{ROWS}x{COLUMNS}xi32, 2 : i32>"
RESULT = f"memref<{ROWS * COLUMNS}xi8, 2 : i32>"
SATURATED = nest(f"""
              %v = memref.load %mine[%i, %j] : {MINE}
              %s = arith.shrsi %v, %shift : i32
              %l = arith.maxsi %s, %zero : i32
              %m = arith.minsi %l, %most : i32
              %t = arith.trunci %m : i32 to i8
              memref.store %t, %result[%place] : {RESULT}
""")
CHOSEN = nest(f"""
              %v = memref.load %mine[%i, %j] : {MINE}
              %u = memref.load %more[%i, %j] : {MINE}
              %first = arith.cmpi eq, %tx, %c0 : index
              %e = arith.select %first, %u, %v : i32
              %larger = arith.cmpi sgt, %v, %u : i32
              %d = arith.select %larger, %e, %v : i32
              %t = arith.trunci %d : i32 to i8
              memref.store %t, %result[%place] : {RESULT}
""")


def inputs() -> list[np.ndarray]:
    return [np.random.default_rng(1).integers(-2000, 2000, 2 * ROWS * COLUMNS).astype(np.int32)]


def run(text: str, **options) -> RunResult:
    return run_program(parse_program(text, "elements"), inputs(), **options)


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a nest was found; each time it is executed at once unless something is wrong."""
    found: list[int] = []
    instruction = sweeps._instruction

    def noted(sweep):
        found.append(len(sweep.trips))
        return instruction(sweep)

    monkeypatch.setattr(sweeps, "_instruction", noted)
    return found


@pytest.mark.parametrize("body", [SATURATED, CHOSEN])
@pytest.mark.parametrize("grouping", ["lifted", "per-tile"])
def test_a_nest_over_elements_gives_the_bits_of_the_text(body: str, grouping, swept: list[int]) -> None:
    at_once = run(program(body), grouping=grouping)
    # The inner loop has a shortcut of its own, for when the nest's cannot be taken.
    assert swept == [2, 1]
    by_text = run(program(body), grouping=grouping, trace=True)
    assert swept == [2, 1]
    assert not at_once.findings
    assert np.array_equal(at_once.outputs["arg1"], by_text.outputs["arg1"])
    assert at_once.counters.instructions < by_text.counters.instructions / 2


def test_elements_that_depend_on_others_are_executed_by_text(swept: list[int]) -> None:
    """Each element is added to the one before it."""
    body = f"""
          scf.for %i = %c0 to %rows step %c1 {{
            scf.for %j = %c1 to %columns step %c1 {{
              %before = arith.subi %j, %c1 : index
              %v = memref.load %mine[%i, %before] : {MINE}
              %u = memref.load %mine[%i, %j] : {MINE}
              %s = arith.addi %v, %u : i32
              memref.store %s, %mine[%i, %j] : {MINE}
            }}
          }}
{SATURATED}
"""
    result = run(program(body))
    assert swept == [2, 1]
    expected = np.cumsum(inputs()[0].reshape(2, ROWS, COLUMNS), axis=2, dtype=np.int32)
    assert np.array_equal(result.outputs["arg1"], np.clip(expected >> 2, 0, 127).astype(np.int8).reshape(-1))


def test_an_index_beyond_the_buffer_is_told_where_it_is() -> None:
    body = SATURATED.replace("to %columns", "to %rows", 1).replace("%mine[%i, %j]", "%mine[%j, %i]", 1)
    body = body.replace("to %rows step", "to %columns step", 1)
    result = run(program(body))
    (finding,) = [each for each in result.findings if each.severity == "error"][:1]
    assert finding.code == "out-of-bounds"
    assert finding.op == "memref.store"


def test_elements_nobody_wrote_are_told_once() -> None:
    body = SATURATED.replace("%mine[", "%fresh[").replace(
        "          scf.for %i", f"          %fresh = memref.alloc() : {MINE}\n          scf.for %i", 1
    )
    result = run(program(body))
    assert [each.code for each in result.findings if each.severity == "error"] == ["uninitialised-read"]


def test_elements_stored_at_one_place_keep_the_last() -> None:
    body = SATURATED.replace("%result[%place]", "%result[%j]")
    filled = SATURATED + body
    assert np.array_equal(run(program(filled)).outputs["arg1"], run(program(filled), trace=True).outputs["arg1"])


def test_loops_that_do_more_than_elements_are_left_alone(swept: list[int]) -> None:
    body = f"""
          scf.for %i = %c0 to %c2 step %c1 {{
            air.dma_memcpy_nd (%mine[] [] [], %from[%at] [{ROWS * COLUMNS}] [1]) : ({MINE}, memref<{2 * ROWS * COLUMNS}xi32>)
          }}
{SATURATED}
"""
    assert np.array_equal(run(program(body)).outputs["arg1"], run(program(SATURATED)).outputs["arg1"])
    assert swept == [2, 1] * 2
