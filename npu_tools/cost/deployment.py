"""How a decoder-only model runs on the NPU: the ELF calls of one layer, prefill and decode, as data.

    calls = prefill_calls(dims, 2048)
    [call.name for call in calls]        # ["rms_gemms_rope", "flash_attn", "o_ffn"]

One ELF call is one dispatch with one or more launches. host_bytes are what the host copies in and out
of it, activations only (weights stay resident). Source: Xilinx/mlir-air llms/*/ARCHITECTURE.md and
llms/shared/builders; where a choice is a rule of thumb its docstring says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npu_tools.architectures import Dimensions
from npu_tools.cost.defaults import default_settings, padded

SEQ_MULTIPLE = 256
"""Prompts are padded so that a GEMM's rows fill eight columns of tile_m 32."""
CASCADE_ROWS = 4
LM_ROWS, LM_ROWS_NARROW, LM_PARTITIONS = 16384, 8192, 8
GEMV_TILING = 16
"""runtime_loop_tiling_sizes of the Llama topology's decode ELFs; the Qwen ones set none."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: a kernel with its shape and settings; `label` says which projection or step it is."""

    kernel: str
    shape: Mapping[str, int]
    settings: Mapping[str, int | str]
    label: str


@dataclass(frozen=True, slots=True)
class ElfCall:
    """One dispatch. host_bytes: copied between host and buffers at each call."""

    name: str
    launches: tuple[Launch, ...]
    host_bytes: int = 0


def plain(dims: Dimensions) -> bool:
    """The Llama topology: no bias and no norm on queries and keys."""
    return not dims.qkv_bias and not dims.qk_norm


def _launch(kernel: str, label: str, settings: Mapping[str, int | str] | None = None, **shape: int) -> Launch:
    return Launch(kernel, shape, {**default_settings(kernel, shape), **(settings or {})}, label)


def _gemm(label: str, m: int, k: int, n: int) -> Launch:
    """A projection in a stitched ELF: no runtime loop tiling; N padded to the herd's narrowest tile."""
    return _launch("gemm", label, {"runtime_tiling": 0}, M=m, K=k, N=padded(n, 64))


def prefill_calls(dims: Dimensions, seq_len: int) -> list[ElfCall]:
    """One layer's ELF calls at `seq_len` tokens (padded to 256)."""
    seq = padded(seq_len, SEQ_MULTIPLE)
    emb, q, kv, item = dims.emb, dims.q_dim, dims.kv_dim, 2
    first = [
        _launch("rmsnorm", "norm", rows=seq, cols=emb),
        _gemm("q", seq, emb, q),
        _gemm("k", seq, emb, kv),
        _gemm("v", seq, emb, kv),
    ]
    name = "rms_gemms_rope"
    if dims.qkv_bias:
        name = "rms_qkv_bias_rope"
        first += [
            _launch("eltwise_add", f"{part} bias", n=seq * width)
            for part, width in zip("qkv", (q, kv, kv), strict=True)
        ]
    if dims.qk_norm:
        name = "rms_qkv_qknorm_rope"
        first += [
            _launch("rmsnorm", "q norm", rows=seq * dims.heads, cols=dims.head_dim),
            _launch("rmsnorm", "k norm", rows=seq * dims.kv_heads, cols=dims.head_dim),
        ]
    first += [
        _launch("rope", "q rope", rows=seq * dims.heads, head_dim=dims.head_dim),
        _launch("rope", "k rope", rows=seq * dims.kv_heads, head_dim=dims.head_dim),
    ]
    attention = _launch(
        "flash_attention",
        "attention",
        seq_q=seq,
        seq_kv=seq,
        head_dim=dims.head_dim,
        heads=padded(dims.heads, 2),
        kv_heads=dims.kv_heads if dims.heads % 2 == 0 else padded(dims.heads, 2),
        causal=1,
    )
    transposes = 2 if dims.head_dim > 64 else 1
    calls = [
        ElfCall(name, tuple(first), item * seq * (emb + q + 2 * kv)),
        ElfCall("flash_attn", (attention,), item * seq * (2 * q + 2 * kv) * transposes),
    ]
    return calls + _ffn_calls(dims, seq)


