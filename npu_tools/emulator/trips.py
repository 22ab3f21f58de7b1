"""Trips of a core's loop executed side by side, as lanes, where the text shows that none can notice another.

A core works through its rows or pieces one after the other: DMA in, compute, DMA out. A herd one tile high leaves the
second lane axis free, so the trips of such a loop take it. That needs, of the body: DMA, vector code, scalar code, loops
of strips (strips.py) and calls of element-wise kernels, no channels, tokens or branches; every buffer of the core that
is written is written whole before anything reads it; and memrefs from outside the herd are read only, or written only,
by DMAs whose windows move with the trip by at least their own extent.

The first trip runs alone, so that faults are told as ever. The buffers hold what the last trip left, where somebody looks
at them behind the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from xdsl.dialects import func, scf
from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from npu_tools.air.dialect import AsyncTokenType, DmaMemcpyNdOp, HerdOp
from npu_tools.air.windows import Window
from npu_tools.emulator import strips
from npu_tools.emulator.affine import linear_form
from npu_tools.emulator.code import ARRIVED, Builder, Code, Region, end_task
from npu_tools.emulator.effects import ALIASES, is_memref
from npu_tools.emulator.elements import memory_space, static_shape
from npu_tools.emulator.memops import constant_of, memref_type, prop
from npu_tools.emulator.memory import Buffer, MemRef
from npu_tools.emulator.ops.signature import groups, shape_of
from npu_tools.emulator.tasks import Task, Wait
from npu_tools.emulator.types import Fault, Instruction
from npu_tools.emulator.windows import dense_tail, numbers

if TYPE_CHECKING:
    from npu_tools.emulator.machine import Machine

FEWEST = 3
"""Trips from which on it is worth it."""
WIDEST = 512
"""Trips side by side at most."""
BYTES = 4 << 20
"""Host bytes that the buffers of all of them may take together, so that they stay in cache."""
_SCALAR = ("arith.", "affine.apply", "math.", "vector.broadcast", "vector.reduction", "vector.extract", "vector.fma")
_WHOLE = ("rope", "silu_and_mul", "gelu_and_mul")
"""Families of kernels that write their whole output where their count says so."""


class _Dependent(Exception):
    """A trip might notice another."""


@dataclass(slots=True)
class _Trips:
    """What the body does to memory, read in the order of the text."""

    builder: Builder
    herd: HerdOp
    loop: scf.ForOp
    step: int
    own: dict[SSAValue, bool] = field(default_factory=dict[SSAValue, bool])
    """Buffers of the core that the body writes, and whether the whole of them is written by now."""
    read: set[SSAValue] = field(default_factory=set[SSAValue])
    moved_out: set[SSAValue] = field(default_factory=set[SSAValue])
    """Memrefs from outside the herd that are written."""

    def read_body(self) -> None:
        block = self.loop.body.block
        ops = [op for op in block.ops if not (op is block.last_op and op.name == "scf.yield")]
        for op in self.loop.walk():
            if any(isinstance(value.type, AsyncTokenType) for value in (*op.operands, *op.results)):
                raise _Dependent
        for op in ops:
            self._one(op)
        # A buffer written in part is put together by several trips.
        if self.moved_out & self.read or not all(self.own.values()):
            raise _Dependent

    def _one(self, op: Operation) -> None:
        if isinstance(op, DmaMemcpyNdOp):
            self._reads(op.src)
            self._writes(op.dst, self._is_whole(op.dst, op.dst_window), op)
        elif isinstance(op, scf.ForOp):
            self._strips(op)
        elif isinstance(op, func.CallOp):
            self._call(op)
        elif op.name == "vector.transfer_read":
            self._reads(op.operands[0])
        elif op.name == "vector.transfer_write":
            self._writes(op.operands[1], self._whole_vector(op), op)
        elif not op.name.startswith(_SCALAR) or op.regions or any(map(is_memref, (*op.operands, *op.results))):
            raise _Dependent

    def _root(self, value: SSAValue) -> tuple[SSAValue, bool]:
        """The memref, and whether it is a buffer of the core's own."""
        owner = value.owner
        if isinstance(value, BlockArgument):
            if value.block.parent_op() is not self.herd:
                raise _Dependent
            return value, False
        if not isinstance(owner, Operation) or owner.name != "memref.alloc" or owner.parent_op() is not self.herd:
            raise _Dependent
        if any(use.operation.name in ALIASES and not self._inside(use.operation) for use in value.uses):
            raise _Dependent
        return value, True

    def _inside(self, op: Operation) -> bool:
        current: Operation | None = op
        while current is not None and current is not self.loop:
            current = current.parent_op()
        return current is not None

    def _reads(self, value: SSAValue) -> None:
        root, _ = self._root(value)
        # What an earlier trip left would be seen where this one has not written all of it.
        if not self.own.get(root, True):
            raise _Dependent
        if root not in self.own:
            self.read.add(root)

    def _writes(self, value: SSAValue, whole: bool, op: Operation) -> None:
        root, own = self._root(value)
        if own:
            if root in self.read:
                raise _Dependent
            self.own[root] = self.own.get(root, False) or whole
            return
        if memory_space(memref_type(root)) == 2 or not isinstance(op, DmaMemcpyNdOp) or not self._moves_on(op):
            raise _Dependent
        self.moved_out.add(root)

    def _is_whole(self, memref: SSAValue, window: Window) -> bool:
        """Whether a window covers all of a memref."""
        if not window.sizes:
            return not window.offsets
        shape = static_shape(memref_type(memref))
        sizes, strides = numbers(window.sizes), numbers(window.strides)
        if not all(entry == 0 or constant_of(cast("Any", entry)) == 0 for entry in window.offsets):
            return False
        return list(sizes or ()) == list(shape) and list(strides or ()) == list(dense_tail(shape, len(shape)))

    def _whole_vector(self, op: Operation) -> bool:
        _, _, indices, masks = groups(op)
        vector, buffer = op.operands[0], op.operands[1]
        at_start = all(constant_of(index) == 0 for index in indices)
        return at_start and not masks and shape_of(vector.type) == static_shape(memref_type(buffer))

    def _strips(self, op: scf.ForOp) -> None:
        found = strips.analysed(op, self.builder)
        if found is None:
            raise _Dependent
        for root in found.reads:
            self._reads(root)
        for root, whole in found.writes:
            self._writes(root, whole, op)

    def _call(self, op: func.CallOp) -> None:
        machine = self.builder.machine
        if op.results or op.callee.string_value() in machine.functions:
            raise _Dependent
        kernel = machine.externals.of(op)
        sizes = [constant_of(value) for value in op.arguments if not is_memref(value)]
        effects = dict(machine.effects.of_op(op))
        for value, (reads, _) in effects.items():
            if reads:
                self._reads(value)
        for value, (reads, writes) in effects.items():
            if writes:
                count = math.prod(static_shape(memref_type(value)))
                whole = kernel.family in _WHOLE and not reads and sizes == [count]
                self._writes(value, whole, op)

    def _moves_on(self, op: DmaMemcpyNdOp) -> bool:
        """Whether the written window moves with the trip by at least its extent."""
        window = op.dst_window
        shape = static_shape(memref_type(op.dst))
        sizes: list[Any] = list(numbers(window.sizes) or shape)
        strides: list[Any] = list(numbers(window.strides) or dense_tail(shape, len(sizes)))
        if not all(isinstance(entry, int) for entry in (*sizes, *strides)):
            return False
        by = 0
        for offset, stride in zip(window.offsets, strides[len(strides) - len(window.offsets) :], strict=True):
            by += self._factor(offset) * stride
        extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        return abs(by * self.step) >= extent

    def _factor(self, value: int | SSAValue) -> int:
        """How much an index grows where the loop's counter grows by one."""
        if isinstance(value, int):
            return 0
        if value is self.loop.body.block.args[0]:
            return 1
        owner = value.owner
        if not isinstance(owner, Operation) or not self._inside(owner):
            return 0
        if owner.name == "arith.constant":
            return 0
        if owner.name == "affine.apply":
            affine_map = cast("AffineMapAttr", prop(owner, "map")).data
            form = linear_form(affine_map.results[0], affine_map.num_dims)
            if form is not None:
                return sum(factor * self._factor(owner.operands[at]) for at, factor in form[0].items())
        if owner.name in ("arith.addi", "arith.subi"):
            left, right = (self._factor(operand) for operand in owner.operands)
            return left + right if owner.name == "arith.addi" else left - right
        if owner.name == "arith.muli":
            for one, other in (owner.operands, reversed(owner.operands)):
                by = constant_of(other)
                if isinstance(by, int):
                    return self._factor(one) * by
        raise _Dependent


