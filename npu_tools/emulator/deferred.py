"""Matrix multiplications put off: calls that add to one accumulator are made as one, deeper along K.

A loop over K calls the kernel once a tile, each time adding to the same float32 accumulator. Nobody looks at the
accumulator between, so the tiles of A and B are kept until somebody does and then multiplied together. Only the order
of the float32 sum changes, within what the kernel leaves open anyway, and it changes alike for all tiles of a herd,
however they are grouped: a chain ends after `LONGEST` calls or when its own window is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

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
    left: list[Array] = field(default_factory=list[Array])
    right: list[Array] = field(default_factory=list[Array])

    def make(self) -> None:
        """Make the calls."""
        along_a, along_b = DEPTH_AXES[self.kernel.family]
        orders = self.kernel.storage_order
        a, b = _joined(self.left, along_a, orders[0]), _joined(self.right, along_b, orders[1])
        self.left, self.right = [], []
        self.kernel.run(self.numerics, a, b, self.target.writable())


def _joined(parts: list[Array], axis: int, order: tuple[int, ...] | None) -> Array:
    """The tiles one behind the other along `axis`, laid out in memory as the kernel likes it."""
    lanes = (max(part.shape[0] for part in parts), max(part.shape[1] for part in parts))
    shape = [*lanes, *parts[0].shape[2:]]
    step = shape[axis]
    shape[axis] = step * len(parts)
    axes = order or tuple(range(len(shape)))
    stored = np.empty([shape[at] for at in axes], parts[0].dtype)
    whole = stored.transpose(np.argsort(axes))
    along = np.moveaxis(whole, axis, 0)
    for position, part in enumerate(parts):
        along[position * step : (position + 1) * step] = np.moveaxis(part, axis, 0)
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
    chain.left.append(left)
    chain.right.append(right)
    a.buffer.lend()
    b.buffer.lend()
    if len(chain.left) >= LONGEST:
        del buffer.deferred[key]
        chain.make()
