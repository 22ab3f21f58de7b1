"""A tiny model and a world without torch: the oracle is its own FP32 decomposition, Hugging Face is played by it too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.architectures import Dimensions, read_config
from npu_tools.deployment.machine import Machine, Model, OpenOptions
from npu_tools.deployment.site import save
from npu_tools.deployment.world import OracleAnswer, RealWorld
from npu_tools.oracle import Decomposition, stage_path

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256, "vocab_size": 512,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 256,
}  # fmt: skip


@dataclass
class QuickWorld:
    """The real plan, runner and emulator; the oracle without torch; an evaluator that says what it is told to."""

    real: RealWorld = field(default_factory=lambda: RealWorld(KERNELS, at_once=1))
    verdict: dict[str, Any] = field(default_factory=lambda: {"verdict": "pass", "reasons": []})
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def stages(
        self, config: Mapping[str, Any], source: str, folder: Path, tokens: Sequence[int], *, depth: int | None,
        keep: Sequence[str] | None, compare: bool,
    ) -> OracleAnswer:  # fmt: skip
        self.asked.append("stages")
        model = self._model(config, source)
        layers = []
        for layer, stage, array in model.stages(list(tokens), depth=depth):
            if keep is None or stage in keep:
                save(folder / stage_path(layer, stage), array)
            if stage == "output":
                layers.append({"layer": layer, "cosine": 1.0, "error": 0.0})
        logits = {"cosine": 1.0, "error": 0.0, "same_token": True}
        return OracleAnswer(True, "", folder, {"layers": layers, "logits": logits, "versions": {}})

    def greedy(
        self, config: Mapping[str, Any], source: str, folder: Path, prompts: Sequence[Sequence[int]], steps: int
    ) -> OracleAnswer:
        self.asked.append("greedy")
        model = self._model(config, source)
        told = []
        for number, prompt in enumerate(prompts):
            tokens, rows = list(prompt), []
            for _ in range(steps):
                logits = next(array for _, stage, array in model.stages(tokens) if stage == "logits")
                rows.append(logits[0])
                tokens.append(int(np.argmax(logits)))
            name = f"prompt_{number:02d}_logits.npy"
            save(folder / name, np.stack(rows))
            told.append({"tokens": tokens[len(prompt) :], "logits": name})
        return OracleAnswer(True, "", folder, {"prompts": told, "steps": steps})

    def evaluate(self, workspace: Path, kernels: Path) -> Mapping[str, Any]:
        return self.verdict

    def _model(self, config: Mapping[str, Any], source: str) -> Decomposition:
        dims = read_config(config)
        assert isinstance(dims, Dimensions)
        return Decomposition(dims, self.real.weights(source, config))


def opened(machine: Machine, **options: Any) -> Machine:
    """Open the tiny model with a small gate."""
    machine.open(Model("tiny", CONFIG, "random:7"), OpenOptions(**{"seq_len": 64, "prompts": 1, "steps": 4, **options}))
    return machine
