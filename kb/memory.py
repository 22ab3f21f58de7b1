"""The memory an agent talks to: the shipped corpus and the user's records as one.

`open_memory` opens both; `explain` and `search` ask, `contribute` and `report_outcome` tell. Any
number of processes may have the same home open; each sees another's acknowledged record at its
next query. Nothing here reads the environment: folders come in `MemoryConfig`.

    memory = open_memory(MemoryConfig(corpus=…, compiled=…, home=…))
    answer = memory.explain(log_text)
    answer.hits[0].record.fix
"""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb.corpus import Corpus, load
from kb.document import Document, document_of
from kb.embed import DIMENSIONS, MODEL_NAME, Encoder, Vectors, find_weights
from kb.errors import KbError, NotFound, RecordInvalid, StoreUnavailable, WeightsMissing
from kb.filters import PHASES, Filters, device_target
from kb.lexical import Segment
from kb.query import Query, read_query
from kb.rank import Ranking
from kb.records import (
    ID_PATTERN,
    MAX_TEXT_CHARS,
    KernelRow,
    Lesson,
    Provenance,
    Record,
    Skill,
    record_from_dict,
    texts_of,
)
from kb.redact import instructions_in, redact, redact_value
from kb.search import Candidate, Found, Shelf, find
from kb.signature import signature_of
from kb.standing import Standing
from kb.store import Event, Store, Stored, fingerprint
from kb.tokens import terms
from kb.vectors import ChromaIndex, ExactIndex, VectorIndex

DENSE_TOKENS = 64
"""Query tokens embedded: more costs more time than it finds (herdbook bench retrieval)."""
TAIL_DOCUMENTS = 2000
"""User records indexed since the saved index before it is written again."""
SOLID_CONFIDENCE = 0.7
"""From this confidence on, a reviewed lesson holds its place against unreviewed ones on the same failure."""
SKILL_CONFIDENCE = 0.5
"""Below it no skill is offered: the wrong one costs an agent more than none (kb/skills/triggers.toml)."""
FLAGGED_SHARE = 0.8
"""What is left of the score of a record whose text reads like orders to an agent."""
NEAR_DUPLICATE = 0.8
"""Share of cause-and-fix terms in common from which two lessons with one signature are the same."""
_SHAPE = re.compile(r"\b\d+(?:\s*[x×]\s*\d+)+\b")


