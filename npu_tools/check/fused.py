"""Multi-launch ELFs: which kernels upstream's builders stitch into one, and what the stitching itself forbids.

A builder's launches are ordinary kernels, each checked by its own rules; here are only the rules of the whole
(Xilinx/mlir-air programming_examples/llms/shared/builders/*.py @ e972f2942).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from npu_tools.architectures import Dimensions
from npu_tools.check import attention, elementwise, gemm, gemv, rowwise
from npu_tools.check.measured import gemm_row
from npu_tools.check.search import Case
from npu_tools.check.settings import Settings, Value
from npu_tools.device import Device
from npu_tools.findings import Finding

BUILDERS = "Xilinx/mlir-air programming_examples/llms/shared/builders"
SCALING = "tonyjie/mlir-air programming_examples/_llm_shared/docs/multi-launch/compiler_scaling.md @ 7267eb8b"
README = "Xilinx/mlir-air programming_examples/llms/README.md @ e972f2942"
FUSED_FFN_WIDTH = 1024
"""The fused FFN of prefill ships for hidden sizes that are multiples of this; 4864, 8960, 9728 and 11008 are split."""
FUSED_FFN_MOST = 8192
"""The widest hidden size it ships for; 11264, a multiple of 1024 too, exhausted the BDs or hung."""
GATE_UP_MOST = 8960
"""The widest hidden size with gate and up in one ELF; 9728 and 11008 have one ELF each."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of an ELF, by its part in the model."""

    role: str
    kernel: str
    case: Case


@dataclass(frozen=True, slots=True)
class Elf:
    """One ELF: its launches in order, and findings of the whole. Satisfies Case, with nothing of its own to tune."""

    name: str
    extents: tuple[int, ...]
    launches: tuple[Launch, ...]
    whole: tuple[Finding, ...] = field(default=())

    def shape(self) -> tuple[int, ...]:
        return self.extents

    def settings(self) -> dict[str, Value]:
        return {"launches": len(self.launches)}

    def figures(self, device: Device) -> dict[str, int]:
        """Launches with the casts, and the f32 scratch arguments: one a fused-cast GEMM, or its output stays zero."""
        del device
        casts = sum(_cast(launch) for launch in self.launches)
        return {"launches": len(self.launches) + casts, "f32_scratch_arguments": casts}

    def findings(self, device: Device) -> list[Finding]:
        return [*self.of_the_whole(), *(found for launch in self.launches for found in launch.case.findings(device))]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        yield from self.findings(device)

    def of_the_whole(self) -> list[Finding]:
        """What the stitching itself has to say."""
        return [*self.whole, *self._objects()]

    def _objects(self) -> Iterator[Finding]:
        """Kernels whose object files bake a tile size in, and that are linked under one name."""
        builds: dict[tuple[str, str], set[int]] = {}
        for launch in self.launches:
            if isinstance(launch.case, gemm.Gemm) and launch.case.method != "direct":
                builds.setdefault((f"mm.o of {launch.case.method}", "tile_n"), set()).add(launch.case.tile_n)
            elif isinstance(launch.case, gemv.Gemv):
                builds.setdefault(("mv.o", "tile_m"), set()).add(launch.case.tile_m)
        for (name, baked), sizes in builds.items():
            if len(sizes) > 1:
                listed = ", ".join(map(str, sorted(sizes)))
                yield Finding(
                    severity="note",
                    code="object_names",
                    message=f"{name} bakes in {baked}, and this ELF needs it for {listed}: one object for all gives "
                    "wrong values without a message",
                    op=self.name,
                    source=f"{BUILDERS}/gemm_builder.py (disambiguate_by_tile_n) @ e972f2942",
                    remedy=f"build one object a {baked}, with symbols renamed",
                )

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        del device
        return {}


def _cast(launch: Launch) -> bool:
    return isinstance(launch.case, gemm.Gemm) and launch.case.method == "fused-cast"


def project(role: str, m: int, k: int, n: int, device: Device) -> Launch:
    """A prefill projection. Stitched, a method fixes tile_m (64 fused-cast and direct, 32 drain); short contexts
    take fewer columns instead. Where only the direct path was measured, or high precision has no legal build, the
    direct one is taken, as upstream does for the widest FFNs."""
    tried: gemm.Gemm | None = None
    only_low = gemm_row(m, k, n, "bf16", "high") is None and gemm_row(m, k, n, "bf16", "low") is not None
    for precision in ("low", "high") if only_low else ("high", "low"):
        for tile_m in (None, 64, 32, 16):
            raw: dict[str, object] = {"precision": precision, "stitched": True}
            if tile_m:
                raw["tile_m"] = tile_m
            case = gemm.resolve((m, k, n), Settings(raw), device)
            tried = tried or case
            fixed = {"fused-cast": 64, "drain": 32}.get(case.method, case.tile_m)
            if case.tile_m == fixed and all(found.severity != "error" for found in case.findings(device)):
                return Launch(role, "gemm", case)
    assert tried is not None
    return Launch(role, "gemm", tried)


