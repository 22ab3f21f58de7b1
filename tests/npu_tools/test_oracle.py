"""The oracle: its FP32 decomposition beside Hugging Face, what it refuses, and the process it runs in."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_tools.architectures import Dimensions, published, read_config
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.oracle import Decomposition, StagesRequest, run_oracle, stage_names, stage_path
from npu_tools.rope import inverse_frequencies
from tests.npu_tools.oracle_weights import SMALL, Seeded

TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 96, 24)]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "untied": {"tie_word_embeddings": False},
    "llama3 scaling": {"rope_scaling": LLAMA3},
    "newer spelling": {"rope_parameters": {**LLAMA3, "rope_theta": 500000.0}, "rope_theta": None},
    "linear scaling": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "qwen2": {"architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "head_dim": 32, "tie_word_embeddings": False},
}
Asked = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Asked]:
    """The oracle's work in one child process with torch, shared by the tests here."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers (the extra 'models') are not installed")
    script = Path(__file__).with_name("oracle_in_child.py")
    with subprocess.Popen([sys.executable, "-P", str(script)], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def asked(**request: Any) -> dict[str, Any]:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield asked


def config(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**SMALL, **changes}.items() if value is not None}


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_agrees_with_hugging_face_far_below_a_bf16_step(name: str, ask: Asked, tmp_path: Path) -> None:
    asked = config(**MODELS[name])
    answer = ask(config=asked, weights="", tokens=TOKENS, folder=str(tmp_path))
    assert answer["ok"], answer["criteria"]
    assert len(answer["layers"]) == 2
    assert max(layer["error"] for layer in answer["layers"]) < 1e-5
    dims = read_config(asked)
    assert isinstance(dims, Dimensions)
    for layer in range(2):
        for stage in stage_names(dims):
            assert np.load(tmp_path / stage_path(layer, stage)).shape[0] == len(TOKENS)
    assert np.load(tmp_path / "logits.npy").shape == (1, 96)


def test_hugging_face_layer_by_layer_is_hugging_face_in_one_piece(ask: Asked, tmp_path: Path) -> None:
    for name in ("llama3 scaling", "qwen2", "qwen3"):
        answer = ask(what="whole", config=config(**MODELS[name]), weights="", tokens=TOKENS, folder=str(tmp_path))
        assert answer["worst"] < 1e-4, name


def test_an_epsilon_that_cosines_do_not_see_is_seen(ask: Asked, tmp_path: Path) -> None:
    answer = ask(what="epsilon", config=config(), weights="", tokens=TOKENS, folder=str(tmp_path), keep=[])
    held = {one["name"]: one["ok"] for one in answer["criteria"]}
    assert held["layer_cosine"]
    assert held["logits_cosine"]
    assert not held["relative_error"]
    assert not answer["ok"]


def test_the_greedy_reference_gives_tokens_best_ids_and_logits_of_every_step(ask: Asked, tmp_path: Path) -> None:
    answer = ask(kind="greedy", config=config(), weights="", prompts=[[1, 2, 3], [7]], folder=str(tmp_path), steps=4)
    assert answer["dtype"] == "bfloat16"
    for prompt in answer["prompts"]:
        logits = np.load(tmp_path / prompt["logits"])
        assert logits.shape == (4, 96)
        assert [best[0] for best in prompt["best"]] == prompt["tokens"] == logits.argmax(1).tolist()


def test_greedy_steps_follow_from_the_tokens_before_them(ask: Asked, tmp_path: Path) -> None:
    once = ask(
        kind="greedy", config=config(), weights="", prompts=[[1, 2, 3]], folder=str(tmp_path), steps=3, dtype="float32"
    )
    first = once["prompts"][0]["tokens"]
    model = Decomposition(_dims(config()), Seeded(config()))
    for step in range(3):
        *_, (_, stage, logits) = model.stages([1, 2, 3, *first[:step]])
        assert stage == "logits"
        assert int(logits[0].argmax()) == first[step]


def test_weights_that_contradict_the_config_are_named() -> None:
    weights = Seeded(config(), changed={"model.layers.1.mlp.up_proj.weight": np.zeros((8, 64), np.float32)})
    with pytest.raises(UnusableInput, match=r"layers\.1\.mlp\.up_proj.*\[8, 64\].*\[128, 64\]"):
        list(Decomposition(_dims(config()), weights).stages(TOKENS))


