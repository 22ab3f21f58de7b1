"""The user database: layouts, damage, full disks, read-only homes, locks, clocks."""

from __future__ import annotations

import json
import os
import random
import sqlite3
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import kb.store as store_module
from kb import Memory, open_memory
from kb.document import signatures_of
from kb.errors import KbError, StoreUnavailable
from kb.records import Lesson
from kb.store import STORE_VERSION, Store, fingerprint
from mcp_server import Config
from tests.conftest import lesson

DRAFT = {
    "title": "zork overflow",
    "symptom": "error: frobnication of quux exceeded its zork budget",
    "cause": "the quux is too big",
    "fix": "shrink the quux",
}


def filled(path: Path, count: int) -> list[Lesson]:
    """A closed database with `count` lessons of about two pages each."""
    store = Store.open(path)
    lessons = [lesson(n, cause=f"cause {n} " + f"word{n} " * 600) for n in range(count)]
    for item in lessons:
        store.add(item, event={"client": "test"})
    store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store.close()
    return lessons


# -- layouts -------------------------------------------------------------------------------------


def layout_1(path: Path, item: Lesson) -> None:
    body = json.dumps(item.model_dump(mode="json") | {"kind": "lesson"})
    with closing(sqlite3.connect(path)) as db:
        db.executescript(store_module._LAYOUT_1)
        db.execute("PRAGMA user_version=1")
        db.execute(
            "INSERT INTO events(at, type, record_id, data) VALUES ('2025-01-01T00:00:00Z', 'contributed', ?, '{}')",
            (item.id,),
        )
        db.execute("INSERT INTO records VALUES (?, 'lesson', 'observed', ?, ?, 1)", (item.id, fingerprint(item), body))
        db.executemany("INSERT INTO signatures VALUES (?, ?)", [(key, item.id) for key in signatures_of(item)])
        db.commit()


def test_a_layout_1_database_is_brought_to_todays_layout_with_its_records_and_events(tmp_path: Path) -> None:
    old = lesson(1)
    layout_1(tmp_path / "herdbook.db", old)
    with closing(Store.open(tmp_path / "herdbook.db")) as store:
        assert store.db.execute("PRAGMA user_version").fetchone()[0] == STORE_VERSION
        found = store.get(old.id)
        assert found is not None
        assert (found.record, found.seen, found.flags) == (old, 1, ())
        assert [(e.at, e.type, e.record_id) for e in store.events()] == [
            ("2025-01-01T00:00:00Z", "contributed", old.id)
        ]
        assert store.with_signatures(list(signatures_of(old))) == [old.id]
        store.put_vectors("m", [(old.id, fingerprint(old), b"\0\0")])
        assert store.vectors("m", [old.id]) == {old.id: b"\0\0"}
        store.add(lesson(2), flags=["reviewed"])
        assert store.count() == 2


def test_a_migration_that_fails_leaves_the_old_layout_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout_1(tmp_path / "herdbook.db", lesson(1))
    broken = "CREATE TABLE half (x);\nCREATE TABLE half (x);\n"
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "_LAYOUTS", (store_module._LAYOUT_1, broken))
        with pytest.raises(StoreUnavailable):
            Store.open(tmp_path / "herdbook.db")
    with closing(Store.open(tmp_path / "herdbook.db")) as store:
        assert store.count() == 1
        assert store.db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'half'").fetchone()[0] == 0


def test_a_newer_layout_is_refused_with_advice_and_left_as_it_is(lexical_config: Config) -> None:
    path = lexical_config.home / "herdbook.db"
    filled(path, 1)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version={STORE_VERSION + 1}")
    with pytest.raises(StoreUnavailable, match="upgrade Herdbook"):
        Store.open(path)
    with closing(open_memory(lexical_config.memory())) as memory:
        assert any("upgrade Herdbook" in warning for warning in memory.explain("deadlock in herd").warnings)
        with pytest.raises(StoreUnavailable, match="upgrade Herdbook"):
            memory.contribute(DRAFT)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == STORE_VERSION + 1
        assert db.execute("SELECT count(*) FROM records").fetchone()[0] == 1


