"""The runner beside Hugging Face's own model: the same weights, the same prompt, logits step by step."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_tools.gate import judge_tokens
from npu_tools.models.generate import generated
from npu_tools.oracle import GreedyRequest, run_oracle
from tests.npu_tools.small_models import MODELS, TOKENS, relative, runner_of

STEPS = 4
CONFIG = MODELS["llama3 scaling, untied"]
"""The other families: runner beside decomposition in test_models_runner.py, decomposition beside torch in test_oracle.py."""


def greedy(config: dict[str, Any], folder: Path, dtype: Any) -> np.ndarray[Any, Any]:
    """Hugging Face's logits [steps, vocab], from a child: torch must not load in the test process."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers (the extra 'models') are not installed")
    request = GreedyRequest(
        config=config, weights="random:5", folder=str(folder), prompts=[TOKENS], steps=STEPS, dtype=dtype, threads=1
    )
    result = run_oracle(request, timeout_s=120)
    assert result.state == "done", result.reason
    return np.load(folder / result.answer["prompts"][0]["logits"])


def test_without_rounding_the_logits_are_hugging_faces(tmp_path: Path):
    wanted = greedy(CONFIG, tmp_path, "float32")
    made = generated(runner_of(CONFIG, "f32"), TOKENS, STEPS)
    for ours, theirs in zip(made.logits, wanted, strict=True):
        assert relative(ours, theirs) < 1e-3


def test_rounded_as_the_device_rounds_the_top_five_agree(tmp_path: Path):
    wanted = greedy(CONFIG, tmp_path, "bfloat16")
    made = generated(runner_of(CONFIG, fused=True), TOKENS, STEPS)
    verdict = judge_tokens(np.stack(made.logits), wanted, steps=STEPS)
    assert verdict.passed, verdict.reason