def multiply(role: str, m: int, k: int, device: Device) -> Launch:
    """A decode projection."""
    return Launch(role, "gemv", gemv.resolve((m, k), Settings({"loop_tiling": 16}), device))


def _norm(role: str, rows: int, width: int, device: Device, kernel: str = "rmsnorm") -> Launch:
    return Launch(role, kernel, rowwise.resolve(kernel, (rows, width), Settings(), device))


def _stream(role: str, kernel: str, extents: tuple[int, ...], device: Device) -> Launch:
    return Launch(role, kernel, elementwise.resolve(kernel, extents, Settings(), device))


def attention_input(model: Dimensions, seq: int, device: Device) -> Elf:
    """RMSNorm, Q, K, V, then biases or QK-norm, then RoPE, for `seq` tokens."""
    launches = [
        _norm("norm", seq, model.emb, device),
        project("q", seq, model.emb, model.q_dim, device),
        project("k", seq, model.emb, model.kv_dim, device),
        project("v", seq, model.emb, model.kv_dim, device),
        *_between(model, seq, device),
        _norm("rope q", seq * model.heads, model.head_dim, device, "rope"),
        _norm("rope k", seq * model.kv_heads, model.head_dim, device, "rope"),
    ]
    name = "rms_qkv_bias_rope" if model.qkv_bias else "rms_qkv_qknorm_rope" if model.qk_norm else "rms_gemms_rope"
    return Elf(name, (seq, model.emb, model.q_dim, model.kv_dim), tuple(launches), tuple(_widths(model, name)))


def attention_input_decode(model: Dimensions, device: Device) -> Elf:
    """The same for one token."""
    launches = [
        Launch("norm", "rmsnorm", rowwise.resolve("rmsnorm", (1, model.emb), Settings(), device)),
        multiply("q", model.q_dim, model.emb, device),
        multiply("k", model.kv_dim, model.emb, device),
        multiply("v", model.kv_dim, model.emb, device),
        *_between(model, 1, device),
        _norm("rope q", model.heads, model.head_dim, device, "rope"),
        _norm("rope k", model.kv_heads, model.head_dim, device, "rope"),
    ]
    name = "rms_gemv_rope"
    if model.qkv_bias or model.qk_norm:
        name = "rms_qkv_bias_rope_gemv" if model.qkv_bias else "rms_qkv_qknorm_rope_gemv"
    return Elf(name, (model.emb, model.q_dim, model.kv_dim), tuple(launches), tuple(_widths(model, name)))


def _between(model: Dimensions, seq: int, device: Device) -> list[Launch]:
    if model.qkv_bias:
        widths = (("bias q", model.q_dim), ("bias k", model.kv_dim), ("bias v", model.kv_dim))
        return [_norm(role, seq, width, device, "qkv_bias") for role, width in widths]
    if model.qk_norm:
        rows = (("norm q", model.heads), ("norm k", model.kv_heads))
        return [_norm(role, seq * heads, model.head_dim, device, "qk_norm") for role, heads in rows]
    return []


def _widths(model: Dimensions, name: str) -> list[Finding]:
    if model.family != "llama" or model.q_dim == model.emb:
        return []
    return [
        Finding(
            severity="error",
            code="q_dim",
            message=f"{name} takes heads*head_dim = emb, not {model.q_dim} and {model.emb}",
            diagnostic="AssertionError",
            source=f"{BUILDERS}/rms_gemv_rope_multi.py @ e972f2942",
            remedy="build the attention input as the Qwen3 builder does, which keeps q_dim apart from emb",
        )
    ]


def of_width(elf: Elf, kv_dim: int, model: Dimensions) -> Elf:
    """The ELF, refused where the heads it is built for do not make up the width it was asked for."""
    if model.kv_dim == kv_dim:
        return elf
    found = Finding(
        severity="error",
        code="kv_dim",
        message=f"{model.kv_heads} KV heads of {model.head_dim} are {model.kv_dim} wide, not {kv_dim}",
        diagnostic="AssertionError",
        op=elf.name,
        source=f"{BUILDERS}/rms_gemv_rope_multi.py @ e972f2942",
        remedy="give kv_heads and head_dim so that their product is kv_dim",
    )
    return replace(elf, whole=(*elf.whole, found))


def attend(model: Dimensions, seq: int, device: Device) -> Elf:
    """FlashAttention over the prompt, alone in its ELF: seq-first for heads of 64, head-first for wider ones."""
    extents = (seq, seq, model.heads, model.kv_heads, model.head_dim)
    case = attention.resolve(extents, Settings({"causal": True}), device)
    return Elf("flash_attn", extents, (Launch("attention", "flash_attention", case),))


