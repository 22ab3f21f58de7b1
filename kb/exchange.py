"""User records out to a folder or archive, and back, without loss.

An export is the corpus's own file format (one Markdown file a record) plus `standing.jsonl` with
what belongs to a home rather than to a text: votes, repeat counts, conflicts. Importing verifies
everything first and writes in one transaction; nothing is ever extracted to disk.

    export(memory, Path("out"))
    report = import_from(other, Path("out"))
"""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from kb.errors import FileInvalid, ImportRefused
from kb.files import MAX_FILE_BYTES, dump_record, parse_record
from kb.memory import Memory
from kb.records import Lesson, Record
from kb.redact import instructions_in
from kb.store import Stored, fingerprint

STANDING = "standing.jsonl"
MAX_MEMBERS = 250_000
MAX_TOTAL_BYTES = 512 * 1024 * 1024
MAX_STANDING_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did. renamed: (id in the archive, id here) where another text had the id."""

    new: tuple[str, ...]
    seen: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    refused: tuple[str, ...]
    votes: int


def export(memory: Memory, target: Path, ids: list[str] | None = None) -> list[str]:
    """Write the user records (or only `ids`) to the folder or `.tar.gz` `target`; returns their ids.

    Raises:
        ImportRefused: the target exists and is not an empty folder (nothing is overwritten).
    """
    store = memory.store
    chosen: list[Stored] = (
        [] if store is None else [s for s in store.changed_since(0) if ids is None or s.record.id in ids]
    )
    files = {f"{s.record.kind}s/{s.record.id}.md": dump_record(s.record) for s in chosen}
    files[STANDING] = "".join(line + "\n" for line in _standing_lines(memory, chosen, ids))
    if target.name.endswith((".tar.gz", ".tgz", ".tar")):
        _write_tar(target, files)
    else:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ImportRefused(f"{target} exists and is not an empty folder; choose another target")
        for name, text in files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    return [s.record.id for s in chosen]


def _standing_lines(memory: Memory, chosen: list[Stored], ids: list[str] | None) -> Iterator[str]:
    """Repeat counts, then votes and conflicts with a name that stays the same in every home."""
    store = memory.store
    if store is None:
        return
    for stored in chosen:
        if stored.seen > 1 or stored.flags:
            yield json.dumps(
                {"type": "standing", "record": stored.record.id, "seen": stored.seen, "flags": stored.flags}
            )
    for event in store.events():
        if event.type not in ("outcome", "conflict", "merged") or (ids is not None and event.record_id not in ids):
            continue
        data = dict(event.data)
        data.pop("record", None)
        origin = data.pop("origin", None) or f"{event.at}/{event.seq}"
        line = {"type": event.type, "record": event.record_id, "at": event.at, "origin": origin, "data": data}
        yield json.dumps(line, ensure_ascii=False)


def _write_tar(target: Path, files: dict[str, str]) -> None:
    if target.exists():
        raise ImportRefused(f"{target} exists; choose another target")
    mode = "w" if target.suffix == ".tar" else "w:gz"
    with tarfile.open(target, mode) as archive:
        for name, text in files.items():
            data = text.encode("utf-8")
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def import_from(memory: Memory, source: Path, reviewed: bool = False) -> ImportReport:
    """Take in the records of a folder, `.tar`, `.tar.gz` or `.zip`.

    `reviewed` vouches for them: they then rank like the shipped corpus. Files that are no records
    are refused and named; an archive with unsafe member names is refused whole.

    Raises:
        ImportRefused: nothing was written.
    """
    store = memory._writable()  # pyright: ignore[reportPrivateUsage]
    records: dict[str, Record] = {}
    refused: list[str] = []
    standing: list[dict[str, Any]] = []
    for name, data in _members(source):
        if name.endswith(STANDING):
            standing.extend(_standing(name, data, refused))
            continue
        try:
            record = parse_record(_utf8(name, data), name)
        except FileInvalid as error:
            refused.append(str(error))
            continue
        if record.id in records and records[record.id] != record:
            refused.append(f"{name}: id {record.id!r} stands twice in this import with different texts")
            continue
        records[record.id] = record
    if not records and not standing:
        raise ImportRefused(f"{source} holds no Herdbook records{': ' + refused[0] if refused else ''}")
    new: list[str] = []
    seen: list[str] = []
    renamed: list[tuple[str, str]] = []
    with store.transaction():
        names: dict[str, str] = {}
        for record in records.values():
            there = store.get(record.id)
            shipped = memory.corpus.records.get(record.id)
            if (there is not None and there.record == record) or shipped == record:
                names[record.id] = record.id
                seen.append(record.id)
                continue
            target = record
            if there is not None or shipped is not None:
                target = record.model_copy(update={"id": f"{record.id[:86].rstrip('-')}-{fingerprint(record)[:12]}"})
                names[record.id] = target.id
                if store.get(target.id) is not None:
                    seen.append(target.id)
                    continue
                renamed.append((record.id, target.id))
            names[record.id] = target.id
            flags = [f"instruction: {found}" for found in instructions_in(_text(target))]
            store.add(target, flags + (["reviewed"] if reviewed else []), {"imported_from": source.name})
            new.append(target.id)
        votes = _take_standing(memory, standing, names, set(new))
    memory.refresh()
    return ImportReport(tuple(new), tuple(seen), tuple(renamed), tuple(refused), votes)


def _take_standing(memory: Memory, lines: list[dict[str, Any]], names: dict[str, str], new: set[str]) -> int:
    store = memory.store
    assert store is not None
    known = {event.data.get("origin") or f"{event.at}/{event.seq}" for event in store.events()}
    votes = 0
    for line in lines:
        record_id = str(names.get(line["record"], line["record"]))
        if line["type"] == "standing":
            stored = store.get(record_id)
            if stored is not None and record_id in new and line["seen"] > stored.seen:
                store.replace(stored.record, "counted", {"seen": line["seen"]}, seen=line["seen"])
        elif line["origin"] not in known:
            known.add(line["origin"])
            store.note(line["type"], record_id, {**line["data"], "origin": line["origin"]})
            votes += line["type"] == "outcome"
    return votes


def _text(record: Record) -> str:
    if isinstance(record, Lesson):
        return "\n".join([record.title, record.symptom, *record.also_seen_as, record.cause, record.fix, record.verify,
                          record.did_not_help])  # fmt: skip
    return json.dumps(record.model_dump(mode="json"), ensure_ascii=False)


def _standing(name: str, data: bytes, refused: list[str]) -> Iterator[dict[str, Any]]:
    for number, raw in enumerate(_utf8(name, data).splitlines(), 1):
        try:
            line = json.loads(raw)
            kind = line["type"]
            if kind == "standing":
                good = isinstance(line["record"], str) and isinstance(line["seen"], int) and 0 < line["seen"] < 10**9
            else:
                good = kind in ("outcome", "conflict", "merged") and isinstance(line["record"], str)
                good = good and isinstance(line["origin"], str) and len(line["origin"]) < 200
                good = good and isinstance(line["data"], dict) and len(raw) < MAX_FILE_BYTES
        except (ValueError, KeyError, TypeError, RecursionError):
            good, line = False, {}
        if good:
            yield line
        elif raw.strip():
            refused.append(f"{name}:{number}: not a standing line")


def _utf8(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileInvalid(f"{name}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every record file of a folder or archive, within bounds."""
    if source.is_dir():
        yield from _folder_members(source)
        return
    if not source.is_file():
        raise ImportRefused(f"{source} does not exist; give a folder, a .tar, a .tar.gz or a .zip")
    try:
        if zipfile.is_zipfile(source):
            yield from _zip_members(source)
        else:
            yield from _tar_members(source)
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        OSError,
        RuntimeError,
        ValueError,
        NotImplementedError,
    ) as error:
        raise ImportRefused(f"{source} cannot be read as an archive ({error}); nothing was imported") from None


