"""The leaf recipes: norms, RoPE, biases, additions and activations, one launch each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.architectures import Dimensions, published, read_config
from npu_tools.backends.emulator import EmulatorBackend
from npu_tools.errors import UnusableInput
from npu_tools.recipes import Recipe, Text, memref, recipe, run_case, run_cases, sibling

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
LEAVES = {
    name: recipe(KERNELS, name)
    for name in ("rmsnorm", "layernorm", "rope", "silu_mul", "gelu", "eltwise_add", "qk_norm", "qkv_bias")
}
# mean_rel_L1 published for the device (kernel_registry/details/*.md); qkv_bias is an addition with one rounding.
PUBLISHED = {
    "rmsnorm": (4.2e-3, 4.6e-3),
    "layernorm": (4.4e-3, 4.4e-3),
    "rope": (2.4e-3, 2.8e-3),
    "silu_mul": (1.0e-2, 1.0e-2),
    "gelu": (8.4e-3, 8.4e-3),
    "eltwise_add": (1.9e-3, 1.9e-3),
    "qk_norm": (4.2e-3, 4.6e-3),
    "qkv_bias": (1.9e-3, 1.9e-3),
}
SMALL = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 30, "hidden_size": 576,
    "num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536, "vocab_size": 49152,
    "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
"""SmolLM2-135M."""


@pytest.mark.parametrize("name", LEAVES)
def test_small_cases_pass_the_gate_near_the_error_published_for_the_device(name: str) -> None:
    low, high = PUBLISHED[name]
    for run in run_cases(LEAVES[name]):
        assert run.passed, (run.resolved.extents, run.reason)
        assert run.mean_rel_l1 is not None
        # A row or two is a small sample: 15 % either way.
        assert 0.85 * low < run.mean_rel_l1 < 1.15 * high, run.resolved.extents


def of_a_layer(model: Dimensions, tokens: int) -> list[tuple[str, tuple[int, ...]]]:
    """The leaf kernels of one layer with their shapes."""
    found: list[tuple[str, tuple[int, ...]]] = [
        ("rmsnorm", (tokens, model.emb)),
        ("eltwise_add", (tokens * model.emb,)),
        ("silu_mul", (tokens * model.hidden,)),
    ]
    for heads in (model.heads, model.kv_heads):
        found.append(("rope", (tokens * heads, model.head_dim)))
        if model.qk_norm:
            found.append(("qk_norm", (tokens * heads, model.head_dim)))
        if model.qkv_bias:
            found.append(("qkv_bias", (tokens, heads * model.head_dim)))
    return found


CONFIGS: dict[str, Any] = {"smollm2-135m": SMALL, **{each.name: each.config for each in published()}}


@pytest.mark.parametrize("model", CONFIGS)
def test_every_leaf_of_every_model_has_a_legal_configuration_without_warnings(model: str) -> None:
    dimensions = read_config(CONFIGS[model])
    assert isinstance(dimensions, Dimensions)
    for tokens in (1, 16, 48, 64, 112, 208, 256, 272, 512, 1008, 1024, 1552, 2048):
        for name, shape in of_a_layer(dimensions, tokens):
            resolved = LEAVES[name].resolve(shape)
            assert resolved.ok, (name, shape, resolved.findings)
            assert not [found for found in resolved.findings if found.severity == "warning"], (name, shape)


def test_rope_turns_each_head_of_a_seq_first_tensor_by_its_positions_row() -> None:
    seq, heads, half = 6, 4, 32
    rope = LEAVES["rope"]
    resolved = rope.resolve((seq * heads, 2 * half))
    rng = np.random.default_rng(1)
    x = rng.standard_normal((seq, heads, 2 * half)).astype(ml_dtypes.bfloat16)
    angles = np.arange(seq)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles), np.sin(angles)
    table = np.repeat(np.concatenate([cos, sin], axis=1), heads, axis=0).astype(ml_dtypes.bfloat16)
    kernel = EmulatorBackend().load(rope.program(resolved), name="rope", outputs=(2,))
    run = kernel.bind({}).run({0: x.reshape(-1), 1: table.reshape(-1)})
    wide = x.astype(np.float64)
    turned = np.concatenate([-wide[..., half:], wide[..., :half]], axis=-1)
    whole_cos, whole_sin = (np.concatenate([each, each], axis=1)[:, None] for each in (cos, sin))
    expected = wide * whole_cos + turned * whole_sin
    error = (
        np.abs(run.outputs[2].astype(np.float64).reshape(expected.shape) - expected).mean() / np.abs(expected).mean()
    )
    assert error < 4e-3


def test_eps_is_part_of_the_program() -> None:
    small = np.full((1, 64), 1e-3)
    for eps in (1e-5, 1e-6):
        run = outputs_of(LEAVES["rmsnorm"], "1x64", {"eps": eps}, {"x": small, "weight": np.ones(64)})
        expected = 1e-3 / np.sqrt(1e-6 + eps)
        assert np.allclose(run, expected, rtol=1e-2)


def test_columns_of_a_padded_gemm_do_not_reach_what_follows_the_bias() -> None:
    x = np.concatenate([np.ones((16, 32)), np.full((16, 16), 1e30)], axis=1)
    y = outputs_of(LEAVES["qkv_bias"], "16x32", {"in_cols": 48}, {"x": x, "bias": np.arange(32)})
    assert np.array_equal(y, np.broadcast_to(1 + np.arange(32), (16, 32)))


def outputs_of(each: Recipe, shape: str, settings: dict[str, Any], tensors: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The last argument, after a run."""
    resolved = each.resolve(shape, settings)
    arguments = each.arguments(resolved)
    kernel = EmulatorBackend().load(each.program(resolved), name=each.name, outputs=(len(arguments) - 1,))
    given = {at: tensors[one.name].astype(one.dtype) for at, one in enumerate(arguments) if one.name in tensors}
    run = kernel.bind({}).run(given)
    assert run.ok, run.findings
    return run.outputs[len(arguments) - 1].astype(np.float32)


