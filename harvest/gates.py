"""A deployment's ledger to drafts: a failing attempt, what was changed, the passing one; steps; verified shapes.

>>> told = drafts_of_ledger(source)
>>> told.drafts, told.outcomes, told.refused

A ledger whose chain is broken is evidence of nothing and is refused whole. Changes stand in the ledger as decisions, or
show as differences between what the failing and the passing attempt ran with. When nothing differs there is no lesson.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from harvest.draft import Case, Draft, Evidence
from harvest.kept import changed_files
from harvest.sources import LeftOut, Source
from harvest.wording import category_of
from npu_tools.deployment.ledger import Entry, read
from npu_tools.deployment.measured import told
from npu_tools.errors import NpuToolsError

MAX_DIFF_LINES, MAX_PRINTED_LINES = 40, 8
_IDENTITY = ("gate", "kernel", "shape", "step", "stage", "layer", "model")
"""What an attempt is an attempt at; the rest of its subject is what may be changed."""
_CATEGORY = {
    "l1_overflow": "resource_limit", "l2_overflow": "resource_limit", "bd_overflow": "resource_limit", "deadlock": "runtime_hang",
    "timeout": "runtime_hang", "syntax": "compile",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """A lesson that was at hand when a gate failed, and whether the gate passed after a change that names it."""

    lesson: str
    helped: bool
    evidence: str


@dataclass(frozen=True, slots=True)
class Told:
    """What one ledger tells."""

    drafts: tuple[Draft, ...]
    outcomes: tuple[LedgerOutcome, ...]
    refused: tuple[LeftOut, ...]
    versions: Mapping[str, str]


def drafts_of_ledger(source: Source, shipped: Path | None = None) -> Told:
    """The lessons, trajectory and kernel rows of one ledger. `shipped`: the folder of shipped recipes, to show what of
    one was changed."""
    try:
        entries = read(source.path)
    except NpuToolsError as error:
        return Told((), (), (LeftOut(source.label, f"no evidence: {error}"),), {})
    opened = next((_body(e) for e in entries if e.kind == "opened"), _mapping(None))
    model = _line(opened.get("model"))
    versions = {str(k): str(v) for k, v in _mapping(opened.get("versions")).items()}
    drafts: list[Draft] = []
    outcomes: list[LedgerOutcome] = []
    left: list[LeftOut] = []
    for attempts in _by_subject(entries).values():
        drafts.extend(_pairs(entries, attempts, _About(model, source, shipped), left))
        outcomes.extend(_outcomes(entries, attempts))
    drafts.extend(_steps(entries, model, source))
    drafts.extend(_rows(entries, model))
    return Told(tuple(drafts), tuple(outcomes), tuple(left), versions)


@dataclass(frozen=True, slots=True)
class _About:
    """What all drafts of one ledger have in common."""

    model: str
    source: Source
    shipped: Path | None


def _by_subject(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    found: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "attempt" and not _body(entry).get("trial"):
            found[_subject_key(_body(entry))].append(entry)
    return found


def _subject_key(body: Mapping[str, Any]) -> str:
    subject = _mapping(body.get("subject"))
    parts = {name: subject.get(name, body.get(name)) for name in _IDENTITY}
    return json.dumps(parts, sort_keys=True)


def _pairs(entries: Sequence[Entry], attempts: Sequence[Entry], about: _About, left: list[LeftOut]) -> list[Draft]:
    """One draft for every diagnosis that went away: the last attempt that had it, the first that had not."""
    drafts: list[Draft] = []
    failing: Entry | None = None
    tried: list[str] = []
    for position, attempt in enumerate(attempts):
        body = _body(attempt)
        if failing is None:
            failing = None if body.get("passed") else attempt
            continue
        code = _code(_body(failing))
        if not body.get("passed") and _code(body) == code:
            tried.extend(_told(change) for change in _changes(entries, failing, attempt, about))
            failing = attempt
            continue
        changes = _changes(entries, failing, attempt, about)
        if changes:
            settled = attempt if body.get("passed") else _passing(attempts[position:])
            if settled is None:
                left.append(
                    LeftOut(_evidence_id(failing, attempt), "the gate never passed afterwards: nothing is proven")
                )
            else:
                drafts.append(_lesson(failing, attempt, changes, tried, about))
        elif body.get("passed"):
            left.append(
                LeftOut(_evidence_id(failing, attempt), "it failed, then passed, and nothing recorded was changed")
            )
        failing, tried = (None if body.get("passed") else attempt), []
    passed_phase = _phase_passed(entries, failing) if failing is not None else None
    if failing is not None and passed_phase is not None:
        changes = _changes(entries, failing, passed_phase, about)
        if changes:
            drafts.append(_lesson(failing, passed_phase, changes, tried, about, _passed_before(attempts, failing)))
            return drafts
    if failing is not None:
        left.append(
            LeftOut(
                f"ledger:{failing.hash[:16]}",
                f"{_what(_body(failing))} still fails ({_code(_body(failing))}): no change is recorded that mended it",
            )
        )
    return drafts


def _phase_passed(entries: Sequence[Entry], failing: Entry) -> Entry | None:
    """The line that says the failing attempt's phase passed later: what had passed before is not run again."""
    return next(
        (e for e in entries if e.kind == "phase" and e.phase == failing.phase and e.seq > failing.seq and _body(e).get("state") == "passed"),
        None,
    )  # fmt: skip


