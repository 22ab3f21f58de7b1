"""Do twenty planted failures of different kinds give twenty lessons, and does the next model's deployment find them?

>>> report = measure_planted(shipped, folder, make_empty, make_shipped)
>>> report.right, report.first, [row.ledger for row in report.rows]

Every kind comes from ledgers of the real machine (rigged.py); one without a rig would come from a ledger written by
rule (planted.py), and its row says so. A row beside the shipped corpus tells the rank of the harvested lesson, and, where a documented one stands
first, whether its fix is the same: a person's judgement, with reasons, in data/planted.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harvest.apply import apply_plan
from harvest.plan import plan_harvest
from harvest.planted import PLANTED, Planted, asked_with, deploy
from harvest.rigged import FIRST, RIGS, SECOND, Rig, mend, passing, spoilt
from kb.memory import Memory
from kb.records import Lesson

SAME_FIX = Path(__file__).with_name("data") / "planted.toml"
LIMIT = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """One kind of failure as two deployments met it: the first one's workspace, and the second one's question."""

    code: str
    ledger: Literal["machine", "synthetic"]
    workspace: Path
    kernel: str
    cause: str
    changed: str
    asked: str
    printed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one kind. Ranks count from 1 among the first ten; 0 is "not among them"."""

    code: str
    ledger: str
    lessons: int
    right: bool
    rank: int
    no_match: bool
    rank_beside_corpus: int
    first_beside_corpus: str
    documented_answer: bool
    asked: str


@dataclass(frozen=True, slots=True)
class PlantedReport:
    """All kinds."""

    rows: tuple[Row, ...]

    @property
    def machine(self) -> int:
        """Kinds whose failure and mending the deployment machine recorded."""
        return sum(row.ledger == "machine" for row in self.rows)

    @property
    def right(self) -> int:
        """Kinds with exactly one lesson, the right one."""
        return sum(row.lessons == 1 and row.right for row in self.rows)

    @property
    def first(self) -> int:
        """Kinds whose lesson stands first among the harvested ones."""
        return sum(row.rank == 1 and not row.no_match for row in self.rows)

    @property
    def first_beside_corpus(self) -> int:
        """Kinds whose lesson stands first beside the shipped corpus too."""
        return sum(row.rank_beside_corpus == 1 for row in self.rows)

    @property
    def by_documented(self) -> int:
        """Kinds a documented lesson with the same fix answers first."""
        return sum(row.documented_answer for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"kinds": len(self.rows), "machine": self.machine, "one_right_lesson": self.right, "first_among_harvested": self.first,
                "first_beside_corpus": self.first_beside_corpus, "answered_by_documented_lesson": self.by_documented,
                "rows": [asdict(row) for row in self.rows]}  # fmt: skip


def measure_planted(
    shipped: Path, folder: Path, empty: Callable[[], Memory], corpus: Callable[[], Memory],
    progress: Callable[[int, int], None] | None = None, rigs: Sequence[Rig] = RIGS,
    kinds: Sequence[Planted] = PLANTED,
) -> PlantedReport:  # fmt: skip
    """Bring every kind about in `folder`, harvest each alone and all together, ask as the second model's deployment does.

    `shipped`: the recipes; `empty` and `corpus` make memories without and with the shipped records.
    """
    found: list[Sample] = []
    for one in samples(shipped, folder, rigs, kinds):
        found.append(one)
        if progress is not None:
            progress(len(found), 2 * len(kinds))
    single = [alone(one, empty(), shipped) for one in found]
    together, beside = empty(), corpus()
    for one in found:
        for memory in (together, beside):
            apply_plan(memory, plan_harvest(memory, one.workspace, recipes=shipped))
    same = same_fixes()
    rows: list[Row] = []
    for one, (count, right) in zip(found, single, strict=True):
        rank, _, silent = _rank(together, one)
        rank_beside, first, _ = _rank(beside, one)
        answered = rank_beside != 1 and first in same.get(one.code, {})
        rows.append(Row(one.code, one.ledger, count, right, rank, silent, rank_beside, first, answered, one.asked))
        if progress is not None:
            progress(len(kinds) + len(rows), 2 * len(kinds))
    return PlantedReport(tuple(rows))


def samples(shipped: Path, folder: Path, rigs: Sequence[Rig], kinds: Sequence[Planted] = PLANTED) -> list[Sample]:
    """Both deployments of every kind: by the machine where there is a rig, else by rule."""
    known = {rig.code: rig for rig in rigs}
    bases: tuple[Path, Path] | None = None
    found: list[Sample] = []
    for one in kinds:
        rig = known.get(one.code)
        if rig is None:
            found.append(_written(one, folder / "written" / one.code))
            continue
        if bases is None:
            bases = passing(folder / "first", FIRST, shipped), passing(folder / "second", SECOND, shipped)
        found.append(_ran(rig, bases, folder, shipped))
    return found


def same_fixes() -> dict[str, dict[str, str]]:
    """By kind: documented lessons whose fix is the planted one, each with the reason."""
    data: Mapping[str, Any] = tomllib.loads(SAME_FIX.read_text(encoding="utf-8"))
    return {code: {str(name): str(why) for name, why in lessons.items()} for code, lessons in data.items()}


def _written(one: Planted, workspace: Path) -> Sample:
    deploy(workspace, "SmolLM2-135M", [one])
    printed = one.printed.format(**one.figures)
    return Sample(one.code, "synthetic", workspace, one.kernel, one.why, one.key, asked_with(one), (printed,))


def _ran(rig: Rig, bases: tuple[Path, Path], folder: Path, shipped: Path) -> Sample:
    workspace = folder / "machine" / rig.code
    machine, texts = spoilt(bases[0], workspace, rig, FIRST, shipped)
    if not texts or not mend(machine, rig, FIRST):
        raise AssertionError(f"the rig {rig.code} {'brings no failure about' if not texts else 'is not mended'}")
    _, asked = spoilt(bases[1], folder / "next" / rig.code, rig, SECOND, shipped)
    return Sample(
        rig.code,
        "machine",
        workspace,
        rig.told,
        rig.why,
        rig.changed,
        asked[0],
        tuple(text.split("\n")[0] for text in texts),
    )


def alone(one: Sample, memory: Memory, shipped: Path) -> tuple[int, bool]:
    """Lessons of one deployment, and whether they are the right one: its words, cause, change and kernel."""
    apply_plan(memory, plan_harvest(memory, one.workspace, recipes=shipped))
    lessons = [hit.record for hit in memory.records() if isinstance(hit.record, Lesson)]
    right = [
        lesson for lesson in lessons
        if any(" ".join(text.split()) in " ".join(lesson.symptom.split()) for text in one.printed) and one.cause in lesson.cause
        and one.changed in lesson.fix and lesson.kernels == ([one.kernel] if one.kernel else [])
    ]  # fmt: skip
    return len(lessons), len(right) == 1


def _rank(memory: Memory, one: Sample) -> tuple[int, str, bool]:
    """The rank of the lesson with the planted cause, the id that stands first, and whether there was "no known match"."""
    answer = memory.explain(one.asked, limit=LIMIT)
    rank = 0
    for place, hit in enumerate(answer.hits, 1):
        if isinstance(hit.record, Lesson) and hit.record.status == "observed" and one.cause in hit.record.cause:
            rank = place
            break
    return rank, answer.hits[0].record.id if answer.hits else "", answer.no_match
