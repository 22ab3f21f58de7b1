"""What the emulator says about programs that go wrong: the place, what happened with numbers, and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator.run import RunResult, run_program
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

HERD = """module {{
  {declarations}
  func.func @f(%a: memref<32xi32>, %b: memref<32xi32>) {{
    air.launch () in () args(%a1=%a, %b1=%b) : memref<32xi32>, memref<32xi32> {{
      {launch}
      air.segment @seg args(%a2=%a1, %b2=%b1) : memref<32xi32>, memref<32xi32> {{
        {segment}
        %c1 = arith.constant 1 : index
        %c2 = arith.constant 2 : index
        air.herd @h tile (%x, %y) in (%sx={tiles}, %sy=%c1) args(%a3=%a2, %b3=%b2) : memref<32xi32>, memref<32xi32> {{
          %c0 = arith.constant 0 : index
          %one = arith.constant 1 : index
          %c8 = arith.constant 8 : index
          %c16 = arith.constant 16 : index
          %c32 = arith.constant 32 : index
          {herd}
        }}
        {after}
      }}
      {end}
    }}
    return
  }}
}}
"""


def program_text(
    herd: str,
    *,
    declarations: str = "",
    launch: str = "",
    segment: str = "",
    after: str = "",
    end: str = "",
    tiles: str = "%c1",
) -> str:
    return HERD.format(
        herd=herd, declarations=declarations, launch=launch, segment=segment, after=after, end=end, tiles=tiles
    )


def run(text: str, **options: object) -> RunResult:
    program = parse_program(text, name="fault.mlir")
    return run_program(program, [np.arange(32, dtype=np.int32)], **options)  # type: ignore[arg-type] - options vary


def only_error(result: RunResult, code: str) -> Finding:
    errors = [finding for finding in result.findings if finding.severity == "error"]
    assert [finding.code for finding in errors] == [code], result.findings
    (error,) = errors
    assert not result.ok
    assert error.op
    assert error.line
    assert error.column
    assert error.remedy
    return error


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


L1 = "%m = memref.alloc() : memref<32xi32, 2>\n"
WHOLE_IN = "air.dma_memcpy_nd (%m[] [] [], %a3[] [] []) : (memref<32xi32, 2>, memref<32xi32>)\n"
WHOLE_OUT = "air.dma_memcpy_nd (%b3[] [] [], %m[] [] []) : (memref<32xi32>, memref<32xi32, 2>)\n"


def test_a_program_without_faults_has_no_findings() -> None:
    result = run(program_text(L1 + WHOLE_IN + WHOLE_OUT))
    assert result.ok
    assert result.findings == []
    assert (result.outputs["arg1"] == np.arange(32)).all()


@pytest.mark.parametrize("grouping", ["lifted", "per-tile"])
def test_a_get_without_a_put_is_a_deadlock_told_with_channel_index_and_counts(grouping: str) -> None:
    text = program_text(
        L1 + "air.channel.get @c[%x] (%m[] [] []) : (memref<32xi32, 2>)\n",
        declarations="air.channel @c [2]",
        tiles="%c2",
        launch="%z = arith.constant 0 : index\nair.channel.put @c[%z] (%a1[] [] []) : (memref<32xi32>)",
    )
    error = only_error(run(text, grouping=grouping), "deadlock")
    assert error.line == line_of(text, "channel.get")
    assert "tile (1, 0)" in error.message
    assert "@c[1]" in error.message
    assert "0 puts" in error.message
    assert "put 32 more elements on @c[1]" in (error.remedy or "")


def test_two_cores_that_wait_for_each_other_are_both_named() -> None:
    text = program_text(
        L1
        + """%other = arith.subi %one, %x : index
        air.channel.get @c[%x] (%m[] [] []) : (memref<32xi32, 2>)
        air.channel.put @c[%other] (%m[] [] []) : (memref<32xi32, 2>)
        """,
        declarations="air.channel @c [2]",
        tiles="%c2",
    )
    error = only_error(run(text, grouping="per-tile"), "deadlock")
    assert "tile (0, 0)" in error.message
    assert "tile (1, 0)" in error.message


def test_elements_nobody_takes_are_told_at_the_channel() -> None:
    text = program_text(
        L1 + "air.channel.get @c[] (%m[%c0] [%c16] [%one]) : (memref<32xi32, 2>)\n",
        declarations="air.channel @c []",
        launch="air.channel.put @c[] (%a1[] [] []) : (memref<32xi32>)",
    )
    error = only_error(run(text), "left-over")
    assert error.line == line_of(text, "air.channel @c")
    assert "16 elements are left" in error.message
    assert "1 puts of 32 elements met 1 gets of 16" in error.message


def test_reading_what_nobody_wrote_is_told_and_never_reads_as_zero() -> None:
    text = program_text(
        L1
        + """%v = memref.load %m[%c8] : memref<32xi32, 2>
        memref.store %v, %m[%c0] : memref<32xi32, 2>
        air.dma_memcpy_nd (%b3[%c0] [%one] [%one], %m[%c0] [%one] [%one]) : (memref<32xi32>, memref<32xi32, 2>)
        """
    )
    result = run(text)
    error = only_error(result, "uninitialised-read")
    assert error.line == line_of(text, "memref.load")
    assert "1 of 1 elements read from %m" in error.message
    assert result.outputs["arg1"][0] == -85


def test_a_result_from_a_buffer_nobody_wrote_is_told_at_the_dma_and_names_the_buffer() -> None:
    text = program_text(L1 + WHOLE_OUT)
    result = run(text)
    error = only_error(result, "uninitialised-read")
    assert error.line == line_of(text, "air.dma_memcpy_nd (%b3")
    assert "32 of 32 elements read from %m" in error.message
    assert (result.outputs["arg1"] == -85).all()


def test_elements_copied_before_they_were_written_stay_unwritten() -> None:
    text = program_text(L1 + "memref.store %y_i32, %m[%c8] : memref<32xi32, 2>\n" + WHOLE_OUT).replace(
        "%c0 = ", "%y_i32 = arith.constant 7 : i32\n%c0 = "
    )
    result = run(text)
    (finding,) = result.findings
    assert finding.code == "unwritten-output"
    assert "31 of 32 elements of arg1" in finding.message


def test_a_window_beyond_its_memref_names_the_elements() -> None:
    text = program_text(
        L1
        + WHOLE_IN
        + "air.dma_memcpy_nd (%b3[%c16] [%c32] [%one], %m[] [] []) : (memref<32xi32>, memref<32xi32, 2>)\n"
    )
    error = only_error(run(text), "out-of-bounds")
    assert "elements 16 to 47" in error.message
    assert "16 too many" in error.message


def test_a_load_beyond_its_memref_names_the_dimension() -> None:
    text = program_text(L1 + WHOLE_IN + "%v = memref.load %m[%c32] : memref<32xi32, 2>\n")
    error = only_error(run(text), "out-of-bounds")
    assert error.op == "memref.load"
    assert "dimension 0 of %m" in error.message


@pytest.mark.parametrize("grouping", ["lifted", "per-tile"])
def test_two_tiles_that_write_the_same_elements_are_told(grouping: str) -> None:
    text = program_text(
        """%m = memref.alloc() : memref<16xi32, 2>
        %o = arith.muli %x, %c8 : index
        air.dma_memcpy_nd (%m[] [] [], %a3[%o] [%c16] [%one]) : (memref<16xi32, 2>, memref<32xi32>)
        air.dma_memcpy_nd (%b3[%o] [%c16] [%one], %m[] [] []) : (memref<32xi32>, memref<16xi32, 2>)
        """,
        tiles="%c2",
    )
    error = only_error(run(text, grouping=grouping), "two-writers")
    assert "%arg1" in error.message


def test_windows_of_different_sizes_are_refused() -> None:
    text = program_text(
        L1 + "air.dma_memcpy_nd (%m[%c0] [%c16] [%one], %a3[%c0] [%c8] [%one]) : (memref<32xi32, 2>, memref<32xi32>)\n"
    )
    error = only_error(run(text), "count-mismatch")
    assert "8 elements come" in error.message
    assert "16 fit" in error.message


def test_use_after_dealloc_is_told() -> None:
    text = program_text(L1 + WHOLE_IN + "memref.dealloc %m : memref<32xi32, 2>\n" + WHOLE_OUT)
    error = only_error(run(text), "use-after-dealloc")
    assert "%m" in error.message


def test_a_dealloc_in_a_loop_that_does_not_allocate_is_only_noted() -> None:
    text = program_text(
        L1 + f"scf.for %i = %c0 to %c8 step %one {{\n{WHOLE_IN}{WHOLE_OUT}memref.dealloc %m : memref<32xi32, 2>\n}}\n"
    )
    result = run(text)
    assert result.ok
    assert [(finding.severity, finding.code) for finding in result.findings] == [("note", "dealloc-in-loop")]


ENDLESS = """%t = arith.constant true
scf.while : () -> () {
  scf.condition(%t)
} do {
  scf.yield
}
"""


def test_an_endless_loop_ends_at_the_instruction_limit() -> None:
    error = only_error(run(program_text(ENDLESS), max_instructions=20_000), "instruction-limit")
    assert "limit of 20,000" in error.message


def test_an_endless_loop_ends_at_the_time_limit() -> None:
    error = only_error(run(program_text(ENDLESS), timeout_s=0.0), "time-limit")
    assert "0 s" in error.message


def test_a_run_can_be_cancelled_and_tells_how_far_it_is() -> None:
    seen: list[int] = []
    error = only_error(run(program_text(ENDLESS), cancelled=lambda: len(seen) > 3, progress=seen.append), "cancelled")
    assert seen == sorted(seen)
    assert "cancelled" in error.message


def test_a_program_that_eats_memory_is_stopped_before_it_does() -> None:
    text = program_text(
        """scf.for %i = %c0 to %c32 step %one {
          %big = memref.alloc() : memref<1048576xi32, 2>
          %v = arith.constant 1 : i32
          memref.store %v, %big[%c0] : memref<1048576xi32, 2>
        }
        """
    )
    result = run(text, max_bytes=20_000_000)
    error = only_error(result, "memory-limit")
    assert "20,000,000" in error.message
    assert result.counters.peak_bytes <= 20_000_000


def test_an_absurd_size_is_refused_without_being_allocated() -> None:
    text = program_text(
        "%m = memref.alloc() : memref<1000000x1000000xi32, 2>\n%v = arith.constant 1 : i32\n"
        "memref.store %v, %m[%c0, %c0] : memref<1000000x1000000xi32, 2>\n"
    )
    only_error(run(text), "memory-limit")


def test_a_missing_external_kernel_is_named_with_its_object() -> None:
    text = program_text(
        L1 + WHOLE_IN + "func.call @no_such_kernel(%m) : (memref<32xi32, 2>) -> ()\n",
        declarations='func.func private @no_such_kernel(memref<32xi32, 2>) attributes {link_with = "odd.o"}',
    )
    error = only_error(run(text), "missing-kernel")
    assert "@no_such_kernel" in error.message
    assert "odd.o" in error.message


def test_an_op_the_emulator_does_not_know_is_named() -> None:
    error = only_error(run(program_text('"odd.op"() : () -> ()\n')), "unsupported-op")
    assert "odd.op" in error.message


def test_a_dynamic_shape_is_refused() -> None:
    text = program_text("%m = memref.alloc(%c8) : memref<?xi32, 2>\n")
    error = only_error(run(text), "dynamic-shape")
    assert "run time" in error.message


def test_a_channel_index_out_of_range_is_told() -> None:
    text = program_text(
        L1 + "air.channel.get @c[%c8] (%m[] [] []) : (memref<32xi32, 2>)\n", declarations="air.channel @c [2]"
    )
    error = only_error(run(text), "channel-index")
    assert "no entry [8]" in error.message


def test_a_core_that_runs_ahead_of_its_receiver_is_warned_about() -> None:
    text = program_text(
        L1 + WHOLE_IN + "air.channel.put @c[] (%m[] [] []) : (memref<32xi32, 2>)\n" * 3,
        declarations="air.channel @c []",
        end="air.channel.get @c[] (%b1[] [] []) : (memref<32xi32>)\n" * 3,
    )
    result = run(text)
    assert result.ok, result.findings
    assert {finding.severity for finding in result.findings} <= {"warning"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (np.zeros(31, np.int32), "shape [31]"),
        (np.zeros((4, 8), np.int32), "reshape"),
        (np.zeros(32, np.float32), "float32"),
        (np.full(32, 1 << 40), "1099511627776"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(given: np.ndarray, said: str) -> None:
    program = parse_program(program_text(L1 + WHOLE_IN + WHOLE_OUT), name="x.mlir")
    with pytest.raises(UnusableInput, match="arg0") as refused:
        run_program(program, [given])
    assert said in str(refused.value)


def test_an_unknown_input_or_function_is_refused() -> None:
    program = parse_program(program_text(L1 + WHOLE_IN + WHOLE_OUT), name="x.mlir")
    with pytest.raises(UnusableInput, match="arg0 to arg1"):
        run_program(program, {"x": np.zeros(32, np.int32)})
    with pytest.raises(UnusableInput, match="@g"):
        run_program(program, [np.zeros(32, np.int32)], function="g")
