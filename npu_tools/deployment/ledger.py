"""The ledger of a deployment: one JSON line an event, each naming the hash of the one before.

>>> ledger = Ledger.open(workspace / "ledger.jsonl")
>>> ledger.append("note", 1, {"text": "tile_m 32 was too small", "by": "agent"})
>>> verify(workspace / "ledger.jsonl") is None

What a deployment is, is what stands here; everything else in the workspace is written anew from it. Lines are never
changed. Every line is on disk before `append` returns. A crash in the middle of a line leaves a torn tail: the next
writer puts it aside in a file of its own and says so in the ledger. A line that was changed, taken out, or cut off at
the end (ledger.head.json remembers how far it went) is a `Break`, and nothing is appended after one.

It does not know what the kinds mean: machine.py and documents.py do.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, cast, get_args

from filelock import FileLock, Timeout

from npu_tools.errors import LedgerBroken, UnusableInput, WorkspaceBusy

Kind = Literal["opened", "decision", "attempt", "phase", "step", "checkpoint", "answer", "note"]
KINDS: tuple[str, ...] = get_args(Kind)
FIRST = "0" * 64
"""`prev` of the first line."""
LOCK_PATIENCE_S = 20.0
_FIELDS = ("seq", "time", "kind", "phase", "body", "prev", "hash")


@dataclass(frozen=True, slots=True)
class Entry:
    """One line. `seq` counts from 1; `time` is UTC, ISO 8601; `phase` is None for what belongs to no phase."""

    seq: int
    time: str
    kind: str
    phase: int | None
    body: Mapping[str, Any]
    prev: str
    hash: str

    def as_dict(self) -> dict[str, Any]:
        """The line's fields."""
        return {name: getattr(self, name) for name in _FIELDS}


@dataclass(frozen=True, slots=True)
class Break:
    """Where a ledger stops being what was written: the line (from 1), and what is wrong with it."""

    line: int
    reason: str


class Ledger:
    """A ledger open for reading and appending. Any number of processes may hold one; appends take turns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path.with_name(path.name + ".lock"))
        self._entries: list[Entry] = []
        self._read_bytes = 0

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """The ledger at `path`, verified; a torn last line is set aside, an absent file is an empty ledger.

        Raises:
            LedgerBroken: a line was changed, is missing, or is no line of a ledger.
            WorkspaceBusy: another process keeps writing.
            UnusableInput: the folder cannot be read or written.
        """
        ledger = cls(path)
        if path.exists():
            with ledger._held():
                ledger._mend()
                ledger._refresh()
        return ledger

    def entries(self) -> tuple[Entry, ...]:
        """Every line so far, those of other processes included; a line still being written is not among them.

        Raises:
            LedgerBroken: somebody changed the file meanwhile.
        """
        self._refresh()
        return tuple(self._entries)

    def append(self, kind: Kind, phase: int | None, body: Mapping[str, Any]) -> Entry:
        """Add a line; it is on disk when this returns.

        Raises:
            LedgerBroken: the file is not what was written; nothing is added.
            WorkspaceBusy: another process keeps the lock.
            UnusableInput: no such kind, or it cannot be written (no space, no permission); nothing is added.
        """
        if kind not in KINDS:
            raise UnusableInput(f"no kind of ledger line {kind!r}; there are {', '.join(KINDS)}")
        content = cast("dict[str, Any]", plain(body))
        with self._held():
            self._mend()
            self._refresh()
            return self._write(kind, phase, content)

    def _write(self, kind: str, phase: int | None, body: dict[str, Any]) -> Entry:
        last = self._entries[-1] if self._entries else None
        fields: dict[str, Any] = {
            "seq": last.seq + 1 if last else 1,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "kind": kind,
            "phase": phase,
            "body": body,
            "prev": last.hash if last else FIRST,
        }
        entry = Entry(**fields, hash=digest(fields))
        line = (canonical(entry.as_dict()) + "\n").encode()
        new = not self.path.exists()
        try:
            _append_bytes(self.path, line)
            if new:
                _sync_folder(self.path.parent)
        except OSError as error:
            raise UnusableInput(
                f"{self.path} cannot be written ({error.strerror or error}); nothing was recorded: make room or give "
                "permission, and run the phase again"
            ) from None
        self._entries.append(entry)
        self._read_bytes += len(line)
        _remember(self.path, entry)
        return entry

    def _refresh(self) -> None:
        """Read what was added since, and check it against what is known."""
        try:
            size = self.path.stat().st_size if self.path.exists() else 0
            if size < self._read_bytes:
                raise LedgerBroken(f"{self.path} became shorter while in use: it was {self._read_bytes} bytes long")
            if size == self._read_bytes and size:
                return
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                fresh = file.read()
        except FileNotFoundError:
            fresh = b""
        except OSError as error:
            raise UnusableInput(f"cannot read {self.path}: {error.strerror or error}") from None
        whole = fresh[: fresh.rfind(b"\n") + 1]
        known = len(self._entries)
        previous = self._entries[-1] if self._entries else None
        found = _read(whole, previous, known)
        if isinstance(found, Break):
            raise LedgerBroken(_told(self.path, found))
        self._entries.extend(found)
        self._read_bytes += len(whole)
        cut = _cut(self.path, self._entries)
        if cut is not None:
            raise LedgerBroken(_told(self.path, cut))

    def _mend(self) -> None:
        """Put a torn last line aside. Only under the lock: otherwise it may be one being written."""
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        end = content.rfind(b"\n") + 1
        torn = content[end:]
        if not torn:
            return
        before = _read(content[:end], None, 0)
        if isinstance(before, Break):
            raise LedgerBroken(_told(self.path, before))
        try:
            complete = _read(torn + b"\n", before[-1] if before else None, len(before))
            if not isinstance(complete, Break):  # all of the line but its end: nothing was lost
                _append_bytes(self.path, b"\n")
                return
            aside = _free_name(self.path.with_name(f"{self.path.stem}.torn-{len(before) + 1}.txt"))
            aside.write_bytes(torn)
            with self.path.open("r+b") as file:
                file.truncate(end)
                os.fsync(file.fileno())
        except OSError as error:
            raise UnusableInput(
                f"the torn last line of {self.path} cannot be put aside: {error.strerror or error}"
            ) from None
        self._refresh()
        text = f"a write was cut off: {len(torn)} bytes of an unfinished line were put aside in {aside.name}"
        self._write("note", None, {"text": text, "by": "machine"})

    @contextmanager
    def _held(self) -> Generator[None]:
        """The lock, for as long as one append takes."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=LOCK_PATIENCE_S)
        except Timeout:
            raise WorkspaceBusy(
                f"another process keeps {self.path.name} of {self.path.parent} locked; wait for it, or end it"
            ) from None
        except OSError as error:
            raise UnusableInput(f"{self.path.parent} cannot be written: {error.strerror or error}") from None
        try:
            yield
        finally:
            self._lock.release()


