"""A workspace before its first line, and who is at work in it."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from npu_tools.deployment.machine import Machine, Model
from npu_tools.deployment.workspace import Workspace, write_json
from npu_tools.deployment.world import RealWorld
from npu_tools.errors import NotWritten, UnusableInput
from tests.npu_tools.deployment.quick_world import CONFIG, KERNELS, QuickWorld, opened


def deploy(folder: Path) -> None:
    Machine(Workspace(folder), RealWorld(KERNELS), KERNELS).open(Model("tiny", CONFIG, "random:7"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "README.md"])
def test_what_lies_in_a_folder_is_not_written_over(tmp_path: Path, name: str) -> None:
    """`herdbook deploy .` in the folder of a model must not replace the model's config by that of two layers of it."""
    (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(UnusableInput, match="no fresh workspace"):
        deploy(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text(encoding="utf-8") == "{}"


def test_a_deployment_killed_before_its_first_line_can_be_opened(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", CONFIG)
    deploy(tmp_path)
    assert (tmp_path / "ledger.jsonl").is_file()


def test_a_full_disk_is_no_kernels_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = opened(Machine(Workspace(tmp_path / "w"), QuickWorld(), KERNELS))
    machine.run(last=0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(np, "save", full)
        with pytest.raises(NotWritten, match="make room"):
            machine.run(last=1)
    state = machine.state()
    assert state.status(1) == "interrupted"
    assert state.failures() == []
    assert machine.run(last=1).state == "passed"


def test_who_is_at_work_is_told_while_he_is(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    assert workspace.at_work() is None
    with workspace.working():
        assert "process" in (Workspace(tmp_path).at_work() or "")
    assert workspace.at_work() is None
