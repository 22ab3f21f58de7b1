"""One block of keys for the query tiles of a herd: five calls of attn_npu2.o as one, bit for bit.

`zero_fill_g_bf16`, `matmul_a_b_bf16`, `fused_softmax`, `mul_r_gp` and `matmul_g_b_bf16` in this order, as
flash_attention.py has them, without what lies between: scores are held as [lanes y, keys, queries of all lanes x], keys
in the order in which the matrix unit's blocks of weights want them, so that every reduction runs across long rows.

Why the bits are the same:

- A float32 is rounded to bf16 by Veltkamp's splitting, x*c - (x*c - x) with c = 2**16 + 1. For 24 and 8 bits it also
  takes ties to even (tested for every mantissa). It fails on infinities, NaN and above 2**110, where it gives NaN: such
  blocks go through the five kernels. It keeps more bits of what is below 2**-126, which no weight can show.
- The core's exp2 is a line between powers of two, so its bf16 result is the number x + 127 in steps of 2**-7, rounded to
  an integer, as the upper half of a float32 (tested for every bf16 difference).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npu_tools.emulator.kernels.flash_attention import (
    LOG2_E,
    LOWEST,
    Kernels,
    by_depth,
    taken_in,
)
from npu_tools.emulator.kernels.gemm import tile_dims
from npu_tools.emulator.kernels.kernel import Array, ExternalKernel
from npu_tools.emulator.kernels.lanes import flat, shaped
from npu_tools.emulator.numerics import Numerics

CALLS = ("zero_fill", "matmul_a_b_bf16", "fused_softmax", "mul_r_gp", "matmul_g_b_bf16")
"""The families of the five calls."""

_SPLIT = np.float32(65537)
_STEPS = 128
# 1.5 * 2**23, where a float32 counts whole numbers, plus 127 in steps: the sum's low half is the bf16.
_COUNTS = np.float32(1.5 * 2**23 + 127 * _STEPS)
_SMALLEST = np.float32(-126 * _STEPS)
_NOTHING = np.float32(-127 * _STEPS)
_EXPONENT = np.uint32(0x7F800000)
_HIGH, _SIGN, _QUIET_NAN = np.uint32(0xFFFF0000), np.uint32(0x80000000), np.uint32(0x7FC00000)
_ONE, _HALF_LESS, _SIXTEEN = np.uint32(1), np.uint32(0x7FFF), np.uint32(16)
_MAGIC, _TOP = np.float32(1.5 * 2**17), np.float32(127 / 64)
_AT_ONCE = 32 * 1024
"""Scores worked on at once, so that they and what is made of them stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the calls of one object have in common."""

    kernels: Kernels
    bfp16: bool


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The arrays of the five calls, [lanes x|1, lanes y, …]."""

    queries: Array
    keys: Array
    scores: Array
    top: Array
    total: Array
    ratio: Array
    values: Array
    output: Array


