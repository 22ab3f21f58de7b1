"""The lock that keeps kernels of different programs off the NPU at the same time: upstream's own files.

mlir-air's runners lock `<temporary folder>/npu.lock` (python/air/backend/xrt_runner.py), its LLM runtime `/tmp/npu.lock`
whatever TMPDIR says (programming_examples/llms/shared/infra/cache.py). Both are taken, so that neither runs beside us.
`/tmp/mlir-air-npu.lock` is another thing: a shell's lock around a whole job. Taking it here would wait for ourselves
wherever somebody started us under it.

The child that talks to the device takes them, so that they are free as soon as it is gone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from npu_tools.backends.xrt.toolchain import Toolchain

NAME = "npu.lock"
SHELL_LOCK = "mlir-air-npu.lock"
WAIT_S = 120.0
"""How long a run waits for the NPU. Upstream's shells wait 1800 s for a whole job; a kernel takes under two seconds."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock file."""

    pid: int
    name: str


@dataclass(frozen=True, slots=True)
class LockState:
    """One lock file: free, held (by whom, where that can be seen), or not ours to open."""

    path: str
    state: str
    holders: tuple[Holder, ...] = ()


def lock_paths(toolchain: Toolchain) -> list[str]:
    """The files upstream's tools lock, in the one order in which all are taken."""
    places = [Path(toolchain.temp) / NAME]
    if os.name != "nt" and toolchain.root == "/":
        places.append(Path("/tmp") / NAME)  # noqa: S108  (upstream's path)
    unique: list[str] = []
    for place in places:
        if str(place.resolve()) not in unique:
            unique.append(str(place.resolve()))
    return sorted(unique)


def look(toolchain: Toolchain) -> list[LockState]:
    """How the lock files stand. Looks; makes no file, and holds nothing when it returns."""
    found: list[LockState] = []
    for path in (*lock_paths(toolchain), str(Path(toolchain.temp) / SHELL_LOCK)):
        place = Path(path)
        if not os.path.exists(place):
            found.append(LockState(path, "free"))
            continue
        if not os.access(place, os.W_OK):
            found.append(LockState(path, "not writable", holders(place, toolchain)))
            continue
        lock = FileLock(path)
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            found.append(LockState(path, "held", holders(place, toolchain)))
        else:
            lock.release()
            found.append(LockState(path, "free"))
    return found


def holders(place: Path, toolchain: Toolchain) -> tuple[Holder, ...]:
    """Who holds the file: from the kernel's list of locks where there is one, else who has it open."""
    pids = _listed(place, toolchain.at("proc", "locks"))
    if pids is None:
        pids = _open(place)
    return tuple(Holder(pid, _name(pid)) for pid in sorted(set(pids)))


def _listed(place: Path, listing: Path) -> list[int] | None:
    """Process ids in /proc/locks: `1: FLOCK ADVISORY WRITE 1234 08:01:5678 0 EOF`."""
    try:
        inode = place.stat().st_ino
        lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    found: list[int] = []
    for line in lines:
        words = line.split()
        if "->" in words or len(words) < 6:
            continue
        if words[5].rpartition(":")[2] == str(inode) and words[4].isdecimal():
            found.append(int(words[4]))
    return found


def _open(place: Path) -> list[int]:
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            if any(Path(file.path) == place for file in process.open_files()):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "?"
