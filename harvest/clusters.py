"""Which candidates say the same, and the one record they make together.

>>> for cluster in clusters(members):
...     record_of(cluster)

A pure function of the set of members: whoever was harvested first makes no difference. Two lessons are the same when
their texts are, when cause and fix share most of their words, or when one is wholly told within the other. Of the same
lessons the one that says most stands for all; sources are united.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harvest.draft import NOT_STATED
from harvest.vet import Candidate, identity
from kb.document import signatures_of
from kb.records import KernelRow, Lesson, Record, Trajectory
from kb.store import fingerprint
from kb.tokens import terms

ALIKE = 0.7
"""Share of all words of cause and fix in common from which two lessons are the same."""
TOLD_WITHIN = 0.8
"""Share of the shorter one's words found in the longer one from which it is told within it."""
LONGER = 5
"""A text so many times as long holds most words of anything on its subject: not compared."""
MIN_TERMS = 12
"""Below so many distinct words only equal texts are the same."""
OTHERWISE = 0.35
"""Same diagnostic line and fewer words of cause and fix in common than this: they disagree (as in kb.memory)."""
MAX_OTHERWISE, LINE = 4, 300
"""Lines of other gates a lesson keeps, and the length of each."""
_COMMON = 400
_RAN = ("gate", "job")
_FENCED = re.compile(r"```\n(.+)\n")
_DIGITS = re.compile(r"[0-9]+(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Words:
    """A lesson's words: of all it says, and of cause and fix alone."""

    everything: frozenset[str]
    remedy: frozenset[str]
    signatures: frozenset[str]


def words_of(record: Record) -> Words:
    """The words a record is compared by."""
    if isinstance(record, Lesson):
        cause = "" if record.cause == NOT_STATED else record.cause
        remedy = frozenset(terms(f"{cause} {record.fix}"))
        return Words(
            frozenset(terms(f"{record.title} {record.symptom}")) | remedy, remedy, frozenset(signatures_of(record))
        )
    return Words(frozenset(), frozenset(), frozenset())


def same(a: Words, b: Words) -> bool:
    """Whether two lessons say the same."""
    if not a.everything or not b.everything:
        return False
    shared = len(a.remedy & b.remedy) / max(1, len(a.remedy | b.remedy))
    if shared >= ALIKE and min(len(a.remedy), len(b.remedy)) >= 5:
        return len(a.everything & b.everything) / len(a.everything | b.everything) >= 0.5
    short, long = sorted((a.everything, b.everything), key=len)
    return (
        MIN_TERMS <= len(short) and len(long) <= LONGER * len(short) and len(short & long) / len(short) >= TOLD_WITHIN
    )


def disagree(a: Words, b: Words) -> bool:
    """Whether two lessons give the same diagnostic line different causes and fixes."""
    return bool(a.signatures & b.signatures) and remedies_differ(a, b)


def remedies_differ(a: Words, b: Words) -> bool:
    """Whether cause and fix have too few words in common to be the same."""
    return len(a.remedy & b.remedy) / max(1, len(a.remedy | b.remedy)) < OTHERWISE


def clusters(members: Sequence[Candidate]) -> list[list[Candidate]]:
    """The members by what they say; within a cluster and between clusters in an order of their own, not that of arrival."""
    ordered = sorted(members, key=lambda member: member.key)
    parent = list(range(len(ordered)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    def join(pairs: Iterable[tuple[int, int]]) -> None:
        for i, j in pairs:
            a, b = root(i), root(j)
            parent[max(a, b)] = min(a, b)

    join(_equal(ordered))
    join(_alike(ordered))
    groups: defaultdict[int, list[Candidate]] = defaultdict(list)
    for i, member in enumerate(ordered):
        groups[root(i)].append(member)
    return [groups[i] for i in sorted(groups)]


def record_of(cluster: Sequence[Candidate]) -> tuple[Record, int]:
    """The one record of a cluster, and from how many sources it comes."""
    best = min(cluster, key=_rank)
    sources = sorted(
        {(p.date, p.evidence or "", p.note or ""): p for m in cluster for p in m.record.provenance}.items()
    )
    united = {p.evidence: p for _, p in reversed(sources)}
    listed = sorted(united.values(), key=lambda p: (p.date, p.evidence or ""))[:200]
    record = best.record.model_copy(update={"provenance": listed})
    if isinstance(record, Lesson) and best.origin in _RAN:
        otherwise = _seen_otherwise(record, cluster)
        record = record.model_copy(update={"also_seen_as": [*record.also_seen_as, *otherwise][:12]})
    return record.model_copy(update={"id": identity(record)}), len(united)


def _seen_otherwise(record: Lesson, cluster: Sequence[Candidate]) -> list[str]:
    """What the gates or jobs of the same lesson printed that it does not tell: one change mends several shapes, and each
    may fail in its own words. Lines that differ in figures alone are one."""
    told = _DIGITS.sub("#", " ".join(record.symptom.split()))
    found: dict[str, str] = {}
    for member in sorted(cluster, key=lambda member: member.key):
        printed = _FENCED.search(member.record.symptom) if isinstance(member.record, Lesson) else None
        line = " ".join(printed[1].split())[:LINE] if printed is not None and member.origin in _RAN else ""
        plain = _DIGITS.sub("#", line)
        if line and plain not in told:
            found.setdefault(plain, line)
    return list(found.values())[:MAX_OTHERWISE]


def _rank(member: Candidate) -> tuple[int, int, int, str]:
    """Gates before notes, complete before incomplete, long before short; then by name."""
    said = len(words_of(member.record).everything)
    if isinstance(member.record, Trajectory):
        said = len(member.record.steps)
    return (member.origin not in _RAN, len(member.missing), -said, member.key)


def _equal(members: Sequence[Candidate]) -> Iterable[tuple[int, int]]:
    first: dict[str, int] = {}
    for i, member in enumerate(members):
        for name in _names(member.record):
            if name in first:
                yield first[name], i
            else:
                first[name] = i


def _names(record: Record) -> list[str]:
    """What makes two records the same whatever else they say."""
    found = [fingerprint(record)]
    if isinstance(record, KernelRow):
        figures = sorted((f.metric, f.value, f.unit) for f in record.figures)
        found.append(
            f"row {record.kernel} {sorted(record.shape.items())} {sorted(record.tile.items())} {record.dtype} {record.method} {figures}"
        )
    elif isinstance(record, Trajectory):
        found.append(f"trajectory {record.subject.lower()} {record.stage.lower()} {record.steps[0].model_dump_json()}")
    return found


def _alike(members: Sequence[Candidate]) -> Iterable[tuple[int, int]]:
    """Pairs of lessons that say the same, found through the words they share."""
    words = [words_of(member.record) for member in members]
    postings: defaultdict[str, list[int]] = defaultdict(list)
    for i, own in enumerate(words):
        for word in sorted(own.everything):
            postings[word].append(i)
    for i, own in enumerate(words):
        shared: Counter[int] = Counter()
        for word in own.everything:
            owners = postings[word]
            if len(owners) <= _COMMON:
                shared.update(j for j in owners if j < i)
        for j, count in shared.items():
            if count >= 0.4 * min(len(own.everything), len(words[j].everything)) and same(own, words[j]):
                yield j, i