def _passed_before(attempts: Sequence[Entry], failing: Entry) -> Entry | None:
    return next((a for a in reversed(attempts) if a.seq < failing.seq and _body(a).get("passed")), None)


def _passing(attempts: Sequence[Entry]) -> Entry | None:
    return next((a for a in attempts if _body(a).get("passed")), None)


@dataclass(frozen=True, slots=True)
class _Change:
    subject: str
    key: str
    before: Any
    after: Any
    why: str
    difference: str = ""


def _changes(entries: Sequence[Entry], failing: Entry, after: Entry, about: _About) -> list[_Change]:
    """What was decided between two attempts at one subject, and what else differs between what they ran with."""
    kernel = _kernel(_body(failing))
    found: list[_Change] = []
    for entry in entries:
        if entry.kind == "decision" and failing.seq < entry.seq < after.seq:
            body = _body(entry)
            change = _change(body, kernel)
            if change is not None and body.get("before") != body.get("after"):
                found.append(_with_difference(change, about))
    if not found:  # with a decision, what else differs follows from it
        found = [_Change(kernel, name, before, now, "") for name, before, now in _differing(failing, after)]
    if not found:
        before, now = (_line(_mapping(_body(e).get("subject")).get("recipe_digest")) for e in (failing, after))
        if before and now and before != now:
            found.append(_Change(kernel, "recipe", before[:12], now[:12], ""))
    return found


def _differing(failing: Entry, after: Entry) -> list[tuple[str, Any, Any]]:
    """Settings in which two attempts differ: name, before, after."""
    old, new = (_mapping(_mapping(_body(e).get("subject")).get("settings")) for e in (failing, after))
    return [(name, old.get(name), new.get(name)) for name in sorted({*old, *new}) if old.get(name) != new.get(name)]


def _change(body: Mapping[str, Any], kernel: str) -> _Change | None:
    """What a decision changed, unless it is the machine's own or about another kernel."""
    subject, key = _subject_name(body.get("subject")), _line(body.get("key"))
    why, before, after = _line(body.get("why")), body.get("before"), body.get("after")
    if subject == "option":
        return None
    if subject == "recipe":
        name, _, file = key.partition("/")
        return (
            _Change(name, file or key, before, after, why) if not kernel or kernel in name or name in kernel else None
        )
    if subject == "setting":
        head, _, name = key.rpartition(".")
        named = head.split(" ")[0]
        if kernel and "/" not in named and named and named not in kernel and kernel not in named:
            return None
        return _Change(head or kernel, name or key, before, after, why)
    if subject and kernel and kernel not in subject and subject not in ("model", "deployment", "machine"):
        return None
    return _Change(subject or kernel, key, before, after, why)


def _with_difference(change: _Change, about: _About) -> _Change:
    """A changed recipe file with its lines, where the workspace still holds what was decided on."""
    own = about.source.path.parent / "recipes" / change.subject / change.key
    if about.shipped is None or not isinstance(change.after, str) or not own.is_file():
        return change
    text = own.read_text(encoding="utf-8", errors="replace")
    if hashlib.sha256(own.read_bytes()).hexdigest() != change.after:
        return change
    old = about.shipped / change.subject / change.key
    before = old.read_text(encoding="utf-8", errors="replace").splitlines() if old.is_file() else []
    lines = [
        line for line in unified_diff(before, text.splitlines(), lineterm="", n=0) if line[:3] not in ("---", "+++")
    ]
    shown = "\n".join(lines[:MAX_DIFF_LINES]) + ("\n…" if len(lines) > MAX_DIFF_LINES else "")
    return replace(change, difference=shown)


