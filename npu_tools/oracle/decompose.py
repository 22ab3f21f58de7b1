"""A decoder-only model in FP32, kernel by kernel, with numpy alone: every array a kernel of the NPU path must match.

>>> model = Decomposition(dims, weights)
>>> for layer, stage, array in model.stages(tokens):     # None, "embedding"; 0, "attn_norm"; …; None, "logits"
...     np.save(folder / stage_path(layer, stage), array)

Arrays are [seq, width], heads side by side. Weights are taken a layer at a time and let go, so that memory holds one
layer. Products accumulate as BLAS does in float32; softmax, norms and SiLU in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.architectures import Dimensions
from npu_tools.errors import UnusableInput
from npu_tools.oracle.requests import WeightsSource
from npu_tools.rope import rotate, rotation

Floats = NDArray[Any]
"""float32 throughout; numpy's stubs lose the width in mixed expressions."""
Stage = tuple[int | None, str, Floats]
ONCE = ("embedding", "final_norm", "logits")
SCORES_BYTES = 256_000_000
"""Bound on the score matrices in flight: heads are taken in groups that fit."""


def stage_names(dims: Dimensions) -> tuple[str, ...]:
    """The stages of one layer in order."""
    middle: tuple[str, ...] = ()
    if dims.qkv_bias:
        middle = ("q_biased", "k_biased", "v_biased")
    elif dims.qk_norm:
        middle = ("q_normed", "k_normed")
    return (
        "attn_norm", "q", "k", "v", *middle, "q_rope", "k_rope", "attention", "o", "attn_residual",
        "ffn_norm", "gate", "up", "swiglu", "down", "output",
    )  # fmt: skip


def stage_path(layer: int | None, stage: str) -> str:
    """Where a stage's array is kept, relative to the folder of a run."""
    return f"{stage}.npy" if layer is None else f"layer_{layer:02d}/{stage}.npy"


