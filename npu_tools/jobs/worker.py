"""The process of one job: `python -m npu_tools.jobs.worker FOLDER`.

It takes a slot (so many CPU jobs at once, one NPU job), does the work, writes the result. Whatever goes wrong ends
as a state on disk with its reason.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from npu_tools.errors import NpuToolsError, RunStopped
from npu_tools.jobs.records import Progress, Stored, read_json, write_json

CPU_SLOTS = max(1, (os.cpu_count() or 2) - 1)
"""CPU jobs that run at once; the others stay queued."""
LONG = ("deploy",)
"""Kinds that take minutes to hours: they have slots of their own, so that a check need not wait for them."""
Work = Callable[[str, dict[str, Any], Any], dict[str, Any]]
_PROGRESS_EVERY_S = 0.2


class Place:
    """The job's folder, as the work sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stored = Stored.model_validate(read_json(folder / "state.json") or {"state": "queued", "queued_at": 0})
        self._told = 0.0

    def cancelled(self) -> bool:
        """Whether somebody asked the job to stop."""
        return (self.folder / "cancel").exists()

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Say how far the work is; cheap to call often."""
        now = time.monotonic()
        if now - self._told >= _PROGRESS_EVERY_S or done >= total > 0:
            self._told = now
            write_json(self.folder / "progress.json", Progress(done=done, total=total, note=note).model_dump())

    def mark(self, **changes: Any) -> None:
        """Write the state with these changes."""
        self._stored = self._stored.model_copy(update=changes)
        write_json(self.folder / "state.json", self._stored.model_dump())


def main(folder: Path, work: Work | None = None) -> int:
    """Do the job of `folder`, by `work` where it knows more kinds than `perform`; 0 when it ended with a result."""
    place = Place(folder)
    me = psutil.Process()
    place.mark(pid=me.pid, started_as=me.create_time())
    content = read_json(folder / "request.json")
    if content is None:
        place.mark(state="failed", ended_at=time.time(), reason="its request cannot be read")
        return 1
    try:
        lock = _slot(place, content["kind"], content["request"].get("backend") == "xrt")
    except RunStopped:
        place.mark(state="cancelled", ended_at=time.time(), reason="stopped by a cancel request while queued")
        return 1
    with lock:
        place.mark(state="running", started_at=time.time())
        state, reason = "done", ""
        try:
            from npu_tools.jobs.work import perform

            write_json(folder / "result.json", (work or perform)(content["kind"], content["request"], place))
        except RunStopped as stop:
            state, reason = ("cancelled" if place.cancelled() else "failed"), str(stop)
        except NpuToolsError as error:
            state, reason = "failed", str(error)
        except MemoryError:
            state, reason = "failed", "out of memory; lower the shapes or the memory limit"
        except Exception as error:  # the last line before the process ends: everything must be told
            traceback.print_exc()
            state, reason = "failed", f"{type(error).__name__}: {error}"
        place.mark(state=state, ended_at=time.time(), reason=reason)
    return 0 if state == "done" else 1


def _slot(place: Place, kind: str, npu: bool) -> FileLock:
    """A held lock of a free slot; waits for one, and gives up on a cancel request."""
    slots = place.folder.parent / "slots"
    slots.mkdir(exist_ok=True)
    which = "long" if kind in LONG else "cpu"
    names = ["npu"] if npu else [f"{which}-{n}" for n in range(CPU_SLOTS)]
    while True:
        for name in names:
            lock = FileLock(slots / f"{name}.lock")
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            return lock
        if place.cancelled():
            raise RunStopped("stopped while queued")
        time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
