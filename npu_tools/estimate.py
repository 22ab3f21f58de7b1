"""The cost model asked in the words of `check`: one spelling of kernels, shapes and settings for both.

>>> estimate_kernel("gemm", "2048x2048x8192").modelled_us

Everything here is modelled, never measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.architectures import read_config
from npu_tools.check.fused import Elf
from npu_tools.check.kernel import check_kernel, kernel_name, resolve_kernel
from npu_tools.check.search import legal as is_legal
from npu_tools.check.settings import Value
from npu_tools.cost.defaults import default_settings
from npu_tools.cost.deployment import Launch
from npu_tools.cost.predict import ModelPrediction, Prediction, predict_kernel, predict_launches, predict_model, shipped
from npu_tools.cost.tune import Tuned, tune
from npu_tools.device import device as find_device
from npu_tools.errors import UnknownKernel, UnusableInput
from npu_tools.findings import Finding

_AXES = {
    "gemm": ("M", "K", "N"),
    "gemv": ("M", "K"),
    "rmsnorm": ("rows", "cols"),
    "layernorm": ("rows", "cols"),
    "rope": ("rows", "head_dim"),
    "flash_attention": ("seq_q", "seq_kv", "heads", "kv_heads", "head_dim"),
}
_ELEMENTWISE = {"eltwise_add": "tile", "silu_mul": "tile_n", "gelu": "tile_n"}
"""Elementwise kernels, and what the measured rows call the tile."""
_LIKE = {"qk_norm": "rmsnorm", "qkv_bias": "eltwise_add"}
"""Kernels without rows of their own that do the work of one that has them."""
_CASCADES = ("gemv_residual", "gemv_swiglu")
"""Fused GEMVs: bound by the same weight stream as a plain GEMV, and modelled as one."""
_CASCADE_TILING = 16

DISPATCH_US, ITERATION_US = 80.0, 5.9
"""Floor of a dispatch (smallest registry row) and of one more launch iteration (GEMM fit of the registry rows)."""
MACS_PER_US, BYTES_PER_US = 5.0e6, 46_000.0
"""About 10 TFLOPS, the best measured GEMM, and 46 GB/s, the write bandwidth of the GEMM fit."""


def estimate_kernel(
    name: str, shape: str, settings: Mapping[str, object] | None = None, device: str = "npu2"
) -> Prediction:
    """Modelled time of a kernel, or of a fused launch sequence, with an 80 % interval.

    Raises:
        UnknownKernel: no such kernel, or nothing was measured to predict it from.
        UnusableInput: a shape, setting or device that does not fit; the text names what `check` refuses.
    """
    report = check_kernel(name, shape, settings, device)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors:
        raise UnusableInput(
            f"{report.kernel} {shape} is refused ({errors[0].code}): {errors[0].message}"
            + (f"; {errors[0].remedy}" if errors[0].remedy else "")
        )
    case = resolve_kernel(name, shape, settings, device)
    if isinstance(case, Elf):
        launches = [_launch(one.kernel, one.case.shape(), one.case.settings(), one.role) for one in case.launches]
        return predict_launches(shipped(), launches, report.device)
    launch = _launch(report.kernel, report.shape, {**case.settings(), **_given(settings)}, "")
    return predict_kernel(shipped(), launch.kernel, launch.shape, launch.settings, report.device)


def estimate_model(config: Mapping[str, Any], seq_len: int = 2048, context_len: int = 64) -> ModelPrediction | Finding:
    """Modelled TTFT and tokens/s of a model from its Hugging Face config; a refused architecture is a finding."""
    if not 1 <= seq_len <= 131_072:
        raise UnusableInput(f"seq_len is {seq_len}; give 1 to 131072 tokens")
    dims = read_config(config)
    if isinstance(dims, Finding):
        return dims
    return predict_model(shipped(), dims, seq_len=seq_len, context_len=context_len)


def tune_kernel(
    name: str, shape: str, fixed: Mapping[str, Any] | None = None, device: str = "npu2", best: int = 10
) -> Tuned:
    """Legal configurations of a kernel for a shape, fastest by the model first.

    Raises:
        UnknownKernel: no such kernel, or nothing measured.
        UnusableInput: a shape or setting that does not fit.
    """
    target = find_device(device)
    case = resolve_kernel(name, shape, None, target)
    if isinstance(case, Elf):
        raise UnknownKernel(f"{name} is a sequence of kernels; tune its kernels one by one")
    kernel = kernel_name(name)
    launch = _launch(kernel, case.shape(), case.settings(), "")

    def legal(_: str, __: Mapping[str, int], candidate: Mapping[str, int | str]) -> bool:
        return is_legal(resolve_kernel(name, shape, checked_settings(kernel, candidate), device), target)

    asked = _translated(kernel, launch.shape, dict(fixed)) if fixed else None
    return tune(shipped(), launch.kernel, launch.shape, device=device, legal=legal, best=best, fixed=asked)


def estimate_run(counters: Mapping[str, Any]) -> float:
    """A run's modelled µs from what it counted: dispatch, launch iterations, and the slower of arithmetic and L3 traffic.

    Coarser than `estimate_kernel`: it knows the program's work and nothing of its schedule.
    """
    macs = sum(int(one["macs"]) for one in counters.get("kernels", {}).values())
    moved = sum(
        int(count)
        for table in ("dma_bytes", "channel_bytes")
        for way, count in counters.get(table, {}).items()
        if "L3" in way.split("->")
    )
    iterations = max(0, int(counters.get("launch_iterations", 0)) - 1)
    return round(DISPATCH_US + iterations * ITERATION_US + max(macs / MACS_PER_US, moved / BYTES_PER_US), 3)


def _launch(kernel: str, extents: tuple[int, ...], settings: Mapping[str, Value], label: str) -> Launch:
    if kernel in _CASCADES:
        m, k = extents
        chosen = {**default_settings("gemv", {"M": m, "K": k}), "runtime_tiling": _CASCADE_TILING}
        return Launch("gemv", {"M": m, "K": k}, chosen, label)
    like, kernel = kernel, _LIKE.get(kernel, kernel)
    if like == "qkv_bias":
        settings = {}
    if kernel in _ELEMENTWISE:
        total = 1
        for extent in extents:
            total *= extent
        shape = {"n": total}
    elif kernel in _AXES:
        shape = dict(zip(_AXES[kernel], extents, strict=False))
        if kernel == "flash_attention":
            shape["causal"] = int(bool(settings.get("causal", False)))
    else:
        known = ", ".join(sorted({*_AXES, *_ELEMENTWISE, *_LIKE}))
        raise UnknownKernel(
            f"no measured rows for {kernel}: not measured, so nothing to predict it from; there are {known}"
        )
    chosen = _translated(kernel, shape, settings) if settings else default_settings(kernel, shape)
    return Launch(kernel, shape, chosen, label)


def _translated(kernel: str, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, int | str]:
    """Settings as the measured rows call them."""
    named: dict[str, int | str] = {k: v for k, v in settings.items() if isinstance(v, int | str) and v != ""}
    if kernel == "gemm" and "output" in named:
        named["dtype"] = f"bf16->{named.pop('output')}"
    for ours, theirs in (("columns", "herd_x"), ("rows", "herd_y"), ("heads_per_unroll", "num_heads_per_unroll")):
        if ours in named:
            named[theirs] = named.pop(ours)
    if kernel in _ELEMENTWISE and "tile" in named:
        named[_ELEMENTWISE[kernel]] = named.pop("tile")
    if kernel == "flash_attention" and "dv_tile" in named:
        named["dv_chunks"] = max(1, shape["head_dim"] // int(named["dv_tile"]))
    return named


def checked_settings(kernel: str, settings: Mapping[str, int | str]) -> dict[str, object]:
    """Settings as `check` calls them."""
    named: dict[str, object] = dict(settings)
    named.pop("runtime_tiling", None)
    if kernel == "gemm":
        if "dtype" in named:
            named["output"] = str(named.pop("dtype")).rpartition(">")[2]
        if named.get("method") in ("drain", "fused-cast"):
            named["precision"] = "high"
        elif named.get("output") == "bf16":
            named["precision"] = "low"
    if kernel in _ELEMENTWISE:
        named = {
            {"herd_x": "columns", "herd_y": "rows", _ELEMENTWISE[kernel]: "tile"}.get(k, k): v for k, v in named.items()
        }
    if kernel == "flash_attention":
        named.pop("dv_chunks", None)
        if "num_heads_per_unroll" in named:
            named["heads_per_unroll"] = named.pop("num_heads_per_unroll")
    return named


def _given(settings: Mapping[str, object] | None) -> dict[str, Any]:
    return {name: value for name, value in (settings or {}).items() if name in ("runtime_tiling",)}
