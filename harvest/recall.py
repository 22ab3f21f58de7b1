"""How much of what the notes tell comes out: lessons listed by hand against the records a harvest makes of them.

>>> measure_extraction(checkout, open_empty).recall

Recall: of the listed lessons, those a record tells (its source is a listed place, and the words are in it). Junk: records
that tell no listed lesson. Also: what a second run adds, and whether another order gives another store.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from harvest.apply import apply_plan
from harvest.plan import plan_harvest
from harvest.transfer import DATA, base_of, deployments, tells
from kb.files import dump_record
from kb.memory import Memory
from kb.records import Lesson

WANTED_RECALL, WANTED_JUNK = 0.9, 0.1


@dataclass(frozen=True, slots=True)
class ExtractionReport:
    """What came out. `missed`: lessons no record tells. `junk`: titles of records that tell none."""

    listed: int
    found: int
    records: int
    missed: tuple[str, ...]
    junk: tuple[str, ...]
    second_run_adds: int
    same_in_any_order: bool
    orders: int

    @property
    def recall(self) -> float:
        """The share of the listed lessons that a record tells."""
        return self.found / max(1, self.listed)

    @property
    def junk_share(self) -> float:
        """The share of the lesson records that tell no listed lesson."""
        return len(self.junk) / max(1, self.records)


def measure_extraction(root: Path, empty: Callable[[], Memory], orders: int = 2) -> ExtractionReport:
    """Harvest all deployments below `root` and compare with the list.

    Raises:
        SourceUnusable: the deployments are not there.
    """
    base = base_of(root)
    names = deployments(base)
    memory = harvested(empty(), base, names)
    assert memory.store is not None
    lessons = [s.record for s in memory.store.changed_since(0) if isinstance(s.record, Lesson)]
    listed = read_list()
    texts = {lesson.id: dump_record(lesson).lower() for lesson in lessons}
    claimed: set[str] = set()
    missed: list[str] = []
    for item in listed:
        places = [place.replace("/docs/../", "/docs/").replace("/docs/", "/docs/development_progress/", 1)
                  if "/docs/../" not in place else place.replace("/docs/../", "/docs/") for place in item["at"]]  # fmt: skip
        here = [
            lesson.id
            for lesson in lessons
            if any(tells(p.evidence or "", place) for p in lesson.provenance for place in places)
        ]
        telling = [name for name in here if all(word.lower() in texts[name] for word in item["words"])]
        claimed.update(telling)
        if not telling:
            missed.append(item["what"])
    junk = [lesson.title for lesson in lessons if lesson.id not in claimed]
    again = sum(plan_harvest(memory, base / name).counts()["new"] for name in names)
    first = state_of(memory)
    same = True
    for seed in range(orders):
        shuffled = names[:]
        random.Random(seed).shuffle(shuffled)
        same = same and state_of(harvested(empty(), base, shuffled)) == first
    return ExtractionReport(
        len(listed), len(listed) - len(missed), len(lessons), tuple(missed), tuple(junk), again, same, orders + 1
    )


def harvested(memory: Memory, base: Path, names: list[str]) -> Memory:
    """`memory` after harvesting these deployments in this order."""
    for name in names:
        apply_plan(memory, plan_harvest(memory, base / name))
    return memory


def state_of(memory: Memory) -> dict[str, Any]:
    """What a store holds, for comparing: texts, sources, counts, conflicts."""
    store = memory.store
    assert store is not None
    return {
        s.record.id: (
            dump_record(s.record), s.seen, s.flags,
            sorted({str(n) for e in store.events(s.record.id) if e.type == "conflict" for n in e.data.get("with", [])}),
        )
        for s in store.changed_since(0)
    }  # fmt: skip


def read_list() -> list[Mapping[str, Any]]:
    """The lessons listed by hand."""
    data = tomllib.loads((DATA / "upstream_lessons.toml").read_text(encoding="utf-8"))
    return cast("list[Mapping[str, Any]]", data["lesson"])
