"""Iterations of a launch that differ only in which windows of the arguments they move: run once, then done by steps.

The text shows whether they are alike: everything outside launch ids is the same in every iteration, and those only go
into offsets of puts and gets that the launch itself makes on its arguments. What the cores do then never depends on the
iteration, nor on data, since no scalar is loaded. So the first iteration is run as ever, with all its checks, while a
journal is kept of what happens to memory; the others take the same steps on their own windows, in the same order.

Leading launch ids may go to the cores as well, as the block of queries of a causal attention does: then iterations are
alike among those that agree on them, and the first of each such run is the one that is journaled.

What was learnt is kept on the machine: a later run of it, or a later launch by the same op with the same numbers, does all
its iterations by steps.

It is run instead, as by text, when the first iteration left findings, elements in channels or a journal that says
"spoiled", and when a window of a later one reaches beyond its argument or over elements nobody wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.dialects import func
from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import AsyncTokenType, ChannelGetOp, ChannelPutOp, LaunchOp
from npu_tools.emulator.code import Code
from npu_tools.emulator.counters import Counters
from npu_tools.emulator.effects import is_memref
from npu_tools.emulator.elements import memory_space
from npu_tools.emulator.fusion import Fused, fused
from npu_tools.emulator.journal import Call, Copy, Journal, Load, Save, Step
from npu_tools.emulator.memops import memref_type
from npu_tools.emulator.memory import MemRef
from npu_tools.emulator.tasks import Pending
from npu_tools.emulator.types import Array, Fault, Instruction

if TYPE_CHECKING:
    from npu_tools.emulator.channels import Stream
    from npu_tools.emulator.machine import Machine

_SCALAR = ("arith.", "affine.apply", "index.")
_PLAIN = (
    *_SCALAR,
    "affine.if",
    "affine.for",
    "affine.yield",
    "scf.if",
    "scf.for",
    "scf.forall",
    "scf.parallel",
    "scf.in_parallel",
    "scf.yield",
    "scf.reduce",
    "memref.alloc",
    "memref.dealloc",
    "memref.subview",
    "memref.collapse_shape",
    "memref.expand_shape",
    "memref.cast",
    "func.call",
    "air.channel.",
    "air.segment",
    "air.herd",
    "air.launch_terminator",
)

KEPT_BYTES = 128 << 20
"""Bytes moved by the plans of one launch that are kept for later runs; they stay alive with the machine."""

Windows = dict[Operation, MemRef]
"""Where the moving ops of the launch move to and from, in one iteration."""
Action = Callable[[Windows], None]


def alike(launch: LaunchOp, functions: dict[str, func.FuncOp]) -> int | None:
    """How many leading ids iterations must agree on to differ only in the windows of the launch's own puts and gets on its
    arguments; None where they differ otherwise even then."""
    if any(isinstance(value.type, AsyncTokenType) for value in (*launch.operands, *launch.results)):
        return None
    ids = list(launch.ids)
    for agreed in range(max(1, len(ids))):
        differing = set[SSAValue](ids[agreed:])
        for op in launch.body.block.ops:
            if op.name.startswith(_SCALAR) and any(value in differing for value in op.operands):
                differing.update(op.results)
        if all(_is_alike(op, launch, differing, functions) for op in launch.walk() if op is not launch):
            return agreed
    return None


def _is_alike(op: Operation, launch: LaunchOp, differing: set[SSAValue], functions: dict[str, func.FuncOp]) -> bool:
    values = (*op.operands, *op.results)
    if not op.name.startswith(_PLAIN) or any(isinstance(value.type, AsyncTokenType) for value in values):
        return False
    if isinstance(op, func.CallOp) and op.callee.string_value() in functions:
        return False
    outside = any(is_memref(value) and memory_space(memref_type(value)) == 0 for value in values)
    if isinstance(op, ChannelPutOp | ChannelGetOp):
        if any(index in differing for index in op.indices):
            return False
        return not outside or (op.parent_op() is launch and op.memref in launch.kernel_args)
    if outside:
        return False
    return op.name.startswith(_SCALAR) or not any(value in differing for value in op.operands)


@dataclass(slots=True)
class _Frame:
    """What scalar instructions of the launch see."""

    regs: list[Any]
    gx: int = 1
    gy: int = 1


_Counts = tuple[int, int, int, int]
"""Puts, gets and their elements on one stream."""


@dataclass(slots=True)
class _Counted:
    """What is counted at one point of the run."""

    counters: Counters
    executed: int
    findings: int
    joined: int
    streams: list[tuple[Stream, _Counts]]


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The steps of one iteration, and what is counted `before` it and when it is done `once`."""

    actions: list[Action]
    before: _Counted
    once: _Counted
    scalars: list[Any]
    """The numbers the launch was given; no plan is kept of one that was given buffers of L1 or L2."""
    size: int
    """Bytes that are moved and stay alive."""
    path: list[tuple[Instruction, Operation | None]]
    """The launch's own instructions that lead to its windows: scalar ones, and those that move, with their ops."""


