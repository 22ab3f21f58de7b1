"""The NPU for one at a time: upstream's locks, a hang, and what comes after it."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from npu_tools.backends.xrt import Toolchain, XrtBackend
from npu_tools.backends.xrt.lock import lock_paths
from tests.npu_tools.xrt_support import inputs, loaded, opened
from tests.stand_in.machine import QUICK, StandIn


def test_after_a_hang_the_process_is_another_and_the_next_run_succeeds(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path, {"pyxrt": {"wait": "hang"}})
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        hung = bound.run({1: vector})
        assert hung.failure is not None
        assert hung.failure.code == "run-hung"
        assert "60 s" in (hung.failure.remedy or "")
        machine.change(pyxrt={})
        run = bound.run({1: vector})
        assert run.ok, run.findings


def test_a_killed_process_leaves_the_lock_free(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path, {"pyxrt": {"wait": "hang"}})
    with backend:
        weight, vector = inputs()
        loaded(backend).bind({0: weight}).run({1: vector})
        with FileLock(lock_paths(machine.toolchain)[0], timeout=0):
            pass


def test_a_run_waits_for_the_lock_of_upstreams_tools_and_says_who_holds_it(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        with FileLock(Path(machine.toolchain.temp) / "npu.lock"):
            busy = bound.run({1: vector})
        assert busy.failure is not None
        assert busy.failure.code == "npu-busy"
        assert "npu.lock" in busy.failure.message
        assert bound.run({1: vector}).ok


def test_a_run_goes_on_when_the_lock_comes_free_in_time(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    patience = replace(QUICK, lock_s=20)
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=patience) as backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        lock = FileLock(Path(machine.toolchain.temp) / "npu.lock", thread_local=False)
        lock.acquire()
        timer = threading.Timer(0.3, lock.release)
        timer.start()
        run = bound.run({1: vector})
        timer.join()
        assert run.ok, run.findings


def test_the_lock_is_held_for_a_run_and_not_between_runs(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        assert loaded(backend).bind({0: weight}).run({1: vector}).ok
        with FileLock(lock_paths(machine.toolchain)[0], timeout=0):
            pass


def test_both_of_upstreams_lock_files_are_taken_and_the_shells_never() -> None:
    """KernelCache locks /tmp/npu.lock whatever TMPDIR is; a flock around make would wait for itself (mlir-air cache.py)."""
    paths = lock_paths(Toolchain(temp="/var/tmp"))
    assert [Path(path).name for path in paths] == ["npu.lock", "npu.lock"]
    assert len(lock_paths(Toolchain(temp="/tmp"))) == 1
