"""Twenty planted failures: each gives exactly one lesson, the right one, and the next model's deployment finds it first."""

from __future__ import annotations

import random
from contextlib import closing
from pathlib import Path
from typing import Any

from harvest import apply_plan, plan_harvest
from harvest.planted import PLANTED, asked_with, deploy
from harvest.recall import state_of
from kb import Memory, open_memory
from kb.records import Lesson
from mcp_server import Config
from tests.harvest.conftest import MakeMemory


def lessons(memory: Memory) -> list[Lesson]:
    return [
        hit.record for hit in memory.records() if isinstance(hit.record, Lesson) and hit.record.status == "observed"
    ]


def test_every_planted_failure_gives_exactly_one_right_lesson(tmp_path: Path, make_memory: MakeMemory) -> None:
    for number, one in enumerate(PLANTED):
        memory = make_memory(str(number))
        apply_plan(memory, plan_harvest(memory, deploy(tmp_path / one.code, "SmolLM2-135M", [one])))
        (found,) = lessons(memory)
        assert one.printed.format(**one.figures) in found.symptom, one.code
        assert one.why in found.cause, one.code
        assert one.key in found.fix, one.code
        assert found.kernels == [one.kernel]


def test_one_deployment_with_all_of_them_gives_twenty(tmp_path: Path, empty: Memory) -> None:
    plan = plan_harvest(empty, deploy(tmp_path / "w", "SmolLM2-135M", PLANTED))
    assert len([item for item in plan.items if item.kind == "lesson" and item.action == "new"]) == len(PLANTED) == 20
    assert all(not item.needs for item in plan.items)


def test_the_next_models_deployment_finds_the_lesson_first(tmp_path: Path, empty: Memory) -> None:
    apply_plan(empty, plan_harvest(empty, deploy(tmp_path / "w", "SmolLM2-135M", PLANTED)))
    for one in PLANTED:
        answer = empty.explain(asked_with(one))
        first = answer.hits[0].record
        assert isinstance(first, Lesson)
        assert not answer.no_match, one.code
        assert one.why in first.cause, f"{one.code}: {first.title}"


def test_among_the_shipped_lessons_it_is_still_among_the_first(tmp_path: Path, lexical_config: Config) -> None:
    """A reviewed lesson on the same diagnostic may stand before it, and then answers the same failure."""
    with closing(open_memory(lexical_config.memory())) as memory:
        apply_plan(memory, plan_harvest(memory, deploy(tmp_path / "w", "SmolLM2-135M", PLANTED)))
        first = third = 0
        for one in PLANTED:
            hits = memory.explain(asked_with(one), limit=3).hits
            places = [n for n, hit in enumerate(hits) if isinstance(hit.record, Lesson) and one.why in hit.record.cause]
            first += places[:1] == [0]
            third += bool(places)
        assert third == len(PLANTED)
        assert first >= 14


def test_the_same_failure_in_a_second_deployment_is_one_more_source_or_one_more_lesson_never_a_loss(
    tmp_path: Path, empty: Memory
) -> None:
    apply_plan(empty, plan_harvest(empty, deploy(tmp_path / "a", "SmolLM2-135M", PLANTED)))
    before = {lesson.id for lesson in lessons(empty)}
    apply_plan(empty, plan_harvest(empty, deploy(tmp_path / "b", "Qwen2.5-0.5B", PLANTED, second=True)))
    for one in PLANTED:
        told = [lesson for lesson in lessons(empty) if one.why in lesson.cause]
        assert 1 <= len(told) <= 2, one.code
    assert len(before) == len(PLANTED)


def test_the_order_of_harvests_does_not_change_the_store(tmp_path: Path, make_memory: MakeMemory) -> None:
    folders = [
        deploy(tmp_path / f"w{n}", model, PLANTED[n : n + 9], second=bool(n % 2))
        for n, model in enumerate(("SmolLM2-135M", "Qwen2.5-0.5B", "Llama-3.2-1B", "Qwen3-0.6B"))
    ]
    states: list[dict[str, Any]] = []
    for seed in range(3):
        memory = make_memory(f"order{seed}")
        order = folders[:]
        random.Random(seed).shuffle(order)
        for folder in order:
            apply_plan(memory, plan_harvest(memory, folder))
        states.append(state_of(memory))
    assert states[0] == states[1] == states[2]
    assert len(states[0]) > 12
