"""What a harvest would do, as something a person or an agent can review: new, seen, conflict, refused.

>>> plan = plan_harvest(memory, Path("workspace"))
>>> plan.counts(), plan.diff()

Nothing is written here.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any, Literal

from harvest.clusters import clusters, record_of
from harvest.draft import NOT_STATED, Draft
from harvest.extract import extract
from harvest.gates import LedgerOutcome
from harvest.members import Standing, copied_from, desired, standing, twin_of
from harvest.sources import LeftOut, read_sources
from harvest.vet import Candidate, Refusal, vet
from kb.files import dump_record
from kb.memory import Memory
from kb.records import Lesson, Record

Action = Literal["new", "seen", "conflict", "refused"]
STATUSES = ("observed", "reproduced")
"""What a harvest can yield, least first."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing a harvest found. `id` is the record's in the store; `needs` is what nobody stated and may be filled in."""

    action: Action
    id: str
    kind: str
    title: str
    why: str
    evidence: tuple[str, ...]
    needs: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    record: Record | None = None
    before: Record | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the records' texts."""
        return {"action": self.action, "id": self.id, "kind": self.kind, "title": self.title, "why": self.why,
                "evidence": list(self.evidence), "needs": list(self.needs), "against": list(self.against)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """A harvest not yet applied. `candidates` are those that stand after it and did not before."""

    root: str
    items: tuple[Item, ...]
    candidates: tuple[Candidate, ...]
    outcomes: tuple[LedgerOutcome, ...]
    left_out: tuple[LeftOut, ...]
    merged_into: Mapping[str, tuple[Candidate, ...]] = field(default_factory=dict[str, tuple[Candidate, ...]])
    proven: frozenset[str] = frozenset()

    def of(self, action: Action) -> list[Item]:
        """The items with this action."""
        return [item for item in self.items if item.action == action]

    def counts(self) -> dict[str, int]:
        """How many of each action."""
        return {"new": len(self.of("new")), "seen": len(self.of("seen")), "conflicts": len(self.of("conflict")),
                "refused": len(self.of("refused"))}  # fmt: skip

    def record_ids(self) -> list[str]:
        """The ids of the records this harvest makes or adds to."""
        return sorted({item.id for item in self.items if item.action != "refused" and item.id})

    def diff(self) -> str:
        """Every record this harvest would add or change, as a unified diff of record files; refusals as comments."""
        parts: list[str] = []
        for item in self.items:
            if item.action == "refused":
                parts.append(f"# refused: {item.title}\n#   {item.why}\n#   {', '.join(item.evidence)}\n")
            elif item.record is not None and item.record != item.before:
                old = dump_record(item.before).splitlines() if item.before is not None else []
                name = f"{item.record.kind}s/{item.id}.md"
                lines = difflib.unified_diff(
                    old,
                    dump_record(item.record).splitlines(),
                    f"a/{name}" if old else "/dev/null",
                    f"b/{name}",
                    lineterm="",
                )
                note = f"# {item.action}" + (f", against {', '.join(item.against)}" if item.against else "") + "\n"
                parts.append(note + "\n".join(lines) + "\n")
        return "\n".join(parts)


def plan_harvest(
    memory: Memory, root: Path, *, answers: Mapping[str, Mapping[str, str]] | None = None, minimum: str = "observed",
    recipes: Path | None = None, proven: Callable[[Candidate], bool] | None = None, today: date | None = None,
) -> Plan:  # fmt: skip
    """What harvesting `root` would do.

    `answers`: by the id or evidence of an item, the fields nobody stated ("cause", "fix"), from whoever knows.
    `minimum`: records of a lesser status are not taken in. `recipes`: the folder of shipped recipes, to show what of one
    was changed. `proven`: runs a candidate's cases and says whether they end as it tells; such a lesson is `reproduced`.

    Raises:
        SourceUnusable: `root` cannot be read.
    """
    reading = read_sources(root)
    told = extract(reading, recipes)
    candidates: list[Candidate] = []
    refusals: list[Refusal] = []
    for draft in told.drafts:
        given = dict((answers or {}).get(draft.evidence.id, {}))
        judged = vet(_answered(draft, given) if given else draft, today or date.today())
        if isinstance(judged, Candidate) and answers and (late := answers.get(judged.record.id)):
            judged = vet(_answered(draft, dict(late)), today or date.today())
        if isinstance(judged, Refusal):
            refusals.append(judged)
        else:
            candidates.append(judged)
    shown = frozenset(c.key for c in candidates if proven is not None and c.case is not None and proven(c))
    return _planned(memory, reading.root.name, candidates, refusals, told.outcomes, told.left_out, minimum, shown)


def _answered(draft: Draft, given: Mapping[str, str]) -> Draft:
    fields = {
        **draft.fields,
        **{name: str(text) for name, text in given.items() if name in ("symptom", "cause", "fix", "verify", "title")},
    }
    return replace(draft, fields=fields, missing=tuple(name for name in draft.missing if not fields.get(name)))


def _planned(
    memory: Memory, root: str, found: list[Candidate], refusals: list[Refusal], outcomes: tuple[LedgerOutcome, ...],
    left_out: tuple[LeftOut, ...], minimum: str, proven: frozenset[str],
) -> Plan:  # fmt: skip
    store = memory._writable()  # pyright: ignore[reportPrivateUsage]
    before = standing(store)
    fresh = {c.key: c for c in found if c.key not in before.members}
    after = Standing({**before.members, **fresh}, before.harvests, before.reproduced | proven)
    wanted = desired(after.members, memory, after.reproduced)
    held = {member.key: name for name, item in wanted.items() for member in item.members}
    items: list[Item] = []
    merged: dict[str, tuple[Candidate, ...]] = {}
    kept: dict[str, Candidate] = {}
    keys = {c.key for c in found}
    for name, item in wanted.items():
        ours = [m for m in item.members if m.key in keys]
        if not ours:
            continue
        stored = store.get(name)
        was = stored.record if stored is not None else None
        sources = tuple(sorted({p.evidence or "" for m in ours for p in m.record.provenance}))
        needs = tuple(n for n in ("cause",) if isinstance(item.record, Lesson) and item.record.cause == NOT_STATED)
        added = [m for m in ours if m.key in fresh]
        if STATUSES.index(minimum) > STATUSES.index("reproduced" if item.record.status == "reproduced" else "observed"):
            items.append(
                Item(
                    "refused",
                    name,
                    item.record.kind,
                    item.record.title,
                    f"{item.record.status}, and only {minimum} is wanted",
                    sources,
                )
            )
            continue
        already = not added or any(m.key in before.members for m in item.members)
        against = item.against
        if not already and len(memory.corpus.records) and all(m.origin not in ("gate", "job") for m in ours):
            against = tuple(dict.fromkeys([*against, *copied_from(item.record, memory)]))
        noted = all(m.origin not in ("gate", "job") for m in ours)
        held_back = bool(against) and not already and _reviewed(against, memory) and noted
        action: Action = "seen" if already else "conflict" if against else "new"
        why = _why(action, item.seen, len(ours), against, held_back)
        items.append(
            Item(action, name, item.record.kind, item.record.title, why, sources, needs, against, item.record, was)
        )
        kept.update({m.key: m for m in added})
    for cluster in clusters([c for c in found if c.key not in held]):
        record, _ = record_of(cluster)
        twin = twin_of(record, memory)
        if twin is not None:
            merged[twin] = tuple(cluster)
            sources = tuple(sorted({p.evidence or "" for m in cluster for p in m.record.provenance}))
            items.append(Item("seen", twin, record.kind, record.title, f"{twin} tells it already", sources))
            kept.update({m.key: m for m in cluster if m.key in fresh})
    for refusal in refusals:
        items.append(
            Item(
                "refused",
                "",
                "lesson",
                refusal.title,
                f"{refusal.code}: {refusal.reason}",
                (refusal.evidence,),
                refusal.needs,
            )
        )
    items.extend(
        Item("refused", "", "source", gone.label, f"not read: {gone.reason}", (gone.label,)) for gone in left_out
    )
    return Plan(root, tuple(items), tuple(kept[key] for key in sorted(kept)), outcomes, left_out, merged, proven)


def _reviewed(names: tuple[str, ...], memory: Memory) -> bool:
    return any(name in memory.corpus.records for name in names)


def _why(action: Action, seen: int, found: int, against: tuple[str, ...], held_back: bool) -> str:
    if action == "seen":
        return f"told before; {seen} source{'s' if seen != 1 else ''} now"
    if action == "conflict":
        rest = "; waits for approval, since a note disagrees with a reviewed lesson" if held_back else "; both are kept"
        return f"gives the same diagnostic another cause and fix than {', '.join(against)}{rest}"
    return "not known yet" if found == 1 else f"not known yet; told {found} times in these sources"
