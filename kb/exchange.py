"""User records out to a folder or archive, and back, without loss.

An export is the corpus's own file format (one Markdown file a record) plus `standing.jsonl` with
what belongs to a home rather than to a text: votes, repeat counts, conflicts. Importing verifies
everything first and writes in one transaction; nothing is ever extracted to disk.

    export(memory, Path("out"))
    report = import_from(other, Path("out"))
"""

from __future__ import annotations

import gzip
import io
import json
import re
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any, cast

from kb.errors import FileInvalid, ImportRefused, RecordInvalid
from kb.files import MAX_FILE_BYTES, dump_record, parse_record
from kb.memory import Memory
from kb.records import ID_PATTERN, Lesson, Record, record_from_dict, texts_of
from kb.redact import instructions_in, redact_value
from kb.store import Event, Stored, fingerprint

STANDING = "standing.jsonl"
MAX_MEMBERS = 250_000
MAX_TOTAL_BYTES = 512 * 1024 * 1024
MAX_STANDING_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What an import did. renamed: (id in the archive, id here) where another text had the id.

    redacted: what was taken out of new records before they were written, by kind.
    """

    new: tuple[str, ...]
    seen: tuple[str, ...]
    renamed: tuple[tuple[str, str], ...]
    refused: tuple[str, ...]
    votes: int
    redacted: dict[str, int] = field(default_factory=dict[str, int])


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
        origin = data.pop("origin", None) or _origin(event)
        line = {"type": event.type, "record": event.record_id, "at": event.at, "origin": origin, "data": data}
        yield json.dumps(line, ensure_ascii=False)


def _origin(event: Event) -> str:
    """A name for an event that no event of another home has, second and number being easily the same."""
    said = json.dumps([event.type, event.record_id, event.data], sort_keys=True)
    return f"{event.at}/{event.seq}/{blake2b(said.encode(), digest_size=6).hexdigest()}"


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
    redacted: dict[str, int] = {}
    with store.transaction():
        names: dict[str, str] = {}
        taken_in: list[Record] = []
        for original in records.values():
            shipped = memory.corpus.records.get(original.id)
            record = original if shipped == original else _redacted(original, redacted)
            stored = store.get(original.id)
            there = stored.record if stored is not None else shipped
            names[original.id] = original.id
            # The same text is the same record, whatever sources or status either home has added since.
            if there is not None and fingerprint(there) == fingerprint(record):
                seen.append(original.id)
                continue
            if there is not None:
                record = record.model_copy(update={"id": f"{record.id[:86].rstrip('-')}-{fingerprint(record)[:12]}"})
                names[original.id] = record.id
                if store.get(record.id) is not None:
                    seen.append(record.id)
                    continue
                renamed.append((original.id, record.id))
            taken_in.append(record)
        for record in taken_in:
            if isinstance(record, Lesson) and record.superseded_by in names:
                record = record.model_copy(update={"superseded_by": names[record.superseded_by]})
            flags = [f"instruction: {found}" for found in instructions_in(texts_of(record))]
            store.add(record, flags + (["reviewed"] if reviewed else []), {"imported_from": source.name})
            new.append(record.id)
        votes = _take_standing(memory, standing, names, set(new), redacted)
    memory.refresh()
    return ImportReport(tuple(new), tuple(seen), tuple(renamed), tuple(refused), votes, redacted)


def _redacted(record: Record, removed: dict[str, int]) -> Record:
    """`record` fit to store: what another home failed to take out does not come in."""
    data = record.model_dump(mode="python")
    cleaned = {
        key: value if key in ("id", "superseded_by") else redact_value(value, removed) for key, value in data.items()
    }
    if cleaned == data:
        return record
    try:
        return record_from_dict(cleaned)
    except RecordInvalid as error:
        raise ImportRefused(f"record {record.id!r} holds secrets where they cannot be taken out: {error}") from None


def _take_standing(
    memory: Memory, lines: list[dict[str, Any]], names: dict[str, str], new: set[str], removed: dict[str, int]
) -> int:
    store = memory.store
    assert store is not None
    known = {event.data.get("origin") or _origin(event) for event in store.events()}
    votes = 0
    for line in lines:
        record_id = str(names.get(line["record"], line["record"]))
        if line["type"] == "standing":
            stored = store.get(record_id)
            if stored is not None and record_id in new and line["seen"] > stored.seen:
                store.replace(stored.record, "counted", {"seen": line["seen"]}, seen=line["seen"])
        elif line["origin"] not in known:
            known.add(line["origin"])
            store.note(line["type"], record_id, {**redact_value(line["data"], removed), "origin": line["origin"]})
            votes += line["type"] == "outcome"
    return votes


def _standing(name: str, data: bytes, refused: list[str]) -> Iterator[dict[str, Any]]:
    for number, raw in enumerate(_utf8(name, data).splitlines(), 1):
        try:
            line = json.loads(raw)
            kind = line["type"]
            good = re.fullmatch(ID_PATTERN, line["record"]) is not None
            if kind == "standing":
                good = good and type(line["seen"]) is int and 0 < line["seen"] < 10**9
            else:
                good = good and len(raw) < MAX_FILE_BYTES and _is_event(kind, line["origin"], line["data"])
        except (ValueError, KeyError, TypeError, RecursionError):
            good, line = False, {}
        if good:
            yield line
        elif raw.strip():
            refused.append(f"{name}:{number}: not a standing line")


def _is_event(kind: str, origin: Any, data: Any) -> bool:
    """Whether an event of another home has the form ours have: what is stored is read back at every query."""
    if not isinstance(data, dict) or not re.fullmatch(r"[\w:/.+-]{1,199}", origin):
        return False
    fields = cast("dict[str, Any]", data)
    if not isinstance(fields.get("client", ""), str):
        return False
    if kind == "outcome":
        return type(fields["helped"]) is bool and isinstance(fields.get("note", ""), str)
    if kind == "conflict":
        names = fields["with"]
        return isinstance(names, list) and all(re.fullmatch(ID_PATTERN, name) for name in cast("list[Any]", names))
    return kind == "merged"


def _utf8(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileInvalid(f"{name}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def _members(source: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every record file of a folder or archive, within bounds."""
    if source.is_dir():
        try:
            yield from _folder_members(source)
        except OSError as error:
            raise ImportRefused(f"{error.filename} cannot be read: {error.strerror}; nothing was imported") from None
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
        zlib.error,
        IndexError,  # zipfile: a member without a name
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


