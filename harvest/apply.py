"""Carrying a plan out, undoing a harvest, and telling what stands.

>>> done = apply_plan(memory, plan, approve_conflicts=False)
>>> undo(memory, done.id)
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from harvest.errors import NothingToUndo
from harvest.members import HARVEST, REPRODUCED, UNDONE, as_event, desired, reconcile, standing
from harvest.plan import Item, Plan
from harvest.vet import Candidate
from kb.errors import NotFound
from kb.memory import Memory


@dataclass(frozen=True, slots=True)
class Applied:
    """What a harvest did. `id` is None when there was nothing to do."""

    id: str | None
    added: tuple[str, ...]
    changed: tuple[str, ...]
    withdrawn: tuple[str, ...]
    waiting: tuple[str, ...]
    outcomes: int


@dataclass(frozen=True, slots=True)
class Status:
    """What stands of all harvests."""

    harvests: tuple[dict[str, Any], ...]
    records: tuple[str, ...]
    incomplete: tuple[str, ...]


def apply_plan(
    memory: Memory, plan: Plan, *, approve_conflicts: bool = False, only: Collection[str] | None = None
) -> Applied:
    """Take in what the plan says, in one transaction.

    Conflicts a note has with a reviewed lesson wait unless `approve_conflicts`. `only`: ids of the items to take.
    """
    store = memory._writable()  # pyright: ignore[reportPrivateUsage]
    waiting = [item for item in plan.items if _waits(item, plan, memory) and not approve_conflicts]
    barred = {item.id for item in waiting}
    allowed = {
        i.id for i in plan.items if i.action != "refused" and i.id not in barred and (only is None or i.id in only)
    }
    with memory._lock, store.transaction():  # pyright: ignore[reportPrivateUsage]
        memory.refresh()
        before = standing(store)
        fresh = {c.key: c for c in plan.candidates if c.key not in before.members}
        after = {**before.members, **fresh}
        made = desired(after, memory, before.reproduced | plan.proven)
        home = {member.key: name for name, item in made.items() for member in item.members}
        twins = {c.key: name for name, cluster in plan.merged_into.items() for c in cluster}
        chosen = [c for key, c in sorted(fresh.items()) if home.get(key, twins.get(key)) in allowed]
        votes = _count_outcomes(memory, plan)
        if not chosen:
            return Applied(None, (), (), (), tuple(sorted(barred)), votes)
        name = _name(chosen, store.last_seq())
        store.note(HARVEST, name, {"root": plan.root, "members": [as_event(c) for c in chosen]})
        for candidate in chosen:
            if candidate.key in plan.proven:
                store.note(REPRODUCED, name, {"key": candidate.key, "ran_on": "emulator"})
        stand = standing(store)
        added, changed, withdrawn = reconcile(memory, desired(stand.members, memory, stand.reproduced), name)
        _dispute(memory, plan, {*added, *changed}, name)
        for twin, cluster in plan.merged_into.items():
            ours = [c for c in cluster if c in chosen]
            if ours:
                _merge_into(memory, twin, ours, name)
                changed.append(twin)
    memory.refresh()
    return Applied(name, tuple(added), tuple(changed), tuple(withdrawn), tuple(sorted(barred)), votes)


def undo(memory: Memory, harvest: str | None = None) -> Applied:
    """Take a harvest back, the latest by default: what only it told is withdrawn, what others told too stays.

    Raises:
        NothingToUndo: no such harvest stands.
    """
    store = memory._writable()  # pyright: ignore[reportPrivateUsage]
    with memory._lock, store.transaction():  # pyright: ignore[reportPrivateUsage]
        memory.refresh()
        before = standing(store)
        chosen = next((h for h in reversed(before.harvests) if harvest in (None, h.id)), None)
        if chosen is None:
            known = ", ".join(h.id for h in before.harvests[-5:]) or "none"
            raise NothingToUndo(f"no harvest {harvest or ''} stands; those that do: {known}")
        store.note(UNDONE, chosen.id, {})
        _unmerge(memory, chosen.id)
        stand = standing(store)
        added, changed, withdrawn = reconcile(memory, desired(stand.members, memory, stand.reproduced), chosen.id)
    memory.refresh()
    return Applied(chosen.id, tuple(added), tuple(changed), tuple(withdrawn), (), 0)


def status(memory: Memory) -> Status:
    """The harvests that stand, the records they made, and which of these lack a field."""
    store = memory._writable()  # pyright: ignore[reportPrivateUsage]
    stand = standing(store)
    made = desired(stand.members, memory, stand.reproduced)
    lacking = [
        name
        for name, item in made.items()
        if any("cause" in m.missing for m in item.members[:1]) and len(item.members) == 1
    ]
    told = tuple({"id": h.id, "at": h.at, "of": h.root, "candidates": len(h.keys)} for h in stand.harvests)
    return Status(told, tuple(sorted(made)), tuple(sorted(lacking)))


def promote(memory: Memory, record_id: str, key: str, event: dict[str, Any]) -> None:
    """A harvested lesson whose cases ran as it says: `reproduced` from now on, in whatever record tells it."""
    store = memory._writable()  # pyright: ignore[reportPrivateUsage]
    with memory._lock, store.transaction():  # pyright: ignore[reportPrivateUsage]
        store.note(REPRODUCED, record_id, {**event, "key": key})
        stand = standing(store)
        reconcile(memory, desired(stand.members, memory, stand.reproduced), REPRODUCED)
    memory.refresh()


def _waits(item: Item, plan: Plan, memory: Memory) -> bool:
    if item.action != "conflict" or not any(name in memory.corpus.records for name in item.against):
        return False
    proven = {c.record.provenance[0].evidence for c in plan.candidates if c.origin in ("gate", "job")}
    return not proven & set(item.evidence)


def _dispute(memory: Memory, plan: Plan, stored: Collection[str], harvest: str) -> None:
    """Mark what the plan calls a conflict as disputed: the plan also knows whose whole symptom a note repeats, the
    records alone only who shares a diagnostic line."""
    store = memory.store
    assert store is not None
    for item in plan.of("conflict"):
        if item.id not in stored:
            continue
        known = {n for e in store.events(item.id) if e.type == "conflict" for n in e.data.get("with", [])}
        fresh = [name for name in item.against if name not in known]
        if fresh:
            store.note("conflict", item.id, {"by": HARVEST, "harvest": harvest, "with": fresh})


def _name(chosen: list[Candidate], seq: int) -> str:
    digest = blake2b("\n".join([str(seq), *(c.key for c in chosen)]).encode(), digest_size=4).hexdigest()
    return f"harvest-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{digest}"


def _merge_into(memory: Memory, twin: str, ours: list[Candidate], harvest: str) -> None:
    """Count a lesson somebody else wrote and add where it was seen again."""
    store = memory.store
    assert store is not None
    stored = store.get(twin)
    event = {"harvest": harvest, "evidence": [p.evidence for c in ours for p in c.record.provenance]}
    if stored is None:  # shipped: the event is all that changes
        store.note("merged", twin, event)
        return
    sources = [*stored.record.provenance]
    sources += [p for c in ours for p in c.record.provenance if p not in sources]
    store.replace(stored.record.model_copy(update={"provenance": sources[:200]}), "merged", event, seen=stored.seen + 1)


def _unmerge(memory: Memory, harvest: str) -> None:
    store = memory.store
    assert store is not None
    for event in store.events():
        if event.type != "merged" or event.data.get("harvest") != harvest or event.data.get("by") == HARVEST:
            continue
        stored = store.get(event.record_id)
        if stored is not None:
            gone = set(event.data.get("evidence", []))
            kept = [p for p in stored.record.provenance if p.evidence not in gone] or list(stored.record.provenance)
            record = stored.record.model_copy(update={"provenance": kept})
            store.replace(record, "unmerged", {"harvest": harvest}, seen=max(1, stored.seen - 1))


def _count_outcomes(memory: Memory, plan: Plan) -> int:
    """Votes from gates: a lesson a decision named, and whether the failure went away. Each piece of evidence votes once."""
    store = memory.store
    assert store is not None
    known = {str(e.data.get("client")) for e in store.events() if e.type == "outcome"}
    counted = 0
    for outcome in plan.outcomes:
        if outcome.evidence in known:
            continue
        try:
            memory.report_outcome(outcome.lesson, outcome.helped, "from a gate of a deployment", outcome.evidence)
        except NotFound:
            continue
        known.add(outcome.evidence)
        counted += 1
    return counted
