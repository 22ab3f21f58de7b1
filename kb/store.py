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
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from kb.document import signatures_of
from kb.errors import KbError, StoreUnavailable
from kb.migrations import lift
from kb.records import Record, record_from_dict

STORE_VERSION = 2
"""Version of the table layout (`PRAGMA user_version`)."""
BUSY_TIMEOUT_MS = 30_000

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

    @classmethod
    def open(cls, path: Path) -> Store:
        """The database at `path`, made when missing, brought to today's layout.

        Raises:
            StoreUnavailable: it can be neither read nor set aside.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not path.exists():
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
        read_only = False
        try:
            db = _connection(path)
            db.execute("PRAGMA journal_mode=WAL")
            _lay_out(db)
        except sqlite3.OperationalError as error:
            if _is_damage(error) or not path.exists():
                raise
            # A read-only home still answers from what is there.
            db = _connection(path, read_only=True)
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if db.execute("PRAGMA user_version").fetchone()[0] < STORE_VERSION:
                raise StoreUnavailable(_advice(path, error)) from error
            read_only = True
        db.execute("SELECT max(seq) FROM events").fetchone()
        return cls(path, db, read_only)

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
                part = ids[start : start + 500]
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
            values.append(record_id)
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
                latest[record_id, fields.get("client", "")] = bool(fields.get("helped"))
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
        if self._entered:
            yield
            return
        if self.read_only:
            raise StoreUnavailable(
                f"{self.path} is open read-only; make its folder writable or set HERDBOOK_HOME, then try again"
            )
        with _told(self.path):
            self.db.execute("BEGIN IMMEDIATE")
            self._entered = True
            try:
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
            (now, kind, record_id, json.dumps(data, ensure_ascii=False)),
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
    text = " ".join(json.dumps(data, sort_keys=True, ensure_ascii=False).lower().split())
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _connection(path: Path, read_only: bool = False) -> sqlite3.Connection:
    # `immutable` lets a database in WAL mode be read from a folder where nothing may be written.
    target = f"{path.resolve().as_uri()}?mode=ro&immutable=1" if read_only else str(path)
    db = sqlite3.connect(
        target, uri=read_only, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    db.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
    db.execute("PRAGMA synchronous=FULL")
    return db


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
    return any(
        word in text for word in ("malformed", "not a database", "file is encrypted", "disk image", "no such table")
    )


def _advice(path: Path, error: sqlite3.Error) -> str:
    text = str(error)
    advice = {
        "full": "free some disk space and try again",
        "readonly": "make the folder writable or set HERDBOOK_HOME",
        "read-only": "make the folder writable or set HERDBOOK_HOME",
        "unable to open": "check that the folder exists and is writable, or set HERDBOOK_HOME",
        "locked": "another process holds it for very long; try again",
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
    try:
        old = sqlite3.connect(f"{aside.resolve().as_uri()}?mode=ro", uri=True)
        old.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        return 0, 0
    events = _readable(old, "SELECT at, type, record_id, data FROM events ORDER BY seq")
    records = {row[0]: row for row in _readable(old, "SELECT id, body, seen, flags FROM records")}
    for _at, _kind, record_id, data in events:  # a record's text also stands in its events
        body = _json(data).get("record")
        if body is not None and record_id not in records:
            records[record_id] = (record_id, json.dumps(body), 1, "[]")
    kept = 0
    with store.transaction():
        for at, kind, record_id, data in events:
            store.db.execute(
                "INSERT INTO events(at, type, record_id, data) VALUES (?,?,?,?)", (at, kind, record_id, data)
            )
        for record_id, body, seen, flags in records.values():
            try:
                record = record_from_dict(lift(_json(body)))
            except KbError:
                continue
            seq = store.note("salvaged", record_id, {"from": aside.name})
            store.put_state(record, seq, flags=_json_list(flags), seen=seen)
            kept += 1
    old.close()
    return kept, len(events)


def _readable(db: sqlite3.Connection, sql: str) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    try:
        cursor = db.execute(sql)
        while (row := cursor.fetchone()) is not None:
            rows.append(row)
    except sqlite3.Error:
        pass  # what came before the damage is what can be had
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
