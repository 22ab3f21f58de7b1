"""`herdbook corpus check`: is every record of a corpus fit to ship.

Errors (the corpus must not ship): structure, ids, provenance fields, length, stale compiled form,
lessons that neither their own diagnostic nor their own symptom brings up. Advice: near-duplicates,
lessons whose diagnostic another one prints too, and lessons that no text but their own title reaches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kb.corpus import Corpus, load, read_all, source_digest
from kb.document import fenced_lines
from kb.embed import Vectors
from kb.query import read_query
from kb.rank import Ranking
from kb.records import Lesson, Record
from kb.search import Shelf, find
from kb.tokens import terms

MAX_LESSON_WORDS = 300
MIN_ALSO_SEEN = 2
DUPLICATE_TERMS = 0.6
"""Share of cause-and-fix terms in common (Jaccard) from which two lessons are reported as near-duplicates."""


@dataclass(slots=True)
class CheckReport:
    """What was found. `errors` block, `advice` does not."""

    records: int = 0
    lessons: int = 0
    errors: list[str] = field(default_factory=list[str])
    duplicates: list[tuple[str, str, float]] = field(default_factory=list[tuple[str, str, float]])
    unreached: list[str] = field(default_factory=list[str])
    ambiguous: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    own_first: int = 0
    own_asked: int = 0

    @property
    def ok(self) -> bool:
        """Whether the corpus may ship."""
        return not self.errors


def check(
    folder: Path, compiled: Path, encode: Callable[[str], Vectors] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> CheckReport:  # fmt: skip
    """Check every record below `folder` and the compiled form beside it."""
    records, problems = read_all(folder)
    report = CheckReport(len(records), sum(isinstance(r, Lesson) for r in records.values()), problems)
    for record in records.values():
        report.errors.extend(f"{record.id}: {problem}" for problem in _structure(record))
    corpus = load(folder, compiled)
    if corpus.warnings:
        report.errors.append(corpus.warnings[0])
    elif corpus.digest != source_digest(folder):
        report.errors.append("the compiled corpus is older than the records; run 'herdbook corpus build'")
    report.duplicates = near_duplicates(records)
    if not corpus.warnings:
        _reachability(records, corpus, Ranking.load(compiled / "ranking.json"), encode, report, progress)
    return report


def _structure(record: Record) -> list[str]:
    problems: list[str] = []
    for item in record.provenance:
        if item.repo is not None and item.path is not None and len(item.commit or "") != 40:
            problems.append("a shipped provenance needs the full 40-digit commit")
    if record.status not in ("documented", "reproduced", "superseded", "disputed"):
        problems.append(f"status {record.status!r} is for user records; a shipped one is documented or better")
    if not isinstance(record, Lesson):
        return problems
    words = sum(
        len(text.split())
        for text in (record.symptom, *record.also_seen_as, record.cause, record.fix, record.verify, record.did_not_help)
    )
    if words > MAX_LESSON_WORDS:
        problems.append(f"{words} words, over {MAX_LESSON_WORDS}; split it by cause or shorten it")
    if len(record.also_seen_as) < MIN_ALSO_SEEN:
        problems.append(f"fewer than {MIN_ALSO_SEEN} 'Also seen as' lines")
    for name in ("components", "devices", "phases"):
        if not getattr(record, name):
            problems.append(f"{name} is empty; write what it applies to, or 'any'")
    if any(device not in ("npu1", "npu2", "any") for device in record.devices):
        problems.append("devices are npu1, npu2 or any")
    if record.resolution == "open" and "open upstream" not in record.cause.lower():
        problems.append("an open lesson says 'open upstream' in its cause")
    return problems


def near_duplicates(records: Mapping[str, Record]) -> list[tuple[str, str, float]]:
    """Pairs of lessons whose cause and fix share most of their terms, closest first."""
    sets = {name: set(terms(f"{r.cause} {r.fix}")) for name, r in records.items() if isinstance(r, Lesson)}
    names = list(sets)
    common: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        for term in sets[name]:
            common.setdefault(term, []).append(i)
    shared = np.zeros((len(names), len(names)), dtype=np.int16)
    for rows in common.values():
        shared[np.ix_(rows, rows)] += 1
    sizes = np.array([len(sets[name]) for name in names])
    jaccard = shared / np.maximum(1, sizes[:, None] + sizes[None, :] - shared)
    pairs = np.argwhere(np.triu(jaccard >= DUPLICATE_TERMS, 1))
    found = [(names[i], names[j], round(float(jaccard[i, j]), 3)) for i, j in pairs.tolist()]
    return sorted(found, key=lambda pair: -pair[2])


def _reachability(
    records: dict[str, Record],
    corpus: Corpus,
    ranking: Ranking,
    encode: Callable[[str], Vectors] | None,
    report: CheckReport,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Does each lesson's own diagnostic find it first, and does any other text of it find it at all."""
    shelf = Shelf()
    shelf.add(corpus.segment)
    if encode is not None:
        shelf.vectors.put(corpus.vectors)
    lessons = [record for record in records.values() if isinstance(record, Lesson)]
    known = {lesson.id for lesson in lessons}

    def ranked(text: str) -> list[str]:
        query = read_query(text)
        vector = encode(query.dense_text) if encode is not None and query.dense_text else None
        found = find(query, [shelf], ranking, vector, admits=lambda ids: {i for i in ids if i in known})
        return [candidate.record_id for candidate in found.candidates[:10]]

    for number, lesson in enumerate(lessons):
        diagnostic = "\n".join(fenced_lines(lesson.symptom))
        if diagnostic:
            report.own_asked += 1
            order = ranked(diagnostic)
            if order[:1] == [lesson.id]:
                report.own_first += 1
            elif lesson.id in order[:3] or lesson.id in ranked(lesson.symptom)[:3]:
                # Several causes print nearly this; what else was seen has to tell them apart.
                report.ambiguous.append((lesson.id, order[0] if order else "nothing"))
            else:
                report.errors.append(f"{lesson.id}: its own diagnostic finds {order[0] if order else 'nothing'} first")
        if not any(lesson.id in ranked(text)[:3] for text in lesson.also_seen_as):
            report.unreached.append(lesson.id)
        if progress is not None:
            progress(number + 1, len(lessons))
