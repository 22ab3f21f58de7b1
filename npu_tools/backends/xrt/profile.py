"""Measured times: correctness first and by itself, then warm-ups, then timed runs in a process of their own.

    timed = profile_recipe(backend, recipe, "512x512x512", {"method": "drain"})
    timed.median_us, timed.passed, timed.environment

What is timed is `start()` and the wait of one run, each run by itself. Buffers are on the device before the first and are
neither written nor read between runs, so outputs of timed runs are never judged: a kernel that keeps state in its buffers
leaves garbage in them (Xilinx/mlir-air python/air/backend/xrt.py, n_perf_iters).

Several configurations are timed in turn, run by run, in one process: two processes one after the other differ by 10 to
15 % whatever the kernel (Xilinx/mlir-air programming_examples/llms/smolvla/docs/profile.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean, median, quantiles
from typing import Any, Literal

from npu_tools.backends.protocol import ITERATIONS, WARM_UP, Array, KernelRun, Refused
from npu_tools.backends.xrt.backend import TIMED, XrtBackend, XrtKernel
from npu_tools.backends.xrt.environment import EnvironmentRecord, record
from npu_tools.backends.xrt.outcomes import outcome
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.gate import Verdict, judge
from npu_tools.recipes.recipe import Recipe, Resolved, Shape

NOISY = 1.15
"""Slowest tenth over the fastest run from which a measurement is called noisy."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One kernel's measurement. `times_us` are the timed runs in order; empty where nothing was measured."""

    kernel: str
    resolved: Resolved | None
    passed: bool
    reason: str
    times_us: tuple[float, ...] = ()
    warm_up: int = WARM_UP
    format: str = ""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict[str, Verdict])
    findings: tuple[Finding, ...] = ()
    environment: EnvironmentRecord | None = None
    ran_on: Literal["npu"] = "npu"
    timed: str = TIMED

    @property
    def median_us(self) -> float | None:
        """The middle of the timed runs."""
        return median(self.times_us) if self.times_us else None

    @property
    def noisy(self) -> bool:
        """Whether the runs differ too much to compare with others."""
        return bool(self.times_us) and self._tenth(9) > NOISY * min(self.times_us)

    @property
    def max_over_min(self) -> float:
        """Slowest over fastest."""
        return max(self.times_us) / min(self.times_us) if self.times_us else 1.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        times = self.times_us
        return {
            "kernel": self.kernel, "shape": dict(self.resolved.shape) if self.resolved else {},
            "settings": dict(self.resolved.settings) if self.resolved else {}, "passed": self.passed,
            "reason": self.reason, "ran_on": self.ran_on, "label": "measured" if times else "not measured",
            "format": self.format, "timed": self.timed, "warm_up": self.warm_up, "iterations": len(times),
            "median_us": _short(self.median_us), "mean_us": _short(mean(times)) if times else None,
            "min_us": _short(min(times)) if times else None, "max_us": _short(max(times)) if times else None,
            "p10_us": _short(self._tenth(1)) if times else None, "p90_us": _short(self._tenth(9)) if times else None,
            "noisy": self.noisy, "times_us": [_short(one) for one in times],
            "verdicts": {name: verdict.as_dict() for name, verdict in self.verdicts.items()},
            "findings": [one.as_dict() for one in self.findings],
            "environment": self.environment.as_dict() if self.environment else None,
        }  # fmt: skip

    def _tenth(self, number: int) -> float:
        times = list(self.times_us)
        return quantiles(times, n=10)[number - 1] if len(times) > 1 else times[0]


def profile_recipe(
    backend: XrtBackend,
    recipe: Recipe,
    shape: Shape,
    settings: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    warm_up: int = WARM_UP,
    iterations: int = ITERATIONS,
    context_length: int | None = None,
) -> Timed:
    """One configuration, gated and then timed. One that fails or misses its gate is not timed."""
    return profile_recipes(
        backend, recipe, shape, [dict(settings or {})], seed=seed, warm_up=warm_up, iterations=iterations,
        context_length=context_length,
    )[0]  # fmt: skip


def profile_recipes(
    backend: XrtBackend,
    recipe: Recipe,
    shape: Shape,
    settings: Sequence[Mapping[str, Any]],
    *,
    seed: int = 0,
    warm_up: int = WARM_UP,
    iterations: int = ITERATIONS,
    context_length: int | None = None,
) -> list[Timed]:
    """Several configurations of one kernel and shape, each gated, then timed in turn in one process.

    Raises:
        UnusableInput: configurations of different formats (an ELF and an xclbin in one process slow each other down), or
            no iterations.
    """
    prepared = [_prepare(backend, recipe, shape, one, seed, context_length) for one in settings]
    ready = [one for one in prepared if isinstance(one, _Ready)]
    if len({one.kernel.artefact.format for one in ready}) > 1:
        raise UnusableInput(
            "these configurations compile to ELF and xclbin; time them apart, or give output_format: in one process "
            "both would be 1.4 to 2.5 times slower"
        )
    if not ready:
        return [one for one in prepared if isinstance(one, Timed)]
    backend.close()  # what was gated ran in another process than what is timed
    environment = record(backend.toolchain, context_length=context_length)
    taken = backend.time([(one.kernel.bind(one.static), one.inputs) for one in ready], warm_up, iterations)
    done: list[Timed] = []
    for one in prepared:
        if isinstance(one, Timed):
            done.append(one)
            continue
        times = taken if isinstance(taken, Finding) else taken[ready.index(one)]
        done.append(_timed(one, times, warm_up, environment))
    return done


