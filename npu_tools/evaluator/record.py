"""The record itself: chain, clock, phases, and signs that something was taken out of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from npu_tools.deployment.criteria import phases
from npu_tools.deployment.site import config_digest
from npu_tools.evaluator.claims import LAST_PHASE, Claims, line, mapping, rows, subject
from npu_tools.evaluator.reasons import Reason


def audit_record(claims: Claims) -> Iterator[Reason]:
    """What speaks against the record as a record."""
    if claims.broken is not None:
        yield claims.broken
    yield from _clock(claims)
    yield from _config(claims)
    yield from _phases(claims)
    yield from _removed(claims)
    for entry in claims.state.unexplained():
        text = f"the {entry.body.get('gate')} gate failed and passed later; no note is about it"
        yield Reason("failure_unexplained", text, line(entry))


def _clock(claims: Claims) -> Iterator[Reason]:
    for before, after in pairwise(claims.entries):
        if after.time < before.time:
            yield Reason("clock_backwards", f"{after.time} follows {before.time}", line(after))
            return


def _config(claims: Claims) -> Iterator[Reason]:
    said, name = claims.opened.get("config_digest"), claims.workspace.config.name
    if isinstance(said, str) and said != config_digest(claims.config):
        yield Reason("config_changed", f"{name} is not the config the deployment was opened with", name)
    layers = claims.opened.get("layers")
    if isinstance(layers, int) and layers != claims.dims.layers:
        text = f"opened for {layers} layers; the config has {claims.dims.layers}"
        yield Reason("layers_skipped", text, "the opening line")


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


def _removed(claims: Claims) -> Iterator[Reason]:
    """Gaps in what was counted, references to lines that are something else, results of attempts nobody tells of."""
    seen: dict[tuple[object, ...], list[int]] = {}
    for entry in claims.state.attempts:
        number = entry.body.get("number")
        if isinstance(number, int):
            told = json.dumps(subject(entry), sort_keys=True, default=str)
            seen.setdefault((entry.body.get("gate"), entry.phase, told), []).append(number)
    for (gate, phase, _), numbers in seen.items():
        missing = sorted(set(range(1, max(numbers) + 1)) - set(numbers))
        if missing:
            text = f"attempt {missing[0]} of a {gate} gate of phase {phase} is missing; the last is {max(numbers)}"
            yield Reason("history_removed", text, "attempts in the ledger")
    yield from _dangling(claims)
    yield from _untold(claims)


def _dangling(claims: Claims) -> Iterator[Reason]:
    """Lines and files that name a line by its number, and mean another than stands there."""
    by_seq = {entry.seq: entry for entry in claims.entries}

    def kind(seq: object) -> str:
        return by_seq[seq].kind if isinstance(seq, int) and seq in by_seq else "no line"

    for entry in claims.entries:
        key, wanted = {"step": ("gate_seq", "attempt"), "answer": ("checkpoint", "checkpoint")}.get(
            entry.kind, ("", "")
        )
        seq = entry.body.get(key)
        if isinstance(seq, int) and (kind(seq) != wanted or by_seq[seq].phase != entry.phase):
            text = (
                f"a {entry.kind} is about line {seq} as {_article(wanted)} of its phase; that is {_article(kind(seq))}"
            )
            yield Reason("history_removed", text, line(entry))
        about = entry.body.get("about") if entry.kind == "note" else None
        if isinstance(about, int) and about >= entry.seq:
            yield Reason("history_removed", f"a note is about line {about}, which comes after it", line(entry))
    for path in sorted(claims.folder.glob("results/phase_1/registry.json")):
        for row in rows(_content(path).get("rows")):
            seq = row.get("attempt")
            about = subject(by_seq[seq]) if isinstance(seq, int) and kind(seq) == "attempt" else mapping(None)
            if (about.get("kernel"), about.get("shape")) != (row.get("kernel"), row.get("shape")):
                text = f"registry.json takes {row.get('kernel')} from line {seq}, which is another line now"
                yield Reason("history_removed", text, path.relative_to(claims.folder).as_posix())
                return


def _untold(claims: Claims) -> Iterator[Reason]:
    """Folders of attempts' results that no attempt names: a killed run leaves one, and the ledger tells of the kill."""
    known = {str(Path(path).parts[2]) for path in claims.results() if len(Path(path).parts) > 3}
    for number in range(LAST_PHASE + 1):
        folder = claims.folder / "results" / f"phase_{number}"
        told = {entry.body.get("gate") for entry in claims.attempts(number)}
        untold = [
            place for place in sorted(folder.glob("*_[0-9]*"))
            if place.is_dir() and place.name not in known and place.name.rpartition("_")[0] in told and _holds(place)
        ]  # fmt: skip
        if len(untold) <= _interrupted(claims, number):
            continue
        relative = untold[-1].relative_to(claims.folder).as_posix()
        text = f"{relative} holds results of an attempt, no attempt in the ledger made them, and no run was cut off"
        yield Reason("history_removed", text, relative)


def _interrupted(claims: Claims, phase: int) -> int:
    """How often a run of the phase did not come to an end of its own: killed, stopped, or broken off by an error."""
    count, running = 0, False
    for entry in claims.entries:
        if entry.phase != phase:
            continue
        state = entry.body.get("state") if entry.kind == "phase" else None
        if state == "started":
            count, running = count + running, True
        elif state in ("passed", "failed"):
            running = False
        elif entry.kind == "attempt" and set(subject(entry)) == {"phase"}:
            count += 1
    return count + running


def _holds(place: Path) -> bool:
    return any(path.is_file() and path.suffix != ".part" for path in place.rglob("*"))


def _content(path: Path) -> Mapping[str, object]:
    try:
        return mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _article(word: str) -> str:
    return word if word == "no line" else f"an {word}" if word[0] in "aeio" else f"a {word}"
