"""Iterations of a launch executed side by side, as lanes, where the text shows that none can notice another.

A launch over rows whose herd is one tile high leaves the second lane axis free: its iterations take the first axis and
the tiles the second. That needs: no channels, tokens or branches; memrefs from outside either read only or written
only; and every such write a DMA of the segment whose window moves with the iteration by at least its own extent.
The first iteration runs alone, so that faults are told as ever.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects import func
from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from npu_tools.air.dialect import AsyncTokenType, DmaMemcpyNdOp, HerdOp, Hierarchy, LaunchOp, SegmentOp
from npu_tools.emulator.affine import linear_form
from npu_tools.emulator.elements import memory_space, static_shape
from npu_tools.emulator.memops import constant_of, memref_type, prop
from npu_tools.emulator.turns import shares_of
from npu_tools.emulator.types import Fault
from npu_tools.emulator.windows import dense_tail, numbers

if TYPE_CHECKING:
    from npu_tools.emulator.effects import Effects

WIDEST = 64
"""Iterations side by side at most."""
L2_BYTES = 4 << 20
"""Host bytes that the L2 buffers of all of them may take together, so that they stay in cache."""
_PLAIN = ("arith.", "affine.apply", "memref.", "vector.", "linalg.", "math.", "scf.for", "scf.yield", "func.call")
_PLAIN_AIR = ("air.dma_memcpy_nd", "air.herd", "air.segment", "air.launch")


@dataclass(frozen=True, slots=True)
class _Line:
    """A value as `factor` times the iteration plus something that is the same in all iterations."""

    factor: int


def width(launch: Hierarchy, functions: dict[str, func.FuncOp], effects: Effects) -> tuple[int, int]:
    """How many iterations may run side by side, and along which dimension; (1, 0) where they may not."""
    none = (1, 0)
    if not isinstance(launch, LaunchOp):
        return none
    sizes = [constant_of(size) for size in launch.sizes]
    wide = [axis for axis, size in enumerate(sizes) if size != 1]
    if len(wide) != 1 or not isinstance(sizes[wide[0]], int):
        return none
    (axis,) = wide
    l2_bytes = 0
    for op in launch.walk():
        if op is launch:
            continue
        if not op.name.startswith((*_PLAIN, *_PLAIN_AIR, "linalg")) or any(
            isinstance(value.type, AsyncTokenType) for value in (*op.operands, *op.results)
        ):
            return none
        if isinstance(op, func.CallOp) and op.callee.string_value() in functions:
            return none
        if isinstance(op, SegmentOp) and op.sizes:
            return none
        if isinstance(op, HerdOp) and not _one_tile_high(op):
            return none
        if op.name == "memref.alloc" and memory_space(memref_type(op.results[0])) == 1:
            if shares_of(op.results[0], effects) is not None:
                return none
            l2_bytes += 4 * math.prod(static_shape(memref_type(op.results[0])))
    try:
        apart = _writes_apart(launch, axis, effects)
    except Fault:
        return none
    return (max(1, min(WIDEST, L2_BYTES // max(1, l2_bytes))), axis) if apart else none


def _one_tile_high(herd: HerdOp) -> bool:
    sizes = [constant_of(size) for size in herd.sizes]
    return all(isinstance(size, int) for size in sizes) and sum(size != 1 for size in sizes) <= 1


def _writes_apart(launch: LaunchOp, axis: int, effects: Effects) -> bool:
    inside = effects.of_body(launch.body.block)
    written = {value for value, effect in inside.items() if effect[1]}
    if any(inside[value][0] for value in written):
        return False
    outer = [value for value in launch.kernel_args if value in written]
    operands = [
        operand for operand, value in zip(launch.kernel_operands, launch.kernel_args, strict=True) if value in inside
    ]
    if len(set(operands)) != len(operands):
        return False
    for op in launch.walk():
        if isinstance(op, HerdOp):
            if any(effect[1] and _root(value) in outer for value, effect in effects.of_op(op)):
                return False
        elif not isinstance(op, Hierarchy):
            for value, effect in effects.of_op(op):
                if effect[1] and _root(value) in outer and not _inside_herd(op):
                    if not isinstance(op, DmaMemcpyNdOp) or not _moves_on(op, launch.ids[axis]):
                        return False
    return True


def _inside_herd(op: Operation) -> bool:
    current = op.parent_op()
    while current is not None:
        if isinstance(current, HerdOp):
            return True
        current = current.parent_op()
    return False


def _root(value: SSAValue) -> SSAValue:
    """The launch's argument behind an argument of its segment."""
    if isinstance(value, BlockArgument):
        holder = value.owner.parent_op()
        if isinstance(holder, SegmentOp) and value in holder.kernel_args:
            return _root(holder.kernel_operands[list(holder.kernel_args).index(value)])
    return value


def _moves_on(op: DmaMemcpyNdOp, iteration: SSAValue) -> bool:
    """Whether the written window moves with the iteration by at least its extent."""
    window = op.dst_window
    shape = static_shape(memref_type(op.dst))
    sizes: list[Any] = numbers(window.sizes) or list(shape)
    strides: list[Any] = numbers(window.strides) or dense_tail(shape, len(sizes))
    if not all(isinstance(entry, int) for entry in (*sizes, *strides)):
        return False
    factor = 0
    for offset, stride in zip(window.offsets, strides[len(strides) - len(window.offsets) :], strict=True):
        line = _line(offset, iteration)
        if line is None:
            return False
        factor += line.factor * stride
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return abs(factor) >= extent


def _line(value: int | SSAValue, iteration: SSAValue) -> _Line | None:
    """The value as a multiple of the iteration plus a constant; None where it is neither."""
    if isinstance(value, int):
        return _Line(0)
    root = _root(value)
    if root is iteration:
        return _Line(1)
    owner = root.owner
    if isinstance(owner, LaunchOp) or not isinstance(owner, Operation):
        holder = owner.parent_op() if not isinstance(owner, Operation) else owner
        return _Line(0) if isinstance(holder, LaunchOp) else None
    if owner.name == "arith.constant":
        return _Line(0)
    if owner.name == "affine.apply":
        affine_map = cast("AffineMapAttr", prop(owner, "map")).data
        form = linear_form(affine_map.results[0], affine_map.num_dims)
        parts = [_line(operand, iteration) for operand in owner.operands]
        if form is None or any(part is None for part in parts):
            return None
        return _Line(sum(factor * cast("_Line", parts[at]).factor for at, factor in form[0].items()))
    if owner.name in ("arith.muli", "arith.addi"):
        left, right = (_line(operand, iteration) for operand in owner.operands)
        if left is None or right is None:
            return None
        if owner.name == "arith.addi":
            return _Line(left.factor + right.factor)
        for one, other in ((left, owner.operands[1]), (right, owner.operands[0])):
            by = constant_of(other)
            if isinstance(by, int):
                return _Line(one.factor * by)
    return None
