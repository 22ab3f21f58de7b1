"""Buffers that only ever look at other buffers' elements: copies that a run never makes, so that they take no memory.

A buffer filled by one DMA as a whole, from a window of the same sizes on memory that nothing writes, stays a view of
it (see `windows.can_borrow`). Known from the text, this tells how many iterations of a launch fit side by side into the
cache. A guess that turns out wrong costs time and memory, never a bit of the results.
"""

from __future__ import annotations

import math

from xdsl.ir import BlockArgument, Operation, SSAValue

from npu_tools.air.dialect import DmaMemcpyNdOp, HerdOp, Hierarchy
from npu_tools.emulator.effects import Effects, users
from npu_tools.emulator.elements import static_shape
from npu_tools.emulator.memops import constant_of, memref_type
from npu_tools.emulator.windows import numbers


def copied_bytes(launch: Hierarchy, effects: Effects) -> int:
    """Host bytes that one iteration's buffers take, without those that are only views."""
    total = 0
    for op in launch.walk():
        if op.name == "memref.alloc" and not _is_view(op.results[0], effects):
            total += 4 * math.prod(static_shape(memref_type(op.results[0]))) * _tiles(op)
    return total


def _tiles(op: Operation) -> int:
    """How many tiles execute an op: those of the herd around it."""
    current = op.parent_op()
    while current is not None:
        if isinstance(current, HerdOp):
            sizes = [constant_of(size) for size in current.sizes]
            return math.prod(size for size in sizes if isinstance(size, int))
        current = current.parent_op()
    return 1


def _is_view(buffer: SSAValue, effects: Effects) -> bool:
    """Whether one whole DMA is all that writes a buffer, from memory that is only read or from another view."""
    fills: list[DmaMemcpyNdOp] = []
    for use in users(buffer):
        if isinstance(use, DmaMemcpyNdOp) and use.dst is buffer:
            fills.append(use)
        elif use.name != "memref.dealloc":
            written = [effect[1] for value, effect in effects.of_op(use) if value is buffer]
            # An op of which nothing is known, as a subview, may lead to a write.
            if not written or any(written):
                return False
    return len(fills) == 1 and _looks_on(fills[0], effects)


def _looks_on(fill: DmaMemcpyNdOp, effects: Effects) -> bool:
    shape = static_shape(memref_type(fill.dst))
    window = fill.src_window
    sizes = numbers(window.sizes) or list(static_shape(memref_type(fill.src)))
    if not fill.dst_window.is_whole or list(shape) != sizes or fill.pad_before or fill.pad_after:
        return False
    return _never_written(fill.src, effects)


def _never_written(value: SSAValue, effects: Effects) -> bool:
    """Whether a memref is an argument of the function that it only reads, or a view."""
    owner = value.owner
    if isinstance(owner, Operation):
        return owner.name == "memref.alloc" and _is_view(value, effects)
    holder = owner.parent_op()
    if isinstance(holder, Hierarchy):
        pairs = zip(holder.kernel_operands, holder.kernel_args, strict=True)
        return any(value is inside and _never_written(operand, effects) for operand, inside in pairs)
    if holder is None or holder.name != "func.func" or not isinstance(value, BlockArgument):
        return False
    return not effects.of_body(owner).get(value, (False, False))[1]