class Decomposition:
    """The model's stages from its weights. Holds nothing but the last layer's weights."""

    def __init__(self, dims: Dimensions, weights: WeightsSource) -> None:
        self.dims = dims
        self._weights = weights

    def stages(
        self, tokens: list[int], *, length: int | None = None, depth: int | None = None, logits: bool = True
    ) -> Iterator[Stage]:
        """Every stage from the embedding to the logits [1, vocab] of position length - 1.

        Raises:
            UnusableInput: a token outside the vocabulary, a prompt beyond the positions the config allows, a length
                beyond the prompt, or a tensor of another shape than the config says.
        """
        self._fits(tokens, length)
        hidden = self.embedding(tokens)
        yield None, "embedding", hidden
        for layer in range(min(depth or self.dims.layers, self.dims.layers)):
            for stage, array in self.block(layer, hidden):
                yield layer, stage, array
                if stage == "output":
                    hidden = array
        normed = self.final_norm(hidden)
        yield None, "final_norm", normed
        if logits:
            last = (length or len(tokens)) - 1
            yield None, "logits", self.logits(normed[last : last + 1])

    def embedding(self, tokens: list[int]) -> Floats:
        """[seq, emb]."""
        table = self._weights.tensor("model.embed_tokens.weight")
        self._shaped("model.embed_tokens.weight", table, (self.dims.vocab, self.dims.emb))
        return np.asarray(table[np.asarray(tokens)], np.float32)

    def block(self, layer: int, hidden: Floats, first_position: int = 0) -> Iterator[tuple[str, Floats]]:
        """One layer's stages in order, from its input [seq, emb] at positions from `first_position`."""
        dims = self.dims
        normed = self._norm(hidden, self._matrix(layer, "input_layernorm", (dims.emb,)))
        yield "attn_norm", normed
        made: dict[str, Floats] = {}
        for part, width in (("q", dims.q_dim), ("k", dims.kv_dim), ("v", dims.kv_dim)):
            made[part] = normed @ self._matrix(layer, f"self_attn.{part}_proj", (width, dims.emb)).T
            yield part, made[part]
        if dims.qkv_bias:
            for part, width in (("q", dims.q_dim), ("k", dims.kv_dim), ("v", dims.kv_dim)):
                made[part] = made[part] + self._vector(layer, f"self_attn.{part}_proj.bias", width)
                yield f"{part}_biased", made[part]
        if dims.qk_norm:
            for part in ("q", "k"):
                weight = self._matrix(layer, f"self_attn.{part}_norm", (dims.head_dim,))
                made[part] = _flat(self._norm(self._heads(made[part]), weight))
                yield f"{part}_normed", made[part]
        cosine, sine = rotation(dims, np.arange(first_position, first_position + len(hidden)))
        for part in ("q", "k"):
            made[part] = _flat(rotate(self._heads(made[part]), cosine, sine))
            yield f"{part}_rope", made[part]
        attended = attend(self._heads(made["q"]), self._heads(made["k"]), self._heads(made["v"]))
        made.clear()
        yield "attention", attended
        o = attended @ self._matrix(layer, "self_attn.o_proj", (dims.emb, dims.q_dim)).T
        yield "o", o
        residual = hidden + o
        yield "attn_residual", residual
        yield from self._ffn(layer, residual)

    def _ffn(self, layer: int, residual: Floats) -> Iterator[tuple[str, Floats]]:
        emb, wide = self.dims.emb, self.dims.hidden
        normed = self._norm(residual, self._matrix(layer, "post_attention_layernorm", (emb,)))
        yield "ffn_norm", normed
        gate = normed @ self._matrix(layer, "mlp.gate_proj", (wide, emb)).T
        yield "gate", gate
        up = normed @ self._matrix(layer, "mlp.up_proj", (wide, emb)).T
        yield "up", up
        gated = silu(gate) * up
        yield "swiglu", gated
        down = gated @ self._matrix(layer, "mlp.down_proj", (emb, wide)).T
        yield "down", down
        yield "output", residual + down

    def final_norm(self, hidden: Floats) -> Floats:
        """[seq, emb], ready for the head."""
        weight = np.asarray(self._weights.tensor("model.norm.weight"), np.float32)
        self._shaped("model.norm.weight", weight, (self.dims.emb,))
        return self._norm(hidden, weight)

    def logits(self, normed: Floats) -> Floats:
        """[rows, vocab]; the head is the embedding where the config ties them."""
        name = "model.embed_tokens.weight" if self.dims.tied else "lm_head.weight"
        head = self._weights.tensor(name)
        self._shaped(name, head, (self.dims.vocab, self.dims.emb))
        rows = 16384  # converted piece by piece: a whole f32 copy of a head is over a gigabyte
        return np.concatenate(
            [normed @ np.asarray(head[at : at + rows], np.float32).T for at in range(0, len(head), rows)], axis=1
        )

    def _norm(self, x: Floats, weight: Floats) -> Floats:
        square = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float32)
        return weight * (x / np.sqrt(square + np.float32(self.dims.norm_eps)))

    def _heads(self, flat: Floats) -> Floats:
        return flat.reshape(len(flat), -1, self.dims.head_dim)

    def _matrix(self, layer: int, name: str, shape: tuple[int, ...]) -> Floats:
        full = f"model.layers.{layer}.{name}.weight"
        found = self._weights.tensor(full)
        self._shaped(full, found, shape)
        return np.asarray(found, np.float32)

    def _vector(self, layer: int, name: str, width: int) -> Floats:
        full = f"model.layers.{layer}.{name}"
        found = self._weights.tensor(full)
        self._shaped(full, found, (width,))
        return np.asarray(found, np.float32)

    def _shaped(self, name: str, found: NDArray[Any], shape: tuple[int, ...]) -> None:
        if found.shape != shape:
            raise UnusableInput(
                f"the weights contradict the config: {name} is {list(found.shape)}, the config says {list(shape)}"
            )

    def _fits(self, tokens: list[int], length: int | None) -> None:
        worst = max(tokens, default=-1)
        if not tokens or worst >= self.dims.vocab or min(tokens) < 0:
            raise UnusableInput(f"token {worst} is outside the vocabulary of {self.dims.vocab}")
        if self.dims.max_positions and len(tokens) > self.dims.max_positions:
            raise UnusableInput(f"{len(tokens)} tokens are more than the {self.dims.max_positions} the config allows")
        if length is not None and not 1 <= length <= len(tokens):
            raise UnusableInput(f"length {length} is not within the {len(tokens)} tokens given")


def attend(queries: Floats, keys: Floats, values: Floats) -> Floats:
    """Causal attention, heads sharing keys in groups: [seq, heads, dim], [seq, kv, dim] twice → [seq, heads · dim]."""
    seq, heads, dim = queries.shape
    group = heads // keys.shape[1]
    hidden = np.triu(np.ones((seq, seq), np.bool_), 1)
    out = np.empty((seq, heads, dim), np.float32)
    at_once = max(1, SCORES_BYTES // (4 * seq * seq))
    scale = np.float32(1 / np.sqrt(dim))
    for first in range(0, heads, at_once):
        wanted = list(range(first, min(heads, first + at_once)))
        shared = [head // group for head in wanted]
        q = queries[:, wanted].transpose(1, 0, 2)
        k = keys[:, shared].transpose(1, 2, 0)
        v = values[:, shared].transpose(1, 0, 2)
        scores = (q @ k) * scale
        scores[:, hidden] = -np.inf
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        out[:, wanted] = (scores @ v).transpose(1, 0, 2)
    return out.reshape(seq, heads * dim)


def silu(x: Floats) -> Floats:
    """x · sigmoid(x), without overflow where x is very negative."""
    return x / (np.float32(1) + np.exp(np.minimum(-x, np.float32(88))))


def _flat(heads: Floats) -> Floats:
    return heads.reshape(len(heads), -1)
