"""The evaluation: every audit in turn, the verdict, and the two files it leaves.

>>> found = evaluate(workspace, kernels)
>>> found.verdict, [reason.code for reason in found.reasons]

Quick things come first; a workspace whose record is no record is not run again, there is nothing to compare with.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npu_tools.errors import NpuToolsError, UnusableInput
from npu_tools.evaluator import again, figures, gates, history, recipes, record, rederive, results, times
from npu_tools.evaluator.claims import Claims, read_claims
from npu_tools.evaluator.coverage import audit_staleness, changed_kernels, deployed_kernels
from npu_tools.evaluator.reasons import CODES, Reason, Result, verdict_of
from npu_tools.evaluator.rederive import Checked
from npu_tools.evaluator.reference_again import audit_greedy, audit_steps
from npu_tools.jobs.records import write_json
from npu_tools.models.weights import open_weights
from npu_tools.oracle import Decomposition

Effort = Literal["papers", "quick", "full"]
"""papers: nothing is run. quick: every kernel of the plan once, as far as a minute reaches. full: all of them."""
BUDGET_S: dict[Effort, float] = {"papers": 0.0, "quick": 60.0, "full": 3600.0}
MODEL_TIMEOUT_S = 3600.0
FATAL = {"chain_broken", "config_changed", "head_differs", "wrong_weights"}
"""After these there is no deployment to run again."""
REPORT, VERDICT = "evaluation_report.md", "verdict.json"
Told = Callable[[str], None]


@dataclass(slots=True)
class Evaluation:
    """The outcome: the verdict, why, and what was looked at."""

    workspace: Path
    seed: int
    effort: Effort
    reasons: list[Reason] = field(default_factory=list[Reason])
    audits: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    """Of each audit how many reasons it gave, and its seconds."""
    checked: Checked = field(default_factory=Checked)
    about: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def verdict(self) -> Result:
        """pass, pass_with_warnings or fail."""
        return verdict_of(self.reasons)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "verdict": self.verdict, "reasons": [reason.as_dict() for reason in self.reasons], "seed": self.seed,
            "effort": self.effort, "about": self.about,
            "audits": {name: {"reasons": count, "wall_s": round(took, 2)} for name, (count, took) in self.audits.items()},
            "kernels_run_again": self.checked.kernels, "kernels_left": self.checked.left, "notes": self.checked.notes,
        }  # fmt: skip


def evaluate(
    workspace: Path, kernels: Path, *, seed: int | None = None, effort: Effort = "quick", told: Told | None = None,
    write: bool = True, head: str | None = None,
) -> Evaluation:  # fmt: skip
    """Evaluate a deployment, and leave evaluation_report.md and verdict.json in its folder.

    `kernels` is the folder of shipped recipes. The seed decides samples and inputs; without one it is not to be foreseen.
    `head` is a hash of the ledger that was kept elsewhere, or the first letters of one.

    Raises:
        UnusableInput: no deployment in the folder, or nothing can be written there.
    """
    claims = read_claims(workspace, kernels)
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    found = Evaluation(workspace, chosen, effort)
    found.about = {
        "model": claims.opened.get("model"), "weights": claims.weights, "seq_len": claims.seq_len,
        "layers": claims.dims.layers, "backend": claims.opened.get("backend"), "convention": claims.convention,
        "ledger_lines": len(claims.entries), "head_kept_elsewhere": head, "head": claims.entries[-1].hash if claims.entries else "",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="evaluation-", ignore_cleanup_errors=True) as place:
        _all(claims, found, Path(place), told or (lambda _: None), head)
    found.reasons = _distinct(found.reasons)
    if write:
        from npu_tools.evaluator.report import report

        try:
            (workspace / REPORT).write_text(report(found), encoding="utf-8")
            write_json(workspace / VERDICT, found.as_dict())
        except OSError as error:
            raise UnusableInput(f"{workspace} cannot be written: {error.strerror or error}") from None
    return found


def _all(claims: Claims, found: Evaluation, place: Path, told: Told, head: str | None) -> None:
    rng = np.random.default_rng(found.seed)
    together = recipes.merged(claims, place)

    def audit(name: str, made: Callable[[], Iterable[Reason]]) -> None:
        told(name)
        started, before = time.monotonic(), len(found.reasons)
        try:
            found.reasons.extend(made())
        except (NpuToolsError, ImportError) as error:
            found.reasons.append(Reason("not_checked", f"{name} could not be looked at: {error}", name))
        found.audits[name] = (len(found.reasons) - before, time.monotonic() - started)

    audit("record", lambda: (*history.audit_head(claims, head), *record.audit_record(claims)))
    audit("gates", lambda: gates.audit_gates(claims))
    audit("recipes", lambda: recipes.audit_recipes(claims, together))
    audit("files", lambda: results.audit_files(claims))
    audit("figures", lambda: figures.audit_figures(claims))
    audit("times", lambda: times.audit_times(claims, together))
    running: list[rederive.KernelClaim] = []

    def coverage() -> Iterator[Reason]:
        yield from audit_staleness(claims, together)
        listed, reasons = deployed_kernels(claims, together)
        running.extend(listed)
        yield from reasons

    audit("coverage", coverage)
    if found.effort == "papers" or any(reason.code in FATAL for reason in found.reasons):
        return
    weights: list[Any] = []
    audit("weights", lambda: _weights(claims, weights))
    if not weights or any(reason.code in FATAL for reason in found.reasons):
        return
    made = results.Made(Decomposition(claims.dims, weights[0]), weights[0], rng, BUDGET_S[found.effort])
    audit("kernel results", lambda: results.audit_kernel_results(claims, made))
    audit("reference", lambda: results.audit_reference(claims, made))
    audit("block", lambda: results.audit_block(claims, made))
    audit("tokens", lambda: results.audit_tokens(claims, made))
    full = found.effort == "full"
    asked = place / "greedy"
    audit("reference steps", lambda: audit_steps(claims, made))
    audit("reference again", lambda: audit_greedy(claims, made, asked, whole=full, checked=found.checked))
    changed = recipes.affected(claims, together)
    running += changed_kernels(claims, recipes.overridden(claims), running)
    audit(
        "kernels again",
        lambda: rederive.audit_kernels(
            running, claims.shipped, together, changed, place, seed=int(rng.integers(1 << 30)),
            budget_s=BUDGET_S[found.effort], checked=found.checked,
        ),
    )  # fmt: skip
    audit("model again", lambda: again.audit_model(claims, together, made, place, MODEL_TIMEOUT_S, found.checked))


def _weights(claims: Claims, opened: list[Any]) -> Iterator[Reason]:
    """The weights the deployment names, opened anew, and their digest."""
    try:
        weights = open_weights(claims.weights, claims.config)
        digest = weights.digest()
    except NpuToolsError as error:
        yield Reason("not_checked", f"the weights {claims.weights} cannot be opened here: {error}", "the opening line")
        return
    opened.append(weights)
    from npu_tools.evaluator.claims import line, subject

    noted = [(claims.opened.get("weights_digest"), "the opening line")]
    noted += [(subject(entry).get("weights_digest"), line(entry)) for entry in claims.vouching(0)]
    for said, evidence in noted:
        if isinstance(said, str) and said != digest:
            text = f"{claims.weights} has digest {digest[:12]}…, the deployment was made with {said[:12]}…"
            yield Reason("wrong_weights", text, evidence)


def _distinct(reasons: list[Reason]) -> list[Reason]:
    """Errors first, each finding once, in the order of CODES."""
    order = list(CODES)
    once = dict.fromkeys(reasons)
    return sorted(once, key=lambda one: (one.severity != "error", order.index(one.code)))
