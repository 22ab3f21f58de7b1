"""Matrix multiplications put off: calls that add to one accumulator are made as one, deeper along K.

A loop over K calls the kernel once a tile, each time adding to the same float32 accumulator. Nobody looks at the
accumulator between, so the tiles of A and B are kept until somebody does and then multiplied together. Only the order
of the float32 sum changes, within what the kernel leaves open anyway, and it changes alike for all tiles of a herd,
however they are grouped: a chain ends after `LONGEST` calls or when its own window is looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from npu_tools.emulator.kernels.gemm import Product
from npu_tools.emulator.types import Array

if TYPE_CHECKING:
    from npu_tools.emulator.kernels import ExternalKernel
    from npu_tools.emulator.memory import MemRef
    from npu_tools.emulator.numerics import Numerics

LONGEST = 16
"""Calls made as one at most."""
DEPTH_AXES = {"gemm_blocked": (-4, -3)}
"""Families that may be put off: where K lies in their A [K/s, M/r, r, s] and B [N/t, K/s, s, t]."""

Key = tuple[int, ...]
_Tile = tuple[Array, "tuple[Any, ...] | None"]
"""A tile of A or B, and its origin."""


def can_wait(kernel: ExternalKernel, elements: tuple[str, ...]) -> bool:
    """Whether calls of a kernel may be made later, together."""
    return (
        kernel.family in DEPTH_AXES
        and kernel.accumulators == (2,)
        and set(kernel.reads) == {0, 1, 2}
        and kernel.writes == (2,)
        and elements[2] == "f32"
    )


@dataclass(slots=True, eq=False)
class Chain:
    """Calls that add to one window, and the elements [low, high) of the buffer it spans."""

    kernel: ExternalKernel
    numerics: Numerics
    target: MemRef
    low: int
    high: int
    left: list[_Tile] = field(default_factory=list["_Tile"])
    right: list[_Tile] = field(default_factory=list["_Tile"])

    def make(self) -> None:
        """Make the calls."""
        kernel, numerics = self.kernel, self.numerics
        left, right, self.left, self.right = self.left, self.right, [], []
        along_a, along_b = DEPTH_AXES[kernel.family]
        orders, product = kernel.storage_order, kernel.detail
        if not isinstance(product, Product):
            a, b = _joined(left, along_a, orders[0]), _joined(right, along_b, orders[1])
            kernel.run(numerics, a, b, self.target.writable())
            return
        a = self._taken_in("left", left, lambda: product.left(numerics, _joined(left, along_a, orders[0])))
        b = self._taken_in("right", right, lambda: product.right(numerics, _joined(right, along_b, orders[1])))
        product.add(numerics, a, b, self.target.writable())

    def _taken_in(self, side: str, tiles: list[_Tile], make: Callable[[], Array]) -> Array:
        """An operand as the unit takes it in; kept where it is made of what is never written, for the next launch."""
        key = (self.kernel.run, side, *(origin for _, origin in tiles))
        if self.numerics.report is not None or any(origin is None for _, origin in tiles):
            return make()
        pool = self.target.buffer.pool
        found = pool.kept.get(key)
        if found is None:
            found = make()
            pool.keep(key, found)
        return found


def _joined(tiles: list[_Tile], axis: int, order: tuple[int, ...] | None) -> Array:
    """The tiles one behind the other along `axis`, laid out in memory as the kernel likes it."""
    parts = [part for part, _ in tiles]
    lanes = (max(part.shape[0] for part in parts), max(part.shape[1] for part in parts))
    shape = [*lanes, *parts[0].shape[2:]]
    step = shape[axis]
    shape[axis] = step * len(parts)
    axes = order or tuple(range(len(shape)))
    stored = np.empty([shape[at] for at in axes], parts[0].dtype)
    whole = stored.transpose(np.argsort(axes))
    behind = (slice(None),) * (-1 - axis)
    for position, part in enumerate(parts):
        whole[(..., slice(position * step, (position + 1) * step), *behind)] = part
    return whole


def key_of(target: MemRef) -> Key:
    """What tells windows of one buffer apart."""
    return (target.offset, target.dx, target.dy, target.x0, target.y0, target.gx, target.gy)


def put_off(kernel: ExternalKernel, numerics: Numerics, refs: list[Any]) -> None:
    """Note a call on A, B and C, to be made when C is looked at."""
    a, b, c = refs
    left, right = a.read(), b.read()
    buffer = c.buffer
    key = key_of(c)
    chain = buffer.deferred.get(key)
    if chain is None or chain.kernel.run is not kernel.run:
        c.read()
        low, high = c.span()
        chain = buffer.deferred[key] = Chain(kernel, numerics, c, low, high)
        buffer.version += 1
    chain.left.append((left, a.origin()))
    chain.right.append((right, b.origin()))
    a.buffer.lend()
    b.buffer.lend()
    if len(chain.left) >= LONGEST:
        del buffer.deferred[key]
        chain.make()