def _lesson(
    failing: Entry,
    after: Entry,
    changes: Sequence[_Change],
    tried: Sequence[str],
    about: _About,
    stands: Entry | None = None,
) -> Draft:
    """`after`: the passing attempt, or the line of its phase; then `stands` is the attempt that had passed before."""
    model, source = about.model, about.source
    body = _body(failing)
    diagnosis = _mapping(body.get("diagnosis"))
    code, message = _code(body), _line(diagnosis.get("message"))
    kernel, shape = _kernel(body), _shape_text(_mapping(body.get("subject")).get("shape"))
    looks = _words(diagnosis.get("looks_like"))
    where = " ".join(part for part in (f"stage {diagnosis['stage']}" if diagnosis.get("stage") else "",
                                       f"layer {diagnosis['layer']}" if diagnosis.get("layer") not in (None, "") else "") if part)  # fmt: skip
    gate = _line(body.get("gate")) or "gate"
    seen = [
        f"The {gate} gate of {kernel or model or 'the deployment'}{f' at {shape}' if shape else ''} failed{f' ({where})' if where else ''}."
    ]
    if looks:
        seen.append(f"It looks like: {looks}.")
    missed = [
        f"{c.get('name')} {c.get('value')} (bound {c.get('bound')})"
        for c in _list(body.get("criteria"))
        if c.get("ok") is False
    ]
    if missed:
        seen.append(f"Missed: {', '.join(missed[:4])}.")
    printed = str(diagnosis.get("diagnostic") or diagnosis.get("text") or "").split("\n")[:MAX_PRINTED_LINES]
    lines = [*(_line(line) for line in printed), f"{code}: {message}" if message else code]
    diagnostic = "\n".join(dict.fromkeys(line for line in lines if line))
    why = [change.why for change in changes if change.why]
    missing = [] if why else ["cause"]
    decided = {change.key for change in changes}
    chosen = [
        f"{name} {_value(now)} (was {_value(before)})"
        for name, before, now in _differing(failing, after)
        if name not in decided
    ]
    several = len(changes) > 1
    fix = "\n".join(f"{n}. {_told(change)}" for n, change in enumerate(changes, 1))
    if several and not why:
        fix += "\n\nSeveral things changed between the failing and the passing attempt; which of them mended it was not tried."
        missing.append("fix")
    if chosen:
        fix += f"\n\nThe recipe then chose {', '.join(chosen)}."
    if diagnosis.get("remedy"):
        fix += f"\n\nThe check's own remedy: {_line(diagnosis.get('remedy'))}."
    said = message or code
    title = (said if said.startswith(kernel or "\0") else f"{kernel or gate}: {said}")[:150]
    fields: dict[str, Any] = {
        "title": title, "symptom": "\n".join(seen) + (f"\n\n```\n{diagnostic}\n```" if diagnostic else ""),
        "cause": " ".join(dict.fromkeys(why)), "fix": fix,
        "verify": f"The {gate} gate passes: {_criteria(_body(after))}" if _body(after).get("passed") else
                  f"Phase {after.phase} passes." if after.kind == "phase" else f"The {gate} gate no longer fails with {code}.",
        "did_not_help": "\n".join(f"- {text}" for text in dict.fromkeys(tried)),
        "category": _CATEGORY.get(code, category_of(f"{code.replace('_', ' ')} {message} {looks}")),
        "kernels": [kernel] if kernel else [], "phases": _phase(failing),
    }  # fmt: skip
    case = Case(_case(body, about), _case(_body(stands or after), about), code)
    note = f"{source.deployment}{f', {model}' if model else ''}"
    return Draft(
        "lesson",
        fields,
        Evidence(_evidence_id(failing, after), _date(failing), note),
        "gate",
        tuple(m for m in missing if m == "cause"),
        case,
    )