@dataclass(frozen=True, slots=True)
class MemoryConfig:
    """Where everything is. `weights`: folders to look for the MiniLM files in. `chroma`: (host, port, ssl)."""

    corpus: Path
    compiled: Path
    home: Path
    weights: tuple[Path, ...] = ()
    dense: bool = True
    chroma: tuple[str, int, bool] | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer. `reviewed`: from the shipped corpus or vouched for; else quoted as untrusted."""

    record: Record
    confidence: float
    matched_on: tuple[str, ...]
    reviewed: bool
    flags: tuple[str, ...] = ()
    helped: int = 0
    failed: int = 0
    seen: int = 1
    disputed_by: tuple[str, ...] = ()
    stopped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a query found. With `no_match`, `hits` are only the nearest records, not an answer."""

    hits: tuple[Hit, ...]
    no_match: bool
    confidence: float
    signature: tuple[str, ...]
    facets: tuple[str, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contributed:
    """What became of a contribution. action: stored, merged (into `record_id`)."""

    action: str
    record_id: str
    redacted: Mapping[str, int]
    flags: tuple[str, ...]
    conflicts: tuple[str, ...]
    seen: int


class Memory:
    """An open memory. Safe to use from several threads; close it when done."""

    def __init__(self, config: MemoryConfig, corpus: Corpus, store: Store | None, warnings: list[str]) -> None:
        self.config = config
        self.corpus = corpus
        self.store = store
        self._warnings = warnings
        self._lock = threading.RLock()
        self._encoder: Encoder | None = None
        self._encoder_failed: str | None = None
        self._shelf = Shelf()
        self._shelf.add(corpus.segment)
        self._shelf.vectors.put(corpus.vectors)
        self._user = Shelf(vectors=self._user_vectors())
        self._seq = 0
        self._tail = 0
        self._standing = Standing()
        self._cache: dict[str, Stored] = {}
        self._unembedded: dict[str, None] = {}
        self._ranking = Ranking.load(config.compiled / "ranking.json")
        self._load_index()
        self.refresh()

    # -- asking ------------------------------------------------------------------------------

    def explain(
        self, paste: str, filters: Filters | None = None, limit: int = 3, *, off: frozenset[str] = frozenset()
    ) -> Answer:
        """The lessons that explain a raw log, two truncated lines or a described symptom.

        `off` names stages to leave out (`kb.search.STAGES`), for measurements.
        """
        chosen = filters or Filters()
        if not chosen.kinds:
            chosen = replace(chosen, kinds=("lesson",))
        return self._ask(paste, chosen, limit, off)

    def search(self, text: str, filters: Filters | None = None, limit: int = 8) -> Answer:
        """Records of any kind for `text`; a shape in it brings its measured rows first, or is said not to be measured."""
        chosen = filters or Filters()
        answer = self._ask(text, chosen, limit)
        shapes = {tuple(map(int, re.findall(r"\d+", shape))) for shape in _SHAPE.findall(text)}
        about_rows = chosen.kinds == ("kernel_row",) or any(hit.record.kind == "kernel_row" for hit in answer.hits[:3])
        return self._with_rows(answer, shapes, chosen, limit) if shapes and about_rows else answer

    def _with_rows(self, answer: Answer, shapes: set[tuple[int, ...]], filters: Filters, limit: int) -> Answer:
        """The answer with the rows of exactly these shapes first; without any, a "not measured" warning."""
        ranked = {hit.record.id: hit for hit in answer.hits}
        rows = [
            ranked.get(name) or self._hit(name, record, None, 0.5, ("shape",))
            for name, record in self.corpus.records.items()
            if isinstance(record, KernelRow) and tuple(record.shape.values()) in shapes and filters.admits(record)
        ]
        rows.sort(key=lambda hit: -hit.confidence)
        asked = ", ".join("x".join(map(str, shape)) for shape in sorted(shapes))
        if rows:
            rest = [hit for hit in answer.hits if hit.record.id not in {row.record.id for row in rows}]
            return replace(answer, hits=(*rows, *rest)[:limit], no_match=False)
        warning = f"{asked} is not measured: no row has this shape; the rows shown are of other shapes, do not read figures off them"
        return replace(
            answer, no_match=answer.no_match or filters.kinds == ("kernel_row",), warnings=(warning, *answer.warnings)
        )

    def get(self, record_id: str) -> Hit:
        """One record with its standing. Raises NotFound, naming near ids."""
        with self._lock:
            self.refresh()
            if record_id in self.corpus.records:
                return self._hit(record_id, self.corpus.records[record_id], None, 1.0, ())
            stored = self.store.get(record_id) if self.store is not None else None
            if stored is not None:
                return self._hit(record_id, stored.record, stored, 1.0, ())
        called = next((skill for skill in self.skills() if record_id in skill.aliases), None)
        if called is not None:  # the paper and upstream name some skills otherwise
            return self._hit(called.id, called, None, 1.0, ())
        shown = record_id[:80].encode("ascii", "replace").decode()
        near = difflib.get_close_matches(record_id[:100], list(self.corpus.records), 3, 0.5)
        hint = f"; near: {', '.join(near)}" if near else "; use search to find records"
        raise NotFound(f"no record {shown!r}{hint}")

    def skills(self) -> list[Skill]:
        """The skills, in the order of their names."""
        return [record for record in self.corpus.records.values() if isinstance(record, Skill)]

    def history(self, record_id: str) -> list[Event]:
        """Everything that happened to a record in this home."""
        return self.store.events(record_id) if self.store is not None else []

    def counts(self) -> dict[str, int]:
        """How many records, by kind of the shipped corpus, and `user` ones."""
        found: dict[str, int] = {}
        for record in self.corpus.records.values():
            found[record.kind] = found.get(record.kind, 0) + 1
        return {**found, "user": self.store.count() if self.store is not None else 0}

    def records(self, where: Filters | None = None) -> list[Hit]:
        """All records that fit, shipped ones first."""
        chosen = where or Filters()
        hits = [self._hit(name, r, None, 1.0, ()) for name, r in self.corpus.records.items() if chosen.admits(r)]
        if self.store is not None:
            hits += [
                self._hit(s.record.id, s.record, s, 1.0, ())
                for s in self.store.changed_since(0)
                if chosen.admits(s.record)
            ]
        return hits

    def _ask(self, paste: str, filters: Filters, limit: int, off: frozenset[str] = frozenset()) -> Answer:
        query = read_query(paste)
        filters.check()
        with self._lock:
            self.refresh()
            vector, warnings = (None, []) if "dense" in off else self._query_vector(query)
            shelves = [self._shelf, self._user]

            def ask(only: list[Shelf]) -> Found:
                return find(
                    query, only, self._ranking, vector, admits=lambda ids: self._admitted(ids, filters), off=off
                )  # fmt: skip

            found = ask(shelves)
            ordered = self._by_standing(found, lambda: ask(shelves[:1]), filters.versions)
            hits = tuple(self._as_hit(candidate, found) for candidate in ordered[: max(1, limit)])
        shown = tuple(signature_of(line).text for line in query.shown)
        if filters.kinds == ("skill",):  # a task has none of the marks of a failure that `knows` looks for
            no_match = not hits or hits[0].confidence < SKILL_CONFIDENCE
        else:
            no_match = not ordered or not self._ranking.knows(self._evidence(ordered[0], found), found.dense)
        return Answer(
            hits, no_match, hits[0].confidence if hits else 0.0, shown, query.facets[:12], (*self._warnings, *warnings)
        )

    def _query_vector(self, query: Query) -> tuple[Vectors | None, list[str]]:
        if not self.config.dense or not query.dense_text:
            return None, []
        encoder = self.encoder()
        if encoder is None:
            return None, [f"dense search is off: {self._encoder_failed}"]
        return encoder.encode([query.dense_text], DENSE_TOKENS)[0], []

    def _admitted(self, ids: Sequence[str], filters: Filters) -> set[str]:
        stored = self._stored_many([name for name in ids if name not in self.corpus.records])
        kept: set[str] = set()
        for name in ids:
            record = self.corpus.records[name] if name in self.corpus.records else None
            if record is None and name in stored:
                record = stored[name].record
            if record is None or (record.status == "superseded" and filters.status != "superseded"):
                continue
            if filters.admits(record):
                kept.add(name)
        return kept

    def _stored_many(self, ids: Sequence[str]) -> dict[str, Stored]:
        missing = [name for name in ids if name not in self._cache]
        if missing and self.store is not None:
            if len(self._cache) > 20_000:
                self._cache.clear()
                missing = list(ids)
            self._cache.update(self.store.get_many(missing))
        return {name: self._cache[name] for name in ids if name in self._cache}

    def _by_standing(
        self, found: Found, alone: Callable[[], Found], installed: Mapping[str, str] | None = None
    ) -> list[Candidate]:
        """The candidates with votes, and with unreviewed records below reviewed ones on the same failure.

        A reviewed record counts against an unreviewed one when it would be an answer by itself and
        both matched largely the same words of the query: ten near-copies of a known symptom,
        whatever they say, stay below the documented lesson.
        """
        scores: dict[str, float] = {}
        for candidate in found.candidates:
            helped, failed = self._standing.counts(candidate.record_id, installed)
            # Laplace-smoothed share of good outcomes, 0.5 without votes; one vote moves little.
            share = (helped + 2.0) / (helped + failed + 4.0)
            scores[candidate.record_id] = candidate.score * (0.6 + 0.8 * share)
            if self._flags(candidate.record_id):
                scores[candidate.record_id] *= FLAGGED_SHARE
        first = max(found.candidates, key=lambda c: scores[c.record_id], default=None)
        solid = [] if first is None or self._reviewed(first.record_id) else self._solid(found, alone)
        if solid:
            marks = np.stack([c.matched for c in solid])
            lowest = min(scores[c.record_id] for c in solid)
            for candidate in found.candidates:
                name = candidate.record_id
                if self._reviewed(name) or scores[name] < lowest:
                    continue
                same = _same_failure(candidate, solid, marks, found.term_weights)
                below = [scores[r.record_id] for r, is_same in zip(solid, same, strict=True) if is_same]
                if below and scores[name] >= min(below):
                    scores[name] = min(below) - 1e-6
        return sorted(found.candidates, key=lambda c: (-scores[c.record_id], c.record_id))

    def _solid(self, found: Found, alone: Callable[[], Found]) -> list[Candidate]:
        """Reviewed candidates that are likely right, judged as if nobody had contributed anything.

        `alone` searches the shipped corpus by itself: many contributions change how rare a word is,
        and with it every confidence.
        """
        judged = alone()
        likely = {
            candidate.record_id
            for candidate in judged.candidates
            if self._ranking.confidence_of(self._evidence(candidate, judged), judged.dense) >= SOLID_CONFIDENCE
        }
        return [c for c in found.candidates if c.record_id in likely]

    def _reviewed(self, record_id: str) -> bool:
        return record_id in self.corpus.records or "reviewed" in self._raw_flags(record_id)

    def _raw_flags(self, record_id: str) -> tuple[str, ...]:
        stored = self._stored_many([record_id]).get(record_id)
        return stored.flags if stored is not None else ()

    def _flags(self, record_id: str) -> tuple[str, ...]:
        return tuple(flag for flag in self._raw_flags(record_id) if flag != "reviewed")

    def _evidence(self, candidate: Candidate, found: Found) -> dict[str, float]:
        """The evidence for any candidate: its own features, no lead unless it is the best."""
        if candidate is found.candidates[0]:
            return dict(found.evidence)
        own = {name: value for name, value in candidate.features.items() if name in found.evidence}
        return {**found.evidence, **own, "lead": 0.0}

    def _as_hit(self, candidate: Candidate, found: Found) -> Hit:
        stored = None
        if candidate.record_id in self.corpus.records:
            record: Record = self.corpus.records[candidate.record_id]
        else:
            stored = self._stored_many([candidate.record_id])[candidate.record_id]
            record = stored.record
        confidence = self._ranking.confidence_of(self._evidence(candidate, found), found.dense)
        return self._hit(candidate.record_id, record, stored, confidence, candidate.matched_on)

    def _hit(
        self, record_id: str, record: Record, stored: Stored | None, confidence: float, matched_on: tuple[str, ...]
    ) -> Hit:
        helped, failed = self._standing.counts(record_id)
        flags = stored.flags if stored is not None else ()
        return Hit(
            record,
            round(confidence, 4),
            matched_on,
            stored is None or "reviewed" in flags,
            tuple(flag for flag in flags if flag != "reviewed"),
            helped,
            failed,
            stored.seen if stored is not None else 1,
            self._disputes(record),
            self._standing.stopped(record_id),
        )

    def _disputes(self, record: Record) -> tuple[str, ...]:
        if self.store is None or not isinstance(record, Lesson) or record.id in self.corpus.records:
            return ()
        events = [e for e in self.store.events(record.id) if e.type == "conflict"]
        return tuple(dict.fromkeys(name for event in events for name in event.data.get("with", [])))

    # -- telling -----------------------------------------------------------------------------

    def contribute(self, draft: Mapping[str, Any], client: str = "") -> Contributed:
        """Store what was learnt as an `observed` lesson, redacted; near-duplicates merge.

        Raises:
            RecordInvalid: a field is wrong; the text names it.
            StoreUnavailable: nothing was written.
        """
        lesson, removed, flags = prepare(draft)
        store = self._writable()
        with self._lock, store.transaction():
            self.refresh()
            twin, conflicts = self._twin_of(lesson)
            if twin is not None:
                return self._merge(lesson, twin, removed, flags, client)
            record_id = self._free_id(lesson)
            lesson = lesson.model_copy(update={"id": record_id})
            store.add(lesson, flags, {"client": client})
            if conflicts:
                store.note("conflict", record_id, {"with": conflicts, "client": client})
        self.refresh()
        return Contributed("stored", record_id, removed, flags, tuple(conflicts), 1)

    def report_outcome(
        self, record_id: str, helped: bool, note: str = "", client: str = "", versions: Mapping[str, str] | None = None
    ) -> tuple[int, int]:
        """Record whether a lesson solved the problem, and with which versions; returns (helped, did not help) so far.

        Raises:
            NotFound: no such record.
        """
        store = self._writable()
        text = redact(note[:2000])
        with self._lock:
            self.get(record_id)
            said: dict[str, Any] = {"helped": helped, "note": text.text, "client": client}
            if versions:
                said["versions"] = {
                    redact(str(k)).text[:80]: redact(str(v)).text[:80] for k, v in list(versions.items())[:20]
                }
            store.note("outcome", record_id, said)
            self.refresh()
            return self._standing.counts(record_id)

    def _writable(self) -> Store:
        if self.store is None:
            raise StoreUnavailable(self._warnings[0] if self._warnings else "the user store is not open")
        return self.store

    def _twin_of(self, lesson: Lesson) -> tuple[str | None, list[str]]:
        """The record this lesson repeats, and those with its signature that say otherwise."""
        assert self.store is not None
        keys = list(document_of(lesson).signatures)
        ids = self.store.with_signatures(keys)
        same = self.store.db.execute("SELECT id FROM records WHERE fingerprint = ?", (fingerprint(lesson),)).fetchall()
        ids.extend(row[0] for row in same if row[0] not in ids)
        for document in self.corpus.segment.with_signatures(keys):
            ids.append(self.corpus.segment.ids[document])
        conflicts: list[str] = []
        best: tuple[float, str] | None = None
        for name in ids:
            record: Record | None = self.corpus.records.get(name)
            if record is None:
                stored = self.store.get(name)
                record = stored.record if stored is not None else None
            if not isinstance(record, Lesson):
                continue
            if fingerprint(record) == fingerprint(lesson):
                return name, []
            alike = _alike(record, lesson)
            if alike >= NEAR_DUPLICATE and (best is None or alike > best[0]):
                best = (alike, name)
            elif alike < 0.35:
                conflicts.append(name)
        return (best[1] if best else None), conflicts[:5]

    def _merge(
        self, lesson: Lesson, twin: str, removed: Mapping[str, int], flags: tuple[str, ...], client: str
    ) -> Contributed:
        """Count a repeat and keep its provenance; the repeated text itself stays in the event."""
        assert self.store is not None
        event = {"client": client, "contributed": lesson.model_dump(mode="json", exclude_defaults=True)}
        stored = self.store.get(twin)
        if stored is None:  # a shipped lesson: the event is all that changes
            self.store.note("merged", twin, event)
            return Contributed("merged", twin, removed, flags, (), 1 + self._merges(twin))
        sources = [*stored.record.provenance]
        sources += [p for p in lesson.provenance if p not in sources]
        merged = stored.record.model_copy(update={"provenance": sources[:200]})
        self.store.replace(merged, "merged", event, seen=stored.seen + 1)
        return Contributed("merged", twin, removed, flags, (), stored.seen + 1)

    def _merges(self, record_id: str) -> int:
        assert self.store is not None
        return sum(event.type == "merged" for event in self.store.events(record_id))

    def _free_id(self, lesson: Lesson) -> str:
        assert self.store is not None
        base = lesson.id
        digest = fingerprint(lesson)
        for length in (0, 6, 12, 32):
            name = f"{base[: 99 - length].rstrip('-')}-{digest[:length]}" if length else base
            if name not in self.corpus.records and self.store.get(name) is None:
                return name
        raise KbError(f"no free id near {base!r}; give another id")

    # -- keeping up --------------------------------------------------------------------------

    def refresh(self) -> None:
        """Index what any process has written since the last look."""
        if self.store is None:
            return
        with self._lock:
            newest = self.store.last_seq()
            if newest == self._seq:
                self._save_if_due()
                return
            for event in self.store.events(after=self._seq):
                if event.type == "outcome":
                    self._standing.count(event.record_id, event.data)
                elif event.type == "withdrawn":
                    self._drop(event.record_id)
            self._index(list(self.store.changed_since(self._seq)))
            self._seq = newest
            self._save_if_due()

    def _index(self, changed: list[Stored]) -> None:
        if not changed or self.store is None:
            return
        for stored in changed:
            self._drop(stored.record.id)
            self._unembedded[stored.record.id] = None
        self._user.add(Segment.build([document_of(stored.record) for stored in changed]))
        self._tail += len(changed)
        # Few segments keep a query quick: fold the small ones together as they pile up.
        if len(self._user.segments) > 24:
            self._compact(keep_largest=True)

    def _drop(self, record_id: str) -> None:
        """Forget what the index holds of a record that was changed or withdrawn."""
        self._cache.pop(record_id, None)
        self._unembedded.pop(record_id, None)
        for segment, dropped in zip(self._user.segments, self._user.dropped, strict=True):
            number = segment.number_of(record_id)
            if number is not None:
                dropped.add(number)

    def _save_if_due(self) -> None:
        """Save the index once enough is new; never inside a write, which may yet be rolled back."""
        if self.store is not None and self._tail >= TAIL_DOCUMENTS and not self.store.writing:
            self._compact(keep_largest=False)
            self._save_index()

    def _compact(self, keep_largest: bool) -> None:
        segments, dropped = self._user.segments, self._user.dropped
        start = 1 if keep_largest and len(segments[0].ids) > TAIL_DOCUMENTS else 0
        gone = frozenset((i, d) for i, numbers in enumerate(dropped[start:]) for d in numbers)
        merged = Segment.merge(segments[start:], gone)
        self._user.segments = [*segments[:start], merged]
        self._user.dropped = [*dropped[:start], set()]

    def _index_file(self) -> Path:
        return self.config.home / "index" / "user.npz"

    def _save_index(self) -> None:
        """Keep the user index on disk so that the next start is quick; failing to is no loss."""
        assert self.store is not None
        path = self._index_file()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f"{path.name}.{threading.get_ident()}.tmp")
            self._user.segments[0].save(temporary)
            newest = self.store.last_seq()
            temporary.replace(path.with_name(f"user-{newest}.npz"))
            for old in path.parent.glob("user-*.npz"):
                if old.name != f"user-{newest}.npz":
                    old.unlink(missing_ok=True)
            self._tail = 0
        except OSError as error:
            self._warn(f"the search index could not be saved ({error.strerror}); starts will be slower")

    def _load_index(self) -> None:
        if self.store is None:
            return
        newest = self.store.last_seq()
        for path in sorted((self.config.home / "index").glob("user-*.npz"), reverse=True):
            try:
                seq = int(path.stem.split("-")[1])
                if seq > newest:
                    raise ValueError("newer than the database")
                segment = Segment.load(path)
            except (OSError, ValueError, KeyError, EOFError) as error:
                self._set_aside(path, str(error))
                continue
            self._user.add(segment)
            self._seq = seq
            for event in self.store.events():
                if event.seq <= seq and event.type == "outcome":
                    self._standing.count(event.record_id, event.data)
            self._unembedded.update(dict.fromkeys(segment.ids))
            return

    def _set_aside(self, path: Path, reason: str) -> None:
        try:
            path.rename(path.with_name(path.name + ".damaged"))
        except OSError:
            pass
        self._warn(
            f"search index {path.name} was damaged ({reason[:120]}) and set aside; it is rebuilt from the records"
        )

    def _warn(self, text: str) -> None:
        if text not in self._warnings:
            self._warnings.append(text)

    # -- embeddings --------------------------------------------------------------------------

    def encoder(self) -> Encoder | None:
        """The loaded encoder, or None with the reason kept for the replies."""
        if not self.config.dense:
            return None
        with self._lock:
            if self._encoder is None and self._encoder_failed is None:
                try:
                    folder = find_weights(self.config.weights)
                    self._encoder = Encoder.open(folder, self.config.home / "index" / "weights-checked")
                except (WeightsMissing, OSError, ValueError) as error:
                    self._encoder_failed = str(error)
                except Exception as error:  # safetensors and tokenizers raise their own kinds for a damaged file
                    self._encoder_failed = (
                        f"the weights cannot be read ({type(error).__name__}); run 'herdbook setup --force'"
                    )
            return self._encoder

    def warm(self, batch: int = 16) -> None:
        """Load the encoder and embed what is not yet embedded; meant for a background thread."""
        encoder = self.encoder()
        while encoder is not None and self._unembedded:
            with self._lock:
                names = list(self._unembedded)[:512]
                self._from_store(names)
                names = [name for name in names if name in self._unembedded][:batch]
                documents = {name: s for name, s in self._stored_many(names).items()}
                for name in names:
                    self._unembedded.pop(name, None)
            if documents:
                self._embed(encoder, documents)

    def _from_store(self, names: list[str]) -> None:
        assert self.store is not None
        ready = {
            name: np.frombuffer(blob, dtype=np.float16).astype(np.float32).reshape(-1, DIMENSIONS)
            for name, blob in self.store.vectors(MODEL_NAME, names).items()
            if len(blob) % (2 * DIMENSIONS) == 0
        }
        self._user.vectors.put(ready)
        for name in ready:
            self._unembedded.pop(name, None)

    def _embed(self, encoder: Encoder, documents: Mapping[str, Stored]) -> None:
        texts = {name: _summary(document_of(stored.record)) for name, stored in documents.items()}
        rows = encoder.encode(list(texts.values()), DENSE_TOKENS)
        with self._lock:
            self._user.vectors.put({name: rows[i : i + 1] for i, name in enumerate(texts)})
            if self.store is not None and not self.store.read_only:
                try:
                    self.store.put_vectors(
                        MODEL_NAME,
                        [
                            (name, fingerprint(documents[name].record), rows[i].astype(np.float16).tobytes())
                            for i, name in enumerate(texts)
                        ],
                    )
                except StoreUnavailable as error:
                    self._warn(f"embeddings are not kept: {error}")

    def _user_vectors(self) -> VectorIndex:
        if self.config.chroma is None:
            return ExactIndex()
        host, port, ssl = self.config.chroma
        try:
            return ChromaIndex(host, port, "herdbook", ssl)
        except StoreUnavailable as error:
            self._warn(f"{error}; using the built-in index")
            return ExactIndex()

    def close(self) -> None:
        """Close the database."""
        if self.store is not None:
            self.store.close()


