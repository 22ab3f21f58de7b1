"""One child process: bounded in time, its whole output kept on disk, its whole family ended with it.

    ended = run_child(["aircc", "--version"], folder=folder, timeout_s=10)
    ended.state, ended.code, ended.text

Output goes to files rather than pipes: what a tool printed survives its being killed, and no tool blocks on a full pipe.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from npu_tools.jobs.records import tail

MAX_TEXT_BYTES = 4_000_000
"""Most of a tool's output that is read back, from its end; the file holds all of it."""
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1 in processes that compute at once: BLAS with a thread a core in each takes the others' cores."""
_POLL_S = 0.02
_REAP_S = 5.0

State = Literal["done", "failed", "signal", "timeout", "cancelled", "missing"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. `code` is None where it never started or was stopped by us; `stuck` where it outlived a kill,
    which only a process waiting inside the kernel does."""

    state: State
    code: int | None
    out: str
    err: str
    wall_s: float
    stuck: bool = False

    @property
    def text(self) -> str:
        """Both streams, errors last."""
        return "\n".join(part for part in (self.out, self.err) if part)

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with 0."""
        return self.state == "done"


def run_child(
    command: Sequence[str],
    *,
    timeout_s: float,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    cancelled: Callable[[], bool] | None = None,
    watch: Callable[[int], bool] | None = None,
) -> Ended:
    """Run a command to its end, its time limit or a cancel request; never raises for what the command does.

    `log` keeps both streams under `<log>.out` and `<log>.err`. `watch` is shown the process's number every 20 ms; when it
    says True the child is ended as if cancelled.
    """
    try:
        return _run(command, time.monotonic(), timeout_s, folder, environment, log, _asked(cancelled, watch))
    except OSError as error:  # no room for its output
        return Ended("missing", None, "", f"{command[0]}: {error.strerror or error}", 0.0)


def _asked(cancelled: Callable[[], bool] | None, watch: Callable[[int], bool] | None) -> Callable[[int], bool]:
    """Both ways of ending a child as one."""

    def asked(pid: int) -> bool:
        return (cancelled is not None and cancelled()) or (watch is not None and watch(pid))

    return asked


def _run(
    command: Sequence[str],
    started: float,
    timeout_s: float,
    folder: Path | None,
    environment: Mapping[str, str] | None,
    log: Path | None,
    asked: Callable[[int], bool],
) -> Ended:
    with tempfile.TemporaryDirectory(prefix="herdbook-") as scratch:
        base = log if log is not None else Path(scratch) / "child"
        out, err = base.with_name(base.name + ".out"), base.with_name(base.name + ".err")
        with out.open("wb") as to_out, err.open("wb") as to_err:
            try:
                process = subprocess.Popen(  # noqa: S603  (the tools of this machine, by path)
                    list(command),
                    cwd=folder,
                    env=dict(environment) if environment is not None else None,
                    stdin=subprocess.DEVNULL,
                    stdout=to_out,
                    stderr=to_err,
                    start_new_session=os.name != "nt",
                )
            except OSError as error:
                return Ended("missing", None, "", f"{command[0]}: {error.strerror or error}", 0.0)
            try:
                state, stuck = _await(process, started + timeout_s, asked)
            except BaseException:  # a Ctrl-C does not reach a session of its own
                if kill_family(process.pid):
                    process.wait(timeout=_REAP_S)
                raise
        code = process.poll()
        if state == "done" and code != 0:
            state = "signal" if code is not None and code < 0 else "failed"
        return Ended(
            state, code, tail(out, MAX_TEXT_BYTES), tail(err, MAX_TEXT_BYTES), time.monotonic() - started, stuck
        )


def blas_threads(count: int) -> str:
    """Python statements that give BLAS so many threads, for the beginning of a child's code, where os is imported."""
    return "".join(f"os.environ['{name}']='{count}';" for name in ONE_THREAD)


def kill_family(pid: int) -> bool:
    """Kill a process and all it started; whether every one of them is gone within a few seconds."""
    try:
        parent = psutil.Process(pid)
        family = [*parent.children(recursive=True), parent]
    except psutil.Error:
        return True
    for each in family:
        try:
            each.kill()
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(family, timeout=_REAP_S)
    return not alive


def _await(process: subprocess.Popen[bytes], until: float, asked: Callable[[int], bool]) -> tuple[State, bool]:
    while process.poll() is None:
        stopped: State | None = None
        if time.monotonic() >= until:
            stopped = "timeout"
        elif asked(process.pid):
            stopped = "cancelled"
        if stopped is not None:
            gone = kill_family(process.pid)
            if gone:
                process.wait(timeout=_REAP_S)
            return stopped, not gone
        time.sleep(_POLL_S)
    return "done", False
