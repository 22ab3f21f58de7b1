"""What the real tools print, and what the adapter notices, as the findings everybody else gives.

    read_log(text, "compile", place="/tmp/x")        # every text of outcomes.toml that is in it, with its line
    outcome("run-hung", seconds=12, advice="…")      # one the adapter noticed by itself
    lesson_of("run-hung")                            # the corpus record behind it

The table is outcomes.toml. A log nothing in it matches still gives a finding, with the first line that says "error".
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from npu_tools.findings import Finding, Severity

Stage = Literal["compile", "load", "run", "machine"]
Fatal = Literal["", "retry", "context", "device"]
MAX_LINE = 400
_PLACE = re.compile(r"(?:^|[\s/\\])[\w.-]*\.mlir:(\d+):(\d+)")
_OP = re.compile(r"'([\w.]+)' op\b")
_ERROR = re.compile(r"\berror\b|\bfatal\b|\bfailed\b|\bException\b|\bERROR\b", re.IGNORECASE)
_WARNING = re.compile(r"\bwarning\s*:", re.IGNORECASE)
_MAX_WARNINGS = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of outcomes.toml."""

    code: str
    stage: Stage
    severity: Severity
    patterns: tuple[re.Pattern[str], ...]
    message: str
    remedy: str
    source: str
    lesson: str
    fatal: Fatal


def outcomes() -> tuple[Outcome, ...]:
    """Every row, in the order in which patterns are tried."""
    return _table()


def lesson_of(code: str) -> str | None:
    """The id of the corpus record behind a code of the adapter; None where there is none."""
    row = _by_code().get(code)
    return row.lesson or None if row is not None else None


def fatal_of(code: str) -> Fatal:
    """What a failure means for the device: nothing, try again, make a new context, look at the machine."""
    row = _by_code().get(code)
    return row.fatal if row is not None else ""


def outcome(code: str, *, diagnostic: str | None = None, line: int | None = None, **values: Any) -> Finding:
    """The finding of this code, its message and remedy filled in with `values`.

    Raises:
        KeyError: no such code; a mistake in this package.
    """
    row = _by_code()[code]
    known = _Values(values)
    return Finding(
        severity=row.severity,
        code=row.code,
        message=row.message.format_map(known),
        diagnostic=diagnostic,
        line=line,
        source=row.source,
        remedy=row.remedy.format_map(known),
    )


def read_log(text: str, stage: Stage, **values: Any) -> list[Finding]:
    """The findings in a tool's output: one for each code and op, with the line that says it and its place in the program.

    Texts of the earlier stages are looked for too, since a load may print what a compile should have.
    """
    order: tuple[Stage, ...] = ("compile", "load", "run", "machine")
    rows = [row for row in _table() if order.index(row.stage) <= order.index(stage)]
    if stage != "compile":
        rows.sort(key=lambda row: row.stage == "compile")
        rows.sort(key=lambda row: row.stage != stage)
    found: dict[tuple[str, str | None], Finding] = {}
    for said in text.splitlines():
        row = next((row for row in rows if any(pattern.search(said) for pattern in row.patterns)), None)
        if row is None:
            continue
        line = said.strip()[:MAX_LINE]
        values.update(first=line, why=line)
        op = _OP.search(said)
        key = row.code, op.group(1) if op else None
        if key not in found:
            found[key] = _placed(outcome(row.code, diagnostic=line, **values), said)
    return list(found.values())


def warnings_in(text: str, known: Iterable[Finding] = ()) -> list[Finding]:
    """The compiler's warnings, which XRTBackend throws away on success; the first few of them, each once."""
    said = {finding.diagnostic for finding in known}
    found: list[Finding] = []
    for line in text.splitlines():
        short = line.strip()[:MAX_LINE]
        if not _WARNING.search(line) or short in said or len(found) >= _MAX_WARNINGS:
            continue
        said.add(short)
        found.append(_placed(outcome("compiler-warning", diagnostic=short, text=short), line))
    return found


def first_error(text: str) -> str:
    """The line of a log that most likely says what is wrong, else its last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[-1] if lines else "no output")[:MAX_LINE]


class _Values(dict[str, Any]):
    """Names a message mentions and nobody filled in are left open."""

    def __missing__(self, key: str) -> Any:
        return "(unknown)"


def _placed(finding: Finding, said: str) -> Finding:
    from dataclasses import replace

    place, op = _PLACE.search(said), _OP.search(said)
    return replace(
        finding,
        op=op.group(1) if op else None,
        line=int(place.group(1)) if place else None,
        column=int(place.group(2)) if place else None,
    )


@cache
def _table() -> tuple[Outcome, ...]:
    text = (files("npu_tools.backends.xrt") / "outcomes.toml").read_text(encoding="utf-8")
    return tuple(
        Outcome(
            row["code"], row["stage"], row["severity"], tuple(re.compile(one) for one in row["patterns"]), row["message"],
            row["remedy"], row["source"], row["lesson"], row.get("fatal", ""),
        )
        for row in tomllib.loads(text)["outcome"]
    )  # fmt: skip


@cache
def _by_code() -> dict[str, Outcome]:
    return {row.code: row for row in _table()}
