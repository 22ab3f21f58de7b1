"""The GEMM recipe: its four methods on the emulator, against FP32, near the errors published for the device."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_tools.recipes import recipe, run_case

GEMM = recipe(Path(__file__).resolve().parents[2] / "kernels", "gemm")
MODELS = {
    "Llama-3.2-1B": (2048, 2048, 512, 8192),
    "Llama-3.2-3B": (3072, 3072, 1024, 8192),
    "SmolLM2-1.7B": (2048, 2048, 2048, 8192),
    "Qwen2.5-0.5B": (896, 896, 128, 4864),
    "Qwen2.5-1.5B": (1536, 1536, 256, 8960),
    "Qwen2.5-3B": (2048, 2048, 256, 11008),
    "Qwen3-0.6B": (1024, 2048, 1024, 3072),
    "Qwen3-1.7B": (2048, 2048, 1024, 6144),
    "Qwen3-4B": (2560, 4096, 1024, 9728),
    "SmolLM2-135M": (576, 576, 192, 1536),
}
"""emb, q width, kv width, hidden (llms/<model>/ARCHITECTURE.md; the last from its config.json)."""


SMALL = [case for case in GEMM.manifest.cases if case.size == "small"]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: "-".join(map(str, case.settings.values())))
def test_small_cases_pass_the_gate_with_the_error_published_for_the_device(case) -> None:
    run = run_case(GEMM, case.shape, case.settings, published=case.mean_rel_l1)
    assert run.passed, run.reason
    assert run.mean_rel_l1 is not None
    assert run.published is not None
    assert 0.95 * run.published < run.mean_rel_l1 < 1.05 * run.published


@pytest.mark.parametrize("seq", [2048, 512, 256, 128])
@pytest.mark.parametrize("model", MODELS)
def test_every_projection_of_every_model_has_a_legal_configuration(model: str, seq: int) -> None:
    emb, q, kv, hidden = MODELS[model]
    for k, n in {(emb, q), (emb, kv), (q, emb), (emb, hidden), (hidden, emb)}:
        resolved = GEMM.resolve((seq, k, n))
        assert resolved.ok, (seq, k, n, resolved.findings)
