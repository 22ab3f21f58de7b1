"""A record of a run for pictures: what each tile and channel did when, in modelled time, and what memory it used.

Times are modelled from bytes and multiply-accumulates with round rates, enough for the order and the shape of a
timeline, and are no prediction: that is the cost model's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from npu_tools.emulator.memory import Buffer
from npu_tools.emulator.pool import LEVELS
from npu_tools.emulator.tasks import Task

BYTES_PER_US = 16_000.0
"""One stream moves 4 bytes a cycle at about 1 GHz; four beside each other is what a tile sees at best."""
MACS_PER_US = 128_000.0
"""A core makes in the order of 128 bf16 multiply-accumulates a cycle."""
CALL_US = 0.3


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took from `start` to `end` (modelled µs).

    `who` is a body with its tiles, `kind` one of dma, put, get, kernel; `what` the levels, channel or symbol.
    """

    who: str
    x: int
    y: int
    nx: int
    ny: int
    kind: str
    what: str
    start: float
    end: float
    amount: int


@dataclass(frozen=True, slots=True)
class Use:
    """A buffer of a body came to life at one level (bytes > 0) or ended (bytes < 0), in each tile of a rectangle.

    `shape` is the buffer's: one made outside a herd with the herd's extents in front is divided among its tiles.
    """

    who: str
    level: str
    x: int
    y: int
    nx: int
    ny: int
    at: float
    change_bytes: int
    shape: tuple[int, ...]
    in_herd: bool
    instance: int
    """Which execution of the body: instances of a segment, and different herds, have cores of their own."""


@dataclass(slots=True)
class Trace:
    """Events and memory use in the order they happened; `truncated` counts those beyond the limit."""

    events: list[Event] = field(default_factory=list[Event])
    uses: list[Use] = field(default_factory=list[Use])
    truncated: int = 0


@dataclass(slots=True)
class Recorder:
    """Fills a trace."""

    trace: Trace = field(default_factory=Trace)
    limit: int = 200_000
    _instances: dict[int, tuple[int, object]] = field(default_factory=dict[int, "tuple[int, object]"])
    """By identity; the object is kept, so that no other takes its identity."""

    def _event(self, task: Task, kind: str, what: str, duration: float, amount: int) -> None:
        start = task.clock
        task.clock = start + duration
        if len(self.trace.events) >= self.limit:
            self.trace.truncated += 1
            return
        at = task.at
        self.trace.events.append(
            Event(task.code.name, at.x0, at.y0, at.nx, at.ny, kind, what, start, task.clock, amount)
        )

    def moved(self, task: Task, levels: tuple[str, str], count: int) -> None:
        """A DMA of `count` bytes over all lanes."""
        each = count / (task.gx * task.gy)
        self._event(task, "dma", f"{levels[0]}->{levels[1]}", each / BYTES_PER_US, count)

    def sent(self, task: Task, channel: str, count: int) -> None:
        """A put of `count` bytes over all lanes."""
        self._event(task, "put", channel, count / (task.gx * task.gy) / BYTES_PER_US, count)

    def received(self, task: Task, channel: str, count: int) -> None:
        """A get of `count` bytes over all lanes."""
        self._event(task, "get", channel, count / (task.gx * task.gy) / BYTES_PER_US, count)

    def called(self, task: Task, symbol: str, macs: int) -> None:
        """A kernel call."""
        self._event(task, "kernel", symbol, CALL_US + macs / MACS_PER_US, macs)

    def allocated(self, task: Task, buffer: Buffer) -> None:
        """A buffer came to life."""
        self._use(task, buffer, buffer.device_bytes)

    def freed(self, task: Task, buffer: Buffer) -> None:
        """A buffer's life ended."""
        self._use(task, buffer, -buffer.device_bytes)

    def _use(self, task: Task, buffer: Buffer, change_bytes: int) -> None:
        if len(self.trace.uses) >= self.limit:
            self.trace.truncated += 1
            return
        at = task.at
        self.trace.uses.append(
            Use(
                who=task.code.name,
                level=LEVELS.get(buffer.space, "L3"),
                x=at.x0,
                y=at.y0,
                nx=at.nx,
                ny=at.ny,
                at=task.clock,
                change_bytes=change_bytes,
                shape=tuple(buffer.shape),
                in_herd=task.code.name.startswith("herd"),
                instance=self._instances.setdefault(id(task.instance), (len(self._instances), task.instance))[0],
            )
        )
