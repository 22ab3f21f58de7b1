"""A backend that counts: dispatches, bytes the host moves, and the time of what really ran.

    meter = Meter(backend, Options(buffer_reuse=True))
    Runner(…, backend=meter, …).prefill(tokens)
    meter.reading().total_us

Times of kernels are the backend's: measured on a device, modelled on the emulator. What the host adds is modelled on
both: activations are copied at every call, weights too unless their buffers are reused, and a kernel whose layout is
head-first has its tensors transposed by the host. Weights are bound once either way; without reuse they are charged.

`static` marks input positions of a kernel as written once: that is what a device does with a buffer declared static,
and a kernel called again with another input then sees the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npu_tools.arrays import Argument
from npu_tools.backends.protocol import (
    ITERATIONS,
    NO_OPTIONS,
    WARM_UP,
    Array,
    Backend,
    BackendName,
    Bound,
    Call,
    Kernel,
    KernelRun,
    Measured,
    Refused,
)
from npu_tools.cost.predict import HOST_GBPS
from npu_tools.findings import Finding

TRANSPOSED = {"flash_attention": 3}
"""Kernels whose tensors the host transposes when they have this many axes (head-first)."""


@dataclass(frozen=True, slots=True)
class Options:
    """How buffers are handled."""

    buffer_reuse: bool = True
    static: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@dataclass(frozen=True, slots=True)
class Reading:
    """What ran since the last reset. Bytes are those between host and buffers."""

    dispatches: int
    kernel_us: float
    activation_bytes: int
    weight_bytes: int
    transposed_bytes: int
    timing: str
    by_kernel: Mapping[str, float]

    @property
    def host_us(self) -> float:
        """The host's copies and transposes, modelled."""
        return (self.activation_bytes + self.weight_bytes + 2 * self.transposed_bytes) / HOST_GBPS / 1e3

    @property
    def total_us(self) -> float:
        """Kernels and host one after the other."""
        return self.kernel_us + self.host_us

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "dispatches": self.dispatches, "kernel_us": round(self.kernel_us, 3), "host_us": round(self.host_us, 3),
            "total_us": round(self.total_us, 3), "activation_bytes": self.activation_bytes,
            "weight_bytes": self.weight_bytes, "transposed_bytes": self.transposed_bytes, "timing": self.timing,
            "by_kernel": {name: round(value, 3) for name, value in self.by_kernel.items()},
        }  # fmt: skip


class Meter:
    """A backend around another one."""

    def __init__(self, backend: Backend, options: Options | None = None) -> None:
        self.backend = backend
        self.options = options or Options()
        self.digests: dict[str, str] = {}
        """Digest of every program that was loaded, by kernel name and the digest's beginning: one name has many shapes."""
        self.failures: list[tuple[str, KernelRun | Refused]] = []
        self._kernels: dict[str, _MeteredKernel] = {}
        self.reset()

    @property
    def name(self) -> BackendName:
        """The backend's own name."""
        return self.backend.name

    def configure(self, options: Options) -> None:
        """Handle buffers this way from here on; what was held is forgotten."""
        self.options = options
        for kernel in self._kernels.values():
            kernel.held.clear()
        self.failures.clear()
        self.reset()

    def reset(self) -> None:
        """Count from here."""
        self._dispatches, self._kernel_us, self._measured = 0, 0.0, 0
        self._activations, self._weights, self._transposed = 0, 0, 0
        self._by_kernel: dict[str, float] = {}

    def reading(self) -> Reading:
        """What was counted since `reset`."""
        timing = "measured" if self._measured and self._measured == self._dispatches else "modelled"
        return Reading(
            self._dispatches, self._kernel_us, self._activations, self._weights, self._transposed, timing,
            dict(self._by_kernel),
        )  # fmt: skip

    def load(
        self,
        program: str,
        *,
        name: str,
        options: Mapping[str, Any] = NO_OPTIONS,
        outputs: Sequence[int] | None = None,
    ) -> Kernel | Refused:
        """As the backend does, counting what the kernel will run."""
        loaded = self.backend.load(program, name=name, options=options, outputs=outputs)
        if isinstance(loaded, Refused):
            self.failures.append((name, loaded))
            return loaded
        self.digests[f"{name} {loaded.digest[:8]}"] = loaded.digest
        return self._kernels.setdefault(f"{name}/{loaded.digest}", _MeteredKernel(self, loaded))

    def measure(
        self, calls: Sequence[Call], *, warm_up: int = WARM_UP, iterations: int = ITERATIONS,
        context_length: int | None = None,
    ) -> Measured | Finding | None:  # fmt: skip
        """As the backend does, not counted."""
        inner = [(bound.inner if isinstance(bound, _MeteredBound) else bound, inputs) for bound, inputs in calls]
        return self.backend.measure(inner, warm_up=warm_up, iterations=iterations, context_length=context_length)

    def count(self, bound: _MeteredBound, run: KernelRun, activations: int) -> None:
        """Add one run."""
        name = bound.kernel.name
        took = run.measured_us if run.measured_us is not None else (run.modelled_us or 0.0)
        self._measured += run.measured_us is not None
        self._dispatches += 1
        self._kernel_us += took
        self._by_kernel[name] = self._by_kernel.get(name, 0.0) + took
        self._activations += activations
        if not self.options.buffer_reuse:
            self._weights += bound.static_bytes
        axes = next((count for kernel, count in TRANSPOSED.items() if _base(name) == kernel), None)
        if axes is not None:
            self._transposed += sum(
                size
                for one, size in zip(bound.kernel.arguments, bound.sizes, strict=True)
                if len(one.shape or ()) == axes
            )
        if not run.ok:
            self.failures.append((name, run))