def open_memory(config: MemoryConfig) -> Memory:
    """The memory of `config`; a store that cannot be opened leaves the shipped corpus usable, with a warning."""
    warnings: list[str] = []
    corpus = load(config.corpus, config.compiled)
    warnings.extend(corpus.warnings)
    for last in (False, True):
        store = _open_store(config, warnings)
        try:
            return Memory(config, corpus, store, warnings)
        except StoreUnavailable as error:
            # Damage that shows only while reading: opening once more sets the file aside.
            if store is not None:
                store.close()
            if last:
                warnings.append(f"{error}. Answers come from the shipped corpus only")
    return Memory(config, corpus, None, warnings)


def _open_store(config: MemoryConfig, warnings: list[str]) -> Store | None:
    try:
        store = Store.open(config.home / "herdbook.db")
    except StoreUnavailable as error:
        warnings.append(f"{error}. Answers come from the shipped corpus only")
        return None
    if store.salvage is not None:
        s = store.salvage
        warnings.append(
            f"the user database was damaged ({s.reason}); it was set aside as {s.set_aside.name}, "
            f"{s.records} records and {s.events} events were carried over"
        )
    if store.read_only:
        warnings.append(f"{config.home} is read-only: reading works, contributions are refused")
    return store


def prepare(draft: Mapping[str, Any]) -> tuple[Lesson, dict[str, int], tuple[str, ...]]:
    """A draft as an `observed` lesson fit to store, what was redacted, and what was flagged.

    Raises:
        RecordInvalid: a field is missing or wrong.
    """
    fields = {key: value for key, value in draft.items() if value not in (None, "", [], {})}
    removed: dict[str, int] = {}
    longest = 10 * MAX_TEXT_CHARS  # no field takes so much: refused below, and never written
    clean = {key: redact_value(value, removed, longest) for key, value in fields.items()}
    clean["kind"] = "lesson"
    clean["status"] = "observed"
    clean.setdefault("category", "process")
    clean.setdefault("title", _title_from(clean))
    if not isinstance(clean.get("id"), str) or not clean["id"]:
        clean["id"] = slug(str(clean["title"]))
    today = date.today()
    if not clean.get("provenance"):
        digest = signature_of(f"{clean.get('symptom', '')} {clean.get('fix', '')}").key
        clean["provenance"] = [Provenance(evidence=f"contribution:{digest}", date=today)]
    record = record_from_dict(clean)
    record = record.model_copy(update={"devices": [_target(name) for name in record.devices]})
    wrong = [phase for phase in record.phases if phase not in PHASES]
    if wrong:
        raise RecordInvalid(f"phases: {wrong[0][:40]!r} is unknown; use {', '.join(PHASES)}")
    if not isinstance(record, Lesson):
        raise RecordInvalid("kind: only lessons can be contributed")
    flags = tuple(f"instruction: {passage}" for passage in instructions_in(texts_of(record)))
    return record, removed, flags


