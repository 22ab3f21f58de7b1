"""User records in one SQLite database: the truth for everything written at run time.

WAL, full sync, one writer at a time, any number of processes. What happens to a record is appended
to the event table, which is never updated or deleted from; the `records` table is its current
state. A database that cannot be read is set aside under another name, never deleted, and what is
readable in it is carried over. This module knows nothing of search.

    store = Store.open(Path("home/herdbook.db"))
    store.add(lesson, event={"client": "cli"})
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from filelock import FileLock, Timeout

from kb.document import signatures_of
from kb.errors import KbError, StoreUnavailable
from kb.migrations import lift
from kb.records import Record, record_from_dict

STORE_VERSION = 2
"""Version of the table layout (`PRAGMA user_version`)."""
BUSY_TIMEOUT_MS = 30_000
CHECKED_BYTES = 256 * 1024 * 1024
"""Up to this size every page is looked at when the database is opened; about a second from a cold disk."""

_LAYOUT_1 = """
CREATE TABLE records (
    id TEXT PRIMARY KEY, kind TEXT NOT NULL, status TEXT NOT NULL,
    fingerprint TEXT NOT NULL, body TEXT NOT NULL, seq INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX records_by_fingerprint ON records(fingerprint);
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, type TEXT NOT NULL,
    record_id TEXT NOT NULL, data TEXT NOT NULL
);
CREATE INDEX events_by_record ON events(record_id);
CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_kept BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TABLE signatures (key TEXT NOT NULL, record_id TEXT NOT NULL, PRIMARY KEY (key, record_id)) WITHOUT ROWID;
"""
_LAYOUT_2 = """
CREATE TABLE vectors (
    record_id TEXT NOT NULL, fingerprint TEXT NOT NULL, model TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (record_id, model)
) WITHOUT ROWID;
ALTER TABLE records ADD COLUMN seen INTEGER NOT NULL DEFAULT 1;
ALTER TABLE records ADD COLUMN flags TEXT NOT NULL DEFAULT '[]';
"""
_LAYOUTS = (_LAYOUT_1, _LAYOUT_2)


@dataclass(frozen=True, slots=True)
class Stored:
    """A user record and its standing: how often it was contributed, flags, last change."""

    record: Record
    seen: int
    flags: tuple[str, ...]
    seq: int


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the event table."""

    seq: int
    at: str
    type: str
    record_id: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Salvage:
    """What became of a damaged database."""

    set_aside: Path
    records: int
    events: int
    reason: str