def _ffn_calls(dims: Dimensions, seq: int) -> list[ElfCall]:
    """After attention: one ELF where the hidden width is 1024-aligned and ≤ 8192, else split (rule of thumb).

    Source of the splits: hidden 4864 two ELFs, 8960 four with gate and up in one, 9728 and 11008 five.
    """
    emb, q, hidden, item = dims.emb, dims.q_dim, dims.hidden, 2
    out = [
        _gemm("o", seq, q, emb),
        _launch("eltwise_add", "attention residual", n=seq * emb),
        _launch("rmsnorm", "ffn norm", rows=seq, cols=emb),
    ]
    gate, up = _gemm("gate", seq, emb, hidden), _gemm("up", seq, emb, hidden)
    act = _launch("silu_mul", "swiglu", n=seq * hidden)
    down = (_gemm("down", seq, hidden, emb), _launch("eltwise_add", "ffn residual", n=seq * emb))
    if hidden % 1024 == 0 and hidden <= 8192:
        return [ElfCall("o_ffn", (*out, gate, up, act, *down), item * seq * (q + 2 * emb))]
    if hidden < 8192:
        return [
            ElfCall("o_ffn_head", (*out, gate, up, act), item * seq * (q + 2 * emb + hidden)),
            ElfCall("down_add", down, item * seq * (hidden + 2 * emb)),
        ]
    head = ElfCall("o_res_norm", tuple(out), item * seq * (q + 3 * emb))
    tail = [
        ElfCall("swiglu", (act,), item * seq * 3 * hidden),
        ElfCall("down_add", down, item * seq * (hidden + 2 * emb)),
    ]
    if hidden <= 9216:
        return [head, ElfCall("gate_up", (gate, up), item * seq * (emb + 2 * hidden)), *tail]
    each = item * seq * (emb + hidden)
    return [head, ElfCall("gate", (gate,), each), ElfCall("up", (up,), each), *tail]


def _gemv(label: str, m: int, k: int, tiling: int) -> Launch:
    """A decode projection; M padded to the herd."""
    return _launch("gemv", label, {"runtime_tiling": tiling}, M=padded(m, 64), K=k)


def fused_decode(dims: Dimensions) -> bool:
    """Whether O, gate, up and down run as one cascade: at most four cascade rows of 512 and K a multiple of 512."""
    return dims.emb < 512 * (CASCADE_ROWS + 1) and dims.hidden % 512 == 0 and dims.emb % 512 == 0


def decode_calls(dims: Dimensions) -> list[ElfCall]:
    """One layer's ELF calls for one token; attention runs on the CPU between the first two."""
    emb, q, kv, hidden, item = dims.emb, dims.q_dim, dims.kv_dim, dims.hidden, 2
    tiling = GEMV_TILING if plain(dims) else 0
    first = [
        _launch("rmsnorm", "norm", rows=1, cols=emb),
        _gemv("q", q, emb, tiling),
        _gemv("k", kv, emb, tiling),
        _gemv("v", kv, emb, tiling),
    ]
    if dims.qkv_bias:
        first += [
            _launch("eltwise_add", f"{part} bias", n=width) for part, width in zip("qkv", (q, kv, kv), strict=True)
        ]
    if dims.qk_norm:
        first += [
            _launch("rmsnorm", "q norm", rows=dims.heads, cols=dims.head_dim),
            _launch("rmsnorm", "k norm", rows=dims.kv_heads, cols=dims.head_dim),
        ]
    first += [
        _launch("rope", "q rope", rows=dims.heads, head_dim=dims.head_dim),
        _launch("rope", "k rope", rows=dims.kv_heads, head_dim=dims.head_dim),
    ]
    calls = [ElfCall("rms_gemv_rope", tuple(first), item * (emb + 2 * q + 3 * kv))]
    if fused_decode(dims):
        # three launches: O with its residual; norm, gate, up and SwiGLU; down with its residual
        cascade = (
            _gemv("o", emb, q, GEMV_TILING),
            _gemv("gate and up", 2 * hidden, emb, GEMV_TILING),
            _gemv("down", emb, hidden, GEMV_TILING),
        )
        return [*calls, ElfCall("o_gemv_ffn", cascade, item * (q + 2 * emb))]
    return [
        *calls,
        ElfCall("o_gemv", (_gemv("o", emb, q, 0),), item * (q + emb)),
        ElfCall("gate_gemv", (_gemv("gate", hidden, emb, 0),), item * (emb + hidden)),
        ElfCall("up_gemv", (_gemv("up", hidden, emb, 0),), item * (emb + hidden)),
        ElfCall("down_gemv", (_gemv("down", emb, hidden, 0),), item * (hidden + emb)),
    ]


def lm_head_call(dims: Dimensions) -> ElfCall:
    """The LM head on one row: 8 × 16384 rows of the shared module (more if the vocabulary needs it), else 8192 each."""
    rows = LM_ROWS if plain(dims) else LM_ROWS_NARROW
    count = -(-dims.vocab // rows)
    count, tiling = (max(LM_PARTITIONS, count), GEMV_TILING) if plain(dims) else (count, 0)
    launches = tuple(_gemv(f"lm head {part}", rows, dims.emb, tiling) for part in range(count))
    return ElfCall("lm_head_gemv", launches, 2 * (dims.emb + count * rows))