def _target(device: str) -> str:
    if device == "any":
        return device
    try:
        return device_target(device)
    except KbError as error:
        raise RecordInvalid(f"devices: {error}, or 'any'") from None


def _title_from(fields: Mapping[str, Any]) -> str:
    symptom = str(fields.get("symptom", ""))
    lines = read_query(symptom).lines
    return (lines[0] if lines else symptom or "untitled lesson")[:120]


def slug(text: str) -> str:
    """A record id from a title: `[a-z0-9-]`, at most 60 characters."""
    import unicodedata

    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:60].strip("-")
    name = name or "lesson-" + signature_of(text).key
    assert re.match(ID_PATTERN, name)
    return name


def _summary(document: Document) -> str:
    return " ".join(document.passages[:3])


def _same_failure(
    candidate: Candidate, others: list[Candidate], marks: NDArray[np.bool_], weights: NDArray[np.float32]
) -> list[bool]:
    """Of each of `others`, whether it answers the same failure: the same diagnostic line, or much the same words.

    "Much the same" is half of what either of the two matched: a contribution that repeats a whole
    paste matches more words than any lesson, and that must not count as another failure.
    """
    mine = float(candidate.matched @ weights)
    theirs = marks @ weights
    shared = (marks & candidate.matched) @ weights / np.maximum(np.minimum(mine, theirs), 1e-6) >= 0.5
    signed = candidate.features["signature"] > 0
    return [bool(s) or (signed and other.features["signature"] > 0) for s, other in zip(shared, others, strict=True)]


def _alike(a: Lesson, b: Lesson) -> float:
    """Share of cause-and-fix terms in common (Jaccard)."""
    left, right = set(terms(f"{a.cause} {a.fix}")), set(terms(f"{b.cause} {b.fix}"))
    return len(left & right) / max(1, len(left | right))
