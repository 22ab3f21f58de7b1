"""Phases 4 to 7: steps one at a time, kept or taken back, drawn, and the whole through to the evaluator."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from npu_tools.deployment import optimise
from npu_tools.deployment.documents import BEGIN, END, write_documents
from npu_tools.deployment.ledger import Ledger, read
from npu_tools.deployment.machine import Machine, failures_of
from npu_tools.deployment.steps import Times
from npu_tools.deployment.workspace import Workspace
from npu_tools.errors import UnusableInput
from tests.npu_tools.deployment.quick_world import KERNELS, QuickWorld, opened


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose phases 0 to 3 passed; tests go on in copies of it."""
    folder = tmp_path_factory.mktemp("gated") / "workspace"
    assert opened(Machine(Workspace(folder), QuickWorld(), KERNELS)).run(last=3).state == "passed"
    return folder


@pytest.fixture
def machine(gated: Path, tmp_path: Path, world: QuickWorld) -> Machine:
    """A machine over a copy of it."""
    shutil.copytree(gated, tmp_path / "workspace")
    return Machine(Workspace(tmp_path / "workspace"), world, KERNELS)


def test_all_phases_pass_and_the_trajectory_is_drawn(machine: Machine) -> None:
    ran = machine.run()
    assert ran.state == "finished", ran.summary
    state = machine.state()
    kept = {(entry.phase, entry.body["name"]): entry.body["kept"] for entry in state.steps}
    assert kept == {
        (4, "merge"): True, (4, "buffer_reuse"): True, (4, "layout"): True,
        (5, "merge"): True, (5, "buffer_reuse"): True, (5, "layout"): False,
    }  # fmt: skip
    for entry in state.steps:
        if entry.body["kept"]:
            assert entry.body["after_us"] < entry.body["before_us"]
            assert entry.body["timing"] == "modelled"
            assert any(a.seq == entry.body["gate_seq"] and a.body["passed"] for a in state.attempts)
    merged = {e.body["subject"]["kernel"] for e in state.attempts if e.body["gate"] == "kernel" and e.phase in (4, 5)}
    assert {"rms_gemms_rope", "rms_gemv_rope"} <= merged
    picture = ET.fromstring((machine.workspace.folder / "trajectory.svg").read_text(encoding="utf-8"))
    drawn = " ".join("".join(text.itertext()) for text in picture.iter() if text.tag.endswith("text"))
    assert "merge" in drawn
    assert "modelled" in drawn
    trajectory = (machine.workspace.folder / "perf_opt_traj.md").read_text(encoding="utf-8")
    assert trajectory.count("| yes |") == 5
    page = machine.workspace.folder / "progress.md"
    text = page.read_text(encoding="utf-8")
    assert BEGIN in text
    page.write_text(text.replace(END, ""), encoding="utf-8")
    with pytest.raises(UnusableInput, match=r"progress\.md: the marks"):
        write_documents(machine.workspace, read(machine.workspace.ledger))


def test_a_step_its_own_settings_break_fails_the_phase_until_they_are_taken_back(machine: Machine) -> None:
    machine.set("buffers/o_ffn_head", {"static": "0,1,2"})
    ran = machine.run(last=4)
    assert (ran.state, ran.phase) == ("failed", 4), ran.summary
    failure = failures_of(ran)[0]
    assert failure["diagnosis"]["layer"] == 1
    assert "o_ffn_head" in failure["diagnosis"]["message"]
    assert [one["name"] for one in failure["criteria"]] == ["steps_sound"]
    machine.set("buffers/o_ffn_head", {"static": None})
    assert machine.run(last=4).state == "passed"


def test_a_step_that_is_not_faster_is_taken_back(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(times: Times, what: Any) -> float:
        return 100.0

    monkeypatch.setattr(optimise, "_of", slow)
    ran = machine.run(last=4)
    assert (ran.state, ran.phase) == ("failed", 4)
    assert all("not faster" in entry.body["why"] for entry in machine.state().steps if entry.body["after_us"])
    assert "nothing was kept" in ran.summary


def test_the_evaluators_first_error_is_the_diagnosis(machine: Machine, world: QuickWorld) -> None:
    world.verdict = {
        "verdict": "fail",
        "reasons": [
            {"code": "gate_small", "text": "a small gate", "evidence": "", "severity": "warning"},
            {"code": "timing_wrong", "text": "a time is not the model's", "evidence": "line 9", "severity": "error"},
        ],
    }
    ledger = Ledger.open(machine.workspace.ledger)
    for number in (4, 5, 6):
        ledger.append("phase", number, {"state": "passed", "summary": ""})
    ran = machine.run()
    assert (ran.state, ran.phase) == ("failed", 7)
    assert failures_of(ran)[0]["diagnosis"]["code"] == "timing_wrong"
    world.verdict = {"verdict": "pass_with_warnings", "reasons": []}
    assert machine.run().state == "finished"


def test_failures_that_were_fixed_want_a_note(machine: Machine) -> None:
    machine.set("gemm", {"tile_m": 256})
    failed = machine.run(last=1)
    assert not machine.state().unexplained(), "it is not fixed yet"
    machine.set("gemm", {"tile_m": None})
    assert machine.run(last=1).state == "passed"
    lines = [failure["line"] for failure in failures_of(failed)]
    assert [entry.seq for entry in machine.state().unexplained()] == lines
    for line in lines:
        machine.note("the tile took more than L1", about=line)
    assert not machine.state().unexplained()
