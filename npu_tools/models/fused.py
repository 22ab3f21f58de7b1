"""The plan in few dispatches: the ELFs upstream runs a layer with (mlir-air llms/README.md @ e972f2942, and each model's
ARCHITECTURE.md), with our fused recipes.

Prefill: everything up to the rotation, FlashAttention, everything behind it in one ELF, or in two, four or five where
the hidden width is beyond what one was built for. Decode: one ELF before attention, one behind it, or four projections
with the residuals, the norm and the activation on the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from npu_tools.architectures import Dimensions
from npu_tools.models.plan import UPSTREAM, Step, gemv, host_attention, prefill_attention

WHOLE_HIDDEN, PAIRED_HIDDEN = 8192, 9216
"""Hidden widths up to which the FFN is one ELF (multiples of 1024) or two, and up to which gate and up share one."""
DECODE_EMB, DECODE_HIDDEN = 2560, 512
"""The FFN of a token is one ELF below this width and for multiples of that hidden width."""


def fused_prefill(dims: Dimensions, seq: int) -> tuple[Step, ...]:
    """A layer's ELFs for a prompt."""
    return (_first(dims, seq), prefill_attention(dims, seq), *_ffn(dims, seq))


def fused_decode(dims: Dimensions) -> tuple[Step, ...]:
    """A layer's ELFs, and what the host does between them, for a token."""
    behind = _decode_ffn(dims) if decodes_in_two(dims) else _decode_apart(dims)
    return (_first(dims, None), host_attention(dims), *behind)


def decodes_in_two(dims: Dimensions) -> bool:
    """Whether a token's layer is two ELFs."""
    return dims.emb < DECODE_EMB and dims.hidden % DECODE_HIDDEN == 0


def _first(dims: Dimensions, seq: int | None) -> Step:
    """Norm, Q, K, V, what the family does to them, and the rotation; of one token where `seq` is None."""
    middle, ends = "", "" if seq is None else ".T"
    stages = {"normed": "attn_norm", "q": "q", "k": "k", "v": "v"}
    weights = {"norm_weight": "input_layernorm.weight"}
    weights |= {f"w{part}": f"self_attn.{part}_proj.weight{ends}" for part in "qkv"}
    if dims.qkv_bias:
        middle = "bias_"
        weights |= {f"{part}_bias": f"self_attn.{part}_proj.bias" for part in "qkv"}
        stages |= {f"{part}_biased": f"{part}_biased" for part in "qkv"}
    elif dims.qk_norm:
        middle = "qknorm_"
        weights |= {f"{part}_norm_weight": f"self_attn.{part}_norm.weight" for part in "qk"}
        stages |= {f"{part}_normed": f"{part}_normed" for part in "qk"}
    if middle:
        name = f"rms_qkv_{middle}rope" if seq is not None else f"rms_qkv_{middle}rope_gemv"
    else:
        name = "rms_gemms_rope" if seq is not None else "rms_gemv_rope"
    shape = {"emb": dims.emb, "kv_dim": dims.kv_dim}
    return Step(
        name, name, shape if seq is None else {"seq": seq, **shape},
        {"heads": dims.heads, "kv_heads": dims.kv_heads, "head_dim": dims.head_dim, "eps": dims.norm_eps},
        {"x": "hidden", "table_q": "q_angles", "table_k": "k_angles"}, weights,
        {**stages, "q_rope": "q_rope", "k_rope": "k_rope"},
    )  # fmt: skip


_O = {"o": "o", "summed": "attn_residual", "normed": "ffn_norm"}
_GATED = {"gate": "gate", "up": "up"}
_DOWN = {"down": "down", "out": "output"}
_AFTER = {"attention": "attention", "residual": "hidden"}


def _weights(ends: str, *parts: str) -> dict[str, str]:
    known = {
        "wo": f"self_attn.o_proj.weight{ends}", "norm_weight": "post_attention_layernorm.weight",
        "w_gate": f"mlp.gate_proj.weight{ends}", "w_up": f"mlp.up_proj.weight{ends}",
        "w_down": f"mlp.down_proj.weight{ends}",
    }  # fmt: skip
    return {part: known[part] for part in parts}


