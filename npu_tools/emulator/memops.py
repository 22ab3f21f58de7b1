"""memref ops: making and freeing buffers, looking at parts of them, loading and storing elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
from xdsl.dialects import memref
from xdsl.dialects.builtin import (
    AffineMapAttr,
    DenseIntOrFPElementsAttr,
    IntegerAttr,
    MemRefType,
    SymbolRefAttr,
)
from xdsl.ir import Attribute, Operation, SSAValue

from npu_tools.air.dialect import HerdOp, integers
from npu_tools.air.windows import mixed
from npu_tools.emulator.affine import compile_map
from npu_tools.emulator.code import Builder, Structured
from npu_tools.emulator.effects import users
from npu_tools.emulator.elements import memory_space, static_shape
from npu_tools.emulator.memory import Buffer, MemRef
from npu_tools.emulator.tasks import Task
from npu_tools.emulator.types import Fault, Instruction


def prop(op: Operation, name: str) -> Attribute | None:
    """A property or attribute of an op."""
    found = op.properties.get(name)
    # An IntegerAttr of 0 counts as false.
    return found if found is not None else op.attributes.get(name)


def memref_type(value: SSAValue) -> MemRefType[Any]:
    """The type of a memref value."""
    return cast("MemRefType[Any]", value.type)


def value_name(value: SSAValue) -> str:
    """How the text calls a value."""
    return f"%{value.name_hint}" if value.name_hint else "a buffer"


def lower_alloc(op: Operation, builder: Builder) -> None:
    """memref.alloc and alloca: a buffer for each tile, or a common one in launches and segments."""
    if op.operands:
        raise Fault(
            "dynamic-shape",
            f"{op.name} makes a buffer whose size is only known at run time",
            "give every dimension as a number",
        )
    result = op.results[0]
    kind = memref_type(result)
    shape, space, element = static_shape(kind), memory_space(kind), kind.element_type
    slot, name, machine = builder.slot(result), value_name(result), builder.machine
    place = machine.place(op)
    label = f"{name} (line {place.line})" if place is not None else name
    private = space == 2 and builder.soft and one_per_tile(result)
    strides = machine.storage_strides(result, shape)
    shares = machine.shares(result) if builder.soft else None

    def alloc(frame: Any) -> None:
        task = cast("Task", frame)
        lanes = (task.gx, task.gy)
        buffer = Buffer(label, element, shape, space, machine.pool, lanes, strides)
        buffer.per_tile = private
        if shares is not None:
            buffer.turns = machine.fresh_turns(shares, label)
        task.instance.buffers.append(buffer)
        task.regs[slot] = MemRef(buffer, shape, strides, gx=task.gx, gy=task.gy)
        if machine.trace is not None:
            machine.trace.allocated(task, buffer)

    builder.emit(alloc)


def one_per_tile(value: SSAValue) -> bool:
    """Whether an L1 buffer made outside a herd stands for one buffer in each tile.

    It does where only herds use it, unless each tile takes a part of its own by its ids (such a buffer spans the herd)
    or herds of different extents pass data through it (neighbours that share one memory).
    """
    uses = [use for use in users(value) if use.name != "memref.dealloc"]
    if not uses or not all(isinstance(use, HerdOp) for use in uses):
        return False
    herds = [cast("HerdOp", use) for use in uses]
    if len({tuple(constant_of(size) for size in herd.sizes) for herd in herds}) > 1:
        return False
    return not all(parted_by_ids(herd, value) for herd in herds)


def constant_of(value: SSAValue) -> int | SSAValue:
    """The number behind an index constant, or the value itself."""
    owner = value.owner
    attribute = prop(owner, "value") if isinstance(owner, Operation) and owner.name == "arith.constant" else None
    return cast("IntegerAttr[Any]", attribute).value.data if isinstance(attribute, IntegerAttr) else value


def parted_by_ids(herd: HerdOp, value: SSAValue) -> bool:
    """Whether a herd reaches a buffer only through subviews whose leading offsets are the tile's ids, with size 1."""
    ids = list(herd.ids)
    for operand, argument in zip(herd.kernel_operands, herd.kernel_args, strict=True):
        if operand is not value:
            continue
        for use in users(argument):
            if use.name != "memref.subview":
                return False
            offsets, sizes, _ = view_lists(use)
            if list(offsets[: len(ids)]) != ids or list(sizes[: len(ids)]) != [1] * len(ids):
                return False
    return True


