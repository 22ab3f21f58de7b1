"""Phase 7: the independent evaluator, in a fresh process that trusts nothing written here."""

from __future__ import annotations

import time
from typing import Any

from npu_tools.deployment.diagnosis import Diagnosis
from npu_tools.deployment.site import Ended, Site
from npu_tools.deployment.workspace import read_json
from npu_tools.errors import NpuToolsError, UnusableInput


def run(site: Site) -> Ended:
    """Have it evaluated, and record the verdict with its reasons."""
    started = time.monotonic()
    judging = site.judging(7)
    site.teller.progress(0, 1, "the independent evaluator")
    try:
        verdict: dict[str, Any] = dict(site.world.evaluate(site.workspace.folder, site.shipped))
    except NpuToolsError as error:
        verdict = {"verdict": "fail", "reasons": [{"code": "evaluator", "text": str(error), "evidence": ""}]}
    said, reasons = str(verdict.get("verdict")), list(verdict.get("reasons") or [])
    judging.measure("verdict", said in ("pass", "pass_with_warnings"), said)
    why = None
    if judging.missed:
        unknown = {"code": "no-reason", "text": "the evaluator gave no reason"}
        first: dict[str, Any] = next(
            (r for r in reasons if r.get("severity") == "error"), reasons[0] if reasons else unknown
        )
        code, text = str(first.get("code")), str(first.get("text"))
        why = Diagnosis(code, f"{code}: {text}", remedy=str(first.get("evidence", "")))
    results = [
        path for path in (site.workspace.folder / n for n in ("verdict.json", "evaluation_report.md")) if path.is_file()
    ]
    site.attempt(
        7, "evaluator", judging, {"workspace": site.workspace.folder.name}, started=started, diagnosis=why,
        metrics={"verdict": said, "reasons": reasons[:20]}, results=results,
    )  # fmt: skip
    if judging.missed:
        return Ended(False, why.message if why else said)
    return Ended(True, f"the evaluator's verdict is {said.replace('_', ' ')}")


def verdict_of(site: Site) -> dict[str, Any] | None:
    """verdict.json as it is, if there is one."""
    try:
        return read_json(site.workspace.folder / "verdict.json")
    except UnusableInput:
        return None
