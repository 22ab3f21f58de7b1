"""Nothing unsafe gets in: two hundred hostile notes, harvested by policy, leave the memory as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from harvest import Applied, Plan, apply_plan, plan_harvest
from harvest.hostile import Note, documented_lessons, hostile_notes, measure_hostile, write_notes
from kb import Filters, Memory, open_memory
from kb.records import Lesson, texts_of
from mcp_server import Config
from mcp_server.replies import explain_reply


@pytest.fixture(scope="module")
def attacked(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Memory, list[Note], list[Lesson], Plan, Applied]]:
    """A memory over the shipped corpus after harvesting every hostile note with --yes."""
    folder = tmp_path_factory.mktemp("hostile")
    config = Config.from_environment()
    with closing(open_memory(replace(config, home=folder / "home", chroma=None, dense=False).memory())) as memory:
        known = documented_lessons(memory)
        notes = hostile_notes(known)
        write_notes(folder / "notes", notes)
        plan = plan_harvest(memory, folder / "notes")
        yield memory, notes, known, plan, apply_plan(memory, plan)


def test_there_are_two_hundred_of_all_kinds(attacked: tuple[Memory, list[Note], list[Lesson], Plan, Applied]) -> None:
    notes = attacked[1]
    assert len(notes) == 200
    assert Counter(note.group for note in notes) == {
        "secret": 60, "personal": 20, "injection": 40, "harmful": 30, "poison": 20, "giant": 10, "binary": 10, "vague": 10,
    }  # fmt: skip


def test_nothing_is_stored(attacked: tuple[Memory, list[Note], list[Lesson], Plan, Applied]) -> None:
    memory, _, _, plan, applied = attacked
    assert memory.store is not None
    assert applied.added == ()
    assert memory.store.count() == 0
    assert plan.counts()["new"] == 0
    assert len(plan.of("conflict")) == len(applied.waiting)


def test_no_mark_of_any_note_is_in_the_database_or_in_the_plan(
    attacked: tuple[Memory, list[Note], list[Lesson], Plan, Applied],
) -> None:
    memory, notes, _, plan, _ = attacked
    assert memory.store is not None
    memory.store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    stored = memory.store.path.read_bytes().decode("utf-8", "replace")
    told = "\n".join(f"{item.title} {item.why} {' '.join(item.evidence)}" for item in plan.items) + plan.diff()
    for note in notes:
        for mark in note.marks:
            assert mark not in stored, note.group
            if note.group in ("secret", "personal", "injection"):
                assert mark not in told, (note.group, mark)


def test_each_refusal_says_why(attacked: tuple[Memory, list[Note], list[Lesson], Plan, Applied]) -> None:
    said = Counter(item.why.split(":")[0] for item in attacked[3].of("refused"))
    assert said["secret"] == 60
    assert said["personal"] >= 20
    assert said["instructions"] >= 40
    assert (
        said["harmful"] + said["instructions"] + said["personal"] == 90
    )  # thirty harmful, forty orders, twenty personal
    assert said["not read"] >= 21  # giants, binaries and a link that points outside


def test_no_documented_lesson_is_displaced(attacked: tuple[Memory, list[Note], list[Lesson], Plan, Applied]) -> None:
    memory, _, known, _, _ = attacked
    for record in known:
        reply = explain_reply(memory.explain(record.symptom), "full")
        assert reply.lessons[0].id == record.id
        assert reply.lessons[0].reviewed


def test_even_accepted_poison_stays_below_and_is_only_quoted(tmp_path: Path, lexical_config: Config) -> None:
    """The guard: with conflicts accepted the poisoned notes do come in, and are found where only they are asked for."""
    with closing(open_memory(lexical_config.memory())) as memory:
        known = documented_lessons(memory)
        notes = [note for note in hostile_notes(known) if note.group == "poison"]
        plan = plan_harvest(memory, write_notes(tmp_path / "notes", notes))
        applied = apply_plan(memory, plan, approve_conflicts=True)
        assert len(applied.added) >= 10
        for record in known:
            answer = memory.explain(record.symptom, limit=5)
            assert answer.hits[0].record.id == record.id
            for lesson in explain_reply(answer, "full").lessons[1:]:
                if not lesson.reviewed:
                    assert all(line.startswith("> ") for line in (lesson.title + "\n" + lesson.cause).split("\n"))
        observed = memory.explain(known[0].symptom, Filters(status="observed")).hits[0]
        assert "moonphase" in texts_of(observed.record)
        assert observed.disputed_by
        assert [name for name in applied.added if not memory.get(name).disputed_by] == []


def test_the_bench_counts_what_was_stored_ranked_or_displaced(tmp_path: Path, lexical_config: Config) -> None:
    numbers = iter(range(9))
    with ExitStack() as stack:
        report = measure_hostile(
            tmp_path,
            lambda: stack.enter_context(
                closing(open_memory(replace(lexical_config, home=tmp_path / f"home{next(numbers)}").memory()))
            ),
        )
    assert sum(report.notes.values()) == 200
    assert (report.stored, report.marks, report.displaced, report.returned) == (0, (), (), ())
    assert report.accepted >= 10