def ffn(model: Dimensions, seq: int, device: Device) -> list[Elf]:
    """O projection, residuals, norm and SwiGLU FFN: one ELF where it fuses, else what upstream splits it into."""
    emb, hidden = model.emb, model.hidden
    head = [
        project("o", seq, model.q_dim, emb, device),
        _stream("add", "eltwise_add", (seq * emb,), device),
        _norm("norm", seq, emb, device),
    ]
    gate, up = project("gate", seq, emb, hidden, device), project("up", seq, emb, hidden, device)
    activation = _stream("swiglu", "silu_mul", (seq * hidden,), device)
    tail = [project("down", seq, hidden, emb, device), _stream("add down", "eltwise_add", (seq * emb,), device)]
    shape = (seq, emb, hidden)
    if fuses_ffn(hidden):
        return [Elf("o_ffn", shape, (*head, gate, up, activation, *tail))]
    first = Finding(
        severity="note",
        code="launch_order",
        message=f"down (k = {hidden}) must be the first launch of its ELF; later in one it gave NaN",
        op="down_add",
        source="Xilinx/mlir-air programming_examples/llms/qwen25_0_5b/ARCHITECTURE.md @ e972f2942",
        certain=False,
    )
    down = Elf("down_add", (seq, hidden, emb), tuple(tail), (first,))
    if hidden < FUSED_FFN_MOST:
        return [Elf("o_ffn_head", shape, (*head, gate, up, activation)), down]
    middle = [Elf("gate_up", shape, (gate, up))] if hidden <= GATE_UP_MOST else []
    middle = middle or [Elf("gate", shape, (gate,)), Elf("up", shape, (up,))]
    return [
        Elf("o_res_norm", (seq, model.q_dim, emb), tuple(head)),
        *middle,
        Elf("swiglu", (seq, hidden), (activation,)),
        down,
    ]


def ffn_piece(name: str, seq: int, emb: int, hidden: int, device: Device, q_dim: int | None = None) -> Elf:
    """One of the ELFs the FFN of prefill is split into, at any hidden size: o_ffn_head, o_res_norm, gate_up, down_add."""
    q = q_dim or emb
    head = (
        project("o", seq, q, emb, device),
        _stream("add", "eltwise_add", (seq * emb,), device),
        _norm("norm", seq, emb, device),
    )
    pair = (project("gate", seq, emb, hidden, device), project("up", seq, emb, hidden, device))
    if name == "o_res_norm":
        return Elf(name, (seq, emb), head)
    if name == "gate_up":
        return Elf(name, (seq, emb, hidden), pair)
    if name == "o_ffn_head":
        activation = _stream("swiglu", "silu_mul", (seq * hidden,), device)
        return Elf(name, (seq, emb, hidden), (*head, *pair, activation))
    tail = (project("down", seq, hidden, emb, device), _stream("add", "eltwise_add", (seq * emb,), device))
    return Elf(name, (seq, hidden, emb), tail)


def fuses_ffn(hidden: int) -> bool:
    """Whether the whole FFN of prefill fits one ELF."""
    return hidden % FUSED_FFN_WIDTH == 0 and hidden <= FUSED_FFN_MOST


def o_ffn(seq: int, emb: int, hidden: int, device: Device, q_dim: int | None = None) -> Elf:
    """The fused FFN as asked for, with the reason where upstream had to split it."""
    model = dimensions(emb=emb, hidden=hidden, heads=q_dim or emb, head_dim=1)
    parts = ffn(model, seq, device)
    launches = tuple(launch for elf in parts for launch in elf.launches)
    whole: list[Finding] = []
    if not fuses_ffn(hidden):
        whole.append(
            Finding(
                severity="error",
                code="fused_ffn",
                message=f"hidden = {hidden} does not fuse: o_ffn ships for multiples of {FUSED_FFN_WIDTH} up to "
                f"{FUSED_FFN_MOST}; wider or unaligned ones exhausted the BDs, overflowed L1, or gave NaN",
                diagnostic="Allocator exhausted available buffer descriptor IDs",
                source=README,
                remedy="split it as upstream does: " + ", ".join(elf.name for elf in parts),
                certain=False,
            )
        )
    return Elf("o_ffn", (seq, emb, hidden), launches, tuple(whole))


def fuses_decode(model: Dimensions) -> bool:
    """Whether the decode FFN fits one ELF: emb below 2560, and the k of both residual GEMVs a multiple of 512."""
    return model.emb < gemv.CASCADE_EMB_BELOW and model.q_dim % 512 == 0 and model.hidden % 512 == 0