def _steps(entries: Sequence[Entry], model: str, source: Source) -> list[Draft]:
    """Optimisation steps by phase, each with its figures and the gate that still passed."""
    gates = {entry.seq: entry for entry in entries if entry.kind == "attempt"}
    by_stage: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.kind == "step":
            by_stage[{4: "prefill", 5: "decode"}.get(entry.phase or 0, f"phase {entry.phase}")].append(entry)
    drafts: list[Draft] = []
    for stage, found in sorted(by_stage.items()):
        steps: list[dict[str, Any]] = []
        for entry in found:
            body = _body(entry)
            gate = gates.get(int(body.get("gate_seq") or 0))
            held = gate is not None and bool(_body(gate).get("passed"))
            judged = "the gate still passed" if held else "no passing gate stands beside it"
            kept = bool(body.get("kept"))
            steps.append(
                {"when": entry.time[:10], "change": _line(body.get("name")) or "step", "before": body.get("before_us"),
                 "after": body.get("after_us"), "unit": f"us, {_line(body.get('timing')) or 'modelled'}", "helped": kept and held,
                 "detail": f"{judged}; {'kept' if kept else 'not kept'}{'; ' + _line(body.get('why')) if body.get('why') else ''}"[:400]}
            )  # fmt: skip
        fields = {"title": f"{model or source.deployment} {stage}: what made it faster", "subject": model or source.deployment,
                  "stage": stage, "steps": steps, "models": [model] if model else []}  # fmt: skip
        measured = [how for how in (_mapping(_body(entry).get("measurement")) for entry in found) if how]
        if measured:
            fields["notes"] = told(measured[-1])
        drafts.append(
            Draft(
                "trajectory",
                fields,
                Evidence(f"ledger:{found[0].hash[:16]}..{found[-1].hash[:16]}", _date(found[0])),
                "gate",
            )
        )
    return drafts


def _rows(entries: Sequence[Entry], model: str) -> list[Draft]:
    """The last passing attempt at every kernel, shape and configuration as a row; figures only where measured on a device."""
    latest: dict[str, Entry] = {}
    for entry in entries:
        body = _body(entry)
        subject = _mapping(body.get("subject"))
        if entry.kind == "attempt" and body.get("passed") and subject.get("kernel") and _mapping(subject.get("shape")):
            latest[
                json.dumps([subject.get("kernel"), subject.get("shape"), subject.get("settings")], sort_keys=True)
            ] = entry
    drafts: list[Draft] = []
    for entry in latest.values():
        body = _body(entry)
        subject, tolerance = _mapping(body.get("subject")), _mapping(body.get("tolerance"))
        settings = _mapping(subject.get("settings"))
        measured = body.get("measured_us")
        backend = _line(body.get("backend")) or "emulator"
        kernel = _line(subject.get("kernel"))
        notes = f"Passed the {_line(body.get('gate')) or 'gate'} gate on {backend}: {_criteria(body)}"
        if measured is None and body.get("modelled_us") is not None:
            notes += f" Modelled, not measured: {body['modelled_us']} us."
        how = _mapping(_mapping(body.get("metrics")).get("measured"))
        environment = _mapping(how.get("environment"))
        if how:
            notes += f" {told(how)}"
        fields: dict[str, Any] = {
            "title": f"{kernel} {_shape_text(subject.get('shape'))}: verified on {backend}", "kernel": kernel,
            "shape": {str(k): int(v) for k, v in _mapping(subject.get("shape")).items() if isinstance(v, int | float)},
            "dtype": _line(subject.get("dtype")) or _line(settings.get("dtype")) or "not stated",
            "tile": {str(k): v for k, v in settings.items() if type(v) is int},
            "method": _line(settings.get("method")) or _line(settings.get("variant")) or None, "used_by": model or None, "kernels": [kernel],
            "figures": [{"metric": "latency", "value": float(measured), "unit": "us"}] if isinstance(measured, int | float) else [],
            "rtol": tolerance.get("rtol"), "atol": tolerance.get("atol"), "notes": notes,
            "measured_on": _date(entry).isoformat() if measured is not None else None,
            "power_mode": _line(environment.get("power_mode")) or None,
        }  # fmt: skip
        drafts.append(Draft("kernel_row", fields, Evidence(f"ledger:{entry.hash[:16]}", _date(entry)), "gate"))
    return drafts