@dataclass(slots=True)
class _Plan:
    """One loop that may run side by side: its body as code of its own, and what it takes from around it."""

    machine: Machine
    loop: scf.ForOp
    code: Code
    values: list[tuple[int, int]]
    """Registers of the code, and those around the loop that they are filled from."""
    own: list[tuple[int, int, bool]]
    """The same for buffers of the core that the body writes, and whether anybody looks at them behind the loop."""
    shared: list[tuple[int, bool]]
    """Registers around the loop that hold memrefs from outside the herd, and whether they are written."""
    low: int
    step: int
    count: int

    def fits(self, task: Task) -> bool:
        """Whether the lanes and the buffers are as the plan needs them."""
        if task.gy != 1 or task.fork is not None or task.pending or self.machine.pool.journal is not None:
            return False
        regs = task.regs
        written = {id(regs[slot].buffer) for slot, writes in self.shared if writes}
        others = [id(regs[slot].buffer) for slot, _ in self.shared]
        if any(others.count(buffer) > 1 for buffer in written):
            return False
        refs = [cast("MemRef", regs[slot]) for _, slot, _ in self.own]
        return all(
            ref.buffer.lanes == (task.gx, 1) and not ref.buffer.freed and ref.buffer.turns is None for ref in refs
        )

    def widths(self, task: Task) -> Iterator[tuple[int, int]]:
        """The trips to run together, as the first and how many: one, then as many as stay in cache."""
        each = sum(4 * task.regs[slot].buffer.size for _, slot, _ in self.own) * task.gx
        most = max(1, min(WIDEST, BYTES // max(1, each)))
        yield 0, 1
        for first in range(1, self.count, most):
            yield first, min(most, self.count - first)

    def start(self, task: Task, ended: Callable[[], None]) -> None:
        """Run all trips; `ended` is told when the last is through."""
        groups_of, kept = self.widths(task), list[MemRef]()

        def go_on() -> None:
            found = next(groups_of, None)
            if found is None:
                self._leave(task, kept)
                ended()
                return
            self._together(task, *found, kept, go_on)

        go_on()

    def _together(self, task: Task, first: int, count: int, kept: list[MemRef], ended: Callable[[], None]) -> None:
        regs = self.code.registers()
        counter: Any = self.low + first * self.step
        if count > 1:
            counter = counter + self.step * np.arange(count, dtype=np.int64).reshape(1, count)
        regs[self.code.arguments[0]] = counter
        for slot, source in self.values:
            value = task.regs[source]
            if isinstance(value, MemRef):
                value = MemRef(
                    value.buffer, value.shape, value.strides, value.offset, value.dx, 0, value.x0, 0, task.gx, count
                )
            regs[slot] = value
        if not kept or kept[0].gy != count:
            for ref in kept:
                ref.buffer.release()
            kept[:] = [self._fresh(task.regs[source], task.gx, count) for _, source, _ in self.own]
        for (slot, _, _), ref in zip(self.own, kept, strict=True):
            regs[slot] = ref
        # The lanes are trips of the same tiles: `at` and the instance, by which writers are known, stay as they are.
        task.instance.left += task.gx * count
        child = Task(
            self.code, regs, task.gx, count, task.instance, task.depth, task.segment, at=task.at, clock=task.clock
        )
        regs[-1] = lambda: (setattr(task, "clock", max(task.clock, child.clock)), ended())
        self.machine.scheduler.start(child)

    @staticmethod
    def _fresh(ref: MemRef, gx: int, count: int) -> MemRef:
        old = ref.buffer
        buffer = Buffer(old.name, old.element_type, old.shape, old.space, old.pool, (gx, count), old.strides)
        return MemRef(buffer, ref.shape, ref.strides, gx=gx, gy=count)

    def _leave(self, task: Task, kept: list[MemRef]) -> None:
        """Leave in the core's buffers what the last trip left there, and free those of the trips."""
        for (_, source, looked_at), ref in zip(self.own, kept, strict=True):
            if looked_at:
                last = MemRef(ref.buffer, ref.shape, ref.strides, y0=ref.gy - 1, gx=ref.gx, gy=1)
                values, unwritten = last.array().copy(), last.unwritten_part()
                cast("MemRef", task.regs[source]).write(values, unwritten)
            ref.buffer.release()
        kept.clear()


def side_by_side(op: scf.ForOp, builder: Builder) -> Callable[[], None] | None:
    """Emit an instruction that runs the trips of a loop side by side where it can, and else goes into the loop.

    To be emitted right before the loop; the function returned is to be called right behind it.
    """
    plan = _plan(op, builder)
    if plan is None:
        return None
    machine, holder = builder.machine, builder.fresh()
    ends: list[int] = []
    what = machine.describe(op)

    def begin(frame: Any) -> int | None:
        task = cast("Task", frame)
        state: list[Any] = [not plan.fits(task), list[Any]()]
        task.regs[holder] = state
        if state[0]:
            return None

        def ended() -> None:
            state[0] = True
            machine.scheduler.wake(state[1])

        plan.start(task, ended)
        return ends[0]

    def wait(frame: Any) -> Wait | None:
        done, waiters = frame.regs[holder]
        return None if done else Wait("body", [waiters], lambda: f"the end of {what}")

    builder.emit(begin)

    def behind() -> None:
        ends.append(builder.emit(wait))

    return behind


def _plan(op: scf.ForOp, builder: Builder) -> _Plan | None:
    machine, herd = builder.machine, builder.herd
    if not isinstance(herd, HerdOp) or op.parent_op() is not herd or builder.turns or builder.inlined or op.iter_args:
        return None
    if machine.grouping != "lifted" or machine.trace is not None or machine.numerics.report is not None:
        return None
    bounds = tuple(constant_of(value) for value in (op.lb, op.ub, op.step))
    if not all(isinstance(bound, int) for bound in bounds):
        return None
    low, high, step = cast("tuple[int, int, int]", bounds)
    if step < 1 or -(-(high - low) // step) < FEWEST:
        return None
    trips = _Trips(builder, herd, op, step)
    try:
        trips.read_body()
        code, given = _lower(op, builder)
    except (_Dependent, Fault):
        return None
    shared = [
        (builder.slot(value), value in trips.moved_out)
        for value in given
        if is_memref(value) and value not in trips.own
    ]
    return _Plan(
        machine,
        op,
        code,
        [(slot, builder.slot(value)) for value, slot in given.items() if value not in trips.own],
        [(slot, builder.slot(value), _looked_at(op, value)) for value, slot in given.items() if value in trips.own],
        shared,
        low,
        step,
        -(-(high - low) // step),
    )


def _looked_at(loop: scf.ForOp, buffer: SSAValue) -> bool:
    """Whether anything behind the loop uses a buffer, its dealloc aside."""
    following = loop.next_op
    while following is not None:
        if following.name != "memref.dealloc" and any(buffer in op.operands for op in following.walk()):
            return True
        following = following.next_op
    return False


def _lower(op: scf.ForOp, builder: Builder) -> tuple[Code, dict[SSAValue, int]]:
    """The body as code of its own, and its registers for what it takes from around it."""
    machine, block = builder.machine, op.body.block
    code = Code(builder.code.name)
    code.regions.append(Region(-1, 0))
    inner = Builder(machine, code, soft=False, op=op, herd=builder.herd)
    code.arguments = [inner.slot(block.args[0])]
    inside = {op, *op.walk()}
    given: dict[SSAValue, int] = {}
    for each in block.walk():
        for value in each.operands:
            owner = value.owner
            home = owner if isinstance(owner, Operation) else owner.parent_op()
            if home not in inside and value not in given:
                given[value] = inner.slot(value)
    inner.block(block)
    inner.op = op
    # Lanes that part meet here, and only then somebody is told.
    meet = inner.here()

    def meeting(frame: Any) -> Any:
        return ARRIVED if frame.join == meet else None

    inner.emit(cast("Instruction", meeting))
    code.regions[0].end = meet
    told = inner.fresh()

    def tell(frame: Any) -> None:
        frame.regs[told]()

    inner.emit(tell)
    inner.emit(end_task)
    assert told == code.slot_count - 1, "the last register holds who is to be told"
    return code, given
