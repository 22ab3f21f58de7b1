"""Tasks: groups of lanes in the midst of a body, what they wait for, how they part and meet again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from xdsl.ir import Operation

from npu_tools.emulator.channels import Stream
from npu_tools.emulator.code import Code, Signal, end_task
from npu_tools.emulator.lanes import Lanes, cut, join
from npu_tools.emulator.memory import Buffer
from npu_tools.emulator.types import Array

WaitKind = Literal["get", "put", "body", "token", "hazard", "children"]


class Wait(Signal):
    """Why a task cannot go on: an instruction returns it and is executed again when something has changed.

    `queues` are the lists that whoever changes it looks through. `ready` marks the lanes [gx, gy] that could go on
    alone. `soft` waits only follow program order, which is not binding where data movement runs beside the text.
    """

    __slots__ = ("bodies", "detail", "kind", "needed", "queues", "ready", "soft", "streams")

    def __init__(
        self,
        kind: WaitKind,
        queues: Sequence[list[Any]],
        detail: Callable[[], str],
        *,
        ready: Array | None = None,
        soft: bool = False,
        bodies: tuple[Pending, ...] = (),
        streams: Sequence[Stream] = (),
        needed: int = 0,
    ) -> None:
        self.kind: WaitKind = kind
        self.queues = queues
        self.detail = detail
        self.ready = ready
        self.soft = soft
        self.bodies = bodies
        self.streams = streams
        self.needed = needed


@dataclass(slots=True, eq=False)
class Pending:
    """Something under way: a body's instance or a detached operation. Tokens are tuples of these."""

    what: str
    op: Operation | None
    done: bool = False
    waiters: list[Any] = field(default_factory=list[Any])
    touches: tuple[tuple[Buffer, bool], ...] = ()
    left: int = 1
    """Lanes that have not reached the end."""
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    to_free: list[Buffer] = field(default_factory=list[Buffer])
    on_done: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])
    clock: float = 0.0


Token = tuple[Pending, ...]


@dataclass(slots=True, eq=False)
class Fork:
    """Lanes of one task that go different ways and meet at `meet_at`, the end of `region`."""

    parent: Task
    region: int
    meet_at: int
    running: list[Task] = field(default_factory=list["Task"])
    arrived: list[Task] = field(default_factory=list["Task"])
    idle: list[Lanes] = field(default_factory=list[Lanes])
    """Lanes that had nothing to do and are at `meet_at` already, without a task of their own."""


@dataclass(slots=True, eq=False)
class Task:
    """A group of `gx` by `gy` lanes executing `code`; also the `Frame` of its instructions."""

    code: Code
    regs: list[Any]
    gx: int
    gy: int
    instance: Pending
    depth: int = 0
    segment: tuple[int, ...] = ()
    """Which instance of an unrolled segment it belongs to."""
    soft: bool = False
    at: Lanes = field(default_factory=lambda: Lanes(0, 1, 0, 1))
    """Where the lanes lie in the herd."""
    within: Lanes = field(default_factory=lambda: Lanes(0, 1, 0, 1))
    """Where the lanes lie in the task they parted from."""
    pc: int = 0
    join: int = -1
    fork: Fork | None = None
    wait: Wait | None = None
    pending: list[Pending] = field(default_factory=list[Pending])
    children: list[Pending] = field(default_factory=list[Pending])
    relay: bool = False
    """Whether it goes round for ever and ends with the run."""
    beside: bool = False
    """Whether it only executes an operation its body has gone past; then it just waits."""
    unsafe_pc: int = -1
    """Where a hazard is ignored once, since nothing else can go on."""
    clock: float = 0.0
    order: int = 0
    place: str = ""

    @property
    def label(self) -> str:
        """The body and the lanes, for messages."""
        if self.soft:
            return self.code.name
        at = self.at
        if at.count == 1:
            return f"{self.code.name} tile ({at.x0}, {at.y0})"
        return f"{self.code.name} tiles ({at.x0}..{at.x0 + at.nx - 1}, {at.y0}..{at.y0 + at.ny - 1})"


def part(task: Task, lanes: Lanes, region: int) -> Task:
    """A task for some of the lanes, with the registers that `region` uses."""
    regs: list[Any] = [None] * len(task.regs)
    child = Task(
        task.code,
        regs,
        lanes.nx,
        lanes.ny,
        task.instance,
        task.depth,
        task.segment,
        soft=task.soft,
        at=Lanes(task.at.x0 + lanes.x0, lanes.nx, task.at.y0 + lanes.y0, lanes.ny),
        within=lanes,
        pc=task.pc,
        clock=task.clock,
        order=task.order,
    )
    fill(child, task, lanes, region)
    return child


def fill(child: Task, parent: Task, lanes: Lanes, region: int) -> None:
    """Give `child` those registers of `region` it has no value of its own for."""
    own, source = child.regs, parent.regs
    for slot in parent.code.regions[region].slots:
        if own[slot] is None:
            value = source[slot]
            if value is not None:
                own[slot] = value if value.__class__ is int else cut(value, lanes)


def meet(fork: Fork) -> None:
    """All lanes are there: put the values they carry out of the region together in the parent's registers."""
    parent = fork.parent
    for slot in parent.code.regions[fork.region].merged:
        parent.regs[slot] = join([(child.within, child.regs[slot]) for child in fork.arrived], parent.gx, parent.gy)
    parent.clock = max([parent.clock, *(child.clock for child in fork.arrived)])
    parent.pc = fork.meet_at


def widen(fork: Fork) -> list[Task]:
    """Let the lanes that have arrived go on without the others, to meet at the end of the next outer region instead.

    Returns the tasks that can go on; empty where there is no outer region.
    """
    parent = fork.parent
    above = parent.fork
    if above is not None and above.meet_at == fork.meet_at:
        above.running.remove(parent)
        for child in (*fork.running, *fork.arrived):
            child.within = _inside(child.within, parent.within)
            child.fork = above
        above.running.extend(fork.running)
        above.arrived.extend(fork.arrived)
        above.idle.extend(_inside(lanes, parent.within) for lanes in fork.idle)
        return widen(above)
    outer = parent.code.regions[fork.region].parent
    if outer < 0:
        return []
    meet_at = parent.code.regions[outer].end
    released = list(fork.arrived)
    for lanes in fork.idle:
        child = part(parent, lanes, outer)
        child.pc = fork.meet_at
        released.append(child)
    members = [*fork.running, *released]
    for child in members:
        fill(child, parent, child.within, outer)
    if above is not None and above.meet_at == meet_at:
        above.running.remove(parent)
        for child in members:
            child.within = _inside(child.within, parent.within)
        above.running.extend(members)
        target = above
    else:
        fork.region, fork.meet_at = outer, meet_at
        fork.running, fork.arrived, fork.idle = members, [], []
        target = fork
    for child in members:
        child.fork, child.join = target, target.meet_at
    return released


def _inside(lanes: Lanes, outer: Lanes) -> Lanes:
    """Lanes counted from where `outer` counts from."""
    return Lanes(outer.x0 + lanes.x0, lanes.nx, outer.y0 + lanes.y0, lanes.ny)


def detached(task: Task, start: int, stop: int, what: str, op: Operation | None) -> Task:
    """A task that executes a stretch of `task`'s code on its own, with the registers as they are now."""
    pending = Pending(what, op)
    return Task(
        task.code.until(stop, end_task),
        list(task.regs),
        task.gx,
        task.gy,
        pending,
        task.depth + 1,
        task.segment,
        soft=True,
        at=task.at,
        pc=start,
        beside=True,
        clock=task.clock,
    )