LAUNCHES = {
    "rmsnorm": (("M", 16), ("N", 64), [[16, 64], [64], [16, 64]]),
    "qk_norm": (("rows", 32), ("head_dim", 32), [[16, 64], [32], [16, 64]]),
    "rope": (("rows", 32), ("head_dim", 32), [[16, 64], [16, 64], [16, 64]]),
    "qkv_bias": (("seq", 16), ("cols", 64), [[16, 64], [64], [16, 64]]),
    "layernorm": (("M", 16), ("N", 64), [[16, 64], [128], [16, 64]]),
    "eltwise_add": (("n", 1024), None, [[16, 64], [16, 64], [16, 64]]),
    "silu_mul": (("n", 1024), None, [[16, 64], [16, 64], [16, 64]]),
    "gelu": (("n", 1024), None, [[16, 64], [16, 64]]),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_launch_can_be_printed_twice_into_one_function_on_tensors_of_two_dimensions(name: str) -> None:
    *axes, shapes = LAUNCHES[name]
    shape = dict(axis for axis in axes if axis is not None)
    each = LEAVES[name]
    resolved = each.resolve(shape)
    launch = getattr(sibling(str(KERNELS / "fused" / "design.py"), name), name)
    text = Text()
    with text.function("twice", [memref(extents, "bf16") for extents in shapes]) as values:
        launch(text, shape, resolved.settings, *values)
        launch(text, shape, resolved.settings, *values, suffix="_m2")
    kernel = EmulatorBackend().load(str(text), name="twice", outputs=(len(values) - 1,))
    rng = np.random.default_rng(0)
    given = {at: rng.standard_normal(shapes[at]).astype(ml_dtypes.bfloat16) for at in range(len(values) - 1)}
    run = kernel.bind({}).run(given)
    assert run.ok, run.findings
    single = EmulatorBackend().load(each.program(resolved), name=name, outputs=(len(values) - 1,))
    flat = {at: given[at].reshape(one.shape) for at, one in enumerate(each.arguments(resolved)[:-1])}
    alone = single.bind({}).run(flat).outputs[len(values) - 1]
    assert run.outputs[len(values) - 1].tobytes() == alone.tobytes()


def test_a_setting_that_is_a_fraction_is_read_from_text_and_nonsense_is_refused() -> None:
    rmsnorm = LEAVES["rmsnorm"]
    assert rmsnorm.resolve("16x64", {"eps": "1e-6"}).settings["eps"] == 1e-6
    with pytest.raises(UnusableInput, match="eps must be a number"):
        rmsnorm.resolve("16x64", {"eps": "tiny"})


@pytest.mark.parametrize("name", LEAVES)
def test_programs_call_the_symbols_of_upstreams_objects_and_no_others(name: str) -> None:
    each = LEAVES[name]
    declared = parse_program(each.program(each.resolve(each.manifest.cases[0].shape)), name).declarations()
    expected = {"rope": {"rope"}, "silu_mul": {"silu_and_mul_bf16"}}.get(name, set())
    assert set(declared) == expected
    assert each.manifest.objects == {"rope": ["rope.o"], "silu_mul": ["silu_and_mul.o"]}.get(name, [])


def test_layernorm_and_rmsnorm_follow_their_weights() -> None:
    for name in ("rmsnorm", "layernorm"):
        run = run_case(LEAVES[name], "16x64", seed=3)
        assert run.passed, run.reason