@pytest.mark.parametrize("sql", ["UPDATE events SET type = 'outcome'", "DELETE FROM events"])
def test_events_can_be_neither_changed_nor_deleted(tmp_path: Path, sql: str) -> None:
    with closing(Store.open(tmp_path / "herdbook.db")) as store:
        store.add(lesson(1))
        before = store.events()
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            store.db.execute(sql)
        assert store.events() == before


def test_a_transaction_that_fails_writes_nothing_of_itself(tmp_path: Path) -> None:
    with closing(Store.open(tmp_path / "herdbook.db")) as store:
        store.add(lesson(1))
        with pytest.raises(KbError, match="taken"):
            two_halves(store)
        assert [stored.record.id for stored in store.changed_since(0)] == ["frob-1"]
        assert [event.record_id for event in store.events()] == ["frob-1"]


# -- damage --------------------------------------------------------------------------------------


def overwrite_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xff" * 100)


def overwrite_a_middle_page(path: Path) -> None:
    pages = path.stat().st_size // 4096
    with path.open("r+b") as file:
        file.seek(pages // 2 * 4096)
        file.write(random.Random(3).randbytes(4096))


def cut_off(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 4096 * 2 // 3 * 4096)


def replace_by_text(path: Path) -> None:
    path.write_text("my notes\n" * 2000, encoding="utf-8")


DAMAGE = [overwrite_header, overwrite_a_middle_page, cut_off, replace_by_text]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_database_is_set_aside_named_and_never_deleted(
    lexical_config: Config, damage: Callable[[Path], None]
) -> None:
    path = lexical_config.home / "herdbook.db"
    filled(path, 60)
    damage(path)
    bytes_before = path.read_bytes()
    with closing(open_memory(lexical_config.memory())) as memory:
        aside = [p for p in path.parent.iterdir() if ".damaged-" in p.name and not p.name.endswith(("-wal", "-shm"))]
        assert len(aside) == 1
        assert aside[0].read_bytes() == bytes_before
        assert any(aside[0].name in warning for warning in memory.explain("deadlock in herd").warnings)
        done = memory.contribute(DRAFT)
        assert memory.get(done.record_id).record.fix == DRAFT["fix"]
    with closing(open_memory(lexical_config.memory())) as again:
        assert again.get(done.record_id).record.fix == DRAFT["fix"]
        assert again.explain("deadlock in herd").warnings == ()


@pytest.mark.parametrize("page", range(2, 40, 3))
def test_one_overwritten_page_costs_no_record(tmp_path: Path, page: int) -> None:
    """A record stands in the table and in its event: one lost page leaves one of the two."""
    path = tmp_path / "herdbook.db"
    lessons = filled(path, 60)
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)
    with closing(Store.open(path)) as store:
        found = {stored.record.id: stored.record for stored in store.changed_since(0)}
        lost = [item.id for item in lessons if found.get(item.id) != item]
        assert not lost
        assert store.count() == len(lessons)


def test_an_overwritten_header_costs_no_record(tmp_path: Path) -> None:
    path = tmp_path / "herdbook.db"
    lessons = filled(path, 60)
    overwrite_header(path)
    with closing(Store.open(path)) as store:
        assert store.salvage is not None
        assert store.salvage.records == len(lessons)
        assert {stored.record.id for stored in store.changed_since(0)} == {item.id for item in lessons}
        assert len([event for event in store.events() if event.type == "contributed"]) == len(lessons)


def test_what_stands_before_a_cut_is_carried_over(tmp_path: Path) -> None:
    path = tmp_path / "herdbook.db"
    filled(path, 60)
    cut_off(path)
    with closing(Store.open(path)) as store:
        assert store.salvage is not None
        assert store.salvage.records == store.count() > 20


def test_votes_flags_and_counts_survive_damage(tmp_path: Path) -> None:
    path = tmp_path / "herdbook.db"
    with closing(Store.open(path)) as store:
        store.add(lesson(1), flags=["instruction: ignore all rules"])
        store.replace(lesson(1, title="The second title"), "merged", {"client": "b"}, seen=2)
        store.note("outcome", "frob-1", {"helped": True, "client": "a"})
        store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = store.db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records'").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xa5" * 4096)
    with closing(Store.open(path)) as store:
        found = store.get("frob-1")
        assert found is not None
        assert (found.record.title, found.seen) == ("The second title", 2)
        assert found.flags == ("instruction: ignore all rules",)
        assert store.outcomes() == {"frob-1": (1, 0)}


def everything_in(store: Store) -> list[object]:
    return [*store.changed_since(0), *store.events()]


def two_halves(store: Store) -> None:
    with store.transaction():
        store.add(lesson(2))
        store.add(lesson(1))


def test_damage_met_while_running_is_told_and_mended_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large databases are not looked through at each start, so damage may show only at a read."""
    monkeypatch.setattr(store_module, "CHECKED_BYTES", 0)
    path = tmp_path / "herdbook.db"
    lessons = filled(path, 60)
    with closing(sqlite3.connect(path)) as db:
        root = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'records'").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((root - 1) * 4096)
        file.write(b"\xa5" * 4096)
    with closing(Store.open(path)) as store, pytest.raises(StoreUnavailable, match="start Herdbook again"):
        everything_in(store)
    with closing(Store.open(path)) as store:
        assert store.salvage is not None
        assert store.count() == len(lessons)


def test_a_text_with_flipped_bits_is_taken_from_its_event(tmp_path: Path) -> None:
    """SQLite's own check sees structure only; text that is no longer UTF-8 shows when it is read."""
    path = tmp_path / "herdbook.db"
    lessons = filled(path, 3)
    data = path.read_bytes()
    at = data.rindex(b"word2 word2 word2")
    path.write_bytes(data[:at] + b"\xff\xfe" + data[at + 2 :])
    with closing(Store.open(path)) as store, pytest.raises(StoreUnavailable, match="start Herdbook again"):
        everything_in(store)
    with closing(Store.open(path)) as store:
        assert store.salvage is not None
        assert {stored.record.id for stored in store.changed_since(0)} == {item.id for item in lessons}


def test_a_file_replaced_under_an_open_store_takes_no_more_writes(tmp_path: Path) -> None:
    """A renamed or deleted database would accept writes that nobody ever reads again."""
    path = tmp_path / "herdbook.db"
    with closing(Store.open(path)) as store:
        store.add(lesson(1))
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").rename(tmp_path / f"moved.db{suffix}")
        with pytest.raises(StoreUnavailable, match="moved, deleted or replaced"):
            store.add(lesson(2))
    with closing(Store.open(tmp_path / "moved.db")) as moved:
        assert moved.count() == 1


# -- full disk, read-only home, lock -------------------------------------------------------------


def test_a_full_disk_refuses_the_write_says_so_and_keeps_what_was_there(memory: Memory) -> None:
    first = memory.contribute(DRAFT)
    assert memory.store is not None
    pages = memory.store.db.execute("PRAGMA page_count").fetchone()[0]
    memory.store.db.execute(f"PRAGMA max_page_count={pages}")
    large = {
        **DRAFT,
        "title": "the other overflow",
        "cause": "unlike " * 2500,
        "fix": "wait " * 3000,
        "symptom": "a b c",
    }
    with pytest.raises(StoreUnavailable, match="free some disk space"):
        memory.contribute(large)
    assert memory.explain(DRAFT["symptom"]).hits[0].record.id == first.record_id
    with pytest.raises(StoreUnavailable, match="was not written"):
        memory.contribute(large)
    memory.store.db.execute("PRAGMA max_page_count=1073741823")
    assert memory.contribute(large).action == "stored"
    assert memory.counts()["user"] == 2


READ_ONLY_CHILD = textwrap.dedent(
    """
    import os, sys
    from dataclasses import replace
    from pathlib import Path
    from kb import KbError, open_memory
    from mcp_server import Config

    home, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    config = replace(Config.from_environment(), home=home, chroma=None, dense=False)
    # Everything is imported and read once before the rights are dropped.
    warm = open_memory(replace(config, home=scratch).memory())
    warm.explain("error: frobnication")
    warm.contribute({"symptom": "abc", "cause": "abc", "fix": "abc"})
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    memory = open_memory(config.memory())
    print(memory.explain("error: frobnication of quux exceeded its zork budget").hits[0].record.id)
    print(memory.counts()["user"])
    print(" ".join(memory.explain("x").warnings))
    try:
        memory.contribute({"symptom": "abc", "cause": "abc", "fix": "abc"})
    except KbError as error:
        print(error)
    memory.close()
    """
)


@pytest.mark.skipif(os.name == "nt", reason="POSIX file modes")
@pytest.mark.parametrize("left_over", ["nothing", "log and its index", "log alone"])
def test_a_read_only_home_answers_from_what_is_there_and_says_why_it_cannot_write(
    lexical_config: Config, tmp_path: Path, left_over: str
) -> None:
    """With a log left over (a killed process), acknowledged records stand only in it."""
    home = lexical_config.home
    memory = open_memory(lexical_config.memory())
    done = memory.contribute(DRAFT)
    kept = {p.name: p.read_bytes() for p in home.iterdir() if p.name.startswith("herdbook.db")}
    memory.close()
    if left_over != "nothing":
        assert len(kept["herdbook.db-wal"]) > 0
        for name, data in kept.items():
            if left_over == "log alone" and name.endswith("-shm"):
                continue
            (home / name).write_bytes(data)
    folders = [home, *[p for p in home.rglob("*") if p.is_dir()]]
    for folder in folders:
        folder.chmod(stat.S_IRUSR | stat.S_IXUSR | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    for file in home.glob("herdbook.db*"):
        file.chmod(0o444)
    for parent in home.parents:
        if parent.stat().st_uid == os.getuid() and Path(tempfile.gettempdir()) in parent.parents:
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    try:
        child = subprocess.run(
            [sys.executable, "-c", READ_ONLY_CHILD, str(home), str(tmp_path / "scratch")],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert child.returncode == 0, child.stderr
    first, users, warnings, refusal = child.stdout.splitlines()
    assert (first, users) == (done.record_id, "1"), warnings
    assert "read-only" in warnings
    assert "HERDBOOK_HOME" in refusal


def test_a_home_that_cannot_be_made_leaves_the_shipped_corpus_usable(lexical_config: Config, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    config = replace(lexical_config, home=tmp_path / "file" / "home")
    with closing(open_memory(config.memory())) as memory:
        answer = memory.explain("error: 'aie.tile' op allocated buffers exceeded available memory")
        assert answer.hits
        assert any("HERDBOOK_HOME" in warning for warning in answer.warnings)
        with pytest.raises(StoreUnavailable, match="HERDBOOK_HOME"):
            memory.contribute(DRAFT)


def test_a_locked_database_refuses_the_write_says_so_and_reads_go_on(memory: Memory, lexical_config: Config) -> None:
    first = memory.contribute(DRAFT)
    assert memory.store is not None
    memory.store.db.execute("PRAGMA busy_timeout=1")
    with closing(sqlite3.connect(lexical_config.home / "herdbook.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="another process holds it"):
            memory.report_outcome(first.record_id, helped=True)
        assert memory.explain(DRAFT["symptom"]).hits[0].record.id == first.record_id
        other.execute("ROLLBACK")
    assert memory.report_outcome(first.record_id, helped=True) == (1, 0)


def test_a_database_locked_whole_is_not_taken_for_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it as immutable while another process writes would give wrong answers."""
    path = tmp_path / "herdbook.db"
    filled(path, 1)
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_MS", 1)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match="locked"):
            Store.open(path)


# -- clock ---------------------------------------------------------------------------------------


def test_a_clock_set_back_keeps_the_order_of_events(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([2_000_000_000, 1_000_000_000, 500_000_000, 500_000_000])
    real = time.gmtime
    monkeypatch.setattr(time, "gmtime", lambda *_: real(next(moments)))
    done = memory.contribute(DRAFT)
    memory.report_outcome(done.record_id, helped=True, client="a")
    memory.report_outcome(done.record_id, helped=False, client="a")
    assert [event.type for event in memory.history(done.record_id)] == ["contributed", "outcome", "outcome"]
    assert memory.history(done.record_id)[0].at > memory.history(done.record_id)[-1].at
    hit = memory.get(done.record_id)
    assert (hit.helped, hit.failed) == (0, 1)  # the client's last word, not the one with the latest date


# -- what is disposable ---------------------------------------------------------------------------


def with_saved_index(config: Config, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("kb.memory.TAIL_DOCUMENTS", 5)
    with closing(open_memory(config.memory())) as memory:
        for number in range(8):
            item = lesson(number)
            memory.contribute(
                {"title": item.title, "symptom": item.symptom + f" zork{number}", "cause": f"{item.cause} {'ab' * number}x",
                 "fix": f"{item.fix} {'cd' * number}y"}
            )  # fmt: skip
        assert memory.counts()["user"] == 8
    (saved,) = (config.home / "index").glob("user-*.npz")
    return saved


@pytest.mark.parametrize("content", [b"", b"not an index", b"PK\x03\x04" + b"\0" * 5000, "half"])
def test_a_damaged_saved_index_is_set_aside_and_rebuilt(
    lexical_config: Config, monkeypatch: pytest.MonkeyPatch, content: bytes | str
) -> None:
    saved = with_saved_index(lexical_config, monkeypatch)
    whole = saved.read_bytes()
    saved.write_bytes(whole[: len(whole) // 2] if isinstance(content, str) else content)
    with closing(open_memory(lexical_config.memory())) as memory:
        assert saved.with_name(saved.name + ".damaged").exists()
        answer = memory.explain("frobnication of quux 3 exceeded its zork budget zork3")
        assert "3" in answer.hits[0].record.title
        assert any(saved.name in warning and "rebuilt" in warning for warning in answer.warnings)


def test_a_saved_index_serves_the_next_start_without_a_warning(
    lexical_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_saved_index(lexical_config, monkeypatch)
    with closing(open_memory(lexical_config.memory())) as memory:
        answer = memory.explain("frobnication of quux 3 exceeded its zork budget zork3")
        assert "3" in answer.hits[0].record.title
        assert answer.warnings == ()


def test_missing_weights_leave_lexical_search_and_say_what_is_missing(config: Config, tmp_path: Path) -> None:
    with closing(open_memory(replace(config, weights=(tmp_path / "nowhere",)).memory())) as memory:
        done = memory.contribute(DRAFT)
        answer = memory.explain(DRAFT["symptom"])
        assert answer.hits[0].record.id == done.record_id
        assert any("dense search is off" in w and "herdbook setup" in w for w in answer.warnings)


def test_weights_with_another_digest_are_not_used_and_named(config: Config, tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        (tmp_path / name).write_bytes(b"{}")
    with closing(open_memory(replace(config, weights=(tmp_path,)).memory())) as memory:
        answer = memory.explain("error: 'aie.tile' op allocated buffers exceeded available memory")
        assert answer.hits
        assert any("sha256" in w and "herdbook setup --force" in w for w in answer.warnings)
