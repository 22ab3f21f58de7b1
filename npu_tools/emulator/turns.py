"""Buffers that one side fills and another drains while both run: locks hand them over, turn by turn.

Cores that share a memory take turns on such a buffer: a turn of the writing herd is over when each of its tiles has
written its part, then each tile of the reading herds reads once. The text has no op for it; the compiler puts a lock
around each use. A turn is one call of a kernel on the buffer or, where a core loads and stores its elements, one
iteration of the outermost loop that does.

An L2 buffer between a herd's DMA and a loop of the segment around it is handed over as well: the memtile's DMA fills or
drains it in one transfer of the loop, each tile in as many as there are for one of those. The loop runs beside the text
of the segment, since a herd that stands behind it may be what it waits for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from xdsl.dialects import func, scf
from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import DmaMemcpyNdOp, HerdOp
from npu_tools.emulator.code import Builder, end_task
from npu_tools.emulator.effects import ALIASES, users
from npu_tools.emulator.elements import memory_space
from npu_tools.emulator.memops import constant_of, memref_type
from npu_tools.emulator.tasks import Task, Wait, detached
from npu_tools.emulator.types import Array, Instruction

if TYPE_CHECKING:
    from npu_tools.emulator.effects import Effects
    from npu_tools.emulator.memory import MemRef

Role = Literal["writes", "reads"]


@dataclass(frozen=True, slots=True)
class Share:
    """What one side does with a buffer, and in how many accesses each of its tiles takes a turn."""

    role: Role
    each: int = 1


Shares = dict[Operation, Share]
"""By herd, or for the segment's side by the DMA."""
_LOOPS = ("scf.for", "affine.for", "scf.while", "scf.parallel")


