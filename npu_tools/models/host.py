"""What the host does of a model, as upstream's runners do: embedding, angles, decode attention, the last norm, the choice.

Everything is float32 inside and comes out in the dtype of the activations: bf16, or float32 for a run that rounds
nothing. Upstream decodes attention on the CPU (mlir-air llms/README.md @ e972f2942); so does this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.architectures import Dimensions
from npu_tools.errors import UnusableInput
from npu_tools.rope import rotation

Array = NDArray[Any]
Floats = NDArray[np.float32]


def embed(table: Array, tokens: list[int], dtype: np.dtype[Any]) -> Array:
    """Rows of the embedding [seq, emb].

    Raises:
        UnusableInput: a token outside the vocabulary.
    """
    worst = max(tokens, key=lambda token: token if token >= 0 else 1 << 40)
    if not 0 <= worst < len(table):
        raise UnusableInput(f"token {worst} is outside the vocabulary of {len(table)}; is this the model's tokenizer?")
    return np.asarray(table[np.asarray(tokens)], dtype)


def rope_table(dims: Dimensions, positions: NDArray[Any], heads: int, dtype: np.dtype[Any]) -> Array:
    """Angles as the rope kernel takes them, flat: for each position and head a row of cosines, then sines."""
    cosine, sine = rotation(dims, positions)
    rows = np.concatenate([cosine, sine], axis=1).astype(dtype)
    return np.repeat(rows, heads, axis=0).reshape(-1)


def rms_norm(x: Array, weight: Array, eps: float, dtype: np.dtype[Any]) -> Array:
    """RMSNorm over the last axis."""
    values = np.asarray(x, np.float32)
    square = np.mean(values * values, axis=-1, keepdims=True, dtype=np.float32)
    return np.asarray(values / np.sqrt(square + np.float32(eps)) * np.asarray(weight, np.float32), dtype)


def add(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """A residual."""
    return np.asarray(np.asarray(a, np.float32) + np.asarray(b, np.float32), dtype)


def silu_mul(gate: Array, up: Array, dtype: np.dtype[Any]) -> Array:
    """SiLU(gate) * up."""
    values = np.asarray(gate, np.float32)
    with np.errstate(over="ignore"):
        return np.asarray(values / (1 + np.exp(-values)) * np.asarray(up, np.float32), dtype)


@dataclass(slots=True)
class KeyValueCache:
    """Keys, turned, and values of one layer by position: [kv_heads, room, head_dim], float32 of the activations' values.
    Grows as needed."""

    kv_heads: int
    head_dim: int
    length: int = 0
    keys: Floats = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))
    values: Floats = field(default_factory=lambda: np.empty((0, 0, 0), np.float32))

    def append(self, keys: Array, values: Array) -> None:
        """Add positions [seq, kv_heads * head_dim]."""
        count = len(keys)
        if self.keys.shape[1] < self.length + count:
            room = max(64, 2 * self.keys.shape[1], self.length + count)
            for name in ("keys", "values"):
                grown = np.empty((self.kv_heads, room, self.head_dim), np.float32)
                if self.length:
                    grown[:, : self.length] = getattr(self, name)[:, : self.length]
                setattr(self, name, grown)
        for kept, new in ((self.keys, keys), (self.values, values)):
            heads = np.asarray(new, np.float32).reshape(count, self.kv_heads, self.head_dim)
            kept[:, self.length : self.length + count] = heads.swapaxes(0, 1)
        self.length += count

    def attend(self, query: Array, dtype: np.dtype[Any]) -> Array:
        """One query [1, heads * head_dim] over everything kept, heads sharing keys in groups: the same shape."""
        grouped = np.asarray(query, np.float32).reshape(self.kv_heads, -1, self.head_dim)
        keys, values = self.keys[:, : self.length], self.values[:, : self.length]
        scores = grouped @ keys.swapaxes(1, 2) / np.float32(np.sqrt(self.head_dim))
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        return np.asarray((scores @ values).reshape(1, -1), dtype)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 cut nothing off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise UnusableInput("temperature and top_k are 0 or more, top_p above 0 and at most 1")

    def choose(self, logits: Array, rng: np.random.Generator) -> int:
        """The next token of logits [vocab]; among equals the smallest id."""
        values = np.asarray(logits, np.float32)
        if self.temperature == 0:
            return int(np.argmax(values))
        order = np.argsort(-values, kind="stable")
        if self.top_k:
            order = order[: self.top_k]
        scaled = values[order].astype(np.float64) / self.temperature
        chances = np.exp(scaled - scaled[0])
        chances /= chances.sum()
        kept = int(np.searchsorted(np.cumsum(chances), self.top_p)) + 1
        chances = chances[:kept] / chances[:kept].sum()
        return int(order[int(rng.choice(len(chances), p=chances))])
