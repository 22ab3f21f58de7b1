"""Running a recipe: print, check, run on the emulator, gate against the reference; and the shapes it must refuse.

>>> run = run_case(recipe(folder, "gemm"), "512x512x512", {"method": "drain"})
>>> run.passed, run.mean_rel_l1, run.wall_s
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from npu_tools.air import parse_program
from npu_tools.check import check_program
from npu_tools.check.kernel import check_kernel
from npu_tools.check.subject import CheckOptions
from npu_tools.device import device as find_device
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.run import run_program
from npu_tools.errors import NpuToolsError, UnusableInput
from npu_tools.estimate import estimate_kernel
from npu_tools.findings import Finding
from npu_tools.gate import Verdict, judge
from npu_tools.recipes.recipe import Array, Recipe, Resolved, Shape

MAX_BYTES = 16_000_000_000
"""Bound on a case's live buffers."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """One case: how it was configured, what came out, how it was judged. `verdicts` is by output.

    `mean_rel_l1` is against the FP32 reference, the worst output; `mean_rel_l1_rounded` against the reference rounded
    to the output's type, which is what upstream's pages of kernels with one rounding give.
    """

    kernel: str
    resolved: Resolved
    passed: bool
    reason: str
    verdicts: Mapping[str, Verdict]
    findings: tuple[Finding, ...]
    mean_rel_l1: float | None
    mean_rel_l1_rounded: float | None
    published: float | None
    modelled_us: float | None
    print_s: float
    parse_s: float
    wall_s: float
    ran_on: Literal["emulator"] = "emulator"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the arrays there are none of."""
        return {
            "kernel": self.kernel, "shape": self.resolved.shape, "settings": self.resolved.settings,
            "chosen": self.resolved.chosen, "passed": self.passed, "reason": self.reason,
            "verdicts": {name: verdict.as_dict() for name, verdict in self.verdicts.items()},
            "findings": [finding.as_dict() for finding in self.findings], "mean_rel_l1": self.mean_rel_l1,
            "mean_rel_l1_rounded": self.mean_rel_l1_rounded, "published": self.published,
            "modelled_us": self.modelled_us, "print_s": round(self.print_s, 3), "parse_s": round(self.parse_s, 3),
            "wall_s": round(self.wall_s, 3), "ran_on": self.ran_on,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class RefusalRun:
    """One shape that must be refused, and the error codes it was refused with."""

    kernel: str
    shape: Mapping[str, int]
    settings: Mapping[str, Any]
    code: str
    found: tuple[str, ...]
    why: str

    @property
    def passed(self) -> bool:
        """Whether it was refused, with the right finding."""
        return self.code in self.found

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "passed": self.passed}


def run_case(
    recipe: Recipe,
    shape: Shape,
    settings: Mapping[str, Any] | None = None,
    *,
    seed: int = 0,
    numerics: Literal["faithful", "f32"] = "faithful",
    convention: str = "upstream",
    timeout_s: float | None = 3600,
    published: float | None = None,
) -> CaseRun:
    """One shape through print, check, run and gate. A missed gate, or a failed run, is an answer.

    Raises:
        UnusableInput: a shape or setting that is none, or that the check refuses.
    """
    resolved = recipe.resolve(shape, settings)
    started = time.monotonic()
    text = recipe.program(resolved)
    printed = time.monotonic()
    program = parse_program(text, f"{recipe.name}-{resolved.extents}.mlir")
    parsed = time.monotonic()
    findings = tuple(check_program(program, find_device("npu2"), _options(recipe, resolved)))

    def ended(passed: bool, reason: str, verdicts: Mapping[str, Verdict], rounded: float | None = None) -> CaseRun:
        errors = [verdict.metrics.mean_rel_l1 for verdict in verdicts.values() if verdict.metrics is not None]
        return CaseRun(
            recipe.name, resolved, passed, reason, verdicts, findings, max(errors, default=None), rounded, published,
            _modelled(recipe, resolved), printed - started, parsed - printed, wall_s,
        )  # fmt: skip

    wall_s = 0.0
    refused = [finding for finding in findings if finding.severity == "error"]
    if refused:
        return ended(False, f"the program is refused: {refused[0].code}: {refused[0].message}", {})
    tensors = recipe.inputs(resolved, seed)
    arranged = recipe.arrange(tensors, resolved)
    arguments = recipe.arguments(resolved)
    by_position = {
        f"arg{position}": arranged[one.name]
        for position, one in enumerate(arguments)
        if one.role in ("input", "static")
    }
    result = run_program(program, by_position, numerics=Numerics(numerics), timeout_s=timeout_s, max_bytes=MAX_BYTES)
    wall_s, findings = result.wall_s, (*findings, *result.findings)
    if not result.ok:
        failed = next(finding for finding in result.findings if finding.severity == "error")
        return ended(False, f"the run failed: {failed.code}: {failed.message}", {})
    given = {one.name: result.outputs[f"arg{position}"] for position, one in enumerate(arguments)}
    outputs = recipe.collect({one.name: given[one.name] for one in arguments if one.role == "output"}, resolved)
    expected = recipe.reference(tensors, resolved)
    tolerance = recipe.tolerance(resolved, convention)
    verdicts = {name: judge(outputs[name], wanted, tolerance) for name, wanted in expected.items()}
    missed = [f"{name}: {verdict.reason}" for name, verdict in verdicts.items() if not verdict.passed]
    dtypes = {one.name: one.dtype for one in recipe.tensors(resolved)}
    rounded = max(_rounded_error(outputs[name], wanted, dtypes[name]) for name, wanted in expected.items())
    return ended(not missed, "; ".join(missed) or "every element is within tolerance", verdicts, rounded)


def run_cases(recipe: Recipe, size: str = "small", *, seed: int = 0) -> Iterator[CaseRun]:
    """The manifest's cases of this size ("all" for every one), one after the other."""
    for case in recipe.manifest.cases:
        if size in ("all", case.size):
            yield run_case(recipe, case.shape, case.settings, seed=seed, published=case.mean_rel_l1)


def run_refusals(recipe: Recipe) -> Iterator[RefusalRun]:
    """The shapes the manifest says must be refused."""
    for refused in recipe.manifest.refused:
        extents = recipe.extents(refused.shape)
        try:
            report = check_kernel(recipe.checked_as, tuple(extents.values()), refused.settings)
            found = tuple(finding.code for finding in report.findings if finding.severity == "error")
        except UnusableInput:
            found = ("unusable_input",)
        yield RefusalRun(recipe.name, extents, refused.settings, refused.code, found, refused.why)


def _options(recipe: Recipe, resolved: Resolved) -> CheckOptions:
    """How the program will be compiled, for the rules that depend on it."""
    return CheckOptions.of({**resolved.settings, **recipe.compile_options(resolved)})


def _modelled(recipe: Recipe, resolved: Resolved) -> float | None:
    listed = recipe.manifest.settings
    asked = {
        name: value
        for name, value in resolved.settings.items()
        if name not in listed or listed[name].source != "recipe"
    }
    try:
        return estimate_kernel(recipe.checked_as, resolved.extents, asked).modelled_us
    except NpuToolsError:
        return None  # a kernel nobody measured has no modelled time


def _rounded_error(actual: Array, expected: Array, dtype: np.dtype[Any]) -> float:
    wanted = np.asarray(expected).astype(dtype).astype(np.float64)
    mean = float(np.abs(wanted).mean())
    error = float(np.abs(np.asarray(actual).astype(np.float64) - wanted).mean())
    return error / mean if mean else error
