"""Loops over the elements of L1 buffers, a vector at a time, executed as one step on all of them.

Plain vector code walks a buffer in strips of 16 or 32: read, compute, write. Where the text shows that no iteration can
notice another, but for sums that go on in a buffer of one vector, the whole loop is a handful of array operations. Every
element meets the same operations and roundings in the same order, and the sums are taken strip after strip, so the bits
are those of the loop.

Reads come first and writes last: where something is wrong (an element nobody wrote, a freed buffer), nothing has
happened yet and the loop is executed as by text, which tells the fault where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from npu_tools.air.dialect import Hierarchy
from npu_tools.emulator.affine import linear_form
from npu_tools.emulator.elements import static_shape
from npu_tools.emulator.memops import constant_of, memref_type, prop, view_lists
from npu_tools.emulator.ops.signature import groups, is_bf16, is_vector, shape_of
from npu_tools.emulator.ops.vector_memory import box_of
from npu_tools.emulator.outside import UnwrittenRead
from npu_tools.emulator.types import Array, Fault, Frame, Instruction, LanesDiffer

if TYPE_CHECKING:
    from npu_tools.emulator.code import Builder
    from npu_tools.emulator.memory import MemRef

FEWEST = 1
"""Iterations from which on it is worth it."""
_ELEMENTWISE = frozenset(
    {
        *(f"arith.{name}f" for name in ("add", "sub", "mul", "div", "neg", "ext", "trunc", "cmp")),
        *(f"arith.{name}f" for name in ("maximum", "minimum", "maxnum", "minnum")),
        "arith.select",
        *(
            f"math.{name}"
            for name in ("exp", "exp2", "tanh", "rsqrt", "sqrt", "absf", "log", "sin", "cos", "erf", "fma")
        ),
        "vector.fma",
    }
)


class _NotStrips(Exception):
    """The loop is something else."""


@dataclass(slots=True)
class _Strips:
    """What is known of a loop while its body is read: values, windows and buffers, in the order of the text."""

    builder: Builder
    loop: scf.ForOp
    low: int
    width: int
    count: int
    steps: list[Instruction] = field(default_factory=list[Instruction])
    offsets: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Index values as the loop's counter plus this."""
    views: dict[SSAValue, tuple[SSAValue, int]] = field(default_factory=dict[SSAValue, "tuple[SSAValue, int]"])
    varying: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Vectors that differ from strip to strip: registers with [gx|1, gy|1, count, width]."""
    still: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Vectors that are the same for all strips, as [gx|1, gy|1, 1, width]."""
    strip_reads: set[tuple[SSAValue, int]] = field(default_factory=set["tuple[SSAValue, int]"])
    strip_writes: dict[SSAValue, tuple[int, SSAValue]] = field(default_factory=dict[SSAValue, "tuple[int, SSAValue]"])
    settled: set[SSAValue] = field(default_factory=set[SSAValue])
    """Values made in the body that are the same in all iterations."""
    scratch: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Buffers of one vector, by what was written to them last."""
    sums: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    """Results of reading a buffer of one vector before it is written: sums so far, by value."""
    added: dict[SSAValue, tuple[SSAValue, SSAValue]] = field(
        default_factory=dict[SSAValue, "tuple[SSAValue, SSAValue]"]
    )
    """Sums after an addition: the buffer, and what is added."""
    totals: list[tuple[SSAValue, SSAValue]] = field(default_factory=list["tuple[SSAValue, SSAValue]"])

    @property
    def extent(self) -> int:
        return self.width * self.count

    def read_body(self) -> None:
        block = self.loop.body.block
        self.offsets[block.args[0]] = 0
        for op in block.ops:
            if op is block.last_op and op.name == "scf.yield":
                return
            self._one(op)

    def _one(self, op: Operation) -> None:
        if op.name in ("affine.apply", "arith.addi"):
            self._index(op)
        elif op.name == "memref.subview":
            self._view(op)
        elif op.name == "vector.transfer_read":
            self._read(op)
        elif op.name == "vector.transfer_write":
            self._write(op)
        elif op.name == "arith.constant":
            self._unchanging(op)
        elif op.name == "vector.broadcast" and all(v in self.settled or not self._inside(v) for v in op.operands):
            self._unchanging(op)
        elif op.name == "arith.addf" and any(operand in self.sums for operand in op.operands):
            self._sum(op)
        elif op.name in _ELEMENTWISE and all(self._is_strip(value) for value in (*op.operands, *op.results)):
            self._elementwise(op)
        else:
            raise _NotStrips

    def _inside(self, value: SSAValue) -> bool:
        owner = value.owner
        return (
            owner.parent_block() is self.loop.body.block
            if isinstance(owner, Operation)
            else owner is self.loop.body.block
        )

    def _is_strip(self, value: SSAValue) -> bool:
        return is_vector(value.type) and shape_of(value.type) == (self.width,)

    def _index(self, op: Operation) -> None:
        """The counter plus a number."""
        if op.name == "arith.addi":
            pairs = ((op.operands[0], op.operands[1]), (op.operands[1], op.operands[0]))
            for value, other in pairs:
                more = constant_of(other)
                if value in self.offsets and isinstance(more, int):
                    self.offsets[op.results[0]] = self.offsets[value] + more
                    return
            raise _NotStrips
        affine_map = cast("AffineMapAttr", prop(op, "map")).data
        form = linear_form(affine_map.results[0], affine_map.num_dims) if len(affine_map.results) == 1 else None
        if form is None:
            raise _NotStrips
        terms = [(op.operands[at], factor) for at, factor in form[0].items() if factor]
        if len(terms) != 1 or terms[0][1] != 1 or terms[0][0] not in self.offsets:
            raise _NotStrips
        self.offsets[op.results[0]] = self.offsets[terms[0][0]] + form[1]

    def _view(self, op: Operation) -> None:
        offsets, sizes, strides = view_lists(op)
        if len(offsets) != 1 or list(sizes) != [self.width] or list(strides) != [1]:
            raise _NotStrips
        (offset,) = offsets
        if isinstance(offset, int) or offset not in self.offsets:
            raise _NotStrips
        self.views[op.results[0]] = self._place(op.operands[0], self.offsets[offset])

    def _place(self, root: SSAValue, offset: int) -> tuple[SSAValue, int]:
        """A buffer and where the first strip begins in it."""
        self._must_be_known(root)
        shape = static_shape(memref_type(root))
        first = self.low + offset
        if len(shape) != 1 or first < 0 or first + self.extent > shape[0]:
            raise _NotStrips
        return root, first

    def _must_be_known(self, root: SSAValue) -> None:
        """Only buffers that cannot overlap unless they are one: allocated here, or given to the herd."""
        owner = root.owner
        if isinstance(root, BlockArgument):
            if not isinstance(root.block.parent_op(), Hierarchy):
                raise _NotStrips
        elif not isinstance(owner, Operation) or owner.name != "memref.alloc" or self._inside(root):
            raise _NotStrips

    def _transfer(self, op: Operation, vector: SSAValue, memref: SSAValue) -> tuple[SSAValue, int] | None:
        """Where a transfer of one vector goes: a place in strips, or None for the whole of a buffer of one vector."""
        indices, masks = groups(op)[-2:] if op.name.endswith("write") else (groups(op)[1], groups(op)[3])
        if masks or not self._is_strip(vector) or len(indices) != 1:
            raise _NotStrips
        shape = static_shape(memref_type(memref))
        if len(shape) != 1:
            raise _NotStrips
        box = box_of(op, (self.width,), shape)
        if not box.plain or not all(box.in_bounds):
            raise _NotStrips
        if memref in self.views:
            if constant_of(indices[0]) != 0:
                raise _NotStrips
            return self.views[memref]
        if indices[0] in self.offsets:
            return self._place(memref, self.offsets[indices[0]])
        self._must_be_known(memref)
        if constant_of(indices[0]) != 0 or shape != (self.width,):
            raise _NotStrips
        return None

    def _read(self, op: Operation) -> None:
        memref, result = op.operands[0], op.results[0]
        place = self._transfer(op, result, memref)
        if place is None:
            if memref in self.scratch:
                self._same(result, self.scratch[memref])
            elif is_bf16(result.type):
                raise _NotStrips
            else:
                self.sums[result] = memref
            return
        root, first = place
        written = self.strip_writes.get(root)
        if written is not None:
            if written[0] != first:
                raise _NotStrips
            self._same(result, written[1])
            return
        self.strip_reads.add(place)
        ref, register, extent = self.builder.slot(root), self.builder.fresh(), (self.extent,)
        self.varying[result] = register
        count, width = self.count, self.width

        def read(frame: Frame) -> None:
            regs = frame.regs
            part: Array = cast("MemRef", regs[ref]).at((first,), extent).read()
            regs[register] = part.reshape(part.shape[0], part.shape[1], count, width)

        self.steps.append(read)

    def _same(self, result: SSAValue, value: SSAValue) -> None:
        """A value read back right after it was written."""
        if value in self.varying:
            self.varying[result] = self.varying[value]
        else:
            self.still[result] = self._still(value)

    def _write(self, op: Operation) -> None:
        value, memref = op.operands[0], op.operands[1]
        place = self._transfer(op, value, memref)
        if place is None:
            if value in self.added:
                buffer, more = self.added.pop(value)
                if buffer is not memref or memref in self.scratch or any(memref is held for held, _ in self.totals):
                    raise _NotStrips
                self.totals.append((memref, more))
                return
            if memref in self.sums.values():
                raise _NotStrips
            self.register(value)
            self.scratch[memref] = value
            return
        root, first = place
        if self.strip_writes.get(root, (first,))[0] != first:
            raise _NotStrips
        self.register(value)
        self.strip_writes[root] = (first, value)

    def _sum(self, op: Operation) -> None:
        """A sum so far plus something that is none; it may only go back to its buffer."""
        left, right = op.operands
        held, more = (left, right) if left in self.sums else (right, left)
        result = op.results[0]
        if more in self.sums or is_bf16(result.type) or any(len(list(v.uses)) != 1 for v in (held, result)):
            raise _NotStrips
        self.register(more)
        self.added[result] = (self.sums[held], more)

    def _unchanging(self, op: Operation) -> None:
        """An op whose result is the same in all iterations."""
        instruction = self.builder.machine.lowerings[op.name](op, self.builder)
        if instruction is not None:
            self.steps.append(instruction)
        self.settled.update(op.results)

    def _still(self, value: SSAValue) -> int:
        """The register of a vector that is the same for all strips, with an axis for them."""
        known = self.still.get(value)
        if known is not None:
            return known
        if value in self.sums or value in self.added or not self._is_strip(value):
            raise _NotStrips
        source, register = self.builder.slot(value), self.builder.fresh()
        self.still[value] = register

        def spread(frame: Frame) -> None:
            regs = frame.regs
            regs[register] = regs[source][:, :, None, :]

        self.steps.append(spread)
        return register

    def register(self, value: SSAValue) -> int:
        """The register of a vector as all strips see it."""
        found = self.varying.get(value)
        return self._still(value) if found is None else found

    def _elementwise(self, op: Operation) -> None:
        """The op's own instruction, on registers that hold all strips."""
        builder = self.builder
        (result,) = op.results
        given = {operand: self.register(operand) for operand in op.operands}
        register = builder.fresh()
        instruction = builder.on_registers(op, {**given, result: register})
        if instruction is None:
            raise _NotStrips
        kept = self.varying if any(operand in self.varying for operand in op.operands) else self.still
        kept[result] = register
        self.steps.append(instruction)

    def check(self) -> None:
        """Every buffer that is written is written for itself alone.

        Raises:
            _NotStrips: an iteration may read what another one writes.
        """
        if self.added:
            raise _NotStrips
        summed = {buffer for buffer, _ in self.totals}
        if set(self.sums.values()) != summed:
            raise _NotStrips
        written = (*self.strip_writes, *self.scratch, *summed)
        if len(set(written)) != len(written):
            raise _NotStrips
        read = {root for root, _ in self.strip_reads}
        for root in written:
            if isinstance(root, BlockArgument) or (root not in self.strip_writes and root in read):
                raise _NotStrips
        for root, first in self.strip_reads:
            if root in self.strip_writes and self.strip_writes[root][0] != first:
                raise _NotStrips


