"""`herdbook reproduce`: the stored failing and fixed case run again, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harvest import NotReproducible, apply_plan, plan_harvest, proven, reproduce
from harvest.reproduce import Outcome
from harvest.written import attempt, decision, write_deployment
from kb import Memory
from kb.records import Lesson
from mcp_server.config import kernels_folder
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