@pytest.mark.parametrize(
    ("tokens", "words"), [([96], "outside the vocabulary"), (list(range(65)), "more than the 64 the config allows")]
)
def test_tokens_the_model_cannot_take_are_refused(tokens: list[int], words: str) -> None:
    with pytest.raises(UnusableInput, match=words):
        next(Decomposition(_dims(config()), Seeded(config())).stages(tokens))


def test_padding_does_not_change_what_comes_before_it() -> None:
    model = Decomposition(_dims(config()), Seeded(config()))
    short = {stage: array for layer, stage, array in model.stages(TOKENS) if layer != 0}
    padded = {stage: array for layer, stage, array in model.stages(TOKENS + [0] * 8, length=len(TOKENS)) if layer != 0}
    np.testing.assert_allclose(padded["output"][: len(TOKENS)], short["output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(padded["logits"], short["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "code", "nearest"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_kind", "take rope_scaling out"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_kind", "llama-3.2-1b"),
        ({"num_local_experts": 8}, "moe", "llama-3.2-1b"),
        ({"kv_lora_rank": 512}, "mla", "llama-3.2-1b"),
        ({"sliding_window": 4096}, "sliding_window", "full attention"),
        ({"is_encoder_decoder": True}, "encoder_decoder", "llama-3.2-1b"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantized", "GGUF"),
    ],
)
def test_what_cannot_run_is_refused_with_the_nearest_that_does(changes: Any, code: str, nearest: str) -> None:
    found = read_config(config(**changes))
    assert isinstance(found, Finding)
    assert found.code == code
    assert nearest in str(found.remedy)


def test_rope_parameters_of_newer_configs_are_read() -> None:
    dims = _dims(config(rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 1e6}))
    assert dims.rope_theta == 1e6
    assert dims.scaling is None
    assert not dims.rope_scaling


def test_llama3_scaling_keeps_short_waves_and_slows_long_ones() -> None:
    plain = inverse_frequencies(_dims(config()))
    scaled = inverse_frequencies(_dims(config(rope_scaling={**LLAMA3, "original_max_position_embeddings": 8192})))
    assert scaled[0] == plain[0]
    slow = _dims(config(rope_theta=1e9, rope_scaling={**LLAMA3, "original_max_position_embeddings": 8192}))
    np.testing.assert_allclose(
        inverse_frequencies(slow)[-1], inverse_frequencies(_dims(config(rope_theta=1e9)))[-1] / 8
    )


def test_the_process_refuses_an_architecture_with_its_reason() -> None:
    result = run_oracle(
        StagesRequest(config=config(num_local_experts=8), weights="random:1", tokens=[1], folder="x", compare=False),
        timeout_s=60,
    )
    assert (result.state, result.ok) == ("refused", False)
    assert "mixture of experts" in result.reason


def test_seeded_weights_go_through_the_process_to_files_and_figures(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers (the extra 'models') are not installed")
    notes: list[str] = []
    request = StagesRequest(config=config(), weights="random:3", tokens=TOKENS, folder=str(tmp_path), keep=["output"])
    result = run_oracle(request, timeout_s=120, progress=lambda done, total, note: notes.append(note))
    assert (result.state, result.ok, result.reason) == ("done", True, "")
    assert sorted(path.name for path in tmp_path.glob("layer_*")) == ["layer_00", "layer_01"]
    assert set(result.answer["files"]) == {"layer_00/output.npy", "layer_01/output.npy"}
    assert result.answer["weights_digest"]
    assert result.peak_mb > 50


def test_the_process_can_be_stopped_and_limited() -> None:
    request = StagesRequest(
        config=dict(published()[0].config), weights="random:1", tokens=[1] * 64, folder="x", keep=[]
    )
    stopped = run_oracle(request, cancelled=lambda: True, timeout_s=60)
    assert (stopped.state, stopped.ok) == ("cancelled", False)
    late = run_oracle(request, timeout_s=0.05)
    assert late.state == "timeout"
    large = run_oracle(request, memory_mb=1, timeout_s=60)
    assert large.state == "memory"


def test_a_python_that_is_none_is_said() -> None:
    request = StagesRequest(config=config(), weights="random:1", tokens=[1], folder="x")
    assert "cannot be started" in run_oracle(request, python="no-such-python", timeout_s=5).reason


def test_the_help_names_both_requests() -> None:
    said = subprocess.run([sys.executable, "-P", "-m", "npu_tools.oracle", "--help"], capture_output=True, text=True)
    assert said.returncode == 0
    assert '"stages"' in said.stdout
    assert '"greedy"' in said.stdout


def _dims(given: dict[str, Any]) -> Dimensions:
    dims = read_config(given)
    assert isinstance(dims, Dimensions)
    return dims
