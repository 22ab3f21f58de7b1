"""What has been harvested so far, and the records that follow from it.

Every harvest is one event that holds its candidates whole; undoing one is another event. The records in the store are a
function of the candidates that stand: `desired` says which they should be, `reconcile` makes it so. That is why the
order of harvests makes no difference and why undoing leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harvest.clusters import clusters, disagree, record_of, remedies_differ, same, words_of
from harvest.draft import Case, Origin
from harvest.vet import Candidate, identity
from kb.errors import RecordInvalid
from kb.filters import Filters
from kb.memory import Memory
from kb.records import Lesson, Record, record_from_dict
from kb.store import Event, Store, fingerprint
from kb.tokens import terms

REPEATED = 0.8
"""Share of a documented symptom's words in a note from which the note repeats it."""
HARVEST, UNDONE, REPRODUCED = "harvest", "harvest_undone", "reproduced"


@dataclass(frozen=True, slots=True)
class Harvest:
    """One harvest that was applied: its name, when, of what, and the keys of its candidates."""

    id: str
    at: str
    root: str
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A record as it should stand: from how many sources, which records say otherwise, which candidates made it."""

    record: Record
    seen: int
    against: tuple[str, ...]
    members: tuple[Candidate, ...]


@dataclass(slots=True)
class Standing:
    """The candidates that stand, by key, and the harvests they came with."""

    members: dict[str, Candidate] = field(default_factory=dict[str, Candidate])
    harvests: list[Harvest] = field(default_factory=list[Harvest])
    reproduced: frozenset[str] = frozenset()


def standing(store: Store) -> Standing:
    """What stands of all harvests so far."""
    events = store.events()
    undone = {event.record_id for event in events if event.type == UNDONE}
    found = Standing(reproduced=frozenset(str(e.data.get("key", "")) for e in events if e.type == REPRODUCED))
    for event in events:
        if event.type == HARVEST and event.record_id not in undone:
            read = [
                candidate for item in _list(event.data.get("members")) if (candidate := _candidate(item)) is not None
            ]
            found.members.update({candidate.key: candidate for candidate in read})
            found.harvests.append(_harvest(event, read))
    return found


def _harvest(event: Event, members: Sequence[Candidate]) -> Harvest:
    return Harvest(event.record_id, event.at, str(event.data.get("root", "")), tuple(member.key for member in members))


def desired(members: Mapping[str, Candidate], memory: Memory, reproduced: frozenset[str]) -> dict[str, Wanted]:
    """The records that follow from `members`, without those that a record of somebody else already tells."""
    others = foreign(memory)
    told = {fingerprint(record): name for name, record in others.items()}
    words = {name: words_of(record) for name, record in others.items()}
    found: dict[str, Wanted] = {}
    for cluster in clusters(list(members.values())):
        record, seen = record_of(cluster)
        own = words_of(record)
        if fingerprint(record) in told or any(same(own, theirs) for theirs in words.values()):
            continue
        if any(member.key in reproduced for member in cluster):
            record = record.model_copy(update={"status": "reproduced"})
        found[record.id] = Wanted(record, seen, (), tuple(cluster))
    mine = {name: words_of(wanted.record) for name, wanted in found.items()}
    for name, wanted in found.items():
        if isinstance(wanted.record, Lesson) and mine[name].signatures:
            against = [n for n, theirs in {**words, **mine}.items() if n != name and disagree(mine[name], theirs)]
            shipped = [n for n in against_shipped(wanted.record, memory) if n not in against]
            found[name] = Wanted(wanted.record, wanted.seen, tuple(sorted([*against, *shipped])[:5]), wanted.members)
    return found


def made_here(store: Store) -> set[str]:
    """Ids of records a harvest of this home stored; what came by import brings other homes' events along."""
    return {
        event.record_id for event in store.events() if event.type == "contributed" and event.data.get("by") == HARVEST
    }


def foreign(memory: Memory) -> dict[str, Record]:
    """The user records no harvest made."""
    assert memory.store is not None
    made = made_here(memory.store)
    return {s.record.id: s.record for s in memory.store.changed_since(0) if s.record.id not in made}


def twin_of(record: Record, memory: Memory) -> str | None:
    """The id of somebody else's record that already tells this one, shipped or in the store."""
    own = words_of(record)
    for name, other in foreign(memory).items():
        if fingerprint(other) == fingerprint(record) or same(own, words_of(other)):
            return name
    segment = memory.corpus.segment
    for number in segment.with_signatures(list(own.signatures)):
        name = segment.ids[number]
        if same(own, words_of(memory.corpus.records[name])):
            return name
    return None


