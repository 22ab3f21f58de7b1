"""Check one kernel with its shape and tile configuration against a device, before a three-minute compile.

    report = check_kernel("gemm", "2048x2048x11008", {"tile_k_l2": 256})
    report.ok, report.findings[0].message, report.findings[0].remedy

Shapes are extents joined by x: gemm m x k x n; gemv, gemv_residual, gemv_swiglu m x k; rmsnorm, layernorm, rope,
qk_norm, qkv_bias rows x width; eltwise_add, silu_mul, gelu n or rows x width; flash_attention lq x lk, or
lq x lk x heads x kv_heads x head_dim; the fused builders as `kernels()` says. Settings left out are what upstream's
registry would choose. A finding's remedy names the nearest configuration that passes, found by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any

from npu_tools.check import attention, elementwise, fused, gemm, gemv, rowwise
from npu_tools.check.search import Case, difference, legal, nearest
from npu_tools.check.settings import MAX_EXTENT, Settings, Value
from npu_tools.device import Device
from npu_tools.device import device as find_device
from npu_tools.errors import UnknownKernel, UnusableInput
from npu_tools.findings import Finding

PADDINGS = 12
"""Larger shapes tried for a remedy; one that fails costs up to 20 ms."""
Resolve = Callable[[tuple[int, ...], Settings, Device], Case]


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What a check found. `parsed` says the question was understood; `ok` that nothing refuses it."""

    kernel: str
    shape: tuple[int, ...]
    device: str
    parsed: bool
    ok: bool
    findings: tuple[Finding, ...]
    settings: Mapping[str, Value]
    figures: Mapping[str, int]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-ready fields."""
        return {**asdict(self), "findings": [finding.as_dict() for finding in self.findings]}


@dataclass(frozen=True, slots=True)
class Family:
    """One kernel this module can check."""

    name: str
    axes: tuple[str, ...]
    aliases: tuple[str, ...]
    resolve: Resolve
    steps: tuple[int, ...] = (64, 64, 64)
    """What each axis may be padded to multiples of, for a remedy; 0 where padding would be another problem."""


def check_kernel(
    name: str, shape: str | Sequence[int], settings: Mapping[str, object] | None = None, device: str | Device = "npu2"
) -> KernelReport:
    """Whether this kernel places, fits and computes what it should on the device.

    Raises:
        UnknownKernel: no such kernel, or it does not take as many extents.
        UnusableInput: a size or setting that is none.
        UnknownDevice: no such device.
    """
    target = device if isinstance(device, Device) else find_device(device)
    family = _family(name)
    case = resolve_kernel(name, shape, settings, target)
    found = sorted(
        _remedied(case, target, family, settings), key=lambda one: ("error", "warning", "note").index(one.severity)
    )
    return KernelReport(
        kernel=family.name,
        shape=case.shape(),
        device=target.name,
        parsed=True,
        ok=all(finding.severity != "error" for finding in found),
        findings=tuple(found),
        settings=case.settings(),
        figures=case.figures(target),
    )


def resolve_kernel(
    name: str, shape: str | Sequence[int], settings: Mapping[str, object] | None = None, device: str | Device = "npu2"
) -> Case:
    """The case behind a kernel, shape and settings: every setting chosen, nothing judged.

    Raises:
        UnknownKernel, UnusableInput, UnknownDevice: as `check_kernel`.
    """
    target = device if isinstance(device, Device) else find_device(device)
    family = _family(name)
    given = Settings(settings)
    case = family.resolve(_extents(family, shape), given, target)
    given.refuse_unread(family.name)
    return case


def kernels() -> tuple[Family, ...]:
    """Every kernel that can be checked."""
    return _FAMILIES


def kernel_name(name: str) -> str:
    """The name this package uses for a kernel, given upstream's or another spelling.

    Raises:
        UnknownKernel: no kernel is called so.
    """
    return _family(name).name


def _family(name: str) -> Family:
    wanted = _plain(name)
    for family in _FAMILIES:
        if wanted in {_plain(known) for known in (family.name, *family.aliases)}:
            return family
    known = ", ".join(f"{family.name} ({'x'.join(family.axes)})" for family in _FAMILIES)
    raise UnknownKernel(f"no kernel is called {name[:60]!r}; there are {known}")


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _extents(family: Family, shape: str | Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, str):
        pieces = shape.casefold().replace("×", "x").replace("*", "x").replace(",", "x").replace(" ", "").split("x")
    else:
        pieces = [str(extent) for extent in shape]
    takes = "x".join(family.axes)
    if not all(piece.isdecimal() and 0 < int(piece) <= MAX_EXTENT for piece in pieces):
        raise UnusableInput(f"shape {str(shape)[:60]!r}: {family.name} takes {takes}, positive whole numbers")
    extents = tuple(int(piece) for piece in pieces)
    optional = sum(axis.startswith("[") for axis in family.axes)
    if len(extents) != len(family.axes) and len(extents) != len(family.axes) - optional:
        raise UnknownKernel(f"{family.name} takes {takes}, not {len(extents)} extents ({'x'.join(pieces)})")
    return extents


def _remedied(case: Case, target: Device, family: Family, settings: Mapping[str, object] | None) -> Iterator[Finding]:
    """The findings, each error with the nearest configuration that passes."""
    if isinstance(case, fused.Elf):
        yield from elf_findings(case, target)
        return
    yield from with_remedies(case, target, padded=partial(_padded, case, target, family, settings))


def elf_findings(elf: fused.Elf, target: Device) -> Iterator[Finding]:
    """Findings of an ELF and of each of its launches, named by its role; equal launches are told once."""
    yield from elf.of_the_whole()
    told: set[tuple[str, tuple[int, ...], str]] = set()
    alike = {(launch.kernel, launch.case): launch for launch in reversed(elf.launches)}
    for launch in reversed(alike.values()):
        family = _family(launch.kernel)
        for finding in with_remedies(launch.case, target, padded=partial(_padded, launch.case, target, family, None)):
            key = (launch.kernel, launch.case.shape(), finding.code)
            if key in told:
                continue
            told.add(key)
            extents = "x".join(map(str, launch.case.shape()))
            yield replace(
                finding, op=f"{elf.name}: {launch.role}", message=f"{launch.kernel} {extents}: {finding.message}"
            )


def with_remedies(case: Case, target: Device, *, padded: Callable[[], str] | None = None) -> Iterator[Finding]:
    """The findings of one kernel; an error says what to change so that it passes."""
    found = case.findings(target)
    remedy = None
    if any(finding.severity == "error" for finding in found):
        close = nearest(case, target)
        if close is not None:
            remedy = f"passes with {difference(case, close)}"
        elif padded is not None:
            remedy = padded()
    for finding in found:
        if finding.severity != "error" or remedy is None:
            yield finding
        else:
            yield replace(finding, remedy=f"{finding.remedy}; {remedy}" if finding.remedy else remedy)


def _padded(case: Case, target: Device, family: Family, settings: Mapping[str, object] | None) -> str:
    """The smallest larger shape that passes with the registry's choice of settings, as a remedy."""
    shape = case.shape()
    keep = {"heads", "kv_heads", "head_dim", "causal", "window", "output", "precision", "variant"}
    kept = {name: value for name, value in (settings or {}).items() if name in keep}
    sizes = [
        sorted({-(-extent // unit) * unit for unit in (1, step, 4 * step, 8 * step)}) if step else [extent]
        for extent, step in zip(shape, (*family.steps, *(0 for _ in shape)), strict=False)
    ]
    for grown in sorted(product(*sizes), key=prod)[:PADDINGS]:
        candidate = family.resolve(grown, Settings(kept), target)
        if legal(candidate, target):
            extents = "x".join(map(str, candidate.shape()))
            chosen = ", ".join(f"{name}={value}" for name, value in candidate.settings().items() if value != "")
            return f"passes as {extents}{'' if grown == shape else ' (pad with zeros)'} with {chosen}"
    return "no configuration near this one passes, nor a little padding; split the problem"


def _rows(kernel: str) -> Resolve:
    return lambda extents, given, target: rowwise.resolve(kernel, extents, given, target)


def _stream(kernel: str) -> Resolve:
    return lambda extents, given, target: elementwise.resolve(kernel, extents, given, target)


def _attention_input(family: str) -> Resolve:
    def resolve(extents: tuple[int, ...], given: Settings, target: Device) -> Case:
        seq, emb = extents[0], extents[1]
        head_dim = given.integer("head_dim", 64)
        heads = given.integer("heads", max(1, emb // head_dim))
        kv_heads = given.integer("kv_heads", max(1, extents[2] // head_dim))
        model = fused.dimensions(emb=emb, heads=heads, kv_heads=kv_heads, head_dim=head_dim, family=family)
        return fused.of_width(fused.attention_input(model, seq, target), extents[2], model)

    return resolve


def _attention_decode(family: str) -> Resolve:
    def resolve(extents: tuple[int, ...], given: Settings, target: Device) -> Case:
        head_dim = given.integer("head_dim", 64)
        heads = given.integer("heads", max(1, extents[0] // head_dim))
        kv_heads = given.integer("kv_heads", max(1, extents[1] // head_dim))
        model = fused.dimensions(emb=extents[0], heads=heads, kv_heads=kv_heads, head_dim=head_dim, family=family)
        return fused.of_width(fused.attention_input_decode(model, target), extents[1], model)

    return resolve


def _o_ffn(extents: tuple[int, ...], given: Settings, target: Device) -> Case:
    seq, emb, hidden = extents
    return fused.o_ffn(seq, emb, hidden, target, given.integer("q_dim", emb))


def _ffn_piece(name: str) -> Resolve:
    def resolve(extents: tuple[int, ...], given: Settings, target: Device) -> Case:
        seq, first, *rest = extents
        emb, hidden = (rest[0], first) if name == "down_add" else (first, rest[0] if rest else 1)
        q_dim = given.integer("q_dim", emb) if name.startswith("o_") else None
        return fused.ffn_piece(name, seq, emb, hidden, target, q_dim)

    return resolve


def _o_gemv_ffn(extents: tuple[int, ...], given: Settings, target: Device) -> Case:
    emb, hidden = extents
    form = given.word("form", "cascade", ("cascade", "leaves"))
    return fused.o_gemv_ffn(given.integer("q_dim", emb), emb, hidden, target, form)


def _lm_head(extents: tuple[int, ...], given: Settings, target: Device) -> Case:
    return fused.lm_head(extents[0], extents[1], target, given)


def _stitched(extents: tuple[int, ...], given: Settings, target: Device) -> Case:
    del target
    others = ["gemm"] * extents[0]
    if given.flag("attention", False):
        others[-1] = "flash_attention"
    return fused.stitched(others)


_FAMILIES: tuple[Family, ...] = (
    Family("gemm", ("m", "k", "n"), ("matmul", "matrix_multiplication", "mm", "gemm_bf16"), gemm.resolve),
    Family("gemv", ("m", "k"), ("matvec", "mv", "matrix_vector_multiplication", "lm_head_partition"), gemv.resolve),
    Family(
        "gemv_residual", ("m", "k"), ("matvec_2tile_add", "cascade", "gemv_cascade", "gemv_add"), gemv.resolve_residual
    ),
    Family("gemv_swiglu", ("m", "k"), ("matvec_swiglu_rms", "decode_ffn_swiglu"), gemv.resolve_swiglu),
    Family("rmsnorm", ("rows", "width"), ("rms_norm", "weighted_rms_norm", "rms"), _rows("rmsnorm"), (16, 16)),
    Family("layernorm", ("rows", "width"), ("layer_norm",), _rows("layernorm"), (16, 16)),
    Family("rope", ("rows", "head_dim"), ("rope_halfsplit", "rotary"), _rows("rope"), (16, 16)),
    Family("qk_norm", ("rows", "head_dim"), ("qknorm",), _rows("qk_norm"), (16, 16)),
    Family("qkv_bias", ("rows", "width"), ("bias_add", "bias"), _rows("qkv_bias"), (16, 16)),
    Family(
        "eltwise_add", ("n", "[width]"), ("add", "elementwise_add", "residual_add"), _stream("eltwise_add"), (256, 0)
    ),
    Family("silu_mul", ("n", "[width]"), ("silu_and_mul", "swiglu", "silu"), _stream("silu_mul"), (256, 0)),
    Family("gelu", ("n", "[width]"), ("gelu_tanh",), _stream("gelu"), (256, 0)),
    Family(
        "flash_attention",
        ("lq", "lk", "[heads]", "[kv_heads]", "[head_dim]"),
        ("attn", "attention", "flash_attn", "fa", "mha", "gqa"),
        attention.resolve,
        (256, 256, 0, 0, 64),
    ),
    Family("rms_gemms_rope", ("seq", "emb", "kv_dim"), (), _attention_input("llama")),
    Family("rms_qkv_bias_rope", ("seq", "emb", "kv_dim"), (), _attention_input("qwen2")),
    Family("rms_qkv_qknorm_rope", ("seq", "emb", "kv_dim"), (), _attention_input("qwen3")),
    Family("rms_gemv_rope", ("emb", "kv_dim"), (), _attention_decode("llama")),
    Family("rms_qkv_bias_rope_gemv", ("emb", "kv_dim"), (), _attention_decode("qwen2")),
    Family("rms_qkv_qknorm_rope_gemv", ("emb", "kv_dim"), (), _attention_decode("qwen3")),
    Family("o_ffn", ("seq", "emb", "hidden"), ("o_ffn_multi", "ffn"), _o_ffn),
    Family("o_ffn_head", ("seq", "emb", "hidden"), (), _ffn_piece("o_ffn_head")),
    Family("o_res_norm", ("seq", "emb"), (), _ffn_piece("o_res_norm")),
    Family("gate_up", ("seq", "emb", "hidden"), (), _ffn_piece("gate_up")),
    Family("down_add", ("seq", "hidden", "emb"), (), _ffn_piece("down_add")),
    Family("o_gemv_ffn", ("emb", "hidden"), ("decode_ffn",), _o_gemv_ffn),
    Family("lm_head_gemv", ("vocab", "emb"), ("lm_head",), _lm_head),
    Family("stitched", ("launches",), ("multi_launch", "stitch_elf"), _stitched),
)
