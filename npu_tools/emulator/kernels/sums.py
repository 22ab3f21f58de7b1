"""Reductions whose bits do not depend on how many lanes are reduced together.

numpy's own sums choose their order by memory layout, and the layout changes with the number of lanes. These add in
halves, element-wise, like the vector unit's reduce_add.
"""

from __future__ import annotations

import numpy as np

from npu_tools.emulator.kernels.kernel import Array

_SHORT = 8


def tree_sum(values: Array, axis: int) -> Array:
    """The sum along one axis, as float32, adding the upper half onto the lower half until one is left."""
    moved = np.moveaxis(values, axis, -1)
    while (length := moved.shape[-1]) > _SHORT:
        half = (length + 1) // 2
        folded = np.array(moved[..., :half], dtype=np.float32)
        folded[..., : length - half] += moved[..., half:]
        moved = folded
    # Few are left: numpy is quick where they are the outermost axis.
    outer = np.array(np.moveaxis(moved, -1, 0), dtype=np.float32, order="C")
    while (length := outer.shape[0]) > 1:
        half = (length + 1) // 2
        outer[: length - half] += outer[half:length]
        outer = outer[:half]
    return outer[0]


def running_sum(values: Array, axis: int) -> Array:
    """The sum along one axis, as float32, one slice after the other as an accumulator register takes them."""
    moved = np.moveaxis(values, axis, 0)
    total = np.array(moved[0], dtype=np.float32)
    for part in moved[1:]:
        total += part
    return total
