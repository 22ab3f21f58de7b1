"""The shipped corpus: Markdown records compiled to arrays that load in milliseconds.

`build` reads every file of a corpus folder and writes the compiled form; `load` reads that, checks
its digest, and falls back to the Markdown when it is damaged. The compiled folder is part of the
product and rebuilt by `herdbook corpus build` whenever a record changes.

    corpus = load(Path("kb/corpus"), Path("kb/compiled"))
    corpus.records["aie3792-o2-miscompile"].fix
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from kb.document import Document, document_of
from kb.embed import DIMENSIONS, Encoder, Vectors
from kb.errors import FileInvalid
from kb.files import read_record
from kb.lexical import Segment
from kb.migrations import lift
from kb.records import Record, record_from_dict
from kb.skills import SKILL_FILE, read_skill, skill_files

FORMAT = 1
MANIFEST, RECORDS, POSTINGS, VECTORS = "manifest.json", "records.jsonl", "postings.npz", "vectors.npz"


class LazyRecords(Mapping[str, Record]):
    """Records by id, each parsed when it is first asked for."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self._lines = lines
        self._parsed: dict[str, Record] = {}

    def __getitem__(self, record_id: str) -> Record:
        if record_id not in self._parsed:
            self._parsed[record_id] = record_from_dict(lift(json.loads(self._lines[record_id])))
        return self._parsed[record_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


@dataclass(frozen=True, slots=True)
class Corpus:
    """A loaded corpus. vectors: record id → unit vectors [n, 384] (may be empty). warnings: what was degraded."""

    records: Mapping[str, Record]
    segment: Segment
    vectors: Mapping[str, Vectors]
    digest: str
    warnings: tuple[str, ...] = ()


def record_files(folder: Path) -> list[Path]:
    """Every record file below `folder`, in a fixed order, then the skills in `skills` beside it."""
    records = sorted(p for p in folder.rglob("*.md") if p.name != "README.md")
    return [*records, *skill_files(folder.parent / "skills")]


def source_digest(folder: Path) -> str:
    """A digest of the record files' names and contents."""
    digest = blake2b(digest_size=16)
    for path in record_files(folder):
        digest.update(path.relative_to(folder.parent).as_posix().encode() + b"\0")
        digest.update(path.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


def read_all(folder: Path) -> tuple[dict[str, Record], list[str]]:
    """The records of `folder` by id, and the problems of files that are none."""
    records: dict[str, Record] = {}
    problems: list[str] = []
    for path in record_files(folder):
        try:
            record = read_skill(path) if path.name == SKILL_FILE else read_record(path)
        except FileInvalid as error:
            problems.append(str(error))
            continue
        if record.id != path.stem and path.name != SKILL_FILE:
            problems.append(f"{path}: id {record.id!r} differs from the file name")
        if record.id in records:
            problems.append(f"{path}: id {record.id!r} stands in another file too")
        records[record.id] = record
    return records, problems


def build(
    folder: Path, compiled: Path, encoder: Encoder | None, progress: Callable[[int, int], None] | None = None
) -> Corpus:
    """Compile `folder` into `compiled`; passages that were embedded before keep their vectors.

    Raises:
        FileInvalid: a record file is wrong; nothing is written.
    """
    records, problems = read_all(folder)
    if problems:
        raise FileInvalid("; ".join(problems[:10]))
    documents = [document_of(record) for record in records.values()]
    segment = Segment.build(documents)
    lines = {
        name: json.dumps(
            record.model_dump(mode="json", exclude_defaults=True) | {"kind": record.kind}, ensure_ascii=False
        )
        for name, record in records.items()
    }
    compiled.mkdir(parents=True, exist_ok=True)
    vectors = _embed(documents, _old_vectors(compiled), encoder, progress)
    (compiled / RECORDS).write_text("".join(line + "\n" for line in lines.values()), encoding="utf-8", newline="\n")
    segment.save(compiled / POSTINGS)
    _save_vectors(compiled / VECTORS, documents, vectors)
    digest = source_digest(folder)
    manifest = {
        "format": FORMAT,
        "source": digest,
        "records": len(records),
        "files": {name: _file_digest(compiled / name) for name in (RECORDS, POSTINGS, VECTORS)},
    }
    (compiled / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8", newline="\n")
    return Corpus(records, segment, _by_record(documents, vectors), digest)


def load(folder: Path, compiled: Path) -> Corpus:
    """The compiled corpus; when it is missing or damaged, the one read from the Markdown, with a warning."""
    try:
        manifest = json.loads((compiled / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']}, this Herdbook reads {FORMAT}")
        for name, expected in manifest["files"].items():
            if _file_digest(compiled / name) != expected:
                raise ValueError(f"{name} is not the file that was built")
        lines: dict[str, str] = {}
        segment = Segment.load(compiled / POSTINGS)
        with (compiled / RECORDS).open(encoding="utf-8") as file:
            for name, line in zip(segment.ids, file, strict=True):
                lines[name] = line
        return Corpus(LazyRecords(lines), segment, _load_vectors(compiled / VECTORS), manifest["source"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        records, problems = read_all(folder)
        documents = [document_of(record) for record in records.values()]
        warning = (
            f"compiled corpus unusable ({error}); read {len(records)} records from {folder} instead, without vectors"
        )
        return Corpus(records, Segment.build(documents), {}, "", (warning, *problems[:5]))


def _file_digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _passage_key(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _embed(
    documents: list[Document],
    known: dict[str, Vectors],
    encoder: Encoder | None,
    progress: Callable[[int, int], None] | None,
) -> dict[str, Vectors]:
    """Passage key → vector, computing only what is new."""
    wanted = {_passage_key(text): text for document in documents for text in document.passages}
    vectors = {key: known[key] for key in wanted if key in known}
    missing = [key for key in wanted if key not in vectors]
    if missing and encoder is None:
        return vectors
    for start in range(0, len(missing), 256):
        part = missing[start : start + 256]
        if encoder is not None:
            vectors.update(zip(part, encoder.encode([wanted[key] for key in part]), strict=True))
        if progress is not None:
            progress(min(start + 256, len(missing)), len(missing))
    return vectors


def _save_vectors(path: Path, documents: list[Document], vectors: dict[str, Vectors]) -> None:
    keys = sorted(vectors)
    number = {key: i for i, key in enumerate(keys)}
    pairs = [
        (d, number[key])
        for d, document in enumerate(documents)
        for key in map(_passage_key, document.passages)
        if key in number
    ]
    matrix = np.stack([vectors[key] for key in keys]) if keys else np.zeros((0, DIMENSIONS), dtype=np.float32)
    # A byte a component: cosines move by less than 0.002, and the shipped file is a quarter the size.
    scale = np.maximum(np.abs(matrix).max(axis=1, keepdims=True), 1e-9) / 127
    with path.open("wb") as file:
        np.savez(
            file,
            keys=np.array(keys, dtype=np.str_),
            vectors=np.rint(matrix / scale).astype(np.int8),
            scales=scale.astype(np.float32),
            pairs=np.array(pairs, dtype=np.int32).reshape(-1, 2),
            ids=np.array([document.record_id for document in documents], dtype=np.str_),
        )


def _old_vectors(compiled: Path) -> dict[str, Vectors]:
    try:
        with np.load(compiled / VECTORS, allow_pickle=False) as data:
            matrix = _unpacked(data)
            return {str(key): matrix[i] for i, key in enumerate(data["keys"])}
    except (OSError, ValueError, KeyError):
        return {}


def _load_vectors(path: Path) -> dict[str, Vectors]:
    with np.load(path, allow_pickle=False) as data:
        matrix = _unpacked(data)
        ids, pairs = data["ids"], data["pairs"]
    found: dict[str, list[int]] = {}
    for document, row in pairs.tolist():
        found.setdefault(str(ids[document]), []).append(row)
    return {name: matrix[rows] for name, rows in found.items()}


def _unpacked(data: Mapping[str, Any]) -> Vectors:
    """Unit vectors [n, 384] from the stored bytes."""
    matrix = data["vectors"].astype(np.float32) * data["scales"]
    return matrix / np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-9)


def _by_record(documents: list[Document], vectors: dict[str, Vectors]) -> dict[str, Vectors]:
    found: dict[str, Vectors] = {}
    for document in documents:
        rows = [vectors[key] for key in map(_passage_key, document.passages) if key in vectors]
        if rows:
            found[document.record_id] = np.stack(rows)
    return found