def lower_dealloc(op: Operation, builder: Builder) -> None:
    """memref.dealloc: at once, or when operations under way are through with the buffer."""
    slot = builder.slot(op.operands[0])
    machine = builder.machine
    if repeated_without_alloc(op):
        place = machine.place(op)
        machine.blame(
            Fault(
                "dealloc-in-loop",
                f"{value_name(op.operands[0])} is freed in a loop{'' if place is None else f' (line {place.line})'} "
                "that does not make it, so later iterations use it after its end; buffers of a core are laid out "
                "before the run, so the device takes no notice, and neither does this run",
                "move the memref.dealloc behind the loop",
            ),
            op,
            "note",
        )
        return

    def dealloc(frame: Any) -> None:
        task = cast("Task", frame)
        buffer = cast("MemRef", task.regs[slot]).buffer
        if buffer.freed:
            raise Fault("double-free", f"{buffer.name} is freed a second time", "remove one of the memref.dealloc ops")
        if machine.trace is not None:
            machine.trace.freed(task, buffer)
        if buffer.users:
            for pending in task.pending:
                if any(used is buffer for used, _ in pending.touches):
                    pending.to_free.append(buffer)
                    return
        if task.soft or (task.gx, task.gy) == buffer.lanes or buffer.lanes == (1, 1):
            buffer.release()

    builder.emit(dealloc)


def repeated_without_alloc(op: Operation) -> bool:
    """Whether a dealloc stands in a loop that its alloc stands outside of."""
    home = op.operands[0].owner.parent_op()
    current = op.parent_op()
    while current is not None and current is not home:
        if current.name in ("scf.for", "scf.while", "scf.parallel", "scf.forall", "affine.for", "affine.parallel"):
            return True
        current = current.parent_op()
    return False


def view_lists(op: Operation) -> tuple[list[int | SSAValue], list[int | SSAValue], list[int | SSAValue]]:
    """Offsets, sizes and strides of a subview or reinterpret_cast."""
    sizes = integers(prop(op, "operandSegmentSizes")) or [1, 0, 0, 0]
    dynamic = list(op.operands)
    at = sizes[0]
    lists: list[list[int | SSAValue]] = []
    for count, name in zip(sizes[1:], ("offsets", "sizes", "strides"), strict=True):
        static = integers(prop(op, f"static_{name}"))
        lists.append(mixed(static, dynamic[at : at + count]))
        at += count
    return lists[0], lists[1], lists[2]


def all_numbers(entries: Sequence[int | SSAValue], what: str) -> tuple[int, ...]:
    """Entries that must be numbers in the text.

    Raises:
        Fault: one is a value.
    """
    if not all(isinstance(entry, int) for entry in entries):
        raise Fault("dynamic-shape", f"{what} are only known at run time", "give them as numbers")
    return tuple(cast("int", entry) for entry in entries)


