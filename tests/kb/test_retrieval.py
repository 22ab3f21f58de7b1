"""Floors under the measured retrieval figures, on shipped questions, lexical search only (no weights needed).

`herdbook corpus tune tests/data/eval/*.jsonl` prints the honest figures, held out by source; these
floors lie under them and catch a change that breaks matching.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from kb import Memory
from kb.rank import Ranking
from kb.records import Lesson
from kb.search import Shelf
from kb.tune import figures, measure, read_cases

DATA = Path(__file__).parent.parent / "data" / "eval"


def questions(name: str, count: int) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines() if line]
    return random.Random(11).sample(lines, min(count, len(lines)))


def test_every_question_names_a_shipped_lesson(memory: Memory) -> None:
    for path in DATA.glob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            assert case.get("kind") == "no_answer" or case["lesson"] in memory.corpus.records, case["id"]


def test_an_accepted_neighbour_is_a_shipped_lesson_with_a_reason_and_another_than_the_expected(memory: Memory) -> None:
    lines = [line for path in DATA.glob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    judged = [case for case in map(json.loads, lines) if "also" in case]
    assert judged
    for case in judged:
        assert all(memory.corpus.records[name].kind == "lesson" for name in case["also"]), case["id"]
        assert case["lesson"] not in case["also"], case["id"]
        assert len(case["also_reason"]) > 20, case["id"]


def test_an_accepted_neighbour_counts_in_figures_of_its_own(memory: Memory) -> None:
    records = memory.corpus.records
    known = records["skills-lemonade-load-404"]
    assert isinstance(known, Lesson)
    exact: dict[str, Any] = {"id": "a", "query": known.symptom, "lesson": known.id}
    near: dict[str, Any] = {**exact, "id": "b", "lesson": "aie1959-python-if-in-core", "also": [known.id]}
    shelf = Shelf()
    shelf.add(memory.corpus.segment)
    measured = measure(read_cases([exact, near], records), shelf, records, None)
    curves = Ranking.load(memory.config.compiled / "ranking.json").curves["lexical"]
    found = figures(measured, lambda _case: replace(curves, threshold=0.0))
    assert (found.recall_1, found.recall_3, found.near_1, found.near_3) == (0.5, 0.5, 1.0, 1.0)
    assert measured[1].case.right == {"aie1959-python-if-in-core"}  # never learnt from


def test_questions_written_without_seeing_the_lessons_find_them(memory: Memory) -> None:
    cases = questions("blind", 120)
    ranks = [[hit.record.id for hit in memory.explain(case["query"]).hits] for case in cases]
    first = sum(ids[:1] == [case["lesson"]] for ids, case in zip(ranks, cases, strict=True)) / len(cases)
    third = sum(case["lesson"] in ids for ids, case in zip(ranks, cases, strict=True)) / len(cases)
    assert first >= 0.60
    assert third >= 0.75


def test_most_failures_of_other_stacks_are_not_answered_and_most_of_ours_are(memory: Memory) -> None:
    foreign = [memory.explain(case["query"]).no_match for case in questions("foreign", 100)]
    ours = [memory.explain(case["query"]).no_match for case in questions("blind", 100)]
    assert sum(foreign) >= 80
    assert sum(ours) <= 8
