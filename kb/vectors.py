"""Nearest vectors behind one small protocol: exact in memory, or Chroma behind its own server.

Both hold several vectors an owner (a record) and answer with the best cosine per owner. Vectors
are always given, never computed here, and the index is disposable: `kb.memory` rebuilds it from
the records. Chroma is only used through `HttpClient`: several processes on one persistent Chroma
folder lose vectors (measured), one owning server does not.

    index = ExactIndex()
    index.put({"aie1-x": vectors})
    index.nearest(query, 10)   # [("aie1-x", 0.71), …]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kb.embed import DIMENSIONS
from kb.errors import StoreUnavailable

Vectors = NDArray[np.float32]


class VectorIndex(Protocol):
    """Vectors by owner. `nearest` gives each owner once, best cosine first."""

    def put(self, vectors: Mapping[str, Vectors]) -> None:
        """Add owners with their unit vectors [n, 384], replacing what they had."""
        ...

    def remove(self, owners: Sequence[str]) -> None:
        """Forget these owners; unknown ones are ignored."""
        ...

    def nearest(self, query: Vectors, limit: int) -> list[tuple[str, float]]:
        """The owners nearest to the unit vector `query` [384]."""
        ...

    def owners(self) -> set[str]:
        """Whose vectors are here."""
        ...


class ExactIndex:
    """All vectors in one array; recall 1.0. One product over 100,000 vectors takes about 15 ms."""

    def __init__(self) -> None:
        self._rows = np.zeros((0, DIMENSIONS), dtype=np.float32)
        self._owner = np.zeros(0, dtype=np.int32)
        self._used = 0
        self._names: list[str] = []
        self._number: dict[str, int] = {}

    def put(self, vectors: Mapping[str, Vectors]) -> None:
        """Add owners with their unit vectors [n, 384], replacing what they had."""
        self.remove([name for name in vectors if name in self._number])
        total = self._used + sum(len(rows) for rows in vectors.values())
        if total > len(self._rows):
            size = max(256, total + total // 2)
            self._rows = _grown(self._rows, size)
            self._owner = _grown(self._owner, size)
        for name, rows in vectors.items():
            number = self._number.setdefault(name, len(self._names))
            if number == len(self._names):
                self._names.append(name)
            stop = self._used + len(rows)
            self._rows[self._used : stop] = rows
            self._owner[self._used : stop] = number
            self._used = stop

    def remove(self, owners: Sequence[str]) -> None:
        """Forget these owners; unknown ones are ignored."""
        numbers = [self._number[name] for name in owners if name in self._number]
        if not numbers:
            return
        keep = ~np.isin(self._owner[: self._used], numbers)
        kept = int(keep.sum())
        self._rows[:kept] = self._rows[: self._used][keep]
        self._owner[:kept] = self._owner[: self._used][keep]
        self._used = kept
        for name in owners:
            self._number.pop(name, None)

    def nearest(self, query: Vectors, limit: int) -> list[tuple[str, float]]:
        """The owners nearest to the unit vector `query` [384]."""
        if not self._used or limit < 1:
            return []
        cosines = self._rows[: self._used] @ query
        best = np.full(len(self._names), -2.0, dtype=np.float32)
        np.maximum.at(best, self._owner[: self._used], cosines)
        limit = min(limit, len(best))
        top = np.argpartition(-best, limit - 1)[:limit]
        top = top[np.argsort(-best[top], kind="stable")]
        return [(self._names[i], float(best[i])) for i in top if best[i] > -2.0]

    def cosines(self, query: Vectors, owners: Sequence[str]) -> dict[str, float]:
        """Best cosine of each of a few owners to `query`."""
        numbers = {self._number[name]: name for name in owners if name in self._number}
        if not numbers:
            return {}
        rows = np.flatnonzero(np.isin(self._owner[: self._used], list(numbers)))
        found: dict[str, float] = {}
        for row, cosine in zip(rows, self._rows[rows] @ query, strict=True):
            name = numbers[int(self._owner[row])]
            found[name] = max(found.get(name, -2.0), float(cosine))
        return found

    def owners(self) -> set[str]:
        """Whose vectors are here."""
        return set(self._number)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    bigger = np.zeros((size, *array.shape[1:]), dtype=array.dtype)
    bigger[: len(array)] = array
    return bigger


class ChromaIndex:
    """A collection of a running Chroma server (`chroma run`), for a shared or large store."""

    def __init__(self, host: str, port: int, collection: str, ssl: bool = False) -> None:
        """Connect, making the collection when missing.

        Raises:
            StoreUnavailable: chromadb is not installed or the server does not answer.
        """
        try:
            chromadb: Any = import_module("chromadb")
            settings: Any = import_module("chromadb.config").Settings(anonymized_telemetry=False)
        except ImportError:
            raise StoreUnavailable("chromadb is not installed; pip install 'herdbook[shared]'") from None
        try:
            client = chromadb.HttpClient(host=host, port=port, ssl=ssl, settings=settings)
            # No embedding function: vectors are always given, so Chroma's default model is never fetched.
            self._collection: Any = client.get_or_create_collection(
                collection, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
            )
        except Exception as error:  # chromadb raises bare ValueError, httpx errors and its own kinds
            raise StoreUnavailable(
                f"the Chroma server at {host}:{port} does not answer ({type(error).__name__}: {str(error)[:160]}); "
                "start it with 'chroma run' or unset HERDBOOK_CHROMA"
            ) from None

    def put(self, vectors: Mapping[str, Vectors]) -> None:
        """Add owners with their unit vectors [n, 384], replacing what they had."""
        self.remove(list(vectors))
        ids = [f"{name}#{n}" for name, rows in vectors.items() for n in range(len(rows))]
        owners = [{"owner": name} for name, rows in vectors.items() for _ in rows]
        rows = [row.tolist() for matrix in vectors.values() for row in matrix]
        for start in range(0, len(ids), 1000):
            part = slice(start, start + 1000)
            self._collection.upsert(ids=ids[part], embeddings=rows[part], metadatas=owners[part])

    def remove(self, owners: Sequence[str]) -> None:
        """Forget these owners; unknown ones are ignored."""
        for start in range(0, len(owners), 200):
            self._collection.delete(where={"owner": {"$in": list(owners[start : start + 200])}})

    def nearest(self, query: Vectors, limit: int) -> list[tuple[str, float]]:
        """The owners nearest to the unit vector `query` [384]."""
        count = self._collection.count()
        if not count or limit < 1:
            return []
        # An owner has up to eight vectors, so ask for enough rows to see `limit` owners.
        found = self._collection.query(
            query_embeddings=[query.tolist()], n_results=min(count, limit * 8), include=["metadatas", "distances"]
        )
        best: dict[str, float] = {}
        for metadata, distance in zip(found["metadatas"][0], found["distances"][0], strict=True):
            name = str(metadata["owner"])
            best[name] = max(best.get(name, -2.0), 1.0 - float(distance))
        return sorted(best.items(), key=lambda item: -item[1])[:limit]

    def owners(self) -> set[str]:
        """Whose vectors are here."""
        found = self._collection.get(include=["metadatas"])
        return {str(metadata["owner"]) for metadata in found["metadatas"]}
