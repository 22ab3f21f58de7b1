"""evaluation_report.md: the verdict, why, and what was looked at, on one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.evaluator.evaluate import Evaluation
from npu_tools.evaluator.reasons import CODES, Reason

MOST = 12
"""Reasons shown in full; verdict.json has all."""
WORDS = {
    "pass": "**PASS**: nothing speaks against this deployment.",
    "pass_with_warnings": "**PASS WITH WARNINGS**: the deployment holds; the points below should be looked at.",
    "fail": "**FAIL**: this deployment is not what it claims to be, or does not hold what it must.",
}


def report(found: Evaluation) -> str:
    """The page."""
    about = found.about
    lines = [
        f"# Evaluation of {about.get('model')}", "", WORDS[found.verdict], "",
        f"Weights `{about.get('weights')}`, {about.get('layers')} layers, {about.get('seq_len')} tokens, "
        f"backend {about.get('backend')}, convention {about.get('convention')}. "
        f"Seed {found.seed}, effort {found.effort}.", "", *_head(about), "",
    ]  # fmt: skip
    errors = [reason for reason in found.reasons if reason.severity == "error"]
    warnings = [reason for reason in found.reasons if reason.severity == "warning"]
    for title, listed in (("Errors", errors), ("Warnings", warnings)):
        if listed:
            lines += [f"## {title}", "", *_table(listed), ""]
    lines += ["## What was looked at", "", "| Audit | Reasons | Seconds |", "|---|---|---|"]
    lines += [f"| {name} | {count or '–'} | {took:.1f} |" for name, (count, took) in found.audits.items()]
    lines += ["", *_again(found), "", "Times in this deployment are modelled unless a line says measured."]
    return "\n".join(lines) + "\n"


def _head(about: Mapping[str, Any]) -> list[str]:
    """What the chain proves, and what only a hash kept elsewhere does."""
    lines = [f"Ledger of {about.get('ledger_lines')} lines; the last one's hash is `{about.get('head')}`."]
    if about.get("head_kept_elsewhere"):
        return [*lines, f"It was held against `{about['head_kept_elsewhere']}`, kept elsewhere."]
    return [*lines, "Keep it elsewhere: a chain rewritten whole, with all its files, looks like an honest one, and only "
            "`herdbook evaluate DIR --head HASH` tells them apart."]  # fmt: skip


def _table(reasons: list[Reason]) -> list[str]:
    rows = ["| Code | What | Where |", "|---|---|---|"]
    rows += [f"| `{one.code}` | {_cell(one.text)} | {_cell(one.evidence)} |" for one in reasons[:MOST]]
    if len(reasons) > MOST:
        rows += ["", f"and {len(reasons) - MOST} more in verdict.json"]
    meant = dict.fromkeys(one.code for one in reasons[:MOST])
    return [*rows, "", *[f"- `{code}`: {CODES[code][1]}" for code in meant]]


def _again(found: Evaluation) -> list[str]:
    checked = found.checked
    if found.effort == "papers":
        return ["Nothing was run again (effort papers)."]
    said: list[str] = []
    if checked.kernels:
        worst = max(checked.errors.items(), key=lambda item: item[1], default=None)
        told = f"; largest mean_rel_L1 {worst[1]:.2e} ({worst[0]})" if worst else ""
        said.append(f"- {len(checked.kernels)} kernels run again on fresh inputs{told}")
    if checked.left:
        said.append(
            f"- {len(checked.left)} kernels not run again for want of time, first {checked.left[0]}; effort full does"
        )
    return [*said, *[f"- {note}" for note in checked.notes]] or ["Nothing was run again."]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")[:400]
