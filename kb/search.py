"""The cascade: signature, BM25 over weighted lines, dense, fused, calibrated, or an honest "no match".

Works over shelves (the shipped corpus, the user's records), each a list of lexical segments and an
optional vector index. Knows nothing of files or databases: `kb.memory` gives it shelves and the
standing (status, votes) of candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kb.lexical import K1, Segment, term_hash
from kb.query import Query
from kb.rank import FEATURES, Ranking
from kb.stacks import foreign_share, home_share, near_share
from kb.vectors import ExactIndex, VectorIndex

POOL = 40
"""Candidates taken from each stage and shelf before fusion."""
SCORED_TERMS = 96
"""Query terms that are scored: the heaviest by weight × rarity."""
LINE_WEIGHT_POWER = 0.35
"""How strongly a line's weight counts against a word's rarity; the context of an error tells its causes apart."""
STAGES = ("weights", "signature", "lexical", "dense")


@dataclass(slots=True)
class Shelf:
    """A searchable collection: segments with their dropped documents, and vectors."""

    segments: list[Segment] = field(default_factory=list[Segment])
    dropped: list[set[int]] = field(default_factory=list[set[int]])
    vectors: VectorIndex = field(default_factory=ExactIndex)

    def add(self, segment: Segment) -> None:
        """Add a segment."""
        self.segments.append(segment)
        self.dropped.append(set())

    def size(self) -> int:
        """Documents, without the dropped ones."""
        return sum(len(s.ids) - len(d) for s, d in zip(self.segments, self.dropped, strict=True))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One record as the query sees it, before ordering by standing. matched: which query terms it has [terms]."""

    record_id: str
    score: float
    features: Mapping[str, float]
    matched_on: tuple[str, ...]
    matched: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Found:
    """Ordered candidates and the evidence for the best one."""

    candidates: tuple[Candidate, ...]
    evidence: Mapping[str, float]
    dense: bool
    term_weights: NDArray[np.float32]


def find(
    query: Query,
    shelves: Sequence[Shelf],
    ranking: Ranking,
    dense_query: NDArray[np.float32] | None,
    *,
    admits: Callable[[Sequence[str]], set[str]] | None = None,
    off: frozenset[str] = frozenset(),
    pool: int = POOL,
) -> Found:
    """The candidates for `query`, best first.

    `admits` keeps the record ids that pass the caller's filters. `off` names stages left out
    (for measurements): weights, signature, lexical, dense.
    """
    if "weights" in off:
        query = _flat(query)
    weights = _query_weights(query, shelves)
    signature_hits = {} if "signature" in off else _signature_hits(query, shelves)
    dense_hits: dict[str, float] = {}
    if dense_query is not None and "dense" not in off:
        for shelf in shelves:
            dense_hits.update(shelf.vectors.nearest(dense_query, pool))
    lexical, table = ({}, {}) if "lexical" in off else _lexical(weights, shelves, pool, admits)
    ids = dict.fromkeys([*signature_hits, *lexical, *dense_hits])
    if admits is not None:
        kept = admits(list(ids))
        ids = {name: None for name in ids if name in kept}
    if not ids:
        return Found((), {}, bool(dense_hits), np.zeros(0, dtype=np.float32))
    if "lexical" not in off:
        _complete_lexical(list(ids), weights, shelves, lexical, table)
    if dense_hits and dense_query is not None:
        _complete_dense(list(ids), shelves, dense_query, dense_hits)
    candidates = _candidates(query, list(ids), weights, lexical, table, dense_hits, signature_hits, ranking)
    factors = np.fromiter(weights.values(), dtype=np.float32, count=len(weights))
    return Found(
        tuple(candidates),
        _evidence(query, candidates, weights, shelves, ranking.slant(query.terms, bool(dense_hits))),
        bool(dense_hits),
        factors,
    )


def _evidence(
    query: Query,
    candidates: Sequence[Candidate],
    weights: Mapping[int, float],
    shelves: Sequence[Shelf],
    slant: float,
) -> dict[str, float]:
    """What speaks for the best candidate (`kb.rank.EVIDENCE`)."""
    best = candidates[0].features
    second = candidates[1].score if len(candidates) > 1 else 0.0
    total = sum(weights.values()) or 1.0
    hashes = np.fromiter(weights, dtype=np.uint64, count=len(weights))
    counts = np.zeros(len(hashes), dtype=np.int64)
    for shelf in shelves:
        for segment in shelf.segments:
            counts += segment.frequencies(hashes)
    known = sum(weight for weight, count in zip(weights.values(), counts, strict=True) if count)
    return {
        "share": best["share"],
        "coverage": best["coverage"],
        "cosine": best["cosine"],
        "signature": best["signature"],
        "facets": best["facets"],
        "rare": best["rare"],
        "lead": min(1.0, (candidates[0].score - second) / max(abs(candidates[0].score), 1e-6)),
        "known": known / total,
        "prose": float(query.prose),
        "foreign": foreign_share(query.terms),
        "home": home_share(query.terms),
        "near": near_share(query.terms),
        "slant": slant,
        "amount": min(1.0, float(np.log1p(total)) / 6.0),
    }