class _MeteredKernel:
    """A loaded kernel that counts its runs."""

    def __init__(self, meter: Meter, kernel: Kernel) -> None:
        self._meter, self._kernel = meter, kernel
        self.sizes = [_bytes(argument) for argument in kernel.arguments]
        """Bytes of each argument."""
        self.held: dict[int, Array] = {}
        """Inputs marked static, as they were written the first time: the buffers are the kernel's, whoever calls it."""

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self._kernel.name

    @property
    def digest(self) -> str:
        """Digest of program and options."""
        return self._kernel.digest

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The function's arguments."""
        return self._kernel.arguments

    @property
    def outputs(self) -> tuple[int, ...]:
        """Positions a run gives back."""
        return self._kernel.outputs

    def bind(self, static: Mapping[int, Array] | None = None) -> Bound:
        """Weights written once."""
        return _MeteredBound(self._meter, self, self._kernel.bind(static or {}), static or {})


class _MeteredBound:
    """A bound kernel that counts its runs."""

    def __init__(self, meter: Meter, kernel: _MeteredKernel, bound: Bound, static: Mapping[int, Array]) -> None:
        self._meter, self._kernel, self.inner = meter, kernel, bound
        self.sizes = kernel.sizes
        self.static_bytes = sum(self.sizes[position] for position in static)

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return self._kernel

    def run(self, inputs: Mapping[int, Array]) -> KernelRun:
        """Run once, counted."""
        given, moved = self._given(inputs)
        run = self.inner.run(given)
        self._meter.count(self, run, moved)
        return run

    def run_all(self, inputs: Sequence[Mapping[int, Array]]) -> list[KernelRun]:
        """Runs in turn, each counted."""
        given = [self._given(one) for one in inputs]
        runs = self.inner.run_all([one for one, _ in given])
        for run, (_, moved) in zip(runs, given, strict=False):
            self._meter.count(self, run, moved)
        return runs

    def _given(self, inputs: Mapping[int, Array]) -> tuple[dict[int, Array], int]:
        """Inputs with what is held in place of what was given, and the bytes a run moves."""
        marked = self._meter.options.static.get(_base(self._kernel.name), ())
        given = dict(inputs)
        for position in marked:
            if position in given:
                given[position] = self._kernel.held.setdefault(position, np.array(given[position]))
        fresh = [position for position in given if position not in marked]
        return given, sum(self.sizes[position] for position in (*fresh, *self._kernel.outputs))


def _bytes(argument: Argument) -> int:
    return int(np.prod(argument.shape or (1,), dtype=np.int64)) * int(argument.dtype.itemsize)


def _base(name: str) -> str:
    """The recipe's name where a kernel is named recipe/shape or recipe-shape."""
    return name.split("/")[0].split("-")[0].split(" ")[0]
