"""Launches whose iterations are alike: the first is run, the others are done by the steps it took."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator import RunResult, fusion, journal, repeats, run_program
from npu_tools.emulator.prepared import PreparedProgram
from npu_tools.recipes import recipe

ATTENTION = recipe(Path(__file__).resolve().parents[2] / "kernels", "flash_attention")
SIZES = (512, 512, 4, 2)
"""Queries, keys, heads, key heads: four iterations."""


@lru_cache
def text(causal: bool = False) -> str:
    return ATTENTION.program(ATTENTION.resolve((*SIZES, 64), {"causal": causal}))


def inputs(scale: float = 1.0) -> list[np.ndarray]:
    queries, keys, heads, key_heads = SIZES
    rng = np.random.default_rng(3)
    shapes = [(queries, heads * 64), (keys, key_heads * 64), (keys, key_heads * 64)]
    return [(rng.standard_normal(shape) * scale).astype(np.float32) for shape in shapes]


def run(given: list[np.ndarray], program: str | None = None, **options) -> RunResult:
    return run_program(parse_program(program or text(), "attention"), given, **options)


def words(result: RunResult) -> np.ndarray:
    return result.outputs["arg3"].view(np.uint16)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_iterations_done_by_steps_give_the_same_bits_and_counts_as_tile_by_tile(scale: float) -> None:
    rng, given = np.random.default_rng(5), inputs(scale)
    given = [each * np.exp2(rng.integers(-8, 2, each.shape)).astype(np.float32) for each in given]
    lifted, single = run(given), run(given, grouping="per-tile")
    assert lifted.ok
    assert single.ok
    assert np.array_equal(words(lifted), words(single))
    one, other = lifted.counters.as_dict(), single.counters.as_dict()
    differing = {name for name in one if one[name] != other[name]}
    assert differing <= {"instructions", "peak_bytes"}
    assert one["launch_iterations"] == 4


def test_repeated_iterations_count_as_executed_ones_do() -> None:
    """A trace has all of them executed; the last instructions of an iteration count for the next."""
    told: list[int] = []
    done = run(inputs(), progress=told.append)
    traced = run(inputs(), trace=True)
    assert np.array_equal(words(done), words(traced))
    assert abs(traced.counters.instructions - done.counters.instructions) < 10
    assert len(told) >= 3


def test_attention_s_calls_on_a_block_of_keys_are_done_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two heads, each with a block a row of the herd and step: every one of its seven calls is in it."""
    made: list[list] = []

    def noted(steps):
        made.append(fusion.fused(steps))
        return made[-1]

    monkeypatch.setattr(repeats, "fused", noted)
    run(inputs())
    ((*steps,),) = made
    assert sum(isinstance(step, fusion.Fused) for step in steps) == 2 * SIZES[1] // 4 // 64
    left = {step.kernel.family for step in steps if isinstance(step, journal.Call)}
    assert not left & {"matmul_a_b_bf16", "fused_softmax", "matmul_g_b_bf16"}


def test_a_repeated_iteration_stops_at_the_limit() -> None:
    executed = run(inputs()).counters.instructions
    stopped = run(inputs(), max_instructions=executed * 5 // 8)
    assert stopped.findings[0].code == "instruction-limit"


def test_a_window_beyond_the_argument_in_a_later_iteration_is_found() -> None:
    """Two iterations read past the keys: the text takes the key head of a head that is not there."""
    wrong = text().replace("s0 floordiv 2", "s0 floordiv 1")
    assert wrong != text()
    result = run(inputs(), wrong)
    assert not result.ok
    assert {finding.code for finding in result.findings} == {"out-of-bounds"}


def test_values_nobody_wrote_are_found_though_the_first_iteration_reads_none_of_them() -> None:
    program = text()
    given = inputs()
    partly = run([given[0], given[1]], program)
    assert not partly.ok
    assert "uninitialised-read" in {finding.code for finding in partly.findings}


@pytest.mark.parametrize("causal", [False, True])
def test_a_program_prepared_once_does_later_runs_by_steps_alone(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[int] = []
    fused = repeats.fused

    def noted(steps):
        learnt.append(len(steps))
        return fused(steps)

    program = parse_program(text(causal), "attention")
    prepared = PreparedProgram(program)
    results = []
    for scale in (1.0, 3.0):
        with monkeypatch.context() as patched:
            patched.setattr(repeats, "fused", noted)
            results.append(prepared.run(prepared.bind(inputs(scale))))
        fresh = run_program(program, inputs(scale), grouping="per-tile")
        assert np.array_equal(words(results[-1]), words(fresh))
    first, second = (result.counters.as_dict() for result in results)
    assert {name for name in first if first[name] != second[name]} <= {"instructions", "peak_bytes"}
    assert len(learnt) == (2 if causal else 1)


def test_inputs_that_lack_in_a_later_run_are_found() -> None:
    prepared = PreparedProgram(parse_program(text(), "attention"))
    assert prepared.run(prepared.bind(inputs())).ok
    partly = prepared.run(prepared.bind(inputs()[:2]))
    assert "uninitialised-read" in {finding.code for finding in partly.findings}