def _flat(query: Query) -> Query:
    from dataclasses import replace

    return replace(query, terms=dict.fromkeys(query.terms, 1.0))


def _query_weights(query: Query, shelves: Sequence[Shelf]) -> dict[int, float]:
    """term hash → line weight × rarity, for the heaviest terms.

    Rarity is the lesser of that in the first shelf (the curated corpus, whose scale the confidence
    was fitted on) and that in all shelves, so a flood of user records cannot make a word look rare.
    """
    if not query.terms:
        return {}
    names = list(query.terms)
    hashes = np.array([term_hash(name) for name in names], dtype=np.uint64)
    first = np.zeros(len(names), dtype=np.int64)
    everywhere = np.zeros(len(names), dtype=np.int64)
    for number, shelf in enumerate(shelves):
        for segment in shelf.segments:
            counts = segment.frequencies(hashes)
            everywhere += counts
            if number == 0:
                first += counts
    rarity = np.minimum(
        _rarity(first, max(1, shelves[0].size())), _rarity(everywhere, max(1, sum(s.size() for s in shelves)))
    )
    strength = np.array([query.terms[name] for name in names], dtype=np.float64) ** LINE_WEIGHT_POWER
    combined = strength * rarity
    top = np.argsort(-combined, kind="stable")[:SCORED_TERMS]
    return {int(hashes[i]): float(combined[i]) for i in top if combined[i] > 0.02}


def _rarity(counts: NDArray[np.int64], documents: int) -> NDArray[np.float64]:
    return np.log1p((documents - np.minimum(counts, documents) + 0.5) / (counts + 0.5))


def _signature_hits(query: Query, shelves: Sequence[Shelf]) -> dict[str, int]:
    keys = [signature.key for signature in query.signatures]
    hits: dict[str, int] = {}
    for shelf in shelves:
        for segment, dropped in zip(shelf.segments, shelf.dropped, strict=True):
            for document, count in segment.with_signatures(keys).items():
                if document not in dropped:
                    hits[segment.ids[document]] = count
    return hits


def _lexical(
    weights: Mapping[int, float],
    shelves: Sequence[Shelf],
    pool: int,
    admits: Callable[[Sequence[str]], set[str]] | None,
) -> tuple[dict[str, float], dict[str, NDArray[np.float32]]]:
    """record id → BM25 score, and → impact per query term, for the best of every shelf."""
    scores: dict[str, float] = {}
    table: dict[str, NDArray[np.float32]] = {}
    hashes = np.fromiter(weights, dtype=np.uint64, count=len(weights))
    for shelf in shelves:
        rows: list[tuple[float, Segment, int]] = []
        for segment, dropped in zip(shelf.segments, shelf.dropped, strict=True):
            values = segment.score(weights)
            if dropped:
                values[list(dropped)] = 0.0
            rows.extend((float(values[d]), segment, int(d)) for d in _best(values, segment, pool, admits))
        rows.sort(key=lambda row: -row[0])
        by_segment: dict[int, list[tuple[float, Segment, int]]] = {}
        for row in rows[:pool]:
            by_segment.setdefault(id(row[1]), []).append(row)
        for group in by_segment.values():
            group.sort(key=lambda row: row[2])
            segment = group[0][1]
            impacts = segment.matched(hashes, np.array([row[2] for row in group], dtype=np.int64))
            for (score, _, document), impact in zip(group, impacts, strict=True):
                scores[segment.ids[document]] = score
                table[segment.ids[document]] = impact
    return scores, table


def _best(
    values: NDArray[np.float32], segment: Segment, pool: int, admits: Callable[[Sequence[str]], set[str]] | None
) -> list[int]:
    """Documents with the highest positive scores; with filters, the highest that pass them."""
    take = min(len(values), pool)
    while take:
        top = np.argpartition(-values, take - 1)[:take]
        top = top[values[top] > 0]
        if admits is None:
            return [int(d) for d in top]
        numbers = [int(d) for d in top]
        kept = admits([segment.ids[d] for d in numbers])
        chosen = [d for d in numbers if segment.ids[d] in kept]
        if len(chosen) >= pool or take == len(values) or len(top) < take:
            return sorted(chosen, key=lambda d: -values[d])[:pool]
        take = min(len(values), take * 8)
    return []


