"""Job records of this product to drafts: a job that failed, the next one on the same thing that did not, and what differs.

>>> drafts_of_jobs([source, …])   # sources of kind "job": each the request.json of one job folder

Also on the same program by name: the text of the failing and of the passing program are compared line by line.
"""

from __future__ import annotations

import difflib
import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, cast

from harvest.draft import Case, Draft, Evidence
from harvest.sources import Source
from harvest.wording import category_of
from npu_tools.jobs.records import read_json

MAX_DIFF_LINES = 24


@dataclass(frozen=True, slots=True)
class _Job:
    name: str
    kind: str
    request: Mapping[str, Any]
    ended: float
    finding: Mapping[str, Any] | None
    folder: Path

    @property
    def failed(self) -> bool:
        return self.finding is not None

    @property
    def program(self) -> tuple[str, str]:
        """Name and text of the program the job was about."""
        given = self.request.get("program")
        fields = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {"name": str(given or "")}
        return str(fields.get("name") or fields.get("path") or ""), str(fields.get("text") or "")


def drafts_of_jobs(sources: Sequence[Source]) -> list[Draft]:
    """One draft for every failure that a later job on the same program no longer has."""
    jobs = [job for source in sources if (job := _read(source.path.parent)) is not None]
    about: defaultdict[tuple[str, str], list[_Job]] = defaultdict(list)
    for job in sorted(jobs, key=lambda job: (job.ended, job.name)):
        name = job.program[0] or json.dumps([job.request.get("kernel"), job.request.get("shape")])
        about[job.kind, name].append(job)
    drafts: list[Draft] = []
    for group in about.values():
        failing: _Job | None = None
        for job in group:
            if failing is None:
                failing = job if job.failed else None
            elif not job.failed or _code(job) != _code(failing):
                draft = _lesson(failing, job)
                if draft is not None:
                    drafts.append(draft)
                failing = job if job.failed else None
            else:
                failing = job
    return drafts


def _read(folder: Path) -> _Job | None:
    asked, state, result = (read_json(folder / name) for name in ("request.json", "state.json", "result.json"))
    if asked is None or state is None or state.get("state") not in ("done", "failed"):
        return None
    request = asked.get("request")
    answer = result or {}
    told: Any = answer.get("findings") or answer.get("diagnostics") or []
    listed = cast("list[Any]", told) if isinstance(told, list) else []
    findings = [cast("Mapping[str, Any]", one) for one in listed if isinstance(one, Mapping)]
    bad = next((f for f in findings if f.get("severity") == "error"), None)
    if bad is None and (state["state"] == "failed" or answer.get("ok") is False or answer.get("passed") is False):
        bad = {"code": "failed", "message": str(state.get("reason") or answer.get("reason") or "")[:400]}
        if not bad["message"]:
            return None
    ended = float(state.get("ended_at") or state.get("queued_at") or 0)
    return _Job(
        folder.name, str(asked.get("kind", "job")), cast("Mapping[str, Any]", request or {}), ended, bad, folder
    )


def _lesson(failing: _Job, after: _Job) -> Draft | None:
    finding = failing.finding or {}
    fix = _difference(failing, after)
    if not fix:
        return None
    message, code = str(finding.get("message", "")), _code(failing)
    name = Path(failing.program[0]).stem or str(failing.request.get("kernel") or failing.kind)
    diagnostic = "\n".join(dict.fromkeys(t for t in (str(finding.get("diagnostic") or ""), f"{code}: {message}") if t))
    cause = (
        f"The limit is {finding['limit']} ({finding.get('source') or 'device table'})." if finding.get("limit") else ""
    )
    fields: dict[str, Any] = {
        "title": f"{name}: {message or code}"[:150], "symptom": f"{failing.kind} of {name} failed.\n\n```\n{diagnostic}\n```",
        "cause": cause, "fix": fix, "verify": f"{after.kind} of {name} then no longer reports {code}.",
        "category": category_of(f"{code.replace('_', ' ')} {message}"),
    }  # fmt: skip
    day = date.fromisoformat(time.strftime("%Y-%m-%d", time.gmtime(failing.ended))) if failing.ended else None
    case = (
        Case({"program_text": failing.program[1]}, {"program_text": after.program[1]}, code)
        if failing.program[1] and after.program[1]
        else None
    )
    return Draft(
        "lesson", fields, Evidence(f"job:{failing.name}..{after.name}", day), "job", () if cause else ("cause",), case
    )


def _difference(failing: _Job, after: _Job) -> str:
    """What the later request asks for differently: options, then lines of the program."""
    lines: list[str] = []
    for name in sorted({*failing.request, *after.request} - {"program", "inputs", "outputs"}):
        old, new = failing.request.get(name), after.request.get(name)
        if old != new:
            lines.append(f"{len(lines) + 1}. Change {name} from {json.dumps(old)} to {json.dumps(new)}.")
    before, now = failing.program[1].split("\n"), after.program[1].split("\n")
    if before != now:
        changed = [
            line for line in difflib.unified_diff(before, now, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")
        ]
        if changed:
            shown = changed[:MAX_DIFF_LINES]
            more = f"\n… and {len(changed) - len(shown)} more lines" if len(changed) > len(shown) else ""
            lines.append(f"{len(lines) + 1}. Change the program:\n```\n" + "\n".join(shown) + more + "\n```")
    return "\n".join(lines)


def _code(job: _Job) -> str:
    return str((job.finding or {}).get("code") or "failed")
