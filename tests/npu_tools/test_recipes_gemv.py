"""The GEMV recipes: plain, with residual over the cascade, LM head in partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu_tools.recipes import recipe, run_case, run_cases

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
GEMV, RESIDUAL, LM_HEAD = (recipe(KERNELS, name) for name in ("gemv", "gemv_residual", "lm_head_gemv"))
MODELS = {
    "Llama-3.2-1B": (2048, 2048, 512, 8192, 128256),
    "Llama-3.2-3B": (3072, 3072, 1024, 8192, 128256),
    "SmolLM2-1.7B": (2048, 2048, 2048, 8192, 49152),
    "Qwen2.5-0.5B": (896, 896, 128, 4864, 151936),
    "Qwen2.5-1.5B": (1536, 1536, 256, 8960, 151936),
    "Qwen2.5-3B": (2048, 2048, 256, 11008, 151936),
    "Qwen3-0.6B": (1024, 2048, 1024, 3072, 151936),
    "Qwen3-1.7B": (2048, 2048, 1024, 6144, 151936),
    "Qwen3-4B": (2560, 4096, 1024, 9728, 151936),
    "SmolLM2-135M": (576, 576, 192, 1536, 49152),
}
"""emb, q width, kv width, hidden, vocabulary (llms/<model>/ARCHITECTURE.md; the last from its config.json)."""


@pytest.mark.parametrize("each", [GEMV, LM_HEAD], ids=lambda each: each.name)
def test_a_gemv_rounds_once_a_row_and_is_exact_but_for_that(each) -> None:
    for run in run_cases(each):
        assert run.passed, run.reason
        assert run.mean_rel_l1_rounded is not None
        assert run.mean_rel_l1_rounded < 2.2e-6


def test_a_residual_gemv_passes_as_a_residual_addition() -> None:
    for run in run_cases(RESIDUAL):
        assert run.passed, run.reason


def test_the_cascade_rounds_its_sums_once_a_step() -> None:
    steps = [run_case(RESIDUAL, "512x4096", {"k_tile": step}).mean_rel_l1_rounded for step in (1024, 512)]
    assert None not in steps
    assert steps[0] < steps[1]


@pytest.mark.parametrize("model", MODELS)
def test_every_decode_projection_and_lm_head_has_a_legal_configuration(model: str) -> None:
    emb, q, kv, hidden, vocab = MODELS[model]
    for m, k in {(q, emb), (kv, emb), (emb, q), (hidden, emb), (emb, hidden)}:
        assert GEMV.resolve((m, k)).ok, (m, k)
    head = LM_HEAD.resolve((vocab, emb))
    assert head.ok, head.findings
    assert head.settings["n_part"] * head.settings["n_partitions"] >= vocab


def test_measured_settings_are_taken_unless_the_caller_says_otherwise() -> None:
    assert GEMV.resolve("2048x8192").settings["tile_m"] == 2
    assert GEMV.resolve("2048x8192").chosen == "measured"
    assert GEMV.resolve("2048x2048", {"tile_m": 4}).settings["tile_m"] == 4
    assert GEMV.resolve("192x576").chosen == "rule"


def test_padding_of_the_vocabulary_never_reaches_the_logits() -> None:
    resolved = LM_HEAD.resolve("1000x64", {"n_part": 384})
    tensors = LM_HEAD.inputs(resolved)
    arranged = LM_HEAD.arrange(tensors, resolved)
    assert not arranged["weight_2"][232:].any()
    assert np.shares_memory(arranged["weight_0"], tensors["weight"])
    logits = LM_HEAD.collect({f"logits_{part}": np.full(384, -1.0) for part in range(3)}, resolved)["logits"]
    assert logits.shape == (1000,)
