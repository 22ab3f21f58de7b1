"""How well the checks agree with what upstream measured: precision and recall over documented outcomes.

    report = measure_outcomes(programs=Path("tests/data/air"))
    report.overall.precision, report.overall.recall, report.held_out

A refusal is the positive class. An outcome is caught when the check refuses it, named when a finding also has the
documented kind of diagnostic. Held out are the outcomes whose shape stands in no data of this package and that no rule
of thumb was read off. Outcomes another measured row contradicts, or that the builders since have made untrue, are listed
and not counted. This measures against documents, never against a device.
"""

from __future__ import annotations

import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from npu_tools.architectures import published
from npu_tools.check.kernel import check_kernel
from npu_tools.check.measured import gemm_rows
from npu_tools.check.model import check_model
from npu_tools.check.program import check_program_text
from npu_tools.device import device
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

_KINDS: Mapping[str, frozenset[str]] = {
    "garbage": frozenset({"odd_trips", "k_multiple", "fused_ffn"}),
    "hang": frozenset({"herd_shape", "tile_q"}),
    "herd_size": frozenset({"herd_size", "cascade_rows", "herd-placement"}),
    "unsupported": frozenset({"head_dim", "rounds"}),
    "tile_q": frozenset({"tile_q", "shape", "divisibility"}),
    "divisibility": frozenset({"divisibility", "seq_len"}),
    "bd_count": frozenset({"bd_count", "fused_ffn"}),
    "compile": frozenset({"stride", "attention_alone", "l2_bytes", "l1_bytes"}),
    "inner_stride": frozenset({"dma-inner-stride"}),
    "channels": frozenset({"core-dma-channels", "shim-dma-channels"}),
    "shim_channels": frozenset({"shim_channels", "shim-dma-channels"}),
    "granule": frozenset({"granule", "dma-granule"}),
    "l1_bytes": frozenset({"l1_bytes", "l1-overflow"}),
}
"""Codes that have a kind of documented diagnostic; a kind that is not here is its own code."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One documented outcome and where it stands."""

    kernel: str
    shape: str
    settings: Mapping[str, object]
    refused: bool
    says: str
    source: str
    commit: str
    date: str
    status: str
    evidence: str
    why: str

    @property
    def counted(self) -> bool:
        return not self.status

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.kernel} {self.shape} {settings}".strip()


@dataclass(frozen=True, slots=True)
class Judged:
    """One outcome beside what the check said."""

    outcome: Outcome
    refused: bool
    codes: tuple[str, ...]
    seconds: float

    @property
    def right(self) -> bool:
        return self.refused == self.outcome.refused

    @property
    def named(self) -> bool:
        says = self.outcome.says
        return self.refused and bool(_KINDS.get(says, frozenset({says})) & set(self.codes))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Counts over some outcomes; the positive class is "refused"."""

    caught: int
    missed: int
    false_alarms: int
    passed: int
    named: int

    @property
    def outcomes(self) -> int:
        return self.caught + self.missed + self.false_alarms + self.passed

    @property
    def precision(self) -> float:
        return self.caught / (self.caught + self.false_alarms) if self.caught else 0.0

    @property
    def recall(self) -> float:
        return self.caught / (self.caught + self.missed) if self.caught else 0.0


@dataclass(frozen=True, slots=True)
class OutcomeReport:
    """What `measure_outcomes` came to."""

    overall: Agreement
    held_out: Agreement
    with_disputed: Agreement
    by_diagnostic: Mapping[str, Agreement]
    by_kernel: Mapping[str, Agreement]
    wrong: tuple[Judged, ...]
    not_counted: tuple[Judged, ...]
    not_tried: tuple[Outcome, ...]
    slowest_kernel_s: float
    slowest_model_s: float

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-ready fields."""
        return {
            "overall": _shown(self.overall),
            "held_out": _shown(self.held_out),
            "with_disputed_and_old": _shown(self.with_disputed),
            "by_diagnostic": {name: _shown(one) for name, one in self.by_diagnostic.items()},
            "by_kernel": {name: _shown(one) for name, one in self.by_kernel.items()},
            "wrong": [_line(one) for one in self.wrong],
            "not_counted": [f"{one.outcome.status}: {_line(one)}" for one in self.not_counted],
            "not_tried": [str(one) for one in self.not_tried],
            "slowest_kernel_s": round(self.slowest_kernel_s, 3),
            "slowest_model_s": round(self.slowest_model_s, 3),
        }


