"""Small programs for every feature of the machine, in both groupings, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import Program, parse_program
from npu_tools.emulator.run import RunResult, run_program

DATA = Path(__file__).parents[1] / "data" / "air"


def program(name: str) -> Program:
    path = DATA / f"emu_{name}.mlir"
    return parse_program(path.read_text(), name=path.name)


def both(name: str, *inputs: np.ndarray) -> RunResult:
    """The lifted run, after comparing it bit for bit with the run tile by tile."""
    lifted = run_program(program(name), list(inputs), grouping="lifted")
    alone = run_program(program(name), list(inputs), grouping="per-tile")
    assert lifted.ok, lifted.findings
    assert alone.ok, alone.findings
    for key, values in lifted.outputs.items():
        assert values.tobytes() == alone.outputs[key].tobytes()
    return lifted


def test_tiles_copy_blocks_of_their_own() -> None:
    a = np.arange(512, dtype=np.int32).reshape(16, 32)
    result = both("herd_copy", a)
    assert (result.outputs["arg1"] == 2 * a).all()
    assert result.counters.dma_bits == {("L3", "L1"): 512 * 32, ("L1", "L3"): 512 * 32}
    assert result.ran_on == "emulator"


def test_one_put_serves_many_gets_and_a_cascade_sums_along_a_row() -> None:
    a = np.arange(16, dtype=np.int32)
    result = both("broadcast_cascade", a)
    assert (result.outputs["arg1"] == 4 * a + 100 + 6).all()
    assert result.counters.channel_puts == {"all": 4, "next": 3, "out": 1}


def test_tokens_order_what_runs_beside_each_other() -> None:
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert (both("async", a).outputs["arg1"] == 2 * a).all()


def test_control_flow_gives_what_it_says() -> None:
    a = np.arange(8, dtype=np.int32) * 10
    table = np.array([7, 6, 5, 4, 3, 2, 1, 0])
    expected = np.where(np.arange(8) >= 4, a + table, a - table)
    expected[:2] += 1000
    expected[7] = a.sum() + 8
    assert (both("control", a).outputs["arg1"] == expected).all()


def test_launch_iterations_side_by_side_give_the_bits_of_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    a, x = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((80, 64), (64,)))
    result = both("gemv", a, x)
    assert result.counters.launch_iterations == 10
    assert result.counters.kernels["matvec_vectorized_bf16_bf16"].calls == 80
    exact = a.astype(np.float32) @ x.astype(np.float32)
    np.testing.assert_allclose(result.outputs["arg2"].astype(np.float32), exact, rtol=4e-3, atol=1e-2)
    few = run_program(program("gemv"), [a, x], grouping="per-tile").counters.instructions
    assert result.counters.instructions < few / 8


def test_neighbours_take_turns_on_a_buffer_they_share() -> None:
    a = np.arange(32, dtype=np.int32).reshape(4, 8)
    assert (both("turns", a).outputs["arg1"] == a).all()


def test_each_instance_of_an_unrolled_segment_has_its_inner_channels_for_itself() -> None:
    a = np.arange(32, dtype=np.int32)
    assert (both("unroll", a).outputs["arg1"] == a).all()


def test_inputs_stay_as_they_are_and_may_be_named() -> None:
    a = np.arange(512, dtype=np.int32).reshape(16, 32)
    b = np.zeros((16, 32), np.int32)
    result = run_program(program("herd_copy"), {"arg1": b, "arg0": a})
    assert (b == 0).all()
    assert (result.outputs["arg1"] == 2 * a).all()


def test_a_trace_has_events_in_time_and_memory_by_level() -> None:
    a = np.arange(16, dtype=np.int32)
    trace = run_program(program("broadcast_cascade"), [a], trace=True).trace
    assert trace is not None
    assert {event.kind for event in trace.events} == {"put", "get"}
    assert all(event.end >= event.start for event in trace.events)
    assert {use.level for use in trace.uses} == {"L1"}
    assert sum(use.change_bytes for use in trace.uses if use.change_bytes > 0) >= 2 * 16 * 4


@pytest.mark.parametrize("relayed", [1, 3])
def test_an_l2_relay_goes_round_as_often_as_data_comes(relayed: int) -> None:
    """A memtile starts its chain of descriptors anew, so the host may send more than the segment's text passes on."""
    text = f"""module {{
      air.channel @up []
      air.channel @down []
      air.channel @out []
      func.func @f(%a: memref<24xi32>, %b: memref<24xi32>) {{
        air.launch () in () args(%a1=%a, %b1=%b) : memref<24xi32>, memref<24xi32> {{
          air.channel.put @up[] (%a1[] [] []) : (memref<24xi32>)
          air.segment @seg {{
            %l2 = memref.alloc() : memref<8xi32, 1>
            %c1 = arith.constant 1 : index
            air.channel.get @up[] (%l2[] [] []) : (memref<8xi32, 1>)
            air.channel.put @down[] (%l2[] [] []) : (memref<8xi32, 1>)
            air.herd @h tile (%x, %y) in (%sx=%c1, %sy=%c1) {{
              %c0 = arith.constant 0 : index
              %one = arith.constant 1 : index
              %n = arith.constant {relayed} : index
              scf.for %i = %c0 to %n step %one {{
                %l1 = memref.alloc() : memref<8xi32, 2>
                air.channel.get @down[] (%l1[] [] []) : (memref<8xi32, 2>)
                air.channel.put @out[] (%l1[] [] []) : (memref<8xi32, 2>)
                memref.dealloc %l1 : memref<8xi32, 2>
              }}
            }}
          }}
          %z = arith.constant 0 : index
          %s = arith.constant 1 : index
          %m = arith.constant {8 * relayed} : index
          air.channel.get @out[] (%b1[%z] [%m] [%s]) : (memref<24xi32>)
        }}
        return
      }}
    }}"""
    a = np.arange(24, dtype=np.int32)
    result = run_program(parse_program(text, name="relay.mlir"), [a])
    assert (result.outputs["arg1"][: 8 * relayed] == a[: 8 * relayed]).all()
    codes = {finding.code for finding in result.findings}
    assert ("relay-repeats" in codes) == (relayed > 1)
    assert ("left-over" in codes) == (relayed == 1)


