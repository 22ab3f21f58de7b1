"""Sums of products over any loops: matmul, batched and blocked forms, matrix times vector, convolutions.

Which unit computes decides about rounding. bf16 operands with rows and columns go to AIE2P's matrix unit: BFP16 along
the reduction (blocks of 8 of the innermost reduction loops), float32 sums. Without rows or columns (matvec, dot, GEMV)
the vector MACs take bf16 exactly and sum in float32. Integers are exact and wrap when stored.

The accumulator stays float32 within one op and is rounded to its type once at its end. For a bf16 accumulator that is
what explains the published errors of the direct-codegen GEMM (low_precision.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from xdsl.ir.affine import AffineMap

from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.ops.domain import Access, access, plain_dims, used_dims
from npu_tools.emulator.types import Array, Fault


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor: its access, and how the view becomes [gx|1, gy|1, batch, first, second]."""

    access: Access
    axes: tuple[int, ...]
    whole: tuple[int, ...] | None
    matrix: tuple[int, int, int]

    def of(self, array: Array) -> Array:
        """The factor as a stack of matrices; loops it does not use are repeated."""
        view = self.access.over(array).transpose(self.axes)
        lanes = view.shape[:2]
        if self.whole is not None:
            view = np.broadcast_to(view.reshape(*lanes, *view.shape[2 : 2 + len(self.whole)]), (*lanes, *self.whole))
        return view.reshape(*lanes, *self.matrix)


@dataclass(frozen=True, slots=True)
class Contraction:
    """A sum of products, settled when the op is lowered."""

    name: str
    left: Operand
    right: Operand
    spread: tuple[int, ...]
    axes: tuple[int, ...]
    matrix_unit: bool

    def of(self, a: Array, b: Array, numerics: Numerics) -> Array:
        """Sum over the loops the output leaves out of a * b: [gx|1, gy|1, *out] in the order of its map.

        float32 for floats (float64 for f64), int64 for integers.
        """
        left, right = self.left.of(a), self.right.of(b)
        if left.dtype.kind in "iub":
            product = integer_product(left, right)
        elif self.matrix_unit:
            product = numerics.matmul(left, right, kind=f"{self.name} (bfp16)")
        else:
            kind = np.float64 if left.dtype == np.float64 else np.float32
            product = np.matmul(left.astype(kind, copy=False), right.astype(kind, copy=False))
        return product.reshape(*product.shape[:2], *self.spread).transpose(self.axes)


def contraction(
    name: str,
    maps: Sequence[AffineMap],
    sizes: Sequence[int],
    shapes: Sequence[Sequence[int]],
    *,
    matrix_unit: bool,
) -> Contraction:
    """The contraction of two operands of these shapes; the third map is the output's.

    `matrix_unit` asks for AIE2P's matrix unit, which it gets where there are rows and columns.

    Raises:
        Fault: the output's map is no projected permutation.
    """
    out = plain_dims(maps[2])
    if out is None:
        raise Fault("unsupported-op", f"{name}: the output is not indexed by plain loops", "index it by loops alone")
    in_a, in_b = used_dims(maps[0]), used_dims(maps[1])
    summed = [d for d in range(len(sizes)) if d not in out]
    batch = [d for d in out if d in in_a and d in in_b]
    rows = [d for d in out if d in in_a and d not in in_b]
    columns = [d for d in out if d not in in_a]
    order = [*batch, *rows, *columns]
    return Contraction(
        name,
        _operand(access(maps[0], sizes, shapes[0]), batch, rows, summed, sizes),
        _operand(access(maps[1], sizes, shapes[1]), batch, summed, columns, sizes),
        tuple(sizes[d] for d in order),
        (0, 1, *(2 + order.index(d) for d in out)),
        matrix_unit and _extent(rows, sizes) > 1 and _extent(columns, sizes) > 1,
    )


def _extent(dims: Sequence[int], sizes: Sequence[int]) -> int:
    return math.prod(sizes[d] for d in dims)


def _operand(seen: Access, batch: list[int], first: list[int], second: list[int], sizes: Sequence[int]) -> Operand:
    order = [*batch, *first, *second]
    rest = [d for d in range(len(sizes)) if d not in order]
    whole = tuple(sizes[d] for d in order)
    repeated = any(seen.extents[d] != sizes[d] for d in order)
    return Operand(
        seen,
        (0, 1, *(2 + d for d in order), *(2 + d for d in rest)),
        whole if repeated else None,
        (_extent(batch, sizes), _extent(first, sizes), _extent(second, sizes)),
    )


def integer_product(a: Array, b: Array) -> Array:
    """The exact product in int64 (wrapping at 64 bits), by float BLAS where every sum stays exact there."""
    bits = [1 if x.dtype == np.bool_ else x.dtype.itemsize * 8 for x in (a, b)]
    bound = (1 << bits[0]) * (1 << bits[1]) * a.shape[-1]
    if bound <= 1 << 53:
        return np.rint(np.matmul(a.astype(np.float64), b.astype(np.float64))).astype(np.int64)
    return np.matmul(a.astype(np.int64), b.astype(np.int64))
