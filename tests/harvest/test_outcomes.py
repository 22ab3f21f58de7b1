"""Later gates move what earlier deployments said; a merge or a re-election loses no vote."""

from __future__ import annotations

from pathlib import Path

from harvest import apply_plan, plan_harvest
from harvest.planted import PLANTED, deploy
from harvest.written import attempt, decision, write_deployment
from kb import Memory
from kb.records import Lesson

SHAPE = {"M": 512, "K": 2048}


def lesson_of(memory: Memory, folder: Path) -> str:
    """The lesson of the first planted failure, harvested."""
    apply_plan(memory, plan_harvest(memory, deploy(folder, "SmolLM2-135M", PLANTED[:1])))
    return next(hit.record.id for hit in memory.records() if isinstance(hit.record, Lesson))


def followed(folder: Path, lesson: str, *, helped: bool) -> Path:
    """A second deployment that had the lesson at hand, followed it, and passed or failed again."""
    failed = {"code": "divisibility", "message": "N=96 does not divide", "lessons": [lesson, "another-lesson"]}
    return write_deployment(
        folder, "Qwen3-0.6B",
        ("attempt", 1, attempt("kernel", "gemm", SHAPE, {"tile_n": 128}, False, **failed)),
        ("decision", 1, decision("setting", "gemm.tile_n", 128, 32, f"as {lesson} says")),
        ("attempt", 1, attempt("kernel", "gemm", SHAPE, {"tile_n": 32}, helped, **({} if helped else failed))),
    )  # fmt: skip


def test_a_gate_that_passed_after_a_lesson_was_followed_speaks_for_it_once(tmp_path: Path, empty: Memory) -> None:
    name = lesson_of(empty, tmp_path / "a")
    folder = followed(tmp_path / "b", name, helped=True)
    for _ in range(2):
        apply_plan(empty, plan_harvest(empty, folder))
    assert (empty.get(name).helped, empty.get(name).failed) == (1, 0)


def test_a_gate_that_failed_the_same_way_again_speaks_against_it(tmp_path: Path, empty: Memory) -> None:
    name = lesson_of(empty, tmp_path / "a")
    apply_plan(empty, plan_harvest(empty, followed(tmp_path / "b", name, helped=False)))
    assert (empty.get(name).helped, empty.get(name).failed) == (0, 1)


def test_votes_go_over_to_the_record_that_comes_to_tell_the_lesson(tmp_path: Path, empty: Memory) -> None:
    """A longer telling of the same lesson takes the place of a shorter one, and its standing with it."""
    short = "## GEMM is garbage\n\n**Symptom**: GEMM output is garbage for N=128 at tile_n=128 herd_n=4 without any error\n\n**Root cause**: N does not divide one round of the herd\n\n**Fix**: choose tile_n=32 so that the round divides N\n"
    first = tmp_path / "one" / "docs" / "development_progress" / "LESSONS.md"
    first.parent.mkdir(parents=True)
    first.write_text(short, encoding="utf-8")
    apply_plan(empty, plan_harvest(empty, tmp_path / "one"))
    (old,) = [hit.record.id for hit in empty.records()]
    empty.report_outcome(old, True, client="ann")
    second = tmp_path / "two" / "docs" / "development_progress" / "LESSONS.md"
    second.parent.mkdir(parents=True)
    second.write_text(
        short.replace("so that the round divides N", "so that the round divides N, and check the cosine of one block"),
        encoding="utf-8",
    )
    done = apply_plan(empty, plan_harvest(empty, tmp_path / "two"))
    (hit,) = empty.records()
    assert done.withdrawn == (old,)
    assert hit.record.id != old
    assert (hit.seen, hit.helped) == (2, 1)
