"""Views of kernel operands that keep the two lane axes in front.

Kernels see flat memory in C++; here a tile `[gx, gy, *shape]` is viewed as `[gx, gy, n]`, as a row-major matrix
`[gx, gy, R, C]`, or as blocks. Views share memory where the strides allow it, and `store` writes through either way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from npu_tools.emulator.kernels.kernel import Array
from npu_tools.emulator.types import LanesDiffer
from npu_tools.errors import UnusableInput

Outer = Literal["rows", "columns"]
"""Which block index runs slowest: "rows" is [R/r, C/c, r, c], "columns" is [C/c, R/r, r, c]."""


def flat(view: Array) -> Array:
    """The tile as the C++ pointer walks it, `[gx, gy, n]`; shares memory unless the storage order forbids it."""
    return view.reshape(*view.shape[:2], -1)


def shaped(view: Array, *shape: int) -> Array:
    """The tile's elements in memory order as `[gx, gy, *shape]`."""
    return view.reshape(*view.shape[:2], *shape)


def store(view: Array, values: Array) -> None:
    """Write values, of any shape with the tile's elements in memory order, into every lane of the view."""
    view[...] = values.reshape(*values.shape[:2], *view.shape[2:])


def merged(view: Array, axes: Sequence[Sequence[int]]) -> Array:
    """The array with each group of axes merged into one; a view if strides merge, else a copy.

    `merged(blocks, [[0], [1], [3, 4], [2, 5]])` reads `[gx, gy, C/c, R/r, r, c]` as `[gx, gy, R, C]`.
    """
    order = [axis for group in axes for axis in group]
    shape = [math.prod([view.shape[axis] for axis in group]) for group in axes]
    return view.transpose(order).reshape(shape)


def block_axes(outer: Outer, first: int = 2) -> tuple[tuple[int, int], tuple[int, int]]:
    """Axes of a blocked tile that make its rows and its columns, counting block axes from `first`."""
    row_block, column_block = (first, first + 1) if outer == "rows" else (first + 1, first)
    return (row_block, first + 2), (column_block, first + 3)


def matrix_from_blocks(blocks: Array, outer: Outer) -> Array:
    """A blocked tile `[gx, gy, ., ., r, c]` as the row-major matrix `[gx, gy, R, C]`."""
    rows, columns = block_axes(outer)
    return merged(blocks, [[0], [1], rows, columns])


def natural_view(blocks: Array, outer: Outer) -> Array:
    """A blocked tile with its axes in natural order, `[gx, gy, R/r, r, C/c, c]`: always a view, to write through."""
    rows, columns = block_axes(outer)
    return blocks.transpose(0, 1, *rows, *columns)


def blocks_from_flat(view: Array, rows: int, columns: int, block: tuple[int, int], outer: Outer) -> Array:
    """A tile of `rows` x `columns` in memory order as its blocks `[gx, gy, ., ., r, c]`."""
    down, across = rows // block[0], columns // block[1]
    return shaped(view, *((down, across) if outer == "rows" else (across, down)), *block)


def lane_scalar(value: Array | float | int) -> Array:
    """A scalar operand as an array `[gx|1, gy|1]`."""
    array = np.asarray(value)
    return array if array.ndim == 2 else array.reshape(1, 1)


def uniform(value: Array | float | int) -> int:
    """A scalar operand that must be the same in all lanes, as an int.

    Raises:
        LanesDiffer: it is not; the scheduler then runs the lanes one by one.
    """
    array = np.asarray(value)
    first = array.reshape(-1)[0]
    if array.size > 1 and not bool((array == first).all()):
        raise LanesDiffer
    return int(first)


def write_part(target: Array, values: Array, start: int) -> None:
    """Write values [gx, gy, n] into a tile's elements from `start` on.

    Raises:
        UnusableInput: they do not fit.
    """
    whole = flat(target)
    if start < 0 or start + values.shape[-1] > whole.shape[-1]:
        raise UnusableInput(
            f"a kernel writes elements {start} to {start + values.shape[-1]} of a tile that has {whole.shape[-1]}; "
            "check the sizes and offsets it is called with"
        )
    whole[..., start : start + values.shape[-1]] = values
    if not np.shares_memory(whole, target):
        target[...] = whole.reshape(target.shape)