@cache
def outcomes() -> tuple[Outcome, ...]:
    """Every documented outcome of outcomes.toml."""
    table = tomllib.loads(files("npu_tools").joinpath("check/outcomes.toml").read_text(encoding="utf-8"))
    sources = cast("dict[str, dict[str, str]]", table["sources"])
    return tuple(
        Outcome(
            kernel=row["kernel"],
            shape=row["shape"],
            settings=row.get("set", {}),
            refused=row["expect"] == "refused",
            says=row.get("says", ""),
            source=f"{sources[row['source']]['repo']} {sources[row['source']]['path']}",
            commit=sources[row["source"]]["commit"],
            date=sources[row["source"]]["date"],
            status=row.get("status", ""),
            evidence=row.get("evidence", ""),
            why=row.get("why", ""),
        )
        for row in cast("list[dict[str, Any]]", table["cases"]["outcomes"])
    )


def measure_outcomes(*, programs: Path | None = None) -> OutcomeReport:
    """Every outcome checked; program outcomes only where `programs` holds their outcome_<name>.mlir."""
    judged: list[Judged] = []
    not_tried: list[Outcome] = []
    for outcome in outcomes():
        if outcome.kernel == "program" and (programs is None or not _file(programs, outcome).is_file()):
            not_tried.append(outcome)
        else:
            judged.append(_judge(outcome, programs))
    counted = [one for one in judged if one.outcome.counted]
    named = _named_shapes()
    held = [one for one in counted if not one.outcome.evidence and (one.outcome.kernel, one.outcome.shape) not in named]
    models = [one.seconds for one in judged if one.outcome.kernel == "model"]
    others = [one.seconds for one in judged if one.outcome.kernel != "model"]
    return OutcomeReport(
        overall=_agreement(counted),
        held_out=_agreement(held),
        with_disputed=_agreement(judged),
        by_diagnostic=_grouped((one.outcome.says, one) for one in counted if one.outcome.refused),
        by_kernel=_grouped((one.outcome.kernel, one) for one in counted),
        wrong=tuple(one for one in counted if not one.right),
        not_counted=tuple(one for one in judged if not one.outcome.counted),
        not_tried=tuple(not_tried),
        slowest_kernel_s=max(others, default=0.0),
        slowest_model_s=max(models, default=0.0),
    )


def _judge(outcome: Outcome, programs: Path | None) -> Judged:
    began = time.perf_counter()
    found = _findings(outcome, programs)
    seconds = time.perf_counter() - began
    codes = tuple(dict.fromkeys(finding.code for finding in found if finding.severity == "error"))
    return Judged(outcome, bool(codes), codes, seconds)


def _findings(outcome: Outcome, programs: Path | None) -> tuple[Finding, ...]:
    if outcome.kernel == "model":
        config = next(one.config for one in published() if one.name == outcome.shape)
        return check_model(config, int(str(outcome.settings["seq_len"])), name=outcome.shape).findings
    if outcome.kernel == "program":
        assert programs is not None
        path = _file(programs, outcome)
        return check_program_text(path.read_text(encoding="utf-8"), path.name, device("npu2")).findings
    return check_kernel(outcome.kernel, outcome.shape, outcome.settings).findings


def _file(programs: Path, outcome: Outcome) -> Path:
    if not outcome.shape.isidentifier():
        raise UnusableInput(f"{outcome.shape!r} is no name of a program outcome")
    return programs / f"outcome_{outcome.shape}.mlir"


def _named_shapes() -> set[tuple[str, str]]:
    """Shapes that stand in this package's data: measured GEMM rows, published models, and the kernels of their plans."""
    named = {("gemm", f"{row.m}x{row.k}x{row.n}") for row in gemm_rows()}
    return named | {("model", model.name) for model in published()}


def _agreement(judged: Iterable[Judged]) -> Agreement:
    caught = missed = false_alarms = passed = named = 0
    for one in judged:
        caught += one.refused and one.outcome.refused
        missed += not one.refused and one.outcome.refused
        false_alarms += one.refused and not one.outcome.refused
        passed += not one.refused and not one.outcome.refused
        named += one.named and one.outcome.refused
    return Agreement(caught, missed, false_alarms, passed, named)


def _grouped(pairs: Iterable[tuple[str, Judged]]) -> dict[str, Agreement]:
    groups: defaultdict[str, list[Judged]] = defaultdict(list)
    for name, one in pairs:
        groups[name].append(one)
    return {name: _agreement(groups[name]) for name in sorted(groups)}


def _shown(agreement: Agreement) -> dict[str, Any]:
    return {
        "outcomes": agreement.outcomes,
        "refused": agreement.caught + agreement.missed,
        "caught": agreement.caught,
        "false_alarms": agreement.false_alarms,
        "named": agreement.named,
        "precision": round(agreement.precision, 3),
        "recall": round(agreement.recall, 3),
    }


def _line(judged: Judged) -> str:
    outcome = judged.outcome
    said = ", ".join(judged.codes) or "nothing"
    documented = f"refused ({outcome.says})" if outcome.refused else "runs"
    return (
        f"{outcome}: documented {documented}, check says {said}; {outcome.source} @ {outcome.commit[:9]}; {outcome.why}"
    )
