"""The plan in few dispatches: upstream's ELFs, and the bits of the leaves."""

from typing import Any

import numpy as np
import pytest

from npu_tools.architectures import Published, published
from npu_tools.models.plan import plan_model
from npu_tools.models.runner import Runner
from tests.npu_tools.small_models import MODELS, TOKENS, dimensions, relative, runner_of


@pytest.mark.parametrize("name", MODELS)
def test_fused_kernels_give_the_bits_of_the_leaves(name: str):
    apart, fused = runner_of(MODELS[name], layers=1), runner_of(MODELS[name], layers=1, fused=True)
    made: list[dict[tuple[int | None, str], Any]] = [{}, {}]
    for runner, seen in zip((apart, fused), made, strict=True):
        tap = lambda layer, stage, array, seen=seen: seen.__setitem__((layer, stage), array)  # noqa: E731
        runner.prefill(TOKENS, tap)
    assert made[0].keys() == made[1].keys()
    for key, array in made[0].items():
        np.testing.assert_array_equal(array, made[1][key], err_msg=str(key))
    assert len(fused.plan.prefill) < len(apart.plan.prefill)
    if runner_decodes_alike(fused):
        np.testing.assert_array_equal(apart.decode(3), fused.decode(3))
    else:
        assert relative(apart.decode(3), fused.decode(3)) < 5e-2


def runner_decodes_alike(runner: Runner) -> bool:
    """Whether the host does nothing but attention: its sums and SiLU round otherwise than the cores'."""
    return [step.name for step in runner.plan.decode if step.where == "host"] == ["attention"]


@pytest.mark.parametrize("model", published(), ids=lambda model: model.name)
def test_the_published_models_run_with_upstreams_elfs(model: Published):
    dims = dimensions(model.config)
    plan = plan_model(dims, 2048, fused=True)
    renamed = {"flash_attention": "flash_attn"}
    prefill = tuple(renamed.get(step.recipe, step.recipe) if step.recipe not in ("gemm", "silu_mul") else step.name for step in plan.prefill)  # fmt: skip
    decode = tuple(f"{step.name}_gemv" if step.recipe == "gemv" else step.recipe for step in plan.decode if step.where == "npu")  # fmt: skip
    assert prefill == model.prefill_elfs
    assert decode == model.decode_elfs