def _outcomes(entries: Sequence[Entry], attempts: Sequence[Entry]) -> list[LedgerOutcome]:
    """Which lessons at hand were followed, and whether the next attempt passed: a decision that names one followed it."""
    found: list[LedgerOutcome] = []
    for failing, after in pairwise(attempts):
        if _body(failing).get("passed"):
            continue
        offered = [str(name) for name in _list_any(_body(failing).get("lessons"))]
        followed = " ".join(
            json.dumps(dict(_body(e))) for e in entries if e.kind == "decision" and failing.seq < e.seq < after.seq
        )
        for name in offered:
            if name in followed:
                helped = bool(_body(after).get("passed")) or _code(_body(after)) != _code(_body(failing))
                found.append(LedgerOutcome(name, helped, f"ledger:{after.hash[:16]}"))
    return found


def _told(change: _Change) -> str:
    where = f" of {change.subject}" if change.subject else ""
    if change.after is None and change.before is not None:
        return f"Take back {change.key}{where}, which was {_value(change.before)[:60]}."
    if change.difference:
        return f"Change {change.key}{where}:\n```\n{change.difference}\n```"
    if change.key in ("recipe", "file") or (isinstance(change.after, str) and len(change.after) > 60):
        return f"Change {change.key or 'the recipe'}{where}: {_value(change.before)} → {_value(change.after)}"
    if change.before is None:
        return f"Set {change.key}{where} to {_value(change.after)}."
    return f"Change {change.key}{where} from {_value(change.before)} to {_value(change.after)}."


def _value(value: Any) -> str:
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _criteria(body: Mapping[str, Any]) -> str:
    told = [f"{c.get('name')} {c.get('value')} (bound {c.get('bound')})" for c in _list(body.get("criteria"))]
    return ", ".join(told[:6]) + "." if told else "every criterion held."


def _case(body: Mapping[str, Any], about: _About) -> dict[str, Any]:
    subject = _mapping(body.get("subject"))
    message = _line(_mapping(body.get("diagnosis")).get("message"))
    kept = {
        name: subject[name] for name in ("kernel", "shape", "settings", "recipe_digest", "program") if name in subject
    }
    if "asked" in subject:  # what was asked for; the rest of the settings the recipe chose
        kept["settings"] = subject["asked"]
    files = changed_files(
        about.source.path.parent, _line(kept.get("kernel")), _line(kept.get("recipe_digest")), about.shipped
    )
    return {
        **kept,
        **({"files": files} if files else {}),
        "message": message,
        "gate": body.get("gate"),
        "convention": body.get("convention"),
        "code": _code(body),
    }


def _phase(entry: Entry) -> list[str]:
    return [str(entry.phase)] if isinstance(entry.phase, int) and 0 <= entry.phase <= 7 else []


def _evidence_id(failing: Entry, after: Entry) -> str:
    return f"ledger:{failing.hash[:16]}..{after.hash[:16]}"


def _date(entry: Entry) -> date:
    return date.fromisoformat(entry.time[:10])


def _what(body: Mapping[str, Any]) -> str:
    return f"{_line(body.get('gate')) or 'gate'} of {_kernel(body) or 'the deployment'}"


def _code(body: Mapping[str, Any]) -> str:
    return _line(_mapping(body.get("diagnosis")).get("code")) or "failed"


def _kernel(body: Mapping[str, Any]) -> str:
    subject, diagnosis = _mapping(body.get("subject")), _mapping(body.get("diagnosis"))
    return _line(subject.get("kernel") or diagnosis.get("kernel"))


def _subject_name(subject: Any) -> str:
    return _line(_mapping(subject).get("kernel") or "") if isinstance(subject, Mapping) else _line(subject)


def _shape_text(shape: Any) -> str:
    if isinstance(shape, Mapping):  # the ledger sorts keys: M, K, N is how people read them
        extents = cast("Mapping[str, Any]", shape)
        return "x".join(str(extents[name]) for name in sorted(extents, key=lambda n: ("MKN".find(n) % 4, n)))
    return "x".join(str(v) for v in _list_any(shape)) if isinstance(shape, list | tuple) else _line(shape)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return _words(value.get("name") or value.get("what") or list(cast("Mapping[str, Any]", value).values()))  # pyright: ignore
    if isinstance(value, list | tuple):
        return "; ".join(_words(item) for item in cast("Sequence[Any]", value)[:3])
    return _line(value)


def _body(entry: Entry) -> Mapping[str, Any]:
    return _mapping(entry.body)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [_mapping(item) for item in _list_any(value) if isinstance(item, Mapping)]


def _list_any(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else []


def _line(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())[:2000]
