"""Long work as jobs on disk, each in its own process: any process polls, waits for or cancels any job.

>>> jobs = Jobs(folder)
>>> view = jobs.wait(jobs.start("run", {"program": "a.mlir"}), seconds=20)
>>> view.state, view.result

A job outlives whoever started it. A process that died without a result is told as failed, never as running.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from npu_tools.errors import UnusableInput
from npu_tools.jobs.records import ENDED, JobView, Progress, Stored, read_json, tail, write_json

MAX_WAIT_S = 30.0
"""Longest one call waits: clients give a tool call up after 60 s."""
WORKER = "npu_tools.jobs.worker"
_POLL_S = 0.05
_START_GRACE_S = 60.0
"""A worker that has not written its process id by then never started (imports take about a second)."""
_TAIL_BYTES = 4_000
_ID = re.compile(r"[a-z]+-[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")


class Jobs:
    """The jobs of one folder. Any number of these may exist, in any number of processes."""

    def __init__(self, folder: Path, worker: str = WORKER) -> None:
        """`worker` is the module a job's process runs: one that knows more kinds of work names itself."""
        self.folder, self.worker = folder, worker

    def start(self, kind: str, request: dict[str, Any]) -> str:
        """Start a job in a process of its own and return its id at once.

        Raises:
            UnusableInput: the folder cannot be written.
        """
        now = time.time()
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
        job = f"{re.sub('[^a-z]', '', kind.lower()) or 'job'}-{stamp}-{secrets.token_hex(3)}"
        place = self.folder / job
        try:
            place.mkdir(parents=True)
            write_json(place / "request.json", {"kind": kind, "request": request})
            write_json(place / "state.json", Stored(state="queued", queued_at=now).model_dump())
            with (place / "output.log").open("wb") as output:
                _spawn(place, output, self.worker)
        except OSError as error:
            raise UnusableInput(f"cannot start a job in {self.folder}: {error.strerror or error}") from None
        return job

    def view(self, job: str) -> JobView:
        """How the job stands.

        Raises:
            UnusableInput: no such job; the text names the latest ones.
        """
        place = self._place(job)
        kind = str((read_json(place / "request.json") or {}).get("kind", "job"))
        stored = self._stored(place)
        result = read_json(place / "result.json") if stored.state in ENDED else None
        ended = stored.ended_at or time.time()
        return JobView(
            id=job,
            kind=kind,
            state=stored.state,
            reason=stored.reason,
            progress=Progress.model_validate(read_json(place / "progress.json") or {}),
            wall_s=round(ended - stored.started_at, 3) if stored.started_at else 0.0,
            result=result,
            output_tail=tail(place / "output.log", _TAIL_BYTES),
            folder=str(place),
        )

    def wait(self, job: str, seconds: float = MAX_WAIT_S) -> JobView:
        """The job once it ended, or as it stands after `seconds` (at most 30)."""
        until = time.monotonic() + min(max(seconds, 0.0), MAX_WAIT_S)
        view = self.view(job)
        while view.state not in ENDED and time.monotonic() < until:
            time.sleep(_POLL_S)
            view = self.view(job)
        return view

    def cancel(self, job: str, patience_s: float = 5.0) -> JobView:
        """Ask the job to stop; kill its process when it does not within `patience_s`."""
        place = self._place(job)
        if self._stored(place).state in ENDED:
            return self.view(job)
        (place / "cancel").touch()
        view = self.wait(job, patience_s)
        if view.state in ENDED:
            return view
        stored = self._stored(place)
        process = _process(stored)
        if process is not None:
            for each in [*process.children(recursive=True), process]:
                _kill(each)
        return self._end(place, stored, "cancelled", "stopped by a cancel request")

    def listed(self, limit: int = 50) -> list[JobView]:
        """The latest jobs, newest first."""
        return [self.view(name) for name in self._names()[:limit]]

    def prune(self, older_than_s: float) -> int:
        """Remove ended jobs that ended longer ago than this; returns how many."""
        removed = 0
        for name in self._names():
            stored = self._stored(self.folder / name)
            if stored.state in ENDED and time.time() - (stored.ended_at or stored.queued_at) > older_than_s:
                shutil.rmtree(self.folder / name, ignore_errors=True)
                removed += 1
        return removed

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        found = [p.name for p in self.folder.iterdir() if _ID.fullmatch(p.name) and (p / "state.json").exists()]
        return sorted(found, key=lambda name: name.split("-", 1)[1], reverse=True)

    def _place(self, job: str) -> Path:
        place = self.folder / job
        if not _ID.fullmatch(job) or not (place / "state.json").exists():
            latest = ", ".join(self._names()[:5]) or "none yet"
            raise UnusableInput(f"no job {job[:80]!r}; the latest are: {latest}")
        return place

    def _stored(self, place: Path) -> Stored:
        content = read_json(place / "state.json")
        if content is None:
            return Stored(state="failed", queued_at=0, reason="its state file cannot be read")
        stored = Stored.model_validate(content)
        if stored.state in ENDED:
            return stored
        if stored.pid is None and time.time() - stored.queued_at < _START_GRACE_S:
            return stored
        if _process(stored) is not None:
            return stored
        latest = Stored.model_validate(read_json(place / "state.json") or content)
        if latest.state in ENDED:  # it ended between the two looks
            return latest
        asked = (place / "cancel").exists()
        state = "cancelled" if asked else "failed"
        reason = "stopped by a cancel request" if asked else "its process ended without a result; see output_tail"
        self._end(place, stored, state, reason)
        return Stored.model_validate(read_json(place / "state.json") or content)

    def _end(self, place: Path, stored: Stored, state: Any, reason: str) -> JobView:
        ended = stored.model_copy(update={"state": state, "reason": reason, "ended_at": time.time()})
        try:
            write_json(place / "state.json", ended.model_dump())
        except OSError:
            pass  # a read-only folder: the view below still says what is known
        return self.view(place.name)


def _spawn(place: Path, output: Any, worker: str) -> None:
    command = [sys.executable, "-P", "-m", worker, str(place)]
    if os.name == "nt":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS  # pyright: ignore
        subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, creationflags=flags, cwd=place
        )
        return
    # A child of a child: the job belongs to no one who could end with it, and nobody has to reap it.
    launcher = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True)"
    subprocess.run(  # noqa: S603
        [sys.executable, "-S", "-P", "-c", launcher, *command],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        check=True,
        cwd=place,
    )


def _process(stored: Stored) -> psutil.Process | None:
    if stored.pid is None:
        return None
    try:
        process = psutil.Process(stored.pid)
        same = stored.started_as is None or abs(process.create_time() - stored.started_as) < 1
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