def _strips(op: scf.ForOp, builder: Builder) -> _Strips | None:
    machine = builder.machine
    if builder.herd is None or builder.turns or machine.trace is not None or machine.numerics.report is not None:
        return None
    bounds = tuple(constant_of(value) for value in (op.lb, op.ub, op.step))
    if op.iter_args or not all(isinstance(bound, int) for bound in bounds):
        return None
    low, high, width = cast("tuple[int, int, int]", bounds)
    if width < 2 or (high - low) % width or (high - low) // width < FEWEST:
        return None
    strips = _Strips(builder, op, low, width, (high - low) // width)
    try:
        strips.read_body()
        strips.check()
    except (_NotStrips, Fault):
        return None
    return strips


@dataclass(frozen=True, slots=True)
class Summary:
    """What a loop of strips does to memory: it reads first and writes last; `writes` says whether a buffer's whole."""

    reads: frozenset[SSAValue]
    writes: tuple[tuple[SSAValue, bool], ...]


def analysed(op: scf.ForOp, builder: Builder) -> Summary | None:
    """What a loop does to memory, None where it is no loop of strips."""
    strips = _strips(op, builder)
    if strips is None:
        return None
    reads = {root for root, _ in strips.strip_reads} | set(strips.sums.values())
    writes = [(buffer, True) for buffer in (*strips.scratch, *(buffer for buffer, _ in strips.totals))]
    for root, (first, _) in strips.strip_writes.items():
        writes.append((root, first == 0 and strips.extent == static_shape(memref_type(root))[0]))
    return Summary(frozenset(reads), tuple(writes))


def shortcut(op: scf.ForOp, builder: Builder) -> Callable[[int], None] | None:
    """Emit an instruction that executes a loop of strips at once and goes on behind it, and otherwise into it.

    To be emitted right before the loop; the function returned is to be told where it ends.
    """
    strips = _strips(op, builder)
    if strips is None:
        return None
    run, ends = _instruction(strips)
    builder.emit(run)
    return ends.append


def _instruction(strips: _Strips) -> tuple[Instruction, list[int]]:
    """All strips at once, and the list that takes the pc to go on at."""
    builder, count, extent = strips.builder, strips.count, strips.extent
    writes = [
        (builder.slot(root), first, strips.register(value)) for root, (first, value) in strips.strip_writes.items()
    ]
    last = [(builder.slot(buffer), strips.register(value)) for buffer, value in strips.scratch.items()]
    totals = [(builder.slot(buffer), strips.register(more)) for buffer, more in strips.totals]
    steps, ends = tuple(strips.steps), list[int]()
    targets = [slot for slot, *_ in (*writes, *last, *totals)]

    def run(frame: Any) -> int | None:
        regs = frame.regs
        if any(regs[slot].buffer.freed for slot in targets):
            return None
        try:
            for step in steps:
                step(frame)
            summed = [_after_all(regs[slot].read(), regs[more], count) for slot, more in totals]
        except (UnwrittenRead, LanesDiffer, Fault):
            return None
        for slot, first, value in writes:
            values = _each(regs[value], count)
            cast("MemRef", regs[slot]).at((first,), (extent,)).write(values.reshape(*values.shape[:2], extent))
        for slot, value in last:
            cast("MemRef", regs[slot]).write(regs[value][:, :, -1])
        for (slot, _), total in zip(totals, summed, strict=True):
            cast("MemRef", regs[slot]).write(total)
        return ends[0]

    return run, ends


def _each(values: Array, count: int) -> Array:
    """A value for every strip."""
    if values.shape[2] == count:
        return values
    return np.broadcast_to(values, (*values.shape[:2], count, *values.shape[3:]))


def _after_all(before: Array, more: Array, count: int) -> Array:
    """A sum [gx|1, gy|1, width] after `count` strips are added one after the other."""
    lanes = np.broadcast_shapes(before.shape[:2], more.shape[:2])
    # numpy adds along an axis that is not the innermost slice by slice, in order, as the loop does.
    stack = np.empty((*lanes, count + 1, before.shape[-1]), before.dtype)
    stack[:, :, 0] = before
    stack[:, :, 1:] = more
    return np.add.reduce(stack, axis=2)