@dataclass(slots=True, eq=False)
class Repeated:
    """One launch of a machine whose iterations are alike, where they agree on this many leading ids."""

    machine: Machine
    launch: LaunchOp
    code: Code
    agreed: int = 0
    _run: tuple[int, ...] = ()
    _journal: Journal | None = None
    _plan: _Plan | None = None
    _before: _Counted | None = None
    _scalars: list[Any] = field(default_factory=list[Any])
    _kept: dict[tuple[int, ...], _Plan] = field(default_factory=dict["tuple[int, ...]", "_Plan"])
    """Plans for later, by the leading ids that their iterations agree on."""

    def often(self, extents: list[int]) -> bool:
        """Whether a launch of this size has iterations to repeat."""
        return math.prod(extents[self.agreed :]) > 1

    def begin(self, values: list[Any], point: tuple[int, ...], launched: Pending) -> bool:
        """Keep a journal of the iteration that is about to start; False where something else is under way than what waits
        for the launch to end."""
        machine = self.machine
        self._run = point[: self.agreed]
        scheduler = machine.scheduler
        self._plan = self._journal = None
        waits = [task.wait for task in scheduler.waiting.values()]
        if scheduler.ready or any(wait is None or wait.bodies != (launched,) for wait in waits):
            return False
        if machine.pool.journal is not None:
            return False
        if any(isinstance(value, MemRef) and value.buffer.lanes != (1, 1) for value in values):
            return False
        self._scalars = [value for value in values if not isinstance(value, MemRef)]
        if any(isinstance(value, MemRef) and value.buffer.space != 0 for value in values):
            self._scalars = [math.nan]
        if self.knows(point):
            return True
        self._before = self._count()
        self._journal = machine.pool.journal = Journal()
        return True

    def knows(self, point: tuple[int, ...]) -> bool:
        """Whether this iteration can be done by steps learnt in an earlier one; it is then the next to be done."""
        plan = self._kept.get(point[: self.agreed])
        if plan is None or plan.scalars != self._scalars:
            return False
        self._run, self._plan = point[: self.agreed], plan
        return True

    @property
    def begins_with_steps(self) -> bool:
        """Whether no iteration has to be run before others are done by steps."""
        return self._plan is not None and self._journal is None

    def learnt(self) -> bool:
        """Whether the other iterations can be done by steps, now that the first is through."""
        journal, before = self._journal, self._before
        if journal is None or before is None:
            return self._plan is not None
        machine = self.machine
        self._journal = machine.pool.journal = None
        after = self._count()
        left = any(stream.available for stream, _ in after.streams)
        if journal.spoiled or left or after.findings != before.findings or after.joined != before.joined:
            return False
        actions = [_action(step) for step in fused(journal.steps)]
        plan = self._plan = _Plan(actions, before, after, self._scalars, journal.size, self._scalar_path())
        if plan.size + sum(other.size for other in self._kept.values()) <= KEPT_BYTES:
            self._kept[self._run] = plan
        return True

    def goes_on(self, point: tuple[int, ...]) -> bool:
        """Whether this iteration agrees with the one journaled last."""
        return point[: self.agreed] == self._run

    def repeat(self, points: Iterator[tuple[int, ...]], arguments: list[Any]) -> tuple[int, ...] | None:
        """Do iterations by steps: all of them, or those before the one that is returned, which has to be run."""
        scheduler = self.machine.scheduler
        for point in points:
            if not self.goes_on(point) and not self.knows(point):
                return point
            plan = self._plan
            assert plan is not None, "there is a plan"
            windows = self._windows(plan, [*point, *arguments])
            if windows is None:
                return point
            self._count_again(plan.before, plan.once)
            scheduler.check()
            for action in plan.actions:
                action(windows)
        return None

    def _scalar_path(self) -> list[tuple[Instruction, Operation | None]]:
        """See `_Plan.path`."""
        path: list[tuple[Instruction, Operation | None]] = []
        for instruction, op in zip(self.code.instructions, self.code.ops, strict=True):
            if op is None or op.parent_op() is not self.launch:
                continue
            if isinstance(op, ChannelPutOp | ChannelGetOp):
                if memory_space(memref_type(op.memref)) == 0:
                    path.append((instruction, op))
            elif op.name.startswith(_SCALAR):
                path.append((instruction, None))
        return path

    def _windows(self, plan: _Plan, arguments: list[Any]) -> Windows | None:
        """The windows of one iteration; None where one is not as in the first."""
        regs = self.code.registers()
        for slot, value in zip(self.code.arguments, arguments, strict=True):
            regs[slot] = value
        frame = _Frame(regs)
        located = self.machine.windows
        found: Windows = {}
        try:
            for instruction, op in plan.path:
                if op is None:
                    instruction(frame)
                    continue
                window = found[op] = located[op](regs)
                if window.buffer.missing and isinstance(op, ChannelPutOp) and window.unwritten_part() is not None:
                    return None
        except Fault:
            return None
        return found

    def _count(self) -> _Counted:
        machine = self.machine
        streams = [stream for channel in machine.channels.values() for stream in channel.streams.values()]
        return _Counted(
            machine.counters.copy(),
            machine.scheduler.executed,
            len(machine.findings),
            sum(stream.joined for stream in streams),
            [(stream, (stream.puts, stream.gets, stream.put_elements, stream.get_elements)) for stream in streams],
        )

    def _count_again(self, before: _Counted, once: _Counted) -> None:
        """Count what the first iteration counted once more."""
        counters, old, new = self.machine.counters, before.counters, once.counters
        self.machine.scheduler.executed += once.executed - before.executed
        counters.launch_iterations += 1
        for table, first, then in (
            (counters.dma_bits, old.dma_bits, new.dma_bits),
            (counters.channel_bits, old.channel_bits, new.channel_bits),
        ):
            for key, bits in then.items():
                table[key] = table.get(key, 0) + bits - first.get(key, 0)
        for symbol, count in new.kernels.items():
            had = old.kernels.get(symbol)
            counted = counters.kernels[symbol]
            counted.calls += count.calls - (had.calls if had else 0)
            counted.macs += count.macs - (had.macs if had else 0)
        known = {id(stream): counts for stream, counts in before.streams}
        for stream, counts in once.streams:
            was = known.get(id(stream), (0, 0, 0, 0))
            stream.puts += counts[0] - was[0]
            stream.gets += counts[1] - was[1]
            stream.put_elements += counts[2] - was[2]
            stream.get_elements += counts[3] - was[3]


def _action(step: Step | Fused) -> Action:
    """A step as a function of the iteration's windows."""
    match step:
        case Copy(target, source):
            return _copying(target, source)
        case Load(op, target):
            return lambda windows: np.copyto(target, windows[op].array())
        case Save(op, source):
            return lambda windows: windows[op].write(source)
        case Fused(run):
            return lambda _: run()
        case Call(kernel, numerics, arguments):
            run = kernel.run
            return lambda _: run(numerics, *arguments)


def _copying(target: Array, source: Array) -> Action:
    copy: Callable[..., None] = np.copyto
    return lambda _: copy(target, source)
