"""The record itself: chain, clock, config, phases, an earlier verdict; what was taken out of it is history.py's."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from npu_tools.architectures import published
from npu_tools.deployment.criteria import phases
from npu_tools.deployment.site import config_digest
from npu_tools.evaluator.claims import LAST_PHASE, Claims, content, line, mapping
from npu_tools.evaluator.history import audit_history
from npu_tools.evaluator.reasons import Reason

AHEAD = timedelta(hours=26)
"""A clock may be an hour zone off, which is 14 hours at most, and a day on top of that; not more."""


def audit_record(claims: Claims) -> Iterator[Reason]:
    """What speaks against the record as a record."""
    if claims.broken is not None:
        yield claims.broken
    yield from _clock(claims)
    yield from _ahead(claims)
    yield from _config(claims)
    yield from _phases(claims)
    yield from _verdict(claims)
    yield from audit_history(claims)
    for entry in claims.state.unexplained():
        text = f"the {entry.body.get('gate')} gate failed and passed later; no note is about it"
        yield Reason("failure_unexplained", text, line(entry))


def _clock(claims: Claims) -> Iterator[Reason]:
    for before, after in pairwise(claims.entries):
        if after.time < before.time:
            yield Reason("clock_backwards", f"{after.time} follows {before.time}", line(after))
            return


def _ahead(claims: Claims) -> Iterator[Reason]:
    now = datetime.now(UTC)
    for entry in claims.entries:
        try:
            then = datetime.fromisoformat(entry.time)
        except (TypeError, ValueError):
            yield Reason("clock_ahead", f"{str(entry.time)[:40]!r} is no time", line(entry))
            return
        if (then if then.tzinfo else then.replace(tzinfo=UTC)) > now + AHEAD:
            yield Reason("clock_ahead", f"{entry.time} has not come yet: it is {now:%Y-%m-%dT%H:%MZ}", line(entry))
            return


def _config(claims: Claims) -> Iterator[Reason]:
    said, name = claims.opened.get("config_digest"), claims.workspace.config.name
    if isinstance(said, str) and said != config_digest(claims.config):
        yield Reason("config_changed", f"{name} is not the config the deployment was opened with", name)
    layers = claims.opened.get("layers")
    if isinstance(layers, int) and layers != claims.dims.layers:
        text = f"opened for {layers} layers; the config has {claims.dims.layers}"
        yield Reason("layers_skipped", text, "the opening line")
    yield from _cut(claims)


def _cut(claims: Claims) -> Iterator[Reason]:
    """Fewer layers than the model has, by what the opening says or the published config of that name."""
    name = str(claims.opened.get("model") or "")
    layers: list[Any] = [claims.opened.get("layers_of_model")]
    layers += [
        each.config.get("num_hidden_layers")
        for each in published()
        if name.casefold() in (each.name.casefold(), each.repo.casefold())
    ]
    whole = max((each for each in layers if isinstance(each, int)), default=claims.dims.layers)
    if whole > claims.dims.layers:
        yield Reason("model_cut", f"{claims.dims.layers} of {whole} layers of {name} are deployed", "the opening line")


def _verdict(claims: Claims) -> Iterator[Reason]:
    """verdict.json beside the ledger it says it judged; and phase 7, where the ledger claims it passed."""
    said = content(claims.folder / "verdict.json")
    head = mapping(said.get("about")).get("head")
    known = {entry.hash for entry in claims.entries}
    if claims.broken is None and said and (head is not None or said.get("verdict") != "fail") and head not in known:
        text = f"verdict.json judged a ledger that ended in {str(head)[:12]}; this one has no such line"
        yield Reason("verdict_foreign", text, "verdict.json")
    if claims.state.status(LAST_PHASE + 1) != "passed":
        return
    evaluated = [entry for entry in claims.attempts(LAST_PHASE + 1) if entry.body.get("passed") is True]
    verdicts = [str(mapping(entry.body.get("metrics")).get("verdict")) for entry in evaluated]
    if not verdicts or not verdicts[-1].startswith("pass"):
        text = f"phase 7 passed; its evaluator's verdict was {verdicts[-1] if verdicts else 'never given'}"
        yield Reason("criteria_inconsistent", text, line(evaluated[-1]) if evaluated else "phase 7")


def _phases(claims: Claims) -> Iterator[Reason]:
    for phase in phases():
        if phase.number > LAST_PHASE:
            continue
        status = claims.state.status(phase.number)
        if status != "passed":
            yield Reason(
                "incomplete",
                f"phase {phase.number} ({phase.name}) has not passed: it is {status}",
                f"phase {phase.number}",
            )
            continue
        passed = max(
            entry.seq
            for entry in claims.entries
            if entry.kind == "phase" and entry.phase == phase.number and entry.body.get("state") == "passed"
        )
        for needed in phase.needs:
            first = min(
                (
                    entry.seq
                    for entry in claims.entries
                    if entry.kind == "phase" and entry.phase == needed and entry.body.get("state") == "passed"
                ),
                default=passed + 1,
            )
            if first > passed:
                text = f"phase {phase.number} passed before phase {needed}, which it needs"
                yield Reason("incomplete", text, f"ledger line {passed}")
