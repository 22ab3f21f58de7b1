"""Two tiles that write the same elements of a common buffer while neither waits for the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from npu_tools.emulator.memory import Buffer, MemRef
from npu_tools.emulator.pool import LEVELS
from npu_tools.emulator.tasks import Pending, Task
from npu_tools.emulator.types import Array, Fault


@dataclass(slots=True)
class _Owners:
    """For each element of one buffer which writer came last, and the herds whose writes are in it."""

    of: Array
    herds: dict[int, Pending] = field(default_factory=dict[int, Pending])


@dataclass(slots=True)
class Writers:
    """Who wrote what in buffers that several tiles share. `report` hears of the first overlap in each buffer."""

    report: Callable[[Fault, Task], None]
    _owners: dict[int, tuple[Buffer, _Owners]] = field(default_factory=dict[int, "tuple[Buffer, _Owners]"])
    _bases: dict[int, tuple[Pending, int]] = field(default_factory=dict[int, "tuple[Pending, int]"])
    _next: int = 1

    def wrote(self, task: Task, window: MemRef) -> None:
        """Note that the lanes of `task` have written a window."""
        herd = task.instance
        if herd.left <= 1 and not self._owners:
            return
        owners = self._of(window.buffer)
        for key in [key for key, other in owners.herds.items() if other.done]:
            del owners.herds[key]
        if not owners.herds:
            owners.of[...] = 0
        owners.herds[id(herd)] = herd
        first = self._base(herd)
        at = task.at
        columns = np.arange(at.x0, at.x0 + at.nx, dtype=np.int64).reshape(-1, 1)
        rows = np.arange(at.y0, at.y0 + at.ny, dtype=np.int64).reshape(1, -1)
        lanes = first + columns * 4096 + rows
        lanes = lanes.reshape(*lanes.shape, *(1 for _ in window.shape))
        own = owners.of
        view = np.ndarray(
            (task.gx, task.gy, *window.shape),
            own.dtype,
            own,
            window.offset * own.itemsize,
            tuple(step * own.itemsize for step in (window.dx, window.dy, *window.strides)),
        )
        foreign = (view != 0) & (view != lanes)
        overlaps = bool(foreign.any()) and self._live(view[foreign], owners)
        view[...] = lanes
        if not overlaps and task.gx * task.gy > 1:
            overlaps = bool((view != lanes).any())
        if overlaps and not window.buffer.reported:
            window.buffer.reported = True
            self.report(self._fault(window), task)

    def _live(self, ids: Array, owners: _Owners) -> bool:
        """Whether one of these writers belongs to a herd that is still running."""
        bases = [self._bases[key][1] for key in owners.herds if key in self._bases]
        return any(bool(((ids >= base) & (ids < base + (1 << 24))).any()) for base in bases)

    def _of(self, buffer: Buffer) -> _Owners:
        found = self._owners.get(id(buffer))
        if found is None or found[0] is not buffer:
            found = (buffer, _Owners(np.zeros(buffer.size, np.int64)))
            self._owners[id(buffer)] = found
        return found[1]

    def _base(self, herd: Pending) -> int:
        found = self._bases.get(id(herd))
        if found is None or found[0] is not herd:
            found = (herd, self._next)
            self._next += 1 << 24
            self._bases[id(herd)] = found
        return found[1]

    def forget(self, buffer: Buffer) -> None:
        """The buffer is freed."""
        self._owners.pop(id(buffer), None)

    @staticmethod
    def _fault(window: MemRef) -> Fault:
        buffer = window.buffer
        return Fault(
            "two-writers",
            f"two tiles write the same elements of {buffer.name} ({LEVELS.get(buffer.space, 'memory')}) while neither "
            "waits for the other: what remains there depends on which comes last",
            "make the offsets depend on the tile ids so that the windows are disjoint, or let one tile write",
        )
