"""Failures planted in a deployment on the emulator, through the real machine: one lesson each, first for the next model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from harvest import apply_plan, plan_harvest, reproduce
from kb import Memory
from kb.records import Lesson
from npu_tools.deployment.machine import Machine, Model, OpenOptions
from npu_tools.deployment.workspace import Workspace
from tests.npu_tools.deployment.quick_world import CONFIG, KERNELS, QuickWorld

WIDER = {**CONFIG, "hidden_size": 192, "num_attention_heads": 3, "num_key_value_heads": 3, "intermediate_size": 320}


def opened(folder: Path, name: str, config: Mapping[str, Any]) -> Machine:
    machine = Machine(Workspace(folder), cast("Any", QuickWorld()), KERNELS)
    machine.open(Model(name, config, "random:7"), OpenOptions(seq_len=64, layers=1))
    return machine


def wrong_addition(machine: Machine) -> None:
    """The residual is subtracted: a recipe changed wrongly."""
    text = machine.read_recipe("eltwise_add", "design.py")
    assert "addf" in text
    machine.write_recipe("eltwise_add", "design.py", text.replace("addf", "subf"), why="tried another form")


def failing_text(machine: Machine) -> str:
    """What the machine asks its memory with for the first gate that fails."""
    ran = machine.run(last=1)
    assert ran.state == "failed"
    return str(ran.failures[0].body["diagnosis"]["text"])


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deployment with an illegal tile and a wrong recipe, both mended."""
    folder = tmp_path_factory.mktemp("deployment") / "first"
    first = opened(folder, "tiny", CONFIG)
    first.set("gemm", {"tile_m": 48}, why="a tile that does not divide the prompt")
    assert first.run(last=1).state == "failed"
    first.set("gemm", {"tile_m": None}, why="64 tokens are no multiple of tile_m times herd_m")
    assert first.run(last=1).state == "passed"
    wrong_addition(first)
    assert first.run(last=1).state == "failed"
    first.write_recipe("eltwise_add", "design.py", None, why="the residual has to be added")
    assert first.run(last=1).state == "passed"
    return folder


@pytest.fixture
def learnt(workspace: Path, empty: Memory) -> Memory:
    """A memory that has harvested it."""
    apply_plan(empty, plan_harvest(empty, workspace, recipes=KERNELS))
    return empty


def test_planted_failures_give_one_lesson_each_and_the_next_model_finds_them_first(
    learnt: Memory, tmp_path: Path
) -> None:
    lessons = [hit.record for hit in learnt.records() if isinstance(hit.record, Lesson)]
    assert sorted(lesson.kernels[0] for lesson in lessons) == ["eltwise_add", "gemm"]
    by_kernel = {lesson.kernels[0]: lesson for lesson in lessons}
    assert "no multiple of tile_m" in by_kernel["gemm"].cause
    assert "Take back tile_m of gemm" in by_kernel["gemm"].fix
    assert "the residual has to be added" in by_kernel["eltwise_add"].cause

    second = opened(tmp_path / "second", "wider", WIDER)
    second.set("gemm", {"tile_m": 48}, why="the same mistake")
    answer = learnt.explain(failing_text(second))
    assert not answer.no_match
    assert answer.hits[0].record.id == by_kernel["gemm"].id
    second.set("gemm", {"tile_m": None})
    wrong_addition(second)
    answer = learnt.explain(failing_text(second))
    assert answer.hits[0].record.id == by_kernel["eltwise_add"].id


def test_the_lesson_of_an_illegal_tile_is_reproduced_on_the_emulator(learnt: Memory) -> None:
    name = next(h.record.id for h in learnt.records() if isinstance(h.record, Lesson) and h.record.kernels == ["gemm"])
    done = reproduce(learnt, name, [KERNELS])
    assert done.confirmed, done
    assert learnt.get(name).record.status == "reproduced"


def test_a_second_harvest_of_the_workspace_adds_nothing(learnt: Memory, workspace: Path) -> None:
    plan = plan_harvest(learnt, workspace, recipes=KERNELS)
    assert plan.counts()["new"] == 0
    assert apply_plan(learnt, plan).id is None
