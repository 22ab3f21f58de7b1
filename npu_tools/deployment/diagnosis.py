"""Why a gate failed, in words an agent can act on, and which skills go with it.

>>> of_finding(finding, kernel="gemm").skills
('debug-multi-launch-merge',)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npu_tools.errors import NotMeasured
from npu_tools.findings import Finding
from npu_tools.gate.compare import Verdict

_BUFFERS = ("stale", "previous", "repeats", "all zero", "poison", "one value everywhere", "shifted")
_HANGS = {"deadlock", "timeout", "hang", "hangs", "nan", "uninitialised"}
_MERGING = {"bd", "bds", "channel", "channels", "shim", "routing", "placement", "launches", "stride", "merged"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One failure. `text` is what a memory is asked with: the real tools' words where there are any."""

    code: str
    message: str
    text: str = ""
    """Empty where no memory of failures can help."""
    looks_like: str = ""
    stage: str | None = None
    layer: int | None = None
    kernel: str | None = None
    remedy: str = ""

    @property
    def skills(self) -> tuple[str, ...]:
        """Debugging skills this kind of failure calls for."""
        told = f"{self.code} {self.looks_like} {self.message}".casefold()
        words = set(re.findall(r"[a-z_]+", told))
        found: list[str] = []
        if any(word in told for word in _BUFFERS):
            found.append("debug-bo-corruption")
        if self.kernel == "flash_attention" or words & _HANGS:
            found.append("debug-fa-runtime-failure")
        if words & _MERGING and self.kernel is not None:
            found.append("debug-multi-launch-merge")
        return tuple(found)

    def as_dict(self) -> dict[str, Any]:
        """As the ledger has it."""
        return {
            "code": self.code, "message": self.message, "looks_like": self.looks_like, "stage": self.stage,
            "layer": self.layer, "kernel": self.kernel, "remedy": self.remedy, "text": self.text,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Symptom:
    """What the memory is asked about a failure."""

    text: str
    code: str
    phase: int
    kernel: str | None
    model: str


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson that fits, in brief."""

    id: str
    title: str
    confidence: float


Advise = Callable[[Symptom], Sequence[Lesson]]
"""Whoever knows the memory; npu_tools does not."""


def no_advice(_: Symptom) -> Sequence[Lesson]:
    """Nobody to ask."""
    return ()


def of_finding(finding: Finding, *, kernel: str | None = None, refused: bool = True) -> Diagnosis:
    """A refused program or a failed run."""
    where = f" (line {finding.line})" if finding.line else ""
    return Diagnosis(
        code=finding.code,
        message=f"{kernel or finding.op or 'program'} {'is refused' if refused else 'failed'}: {finding.message}{where}",
        text="\n".join(part for part in (finding.diagnostic, finding.message) if part),
        kernel=kernel,
        remedy=finding.remedy or "",
    )


def of_verdict(verdict: Verdict, *, kernel: str | None, output: str, stage: str | None = None) -> Diagnosis:
    """An output outside its tolerance."""
    alike = verdict.looks_like[0] if verdict.looks_like else None
    looks = f"{alike.kind}: {alike.evidence}; look at {alike.look_at}" if alike else ""
    what = f"{kernel or 'the kernel'}: output {output}"
    return Diagnosis(
        code=f"numerics-{alike.kind.replace(' ', '-')}" if alike else "numerics",
        message=f"{what}: {verdict.reason}",
        text=f"{what} is wrong: {alike.kind}, {alike.evidence}" if alike else f"{what} misses its tolerance",
        looks_like=looks,
        stage=stage,
        kernel=kernel,
        remedy=alike.look_at if alike else "",
    )


def of_error(error: Exception, code: str = "unusable_input") -> Diagnosis:
    """An error that ended the phase."""
    if isinstance(error, NotMeasured):
        return of_finding(error.finding, kernel=error.finding.op or "a timed kernel", refused=False)
    text = str(error) or type(error).__name__
    return Diagnosis(code=code, message=text, text=text)


def brief(body: Mapping[str, Any]) -> str:
    """One line about a failed attempt."""
    diagnosis: Mapping[str, Any] = body.get("diagnosis") or {}
    return str(diagnosis.get("message") or body.get("gate"))
