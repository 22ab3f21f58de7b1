"""The time of a plan: kernel by kernel from the cost model or measured, and what the host copies around them.

>>> time = model_time(plan, dims, kernels, TimingOptions())
>>> time.prefill_us, time.decode_us
>>> time.with_kernels(measured.prefill_us, measured.decode_us).label
'measured'

A kernel takes what `estimate_kernel` says of it alone; one that nobody measured takes a dispatch and its traffic.
Around every call the host copies activations in and out, weights too unless their buffers are reused, and transposes
the tensors of head-first attention. What the host does is modelled, also around measured kernels; `npu_tools.estimate.estimate_model` is the better
figure for a model whose ELFs are upstream's, since its overheads are fitted on measured models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npu_tools.architectures import Dimensions
from npu_tools.cost.predict import HEAD_US, HOST_GBPS
from npu_tools.deployment.world import KernelUse, Plan
from npu_tools.errors import NpuToolsError
from npu_tools.estimate import BYTES_PER_US, DISPATCH_US, estimate_kernel
from npu_tools.recipes import recipe

Timing = Literal["modelled", "measured"]


@dataclass(frozen=True, slots=True)
class TimingOptions:
    """How buffers are handled, and how much context a decoded token has."""

    buffer_reuse: bool = True
    context: int = 64


@dataclass(frozen=True, slots=True)
class Call:
    """One ELF call of a layer (or of the head, count 1): how often it runs, and its µs each time."""

    name: str
    kernel: str
    shape: str
    settings: Mapping[str, Any]
    count: int
    kernel_us: float
    host_us: float
    basis: str

    def as_dict(self, label: Timing = "modelled") -> dict[str, Any]:
        """JSON-ready; modelled_us, or measured_us, is one run, kernel and host."""
        return {
            "name": self.name, "kernel": self.kernel, "shape": self.shape, "settings": dict(self.settings),
            "count": self.count, "kernel_us": round(self.kernel_us, 3), "host_us": round(self.host_us, 3),
            f"{label}_us": round(self.kernel_us + self.host_us, 3), "basis": self.basis,
        }  # fmt: skip

    @property
    def total_us(self) -> float:
        """All its runs."""
        return self.count * (self.kernel_us + self.host_us)


@dataclass(frozen=True, slots=True)
class ModelTime:
    """A prompt's prefill with the head once, and one decoded token."""

    prefill: tuple[Call, ...]
    decode: tuple[Call, ...]
    decode_host_us: float
    label: Timing = "modelled"

    def with_kernels(self, prefill_us: Sequence[float], decode_us: Sequence[float]) -> ModelTime:
        """The same calls with measured times of their kernels, in order."""

        def measured(calls: Sequence[Call], times: Sequence[float]) -> tuple[Call, ...]:
            return tuple(
                replace(call, kernel_us=us, basis="measured on the device; the host's part is modelled")
                for call, us in zip(calls, times, strict=True)
            )

        return ModelTime(
            measured(self.prefill, prefill_us), measured(self.decode, decode_us), self.decode_host_us, "measured"
        )

    @property
    def prefill_us(self) -> float:
        """µs to the first token, tokenising and embedding aside."""
        return sum(call.total_us for call in self.prefill)

    @property
    def decode_us(self) -> float:
        """µs a token; attention is the host's, and modelled."""
        return sum(call.total_us for call in self.decode) + self.decode_host_us

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "label": self.label,
            "prefill_us": round(self.prefill_us, 3),
            "decode_us": round(self.decode_us, 3),
            "decode_host_us": round(self.decode_host_us, 3),
            "prefill_calls": [call.as_dict(self.label) for call in self.prefill],
            "decode_calls": [call.as_dict(self.label) for call in self.decode],
        }


def model_time(plan: Plan, dims: Dimensions, kernels: Path, options: TimingOptions) -> ModelTime:
    """The modelled time of a plan whose settings are chosen (`Plan.chosen`)."""

    def calls(uses: Sequence[KernelUse], count: int) -> list[Call]:
        return [_call(use, count, kernels, options) for use in uses]

    head = calls(plan.head, 1)
    attention = dims.layers * dims.heads * HEAD_US
    return ModelTime(
        (*calls(plan.prefill, dims.layers), *head), (*calls(plan.decode, dims.layers), *head), attention
    )  # fmt: skip


def _call(use: KernelUse, count: int, kernels: Path, options: TimingOptions) -> Call:
    kernel_us, basis, activations, weights, transposed = _figures(
        kernels, use.kernel, use.extents, tuple(sorted(use.settings.items()))
    )
    moved = activations + 2 * transposed + (0 if options.buffer_reuse else weights)
    return Call(use.name, use.kernel, use.extents, use.settings, count, kernel_us, moved / HOST_GBPS / 1e3, basis)


@cache
def _figures(
    kernels: Path, name: str, extents: str, settings: tuple[tuple[str, Any], ...]
) -> tuple[float, str, int, int, int]:
    """Kernel µs with its basis, then bytes of activations, weights, and tensors the host transposes."""
    found = recipe(kernels, name)
    resolved = found.resolve(extents, dict(settings))
    activations = weights = transposed = 0
    for one in found.arguments(resolved):
        size = int(np.prod(one.shape, dtype=np.int64)) * one.dtype.itemsize
        activations += size if one.role in ("input", "output") else 0
        weights += size if one.role == "static" else 0
        head_first = resolved.settings.get("variant") == "head-first"
        transposed += size if head_first and one.role in ("input", "output") else 0
    listed = found.manifest.settings
    asked = {n: v for n, v in resolved.settings.items() if n not in listed or listed[n].source != "recipe"}
    try:
        predicted = estimate_kernel(found.checked_as, resolved.extents, asked)
    except NpuToolsError:
        plain = DISPATCH_US + (activations + weights) / BYTES_PER_US
        return plain, "a dispatch and its traffic: nobody measured this kernel", activations, weights, transposed
    return predicted.modelled_us, predicted.basis, activations, weights, transposed
