"""L1 buffers that one herd writes and its neighbours read: locks hand them over, turn by turn.

Cores that share a memory take turns on such a buffer: a turn of the writing herd is over when each of its tiles has
written its part, then each tile of the reading herds reads once. The text has no op for it; the compiler puts a lock
around each use. A turn is one call of a kernel on the buffer or, where a core loads and stores its elements, one
iteration of the outermost loop that does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import HerdOp
from npu_tools.emulator.effects import ALIASES, users
from npu_tools.emulator.elements import memory_space
from npu_tools.emulator.memops import constant_of, memref_type
from npu_tools.emulator.tasks import Task, Wait
from npu_tools.emulator.types import Array, Instruction

if TYPE_CHECKING:
    from npu_tools.emulator.effects import Effects
    from npu_tools.emulator.memory import MemRef

Role = Literal["writes", "reads"]
_LOOPS = ("scf.for", "affine.for", "scf.while", "scf.parallel")


@dataclass(slots=True, eq=False)
class Turns:
    """How many turns each tile of each herd has finished on one buffer, by herd."""

    name: str
    writers: dict[Operation, Array]
    readers: dict[Operation, Array]
    waiters: list[Any] = field(default_factory=list[Any])

    def may(self, herd: Operation, role: Role, lanes: tuple[slice, slice]) -> bool:
        """Whether these tiles may begin their next turn."""
        own = (self.writers if role == "writes" else self.readers)[herd][lanes]
        others = self.readers if role == "writes" else self.writers
        done = min(int(counts.min()) for counts in others.values())
        return bool((own <= done).all()) if role == "writes" else bool((own < done).all())


@dataclass(frozen=True, slots=True)
class Turn:
    """One place in a herd where it takes its turn: the buffer as the herd names it, and in which role."""

    argument: SSAValue
    role: Role


def shared_buffers(herd: HerdOp, effects: Effects) -> dict[SSAValue, Role]:
    """The herd's arguments that are L1 buffers other herds read what it writes of, or the reverse."""
    found: dict[SSAValue, Role] = {}
    for operand, argument in zip(herd.kernel_operands, herd.kernel_args, strict=True):
        roles = roles_of(operand, effects)
        if roles is not None and herd in roles:
            found[argument] = roles[herd]
    return found


def roles_of(operand: SSAValue, effects: Effects) -> dict[Operation, Role] | None:
    """What each herd does with a buffer; None where it is not handed over between herds of different extents."""
    maker = operand.owner
    if not isinstance(maker, Operation) or maker.name != "memref.alloc" or memory_space(memref_type(operand)) != 2:
        return None
    herds = [use for use in users(operand) if use.name != "memref.dealloc"]
    if len(herds) < 2 or not all(isinstance(use, HerdOp) for use in herds):
        return None
    if len({tuple(constant_of(size) for size in cast("HerdOp", use).sizes) for use in herds}) == 1:
        return None
    roles: dict[Operation, Role] = {}
    for use in herds:
        effect = next((effect for value, effect in effects.of_op(use) if value is operand), (False, False))
        if effect == (False, False):
            continue
        if effect == (True, True):
            return None
        roles[use] = "writes" if effect[1] else "reads"
    return roles if set(roles.values()) == {"writes", "reads"} else None


def places(herd: HerdOp, effects: Effects) -> dict[Operation, list[Turn]]:
    """Where the herd takes turns: around a call, or within each iteration of a loop."""
    found: dict[Operation, list[Turn]] = {}
    for argument, role in shared_buffers(herd, effects).items():
        for use in _accesses(argument):
            at = use if isinstance(use, func.CallOp) else _outermost_loop(use, herd)
            turns = found.setdefault(at, [])
            if all(turn.argument is not argument for turn in turns):
                turns.append(Turn(argument, role))
    return found


def _accesses(value: SSAValue) -> list[Operation]:
    found: list[Operation] = []
    for use in users(value):
        if use.name in ALIASES:
            found.extend(access for result in use.results for access in _accesses(result))
        elif use.name != "memref.dealloc":
            found.append(use)
    return found


def _outermost_loop(op: Operation, herd: HerdOp) -> Operation:
    found, current = op, op.parent_op()
    while current is not None and current is not herd:
        if current.name in _LOOPS:
            found = current
        current = current.parent_op()
    return found


def fresh(roles: dict[Operation, Role], name: str) -> Turns:
    """No turn taken yet."""
    counts = {
        herd: np.zeros([int(cast("int", constant_of(size))) for size in cast("HerdOp", herd).sizes], np.int64)
        for herd in roles
    }
    return Turns(
        name,
        {herd: counts[herd] for herd, role in roles.items() if role == "writes"},
        {herd: counts[herd] for herd, role in roles.items() if role == "reads"},
    )


def begin(slot: int, herd: Operation, role: Role) -> Instruction:
    """Wait for the turn."""

    def acquire(frame: Any) -> Any:
        task = cast("Task", frame)
        turns = cast("MemRef", task.regs[slot]).buffer.turns
        if turns is None or turns.may(herd, role, _lanes(task)):
            return None
        other = "read what is in it" if role == "writes" else "write it"
        return Wait("token", [turns.waiters], lambda: f"its neighbours to {other} ({turns.name})")

    return acquire


def end(slot: int, herd: Operation, role: Role, wake: Any) -> Instruction:
    """Hand the buffer over."""

    def release(frame: Any) -> None:
        task = cast("Task", frame)
        turns = cast("MemRef", task.regs[slot]).buffer.turns
        if turns is not None:
            (turns.writers if role == "writes" else turns.readers)[herd][_lanes(task)] += 1
            wake(turns.waiters)

    return release


def _lanes(task: Task) -> tuple[slice, slice]:
    at = task.at
    return slice(at.x0, at.x0 + at.nx), slice(at.y0, at.y0 + at.ny)
