"""Several processes on one home, and processes killed in the middle of a write.

`HERDBOOK_LONG=1` runs the full sizes: 8 writers × 250 contributions with 4 readers, 50 kills.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from kb import open_memory
from kb.store import Store
from mcp_server import Config

LONG = os.environ.get("HERDBOOK_LONG") == "1"
WRITERS = 8
READERS = 4
PER_WRITER = 250 if LONG else 40
KILLS = 50 if LONG else 6

COMMON = textwrap.dedent(
    """
    import json, sys
    from dataclasses import replace
    from pathlib import Path
    from kb import open_memory
    from mcp_server import Config

    memory = open_memory(replace(Config.from_environment(), home=Path(sys.argv[1]), chroma=None, dense=False).memory())

    def draft(writer, number):
        word = f"quux{writer}x{number}"
        return {
            "title": f"The frobnicator of writer {writer} refuses {word}",
            "symptom": f"error: frobnication of {word} exceeded its zork budget",
            "cause": f"{word} is larger than the budget of {word}a {word}b {word}c",
            "fix": f"Shrink {word} to {word}d {word}e {word}f",
        }

    def say(**fields):
        print(json.dumps(fields), flush=True)

    """
)
WRITER = COMMON + textwrap.dedent(
    """
    writer = int(sys.argv[2])
    say(ready=memory.store is not None)
    sys.stdin.readline()
    for number in range(int(sys.argv[3])):
        done = memory.contribute(draft(writer, number), client=f"writer-{writer}")
        say(id=done.record_id, action=done.action, writer=writer, number=number)
    """
)
READER = COMMON + textwrap.dedent(
    """
    say(ready=True)
    for line in sys.stdin:
        asked = json.loads(line)
        hit = memory.explain(draft(asked["writer"], asked["number"])["symptom"]).hits[0]
        say(asked=asked["id"], got=hit.record.id, there=memory.get(asked["id"]).record.id)
    """
)
KILLED = COMMON + textwrap.dedent(
    """
    say(ready=memory.store is not None)
    number = 0
    while True:
        say(id=memory.contribute(draft(int(sys.argv[2]), number)).record_id, number=number)
        number += 1
    """
)


def start(code: str, *values: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, values)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip


def stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                pass


def tell(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> dict[str, object] | None:
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line) if line.endswith("\n") else None


def test_eight_writers_and_four_readers_on_one_home_lose_and_double_nothing(lexical_config: Config) -> None:
    """Each acknowledgement is passed to one reader, which must find the record at its next query."""
    home = lexical_config.home
    writers = [start(WRITER, home, n, PER_WRITER) for n in range(WRITERS)]
    readers = [start(READER, home) for _ in range(READERS)]
    acknowledged: list[dict[str, object]] = []
    seen: list[dict[str, object]] = []
    turn = [threading.Lock() for _ in readers]

    def follow(number: int) -> None:
        for count in range(PER_WRITER):
            said = hear(writers[number])
            if said is None:
                return
            acknowledged.append(said)
            which = (number + count) % READERS
            with turn[which]:
                tell(readers[which], json.dumps(said))
                answer = hear(readers[which])
            if answer is not None:
                seen.append(answer)

    try:
        # All twelve open a home that does not exist yet, at once; only then does the writing start.
        assert [hear(p) for p in [*writers, *readers]] == [{"ready": True}] * (WRITERS + READERS)
        for writer in writers:
            tell(writer, "go")
        threads = [threading.Thread(target=follow, args=(n,)) for n in range(WRITERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for process in [*writers, *readers]:
            stop(process)

    total = WRITERS * PER_WRITER
    ids = [str(said["id"]) for said in acknowledged]
    assert len(ids) == len(set(ids)) == total
    assert {str(said["action"]) for said in acknowledged} == {"stored"}
    assert len(seen) == total
    assert [answer for answer in seen if not answer["asked"] == answer["got"] == answer["there"]] == []
    with closing(open_memory(lexical_config.memory())) as memory:
        assert memory.store is not None
        assert Counter(s.record.id for s in memory.store.changed_since(0)) == Counter(ids)
        assert Counter(e.record_id for e in memory.store.events()) == Counter(ids)
        assert memory.store.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def test_the_same_lesson_from_eight_processes_is_one_record_counted_eight_times(lexical_config: Config) -> None:
    same = WRITER.replace("contribute(draft(writer, number)", "contribute(draft(0, 0)")
    writers = [start(same, lexical_config.home, n, 5) for n in range(WRITERS)]
    try:
        assert all(hear(writer) == {"ready": True} for writer in writers)
        for writer in writers:
            tell(writer, "go")
        said = [hear(writer) for writer in writers for _ in range(5)]
    finally:
        for writer in writers:
            stop(writer)
    assert None not in said
    assert Counter(line["action"] for line in said if line) == {"stored": 1, "merged": 39}
    with closing(open_memory(lexical_config.memory())) as memory:
        assert memory.counts()["user"] == 1
        (name,) = {str(line["id"]) for line in said if line}
        assert memory.get(name).seen == 40


@pytest.mark.skipif(os.name == "nt", reason="kill -9")
def test_a_process_killed_at_any_point_loses_nothing_it_acknowledged(lexical_config: Config) -> None:
    chance = random.Random(int(os.environ.get("HERDBOOK_SEED", "7")))
    acknowledged: list[str] = []
    for round_number in range(KILLS):
        child = start(KILLED, lexical_config.home, round_number)
        try:
            assert hear(child) == {"ready": True}
            after = chance.randrange(12)
            while after > 0:
                said = hear(child)
                assert said is not None
                acknowledged.append(str(said["id"]))
                after -= 1
            # The kill lands somewhere in the next contribution; a spin of random length moves it about.
            for _ in range(chance.randrange(200_000)):
                pass
            child.kill()
            assert child.stdout is not None
            for line in child.stdout.read().splitlines(keepends=True):
                if line.endswith("\n"):
                    acknowledged.append(json.loads(line)["id"])
        finally:
            stop(child)
        with closing(open_memory(lexical_config.memory())) as memory:
            assert memory.store is not None
            assert memory.store.salvage is None
            there = {stored.record.id for stored in memory.store.changed_since(0)}
            assert set(acknowledged) <= there
            # What was being written when the kill came is there whole or not at all.
            assert Counter(e.record_id for e in memory.store.events()) == Counter(there)
    assert len(acknowledged) >= KILLS
    with closing(open_memory(lexical_config.memory())) as memory:
        assert memory.store is not None
        assert memory.store.db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


@pytest.mark.skipif(os.name == "nt", reason="kill -9")
def test_a_process_killed_while_it_first_opens_a_home_leaves_one_that_opens(lexical_config: Config) -> None:
    opening = textwrap.dedent(
        """
        import os, signal, sqlite3, sys
        import kb.store as store
        from pathlib import Path
        left = int(sys.argv[2])
        statements = store._statements
        def some(script):
            global left
            for statement in statements(script):
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                yield statement
        store._statements = some
        store.Store.open(Path(sys.argv[1]) / "herdbook.db")
        """
    )
    for left in range(0, 10, 3):
        home = lexical_config.home / str(left)
        child = subprocess.run([sys.executable, "-c", opening, str(home), str(left)], check=False)
        assert child.returncode == -9
        path = Path(home) / "herdbook.db"
        assert path.exists()
        with closing(Store.open(path)) as store:
            assert store.salvage is None
            assert store.count() == 0
