"""One program from text to verdict: is it read, does the check let it pass, does it run, does its result agree.

>>> judge_program(Path("gemm.mlir"), Trying()).outputs[0].mean_rel_l1
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npu_tools.air import Program, parse_program
from npu_tools.arrays import seeded, signature
from npu_tools.bench.references import Case, Expected, Trial, reference_for
from npu_tools.bench.references.registry import Fault, fault_of
from npu_tools.check.program import check_program
from npu_tools.device import device
from npu_tools.emulator.machine import Grouping
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.run import RunResult, choose_function, run_program
from npu_tools.errors import NpuToolsError, ProgramSyntaxError
from npu_tools.findings import Finding
from npu_tools.gate import judge

Verdict = Literal["agrees", "differs", "no reference", "faulty program", "not run"]


@dataclass(frozen=True, slots=True)
class Trying:
    """How a program is tried. `device` npu1 also computes with AIE2's numerics; None takes it from the file's name."""

    device: str | None = None
    numerics: Literal["faithful", "f32"] = "faithful"
    grouping: Grouping = "lifted"
    timeout_s: float = 300.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class OutputFigures:
    """One argument beside the reference: its worst error as a share of what is allowed there, and the usual figures."""

    argument: str
    agrees: bool
    reason: str
    mean_rel_l1: float | None
    worst_share: float | None
    rtol: float
    atol: float
    tolerance: str


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What one program came to. `refusals` are the check's certain errors; `faults` the run's errors.

    `checks` also where the check refuses only what is known to be wrong with the program; `runs` also where the run
    came to its end and found the fault that is known.
    """

    name: str
    parses: bool
    checks: bool
    runs: bool
    verdict: Verdict
    reason: str
    refusals: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    outputs: tuple[OutputFigures, ...] = ()
    run_s: float = 0.0
    total_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ProgramResult:
        """The inverse of `as_dict`."""
        fields: dict[str, Any] = {
            **data,
            "outputs": tuple(OutputFigures(**row) for row in data["outputs"]),
            "refusals": tuple(data["refusals"]),
            "faults": tuple(data["faults"]),
        }
        return cls(**fields)


def judge_program(path: Path, trying: Trying, progress: Callable[[int], None] | None = None) -> ProgramResult:
    """Read, check, run and compare one file; never raises for what is wrong with it."""
    began = time.perf_counter()
    stem = path.stem
    try:
        program = parse_program(path.read_text(encoding="utf-8"), name=path.name)
    except (ProgramSyntaxError, UnicodeDecodeError, OSError) as error:
        return ProgramResult(stem, False, False, False, "not run", f"not read: {error}")
    fault = fault_of(stem)
    target = trying.device or ("npu1" if "npu1" in stem else "npu2")
    refused = [one for one in check_program(program, device(target)) if one.severity == "error" and one.certain]
    refusals = tuple(f"{one.code}, line {one.line}: {one.message}" for one in refused)
    checks = all(fault is not None and one.code in fault.refusals for one in refused)
    try:
        trial, without = _trial(program, stem, trying.seed)
        numerics = Numerics(trying.numerics, generation="aie2" if target == "npu1" else "aie2p")
        result = run_program(
            program,
            trial.inputs,
            numerics=numerics,
            grouping=trying.grouping,
            timeout_s=trying.timeout_s,
            progress=progress,
        )
    except NpuToolsError as error:
        return ProgramResult(stem, True, checks, False, "not run", f"not run: {error}", refusals)
    verdict, reason, outputs = _compare(fault, trial, without, result)
    return ProgramResult(
        name=stem,
        parses=True,
        checks=checks,
        runs=result.ok or verdict == "faulty program",
        verdict=verdict,
        reason=reason,
        refusals=refusals,
        faults=tuple(_told(one) for one in result.findings if one.severity == "error"),
        outputs=outputs,
        run_s=result.wall_s,
        total_s=time.perf_counter() - began,
    )


def _trial(program: Program, stem: str, seed: int) -> tuple[Trial, str]:
    """Inputs and what to expect; why nothing is expected, where that is so."""
    entry = choose_function(program, None)
    build = reference_for(stem, entry.sym_name.data)
    if build is None:
        inputs = seeded(signature(entry), seed)
        return Trial(inputs, {}), f"no reference is written for {stem} or its function @{entry.sym_name.data}"
    try:
        return build(Case.of(program, entry, stem, seed)), ""
    except (LookupError, ValueError, AssertionError, ArithmeticError, StopIteration, TypeError) as error:
        inputs = seeded(signature(entry), seed)
        return Trial(
            inputs, {}
        ), f"the reference does not fit this program's arguments ({type(error).__name__}: {error})"


def _compare(
    fault: Fault | None, trial: Trial, without: str, result: RunResult
) -> tuple[Verdict, str, tuple[OutputFigures, ...]]:
    if not result.ok:
        errors = [one for one in result.findings if one.severity == "error"]
        # The emulator reports a window beyond its memref and goes on with what lies inside.
        if fault is not None and errors and all(one.code == fault.code for one in errors):
            return "faulty program", fault.why, ()
        return "not run", _told(errors[0]) if errors else "the run gave no result", ()
    if not trial.expected:
        return "no reference", without, ()
    outputs = tuple(_figures(name, one, result) for name, one in trial.expected.items())
    wrong = next((one for one in outputs if not one.agrees), None)
    if wrong is not None:
        return "differs", f"{wrong.argument}: {wrong.reason}", outputs
    return "agrees", "", outputs


def _figures(name: str, expected: Expected, result: RunResult) -> OutputFigures:
    actual = result.outputs[name]
    if expected.values.dtype == np.uint8 and actual.dtype == np.int8:
        actual = actual.view(np.uint8)  # bytes without a sign of their own, meant as 0 to 255
    verdict = judge(actual, expected.values, expected.tolerance)
    worst, tolerance = verdict.worst, expected.tolerance
    share = None
    if worst is not None:
        share = worst.error / worst.allowed if worst.allowed else (0.0 if worst.error == 0 else float("inf"))
    return OutputFigures(
        argument=name,
        agrees=verdict.passed,
        reason=verdict.reason,
        mean_rel_l1=verdict.metrics.mean_rel_l1 if verdict.metrics is not None else None,
        worst_share=share,
        rtol=tolerance.rtol,
        atol=tolerance.atol,
        tolerance=tolerance.kernel or tolerance.source,
    )


def _told(finding: Finding) -> str:
    place = f", line {finding.line}" if finding.line else ""
    return f"{finding.code}{place}: {finding.message}"