def _ffn(dims: Dimensions, seq: int) -> Iterator[Step]:
    """What stands behind attention in prefill."""
    emb, hidden = dims.emb, dims.hidden
    wide: Mapping[str, int] = {"seq": seq, "emb": emb, "hidden": hidden}
    said: dict[str, Any] = {"q_dim": dims.q_dim, "eps": dims.norm_eps}
    before = ("wo", "norm_weight")
    gates = ("w_gate", "w_up")
    whole = {**_O, **_GATED, "swiglu": "swiglu"}
    if hidden % 1024 == 0 and hidden <= WHOLE_HIDDEN:
        weights = _weights(".T", *before, *gates, "w_down")
        yield Step("o_ffn", "o_ffn", wide, said, _AFTER, weights, {**whole, **_DOWN})
        return
    if hidden < WHOLE_HIDDEN:
        yield Step("o_ffn_head", "o_ffn_head", wide, said, _AFTER, _weights(".T", *before, *gates), whole)
    else:
        yield Step("o_res_norm", "o_res_norm", {"seq": seq, "emb": emb}, said, _AFTER, _weights(".T", *before), _O)
        if hidden <= PAIRED_HIDDEN:
            yield Step("gate_up", "gate_up", wide, {}, {"normed": "ffn_norm"}, _weights(".T", *gates), _GATED)
        else:
            for part in ("gate", "up"):
                yield Step(
                    part, "gemm", {"M": seq, "K": emb, "N": hidden}, {}, {"A": "ffn_norm"},
                    {"B": f"mlp.{part}_proj.weight.T"}, {"C": part},
                )  # fmt: skip
        yield Step("swiglu", "silu_mul", {"n": seq * hidden}, {}, {"gate": "gate", "up": "up"}, {}, {"y": "swiglu"})
    yield Step(
        "down_add", "down_add", {"seq": seq, "hidden": hidden, "emb": emb}, {},
        {"swiglu": "swiglu", "residual": "attn_residual"}, _weights(".T", "w_down"), _DOWN,
    )  # fmt: skip


def _decode_ffn(dims: Dimensions) -> Iterator[Step]:
    yield Step(
        "o_gemv_ffn", "o_gemv_ffn", {"emb": dims.emb, "hidden": dims.hidden},
        {"q_dim": dims.q_dim, "eps": dims.norm_eps}, _AFTER,
        _weights("", "wo", "norm_weight", "w_gate", "w_up", "w_down"),
        {**_O, **_GATED, "swiglu": "swiglu", **_DOWN},
    )  # fmt: skip


def _decode_apart(dims: Dimensions) -> Iterator[Step]:
    """Four projections, and the rest on the host."""
    emb, hidden = dims.emb, dims.hidden

    def on_host(
        name: str, does: str, inputs: Mapping[str, str], output: str, weights: Mapping[str, str] | None = None
    ) -> Step:
        why = f"one row: upstream's five-ELF decode keeps it on the CPU ({UPSTREAM})"
        settings = {"eps": dims.norm_eps} if does == "rms_norm" else {}
        return Step(name, does, {"n": emb}, settings, inputs, weights or {}, {output: name}, "host", why)

    yield gemv("o", "attention", emb, dims.q_dim, "self_attn.o_proj.weight")
    yield on_host("attn_residual", "add", {"a": "hidden", "b": "o"}, "c")
    yield on_host(
        "ffn_norm", "rms_norm", {"x": "attn_residual"}, "y", {"weight": "post_attention_layernorm.weight"}
    )  # fmt: skip
    yield gemv("gate", "ffn_norm", hidden, emb, "mlp.gate_proj.weight")
    yield gemv("up", "ffn_norm", hidden, emb, "mlp.up_proj.weight")
    yield on_host("swiglu", "silu_mul", {"gate": "gate", "up": "up"}, "y")
    yield gemv("down", "swiglu", emb, hidden, "mlp.down_proj.weight")
    yield on_host("output", "add", {"a": "attn_residual", "b": "down"}, "c")