def _shown(name: str) -> str:
    """A member's name fit for a message: one line, no escape codes, no lone surrogates."""
    return "".join(c if c.isprintable() else "?" for c in name.encode("utf-8", "replace").decode("utf-8"))[:120]


def _check_name(source: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or "\0" in name or re.match(r"[A-Za-z]:", name):
        raise ImportRefused(f"{source} has a member named {_shown(name)!r} that points outside; nothing was imported")


class _Budget:
    """Counts members and bytes; a decompression bomb ends here."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.members = 0
        self.total = 0

    def take(self, name: str, size: int) -> None:
        limit = MAX_TOTAL_BYTES
        if _wanted(name):
            limit = MAX_STANDING_BYTES if PurePosixPath(name).name == STANDING else MAX_FILE_BYTES
        self.members += 1
        self.total += size
        if self.members > MAX_MEMBERS:
            raise ImportRefused(f"{self.source} has over {MAX_MEMBERS} members; nothing was imported")
        if size > limit or self.total > MAX_TOTAL_BYTES:
            raise ImportRefused(f"{self.source}: {_shown(name)!r} makes this import too large; nothing was imported")


def _folder_members(source: Path) -> Iterator[tuple[str, bytes]]:
    budget = _Budget(source)
    root = source.resolve()
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        name = relative.as_posix()
        if not _wanted(name) or ".git" in relative.parts or not path.is_file():
            continue
        if not path.resolve().is_relative_to(root):
            raise ImportRefused(f"{path} is a link that points outside; nothing was imported")
        budget.take(name, path.stat().st_size)
        yield _shown(name), path.read_bytes()


def _zip_members(source: Path) -> Iterator[tuple[str, bytes]]:
    budget = _Budget(source)
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            _check_name(source, info.filename)
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ImportRefused(
                    f"{source} has {_shown(info.filename)!r}, no plain file; exports hold plain files only"
                )
            budget.take(info.filename, info.file_size)
            if not info.is_dir() and _wanted(info.filename):
                yield _shown(info.filename), archive.read(info)


def _tar_members(source: Path) -> Iterator[tuple[str, bytes]]:
    budget = _Budget(source)
    with source.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        with gzip.GzipFile(fileobj=file) if packed else file as stream:
            # tarfile reads a member's long name or attributes whole, whatever size it claims.
            reader = _Reader(source, stream)
            with tarfile.open(fileobj=cast("Any", reader), mode="r:") as archive:
                for member in archive:
                    _check_name(source, member.name)
                    if not member.isfile() and not member.isdir():
                        raise ImportRefused(
                            f"{source} has the link or device {_shown(member.name)!r}; exports hold plain files only"
                        )
                    budget.take(member.name, member.size)
                    content = archive.extractfile(member) if member.isfile() and _wanted(member.name) else None
                    if content is not None:
                        yield _shown(member.name), content.read()
            while reader.read(1 << 20):
                pass  # to the end: gzip's checksum stands there


class _Reader:
    """A stream that refuses to hand out, or to skip, more than an import may hold."""

    def __init__(self, source: Path, stream: Any) -> None:
        self._source = source
        self._stream = stream

    def read(self, size: int) -> bytes:
        self._refuse_beyond(self._stream.tell() + max(size, 0), size)
        return self._stream.read(size)

    def seek(self, position: int) -> int:
        self._refuse_beyond(position, 0)
        return self._stream.seek(position)

    def tell(self) -> int:
        return self._stream.tell()

    def _refuse_beyond(self, position: int, size: int) -> None:
        if position > 2 * MAX_TOTAL_BYTES or not -1 < size <= MAX_STANDING_BYTES:
            raise ImportRefused(f"{self._source} unpacks to too much; nothing was imported")