@dataclass(slots=True)
class Store:
    """An open user database. Use one per process; calls from several threads are serialised."""

    path: Path
    db: sqlite3.Connection
    read_only: bool = False
    salvage: Salvage | None = None
    _entered: bool = field(default=False)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _file: tuple[int, int] | None = None

    @classmethod
    def open(cls, path: Path) -> Store:
        """The database at `path`, made when missing, brought to today's layout.

        Raises:
            StoreUnavailable: it can be neither read nor set aside.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not os.path.exists(path):  # pathlib's raises where a folder above may not be looked into
                raise StoreUnavailable(
                    f"{path.parent} cannot be created: {error.strerror}; set HERDBOOK_HOME to a writable folder"
                ) from None
        try:
            return cls._connect(path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise StoreUnavailable(_advice(path, error)) from error
            return cls._after_damage(path, str(error))

    @classmethod
    def _connect(cls, path: Path) -> Store:
        try:
            db = _connection(path)
            with _closed_on_error(db):
                db.execute("PRAGMA journal_mode=WAL")
                _lay_out(db)
                _check(db, path)
            return cls(path, db, not os.access(path, os.W_OK), _file=_identity(path))
        except sqlite3.OperationalError as error:
            if not _is_read_only(error) or not os.path.exists(path):
                raise
            db = _read_only_connection(path)
            with _closed_on_error(db):
                if db.execute("PRAGMA user_version").fetchone()[0] < STORE_VERSION:
                    raise StoreUnavailable(_advice(path, error)) from error
                _check(db, path)
            return cls(path, db, read_only=True)

    @classmethod
    def _after_damage(cls, path: Path, reason: str) -> Store:
        """Set the damaged file aside under a lock, carry over what is readable, open the new one."""
        try:
            with FileLock(str(path) + ".recover.lock", timeout=60):
                try:
                    return cls._connect(path)  # another process was faster
                except sqlite3.DatabaseError as error:
                    if not _is_damage(error):
                        raise StoreUnavailable(_advice(path, error)) from error
                aside = _free_name(path)
                path.rename(aside)
                for suffix in ("-wal", "-shm"):
                    side = Path(str(path) + suffix)
                    if side.exists():
                        side.rename(str(aside) + suffix)
                store = cls._connect(path)
                records, events = _salvage(aside, store)
                store.salvage = Salvage(aside, records, events, reason)
                return store
        except (OSError, Timeout, sqlite3.Error) as error:
            raise StoreUnavailable(
                f"{path} is damaged ({reason}) and could not be set aside: {error}; "
                "move the file away yourself, nothing was deleted"
            ) from error

    @property
    def writing(self) -> bool:
        """Whether a write transaction of this process is open."""
        return self._entered

    # -- reading -----------------------------------------------------------------------------

    def last_seq(self) -> int:
        """The newest event's number; 0 for an empty store."""
        with _told(self.path):
            return int(self.db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])

    def count(self) -> int:
        """How many user records there are."""
        with _told(self.path):
            return int(self.db.execute("SELECT count(*) FROM records").fetchone()[0])

    def get(self, record_id: str) -> Stored | None:
        """One user record, or None."""
        return next(iter(self.get_many([record_id]).values()), None)

    def get_many(self, ids: Sequence[str]) -> dict[str, Stored]:
        """User records by id; unknown ids are left out."""
        found: dict[str, Stored] = {}
        with _told(self.path):
            for start in range(0, len(ids), 500):
                part = [_storable(name) for name in ids[start : start + 500]]
                marks = ",".join("?" * len(part))
                rows = self.db.execute(f"SELECT {_COLUMNS} FROM records WHERE id IN ({marks})", part)  # noqa: S608
                found.update((row[0], _stored(row)) for row in rows)
        return found

    def changed_since(self, seq: int) -> Iterator[Stored]:
        """Records added or changed after event `seq`, oldest change first."""
        with _told(self.path):
            rows = self.db.execute(f"SELECT {_COLUMNS} FROM records WHERE seq > ? ORDER BY seq", (seq,))  # noqa: S608
            for row in rows:
                yield _stored(row)

    def events(self, record_id: str | None = None, after: int = 0) -> list[Event]:
        """Events in order, of one record or of all."""
        sql = "SELECT seq, at, type, record_id, data FROM events WHERE seq > ?"
        values: list[Any] = [after]
        if record_id is not None:
            sql += " AND record_id = ?"
            values.append(_storable(record_id))
        with _told(self.path):
            return [
                Event(seq, at, kind, name, json.loads(data))
                for seq, at, kind, name, data in self.db.execute(sql + " ORDER BY seq", values)
            ]

    def outcomes(self, ids: Iterable[str] | None = None, after: int = 0) -> dict[str, tuple[int, int]]:
        """record id → (helped, did not help), each client's latest word counted once."""
        latest: dict[tuple[str, str], bool] = {}
        wanted = None if ids is None else set(ids)
        with _told(self.path):
            rows = self.db.execute(
                "SELECT record_id, data FROM events WHERE type = 'outcome' AND seq > ? ORDER BY seq", (after,)
            ).fetchall()
        for record_id, data in rows:
            if wanted is None or record_id in wanted:
                fields = json.loads(data)
                latest[record_id, str(fields.get("client", ""))] = bool(fields.get("helped"))
        counts: dict[str, tuple[int, int]] = {}
        for (record_id, _client), helped in latest.items():
            yes, no = counts.get(record_id, (0, 0))
            counts[record_id] = (yes + helped, no + (not helped))
        return counts

    def with_signatures(self, keys: Sequence[str]) -> list[str]:
        """Ids of user records that share a signature key."""
        if not keys:
            return []
        marks = ",".join("?" * len(keys))
        with _told(self.path):
            rows = self.db.execute(
                f"SELECT DISTINCT record_id FROM signatures WHERE key IN ({marks}) LIMIT 200",  # noqa: S608
                list(keys),
            )
            return [row[0] for row in rows]

    def vectors(self, model: str, ids: Sequence[str]) -> dict[str, bytes]:
        """Stored embedding blobs that still fit their record's text."""
        found: dict[str, bytes] = {}
        with _told(self.path):
            for start in range(0, len(ids), 500):
                part = list(ids[start : start + 500])
                marks = ",".join("?" * len(part))
                sql = f"{_FITTING_VECTORS} AND v.record_id IN ({marks})"
                rows = self.db.execute(sql, [model, *part])
                found.update(rows)
        return found

    # -- writing -----------------------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Generator[None]:
        """One write transaction: all of it or nothing. Nested use joins the outer one."""
        with self._lock:
            if self._entered:
                yield
                return
            if self.read_only:
                raise StoreUnavailable(
                    f"{self.path} is open read-only; make its folder writable or set HERDBOOK_HOME, then try again"
                )
            with self._begun():
                yield

    @contextmanager
    def _begun(self) -> Generator[None]:
        with _told(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            self._entered = True
            try:
                self._refuse_if_replaced()
                yield
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
            else:
                try:
                    self.db.execute("COMMIT")
                except sqlite3.Error:
                    if self.db.in_transaction:
                        self.db.execute("ROLLBACK")
                    raise
            finally:
                self._entered = False

    def _refuse_if_replaced(self) -> None:
        """A file renamed or deleted under us still takes writes, which nobody would ever read."""
        if self._file != _identity(self.path):
            raise StoreUnavailable(
                f"{self.path} was moved, deleted or replaced since it was opened; start Herdbook again. "
                "This change was not written"
            )

    def add(self, record: Record, flags: Sequence[str] = (), event: Mapping[str, Any] | None = None) -> int:
        """Store a new record with its `contributed` event; returns the event's number.

        Raises:
            KbError: the id is taken.
        """
        with self.transaction():
            if self.db.execute("SELECT 1 FROM records WHERE id = ?", (record.id,)).fetchone():
                raise KbError(f"record id {record.id!r} is taken; choose another id")
            seq = self._append(
                "contributed", record.id, {**(event or {}), "record": _plain(record), "flags": list(flags)}
            )
            self.put_state(record, seq, flags=flags)
        return seq

    def replace(self, record: Record, kind: str, event: Mapping[str, Any], *, seen: int | None = None) -> int:
        """Change a stored record and append the event `kind` that says why."""
        with self.transaction():
            old = self.get(record.id)
            if old is None:
                raise KbError(f"record {record.id!r} is not in the user store")
            seq = self._append(kind, record.id, {**event, "record": _plain(record)})
            self.put_state(record, seq, flags=old.flags, seen=old.seen if seen is None else seen)
        return seq

    def withdraw(self, record_id: str, event: Mapping[str, Any]) -> int:
        """Take a record out of what is searched and exported; its text stays in the `withdrawn` event.

        Raises:
            KbError: no such record in the user store.
        """
        with self.transaction():
            old = self.get(record_id)
            if old is None:
                raise KbError(f"record {record_id!r} is not in the user store")
            seq = self._append("withdrawn", record_id, {**event, "was": _plain(old.record), "seen": old.seen})
            for table, column in (("records", "id"), ("signatures", "record_id"), ("vectors", "record_id")):
                self.db.execute(f"DELETE FROM {table} WHERE {column} = ?", (record_id,))  # noqa: S608
        return seq

    def note(self, kind: str, record_id: str, data: Mapping[str, Any]) -> int:
        """Append an event that changes no record (an outcome of a shipped lesson, say)."""
        with self.transaction():
            return self._append(kind, record_id, data)

    def put_vectors(self, model: str, rows: Iterable[tuple[str, str, bytes]]) -> None:
        """Store embedding blobs as (record id, fingerprint, data); disposable, no event."""
        with self.transaction():
            self.db.executemany(
                "INSERT OR REPLACE INTO vectors(record_id, fingerprint, model, data) VALUES (?, ?, ?, ?)",
                [(record_id, fingerprint, model, data) for record_id, fingerprint, data in rows],
            )

    def close(self) -> None:
        """Close the connection; what was acknowledged is on disk already."""
        self.db.close()

    def _append(self, kind: str, record_id: str, data: Mapping[str, Any]) -> int:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        cursor = self.db.execute(
            "INSERT INTO events(at, type, record_id, data) VALUES (?, ?, ?, ?)",
            (now, kind, _storable(record_id), _storable(json.dumps(data, ensure_ascii=False))),
        )
        return int(cursor.lastrowid or 0)

    def put_state(self, record: Record, seq: int, *, flags: Sequence[str], seen: int = 1) -> None:
        """Make `record` the current state as of event `seq`; only inside a transaction that appended it."""
        self.db.execute(
            "INSERT OR REPLACE INTO records(id, kind, status, fingerprint, body, seq, seen, flags) VALUES (?,?,?,?,?,?,?,?)",
            (
                record.id, record.kind, record.status, fingerprint(record),
                json.dumps(_plain(record), ensure_ascii=False), seq, seen, json.dumps(list(flags)),
            ),
        )  # fmt: skip
        self.db.execute("DELETE FROM signatures WHERE record_id = ?", (record.id,))
        self.db.executemany(
            "INSERT OR IGNORE INTO signatures(key, record_id) VALUES (?, ?)",
            [(key, record.id) for key in signatures_of(record)],
        )


_FITTING_VECTORS = (
    "SELECT v.record_id, v.data FROM vectors v JOIN records r "
    "ON r.id = v.record_id AND r.fingerprint = v.fingerprint WHERE v.model = ?"
)
_COLUMNS = "id, body, seen, flags, seq"


def _stored(row: tuple[Any, ...]) -> Stored:
    return Stored(record_from_dict(lift(json.loads(row[1]))), row[2], tuple(json.loads(row[3])), row[4])


def _plain(record: Record) -> dict[str, Any]:
    return record.model_dump(mode="json", exclude_defaults=True) | {
        "kind": record.kind,
        "schema_version": record.schema_version,
        "provenance": [item.model_dump(mode="json", exclude_none=True) for item in record.provenance],
    }


def fingerprint(record: Record) -> str:
    """A digest of what the record says: equal for the same text, whatever its id, status or source."""
    data = record.model_dump(mode="json", exclude={"id", "status", "provenance", "schema_version"})
    if "superseded_by" in data:
        data["superseded_by"] = None  # goes with the status
    text = " ".join(json.dumps(data, sort_keys=True, ensure_ascii=False).lower().split())
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _storable(text: str) -> str:
    """`text` without lone surrogates, which SQLite cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _connection(path: Path, options: str = "") -> sqlite3.Connection:
    target = f"{path.resolve().as_uri()}?{options}" if options else str(path)
    db = sqlite3.connect(
        target, uri=bool(options), timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    with _closed_on_error(db):
        db.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        db.execute("PRAGMA synchronous=FULL")  # reads the file: what cannot be opened fails here
    return db


@contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Generator[None]:
    try:
        yield
    except BaseException:
        db.close()
        raise


def _read_only_connection(path: Path) -> sqlite3.Connection:
    """The database in a folder where nothing may be written, with what still stands in its log.

    SQLite reads a WAL database there only as `immutable`, which ignores the log, or when the
    log's index file is left over. Otherwise a copy is read.
    """
    log = Path(f"{path}-wal")
    if not log.exists() or not log.stat().st_size:
        return _connection(path, "mode=ro&immutable=1")
    try:
        return _connection(path, "mode=ro")
    except sqlite3.OperationalError:
        pass  # no index file, and none may be made
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    with TemporaryDirectory(prefix="herdbook-") as folder:
        for name in (path, log):
            shutil.copyfile(name, Path(folder) / name.name)
        copy = _connection(Path(folder) / path.name)
        copy.backup(memory)
        copy.close()
    return memory


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file stands at `path` now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check(db: sqlite3.Connection, path: Path) -> None:
    """Raise SQLite's own error for a database with damaged pages.

    A large file is only looked through after a read has met damage in it.
    """
    db.execute("SELECT max(seq) FROM events").fetchone()
    suspect = _suspicion(path)
    if path.stat().st_size > CHECKED_BYTES and not suspect.exists():
        return
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found == "ok":
        broken = db.execute("SELECT id FROM records WHERE NOT json_valid(body) LIMIT 1").fetchone()
        found = "ok" if broken is None else f"the text of record {broken[0]!r} is damaged"
    if suspect.exists():
        for sql in ("SELECT body, flags FROM records", "SELECT data FROM events"):
            for _row in db.execute(sql):
                pass  # text that is not UTF-8 is only noticed when it is read
    if found != "ok":
        raise sqlite3.DatabaseError(f"database disk image is malformed: {' '.join(found.split())[:160]}")
    try:
        suspect.unlink(missing_ok=True)
    except OSError:
        pass  # a read-only home is looked through each time


def _suspicion(path: Path) -> Path:
    return path.with_name(path.name + ".suspect")


def _lay_out(db: sqlite3.Connection) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > STORE_VERSION:
        raise StoreUnavailable(
            f"the database has layout {version}, this Herdbook knows up to {STORE_VERSION}; upgrade Herdbook"
        )
    if version == STORE_VERSION:
        return
    db.execute("BEGIN EXCLUSIVE")
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        for number, script in enumerate(_LAYOUTS[version:], version + 1):
            for statement in _statements(script):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={number}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would commit in between."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _is_damage(error: sqlite3.Error) -> bool:
    text = str(error).lower()
    words = ("malformed", "not a database", "file is encrypted", "disk image", "no such table", "could not decode")
    return any(word in text for word in words)


def _is_read_only(error: sqlite3.Error) -> bool:
    text = str(error).lower()
    return "readonly" in text or "read-only" in text or "unable to open" in text


_SET_ASIDE = "start Herdbook again: the damaged file is then set aside and what is readable in it kept"


def _advice(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    advice = {
        "full": "free some disk space and try again",
        "readonly": "make the folder writable or set HERDBOOK_HOME",
        "read-only": "make the folder writable or set HERDBOOK_HOME",
        "unable to open": "check that the folder exists and is writable, or set HERDBOOK_HOME",
        "locked": "another process holds it for very long; try again",
        "malformed": _SET_ASIDE,
        "could not decode": _SET_ASIDE,
        "disk i/o": "check the disk (or that it is not full) and try again",
    }
    step = next((value for key, value in advice.items() if key in text.lower()), "see the message and try again")
    return f"{path}: {text}; {step}. What was acknowledged before is kept, this change was not written"


@contextmanager
def _told(path: Path) -> Generator[None]:
    """SQLite's errors as ours, with what to do."""
    try:
        yield
    except sqlite3.Error as error:
        if _is_damage(error):
            try:
                _suspicion(path).touch()
            except OSError:
                pass  # the next start meets the damage again
        raise StoreUnavailable(_advice(path, error)) from error


def _free_name(path: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for number in range(1000):
        candidate = path.with_name(f"{path.name}.damaged-{stamp}" + (f"-{number}" if number else ""))
        if not candidate.exists():
            return candidate
    raise OSError(f"no free name beside {path}")


def _salvage(aside: Path, store: Store) -> tuple[int, int]:
    """Carry over every record and event that can still be read; returns their counts."""
    with TemporaryDirectory(prefix="herdbook-") as folder:
        try:
            old = _open_damaged(aside, store, Path(folder))
        except (OSError, sqlite3.Error):
            return 0, 0
        try:
            events = _readable_events(old)
            records = _readable_records(old, events)
        finally:
            old.close()
    kept = 0
    with store.transaction():
        store.db.executemany("INSERT INTO events(at, type, record_id, data) VALUES (?,?,?,?)", events)
        for record_id, (body, seen, flags) in records.items():
            try:
                record = record_from_dict(lift(_json(body)))
            except KbError:
                continue
            seq = store.note("salvaged", record_id, {"from": aside.name})
            store.put_state(record, seq, flags=_json_list(flags), seen=seen)
            kept += 1
    return kept, len(events)


def _open_damaged(aside: Path, store: Store, folder: Path) -> sqlite3.Connection:
    """The set-aside database for reading; with an overwritten header, a copy with the new database's header."""
    old = sqlite3.connect(f"{aside.resolve().as_uri()}?mode=ro", uri=True)
    try:
        old.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return old
    except sqlite3.DatabaseError:
        old.close()
    copy = folder / "copy.db"
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with store.path.open("rb") as file:
        header = bytearray(file.read(100))
    page_bytes = int.from_bytes(header[16:18], "big")
    header[28:32] = (aside.stat().st_size // page_bytes).to_bytes(4, "big")
    shutil.copyfile(aside, copy)
    with copy.open("r+b") as file:
        file.write(header)
    old = sqlite3.connect(copy)
    try:
        old.execute("SELECT count(*) FROM events").fetchone()
    except sqlite3.DatabaseError:
        old.close()
        raise
    return old


def _readable_events(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    rows = _readable(db, "SELECT seq, at, type, record_id, data FROM events ORDER BY seq")
    top = _readable(db, "SELECT seq FROM sqlite_sequence WHERE name = 'events'")
    newest = min(int(top[0][0]), 10**7) if top else 0
    if len(rows) < newest:  # one by one: a damaged page costs only the events on it
        found = {row[0]: row for row in rows}
        for seq in range(1, newest + 1):
            if seq not in found:
                single = _readable(db, "SELECT seq, at, type, record_id, data FROM events WHERE seq = ?", (seq,))
                found.update({row[0]: row for row in single})
        rows = [found[seq] for seq in sorted(found)]
    return [row[1:] for row in rows if all(isinstance(value, str) for value in row[1:])]


def _readable_records(db: sqlite3.Connection, events: Sequence[tuple[Any, ...]]) -> dict[str, tuple[str, int, str]]:
    """record id → (body, seen, flags): the table's rows, else what the events say the record was last."""
    records: dict[str, tuple[str, int, str]] = {}
    for _at, kind, record_id, data in events:
        fields = _json(data)
        if kind == "withdrawn":
            records.pop(record_id, None)
            continue
        body = fields.get("record")
        _, seen, flags = records.get(record_id, ("", 0, "[]"))
        if "flags" in fields:
            flags = json.dumps(fields["flags"])
        seen = int(fields.get("seen", 0)) or seen + (kind in ("contributed", "merged"))
        if body is not None:
            records[record_id] = (json.dumps(body, ensure_ascii=False), seen, flags)
    for direction in ("ASC", "DESC"):  # from both ends up to the damage
        rows = _readable(db, f"SELECT id, body, seen, flags FROM records ORDER BY id {direction}")  # noqa: S608
        records.update({row[0]: row[1:] for row in rows if isinstance(row[0], str)})
    return records


def _readable(db: sqlite3.Connection, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """The rows before the first damage, which does not always raise: sqlite3 may just stop early."""
    rows: list[tuple[Any, ...]] = []
    try:
        cursor = db.execute(sql, values)
        while (row := cursor.fetchone()) is not None:
            rows.append(row)
    except sqlite3.Error:
        pass
    return rows


def _json(text: Any) -> dict[str, Any]:
    try:
        data: Any = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def _json_list(text: Any) -> list[str]:
    try:
        data: Any = json.loads(text)
    except (TypeError, ValueError):
        return []
    return [str(item) for item in cast("list[Any]", data)] if isinstance(data, list) else []
