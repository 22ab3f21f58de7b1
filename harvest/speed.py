"""Notes of what made something faster to trajectory steps with their figures before and after.

>>> drafts_of_figures(source)

A step is a line that gives two figures of one unit with an arrow between them (`18.67 s → 13.40 s`, `59ms -> 37ms`), or
a row of a table with columns for before and after. Which gate still passed is kept when the line says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harvest.draft import Draft, Evidence
from harvest.markdown import Table, blocks, item_text, plain, sections, table_of
from harvest.sources import Source
from harvest.wording import clean_title, date_in

_FIGURE = r"\**~?(\d+(?:\.\d+)?)\s*"
_UNIT = r"(ms/token|ms/layer|tok/s|GFLOPS?|GB/s|µs|us|ms|s)(?![\w/])"
_ARROW = re.compile(rf"{_FIGURE}(?:{_UNIT})?\**\s*(?:→|->|⟶)\s*{_FIGURE}{_UNIT}")
_FASTER = re.compile(
    r"(?i)speed-?up|faster|reduc|eliminat|latency|prefill|decode|ms/|tok/s|kernel time|overhead|wall|optimi[sz]|GFLOP|NPU|→\s*\**\d"
)
_STAGE = re.compile(r"(?i)\b(prefill|decode)\b")
_GATE = re.compile(r"(?i)\bverif\w+|\bpass(?:es|ed)?\b|\bcorr(?:elation)?\b|top-1|no regression")
MIN_STEPS = 2
MAX_STEPS = 60


def drafts_of_figures(source: Source) -> list[Draft]:
    """One trajectory a document and stage, with its steps in the order of the document."""
    by_stage: dict[str, list[dict[str, Any]]] = {}
    first = None
    for section in sections(source.text):
        heading = f"{' '.join(section.path)} {section.title}"
        for when, text, change in _lines(section.body):
            step = _step(text, change)
            if step is None or not (_FASTER.search(text) or _FASTER.search(heading)):
                continue
            named = _STAGE.search(text) or _STAGE.search(heading) or _STAGE.search(source.label.replace("_", " "))
            day = date_in(when) or date_in(text) or date_in(section.title)
            step["when"] = day.isoformat() if day is not None else "not dated"
            first = min(first, day) if first is not None and day is not None else first or day
            by_stage.setdefault(named[1].lower() if named else "deployment", []).append(step)
    drafts: list[Draft] = []
    for stage, steps in sorted(by_stage.items()):
        unique = list({(s["change"], s["before"], s["after"]): s for s in steps}.values())[:MAX_STEPS]
        if len(unique) >= MIN_STEPS:
            fields = {"title": f"{source.deployment} {stage}: steps noted in {source.label.rsplit('/', 1)[-1]}",
                      "subject": source.deployment, "stage": stage, "steps": unique}  # fmt: skip
            drafts.append(Draft("trajectory", fields, Evidence(f"notes:{source.label}#{stage}"[:390], first), "note"))
    return drafts


def _lines(body: str) -> Iterator[tuple[str, str, str]]:
    """(date cell, whole text, what was changed) of every item, paragraph and table row."""
    for block in blocks(body):
        table = table_of(block)
        if table is not None:
            yield from _before_after(table)
            dated = bool(table.columns) and re.fullmatch(r"date|when|day", table.columns[0]) is not None
            for row in table.rows:
                rest = row[1:] if dated else row
                cells = [cell for cell in rest if cell and not _ARROW.fullmatch(cell.strip())]
                yield (row[0] if dated else ""), " | ".join(rest), cells[0] if cells else ""
        else:
            text = item_text(block) or block
            if "\n" not in text or _ARROW.search(text):
                yield "", " ".join(text.split()), text


def _before_after(table: Table) -> Iterator[tuple[str, str, str]]:
    """Rows of a table with columns for before and after, as `what: before → after`."""
    before = next(
        (n for n, column in enumerate(table.columns) if re.match(r"before|today|cold|baseline|old", column)), None
    )
    after = next(
        (n for n, column in enumerate(table.columns) if re.match(r"after|new|warm|optimi[sz]ed", column)), None
    )
    if before is None or after is None or 0 in (before, after):
        return
    heading = " ".join(table.columns)
    for row in table.rows:
        yield "", f"{row[0]} ({heading}): {row[before]} → {row[after]}", row[0]


def _step(text: str, change: str) -> dict[str, Any] | None:
    match = _ARROW.search(text)
    if match is None:
        return None
    before, unit, after, unit_after = match[1], match[2] or match[4], match[3], match[4]
    if unit != unit_after:
        return None
    said = clean_title(plain(_ARROW.sub("", change or text)).split(". ")[0])[:200]
    if len(said) < 4:
        return None
    gate = next(
        (
            plain(part)[:160]
            for part in re.split(r"(?<=[.;])\s", text)
            if _GATE.search(part) and not _ARROW.search(part)
        ),
        "",
    )
    higher = unit in ("tok/s", "GFLOP", "GFLOPS", "GB/s")
    first, last = float(before), float(after)
    return {"when": "", "change": said, "before": first, "after": last, "unit": unit,
            "helped": last > first if higher else last < first, "detail": gate or None}  # fmt: skip
