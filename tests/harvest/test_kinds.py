"""`herdbook bench planted`: rigs break one gate of a real deployment each, and the report counts what came of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harvest import apply_plan, plan_harvest
from harvest.kinds import alone, measure_planted, same_fixes, samples
from harvest.planted import PLANTED
from harvest.rigged import FIRST, RIGS, Rig, passing, spoilt
from kb import Memory
from kb.records import Lesson
from mcp_server import Config
from mcp_server.config import kernels_folder
from tests.harvest.conftest import MakeMemory


def rig(code: str) -> Rig:
    return next(one for one in RIGS if one.code == code)


def counted(make_memory: MakeMemory) -> Callable[[], Memory]:
    """Makes memories by number."""
    numbers = iter(range(100))
    return lambda: make_memory(str(next(numbers)))


def test_every_planted_kind_has_a_rig_and_every_judged_lesson_is_shipped(config: Config) -> None:
    kinds = {one.code for one in PLANTED}
    assert len({one.code for one in RIGS}) == len(RIGS)
    assert {one.code for one in RIGS} == kinds
    assert set(same_fixes()) <= kinds
    shipped = {path.stem for path in (config.corpus / "lessons").rglob("*.md")}
    assert {name for lessons in same_fixes().values() for name in lessons} <= shipped


def test_kinds_by_the_machine_and_by_rule_give_one_right_lesson_each_found_first(
    tmp_path: Path, make_memory: MakeMemory
) -> None:
    empty = counted(make_memory)
    rigs = [rig("rope_convention"), rig("lm_head_rows")]
    kinds = [one for one in PLANTED if one.code in ("rope_convention", "lm_head_rows", "kv_heads", "out_of_bounds")]
    report = measure_planted(kernels_folder(), tmp_path, empty, empty, rigs=rigs, kinds=kinds)
    assert [row.code for row in report.rows if row.ledger == "machine"] == ["rope_convention", "lm_head_rows"]
    assert report.right == report.first == report.first_beside_corpus == len(report.rows) == 4
    assert report.by_documented == 0


def test_a_rig_that_breaks_nothing_or_fits_no_recipe_is_no_failure_brought_about(tmp_path: Path) -> None:
    shipped = kernels_folder()
    base = passing(tmp_path / "base", FIRST, shipped)
    harmless = replace(rig("nan"), edits=(("text.constant(eps, 'f32')", "text.constant(float(eps), 'f32')"),))
    assert spoilt(base, tmp_path / "harmless", harmless, FIRST, shipped)[1] == ()
    with pytest.raises(AssertionError, match="fits no more"):
        spoilt(base, tmp_path / "other", replace(harmless, edits=(("no such words", ""),)), FIRST, shipped)


def test_a_workspace_whose_lesson_says_something_else_is_not_right(tmp_path: Path, make_memory: MakeMemory) -> None:
    empty = counted(make_memory)
    told = samples(kernels_folder(), tmp_path, ())[0]
    assert alone(told, empty(), kernels_folder()) == (1, True)
    assert alone(replace(told, cause="another reason"), empty(), kernels_folder()) == (1, False)
    assert alone(replace(told, changed="tile_k_l2"), empty(), kernels_folder()) == (1, False)


def test_what_other_gates_of_one_change_printed_is_kept_with_the_lesson(
    tmp_path: Path, make_memory: MakeMemory
) -> None:
    """The interleaved rotation is told as permuted at one shape and as low precision at another: one lesson, both lines."""
    told = samples(kernels_folder(), tmp_path, RIGS, [one for one in PLANTED if one.code == "rope_convention"])[0]
    memory = make_memory("both")
    apply_plan(memory, plan_harvest(memory, told.workspace, recipes=kernels_folder()))
    (lesson,) = [hit.record for hit in memory.records() if isinstance(hit.record, Lesson)]
    words = " ".join([lesson.symptom, *lesson.also_seen_as])
    assert "permuted" in words
    assert "low precision" in words
    assert plan_harvest(memory, told.workspace, recipes=kernels_folder()).counts()["new"] == 0