STORED_AFTER = """
func.func @f(%a: memref<8xi32>, %b: memref<8xi32>) {
  air.launch () in () args(%la=%a, %lb=%b) : memref<8xi32>, memref<8xi32> {
    air.segment @s args(%sa=%la, %sb=%lb) : memref<8xi32>, memref<8xi32> {
      %c1 = arith.constant 1 : index
      air.herd @h tile (%x, %y) in (%nx=%c1, %ny=%c1) args(%ha=%sa, %hb=%sb) : memref<8xi32>, memref<8xi32> {
        %c0 = arith.constant 0 : index
        %seven = arith.constant 7 : i32
        %buf = memref.alloc() : memref<8xi32, 2>
        air.dma_memcpy_nd (%buf[] [] [], %ha[] [] []) : (memref<8xi32, 2>, memref<8xi32>)
        memref.store %seven, %buf[%c0] : memref<8xi32, 2>
        air.dma_memcpy_nd (%hb[] [] [], %buf[] [] []) : (memref<8xi32>, memref<8xi32, 2>)
      }
    }
  }
  return
}
"""


@pytest.mark.parametrize("grouping", ["lifted", "per-tile"])
def test_one_element_of_a_whole_copy_is_stored_and_its_source_stays(grouping: Literal["lifted", "per-tile"]) -> None:
    """A whole copy is a view of its source until either is written."""
    given = np.arange(8, dtype=np.int32)
    result = run_program(parse_program(STORED_AFTER, "s.mlir"), [given], grouping=grouping)
    assert result.ok, result.findings
    assert result.outputs["arg1"].tolist() == [7, *range(1, 8)]
    assert result.outputs["arg0"].tolist() == list(range(8))