@dataclass(slots=True, eq=False)
class Turns:
    """How many accesses each tile of each side has finished on one buffer, by side."""

    name: str
    each: dict[Operation, int]
    """Accesses in a turn."""
    writers: dict[Operation, Array]
    readers: dict[Operation, Array]
    waiters: list[Any] = field(default_factory=list[Any])

    def may(self, side: Operation, role: Role, lanes: tuple[slice, slice]) -> bool:
        """Whether these tiles may begin their next turn, or go on with the one they are in."""
        own = (self.writers if role == "writes" else self.readers)[side][lanes] // self.each[side]
        others = self.readers if role == "writes" else self.writers
        done = min(int(counts.min()) // self.each[other] for other, counts in others.items())
        return bool((own <= done).all()) if role == "writes" else bool((own < done).all())


@dataclass(frozen=True, slots=True)
class Turn:
    """One place where a side takes its turn: the buffer as the place names it, in which role, and which side it is."""

    argument: SSAValue
    role: Role
    side: Operation


def shared_buffers(herd: HerdOp, effects: Effects) -> dict[SSAValue, Role]:
    """The herd's arguments that are buffers others read what it writes of, or the reverse."""
    found: dict[SSAValue, Role] = {}
    for operand, argument in zip(herd.kernel_operands, herd.kernel_args, strict=True):
        shares = shares_of(operand, effects)
        if shares is not None and herd in shares:
            found[argument] = shares[herd].role
    return found


def shares_of(operand: SSAValue, effects: Effects) -> Shares | None:
    """What each side does with a buffer; None where it is not handed over."""
    maker = operand.owner
    if not isinstance(maker, Operation) or maker.name != "memref.alloc":
        return None
    space = memory_space(memref_type(operand))
    return _between_herds(operand, effects) if space == 2 else _through_l2(operand, effects) if space == 1 else None


def _between_herds(operand: SSAValue, effects: Effects) -> Shares | None:
    """An L1 buffer between herds of different extents."""
    herds = [use for use in users(operand) if use.name != "memref.dealloc"]
    if len(herds) < 2 or not all(isinstance(use, HerdOp) for use in herds):
        return None
    if len({tuple(constant_of(size) for size in cast("HerdOp", use).sizes) for use in herds}) == 1:
        return None
    roles: Shares = {}
    for use in herds:
        effect = _effect(use, operand, effects)
        if effect == (False, False):
            continue
        if effect == (True, True):
            return None
        roles[use] = Share("writes" if effect[1] else "reads")
    return roles if {share.role for share in roles.values()} == {"writes", "reads"} else None


def _through_l2(operand: SSAValue, effects: Effects) -> Shares | None:
    """An L2 buffer between one DMA of a herd and one of a loop of the segment that the herd is not in."""
    uses = [use for use in users(operand) if use.name != "memref.dealloc"]
    herd = next((use for use in uses if isinstance(use, HerdOp)), None)
    dma = next((use for use in uses if isinstance(use, DmaMemcpyNdOp)), None)
    if len(uses) != 2 or herd is None or dma is None or dma.async_token is not None or herd.async_token is not None:
        return None
    segment = herd.parent_op()
    argument = next(a for o, a in zip(herd.kernel_operands, herd.kernel_args, strict=True) if o is operand)
    accesses = _accesses(argument)
    effect = _effect(herd, operand, effects)
    if segment is None or len(accesses) != 1 or not isinstance(accesses[0], DmaMemcpyNdOp) or effect[0] == effect[1]:
        return None
    if effect[1] == (dma.dst is operand):
        return None
    outer, inner = _trips(dma, segment), _trips(accesses[0], herd)
    if outer is None or inner is None or outer < 2 or inner % outer:
        return None
    herd_role: Role = "writes" if effect[1] else "reads"
    return {herd: Share(herd_role, inner // outer), dma: Share("reads" if effect[1] else "writes")}


def _effect(use: Operation, operand: SSAValue, effects: Effects) -> tuple[bool, bool]:
    return next((effect for value, effect in effects.of_op(use) if value is operand), (False, False))


def _trips(op: Operation, within: Operation) -> int | None:
    """How often an op is executed in `within`: the trips of the counted loops around it; None where that is open."""
    count, current = 1, op.parent_op()
    while current is not None and current is not within:
        if not isinstance(current, scf.ForOp):
            return None
        low, high, step = (constant_of(value) for value in (current.lb, current.ub, current.step))
        if not (isinstance(low, int) and isinstance(high, int) and isinstance(step, int)) or step <= 0:
            return None
        count *= max(0, -(-(high - low) // step))
        current = current.parent_op()
    return count if current is within else None


def places(body: Operation, effects: Effects) -> dict[Operation, list[Turn]]:
    """Where a herd or segment takes turns: around a call or a DMA, or within each iteration of a loop."""
    if not isinstance(body, HerdOp):
        return {
            op: [Turn(value, shares[op].role, op)]
            for op in body.walk()
            if isinstance(op, DmaMemcpyNdOp)
            for value in (op.dst, op.src)
            if (shares := shares_of(value, effects)) is not None and op in shares
            if any(isinstance(side, HerdOp) and side.parent_op() is body for side in shares)
        }
    found: dict[Operation, list[Turn]] = {}
    for argument, role in shared_buffers(body, effects).items():
        for use in _accesses(argument):
            at = use if isinstance(use, func.CallOp | DmaMemcpyNdOp) else _outermost_loop(use, body)
            turns = found.setdefault(at, [])
            if all(turn.argument is not argument for turn in turns):
                turns.append(Turn(argument, role, body))
    return found


def loops_beside(segment: Operation, turns: dict[Operation, list[Turn]]) -> set[Operation]:
    """The segment's loops that run beside its text: those around DMAs that take turns."""
    return {_outermost_loop(op, segment) for op in turns}


def _accesses(value: SSAValue) -> list[Operation]:
    found: list[Operation] = []
    for use in users(value):
        if use.name in ALIASES:
            found.extend(access for result in use.results for access in _accesses(result))
        elif use.name != "memref.dealloc":
            found.append(use)
    return found


def _outermost_loop(op: Operation, body: Operation) -> Operation:
    found, current = op, op.parent_op()
    while current is not None and current is not body:
        if current.name in _LOOPS:
            found = current
        current = current.parent_op()
    return found


def lower_beside(op: Operation, builder: Builder) -> None:
    """A loop of the segment that runs on its own, as a memtile's DMA does; the text goes on at once."""
    machine = builder.machine
    what = machine.describe(op)
    touches = [touch for dma in op.walk() if dma in builder.turns for touch in machine.touches(dma, builder)]
    place = builder.emit(end_task)
    start_pc = builder.here()
    builder.lower(op)
    stop_pc = builder.here()

    def start(frame: Any) -> int:
        task = cast("Task", frame)
        child = detached(task, start_pc, stop_pc, what, op)
        child.instance.touches = tuple((task.regs[slot].buffer, writes) for slot, writes in touches)
        for buffer, _ in child.instance.touches:
            buffer.users += 1
        task.children.append(child.instance)
        machine.scheduler.start(child)
        return stop_pc

    builder.patch(place, start)


def fresh(shares: Shares, name: str) -> Turns:
    """No turn taken yet."""
    counts = {side: np.zeros(_extents(side), np.int64) for side in shares}
    return Turns(
        name,
        {side: share.each for side, share in shares.items()},
        {side: counts[side] for side, share in shares.items() if share.role == "writes"},
        {side: counts[side] for side, share in shares.items() if share.role == "reads"},
    )


def _extents(side: Operation) -> list[int]:
    """The tiles of a herd; the segment is one."""
    return [int(cast("int", constant_of(size))) for size in side.sizes] if isinstance(side, HerdOp) else [1, 1]


def begin(slot: int, turn: Turn) -> Instruction:
    """Wait for the turn."""

    def acquire(frame: Any) -> Any:
        task = cast("Task", frame)
        turns = cast("MemRef", task.regs[slot]).buffer.turns
        if turns is None or turns.may(turn.side, turn.role, _lanes(task)):
            return None
        other = "read what is in it" if turn.role == "writes" else "write it"
        return Wait("token", [turns.waiters], lambda: f"its neighbours to {other} ({turns.name})")

    return acquire


def end(slot: int, turn: Turn, wake: Any) -> Instruction:
    """Hand the buffer over."""

    def release(frame: Any) -> None:
        task = cast("Task", frame)
        turns = cast("MemRef", task.regs[slot]).buffer.turns
        if turns is not None:
            (turns.writers if turn.role == "writes" else turns.readers)[turn.side][_lanes(task)] += 1
            wake(turns.waiters)

    return release


def _lanes(task: Task) -> tuple[slice, slice]:
    at = task.at
    return slice(at.x0, at.x0 + at.nx), slice(at.y0, at.y0 + at.ny)