def _wanted(name: str) -> bool:
    path = PurePosixPath(name)
    return (path.suffix == ".md" and path.name != "README.md") or path.name == STANDING


def _check_name(source: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or "\0" in name or (len(name) > 1 and name[1] == ":"):
        raise ImportRefused(f"{source} has a member named {name[:80]!r} that points outside; nothing was imported")


class _Budget:
    """Counts members and bytes; a decompression bomb ends here."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.members = 0
        self.total = 0

    def take(self, name: str, size: int) -> None:
        limit = MAX_STANDING_BYTES if name.endswith(STANDING) else MAX_FILE_BYTES
        self.members += 1
        self.total += size
        if size > limit or self.members > MAX_MEMBERS or self.total > MAX_TOTAL_BYTES:
            raise ImportRefused(f"{self.source}: {name[:80]!r} makes this import too large; nothing was imported")


def _folder_members(source: Path) -> Iterator[tuple[str, bytes]]:
    budget = _Budget(source)
    root = source.resolve()
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if not _wanted(name) or ".git" in path.parts or not path.is_file():
            continue
        if not path.resolve().is_relative_to(root):
            raise ImportRefused(f"{path} is a link that points outside; nothing was imported")
        budget.take(name, path.stat().st_size)
        yield name, path.read_bytes()


def _zip_members(source: Path) -> Iterator[tuple[str, bytes]]:
    budget = _Budget(source)
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            _check_name(source, info.filename)
            if info.is_dir() or not _wanted(info.filename):
                continue
            budget.take(info.filename, info.file_size)
            yield info.filename, archive.read(info)


def _tar_members(source: Path) -> Iterator[tuple[str, bytes]]:
    budget = _Budget(source)
    with tarfile.open(source) as archive:
        for member in archive:
            _check_name(source, member.name)
            if member.issym() or member.islnk():
                raise ImportRefused(f"{source} has the link {member.name[:80]!r}; exports hold plain files only")
            if not member.isfile():
                continue
            budget.members += 1
            if budget.members > MAX_MEMBERS:
                raise ImportRefused(f"{source} has over {MAX_MEMBERS} members; nothing was imported")
            if not _wanted(member.name):
                continue
            budget.take(member.name, member.size)
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, file.read()
