"""The FlashAttention recipe: layouts, masks, grouped heads, and every length that is whole tiles of 64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.air.dialect import LaunchOp
from npu_tools.emulator.repeats import alike
from npu_tools.emulator.run import run_program
from npu_tools.errors import UnusableInput
from npu_tools.recipes import recipe, run_case, run_cases

ATTENTION = recipe(Path(__file__).resolve().parents[2] / "kernels", "flash_attention")
HEADS = {
    "Llama-3.2-1B": (32, 8, 64),
    "SmolLM2-1.7B": (32, 32, 64),
    "Llama-3.2-3B": (24, 8, 128),
    "Qwen2.5-0.5B": (14, 2, 64),
    "Qwen2.5-1.5B": (12, 2, 128),
    "Qwen2.5-3B": (16, 2, 128),
    "Qwen3-0.6B": (16, 8, 128),
    "Qwen3-4B": (32, 8, 128),
    "SmolLM2-135M": (9, 3, 64),
}


def test_small_cases_pass_near_the_published_error() -> None:
    for run in run_cases(ATTENTION):
        assert run.passed, (run.resolved.extents, run.reason)
        assert run.mean_rel_l1 is not None
        assert 1e-2 < run.mean_rel_l1 < 5.5e-2


@pytest.mark.parametrize("model", HEADS)
def test_every_model_has_a_legal_configuration_at_every_whole_number_of_tiles(model: str) -> None:
    for length in (64, 128, 192, 256, 448, 1024, 2048):
        resolved = ATTENTION.resolve((length, length, *HEADS[model]))
        assert resolved.ok, (length, resolved.findings)
        columns = resolved.settings["num_q_tiles"] * resolved.settings["heads_per_unroll"]
        assert columns <= 8
        assert length % 256 or columns == 8 or (HEADS[model][0] % 2 and length == 256)


def test_both_layouts_give_the_same_bits() -> None:
    outputs: list[np.ndarray] = []
    for variant in ("seq-first", "head-first"):
        resolved = ATTENTION.resolve("128x128x4x2x64", {"variant": variant})
        arguments = ATTENTION.arrange(ATTENTION.inputs(resolved), resolved)
        program = parse_program(ATTENTION.program(resolved), "attention.mlir")
        result = run_program(program, {f"arg{at}": arguments[name] for at, name in enumerate("QKV")})
        outputs.append(ATTENTION.collect({"O": result.outputs["arg3"]}, resolved)["out"])
    assert np.array_equal(outputs[0], outputs[1])


def test_a_later_key_changes_nothing_for_an_earlier_query_of_another_block_of_eight() -> None:
    """Eight keys' values share an exponent in the matrix unit, so a query may feel the seven after its own."""
    resolved = ATTENTION.resolve("128x128x2x1x64")
    program = parse_program(ATTENTION.program(resolved), "attention.mlir")
    tensors = ATTENTION.inputs(resolved)
    arguments = {f"arg{at}": tensors[name] for at, name in enumerate("qkv")}
    before = run_program(program, arguments).outputs["arg3"]
    changed = {**arguments, "arg2": arguments["arg2"].copy()}
    changed["arg2"][104:] = 7
    after = run_program(program, changed).outputs["arg3"]
    assert np.array_equal(before[:104], after[:104])
    assert not np.array_equal(before[104:], after[104:])


@pytest.mark.parametrize("shape", ["128x128x2x1x64", "320x320x1x1x64"])
def test_all_tiles_at_once_and_one_by_one_give_the_same_bits(shape: str) -> None:
    resolved = ATTENTION.resolve(shape)
    program = parse_program(ATTENTION.program(resolved), "attention.mlir")
    tensors = ATTENTION.inputs(resolved)
    arguments = {f"arg{at}": tensors[name] for at, name in enumerate("qkv")}
    lifted, single = (
        run_program(program, arguments, grouping=grouping).outputs["arg3"] for grouping in ("lifted", "per-tile")
    )
    assert np.array_equal(lifted, single)


@pytest.mark.parametrize("settings", [{"variant": "temporal"}, {"window": 128}, {"dv_tile": 32}, {"lkp": 32}])
def test_what_this_design_does_not_print_is_refused(settings: dict[str, int | str]) -> None:
    with pytest.raises(UnusableInput):
        run_case(ATTENTION, "256x256x2x2x64", settings)


def test_heads_of_one_block_of_queries_are_repeated_by_steps_and_blocks_are_run() -> None:
    resolved = ATTENTION.resolve("128x128x4x2x64", {"num_q_tiles": 1, "lqp": 64})
    program = parse_program(ATTENTION.program(resolved), "attention.mlir")
    (launch,) = (op for op in program.module.walk() if isinstance(op, LaunchOp))
    assert alike(launch, {}) == 1
    tensors = ATTENTION.inputs(resolved)
    arguments = {f"arg{at}": tensors[name] for at, name in enumerate("qkv")}
    by_steps, by_text = (run_program(program, arguments, grouping=grouping) for grouping in ("lifted", "per-tile"))
    assert (by_steps.ok, by_text.ok) == (True, True)
    assert np.array_equal(by_steps.outputs["arg3"], by_text.outputs["arg3"])
    assert by_steps.counters.launch_iterations == by_text.counters.launch_iterations == 4
    assert by_steps.counters.kernels == by_text.counters.kernels
