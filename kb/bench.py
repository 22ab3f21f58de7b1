"""Retrieval, side by side in one run: Herdbook against plain BM25, MiniLM + cosine and Chroma.

Every contender searches the same lessons with the same raw pastes. A lesson is right when enough
of a case's `must_match` expressions are found in its text, or when it is the case's `lesson`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kb.embed import Encoder
from kb.files import dump_record
from kb.filters import Filters
from kb.memory import Memory
from kb.records import Record

Rank = Callable[[str], tuple[list[str], bool]]
"""A contender: a paste to (lesson ids best first, whether it abstains)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a contender on a group of cases."""

    contender: str
    group: str
    cases: int
    recall_1: float
    recall_3: float
    mrr_10: float
    abstain_precision: float | None
    abstain_recall: float | None


def contenders(memory: Memory, encoder: Encoder | None, chroma: Any | None = None) -> dict[str, Rank]:
    """Herdbook, itself with each stage off, and the plain peers that can run here."""
    texts = {name: dump_record(r) for name, r in memory.corpus.records.items() if r.kind == "lesson"}
    found: dict[str, Rank] = {"herdbook": lambda paste: _ours(memory, paste, frozenset())}
    for stage in ("weights", "signature", "lexical", "dense"):
        found[f"herdbook without {stage}"] = lambda paste, s=stage: _ours(memory, paste, frozenset([s]))
    found["plain BM25"] = plain_bm25(texts)
    if encoder is not None:
        names = list(texts)
        matrix = encoder.encode([texts[name] for name in names])
        found["plain MiniLM + cosine"] = lambda paste: (
            [names[i] for i in np.argsort(-(matrix @ encoder.encode([paste])[0]))[:10]], False,
        )  # fmt: skip
        if chroma is not None:
            found["Chroma query"] = plain_chroma(chroma, encoder, names, matrix)
    return found


def _ours(memory: Memory, paste: str, off: frozenset[str]) -> tuple[list[str], bool]:
    answer = memory.explain(paste, Filters(), 10, off=off)
    return [hit.record.id for hit in answer.hits], answer.no_match


def plain_bm25(texts: Mapping[str, str]) -> Rank:
    """Textbook BM25 (k1 1.5, b 0.75) over words, on the whole paste."""
    documents = {name: Counter(_words(text)) for name, text in texts.items()}
    lengths = {name: sum(words.values()) for name, words in documents.items()}
    average = sum(lengths.values()) / max(1, len(lengths))
    postings: defaultdict[str, list[str]] = defaultdict(list)
    for name, words in documents.items():
        for word in words:
            postings[word].append(name)

    def rank(paste: str) -> tuple[list[str], bool]:
        scores: defaultdict[str, float] = defaultdict(float)
        for word in set(_words(paste)):
            owners = postings.get(word, [])
            idf = math.log(1 + (len(documents) - len(owners) + 0.5) / (len(owners) + 0.5))
            for name in owners:
                tf = documents[name][word]
                scores[name] += idf * tf * 2.5 / (tf + 1.5 * (0.25 + 0.75 * lengths[name] / average))
        return sorted(scores, key=lambda name: -scores[name])[:10], False

    return rank


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9_]+", text.lower())


def plain_chroma(client: Any, encoder: Encoder, names: list[str], matrix: Any) -> Rank:
    """Chroma's own query over one vector a lesson, given the same embeddings."""
    collection = client.get_or_create_collection(
        "bench", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
    )
    collection.upsert(ids=names, embeddings=matrix.tolist())

    def rank(paste: str) -> tuple[list[str], bool]:
        found = collection.query(query_embeddings=[encoder.encode([paste])[0].tolist()], n_results=10)
        return list(found["ids"][0]), False

    return rank


def judge(case: Mapping[str, Any], records: Mapping[str, Record], texts: Mapping[str, str]) -> Callable[[str], bool]:
    """Whether a lesson id is right for a case."""
    if "lesson" in case:
        return lambda name: name == case["lesson"]
    patterns = [re.compile(pattern, re.IGNORECASE) for pattern in case.get("must_match", [])]
    need = case.get("need", 1)
    return lambda name: name in records and sum(bool(p.search(texts[name])) for p in patterns) >= need


def table(
    cases: Sequence[Mapping[str, Any]], memory: Memory, ranks: Mapping[str, Rank],
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:  # fmt: skip
    """All contenders on all cases, then by style and by kind."""
    texts = {name: dump_record(record) for name, record in memory.corpus.records.items()}
    judges = [judge(case, memory.corpus.records, texts) for case in cases]
    rows: list[Row] = []
    for number, (contender, rank) in enumerate(ranks.items()):
        outcomes: list[tuple[Mapping[str, Any], int, bool]] = []
        for done, (case, right) in enumerate(zip(cases, judges, strict=True)):
            ids, silent = rank(str(case["query"]))
            place = 0 if silent else next((i for i, name in enumerate(ids[:10], 1) if right(name)), 0)
            outcomes.append((case, place, silent))
            if progress is not None:
                progress(number * len(cases) + done + 1, len(ranks) * len(cases))
        groups: dict[str, list[tuple[Mapping[str, Any], int, bool]]] = {"all": outcomes}
        for outcome in outcomes:
            if outcome[0].get("kind") != "no_answer":
                for key in ("style", "kind"):
                    if outcome[0].get(key):
                        groups.setdefault(f"{key} {outcome[0][key]}", []).append(outcome)
        rows.extend(_row(contender, group, members) for group, members in sorted(groups.items()))
    return rows


def _row(contender: str, group: str, members: list[tuple[Mapping[str, Any], int, bool]]) -> Row:
    known = [place for case, place, _ in members if case.get("kind") != "no_answer"]
    unknown = [silent for case, _, silent in members if case.get("kind") == "no_answer"]
    abstained = sum(silent for _, _, silent in members)
    return Row(
        contender, group, len(known),
        _share(sum(place == 1 for place in known), len(known)),
        _share(sum(0 < place <= 3 for place in known), len(known)),
        _share(sum(1 / place for place in known if place), len(known)),
        sum(unknown) / abstained if abstained else None,
        sum(unknown) / len(unknown) if unknown else None,
    )  # fmt: skip


def _share(part: float, whole: int) -> float:
    return part / whole if whole else 0.0
