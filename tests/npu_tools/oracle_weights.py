"""Seeded weights for small models of the oracle's tests, by Hugging Face name."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 96,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


class Seeded:
    """Weights of `config` from a seed; `changed` replaces tensors by name."""

    def __init__(self, config: dict[str, Any], seed: int = 1, changed: dict[str, Any] | None = None) -> None:
        self.config, self.seed, self.changed = config, seed, changed or {}

    def tensor(self, name: str) -> Any:
        if name in self.changed:
            return self.changed[name]
        rng = np.random.default_rng([self.seed, zlib.crc32(name.encode())])
        shape = self._shape(name)
        if len(shape) == 2:
            return rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[1]))
        noise = rng.standard_normal(shape, np.float32) * np.float32(0.1)
        return noise if name.endswith("bias") else 1 + noise

    def _shape(self, name: str) -> tuple[int, ...]:
        config = self.config
        emb, hidden, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
        q, kv = (config[f"num_{kind}_heads"] * config["head_dim"] for kind in ("attention", "key_value"))
        shapes = {
            "embed_tokens.weight": (vocab, emb), "lm_head.weight": (vocab, emb), "q_proj.weight": (q, emb),
            "k_proj.weight": (kv, emb), "v_proj.weight": (kv, emb), "o_proj.weight": (emb, q),
            "gate_proj.weight": (hidden, emb), "up_proj.weight": (hidden, emb), "down_proj.weight": (emb, hidden),
            "q_proj.bias": (q,), "k_proj.bias": (kv,), "v_proj.bias": (kv,),
            "q_norm.weight": (config["head_dim"],), "k_norm.weight": (config["head_dim"],),
        }  # fmt: skip
        return next((shape for end, shape in shapes.items() if name.endswith(end)), (emb,))
