"""Predictions: a kernel, a fused launch sequence, a whole model. All modelled, all with an 80 % interval.

fitted = shipped()
predict_kernel(fitted, "gemm", {"M": 2048, "K": 2048, "N": 8192}).modelled_us
predict_model(fitted, read_config(config), seq_len=2048, context_len=128).tokens_per_s
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import numpy as np

from npu_tools.architectures import Dimensions
from npu_tools.cost.defaults import default_settings
from npu_tools.cost.deployment import ElfCall, Launch, decode_calls, lm_head_call, prefill_calls
from npu_tools.cost.fit import Fitted, KernelFit
from npu_tools.cost.kernels import DISPATCH, model_of
from npu_tools.errors import UnknownKernel, UnusableInput

LABEL: Literal["modelled"] = "modelled"
MEASURED_DEVICE = "npu2"
"""All measured rows are of this device."""
HOST_GBPS = 22.0
"""Host copies: 1–2 ms per 33 MB, the middle (Xilinx/mlir-air llms/llama32_1b/docs/profile.md)."""
TOKENISE_MS, EMBED_GBPS = 10.0, 2.9
"""Tokenising and padding; the embedding look-up and its casts, 5.8 ms for 2048 × 2048 (same page)."""
FINAL_NORM_MS = 3.1
"""The final norm of one row on the CPU in prefill (same page)."""
HEAD_US = 9.0
"""CPU attention at decode, Python's part for one head: 0.3 ms for 32 heads (same page)."""
CACHE_BYTES = 10
"""Bytes moved for one cached element at decode: read as bf16, written and read again as f32."""
TOKEN_MS = 1.0
"""Embedding row, final norm, logits to f32 and argmax of one decoded token (0.01 + < 1 ms there)."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A modelled time. low, high: 80 % interval. parts: what it is made of. All in µs."""

    modelled_us: float
    low: float
    high: float
    parts: Mapping[str, float]
    basis: str
    label: str = LABEL

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ModelPrediction:
    """A model's modelled speed. parts: ms, prefill and decode apart. Intervals are 80 %."""

    ttft_s: float
    ttft_low_s: float
    ttft_high_s: float
    tokens_per_s: float
    tokens_low: float
    tokens_high: float
    prefill_parts_ms: Mapping[str, float]
    decode_parts_ms: Mapping[str, float]
    prefill_elfs: int
    decode_elfs: int
    seq_len: int
    context_len: int
    basis: str
    label: str = LABEL

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@cache
def shipped() -> Fitted:
    """The fit that comes with the package (fitted.json)."""
    return Fitted.from_dict(json.loads(files("npu_tools.cost").joinpath("fitted.json").read_text(encoding="utf-8")))


def _kernel_fit(fitted: Fitted, kernel: str) -> KernelFit:
    model_of(kernel)
    if kernel not in fitted.kernels:
        raise UnknownKernel(f"no measured rows for kernel {kernel!r}: nothing to predict it from")
    return fitted.kernels[kernel]


def kernel_parts(
    fitted: Fitted, kernel: str, shape: Mapping[str, int], settings: Mapping[str, int | str]
) -> dict[str, float]:
    """The parts of one kernel, µs by name.

    Raises:
        UnknownKernel: no model, or no rows, for this kernel.
        UnusableInput: shape or settings lack a size or do not divide.
    """
    found = _kernel_fit(fitted, kernel)
    model = model_of(kernel)
    features = {name: np.array(value) for name, value in model.describe(shape, settings).items()}
    return {name: float(value) for name, value in model.parts(found.params, features).items()}


def check_device(device: str) -> None:
    """Refuses devices nothing was measured on.

    Raises:
        UnusableInput: the device is not npu2.
    """
    if device != MEASURED_DEVICE:
        raise UnusableInput(f"every measured row is of {MEASURED_DEVICE}; there is nothing to predict {device} from")


def predict_kernel(
    fitted: Fitted,
    kernel: str,
    shape: Mapping[str, int],
    settings: Mapping[str, int | str] | None = None,
    device: str = MEASURED_DEVICE,
) -> Prediction:
    """One kernel on its own, as the registry measures it (one dispatch). Settings default by rule.

    Raises:
        UnknownKernel: no model, or no rows, for this kernel.
        UnusableInput: another device, or shape and settings that do not fit together.
    """
    check_device(device)
    given = {**default_settings(kernel, shape), **(settings or {})}
    parts = kernel_parts(fitted, kernel, shape, given)
    found = _kernel_fit(fitted, kernel)
    total = sum(parts.values())
    held = found.held_out
    off = f"; {held.mape:.1%} mean error on rows held out" if held else "; never held out, the interval is a guess"
    return Prediction(
        total, total * math.exp(found.log_low), total * math.exp(found.log_high), parts, found.basis + off
    )


def beyond_dispatch(fitted: Fitted, launch: Launch) -> float:
    """What one launch adds inside a sequence, µs: everything but the dispatch."""
    parts = kernel_parts(fitted, launch.kernel, launch.shape, launch.settings)
    return sum(value for name, value in parts.items() if name != DISPATCH)


def _dispatch(fitted: Fitted, launches: Sequence[Launch]) -> float:
    """The dispatch of a sequence, µs: the largest of its kernels', paid once."""
    return max(_kernel_fit(fitted, launch.kernel).params["dispatch_us"] for launch in launches)


def _deployed_scale(fitted: Fitted, kernel: str) -> float:
    """How much slower than alone a kernel may run inside a deployment; GEMVs do not."""
    over = fitted.overheads
    if over is None or kernel == "gemv":
        return 1.0
    return max(1.0, over.attention_scale if kernel == "flash_attention" else over.npu_scale)


