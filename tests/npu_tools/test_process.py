from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from npu_tools.process import run_child

GRANDCHILD = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(60)
"""


def _family(tmp_path: Path) -> tuple[list[str], Path]:
    told = tmp_path / "pid"
    return [sys.executable, "-c", GRANDCHILD, str(told)], told


def _gone(told: Path) -> bool:
    pid = int(told.read_text())
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_child_that_is_ended_takes_what_it_started_with_it(tmp_path: Path) -> None:
    command, told = _family(tmp_path)
    ended = run_child(command, timeout_s=60, cancelled=lambda: told.is_file() and told.read_text() != "")
    assert ended.state == "cancelled"
    assert _gone(told)


def test_an_interrupted_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    command, told = _family(tmp_path)

    def interrupted() -> bool:
        if told.is_file() and told.read_text() != "":
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        run_child(command, timeout_s=60, cancelled=interrupted)
    assert _gone(told)


def test_a_child_is_watched_by_its_number(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(pid: int) -> bool:
        seen.append(pid)
        return True

    ended = run_child([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=60, watch=watch)
    assert (ended.state, len(seen)) == ("cancelled", 1)
    assert not psutil.pid_exists(seen[0])


def test_no_room_for_the_output_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    ended = run_child(["true"], timeout_s=5)
    assert (ended.state, ended.err) == ("missing", "true: No space left on device")