def o_gemv_ffn(q_dim: int, emb: int, hidden: int, device: Device, form: str = "cascade") -> Elf:
    """The fused decode FFN: O with residual, RMSNorm with gate, up and SwiGLU, down with residual, over cascades; or as
    "leaves", eight plain launches, which upstream's builder had before #1631."""
    if form == "leaves":
        launches = (
            multiply("o", emb, q_dim, device),
            _stream("add", "eltwise_add", (emb,), device),
            _norm("norm", 1, emb, device),
            multiply("gate", hidden, emb, device),
            multiply("up", hidden, emb, device),
            _stream("swiglu", "silu_mul", (hidden,), device),
            multiply("down", emb, hidden, device),
            _stream("add down", "eltwise_add", (emb,), device),
        )
        return Elf("o_gemv_ffn", (emb, hidden), launches)
    launches = (
        Launch("o", "gemv_residual", gemv.resolve_residual((emb, q_dim), Settings(), device)),
        Launch("gate and up", "gemv_swiglu", gemv.resolve_swiglu((2 * hidden, emb), Settings(), device)),
        Launch("down", "gemv_residual", gemv.resolve_residual((emb, hidden), Settings(), device)),
    )
    return Elf("o_gemv_ffn", (emb, hidden), launches)


def ffn_decode(model: Dimensions, device: Device) -> list[Elf]:
    """The FFN of one token: fused, or four plain GEMVs with the rest on the CPU."""
    if fuses_decode(model):
        return [o_gemv_ffn(model.q_dim, model.emb, model.hidden, device)]
    emb, hidden = model.emb, model.hidden
    shapes = (
        ("o_gemv", emb, model.q_dim),
        ("gate_gemv", hidden, emb),
        ("up_gemv", hidden, emb),
        ("down_gemv", emb, hidden),
    )
    return [Elf(name, (m, k), (multiply(name, m, k, device),)) for name, m, k in shapes]


def lm_head(vocab: int, emb: int, device: Device, given: Settings | None = None) -> Elf:
    """The last token's logits: equal partitions of 16384 or 8192 rows, one launch each, the last padded with zeros.

    Upstream runs 8 x 16384 with ping-pong and the launch loop tiled by 16, and for a vocabulary past 131072 19 x 8192.
    """
    given = given or Settings()
    rows = given.integer("n_part", 16384 if vocab <= 8 * 16384 else 8192)
    count = given.integer("n_partitions", max(8 if rows == 16384 else 1, -(-vocab // rows)))
    raw: dict[str, object] = {"omit_pingpong": "", "loop_tiling": 16}
    for name in ("tile_m", "m_input", "herd_m"):
        if given.has(name):
            raw[name] = given.integer(name, 8)
    case = gemv.resolve((rows, emb), Settings(raw), device)
    whole: list[Finding] = []
    if rows * count < vocab:
        whole.append(
            Finding(
                severity="error",
                code="lm_head_rows",
                message=f"{count} partitions of {rows} rows hold {rows * count} of {vocab} tokens",
                source=f"{BUILDERS}/lm_head_gemv_multi.py @ e972f2942",
                remedy=f"take {-(-vocab // rows)} partitions of {rows}",
            )
        )
    elif rows * count > vocab:
        whole.append(
            Finding(
                severity="note",
                code="lm_head_padding",
                message=f"{rows * count - vocab} padded rows of zeros: leave them out of argmax and top-k",
                source=f"{BUILDERS}/lm_head_gemv_multi.py @ e972f2942",
            )
        )
    launches = tuple(Launch(f"partition {index}", "gemv", case) for index in range(min(count, 64)))
    return Elf("lm_head_gemv", (vocab, emb), launches, tuple(whole))


def stitched(names: Sequence[str]) -> Elf:
    """Any kernels in one ELF, by name only: what may not be stitched together."""
    whole: list[Finding] = []
    if "flash_attention" in names and len(names) > 1:
        whole.append(
            Finding(
                severity="error",
                code="attention_alone",
                message="FlashAttention cannot share an ELF: with its 20 channels even three launches compile for over "
                "ten minutes",
                source=SCALING,
                remedy="give FlashAttention an ELF of its own",
                certain=False,
            )
        )
    return Elf("stitched", (len(names),), (), tuple(whole))


def dimensions(
    *, emb: int, hidden: int = 1, heads: int = 0, kv_heads: int = 0, head_dim: int = 64, family: str = "llama"
) -> Dimensions:
    """Dimensions for a builder that needs but a few of them."""
    heads = heads or max(1, emb // head_dim)
    return Dimensions(
        "builder", "LlamaForCausalLM", "qwen2" if family == "qwen2" else "qwen3" if family == "qwen3" else "llama",
        1, emb, heads, kv_heads or heads, head_dim, hidden, 1, 1e-6, 1e4, True, 0,
    )  # fmt: skip
