"""BM25 over immutable segments of numpy arrays: fast at 100,000 records, safe to memory-map.

A segment holds postings sorted by term hash. Length normalisation uses a fixed typical length, so
each posting's share of the score is known when the segment is built and scoring is one weighted
bincount. Segments are disposable: they are built from records and rebuilt when damaged.

    segment = Segment.build([document_of(lesson)])
    scores = segment.score({term_hash("deadlock"): 1.0})
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb.document import Document

K1 = 1.4
B = 0.5
TYPICAL_LENGTH = 260.0
"""Weighted terms of a typical lesson; fixed so that scores stay comparable as the store grows."""

_ARRAYS = ("hashes", "starts", "docs", "impacts", "signature_keys", "signature_docs")


@lru_cache(maxsize=200_000)
def term_hash(term: str) -> int:
    """The 64-bit name of a term in a segment."""
    return int.from_bytes(blake2b(term.encode("utf-8", "replace"), digest_size=8).digest(), "little")


@dataclass(frozen=True, slots=True)
class Segment:
    """Postings of a run of records.

    ids: record id per document [D]. hashes: term hashes, ascending [T] uint64. starts: postings of
    term t are docs[starts[t]:starts[t+1]] [T+1]. docs: document numbers [P]. impacts: saturated
    frequency per posting [P]. signature_keys/signature_docs: pairs, keys ascending.
    """

    ids: tuple[str, ...]
    hashes: NDArray[np.uint64]
    starts: NDArray[np.int64]
    docs: NDArray[np.int32]
    impacts: NDArray[np.float16]
    signature_keys: NDArray[np.uint64]
    signature_docs: NDArray[np.int32]
    numbers: Mapping[str, int]

    @classmethod
    def build(cls, documents: Sequence[Document]) -> Segment:
        """The segment of `documents`, in their order."""
        hashes: list[int] = []
        docs: list[int] = []
        impacts: list[float] = []
        signatures: list[tuple[int, int]] = []
        for number, document in enumerate(documents):
            length = sum(document.weights.values())
            norm = K1 * (1 - B + B * length / TYPICAL_LENGTH)
            for term, frequency in document.weights.items():
                hashes.append(term_hash(term))
                docs.append(number)
                impacts.append(frequency * (K1 + 1) / (frequency + norm))
            signatures.extend((int(key, 16), number) for key in document.signatures)
        return cls._from_pairs(
            tuple(document.record_id for document in documents),
            np.array(hashes, dtype=np.uint64),
            np.array(docs, dtype=np.int32),
            np.array(impacts, dtype=np.float16),
            np.array([key for key, _ in signatures], dtype=np.uint64),
            np.array([doc for _, doc in signatures], dtype=np.int32),
        )

    @classmethod
    def _from_pairs(
        cls,
        ids: tuple[str, ...],
        hashes: NDArray[np.uint64],
        docs: NDArray[np.int32],
        impacts: NDArray[np.float16],
        signature_keys: NDArray[np.uint64],
        signature_docs: NDArray[np.int32],
    ) -> Segment:
        order = np.lexsort((docs, hashes))
        unique, first = np.unique(hashes[order], return_index=True)
        starts = np.append(first, len(hashes)).astype(np.int64)
        by_key = np.argsort(signature_keys, kind="stable")
        return cls(
            ids,
            unique,
            starts,
            docs[order],
            impacts[order],
            signature_keys[by_key],
            signature_docs[by_key],
            {name: number for number, name in enumerate(ids)},
        )

    @classmethod
    def merge(cls, segments: Sequence[Segment], dropped: frozenset[tuple[int, int]] = frozenset()) -> Segment:
        """One segment of several; `dropped` holds (segment, document) pairs to leave out."""
        ids: list[str] = []
        columns: list[list[NDArray[Any]]] = [[], [], [], [], []]
        for number, segment in enumerate(segments):
            keep = np.array([(number, d) not in dropped for d in range(len(segment.ids))], dtype=bool)
            renumber = np.cumsum(keep, dtype=np.int64) - 1 + len(ids)
            ids.extend(name for name, kept in zip(segment.ids, keep, strict=True) if kept)
            hashes = np.repeat(segment.hashes, np.diff(segment.starts))
            kept = keep[segment.docs] if len(segment.docs) else np.zeros(0, dtype=bool)
            columns[0].append(hashes[kept])
            columns[1].append(renumber[segment.docs[kept]].astype(np.int32))
            columns[2].append(segment.impacts[kept])
            kept = keep[segment.signature_docs] if len(segment.signature_docs) else np.zeros(0, dtype=bool)
            columns[3].append(segment.signature_keys[kept])
            columns[4].append(renumber[segment.signature_docs[kept]].astype(np.int32))
        joined = [np.concatenate(column) for column in columns]
        return cls._from_pairs(tuple(ids), *joined)

    def frequencies(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """In how many documents each of the terms stands [len(hashes)]."""
        at, found = self._find(hashes)
        counts = np.zeros(len(hashes), dtype=np.int64)
        counts[found] = self.starts[at[found] + 1] - self.starts[at[found]]
        return counts

    def score(self, weights: Mapping[int, float]) -> NDArray[np.float32]:
        """Σ weight · impact over the query terms, for every document [D]."""
        hashes = np.fromiter(weights.keys(), dtype=np.uint64, count=len(weights))
        factors = np.fromiter(weights.values(), dtype=np.float32, count=len(weights))
        at, found = self._find(hashes)
        docs: list[NDArray[np.int32]] = []
        parts: list[NDArray[np.float32]] = []
        for t in np.flatnonzero(found):
            span = slice(self.starts[at[t]], self.starts[at[t] + 1])
            docs.append(self.docs[span])
            parts.append(self.impacts[span].astype(np.float32) * factors[t])
        if not docs:
            return np.zeros(len(self.ids), dtype=np.float32)
        return np.bincount(np.concatenate(docs), weights=np.concatenate(parts), minlength=len(self.ids)).astype(
            np.float32
        )

    def matched(self, hashes: NDArray[np.uint64], documents: NDArray[np.int64]) -> NDArray[np.float32]:
        """The impact of each term in each of `documents` (ascending), 0 where absent [documents, terms]."""
        at, found = self._find(hashes)
        table = np.zeros((len(documents), len(hashes)), dtype=np.float32)
        for t in np.flatnonzero(found):
            start, stop = self.starts[at[t]], self.starts[at[t] + 1]
            docs = self.docs[start:stop]
            where = np.searchsorted(docs, documents)
            inside = where < len(docs)
            hit = np.zeros(len(documents), dtype=bool)
            hit[inside] = docs[where[inside]] == documents[inside]
            table[hit, t] = self.impacts[start + where[hit]]
        return table

    def with_signatures(self, keys: Iterable[str]) -> dict[int, int]:
        """Documents that carry any of the signature keys → how many of them."""
        counts: dict[int, int] = {}
        for key in keys:
            value = np.uint64(int(key, 16))
            lo = np.searchsorted(self.signature_keys, value, side="left")
            hi = np.searchsorted(self.signature_keys, value, side="right")
            for doc in self.signature_docs[lo:hi]:
                counts[int(doc)] = counts.get(int(doc), 0) + 1
        return counts

    def number_of(self, record_id: str) -> int | None:
        """The document number of a record, or None."""
        return self.numbers.get(record_id)

    def _find(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        if not len(self.hashes):
            return np.zeros(len(hashes), dtype=np.int64), np.zeros(len(hashes), dtype=bool)
        at = np.searchsorted(self.hashes, hashes)
        at = np.minimum(at, len(self.hashes) - 1)
        return at, self.hashes[at] == hashes

    def save(self, path: Path) -> None:
        """Write the arrays to the `.npz` file `path` (not compressed, so it loads fast)."""
        with path.open("wb") as file:
            np.savez(file, ids=np.array(self.ids, dtype=np.str_), **{name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: Path) -> Segment:
        """The segment in `path`. Raises OSError, ValueError or KeyError when it is damaged."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
                arrays = {name: data[name] for name in _ARRAYS}
                ids = tuple(str(name) for name in data["ids"])
        except (zipfile.BadZipFile, zlib.error, TypeError) as error:
            raise ValueError(f"{path}: not a saved index ({error})") from None
        segment = cls(ids, **arrays, numbers={name: number for number, name in enumerate(ids)})
        if len(segment.starts) != len(segment.hashes) + 1 or segment.starts[-1] != len(segment.docs):
            raise ValueError(f"{path}: arrays do not fit together")
        return segment
