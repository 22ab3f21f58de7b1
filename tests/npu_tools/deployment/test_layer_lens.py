"""The layer lens: a median over tokens, so that one outsized token makes no cliff, and a layer gone wrong does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from npu_tools.deployment import oracle_runs
from npu_tools.deployment.site import save
from npu_tools.deployment.token_gate import LayerLens, first_fall
from npu_tools.deployment.world import OracleAnswer

TOKENS, WIDTH, LAYERS = 5, 64, 6


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Outputs of every layer; channel 7 of the first token outgrows all others, as in models with an attention sink."""
    rng = np.random.default_rng(3)
    outputs = [rng.standard_normal((TOKENS, WIDTH)).astype(np.float32) for _ in range(LAYERS)]
    for layer, output in enumerate(outputs):
        output[0, 7] = 20_000
        save(tmp_path / f"layer_{layer:02d}" / "output.npy", output)
    monkeypatch.setattr(oracle_runs, "stages", lambda *_, **__: OracleAnswer(True, "", tmp_path))
    return outputs


def seen(outputs: list[np.ndarray]) -> LayerLens:
    lens = LayerLens(TOKENS)
    for layer, output in enumerate(outputs):
        lens.tap(layer, "output", np.concatenate([output, np.full((3, WIDTH), np.nan, np.float32)]))  # padding rows
    return lens


def layers_of(lens: LayerLens) -> Any:
    return lens.layers(SimpleNamespace(dims=lambda: None), [1] * TOKENS)  # type: ignore[arg-type]


def test_an_outsized_first_token_that_lost_its_direction_is_named_and_is_no_cliff(reference: list[np.ndarray]) -> None:
    outputs = [output.copy() for output in reference]
    outputs[4][0] = np.roll(outputs[4][0], 1)
    found = layers_of(seen(outputs))
    assert first_fall([layer.median for layer in found]) is None
    assert found[4].token == 0
    assert found[4].smallest < 0.1


def test_a_large_token_that_agrees_hides_no_layer_that_is_wrong(reference: list[np.ndarray]) -> None:
    outputs = [output.copy() for output in reference]
    for output in outputs[3:]:
        output[1:] = np.roll(output[1:], 1, axis=0)
    flat, expected = outputs[3].reshape(-1), reference[3].reshape(-1)
    assert flat @ expected / np.linalg.norm(flat) / np.linalg.norm(expected) > 0.99, "one cosine over all sees nothing"
    fall = first_fall([layer.median for layer in layers_of(seen(outputs))])
    assert fall is not None
    assert fall[0] == 3
