"""Signs that something was taken out of a deployment: gaps in what is counted, references that lead elsewhere, results
nobody tells of, artefacts that are always there and are not.

Whoever can write everything can make all of these fit. What he cannot change is the hash of the last line that somebody
wrote down elsewhere: `head`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from npu_tools.deployment.ledger import Entry
from npu_tools.evaluator.claims import LAST_PHASE, Claims, content, line, mapping, rows, subject, whole
from npu_tools.evaluator.reasons import Reason

KEEPING = ("reference", "kernel", "block", "model", "prefill", "decode", "finalize")
"""Gates that keep arrays whenever they pass."""
TRIALS = (4, 5)
"""Phases in which the machine tries things it takes back."""
DOCUMENTS = ("plan.md", "progress.md")
HEAD_LETTERS = 12
"""Least part of a hash that names a line."""


def audit_history(claims: Claims) -> Iterator[Reason]:
    """What speaks for history having been removed, and what is missing of what every deployment leaves."""
    yield from _numbers(claims)
    yield from _dangling(claims)
    yield from _untold(claims)
    yield from _folders(claims)
    yield from _ended(claims)
    yield from _always(claims)


def audit_head(claims: Claims, head: str | None) -> Iterator[Reason]:
    """Whether the ledger still holds the line whose hash was kept elsewhere; it may have grown since."""
    if head is None:
        return
    wanted = head.strip().casefold()
    if len(wanted) < HEAD_LETTERS or not any(entry.hash.startswith(wanted) for entry in claims.entries):
        last = claims.entries[-1].hash[:HEAD_LETTERS] if claims.entries else "none"
        text = (
            f"no line of the ledger has the hash {wanted[:HEAD_LETTERS]} that was kept elsewhere (its last is {last}): "
            "it was written anew, or cut off, or it is another deployment's"
        )
        yield Reason("head_differs", text, claims.workspace.ledger.name)


def _numbers(claims: Claims) -> Iterator[Reason]:
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
    for row in rows(content(registry(claims)).get("rows")):
        seq = row.get("attempt")
        about = subject(by_seq[seq]) if isinstance(seq, int) and kind(seq) == "attempt" else mapping(None)
        if (about.get("kernel"), about.get("shape")) != (row.get("kernel"), row.get("shape")):
            text = f"registry.json takes {row.get('kernel')} from line {seq}, which is another line now"
            yield Reason("history_removed", text, registry(claims).relative_to(claims.folder).as_posix())
            return


def registry(claims: Claims) -> Path:
    """The rows phase 1 writes for the registry."""
    return claims.folder / "results" / "phase_1" / "registry.json"


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


def _folders(claims: Claims) -> Iterator[Reason]:
    """A folder of results is numbered as its attempt is counted, or by the first number free after it."""
    for number in range(LAST_PHASE + 1):
        counted: dict[str, int] = {}
        gaps: dict[str, Entry] = {}
        for entry in claims.attempts(number):
            gate = str(entry.body.get("gate"))
            counted[gate] = counted.get(gate, 0) + 1
            named = _folder(entry, gate)
            if named is None:
                continue
            if named < counted[gate]:
                text = f"attempt {counted[gate]} of the {gate} gates of phase {number} kept its results as the {named}."
                yield Reason("history_removed", f"{text}: attempts were put in before it", line(entry))
                return
            for free in range(counted[gate], named):
                place = claims.folder / "results" / f"phase_{number}" / f"{gate}_{free:02d}"
                if not place.is_dir() or not any(place.iterdir()):
                    gaps.setdefault(place.name, entry)
        if len(gaps) > _interrupted(claims, number):
            name, entry = next(iter(gaps.items()))
            text = (
                f"the results after {name} of phase {number} are numbered one further than the ledger counts attempts: "
                "an attempt before them is not in it any more"
            )
            yield Reason("history_removed", text, line(entry))


def _folder(entry: Entry, gate: str) -> int | None:
    """The number of the folder an attempt kept its results in."""
    for path in mapping(mapping(entry.body.get("digests")).get("results")):
        parts = Path(path).parts
        if len(parts) > 3 and parts[1] == f"phase_{entry.phase}" and parts[2].startswith(f"{gate}_"):
            number = parts[2].removeprefix(f"{gate}_")
            return int(number) if number.isdecimal() else None
    return None


def _ended(claims: Claims) -> Iterator[Reason]:
    """A phase fails by an attempt that failed, and tries things only where it optimises."""
    failed: dict[int | None, bool] = {}
    for entry in claims.entries:
        if entry.kind == "attempt":
            lost = entry.body.get("passed") is False
            failed[entry.phase] = failed.get(entry.phase, False) or lost
            if entry.body.get("trial") and entry.phase not in TRIALS:
                text = f"called a trial of the machine's own, and phase {entry.phase} makes none"
                yield Reason("criteria_inconsistent", text, line(entry))
        state = entry.body.get("state") if entry.kind == "phase" else None
        if state == "started":
            failed[entry.phase] = False
        elif state == "failed" and not failed.get(entry.phase):
            text = f"phase {entry.phase} failed here, and no attempt of that run did"
            yield Reason("history_removed", text, line(entry))


def _always(claims: Claims) -> Iterator[Reason]:
    """What is left by every deployment that came so far."""
    passed = [number for number in range(LAST_PHASE + 1) if claims.state.status(number) == "passed"]
    head = claims.workspace.ledger.with_name(f"{claims.workspace.ledger.stem}.head.json")
    if not head.is_file():
        text = f"{head.name} is not there, which every line of the ledger renews: lines cut off at the end go unseen"
        yield Reason("results_missing", text, head.name)
    if 1 in passed and not registry(claims).is_file():
        relative = registry(claims).relative_to(claims.folder).as_posix()
        yield Reason("results_missing", f"{relative} is not there, which phase 1 always leaves", relative)
    asked = [mapping(content(path).get("request")) for path in claims.workspace.reference.glob("*/request.json")]
    greedy = [cast("list[Any]", one.get("prompts") or []) for one in asked if one.get("kind") == "greedy"]
    kept = [whole(prompt) for listed in greedy for prompt in listed]
    for entry in [entry for number in passed for entry in claims.vouching(number)]:
        gate, about = str(entry.body.get("gate")), subject(entry)
        if gate in KEEPING and not mapping(mapping(entry.body.get("digests")).get("results")):
            yield Reason("results_missing", f"a {gate} gate passed and names no results", line(entry))
        tokens = whole(about.get("tokens"))
        if gate == "block" and not any(one.get("kind") == "block" and one.get("tokens") == tokens for one in asked):
            yield Reason("results_missing", "the reference the block was compared with is not there", line(entry))
        prompts = [whole(row.get("tokens")) for row in rows(about.get("prompts"))]
        if any(prompt not in kept for prompt in prompts):
            yield Reason("results_missing", "the reference tokens of the gate are not there", line(entry))
    for name in DOCUMENTS:
        if not (claims.folder / name).is_file():
            yield Reason("document_missing", f"{name} is not there; the next run writes it anew", name)


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


def _article(word: str) -> str:
    return word if word == "no line" else f"an {word}" if word[0] in "aeio" else f"a {word}"
