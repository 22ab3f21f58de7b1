"""The thinnest path: ask, contribute, find again."""

from __future__ import annotations

from kb import Memory


def test_a_contributed_lesson_is_the_first_answer_to_its_own_error(memory: Memory) -> None:
    done = memory.contribute(
        {
            "title": "zork overflow",
            "symptom": "error: frobnication of quux exceeded its zork budget",
            "cause": "too big",
            "fix": "shrink it",
        }
    )
    assert memory.explain("error: frobnication of quux exceeded its zork budget").hits[0].record.id == done.record_id