def predict_launches(fitted: Fitted, launches: Sequence[Launch], device: str = MEASURED_DEVICE) -> Prediction:
    """A fused launch sequence as one ELF: the dispatch once, then launch by launch.

    The launches' times are those of kernels measured alone; inside a deployment they run slower (GEMMs as ELFs
    up to 1.4 times), so the upper end of the interval takes the fitted scale of deployed prefill.

    Raises:
        UnknownKernel: no model, or no rows, for one of the kernels.
        UnusableInput: no launches, another device, or shapes and settings that do not fit together.
    """
    check_device(device)
    if not launches:
        raise UnusableInput("a launch sequence needs at least one launch")
    parts = {DISPATCH: _dispatch(fitted, launches)}
    low = high = 0.0
    for number, launch in enumerate(launches):
        took = beyond_dispatch(fitted, launch)
        parts[f"{number} {launch.label or launch.kernel}"] = took
        found = _kernel_fit(fitted, launch.kernel)
        low += took * math.exp(found.log_low)
        high += took * math.exp(found.log_high) * _deployed_scale(fitted, launch.kernel)
    total = sum(parts.values())
    return Prediction(
        total,
        parts[DISPATCH] + low,
        parts[DISPATCH] + high,
        parts,
        f"{len(launches)} launches, each as measured alone, one dispatch",
    )


@dataclass(frozen=True, slots=True)
class Work:
    """A model's work before overheads are fitted, in ms: what scales with what.

    npu, attention: launches beyond their dispatch. launches: how many. elfs: ELF calls of one layer.
    host: copies and CPU steps at documented rates.
    """

    npu: float
    attention: float
    elfs: int
    launches: int
    host: float


def prefill_work(fitted: Fitted, dims: Dimensions, seq_len: int) -> Work:
    """The prefill of `seq_len` tokens and one LM head row."""
    calls = prefill_calls(dims, seq_len)
    once = lm_head_call(dims)
    npu = attention = 0.0
    for launch in (launch for call in calls for launch in call.launches):
        took = dims.layers * beyond_dispatch(fitted, launch) / 1e3
        if launch.kernel == "flash_attention":
            attention += took + dims.layers * _kernel_fit(fitted, launch.kernel).params["dispatch_us"] / 1e3
        else:
            npu += took
    npu += sum(beyond_dispatch(fitted, launch) for launch in once.launches) / 1e3
    copies = dims.layers * sum(call.host_bytes for call in calls)
    host = copies / HOST_GBPS / 1e6 + TOKENISE_MS + seq_len * dims.emb * 4 / EMBED_GBPS / 1e6 + FINAL_NORM_MS
    return Work(npu, attention, len(calls), dims.layers * _launches(calls) + len(once.launches), host)


def decode_work(fitted: Fitted, dims: Dimensions, context_len: int) -> Work:
    """One decoded token after `context_len` tokens."""
    calls = decode_calls(dims)
    once = lm_head_call(dims)
    npu = dims.layers * sum(_gemv_us(fitted, launch) for call in calls for launch in call.launches)
    npu += sum(_gemv_us(fitted, launch) for launch in once.launches)
    cache_ms = 2 * context_len * dims.kv_dim * CACHE_BYTES / HOST_GBPS / 1e6
    host = dims.layers * (dims.heads * HEAD_US / 1e3 + cache_ms) + TOKEN_MS
    return Work(npu / 1e3, 0.0, len(calls), dims.layers * _launches(calls) + len(once.launches), host)


def _gemv_us(fitted: Fitted, launch: Launch) -> float:
    """A GEMV beyond its dispatch; the one-row norms and rotations are below what a launch costs anyway."""
    return beyond_dispatch(fitted, launch) if launch.kernel == "gemv" else 0.0


def _launches(calls: Sequence[ElfCall]) -> int:
    return sum(len(call.launches) for call in calls)


def predict_model(fitted: Fitted, dims: Dimensions, *, seq_len: int = 2048, context_len: int = 64) -> ModelPrediction:
    """Time to first token of a prompt padded to `seq_len`, and tokens per second after `context_len` tokens.

    Raises:
        UnusableInput: lengths below 1, or a fit without overheads.
    """
    if seq_len < 1 or context_len < 1:
        raise UnusableInput(f"seq_len and context_len count tokens from 1; given {seq_len} and {context_len}")
    over = fitted.overheads
    if over is None:
        raise UnusableInput("this fit has kernels only; overheads need model rows (fit_overheads)")
    first, token = prefill_work(fitted, dims, seq_len), decode_work(fitted, dims, context_len)
    prefill = over.prefill_parts(first)
    decode = over.decode_parts(token)
    ttft, tpot = sum(prefill.values()), sum(decode.values())
    return ModelPrediction(
        ttft_s=ttft / 1e3,
        ttft_low_s=ttft * math.exp(over.ttft_log_low) / 1e3,
        ttft_high_s=ttft * math.exp(over.ttft_log_high) / 1e3,
        tokens_per_s=1e3 / tpot,
        tokens_low=1e3 / tpot * math.exp(-over.token_log_high),
        tokens_high=1e3 / tpot * math.exp(-over.token_log_low),
        prefill_parts_ms=prefill,
        decode_parts_ms=decode,
        prefill_elfs=first.elfs,
        decode_elfs=token.elfs,
        seq_len=seq_len,
        context_len=context_len,
        basis=over.basis,
    )
