"""The machine: phases in order, failures told, moves recorded, kills survived."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from npu_tools.deployment.diagnosis import Lesson, Symptom
from npu_tools.deployment.ledger import verify
from npu_tools.deployment.machine import Machine, Model, OpenOptions, failures_of
from npu_tools.errors import LedgerBroken, RunStopped, UnusableInput, WorkspaceBusy
from tests.npu_tools.deployment.quick_world import CONFIG, QuickWorld, opened


def test_phases_up_to_the_full_model_pass_and_are_written_down(machine: Machine) -> None:
    ran = opened(machine).run(last=3)
    assert ran.state == "passed", ran.summary
    assert ran.passed == (0, 1, 2, 3)
    state = machine.state()
    kernels = [entry for entry in state.attempts if entry.body["gate"] == "kernel"]
    assert {"gemm", "gemv", "flash_attention", "rmsnorm"} <= {entry.body["subject"]["kernel"] for entry in kernels}
    assert all(entry.body["digests"]["results"] for entry in kernels)
    assert verify(machine.workspace.ledger) is None
    folder = machine.workspace.folder
    for name in ("plan.md", "progress.md", "issues.md", "kernels.md", "notes/kernels/gemm.md", "settings.json"):
        assert (folder / name).is_file(), name
    assert "Next: phase 4" in (folder / "progress.md").read_text(encoding="utf-8")


def test_a_refused_tile_is_told_with_its_lesson_and_passes_once_it_is_taken_back(machine: Machine) -> None:
    asked: list[Symptom] = []

    def advise(symptom: Symptom) -> list[Lesson]:
        asked.append(symptom)
        return [Lesson("tile-too-big", "A tile does not fit", 0.9)]

    machine.advise = advise
    opened(machine).set("gemm", {"tile_m": 256}, why="to see")
    ran = machine.run(last=1)
    assert ran.state == "failed"
    assert ran.phase == 1
    failure = failures_of(ran)[0]
    assert failure["lessons"][0]["id"] == "tile-too-big"
    assert failure["fixed_when"]
    assert "phase-1-kernel-validation" in failure["skills"]
    assert asked[0].phase == 1
    machine.set("gemm", {"tile_m": None})
    before = len(machine.state().attempts)
    assert machine.run(last=1).state == "passed"
    again = machine.state().attempts[before:]
    assert {entry.body["subject"]["kernel"] for entry in again} == {"gemm"}, "what passed is not run again"


def test_a_wrong_epsilon_passes_its_kernel_and_fails_the_block_at_its_stage(machine: Machine) -> None:
    opened(machine).set("prefill/attn_norm", {"eps": 0.5})
    ran = machine.run(last=2)
    assert (ran.state, ran.phase) == ("failed", 2), ran.summary
    diagnosis = failures_of(ran)[0]["diagnosis"]
    assert diagnosis["stage"] == "attn_norm"
    assert "epsilon" in diagnosis["message"]
    machine.set("prefill/attn_norm", {"eps": None})
    assert machine.run(last=2).state == "passed"


def test_an_input_marked_static_is_stale_from_the_second_call_on(machine: Machine) -> None:
    opened(machine).set("buffers/lm_head_gemv", {"static": "0"})
    ran = machine.run(last=3)
    assert (ran.state, ran.phase) == ("failed", 3), ran.summary
    failure = failures_of(ran)[0]
    assert failure["diagnosis"]["code"] == "decode-divergence"
    assert "debug-bo-corruption" in failure["skills"]
    machine.set("buffers/lm_head_gemv", {"static": None})
    assert machine.run(last=3).state == "passed"


def test_a_refused_architecture_and_contradicting_weights_fail_phase_0(machine: Machine) -> None:
    moe = {**CONFIG, "architectures": ["MixtralForCausalLM"], "num_local_experts": 8}
    machine.open(Model("moe", moe, "random:7"), OpenOptions(seq_len=64))
    ran = machine.run()
    assert (ran.state, ran.phase) == ("failed", 0)
    assert "mixture of experts" in ran.summary
    machine.open(Model("tiny", CONFIG, "nowhere"), OpenOptions(seq_len=64))
    ran = machine.run()
    assert (ran.state, ran.phase) == ("failed", 0)
    assert "nowhere" in ran.summary
    opened(machine)
    assert machine.run(last=0).state == "passed", "until something passed, a workspace can be opened anew"
    with pytest.raises(UnusableInput, match="take a new workspace"):
        machine.open(Model("other", {**CONFIG, "hidden_size": 256}, "random:7"), OpenOptions(seq_len=64))


def test_a_length_nothing_can_tile_is_told_in_phase_0(machine: Machine) -> None:
    ran = opened(machine, seq_len=100).run(last=0)
    assert ran.state == "failed"
    assert "multiple of 64" in ran.summary


def test_a_run_goes_on_where_a_killed_one_stopped(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stops:
        left = 9

        def cancelled(self) -> bool:
            self.left -= 1
            return self.left < 0

        def progress(self, done: float, total: float, note: str = "") -> None: ...

    machine.teller = Stops()
    with pytest.raises(RunStopped):
        opened(machine).run(last=1)
    state = machine.state()
    assert state.status(1) == "interrupted"
    done = len(state.attempts)
    assert done > 1
    machine.teller = type(machine)(machine.workspace, machine.world, machine.shipped).teller
    assert machine.run(last=1).state == "passed"
    subjects = [str(e.body["subject"]) for e in machine.state().attempts if e.body["gate"] == "kernel"]
    assert len(subjects) == len(set(subjects)), "no kernel ran twice"


def test_a_crash_inside_a_phase_is_in_the_ledger(
    machine: Machine, world: QuickWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device", "results")

    monkeypatch.setattr(QuickWorld, "stages", full)
    ran = opened(machine).run()
    assert (ran.state, ran.phase) == ("failed", 0)
    assert "No space left" in ran.summary
    assert machine.state().failures()[0].body["diagnosis"]["code"] == "files"


def test_a_tampered_ledger_is_refused(machine: Machine) -> None:
    opened(machine).run(last=0)
    path = machine.workspace.ledger
    path.write_text(path.read_text(encoding="utf-8").replace('"passed":true', '"passed":false'), encoding="utf-8")
    with pytest.raises(LedgerBroken, match="line"):
        machine.run()


def test_an_edited_config_is_refused(machine: Machine) -> None:
    opened(machine).run(last=0)
    path = machine.workspace.config
    path.write_text(path.read_text(encoding="utf-8").replace("10000.0", "20000.0"), encoding="utf-8")
    lines = machine.state().ledger_length
    with pytest.raises(UnusableInput, match="changed after the deployment was opened"):
        machine.run(last=0)
    path.unlink()
    with pytest.raises(UnusableInput, match="put back"):
        machine.run(last=1)
    assert machine.state().ledger_length == lines, "nobody's gate failed by it"


def test_recipe_files_changed_by_hand_become_decisions_and_reopen_phases(machine: Machine) -> None:
    opened(machine).run(last=1)
    folder = machine.workspace.recipes / "eltwise_add"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("mine", encoding="utf-8")
    ran = machine.run(last=1)
    assert ran.passed == (1,)
    assert "eltwise_add/README.md" in ran.warnings[0]
    assert machine.state().decisions[-1].body["key"] == "eltwise_add/README.md"
    (folder / "reference.py").write_text("", encoding="utf-8")
    with pytest.raises(UnusableInput, match="judged by"):
        machine.run()


def test_settings_json_edited_by_hand_is_put_back_and_said(machine: Machine) -> None:
    opened(machine).run(last=0)
    machine.workspace.settings.write_text('{"gemm": {"tile_m": 8}}', encoding="utf-8")
    ran = machine.run(last=0)
    assert "by hand" in ran.warnings[0]
    assert machine.workspace.settings.read_text(encoding="utf-8").strip() == "{}"


def test_a_changed_recipe_is_gated_and_a_broken_one_told(machine: Machine) -> None:
    opened(machine).run(last=1)
    source = machine.read_recipe("eltwise_add", "design.py")
    machine.write_recipe("eltwise_add", "design.py", source + "\nraise RuntimeError('half written')\n", why="try")
    ran = machine.run(last=1)
    assert ran.state == "failed"
    assert "half written" in ran.summary
    machine.write_recipe("eltwise_add", "design.py", None)
    assert machine.run(last=1).state == "passed"
    with pytest.raises(UnusableInput, match="judged by"):
        machine.write_recipe("eltwise_add", "reference.py", "")
    manifest = machine.read_recipe("eltwise_add", "kernel.toml").replace(
        'kernel = "eltwise_add"', 'kernel = "flash_attention"'
    )
    with pytest.raises(UnusableInput, match="contract"):
        machine.write_recipe("eltwise_add", "kernel.toml", manifest)


def test_a_person_is_asked_at_checkpoints(machine: Machine) -> None:
    ran = opened(machine, checkpoints=(0,)).run(last=0)
    assert ran.state == "asked"
    assert ran.question is not None
    assert machine.run(last=0).state == "asked", "nothing goes on unanswered"
    with pytest.raises(UnusableInput, match="go on"):
        machine.answer("perhaps")
    machine.answer("run the phase again")
    machine.ask = lambda _: "go on"
    assert machine.run(last=0).passed == (0,)
    assert not machine.state().open_questions()


def test_notes_stay_and_answer_failures(machine: Machine) -> None:
    opened(machine).run(last=0)
    path = machine.workspace.folder / "progress.md"
    path.write_text(path.read_text(encoding="utf-8") + "My own words.\n", encoding="utf-8")
    machine.note("a <!-- herdbook: end --> in a note breaks nothing", about=1)
    assert "My own words." in path.read_text(encoding="utf-8")
    with pytest.raises(UnusableInput, match="no line 999"):
        machine.note("x", about=999)


def test_only_one_run_is_at_work_in_a_workspace(machine: Machine, tmp_path: Path) -> None:
    opened(machine)
    code = (
        "import sys, time; from pathlib import Path; from npu_tools.deployment.workspace import Workspace\n"
        "with Workspace(Path(sys.argv[1])).working():\n    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen(
        [sys.executable, "-P", "-c", code, str(machine.workspace.folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "held"
        with pytest.raises(WorkspaceBusy, match=str(holder.pid)):
            machine.run()
        with pytest.raises(WorkspaceBusy):
            machine.set("gemm", {"tile_m": 32})
        machine.note("a note can be written meanwhile")
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    started = time.monotonic()
    assert machine.run(last=0).state == "passed", "a killed one leaves no lock"
    assert started


def test_without_a_deployment_moves_are_refused(machine: Machine) -> None:
    with pytest.raises(UnusableInput, match="no deployment"):
        machine.note("x")
    opened(machine)
    with pytest.raises(UnusableInput, match="prefill/attn_norm"):
        machine.set("prefill/nothing", {"eps": 1.0})
    with pytest.raises(UnusableInput, match="no setting"):
        machine.set("gemm", {"tile_q": 1})
    with pytest.raises(UnusableInput, match="needs phase"):
        machine.run(first=3)