def against_shipped(record: Record, memory: Memory) -> list[str]:
    """Shipped lessons that give the same diagnostic line another cause and fix."""
    own = words_of(record)
    segment = memory.corpus.segment
    names = [segment.ids[number] for number in segment.with_signatures(list(own.signatures))]
    return sorted(n for n in names if disagree(own, words_of(memory.corpus.records[n])))


def copied_from(record: Record, memory: Memory) -> list[str]:
    """Shipped lessons whose whole symptom the record repeats while it gives another cause and fix.

    A note that claims a documented failure for a remedy of its own is held for a person, whether or not the failure has
    a diagnostic line that tells it apart.
    """
    if not isinstance(record, Lesson):
        return []
    own, said = words_of(record), set(terms(f"{record.title} {record.symptom}"))
    found: list[str] = []
    for hit in memory.explain(record.symptom, Filters(status="documented"), limit=3).hits:
        if not hit.reviewed or not isinstance(hit.record, Lesson):
            continue
        theirs = set(terms(hit.record.symptom))
        repeated = len(theirs & said) / max(1, len(theirs))
        if repeated >= REPEATED and remedies_differ(own, words_of(hit.record)):
            found.append(hit.record.id)
    return found


def reconcile(memory: Memory, wanted: Mapping[str, Wanted], harvest: str) -> tuple[list[str], list[str], list[str]]:
    """Make the store hold exactly these of the harvested records; returns (added, changed, withdrawn)."""
    store = memory.store
    assert store is not None
    made = made_here(store)
    mark = {"by": HARVEST, "harvest": harvest}
    added: list[str] = []
    changed: list[str] = []
    for name, item in sorted(wanted.items()):
        stored = store.get(name)
        if stored is None:
            store.add(item.record, (), {**mark, "with": list(item.against)})
            if item.seen > 1:
                store.replace(item.record, "counted", {**mark, "seen": item.seen}, seen=item.seen)
            added.append(name)
        elif stored.record != item.record or stored.seen != item.seen:
            store.replace(item.record, "merged", {**mark, "seen": item.seen}, seen=item.seen)
            changed.append(name)
        known = {n for e in store.events(name) if e.type == "conflict" for n in e.data.get("with", [])}
        fresh = [n for n in item.against if n not in known]
        if fresh:
            store.note("conflict", name, {**mark, "with": fresh})
    withdrawn = [name for name in sorted(made - set(wanted)) if store.get(name) is not None]
    homes = {identity(member.record): name for name, item in wanted.items() for member in item.members}
    for name in withdrawn:
        if name in homes:
            _move_votes(store, name, homes[name])
        store.withdraw(name, {**mark, "became": homes.get(name)})
    return added, changed, withdrawn


def _move_votes(store: Store, old: str, new: str) -> None:
    """What was said of a record is said of the one that now stands for it."""
    for event in store.events(old):
        if event.type == "outcome":
            store.note("outcome", new, {**event.data, "said_of": old})


def as_event(candidate: Candidate) -> dict[str, Any]:
    """A candidate as it is kept in the event of its harvest."""
    data: dict[str, Any] = {"record": candidate.record.model_dump(mode="json", exclude_defaults=True) | {"kind": candidate.record.kind},
                            "origin": candidate.origin}  # fmt: skip
    if candidate.missing:
        data["missing"] = list(candidate.missing)
    if candidate.case is not None:
        data["case"] = {
            "failing": dict(candidate.case.failing),
            "fixed": dict(candidate.case.fixed),
            "code": candidate.case.code,
        }
    return data


def _candidate(item: Any) -> Candidate | None:
    if not isinstance(item, dict):
        return None
    fields = cast("dict[str, Any]", item)
    try:
        record = record_from_dict(dict(fields["record"]))
    except (RecordInvalid, KeyError, TypeError, ValueError):
        return None
    case = cast("dict[str, Any] | None", fields.get("case"))
    kept = Case(case["failing"], case["fixed"], str(case.get("code", ""))) if case else None
    origin = cast("Origin", fields.get("origin", "note"))
    return Candidate(record, origin, tuple(_list(fields.get("missing"))), (), kept)


def _list(value: Any) -> list[Any]:
    return list(cast("list[Any]", value)) if isinstance(value, list) else []