def kept_axes(full: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Which axes of `full` remain when unit axes are dropped to give `wanted`."""
    kept: list[int] = []
    left = list(wanted)
    for axis in reversed(range(len(full))):
        if left and full[axis] == left[-1]:
            kept.insert(0, axis)
            left.pop()
        elif full[axis] != 1:
            break
    if left or len(kept) != len(wanted):
        raise Fault(
            "bad-view",
            f"a view of sizes {list(full)} cannot have the type's shape {list(wanted)}",
            "make the result type match the sizes, unit dimensions aside",
        )
    return kept


def lower_subview(op: Operation, builder: Builder) -> None:
    """memref.subview."""
    offsets, sizes, strides = view_lists(op)
    counts, steps = all_numbers(sizes, "the sizes of a subview"), all_numbers(strides, "the strides of a subview")
    shape = static_shape(memref_type(op.results[0]))
    kept = kept_axes(counts, shape)
    reduced = len(kept) != len(counts)
    unit = all(step == 1 for step in steps)
    source, result = builder.slot(op.operands[0]), builder.slot(op.results[0])
    where = [entry if isinstance(entry, int) else -1 for entry in offsets]
    moving = [(axis, builder.slot(entry)) for axis, entry in enumerate(offsets) if not isinstance(entry, int)]

    def subview(frame: Any) -> None:
        regs = frame.regs
        at: list[Any] = where.copy()
        for axis, slot in moving:
            at[axis] = regs[slot]
        part = regs[source].at(at, counts, None if unit else steps)
        if reduced:
            part.shape, part.strides = shape, tuple(part.strides[axis] for axis in kept)
        regs[result] = part

    builder.emit(subview)


def reshaped(part: MemRef, shape: tuple[int, ...], strides: tuple[int, ...], offset: int = 0) -> MemRef:
    """The same storage seen with another shape."""
    return MemRef(
        part.buffer, shape, strides, part.offset + offset, part.dx, part.dy, part.x0, part.y0, part.gx, part.gy
    )


def merged_strides(part: MemRef, groups: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The stride of each group of axes that becomes one.

    Raises:
        Fault: elements of a group do not lie at even distances.
    """
    strides: list[int] = []
    for group in groups:
        wide = [axis for axis in group if part.shape[axis] > 1]
        for outer, inner in pairwise(wide):
            if part.strides[outer] != part.shape[inner] * part.strides[inner]:
                raise Fault(
                    "bad-view",
                    f"dimensions {list(group)} of {part.buffer.name} cannot be merged: its strides are "
                    f"{list(part.strides)} for shape {list(part.shape)}",
                    "copy it to a dense buffer first",
                )
        strides.append(part.strides[wide[-1]] if wide else 1)
    return tuple(strides)


def reassociation(op: Operation) -> list[list[int]]:
    """The groups of collapse_shape and expand_shape."""
    groups = cast("Any", prop(op, "reassociation"))
    return [[int(entry.value.data) for entry in group.data] for group in groups.data]


def lower_collapse(op: Operation, builder: Builder) -> None:
    """memref.collapse_shape."""
    groups, shape = reassociation(op), static_shape(memref_type(op.results[0]))
    source, result = builder.slot(op.operands[0]), builder.slot(op.results[0])

    def collapse(frame: Any) -> None:
        part = cast("MemRef", frame.regs[source])
        frame.regs[result] = reshaped(part, shape, merged_strides(part, groups))

    builder.emit(collapse)


def lower_expand(op: Operation, builder: Builder) -> None:
    """memref.expand_shape."""
    groups, shape = reassociation(op), static_shape(memref_type(op.results[0]))
    source, result = builder.slot(op.operands[0]), builder.slot(op.results[0])

    def expand(frame: Any) -> None:
        part = cast("MemRef", frame.regs[source])
        strides = [0] * len(shape)
        for axis, group in enumerate(groups):
            step = part.strides[axis]
            for inner in reversed(group):
                strides[inner] = step
                step *= shape[inner]
        frame.regs[result] = reshaped(part, shape, tuple(strides))

    builder.emit(expand)


def lower_cast(op: Operation, builder: Builder) -> None:
    """memref.cast and memory_space_cast: the same buffer under another type."""
    source, result = builder.slot(op.operands[0]), builder.slot(op.results[0])
    if isinstance(op.results[0].type, MemRefType):
        static_shape(memref_type(op.results[0]))

    def cast_memref(frame: Any) -> None:
        frame.regs[result] = frame.regs[source]

    builder.emit(cast_memref)


def lower_reinterpret(op: Operation, builder: Builder) -> None:
    """memref.reinterpret_cast: any window on the storage, from the buffer's start."""
    offsets, sizes, strides = view_lists(op)
    shape, steps = all_numbers(sizes, "the sizes"), all_numbers(strides, "the strides")
    offset = offsets[0] if offsets else 0
    fixed, moving = (offset, None) if isinstance(offset, int) else (0, builder.slot(offset))
    source, result = builder.slot(op.operands[0]), builder.slot(op.results[0])

    def reinterpret(frame: Any) -> None:
        regs = frame.regs
        part = cast("MemRef", regs[source])
        buffer = part.buffer
        start = MemRef(buffer, (buffer.size,), (1,), 0, 0, 0, part.x0, part.y0, part.gx, part.gy)
        regs[result] = start.linear(fixed if moving is None else regs[moving], shape, steps, what="the view")

    builder.emit(reinterpret)


def lower_copy(op: Operation, builder: Builder) -> None:
    """memref.copy."""
    source, target = builder.slot(op.operands[0]), builder.slot(op.operands[1])

    def copy(frame: Any) -> None:
        part = cast("MemRef", frame.regs[source])
        frame.regs[target].write(part.array(), part.unwritten_part())

    builder.emit(copy, builder.machine.touches(op, builder))


def lower_load(op: Operation, builder: Builder) -> Instruction | None:
    """memref.load."""
    source, result = builder.slot(op.operands[0]), builder.slot(op.results[0])
    indices = [builder.slot(index) for index in op.operands[1:]]

    def load(frame: Any) -> None:
        regs = frame.regs
        regs[result] = regs[source].load([regs[slot] for slot in indices])

    return load


def lower_store(op: Operation, builder: Builder) -> Instruction | None:
    """memref.store."""
    value, target = builder.slot(op.operands[0]), builder.slot(op.operands[1])
    indices = [builder.slot(index) for index in op.operands[2:]]

    def store(frame: Any) -> None:
        regs = frame.regs
        regs[target].store([regs[slot] for slot in indices], regs[value])

    return store


def lower_affine_access(op: Operation, builder: Builder) -> Instruction | None:
    """affine.load and affine.store: indices through a map."""
    storing = op.name == "affine.store"
    operands = list(op.operands)
    value = builder.slot(operands.pop(0) if storing else op.results[0])
    target = builder.slot(operands[0])
    slots = [builder.slot(index) for index in operands[1:]]
    attribute = prop(op, "map")
    evaluate = compile_map(cast("AffineMapAttr", attribute).data) if attribute is not None else None

    def where(regs: list[Any]) -> list[Any]:
        values = [regs[slot] for slot in slots]
        return values if evaluate is None else [each(values) for each in evaluate]

    def store(frame: Any) -> None:
        frame.regs[target].store(where(frame.regs), frame.regs[value])

    def load(frame: Any) -> None:
        frame.regs[value] = frame.regs[target].load(where(frame.regs))

    return store if storing else load


def lower_apply(op: Operation, builder: Builder) -> Instruction | None:
    """affine.apply; affine.min and affine.max choose among the results."""
    attribute = prop(op, "map")
    evaluate = compile_map(cast("AffineMapAttr", attribute).data)
    slots, result = [builder.slot(operand) for operand in op.operands], builder.slot(op.results[0])
    if len(evaluate) == 1:
        (only,) = evaluate

        def apply(frame: Any) -> None:
            regs = frame.regs
            regs[result] = only([regs[slot] for slot in slots])

        return apply
    choose = np.minimum if op.name == "affine.min" else np.maximum

    def pick(frame: Any) -> None:
        regs = frame.regs
        values = [regs[slot] for slot in slots]
        best: Any = evaluate[0](values)
        for each in evaluate[1:]:
            best = choose(best, each(values))
        regs[result] = best if isinstance(best, np.ndarray) else int(best)

    return pick


def lower_global(op: Operation, builder: Builder) -> None:
    """memref.get_global: the module's constant, a buffer of its own for the run."""
    symbol = cast("SymbolRefAttr", prop(op, "name")).string_value()
    machine = builder.machine
    declared = machine.globals.get(symbol)
    if declared is None:
        raise Fault("unknown-symbol", f"there is no memref.global @{symbol}", "declare it in the module")
    result = builder.slot(op.results[0])

    def get(frame: Any) -> None:
        buffer = machine.global_buffer(symbol, declared)
        frame.regs[result] = MemRef(buffer, buffer.shape, buffer.strides, gx=frame.gx, gy=frame.gy)

    builder.emit(get)


def global_contents(declared: memref.GlobalOp) -> np.ndarray[Any, Any] | None:
    """What a memref.global starts with; None for nothing."""
    initial = declared.initial_value
    if not isinstance(initial, DenseIntOrFPElementsAttr):
        return None
    shape = static_shape(cast("MemRefType[Any]", declared.type))
    values = np.asarray(list(cast("Any", initial).get_values()))
    return np.broadcast_to(values.reshape(-1) if values.size == 1 else values.reshape(shape), shape)


def lower_dim(op: Operation, builder: Builder) -> Instruction | None:
    """memref.dim."""
    shape = static_shape(memref_type(op.operands[0]))
    index, result = builder.slot(op.operands[1]), builder.slot(op.results[0])

    def dim(frame: Any) -> None:
        frame.regs[result] = shape[int(frame.regs[index])]

    return dim


STRUCTURED: dict[str, Structured] = {
    "memref.alloc": lower_alloc,
    "memref.alloca": lower_alloc,
    "memref.dealloc": lower_dealloc,
    "memref.subview": lower_subview,
    "memref.collapse_shape": lower_collapse,
    "memref.expand_shape": lower_expand,
    "memref.cast": lower_cast,
    "memref.memory_space_cast": lower_cast,
    "memref.assume_alignment": lower_cast,
    "memref.reinterpret_cast": lower_reinterpret,
    "memref.copy": lower_copy,
    "memref.get_global": lower_global,
}

LOWERINGS: dict[str, Any] = {
    "memref.load": lower_load,
    "memref.store": lower_store,
    "memref.dim": lower_dim,
    "affine.load": lower_affine_access,
    "affine.store": lower_affine_access,
    "affine.apply": lower_apply,
    "affine.min": lower_apply,
    "affine.max": lower_apply,
}
