"""What check, compile, run, gate and job answer: typed, bounded, with the lessons that fit the findings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from kb import Memory
    from npu_tools.jobs import JobView

SHOWN = 8
"""Findings in a concise answer; the rest are counted, and whole in the job's result.json."""
_TEXT_CHARS = 600
_FACTS_CHARS = 2_500
"""Longest facts of a concise answer, as JSON."""
_TOLD = 6
"""Lessons of the device adapter's own table in one answer."""
_ASKED = 3
"""Error findings whose text is looked up in the memory."""
_SURE, _FAIRLY_SURE = 0.4, 0.6
"""Confidence a lesson needs beside a finding: with the real tools' text, and with our own words only."""
_OURS = ("syntax", "count-mismatch", "loop-step-zero")
"""Findings about the text itself, which no recorded failure is about."""


class FindingReply(BaseModel):
    """One thing found, its place, the limit behind it and what to do."""

    severity: Literal["error", "warning", "note"]
    code: str
    message: str
    op: str | None = None
    line: int | None = None
    column: int | None = None
    diagnostic: str | None = Field(
        default=None, description="what the real tools print for it; null where they are silent"
    )
    limit: str | None = None
    source: str | None = None
    remedy: str | None = None
    certain: bool = Field(default=True, description="false: a rule of thumb")


class LessonBrief(BaseModel):
    """A lesson from the memory that fits a finding; get(id) shows it whole."""

    id: str
    title: str
    confidence: float
    finding: str = Field(description="the code of the finding it fits")


class CheckReply(BaseModel):
    """The answer to `check`."""

    parsed: bool
    ok: bool = Field(description="no error among the findings")
    device: str
    findings: list[FindingReply] = Field(default_factory=list[FindingReply])
    more_findings: int = 0
    facts: dict[str, Any] = Field(default_factory=dict[str, Any], description="chosen settings, shapes, sizes")
    lessons: list[LessonBrief] = Field(default_factory=list[LessonBrief])
    next_step: str


class JobReply(BaseModel):
    """A job: `compile`, `run` and `job` answer with it. Ask `job` again while state is queued or running."""

    job: str
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    ok: bool | None = Field(default=None, description="the work succeeded; null while it is not done")
    reason: str = ""
    progress: str = ""
    wall_s: float = 0
    ran_on: str | None = None
    modelled_us: float | None = Field(default=None, description="modelled, never measured, on the emulator")
    measured_us: float | None = Field(default=None, description="measured, on the device")
    outputs: str | None = Field(default=None, description="file with the arrays arg0 … argN")
    artefact: str | None = None
    counters: dict[str, Any] = Field(default_factory=dict[str, Any])
    facts: dict[str, Any] = Field(default_factory=dict[str, Any])
    findings: list[FindingReply] = Field(default_factory=list[FindingReply])
    more_findings: int = 0
    lessons: list[LessonBrief] = Field(default_factory=list[LessonBrief])
    output_tail: str = ""
    next_step: str


class JobBrief(BaseModel):
    """A job in a list."""

    job: str
    kind: str
    state: Literal["queued", "running", "done", "failed", "cancelled"]
    ok: bool | None = None
    reason: str = ""
    wall_s: float = 0
    findings: int = Field(default=0, description="how many; job(id) shows them")


class JobAnswer(BaseModel):
    """The answer to `job`: the one asked for, or the latest ones, newest first."""

    job: JobReply | None = None
    latest: list[JobBrief] = Field(default_factory=list[JobBrief])


class GateReply(BaseModel):
    """The answer to `gate`."""

    passed: bool
    convention: str
    reason: str
    metrics: dict[str, float | int | None] = Field(default_factory=dict[str, float | int | None])
    worst: dict[str, Any] | None = None
    tolerance: dict[str, Any] = Field(default_factory=dict[str, Any])
    looks_like: list[dict[str, str]] = Field(default_factory=list[dict[str, str]])
    next_step: str


