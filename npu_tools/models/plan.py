"""A model as steps: which kernel makes which stage, of which shape, from which stages and weights.

    plan = plan_model(dims, 2048, fused=False)
    [step.name for step in plan.prefill]        # attn_norm, q, k, v, q_rope, k_rope, attention, o, …

A stage is an array [seq, width], heads side by side, and has the same name in the runner, the oracle and the gates. Of
a layer `hidden` is what goes in. The tables of angles are stages too: `q_angles` and `k_angles`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from npu_tools.architectures import Dimensions
from npu_tools.errors import UnusableInput

Phase = Literal["prefill", "decode", "head"]
Fused = bool | Literal["prefill", "decode"]
"""Whether kernels run as fused ELFs: all, none, or those of one half."""
GRANULE = 64
"""Prompts are padded to a multiple of this: a tile of FlashAttention's queries and keys."""
UPSTREAM = "mlir-air llms/README.md @ e972f2942"


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch. `inputs` and `outputs` are stages, `weights` the ends of Hugging Face's names (".T" transposed),
    all by the recipe's tensors. On the host `recipe` is a function of host.py."""

    name: str
    recipe: str
    shape: Mapping[str, int]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    weights: Mapping[str, str] = field(default_factory=dict[str, str])
    outputs: Mapping[str, str] = field(default_factory=dict[str, str])
    where: Literal["npu", "host"] = "npu"
    why: str = ""

    @property
    def extents(self) -> str:
        """The shape as the command line has it."""
        return "x".join(str(extent) for extent in self.shape.values())


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The steps of one layer in prefill and in decode, and of the head, which runs once a token."""

    dims: Dimensions
    seq_len: int
    fused: Fused
    prefill: tuple[Step, ...]
    decode: tuple[Step, ...]
    head: tuple[Step, ...]

    def steps(self) -> Iterator[tuple[Phase, Step]]:
        """All of them, with their phase."""
        for step in self.prefill:
            yield "prefill", step
        for step in self.decode:
            yield "decode", step
        for step in self.head:
            yield "head", step

    def kernels(self) -> list[tuple[Phase, Step]]:
        """The distinct kernels and shapes that run on the NPU, each at its first step."""
        seen: set[tuple[Any, ...]] = set()
        found: list[tuple[Phase, Step]] = []
        for phase, step in self.steps():
            key = (step.recipe, *step.shape.items(), *sorted((k, str(v)) for k, v in step.settings.items()))
            if step.where == "npu" and key not in seen:
                seen.add(key)
                found.append((phase, step))
        return found


def plan_model(dims: Dimensions, seq_len: int, *, fused: Fused = False) -> ModelPlan:
    """The plan for prompts padded to `seq_len`, in leaf kernels or in fused ELFs, or one half so and the other so.

    Raises:
        UnusableInput: a length that is no multiple of 64, or beyond the model's positions.
    """
    if seq_len < GRANULE or seq_len % GRANULE:
        raise UnusableInput(f"seq_len is {seq_len}; prompts are padded to a multiple of {GRANULE}, at least {GRANULE}")
    if dims.max_positions and seq_len > dims.max_positions:
        raise UnusableInput(f"seq_len is {seq_len}; the model has {dims.max_positions} positions")
    if dims.head_dim % 16:
        raise UnusableInput(f"head_dim is {dims.head_dim}; the rope kernel turns heads of a multiple of 16")
    from npu_tools.models.fused import fused_decode, fused_prefill  # which is built from this module's steps

    prefill = fused_prefill(dims, seq_len) if fused in (True, "prefill") else tuple(_prefill(dims, seq_len))
    decode = fused_decode(dims) if fused in (True, "decode") else tuple(_decode(dims))
    return ModelPlan(dims, seq_len, fused, prefill, decode, _head(dims))


def middle_stages(dims: Dimensions) -> tuple[str, str, str]:
    """What the rotation and the cache take of Q, K and V: after bias and norm where there are any."""
    if dims.qk_norm:
        return "q_normed", "k_normed", "v"
    return ("q_biased", "k_biased", "v_biased") if dims.qkv_bias else ("q", "k", "v")


def norm(name: str, source: str, rows: int, dims: Dimensions, weight: str) -> Step:
    """An RMSNorm of the residual stream."""
    return Step(
        name, "rmsnorm", {"M": rows, "N": dims.emb}, {"eps": dims.norm_eps},
        {"x": source}, {"weight": weight}, {"y": name},
    )  # fmt: skip


def _prefill(dims: Dimensions, seq: int) -> Iterator[Step]:
    def gemm(name: str, source: str, k: int, n: int, weight: str) -> Step:
        shape = {"M": seq, "K": k, "N": n}
        return Step(name, "gemm", shape, {}, {"A": source}, {"B": f"{weight}.T"}, {"C": name})

    emb, q, kv, hidden = dims.emb, dims.q_dim, dims.kv_dim, dims.hidden
    yield norm("attn_norm", "hidden", seq, dims, "input_layernorm.weight")
    for part, width in (("q", q), ("k", kv), ("v", kv)):
        yield gemm(part, "attn_norm", emb, width, f"self_attn.{part}_proj.weight")
    yield from _heads(dims, seq)
    yield prefill_attention(dims, seq)
    yield gemm("o", "attention", q, emb, "self_attn.o_proj.weight")
    yield residual("attn_residual", "hidden", "o", seq * emb)
    yield norm("ffn_norm", "attn_residual", seq, dims, "post_attention_layernorm.weight")
    yield gemm("gate", "ffn_norm", emb, hidden, "mlp.gate_proj.weight")
    yield gemm("up", "ffn_norm", emb, hidden, "mlp.up_proj.weight")
    yield Step("swiglu", "silu_mul", {"n": seq * hidden}, {}, {"gate": "gate", "up": "up"}, {}, {"y": "swiglu"})
    yield gemm("down", "swiglu", hidden, emb, "mlp.down_proj.weight")
    yield residual("output", "attn_residual", "down", seq * emb)


def _decode(dims: Dimensions) -> Iterator[Step]:
    emb, q, kv, hidden = dims.emb, dims.q_dim, dims.kv_dim, dims.hidden
    yield norm("attn_norm", "hidden", 1, dims, "input_layernorm.weight")
    for part, width in (("q", q), ("k", kv), ("v", kv)):
        yield gemv(part, "attn_norm", width, emb, f"self_attn.{part}_proj.weight")
    yield from _heads(dims, 1)
    yield host_attention(dims)
    yield gemv("o", "attention", emb, q, "self_attn.o_proj.weight")
    yield residual("attn_residual", "hidden", "o", emb)
    yield norm("ffn_norm", "attn_residual", 1, dims, "post_attention_layernorm.weight")
    yield gemv("gate", "ffn_norm", hidden, emb, "mlp.gate_proj.weight")
    yield gemv("up", "ffn_norm", hidden, emb, "mlp.up_proj.weight")
    yield Step("swiglu", "silu_mul", {"n": hidden}, {}, {"gate": "gate", "up": "up"}, {}, {"y": "swiglu"})
    yield gemv("down", "swiglu", emb, hidden, "mlp.down_proj.weight")
    yield residual("output", "attn_residual", "down", emb)


def _heads(dims: Dimensions, rows: int) -> Iterator[Step]:
    """Bias, norm and rotation of Q and K (and V's bias), alike in prefill and decode."""
    names = {"q": "q", "k": "k", "v": "v"}
    if dims.qkv_bias:
        for part, width in (("q", dims.q_dim), ("k", dims.kv_dim), ("v", dims.kv_dim)):
            names[part] = f"{part}_biased"
            yield Step(
                names[part], "qkv_bias", {"seq": rows, "cols": width}, {},
                {"x": part}, {"bias": f"self_attn.{part}_proj.bias"}, {"y": names[part]},
            )  # fmt: skip
    counts = {"q": dims.heads, "k": dims.kv_heads}
    if dims.qk_norm:
        for part, heads in counts.items():
            names[part] = f"{part}_normed"
            yield Step(
                names[part], "qk_norm", {"rows": rows * heads, "head_dim": dims.head_dim}, {"eps": dims.norm_eps},
                {"x": part}, {"weight": f"self_attn.{part}_norm.weight"}, {"y": names[part]},
            )  # fmt: skip
    for part, heads in counts.items():
        yield Step(
            f"{part}_rope", "rope", {"rows": rows * heads, "head_dim": dims.head_dim}, {},
            {"x": names[part], "table": f"{part}_angles"}, {}, {"y": f"{part}_rope"},
        )  # fmt: skip


def gemv(name: str, source: str, rows: int, depth: int, weight: str) -> Step:
    """A projection of one token."""
    return Step(name, "gemv", {"M": rows, "K": depth}, {}, {"b": source}, {"A": weight}, {"c": name})


def residual(name: str, left: str, right: str, count: int) -> Step:
    """An addition to the residual stream."""
    return Step(name, "eltwise_add", {"n": count}, {}, {"a": left, "b": right}, {}, {"c": name})


def prefill_attention(dims: Dimensions, seq: int) -> Step:
    """FlashAttention of a prompt."""
    return Step(
        "attention", "flash_attention",
        {"lq": seq, "lk": seq, "heads": dims.heads, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim},
        {"causal": True}, {"q": "q_rope", "k": "k_rope", "v": middle_stages(dims)[2]}, {}, {"out": "attention"},
    )  # fmt: skip


def host_attention(dims: Dimensions) -> Step:
    """Attention of one token over the cache."""
    return Step(
        "attention", "attend", {"heads": dims.heads, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim}, {},
        {"q": "q_rope", "k": "k_rope", "v": middle_stages(dims)[2]}, {}, {"out": "attention"}, "host",
        f"one query against a growing cache: upstream keeps it on the CPU ({UPSTREAM})",
    )  # fmt: skip


def _head(dims: Dimensions) -> tuple[Step, ...]:
    return (
        Step(
            "final_norm", "rms_norm", {"M": 1, "N": dims.emb}, {"eps": dims.norm_eps},
            {"x": "hidden"}, {"weight": "model.norm.weight"}, {"y": "final_norm"}, "host",
            f"once a token, 1 row: upstream keeps it on the CPU ({UPSTREAM})",
        ),
        Step(
            "logits", "lm_head_gemv", {"vocab": dims.vocab, "emb": dims.emb}, {},
            {"x": "final_norm"}, {"weight": "lm_head.weight"}, {"logits": "logits"},
        ),
    )  # fmt: skip
