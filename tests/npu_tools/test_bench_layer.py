"""The bench of a layer: its figures, and what it says where nothing can be measured."""

import io
import json
import sys
from pathlib import Path

import pytest

from npu_tools.bench.layer import LayerMeasured, measure_layer, serve
from npu_tools.bench.speed import NoPeer

KERNELS = Path(__file__).parents[2] / "kernels"


def test_the_best_round_of_each_side_counts():
    rounds, processor = ((9.0, 3.0), (8.0, 4.0)), ((6.0, 2.0), (7.0, 2.5))
    measured = LayerMeasured("m", 64, True, rounds, processor, 1.0, {}, {})
    assert measured.ratio == pytest.approx(8 / 3)
    assert measured.processor_ratio == 3
    assert measured.as_dict()["ratio"] == measured.ratio


def test_what_cannot_be_measured_is_said_with_what_can(tmp_path: Path):
    unknown = measure_layer(None, "gpt-2", 64, kernels=KERNELS)
    assert isinstance(unknown, NoPeer)
    assert "llama-3.2-1b" in unknown.message
    biased = measure_layer(None, "qwen2.5-0.5b", 64, kernels=KERNELS)
    assert isinstance(biased, NoPeer)
    assert "Llama topology" in biased.message
    missing = measure_layer(tmp_path / "python", "llama-3.2-1b", 64, kernels=KERNELS)
    assert isinstance(missing, NoPeer)
    assert "cannot be started" in missing.message


def test_the_emulators_side_times_every_kernel_of_the_layer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    asked = [{"model": "qwen2.5-0.5b", "seq": 64, "kernels": str(KERNELS), "fused": False}, {"run": True}]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(one) + "\n" for one in asked)))
    serve()
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert set(first) == set(second) == {"seconds", "processor", "steps"}
    assert {"attn_norm", "q_biased", "attention", "swiglu", "output"} <= set(second["steps"])