def verify(path: Path) -> Break | None:
    """The first place where the ledger at `path` is not what was written, or None. Changes nothing.

    Raises:
        UnusableInput: it cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    end = content.rfind(b"\n") + 1
    found = _read(content[:end], None, 0)
    if isinstance(found, Break):
        return found
    return _cut(path, found)


def read(path: Path) -> tuple[Entry, ...]:
    """The lines of a ledger nobody means to write; a torn last line is left out.

    Raises:
        LedgerBroken: it is not what was written.
        UnusableInput: it cannot be read.
    """
    broken = verify(path)
    if broken is not None:
        raise LedgerBroken(_told(path, broken))
    content = path.read_bytes()
    found = _read(content[: content.rfind(b"\n") + 1], None, 0)
    assert not isinstance(found, Break)
    return tuple(found)


def canonical(fields: Mapping[str, Any]) -> str:
    """The one spelling of a JSON object that is hashed: sorted keys, no blanks, no NaN."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(fields: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of a line without its `hash`."""
    return hashlib.sha256(canonical({k: v for k, v in fields.items() if k != "hash"}).encode()).hexdigest()


def plain(value: Any) -> Any:
    """`value` as JSON has it: tuples as lists, numpy numbers as Python's, NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in cast("tuple[Any, ...]", value)]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return value.as_posix()
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value)


def _read(content: bytes, previous: Entry | None, known: int) -> list[Entry] | Break:
    """The entries of whole lines that follow `previous`, the `known`-th."""
    entries: list[Entry] = []
    for offset, raw in enumerate(content.splitlines()):
        line = known + offset + 1
        try:
            fields: Any = json.loads(raw)
        except (ValueError, RecursionError):
            return Break(line, "this is no JSON")
        if not isinstance(fields, dict) or set(cast("dict[str, Any]", fields)) != set(_FIELDS):
            return Break(line, f"a line has the fields {', '.join(_FIELDS)} and no others")
        entry = Entry(**cast("dict[str, Any]", fields))
        if entry.seq != line:
            return Break(line, f"it is number {entry.seq}: a line was taken out or put in before it")
        if entry.prev != (previous.hash if previous else FIRST):
            return Break(line, "it does not follow from the line before, which was changed or taken out")
        if digest(entry.as_dict()) != entry.hash:
            return Break(line, "its content was changed after it was written")
        entries.append(entry)
        previous = entry
    return entries


def _cut(path: Path, entries: list[Entry]) -> Break | None:
    """Whether lines are missing at the end: the head file remembers the last one written."""
    try:
        head: Any = json.loads(_head(path).read_bytes())
        seq, hashed = int(head["seq"]), str(head["hash"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # written after the line it remembers, so a crash may have kept it from being written
    if seq > len(entries):
        return Break(len(entries) + 1, f"{seq} lines were written and only {len(entries)} are there")
    if seq > 0 and entries[seq - 1].hash != hashed:
        return Break(seq, f"it is another line than the one {_head(path).name} remembers: the end was written anew")
    return None


def _remember(path: Path, entry: Entry) -> None:
    head = _head(path)
    part = head.with_name(head.name + ".part")
    try:
        part.write_text(json.dumps({"seq": entry.seq, "hash": entry.hash}), encoding="utf-8")
        os.replace(part, head)
    except OSError:
        return  # the line itself is safe; an older head still holds


def _head(path: Path) -> Path:
    return path.with_name(f"{path.stem}.head.json")


def _told(path: Path, broken: Break) -> str:
    return (
        f"{path} line {broken.line}: {broken.reason}. The ledger is the record of this deployment and is not edited; "
        "put the original back, or deploy into a new workspace"
    )


def _append_bytes(path: Path, content: bytes) -> None:
    """Append all of `content` and sync it, or leave the file as it was."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:
            try:
                os.truncate(path, before)
            except OSError:
                pass  # the torn tail is put aside by the next writer
            raise


def _sync_folder(folder: Path) -> None:
    """Make a new file's name durable; Windows has no such call and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _free_name(path: Path) -> Path:
    count, free = 1, path
    while free.exists():
        count += 1
        free = path.with_name(f"{path.stem}-{count}{path.suffix}")
    return free