def _complete_dense(
    ids: list[str], shelves: Sequence[Shelf], dense_query: NDArray[np.float32], dense_hits: dict[str, float]
) -> None:
    """Fill in the cosine of candidates that only words found."""
    missing = [name for name in ids if name not in dense_hits]
    for shelf in shelves:
        if isinstance(shelf.vectors, ExactIndex):
            dense_hits.update(shelf.vectors.cosines(dense_query, missing))


def _complete_lexical(
    ids: list[str],
    weights: Mapping[int, float],
    shelves: Sequence[Shelf],
    lexical: dict[str, float],
    table: dict[str, NDArray[np.float32]],
) -> None:
    """Fill in the lexical score of candidates that only meaning found."""
    missing = {name for name in ids if name not in table}
    if not missing:
        return
    hashes = np.fromiter(weights, dtype=np.uint64, count=len(weights))
    factors = np.fromiter(weights.values(), dtype=np.float32, count=len(weights))
    for shelf in shelves:
        for segment, dropped in zip(shelf.segments, shelf.dropped, strict=True):
            numbers = [d for name in missing if (d := segment.number_of(name)) is not None and d not in dropped]
            numbers.sort()
            if not numbers:
                continue
            impacts = segment.matched(hashes, np.array(numbers, dtype=np.int64))
            for document, impact in zip(numbers, impacts, strict=True):
                lexical[segment.ids[document]] = float(impact @ factors)
                table[segment.ids[document]] = impact


def _candidates(
    query: Query,
    ids: list[str],
    weights: Mapping[int, float],
    lexical: Mapping[str, float],
    table: Mapping[str, NDArray[np.float32]],
    dense_hits: Mapping[str, float],
    signature_hits: Mapping[str, int],
    ranking: Ranking,
) -> list[Candidate]:
    factors = np.fromiter(weights.values(), dtype=np.float32, count=len(weights))
    none = np.zeros(len(factors), dtype=np.float32)
    present = (
        np.stack([table.get(name, none) for name in ids]) > 0 if len(factors) else np.zeros((len(ids), 0), dtype=bool)
    )
    score = np.array([lexical.get(name, 0.0) for name in ids], dtype=np.float32)
    cosine = np.array([dense_hits.get(name, 0.0) for name in ids], dtype=np.float32)
    signature = np.array([name in signature_hits for name in ids], dtype=np.float32)
    total = float(factors.sum()) or 1.0
    facets = {term_hash(facet) for facet in query.facets}
    facet_columns = np.array([value in facets for value in weights], dtype=bool)
    rare = np.argsort(-factors, kind="stable")[: max(3, len(factors) // 6)]
    top_cosines = np.sort(cosine)[-10:]
    rows = np.zeros((len(ids), len(FEATURES)), dtype=np.float32)
    rows[:, 0] = score / (total * (K1 + 1))
    rows[:, 1] = score / (float(score.max()) or 1.0)
    rows[:, 2] = present @ factors / total
    rows[:, 3] = np.maximum(0.0, cosine)
    rows[:, 4] = cosine - top_cosines.mean() if dense_hits else 0.0
    rows[:, 5] = signature
    rows[:, 6] = present[:, facet_columns].mean(axis=1) if facet_columns.any() else 0.0
    rows[:, 7] = present[:, rare] @ factors[rare] / (float(factors[rare].sum()) or 1.0)
    scores = ranking.scores(rows, bool(dense_hits), query.prose)
    order = sorted(range(len(ids)), key=lambda i: (-float(scores[i]), ids[i]))
    values = rows.tolist()
    return [
        Candidate(
            ids[i],
            float(scores[i]),
            dict(zip(FEATURES, values[i], strict=True)),
            _matched_on(values[i], bool(dense_hits)),
            present[i],
        )
        for i in order
    ]


def _matched_on(row: list[float], dense: bool) -> tuple[str, ...]:
    """In words, what brought a record up."""
    named = dict(zip(FEATURES, row, strict=True))
    reasons: list[str] = []
    if named["signature"]:
        reasons.append("exact diagnostic line")
    if named["relative"] >= 0.6:
        reasons.append("terms")
    if named["facets"] >= 0.5:
        reasons.append("limits, ops and codes")
    if dense and named["cosine"] >= 0.45:
        reasons.append("meaning")
    return tuple(reasons or ["weak similarity"])
