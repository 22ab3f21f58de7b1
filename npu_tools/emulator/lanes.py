"""Lanes of a group: slicing register values, finding rectangles, and telling which lane values follow a line.

A lane value is an array [gx|1, gy|1]; an axis of length 1 is shared by all lanes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from npu_tools.emulator.types import Array, Index, LanesDiffer


@dataclass(frozen=True, slots=True)
class Lanes:
    """A rectangle of lanes: `nx` by `ny` from (`x0`, `y0`)."""

    x0: int
    nx: int
    y0: int
    ny: int

    @property
    def count(self) -> int:
        """How many lanes."""
        return self.nx * self.ny


_LINES: dict[tuple[bytes, tuple[int, ...]], tuple[int, int, int] | None] = {}
_LINES_KEPT = 4096


def line(value: Index) -> tuple[int, int, int]:
    """`(base, dx, dy)` such that lane (x, y) holds `base + x*dx + y*dy`.

    Raises:
        LanesDiffer: the lanes hold values that follow no such line.
    """
    if not isinstance(value, np.ndarray):
        return int(value), 0, 0
    key = (value.tobytes(), value.shape)
    try:
        found = _LINES[key]
    except KeyError:
        if len(_LINES) > _LINES_KEPT:
            _LINES.clear()
        found = _LINES[key] = _fit_line(value)
    if found is None:
        raise LanesDiffer
    return found


def _fit_line(value: Array) -> tuple[int, int, int] | None:
    nx, ny = value.shape[:2]
    base = int(value[0, 0])
    dx = int(value[1, 0]) - base if nx > 1 else 0
    dy = int(value[0, 1]) - base if ny > 1 else 0
    columns: Array = np.arange(nx, dtype=np.int64).reshape(-1, 1)
    rows: Array = np.arange(ny, dtype=np.int64).reshape(1, -1)
    expected: Array = base + dx * columns + dy * rows
    return (base, dx, dy) if np.array_equal(expected, value) else None


def cut(value: Any, lanes: Lanes) -> Any:
    """A register value for a part of the lanes of its group."""
    if isinstance(value, np.ndarray):
        array = cast("Array", value)
        if array.ndim < 2:
            return array
        part = array[lanes.x0 : lanes.x0 + lanes.nx] if array.shape[0] > 1 else array
        part = part[:, lanes.y0 : lanes.y0 + lanes.ny] if part.shape[1] > 1 else part
        return uniform(part) if part.ndim == 2 and part.size == 1 else part
    if hasattr(value, "lanes_cut"):
        return value.lanes_cut(lanes)
    return value


def uniform(value: Array) -> Any:
    """The one element of a lane value [1, 1] as a plain scalar."""
    scalar = value[0, 0]
    return int(scalar) if scalar.dtype == np.int64 else scalar


_RECTANGLES: dict[tuple[bytes, tuple[int, ...]], tuple[Lanes, ...]] = {}


def rectangles(mask: Array) -> tuple[Lanes, ...]:
    """The true lanes of a boolean [gx, gy] as rectangles, each as large as can be grown greedily."""
    key = (mask.tobytes(), mask.shape)
    found = _RECTANGLES.get(key)
    if found is None:
        if len(_RECTANGLES) > _LINES_KEPT:
            _RECTANGLES.clear()
        found = _RECTANGLES[key] = tuple(_grow(mask))
    return found


def _grow(mask: Array) -> list[Lanes]:
    left = mask.copy()
    found: list[Lanes] = []
    nx, ny = left.shape
    while left.any():
        x0, y0 = (int(i) for i in np.argwhere(left)[0])
        y1 = y0
        while y1 < ny and left[x0, y1]:
            y1 += 1
        x1 = x0
        while x1 < nx and left[x1, y0:y1].all():
            x1 += 1
        found.append(Lanes(x0, x1 - x0, y0, y1 - y0))
        left[x0:x1, y0:y1] = False
    return found


def join(parts: Iterable[tuple[Lanes, Any]], gx: int, gy: int) -> Any:
    """One register value for all lanes from the values of the parts, the reverse of `cut`."""
    pieces = list(parts)
    first = pieces[0][1]
    if all(value is first for _, value in pieces):
        return first
    if not all(isinstance(value, np.ndarray | np.generic | int | float | bool) for _, value in pieces):
        raise LanesDiffer
    arrays = [(lanes, np.asarray(value)) for lanes, value in pieces]
    tail = max((array.shape[2:] for _, array in arrays), key=len)
    whole = np.empty((gx, gy, *tail), dtype=arrays[0][1].dtype)
    for lanes, array in arrays:
        whole[lanes.x0 : lanes.x0 + lanes.nx, lanes.y0 : lanes.y0 + lanes.ny] = array
    return whole