def findings_in(result: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The findings of a job's result, whichever kind of work it was."""
    for name in ("findings", "diagnostics"):
        found: list[dict[str, Any]] = (result or {}).get(name, [])
        if found:
            return found
    return []


def findings_of(found: list[dict[str, Any]]) -> tuple[list[FindingReply], int]:
    """The findings to show, errors first, and how many were left out."""
    order = {"error": 0, "warning": 1, "note": 2}
    ranked = sorted(found, key=lambda finding: order.get(str(finding.get("severity")), 3))
    shown = [
        FindingReply.model_validate({k: _cut(v) for k, v in f.items() if k in FindingReply.model_fields})
        for f in ranked[:SHOWN]
    ]
    return shown, max(0, len(found) - SHOWN)


def lessons_for(found: list[dict[str, Any]], memory: Memory, device: str | None) -> list[LessonBrief]:
    """What the memory knows about the errors among the findings, each lesson once; of the device's also the warnings'."""
    from kb import Filters, KbError
    from mcp_server.device_lessons import lesson_behind

    told: dict[str, LessonBrief] = {}
    asked: set[str] = set()
    for finding in found:
        behind = lesson_behind(finding)
        if behind is not None and finding["code"] not in asked and len(told) < _TOLD:
            asked.add(finding["code"])
            try:
                title = memory.get(behind).record.title
            except KbError:
                continue
            told.setdefault(behind, LessonBrief(id=behind, title=title, confidence=1.0, finding=finding["code"]))
            continue
        text = finding.get("diagnostic") or finding.get("message") or ""
        if finding.get("severity") != "error" or not text or finding["code"] in asked or finding["code"] in _OURS:
            continue
        if len(asked) == _ASKED:
            break
        asked.add(finding["code"])
        answer = memory.explain(text, Filters(device), 1)
        needed = _SURE if finding.get("diagnostic") else _FAIRLY_SURE
        if not answer.no_match and answer.hits and answer.hits[0].confidence >= needed:
            hit = answer.hits[0]
            told.setdefault(
                hit.record.id,
                LessonBrief(
                    id=hit.record.id,
                    title=hit.record.title,
                    confidence=round(hit.confidence, 2),
                    finding=finding["code"],
                ),
            )
    return list(told.values())


def check_reply(answer: dict[str, Any], lessons: list[LessonBrief], *, full: bool = False) -> CheckReply:
    """A check's answer for the model; `full` keeps long facts, such as every launch of a model's plan."""
    shown, more = findings_of(answer["findings"])
    facts = {key: value for key, value in answer.items() if key not in ("parsed", "ok", "device", "findings")}
    facts = facts if full else bounded(facts, 'detail="full" shows them')
    errors = sum(f["severity"] == "error" for f in answer["findings"])
    if not answer["parsed"]:
        step = "Correct the text at the named line and check again."
    elif errors:
        step = "Apply the remedies, errors first, and check again. get(id) shows a lesson whole."
    else:
        step = "Nothing refuses it. Next: compile, then run and gate."
    return CheckReply(
        parsed=answer["parsed"], ok=answer["ok"], device=answer["device"], findings=shown, more_findings=more,
        facts=facts, lessons=lessons, next_step=step,
    )  # fmt: skip


def bounded(facts: dict[str, Any], elsewhere: str) -> dict[str, Any]:
    """The facts without the longest of them where together they are over the bound; their names and `elsewhere` instead."""
    sizes = {key: len(json.dumps(value, default=str)) for key, value in facts.items()}
    left: list[str] = []
    for key in sorted(sizes, key=lambda name: -sizes[name]):
        if sum(sizes.values()) <= _FACTS_CHARS:
            break
        del sizes[key]
        left.append(key)
    kept = {key: value for key, value in facts.items() if key in sizes}
    return {**kept, "left_out": f"{', '.join(left)}; {elsewhere}"} if left else kept


def job_brief(view: JobView) -> JobBrief:
    """A job as one entry of a list."""
    result = view.result or {}
    done = view.state == "done"
    ok = bool(result.get("ok")) if done else (None if view.state in ("queued", "running") else False)
    return JobBrief(
        job=view.id, kind=view.kind, state=view.state, ok=ok, reason=view.reason[:200], wall_s=view.wall_s,
        findings=len(findings_in(view.result)),
    )  # fmt: skip


def job_reply(view: JobView, lessons: list[LessonBrief]) -> JobReply:
    """A job for the model."""
    result = view.result or {}
    shown, more = findings_of(findings_in(result))
    counters: dict[str, Any] = result.get("counters") or {}
    known = {
        "ok",
        "findings",
        "diagnostics",
        "ran_on",
        "modelled_us",
        "measured_us",
        "outputs",
        "artefact",
        "counters",
        "wall_s",
    }
    done = view.state == "done"
    ok = bool(result.get("ok")) if done else (None if view.state in ("queued", "running") else False)
    share = f"{view.progress.done / view.progress.total:.0%}" if view.progress.total else ""
    if ok is None:
        step = f"Call job(id={view.id!r}, action='wait') again; action='cancel' stops it."
    elif ok and view.kind == "run":
        step = "Compare the outputs with a reference: gate."
    elif ok:
        step = "Run it: run(artefact=…)."
    elif view.state == "cancelled":
        step = "It was stopped on request; start it again when it is wanted."
    else:
        step = "Fix what the findings name; get(id) shows a lesson whole; explain_error takes any raw text."
    return JobReply(
        job=view.id,
        kind=view.kind,
        state=view.state,
        ok=ok,
        reason=view.reason,
        progress=" ".join(part for part in (share, view.progress.note) if part),
        wall_s=view.wall_s,
        ran_on=result.get("ran_on"),
        modelled_us=result.get("modelled_us"),
        measured_us=result.get("measured_us"),
        outputs=result.get("outputs"),
        artefact=result.get("artefact"),
        counters=dict(list(counters.items())[:20]),
        facts=bounded({k: v for k, v in result.items() if k not in known}, "result.json of the job has them"),
        findings=shown,
        more_findings=more,
        lessons=lessons,
        output_tail=view.output_tail[-_TEXT_CHARS:] if view.state == "failed" else "",
        next_step=step,
    )


def gate_reply(verdict: dict[str, Any]) -> GateReply:
    """A verdict for the model."""
    passed = bool(verdict["passed"])
    step = (
        "Passed: keep it." if passed else "Look first at what looks_like names; describe the symptom to explain_error."
    )
    fields = {key: value for key, value in verdict.items() if key in GateReply.model_fields}
    return GateReply.model_validate({**fields, "next_step": step})


def _cut(value: Any) -> Any:
    return value[: _TEXT_CHARS - 1] + "…" if isinstance(value, str) and len(value) > _TEXT_CHARS else value
