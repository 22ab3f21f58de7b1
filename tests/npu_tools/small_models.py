"""Small models of every family on the emulator, for tests of npu_tools.models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.architectures import Dimensions, read_config
from npu_tools.backends import EmulatorBackend
from npu_tools.models import open_weights
from npu_tools.models.runner import Runner

KERNELS = Path(__file__).parents[2] / "kernels"
BACKENDS = {mode: EmulatorBackend(numerics=mode) for mode in ("faithful", "f32")}
"""Shared, so that each kernel is loaded once."""
TOKENS = [3, 141, 59, 26, 53, 58, 97, 93, 23, 84]


def config_of(architecture: str, **changes: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 128,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "intermediate_size": 256,
        "vocab_size": 500, "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        "max_position_embeddings": 512, **changes,
    }  # fmt: skip


def dimensions(config: Mapping[str, Any]) -> Dimensions:
    dims = read_config(config)
    assert isinstance(dims, Dimensions)
    return dims


def runner_of(config: Mapping[str, Any], numerics: str = "faithful", **options: Any) -> Runner:
    weights = open_weights("random:5", config)
    return Runner(dimensions(config), weights, [KERNELS], BACKENDS[numerics], 64, **options)


def relative(actual: Any, expected: Any) -> float:
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


MODELS = {
    "llama": config_of("LlamaForCausalLM"),
    "llama3 scaling, untied": config_of(
        "LlamaForCausalLM",
        tie_word_embeddings=False,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "qwen2, three heads": config_of("Qwen2ForCausalLM", num_attention_heads=3, num_key_value_heads=3, hidden_size=192),
    "qwen3, wider than emb": config_of("Qwen3ForCausalLM", num_attention_heads=4, num_key_value_heads=2),
    "qwen3, heads of 128": config_of(
        "Qwen3ForCausalLM", num_attention_heads=2, num_key_value_heads=2, head_dim=128, num_hidden_layers=1
    ),
}
