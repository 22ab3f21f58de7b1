"""Windows of data movement as functions of the registers, and how two windows of one size are walked together.

Offsets count from the innermost dimension outwards, so that two offsets before four sizes belong to the last two. The
innermost offset is scaled by the innermost stride in L3 (the shim does so) but not in L1 and L2 (`get1DOffset` of
mlir-air's AIRToAIESchedulingUtils.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from npu_tools.air.windows import Window
from npu_tools.emulator.code import Builder
from npu_tools.emulator.control import one_number
from npu_tools.emulator.elements import memory_space, static_shape
from npu_tools.emulator.memops import constant_of, memref_type
from npu_tools.emulator.memory import MemRef
from npu_tools.emulator.outside import UnwrittenRead
from npu_tools.emulator.types import Array, Fault

Locate = Callable[[list[Any]], MemRef]
"""The window as a function of the registers."""


def compile_window(builder: Builder, value: SSAValue, window: Window, what: str) -> Locate:
    """The window on a memref; `what` names it in messages."""
    slot = builder.slot(value)
    if window.is_whole:
        return lambda regs: regs[slot]
    kind = memref_type(value)
    shape = static_shape(kind)
    if window.sizes and window.strides and len(window.sizes) != len(window.strides):
        raise Fault(
            "bad-window",
            f"{what} has {len(window.sizes)} sizes and {len(window.strides)} strides",
            "give one stride for each size",
        )
    sizes: list[int | SSAValue] = numbers(window.sizes) or list(shape)
    strides = numbers(window.strides)
    tail = dense_tail(shape, len(sizes)) if not strides else []
    offsets = numbers(window.offsets)
    if len(offsets) > len(sizes):
        raise Fault(
            "bad-window",
            f"{what} has {len(offsets)} offsets and {len(sizes)} sizes",
            "give at most one offset for each size",
        )
    entries = strides or tail
    scaled = entries[len(entries) - len(offsets) :]
    plain_last = memory_space(kind) in (1, 2)
    moving = [entry for entry in (*offsets, *sizes, *entries) if not isinstance(entry, int)]
    slots = {entry: builder.slot(entry) for entry in moving}

    if all(isinstance(entry, int) for entry in (*sizes, *entries)):
        fixed_sizes = tuple(entry for entry in sizes if isinstance(entry, int))
        fixed_strides = tuple(entry for entry in entries if isinstance(entry, int))
        base = 0
        terms: list[tuple[int, int]] = []
        for position, (offset, stride) in enumerate(zip(offsets, scaled, strict=True)):
            factor = 1 if plain_last and position == len(offsets) - 1 else stride
            assert isinstance(factor, int), "strides were found to be numbers"
            if isinstance(offset, int):
                base += offset * factor
            else:
                terms.append((slots[offset], factor))
        return _fixed(slot, base, terms, fixed_sizes, fixed_strides, what)

    def number(regs: list[Any], entry: int | SSAValue) -> int:
        return entry if isinstance(entry, int) else one_number(regs[slots[entry]])

    def locate(regs: list[Any]) -> MemRef:
        counts = tuple(number(regs, entry) for entry in sizes)
        steps = tuple(number(regs, entry) for entry in entries)
        if min(counts, default=1) < 0:
            raise Fault("bad-window", f"{what} has a negative size: {list(counts)}", "make the sizes positive")
        at: Any = 0
        for position, (offset, stride) in enumerate(zip(offsets, steps[len(steps) - len(offsets) :], strict=True)):
            factor = 1 if plain_last and position == len(offsets) - 1 else stride
            at = at + (offset if isinstance(offset, int) else regs[slots[offset]]) * factor
        return regs[slot].linear(at, counts, steps, what=what)

    return locate


def numbers(entries: Sequence[int | SSAValue]) -> list[int | SSAValue]:
    """The entries of a window, with the number in place of a value that is an index constant."""
    return [entry if isinstance(entry, int) else constant_of(entry) for entry in entries]


def dense_tail(shape: tuple[int, ...], count: int) -> list[int | SSAValue]:
    """Strides of the innermost `count` dimensions of a dense memref."""
    strides: list[int | SSAValue] = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return strides[len(strides) - count :] if count <= len(strides) else [0] * (count - len(strides)) + strides


def _fixed(
    slot: int,
    base: int,
    terms: Sequence[tuple[int, int]],
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    what: str,
) -> Locate:
    """A window of which only offsets move."""
    if not terms:
        return lambda regs: regs[slot].linear(base, sizes, strides, what=what)
    if len(terms) == 1:
        ((source, factor),) = terms
        return lambda regs: regs[slot].linear(regs[source] * factor + base, sizes, strides, what=what)

    def locate(regs: list[Any]) -> MemRef:
        at: Any = base
        for source, factor in terms:
            at = at + regs[source] * factor
        return regs[slot].linear(at, sizes, strides, what=what)

    return locate


def count_of(shape: tuple[int, ...]) -> int:
    """Elements in a window of these sizes."""
    return math.prod(shape)


@lru_cache(maxsize=4096)
def common_shape(
    left: tuple[int, ...], left_strides: tuple[int, ...], right: tuple[int, ...], right_strides: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """One shape, with strides for either side, that walks both windows in the same order; None where none exists."""
    a = [(size, stride) for size, stride in zip(left, left_strides, strict=True) if size != 1]
    b = [(size, stride) for size, stride in zip(right, right_strides, strict=True) if size != 1]
    shape: list[int] = []
    steps_a: list[int] = []
    steps_b: list[int] = []
    while a and b:
        (size_a, step_a), (size_b, step_b) = a.pop(), b.pop()
        size = min(size_a, size_b)
        if size == 0 or size_a % size or size_b % size:
            return None
        shape.insert(0, size)
        steps_a.insert(0, step_a)
        steps_b.insert(0, step_b)
        if size_a > size:
            a.append((size_a // size, step_a * size))
        if size_b > size:
            b.append((size_b // size, step_b * size))
    if a or b:
        return None
    return tuple(shape), tuple(steps_a), tuple(steps_b)


def seen_as(part: MemRef, shape: tuple[int, ...], strides: tuple[int, ...]) -> MemRef:
    """The same elements of a window under another shape."""
    if shape == part.shape and strides == part.strides:
        return part
    return MemRef(part.buffer, shape, strides, part.offset, part.dx, part.dy, part.x0, part.y0, part.gx, part.gy)


def move(source: MemRef, target: MemRef, pads: Pads | None = None) -> int:
    """Copy one window into the other, element after element; returns how many elements each lane moved.

    Raises:
        Fault: the windows hold different numbers of elements.
        UnwrittenRead: a result leaves for L3 from a window that nobody wrote into at all.
    """
    if source.buffer.missing and source.buffer.space != 0 and target.buffer.space == 0 and source.is_unwritten():
        raise UnwrittenRead(source)
    if source.shape == target.shape and pads is None:
        if target.shape == target.buffer.shape and target.whole and can_borrow(source, target):
            target.buffer.borrow(source.buffer, source.array(), source.origin())
            return source.size
        target.write(source.array(), source.unwritten_part() if source.buffer.missing else None)
        return source.size
    if pads is not None:
        values, mask = padded(source, pads)
        count = math.prod(values.shape[2:])
        _check_counts(count, target, source)
        lanes = values.shape[:2]
        target.write(
            values.reshape(*lanes, *target.shape),
            None if mask is None else mask.reshape(*mask.shape[:2], *target.shape),
        )
        return count
    _check_counts(source.size, target, source)
    walked = common_shape(source.shape, source.strides, target.shape, target.strides)
    if walked is not None:
        shape, from_strides, to_strides = walked
        source, target = seen_as(source, shape, from_strides), seen_as(target, shape, to_strides)
        target.write(source.array(), source.unwritten_part() if source.buffer.missing else None)
        return source.size
    values = source.array()
    mask = source.unwritten_part()
    target.write(
        values.reshape(*values.shape[:2], *target.shape),
        None if mask is None else mask.reshape(*mask.shape[:2], *target.shape),
    )
    return source.size


def can_borrow(source: MemRef, target: MemRef) -> bool:
    """Whether a copy may wait until one side is written: from L2 to a core, or of what nothing ever writes."""
    held, taker = source.buffer, target.buffer
    return (
        ((held.space == 1 and taker.space == 2) or held.constant)
        and target.dense
        and not held.missing
        and (held.alias is None or (held.source is not None and held.source.constant))
        and not held.deferred
        and not taker.freed
        and target.gx == taker.lanes[0]
        and target.gy == taker.lanes[1]
    )


def _check_counts(count: int, target: MemRef, source: MemRef) -> None:
    if count != target.size:
        raise Fault(
            "count-mismatch",
            f"{count} elements come from {source.buffer.name} (sizes {list(source.shape)}) and {target.size} fit into "
            f"the window on {target.buffer.name} (sizes {list(target.shape)})",
            "make the products of the two size lists equal",
        )


Pads = tuple[tuple[int, ...], tuple[int, ...]]
"""Zeros before and behind, for each dimension of the source window."""


def padded(source: MemRef, pads: Pads) -> tuple[Array, Array | None]:
    """The window's values with zeros around, and which of them nobody wrote."""
    before, behind = pads
    if not len(before) == len(behind) == len(source.shape):
        raise Fault(
            "bad-window",
            f"padding names {len(before)} and {len(behind)} dimensions, the source window has {len(source.shape)}",
            "give one number for each dimension of the source window",
        )
    width = [(0, 0), (0, 0), *zip(before, behind, strict=True)]
    mask = source.unwritten_part()
    return np.pad(source.array(), width), None if mask is None else np.pad(mask, width)