def profile_program(
    backend: XrtBackend,
    kernel: XrtKernel,
    inputs: Mapping[int, Array],
    *,
    warm_up: int = WARM_UP,
    iterations: int = ITERATIONS,
) -> Timed:
    """A bare program timed on these inputs. Nobody judged its outputs: a run before this did not, and timed runs never are."""
    backend.close()
    environment = record(backend.toolchain)
    taken = backend.time([(kernel.bind(), inputs)], warm_up, iterations)
    if isinstance(taken, Finding):
        reason = f"timing failed: {taken.code}: {taken.message}"
        return Timed(kernel.name, None, False, reason, findings=(taken,), environment=environment)
    made = Timed(
        kernel.name, None, True, "not gated: judge the outputs of its run", tuple(taken[0]), warm_up,
        kernel.artefact.format, environment=environment,
    )  # fmt: skip
    return _said_if_noisy(made)


@dataclass(frozen=True, slots=True, eq=False)
class _Ready:
    """A configuration that passed its gate."""

    recipe: Recipe
    resolved: Resolved
    kernel: XrtKernel
    static: Mapping[int, Array]
    inputs: Mapping[int, Array]
    verdicts: Mapping[str, Verdict]
    findings: tuple[Finding, ...]


def _prepare(
    backend: XrtBackend,
    recipe: Recipe,
    shape: Shape,
    settings: Mapping[str, Any],
    seed: int,
    context_length: int | None,
) -> _Ready | Timed:
    """Compile and run once, and judge that run."""
    resolved = recipe.resolve(shape, settings, backend.device.name)

    def ended(reason: str, findings: Sequence[Finding], verdicts: Mapping[str, Verdict] | None = None) -> Timed:
        environment = record(backend.toolchain, context_length=context_length)
        return Timed(
            recipe.name, resolved, False, reason, verdicts=verdicts or {}, findings=tuple(findings),
            environment=environment,
        )  # fmt: skip

    if not resolved.ok:
        return ended("the check refuses this configuration", resolved.findings)
    arguments = recipe.arguments(resolved)
    positions = {one.name: position for position, one in enumerate(arguments)}
    outputs = tuple(positions[one.name] for one in arguments if one.role == "output")
    kernel = backend.load(
        recipe.program(resolved), name=recipe.name, options=recipe.compile_options(resolved), outputs=outputs
    )
    if isinstance(kernel, Refused):
        return ended(str(kernel), kernel.findings)
    tensors = recipe.inputs(resolved, seed)
    arranged = recipe.arrange(tensors, resolved)
    by_role = {
        role: {positions[one.name]: arranged[one.name] for one in arguments if one.role == role}
        for role in ("static", "input")
    }
    run = kernel.bind(by_role["static"]).run(by_role["input"])
    findings = (*kernel.findings, *run.findings)
    if not run.ok:
        failed = run.failure
        return ended(f"the run failed: {failed.code}: {failed.message}" if failed else "the run failed", findings)
    verdicts = judge_run(recipe, resolved, tensors, run)
    missed = [f"{name}: {verdict.reason}" for name, verdict in verdicts.items() if not verdict.passed]
    if missed:
        return ended("; ".join(missed), findings, verdicts)
    return _Ready(recipe, resolved, kernel, by_role["static"], by_role["input"], verdicts, findings)


def judge_run(recipe: Recipe, resolved: Resolved, tensors: Mapping[str, Array], run: KernelRun) -> dict[str, Verdict]:
    """The outputs of a run by the recipe's own tolerance."""
    arguments = recipe.arguments(resolved)
    given = {one.name: run.outputs[position] for position, one in enumerate(arguments) if position in run.outputs}
    outputs = recipe.collect(given, resolved)
    tolerance = recipe.tolerance(resolved)
    return {
        name: judge(outputs[name], wanted, tolerance) for name, wanted in recipe.reference(tensors, resolved).items()
    }


def _timed(one: _Ready, times: Sequence[float] | Finding, warm_up: int, environment: EnvironmentRecord) -> Timed:
    if isinstance(times, Finding):
        return Timed(
            one.recipe.name, one.resolved, False, f"timing failed: {times.code}: {times.message}",
            format=one.kernel.artefact.format, verdicts=one.verdicts, findings=(*one.findings, times),
            environment=environment,
        )  # fmt: skip
    made = Timed(
        one.recipe.name, one.resolved, True, "gated, then timed", tuple(times), warm_up, one.kernel.artefact.format,
        one.verdicts, one.findings, environment,
    )  # fmt: skip
    return _said_if_noisy(made)


def _said_if_noisy(made: Timed) -> Timed:
    if made.noisy:
        return replace(made, findings=(*made.findings, outcome("timing-noisy", spread=made.max_over_min)))
    return made


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