@dataclass(slots=True)
class Workspace:
    """Storage and query tiles that the steps of one plan share."""

    arrays: dict[tuple[Any, ...], Array] = field(default_factory=dict[tuple[Any, ...], Array])
    queries: dict[int, Array] = field(default_factory=dict[int, Array])

    def array(self, name: str, shape: tuple[int, ...]) -> Array:
        """An array of that shape with any contents; the same for the same name."""
        found = self.arrays.get((name, shape))
        if found is None:
            found = self.arrays[name, shape] = np.empty(shape, np.float32)
        return found


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Lanes, rows, depth, keys and width of a step."""

    gx: int
    gy: int
    rows: int
    depth: int
    keys: int
    width: int


def composed(
    numerics: Numerics, kernels: list[ExternalKernel], operands: Operands, workspace: Workspace, *, fresh: bool
) -> Callable[[], None] | None:
    """The five calls as one; None where they are not what this module knows. `fresh`: queries may have changed."""
    stages = [kernel.detail for kernel in kernels]
    stage = stages[1]
    if not isinstance(stage, Stage) or any(other != stage for other in stages[2:]):
        return None
    if stage.kernels.build.name != "npu2" or not stage.bfp16 or numerics.exact or numerics.report is not None:
        return None
    sizes = _sizes(operands)
    if sizes is None:
        return None
    return _Step(numerics, stage.kernels, kernels, operands, workspace, sizes, fresh).run


def _sizes(operands: Operands) -> _Sizes | None:
    arrays = (operands.scores, operands.top, operands.total, operands.ratio, operands.output)
    gx, gy = operands.scores.shape[:2]
    if any(array.shape[:2] != (gx, gy) or not array.flags.c_contiguous for array in arrays):
        return None
    shared = (operands.keys.shape[:2], operands.values.shape[:2])
    if shared != ((1, gy), (1, gy)) or operands.queries.shape[:2] != (gx, gy):
        return None
    counts = {
        name: flat(getattr(operands, name)).shape[-1] for name in ("queries", "keys", "scores", "values", "output")
    }
    rows, depth, keys = tile_dims("matmul_a_b_bf16", counts["queries"], counts["keys"], counts["scores"])
    again, deep, width = tile_dims("matmul_g_b_bf16", counts["scores"], counts["values"], counts["output"])
    if (again, deep) != (rows, keys) or any(size % 8 for size in (rows, depth, keys, width)):
        return None
    if any(flat(array).shape[-1] != rows for array in (operands.top, operands.total, operands.ratio)):
        return None
    return _Sizes(gx, gy, rows, depth, keys, width)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    numerics: Numerics
    kernels: Kernels
    calls: list[ExternalKernel]
    operands: Operands
    workspace: Workspace
    sizes: _Sizes
    fresh: bool

    def run(self) -> None:
        """All lanes: first what is read, by some rows of the herd at a time, then what is written."""
        o, s, numerics, work = self.operands, self.sizes, self.numerics, self.workspace
        queries, keys, values = self._queries(), self._keys(), self._values()
        columns = s.gx * s.rows
        old = _as_columns(o.top)
        top, sums = np.empty_like(old), np.empty((s.gy, 8, columns), np.float32)
        product = work.array("product", (s.gy, columns, s.width))
        at_once = max(1, _AT_ONCE // (columns * s.keys))
        for start in range(0, s.gy, at_once):
            lanes = slice(start, min(s.gy, start + at_once))
            weights = self._weights(queries[lanes], keys[lanes], old[lanes], top[lanes])
            if weights is None:
                self._by_kernels()
                return
            blocks = weights.reshape(-1, 8, s.keys // 8, columns)
            np.add.reduce(blocks, axis=2, out=sums[lanes])
            _quantise(blocks)
            np.matmul(weights.swapaxes(1, 2), values[lanes], out=product[lanes])
        ratio = self.kernels.exp(numerics, self.kernels.difference(numerics, old, top))
        _from_columns(o.ratio, ratio)
        _from_columns(o.top, top)
        _from_columns(o.total, self.kernels.narrow(numerics, _halves(sums)))
        self._accumulate(ratio, product)

    def _queries(self) -> Array:
        """Queries as the unit takes them in: [lanes y, depth, queries of all lanes x]."""
        operands, sizes = self.operands, self.sizes
        key = operands.queries.ctypes.data
        found = self.workspace.queries.get(key)
        if found is None or self.fresh:
            taken = taken_in(self.numerics, True, by_depth(operands.queries, sizes.depth, sizes.rows))
            found = np.ascontiguousarray(taken.transpose(1, 2, 3, 0, 4)).reshape(sizes.gy, sizes.depth, -1)
            self.workspace.queries[key] = found
        return found

    def _keys(self) -> Array:
        """Keys as the unit takes them in: [lanes y, depth, keys]."""
        s = self.sizes
        blocks = shaped(self.operands.keys, s.depth // 8, s.keys // 8, 8, 8)[0].transpose(0, 4, 1, 3, 2)
        whole = np.ascontiguousarray(blocks).reshape(1, s.gy, 8, s.depth // 8, s.keys)
        return taken_in(self.numerics, True, whole).reshape(s.gy, s.depth, s.keys)

    def _values(self) -> Array:
        """Values as the unit takes them in: [lanes y, keys, width]."""
        s = self.sizes
        whole = by_depth(self.operands.values, s.keys, s.width, (0, 1, 4, 3, 2, 5))
        return taken_in(self.numerics, True, whole).reshape(s.gy, s.keys, s.width)

    def _by_kernels(self) -> None:
        o = self.operands
        arguments = (
            (o.scores,),
            (o.queries, o.keys, o.scores),
            (o.scores, o.top, o.total, o.ratio),
            (o.ratio, o.output),
            (o.scores, o.values, o.output),
        )
        for call, given in zip(self.calls, arguments, strict=True):
            call.run(self.numerics, *given)

    def _weights(self, queries: Array, keys: Array, old: Array, top: Array) -> Array | None:
        """Weights [lanes y, keys, columns], and the new maxima in `top`; None where there are values this cannot take."""
        shape = (len(keys), keys.shape[2], queries.shape[2])
        scores, spare = self.workspace.array("scores", shape), self.workspace.array("spare", shape)
        np.matmul(keys.swapaxes(1, 2), queries, out=scores)
        to_bf16(scores, spare)
        np.maximum.reduce(scores, axis=1, out=top)
        np.maximum(top, LOWEST, out=top)
        np.maximum(top, old, out=top)
        np.subtract(scores, top[:, None], out=scores)
        to_bf16(scores, spare)
        return scores if weights_of(scores, self.numerics, self.kernels) else None

    def _accumulate(self, ratio: Array, product: Array) -> None:
        """output = bf16(bf16(output * ratio) + product), in the tile's blocks [width/8, rows, 8]."""
        s, output = self.sizes, self.operands.output
        shape = (s.gx, s.gy, s.width // 8, s.rows, 8)
        spread = self.workspace.array("spread", shape)
        row = np.dtype((np.void, 8 * spread.itemsize))
        moved = product.reshape(s.gy, s.gx, s.rows, s.width).view(row)
        spread.view(row)[..., 0] = moved.transpose(1, 0, 3, 2)
        factors = np.repeat(ratio.reshape(s.gy, s.gx, s.rows).swapaxes(0, 1), 8, axis=-1)
        for x in range(s.gx):
            total, part = output[x].reshape(s.gy, s.width // 8, s.rows * 8), spread[x].reshape(s.gy, s.width // 8, -1)
            scratch = self.workspace.array("scratch", total.shape).view(np.uint32)
            np.multiply(total, factors[x, :, None], out=total)
            _nearest_even(total.view(np.uint32), scratch)
            np.add(total, part, out=total)
            _nearest_even(total.view(np.uint32), scratch)
            if np.isnan(total.max()):
                words, nan = total.view(np.uint32), np.isnan(total)
                words[nan] = (words[nan] & _SIGN) | _QUIET_NAN


def weights_of(differences: Array, numerics: Numerics, kernels: Kernels) -> bool:
    """bf16 differences, none positive, made weights in place; False where one is NaN."""
    factor = np.float32(numerics.round_to(np.float32(LOG2_E * kernels.scale), "bf16"))
    np.multiply(differences, factor * np.float32(_STEPS), out=differences)
    low = differences.min()
    if not low >= _SMALLEST:
        if np.isnan(low):
            return False
        np.copyto(differences, _NOTHING, where=differences < _SMALLEST)
    np.add(differences, _COUNTS, out=differences)
    words = differences.view(np.uint32)
    np.left_shift(words, _SIXTEEN, out=words)
    return True


def to_bf16(values: Array, spare: Array) -> None:
    """Rounded in place, see the module's text."""
    np.multiply(values, _SPLIT, out=spare)
    np.subtract(spare, values, out=values)
    np.subtract(spare, values, out=values)


def _nearest_even(words: Array, scratch: Array) -> None:
    """float32 words rounded to bf16 in place; NaN stays NaN."""
    np.right_shift(words, _SIXTEEN, out=scratch)
    np.bitwise_and(scratch, _ONE, out=scratch)
    np.add(scratch, _HALF_LESS, out=scratch)
    np.add(words, scratch, out=words)
    np.bitwise_and(words, _HIGH, out=words)


def _quantise(blocks: Array) -> None:
    """Weights [lanes, 8, blocks, columns], none negative, as the unit takes them in; in place."""
    largest = np.maximum.reduce(blocks, axis=1)
    scale = (largest.view(np.uint32) & _EXPONENT).view(np.float32)[:, None]
    magic = scale * _MAGIC
    np.add(blocks, magic, out=blocks)
    np.subtract(blocks, magic, out=blocks)
    np.minimum(blocks, scale * _TOP, out=blocks)


def _halves(parts: Array) -> Array:
    """[lanes, 8, columns] summed over the second axis, upper half onto lower half."""
    while parts.shape[1] > 1:
        half = parts.shape[1] // 2
        parts = parts[:, :half] + parts[:, half:]
    return parts[:, 0]


def _as_columns(vector: Array) -> Array:
    """A row vector [gx, lanes, rows…] as [lanes, gx * rows]."""
    return np.ascontiguousarray(flat(vector).swapaxes(0, 1)).reshape(vector.shape[1], -1)


def _from_columns(vector: Array, values: Array) -> None:
    """Write [lanes, gx * rows] into a row vector [gx, lanes, rows…]."""
    lanes = vector.shape[1]
    vector[...] = values.reshape(lanes, vector.shape[0], -1).swapaxes(0, 1).reshape(vector.shape)
