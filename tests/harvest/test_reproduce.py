"""`herdbook reproduce`: the stored failing and fixed case run again, and what comes of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harvest import NotReproducible, apply_plan, plan_harvest, proven, reproduce
from harvest.kept import changed_files
from harvest.reproduce import Outcome
from harvest.written import attempt, decision, write_deployment
from kb import Memory
from kb.records import Lesson
from mcp_server.config import kernels_folder
from npu_tools.deployment.workspace import recipe_digest
from tests.harvest.conftest import MakeMemory

SHAPE = {"M": 512, "K": 512}


@pytest.fixture
def learnt(tmp_path: Path, empty: Memory) -> tuple[Memory, str]:
    """A lesson whose failing case the check refuses and whose fixed case runs."""
    folder = write_deployment(
        tmp_path / "w", "m",
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 7}, False, code="divisibility", message="M=512 is not a multiple of tile_m*herd_m = 56")),
        ("decision", 1, decision("setting", "gemv.tile_m", 7, 8, "rows come in whole tiles")),
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 8}, True)),
    )  # fmt: skip
    apply_plan(empty, plan_harvest(empty, folder))
    return empty, next(hit.record.id for hit in empty.records() if isinstance(hit.record, Lesson))


def outcomes(failing: Outcome, fixed: Outcome) -> Any:
    def run(case: Mapping[str, Any], _recipes: Sequence[Path]) -> Outcome:
        return failing if case["settings"] == {"tile_m": 7} else fixed

    return run


PASSED = Outcome(True, "", "every element is within tolerance")
FAILED = Outcome(False, "divisibility", "not a multiple")


def test_both_cases_as_the_lesson_says_make_it_reproduced(learnt: tuple[Memory, str]) -> None:
    memory, name = learnt
    assert memory.get(name).record.status == "observed"
    done = reproduce(memory, name, [], outcomes(FAILED, PASSED))
    assert done.confirmed
    assert memory.get(name).record.status == "reproduced"


def test_a_fixed_case_that_fails_is_a_vote_against_the_lesson(learnt: tuple[Memory, str]) -> None:
    memory, name = learnt
    done = reproduce(memory, name, [], outcomes(FAILED, FAILED))
    assert not done.confirmed
    assert memory.get(name).record.status == "observed"
    assert memory.get(name).failed == 1


@pytest.mark.parametrize("failing", [PASSED, Outcome(False, "deadlock", "waits")])
def test_a_failing_case_that_ends_otherwise_confirms_nothing(learnt: tuple[Memory, str], failing: Outcome) -> None:
    memory, name = learnt
    done = reproduce(memory, name, [], outcomes(failing, PASSED))
    assert not done.confirmed
    assert memory.get(name).record.status == "observed"
    assert (memory.get(name).helped, memory.get(name).failed) == (0, 0)


def test_a_lesson_from_notes_has_no_case_and_says_so(tmp_path: Path, empty: Memory) -> None:
    note = tmp_path / "LESSONS.md"
    note.write_text(
        "## A wall\n\n**Symptom**: gemv with K=4864 exceeds L2 by far\n\n**Fix**: compile it with tile_m 2\n",
        encoding="utf-8",
    )
    apply_plan(empty, plan_harvest(empty, tmp_path))
    with pytest.raises(NotReproducible, match="ledger"):
        reproduce(empty, empty.records()[0].record.id, [], outcomes(FAILED, PASSED))


def test_it_runs_on_the_emulator_in_a_child_process(learnt: tuple[Memory, str]) -> None:
    memory, name = learnt
    done = reproduce(memory, name, [kernels_folder()])
    assert (done.failing.passed, done.fixed.passed) == (False, True), (done.failing, done.fixed)
    assert done.ran_on == "emulator"


def changed_recipe(tmp_path: Path, kept: bool) -> Path:
    """A workspace in which the addition was a subtraction; whether it still has the failing file."""
    shipped = kernels_folder()
    spoilt = (shipped / "eltwise_add" / "design.py").read_text(encoding="utf-8").replace("arith.addf", "arith.subf")
    whole = tmp_path / "w" / "results" / "recipes_0123"
    shutil.copytree(shipped / "eltwise_add", whole / "eltwise_add", ignore=shutil.ignore_patterns("__pycache__"))
    (whole / "eltwise_add" / "design.py").write_text(spoilt, encoding="utf-8")
    failed = attempt(
        "kernel",
        "eltwise_add",
        {"n": 1024},
        {},
        False,
        code="numerics-constant-factor",
        message="c misses its tolerance",
    )
    passed = attempt("kernel", "eltwise_add", {"n": 1024}, {}, True)
    failed["subject"]["recipe_digest"] = recipe_digest(whole / "eltwise_add")
    passed["subject"]["recipe_digest"] = recipe_digest(shipped / "eltwise_add")
    if not kept:
        shutil.rmtree(whole)
    change = decision("recipe", "eltwise_add/design.py", "0" * 64, None, "the residual has to be added")
    return write_deployment(
        tmp_path / "w", "m", ("attempt", 1, failed), ("decision", 1, change), ("attempt", 1, passed)
    )


def test_a_changed_recipe_file_the_workspace_kept_is_run_again(tmp_path: Path, empty: Memory) -> None:
    apply_plan(empty, plan_harvest(empty, changed_recipe(tmp_path, kept=True), recipes=kernels_folder()))
    shutil.rmtree(tmp_path / "w")  # the harvest keeps what it needs
    name = next(hit.record.id for hit in empty.records() if isinstance(hit.record, Lesson))
    done = reproduce(empty, name, [kernels_folder()])
    assert (done.failing.passed, done.fixed.passed, done.confirmed) == (False, True, True), done
    assert empty.get(name).record.status == "reproduced"


def test_a_changed_recipe_file_that_was_not_kept_is_said_to_be_gone(tmp_path: Path, empty: Memory) -> None:
    apply_plan(empty, plan_harvest(empty, changed_recipe(tmp_path, kept=False), recipes=kernels_folder()))
    name = next(hit.record.id for hit in empty.records() if isinstance(hit.record, Lesson))
    with pytest.raises(NotReproducible, match="failing case were not kept"):
        reproduce(empty, name, [kernels_folder()])


def test_kept_files_with_a_secret_or_too_long_are_not_taken_in(tmp_path: Path) -> None:
    workspace, shipped = changed_recipe(tmp_path, kept=True), kernels_folder()
    kept = workspace / "results" / "recipes_0123" / "eltwise_add"
    assert list(changed_files(workspace, "eltwise_add", recipe_digest(kept), shipped)) == ["design.py"]
    text = (kept / "design.py").read_text(encoding="utf-8")
    for extra in ("\n# ghp_" + "a1B2" * 9 + "\n", "#" * 70_000):
        (kept / "design.py").write_text(text + extra, encoding="utf-8")
        assert changed_files(workspace, "eltwise_add", recipe_digest(kept), shipped) == {}


def test_a_folders_own_code_is_not_run_by_policy(tmp_path: Path, empty: Memory) -> None:
    def run(_case: Mapping[str, Any], _recipes: Sequence[Path]) -> Outcome:
        raise AssertionError("the workspace's code was run without being asked for")

    plan = plan_harvest(
        empty, changed_recipe(tmp_path, kept=True), recipes=kernels_folder(), minimum="reproduced",
        proven=lambda c: proven(c, [kernels_folder()], run),
    )  # fmt: skip
    assert plan.counts()["new"] == 0


def test_a_policy_of_reproduced_takes_in_only_what_ran_as_it_says(tmp_path: Path, make_memory: MakeMemory) -> None:
    folder = write_deployment(
        tmp_path / "w", "m",
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 7}, False, code="divisibility", message="not a multiple of tile_m")),
        ("decision", 1, decision("setting", "gemv.tile_m", 7, 8, "rows come in whole tiles")),
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 8}, True)),
    )  # fmt: skip
    for fixed, statuses in ((PASSED, ["reproduced"]), (FAILED, [])):
        memory = make_memory(str(len(statuses)))
        run = outcomes(FAILED, fixed)
        plan = plan_harvest(memory, folder, minimum="reproduced", proven=lambda c, run=run: proven(c, [], run))
        apply_plan(memory, plan)
        assert [hit.record.status for hit in memory.records()] == statuses
        assert all("only reproduced is wanted" in item.why for item in plan.of("refused"))
