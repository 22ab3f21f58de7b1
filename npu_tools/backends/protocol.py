"""What runs kernels: one protocol for the emulator and for a device.

    match backend.load(text, name="gemv", outputs=(2,)):
        case Refused() as refused: refused.findings
        case kernel:
            bound = kernel.bind({0: weight})           # converted and written once
            run = bound.run({1: vector})               # as often as wanted
            run.ok, run.outputs[2], run.ran_on

Positions are those of the function's arguments. Faults of a program are findings; only misuse raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal, Protocol

from numpy.typing import NDArray

from npu_tools.arrays import Argument
from npu_tools.findings import Finding

Array = NDArray[Any]
BackendName = Literal["emulator", "xrt"]
RanOn = Literal["emulator", "npu"]
NO_OPTIONS: Mapping[str, Any] = {}
WARM_UP, ITERATIONS = 5, 20
"""As upstream's phase skills time (.claude/skills/phase-4-*); its backend takes 10 + n (python/air/backend/xrt.py)."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A program that was not loaded, and why: at least one finding is an error."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding:
        """The first error."""
        return next(finding for finding in self.findings if finding.severity == "error")

    def __str__(self) -> str:
        remedy = f"; {self.first.remedy}" if self.first.remedy else ""
        return f"{self.name} is refused ({self.first.code}): {self.first.message}{remedy}"


@dataclass(frozen=True, slots=True)
class KernelRun:
    """What one run gave: outputs by argument position. The emulator has no measured time, a device no modelled one."""

    ok: bool
    outputs: Mapping[int, Array]
    findings: tuple[Finding, ...]
    ran_on: RanOn
    modelled_us: float | None
    measured_us: float | None
    wall_s: float
    counters: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the run did, where a backend counts: bytes moved, calls of kernels, launch iterations."""

    @property
    def failure(self) -> Finding | None:
        """The first error, if any."""
        return next((finding for finding in self.findings if finding.severity == "error"), None)


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of calls on a device, each run `iterations` times after the warm-ups, in turn; apart from any run that was
    judged. Without the environment a time cannot be compared with another."""

    times_us: tuple[tuple[float, ...], ...]
    """A row for each call: its timed runs in order."""
    warm_up: int
    timed: str
    """What is inside the timed region."""
    environment: Mapping[str, Any]

    @property
    def medians_us(self) -> tuple[float, ...]:
        """The middle of each call's runs."""
        return tuple(median(times) for times in self.times_us)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready: how it was measured, and each call's median with its fastest and slowest run."""
        return {
            "warm_up": self.warm_up, "iterations": min(len(times) for times in self.times_us), "timed": self.timed,
            "median_us": [round(one, 3) for one in self.medians_us],
            "min_us": [round(min(times), 3) for times in self.times_us],
            "max_us": [round(max(times), 3) for times in self.times_us],
            "environment": dict(self.environment),
        }  # fmt: skip


class Bound(Protocol):
    """A kernel with its static arguments in place."""

    @property
    def kernel(self) -> Kernel:
        """The kernel this was bound from."""
        ...

    def run(self, inputs: Mapping[int, Array]) -> KernelRun:
        """Run once on these inputs by position; arrays are copied, never kept.

        Raises:
            UnusableInput: an array of another shape or type than the argument.
        """
        ...

    def run_all(self, inputs: Sequence[Mapping[int, Array]]) -> list[KernelRun]:
        """A run for each of these in turn, ending with the first that fails, so that the list may be shorter. On a
        device they go in one request under one hold of its lock.

        Raises:
            UnusableInput: an array of another shape or type than the argument; nothing has run then.
        """
        ...


class Kernel(Protocol):
    """A loaded program."""

    @property
    def name(self) -> str:
        """What `load` was told."""
        ...

    @property
    def digest(self) -> str:
        """Digest of the program's text and of the options: what results are traced to."""
        ...

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The function's arguments in order, with shapes and dtypes."""
        ...

    @property
    def outputs(self) -> tuple[int, ...]:
        """Positions whose arrays a run gives back."""
        ...

    def bind(self, static: Mapping[int, Array] = ...) -> Bound:
        """Weights by argument position, checked, converted and written once; shared by all runs.

        Raises:
            UnusableInput: an array of another shape or type than the argument.
        """
        ...


class Backend(Protocol):
    """The emulator or a device."""

    @property
    def name(self) -> BackendName:
        """Which one."""
        ...

    def load(
        self,
        program: str,
        *,
        name: str,
        options: Mapping[str, Any] = NO_OPTIONS,
        outputs: Sequence[int] | None = None,
    ) -> Kernel | Refused:
        """Compile (once for one text and options) and load. `options` are mlir-air's XRTBackend options by name, as
        `Recipe.compile_options` gives them; `outputs` the positions wanted back, all memrefs by default.

        Raises:
            UnusableInput: options, positions or a program no backend can take.
        """
        ...

    def measure(
        self, calls: Sequence[Call], *, warm_up: int = WARM_UP, iterations: int = ITERATIONS,
        context_length: int | None = None,
    ) -> Measured | Finding | None:  # fmt: skip
        """What each of these calls takes, run again and again in this order; None where nothing is measured, a finding
        where a run failed. No output is judged: gate a run of its own before.

        Raises:
            UnusableInput: an array of another shape or type than the argument.
        """
        ...


Call = tuple[Bound, Mapping[int, Array]]
"""A bound kernel with its inputs."""
