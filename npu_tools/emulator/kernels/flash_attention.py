"""FlashAttention kernels: scores, running maximum, denominator and output of one query tile, all held in bf16.

Read in mlir-air programming_examples/flash_attention: kernel_fusion_based/attn_npu2.cc (built with ROUND_CONV_EVEN and
BFP16 emulation), kernel_fusion_based/attn_npu1.cc, dataflow_based/attn.cc and attn_aie2p.cc, and their zero.cc.

Four builds share the symbols; `Build` says how they differ. The object's name tells them apart: attn_npu1.o (AIE2,
4x8x4 blocks, exp by tables, floor), attn_npu2.o (AIE2P, 8x8x8 blocks through BFP16, exp2, nearest even), attn.o (the
dataflow example: row-major outside the products, for AIE2 or AIE2P by the width of the blocks its channels move).
llms/ copies attn_npu2.o to attn.o; a program that links attn.o but calls fused_softmax means that one.

Tiles. With R the block height (8 or 4): Q is [dk/8, lqp/R, R, 8]; K is [dk/8, lkp/R, R, 8], blocks of keys that the
kernel transposes (in attn.o K comes transposed: [lkp/R, dk/8, 8, R]); scores G and output Gp are [n/R, lqp/R, R, R];
V is [dv/R, lkp/8, 8, R]. Maximum, denominator and rescale vectors are [lqp].

Rounds: every product loads its bf16 accumulator, sums in float32 over the tile's depth and rounds once at the store;
each element-wise step rounds. attn_npu2 scales by 1/sqrt(dk_full) inside the exponent's factor, attn_npu1 scales the
scores; attn.o scales nowhere. dk_full is the head dimension and not in the kernel's types: it is taken from the option
`dk_full`, else from the last extent of the enclosing function's first argument when that is [heads, lq, dk], else
from the depth of matmul_a_b_bf16.

Options: `dk_full`, `dk_tile`, `dv_tile` (the C++ dk and dv), `bfp16` (False: the native bf16 unit, as SmolVLA builds
it), `build` ("npu1", "npu2", "dataflow", "dataflow_aie2p").

Simplified: sums of exponentials are added in a fixed tree instead of the vector's lanes; on AIE2 the table index
saturates at +-128 where the C++ takes the low half of a 32-bit value (upstream's masks would not work otherwise).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu_tools.emulator.kernels.gemm import tile_dims
from npu_tools.emulator.kernels.kernel import Array, Call
from npu_tools.emulator.kernels.lanes import (
    blocks_from_flat,
    flat,
    matrix_from_blocks,
    shaped,
)
from npu_tools.emulator.kernels.sums import running_sum, tree_sum
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.rounding import Rounding
from npu_tools.errors import UnusableInput

LOWEST = np.float32(-3.3895313892515355e38)
"""The most negative finite bf16 (0xff7f): what npu1 and npu2 fill maxima with, so that lowest - lowest is 0."""

LOG2_E = 1.44269504089
_TILES_KEPT = 32
"""Query tiles of all groups of lanes that are kept at once for one call."""


@dataclass(frozen=True, slots=True)
class Build:
    """How one object's kernels differ from another's."""

    name: str
    height: int
    rounding: Rounding
    tables: bool
    row_major: bool
    matrix_unit: bool
    source: str


BUILDS: dict[str, Build] = {
    build.name: build
    for build in (
        Build("npu2", 8, "conv_even", False, False, True, "flash_attention/kernel_fusion_based/attn_npu2.cc"),
        Build("npu1", 4, "floor", True, False, False, "flash_attention/kernel_fusion_based/attn_npu1.cc"),
        Build("dataflow", 4, "floor", True, True, False, "flash_attention/dataflow_based/attn.cc"),
        Build("dataflow_aie2p", 8, "floor", False, True, True, "flash_attention/dataflow_based/attn_aie2p.cc"),
    )
}


def build_of(call: Call) -> Build:
    """Which of the four objects a call means.

    Raises:
        UnusableInput: the option `build` names none of them.
    """
    around = call.surroundings
    chosen = around.options.get("build")
    if chosen is not None:
        if str(chosen) not in BUILDS:
            raise UnusableInput(f"option build={chosen!r}: FlashAttention has the builds {', '.join(BUILDS)}.")
        return BUILDS[str(chosen)]
    if "npu1" in call.link_with:
        return BUILDS["npu1"]
    dataflow = {"vector_copy_32x96elems", "vector_accum_32x64elems"} & {*around.declared, call.symbol}
    plain_object = re.fullmatch(r"(?:.*/)?attn\.o", call.link_with) is not None
    if dataflow or (plain_object and "fused_softmax" not in around.declared and call.symbol != "fused_softmax"):
        return BUILDS["dataflow_aie2p" if around.observed.get("block_columns") == 8 else "dataflow"]
    return BUILDS["npu2"]


def full_depth(call: Call) -> int:
    """dk_full, the head dimension of the whole model (see the module's text for where it is read)."""
    around = call.surroundings
    option = around.options.get("dk_full")
    if option is not None:
        return int(option)
    first = around.arguments[0].shape if around.arguments else None
    if first is not None and len(first) == 3:
        return first[-1]
    product = around.declared.get("matmul_a_b_bf16", ())
    if len(product) == 3:
        return tile_dims("matmul_a_b_bf16", *(operand.size for operand in product))[1]
    return 64


def table_exp(values: Array) -> Array:
    """exp on AIE2 (mlir-air lut_based_ops.h): two bf16 tables, whole part and 1/256ths, multiplied in float32."""
    steps = np.clip(np.floor(np.nan_to_num(values, nan=0.0).astype(np.float64) * 256), -32768, 32767).astype(np.int32)
    return _WHOLE[(steps >> 8) & 0xFF] * _PART[steps & 0xFF]


def fast_exp2(numerics: Numerics, values: Array) -> Array:
    """`numerics.exp2` of values that are no NaN and below 128, several times as fast: results below 2**-126 are 0.

    The core's exp2 is a line between powers of two, so a power is put together from its exponent bits.
    """
    if numerics.exact:
        return numerics.exp2(values)
    # Such values are rare, and the smallest is found sooner than all are compared.
    x = np.maximum(values, np.float32(-127)) if values.size and values.min() < -127 else values
    whole = np.floor(x)
    x = x - whole
    x += np.float32(1)
    bits = whole.astype(np.int32)
    bits += np.int32(127)
    np.left_shift(bits, 23, out=bits)
    # -127 and below give exponent bits of 0, which is the value 0.
    x *= bits.view(np.float32)
    return x


def _nearest_bf16(values: Array) -> Array:
    single = values.astype(np.float32).view(np.uint32)
    return ((single + 0x7FFF + ((single >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


_SIGNED = np.arange(256, dtype=np.uint8).astype(np.int8)
# Past e**88 bf16 overflows; the table repeats its last finite entry.
_WHOLE = _nearest_bf16(np.exp(np.minimum(_SIGNED.astype(np.float64), 88)))
_PART = _nearest_bf16(np.exp(np.arange(256) / 256.0))


@dataclass(frozen=True, slots=True)
class Kernels:
    """The element-wise steps of one build; all take and return bf16 values held as float32."""

    build: Build
    scale: float

    def exp(self, numerics: Numerics, difference: Array) -> Array:
        """exp of bf16 differences, which it may overwrite, with the score scale inside for npu2."""
        narrow = numerics.rounder("bf16", kind="flash_attention.exp", rounding=self.build.rounding)
        if self.build.tables:
            exact = numerics.mode == "f32"
            return narrow(np.exp(difference, dtype=np.float32) if exact else table_exp(difference))
        factor = np.float32(numerics.round_to(np.float32(LOG2_E * self.scale), "bf16", rounding="conv_even"))
        difference *= factor
        return narrow(fast_exp2(numerics, difference))

    def difference(self, numerics: Numerics, upper: Array, lower: Array) -> Array:
        """upper - lower as bf16, kept finite in the builds that clamp."""
        with np.errstate(over="ignore", invalid="ignore"):
            result = numerics.rounder("bf16", kind="flash_attention.sub", rounding=self.build.rounding)(upper - lower)
        if self.build.name == "npu2" and result.size and not result.min() >= LOWEST:
            np.maximum(result, LOWEST, out=result)
        return result

    def narrow(self, numerics: Numerics, values: Array) -> Array:
        """A fresh float32 array rounded to bf16 as this build rounds."""
        return numerics.rounder("bf16", kind="flash_attention", rounding=self.build.rounding)(values)


def rows_view(build: Build, tile: Array, rows: int) -> Array:
    """A tile of `rows` rows as `[gx, gy, C/R, rows, R]`, or row-major as `[gx, gy, 1, rows, C]`: rows on axis 3.

    Column-outer blocks lie as R columns of all rows, so rows need no block axis of their own, and numpy's inner loops
    run over rows times R elements.
    """
    columns = flat(tile).shape[-1] // rows
    if build.row_major:
        return shaped(tile, 1, rows, columns)
    return shaped(tile, columns // build.height, rows, build.height)


def vector_view(build: Build, vector: Array) -> Array:
    """A row vector [gx, gy, rows, 1] to broadcast against `rows_view`; repeated over a block's columns."""
    rows = flat(vector)[:, :, None, :, None]
    return rows if build.row_major else np.repeat(rows, build.height, axis=4)


def row_max(build: Build, scores: Array, rows: int) -> Array:
    """The largest score of each row as [gx, gy, rows], never below the build's starting value."""
    start = np.float32(-np.inf) if build.row_major else LOWEST
    across = rows_view(build, scores, rows).max(axis=2)
    # Few columns are left for each row: numpy is quick where they are the outermost axis.
    return np.maximum(np.ascontiguousarray(np.moveaxis(across, -1, 0)).max(axis=0), start)


def row_sum(numerics: Numerics, kernels: Kernels, weights: Array, rows: int) -> Array:
    """The sum of each row as bf16 [gx, gy, rows]."""
    view = rows_view(kernels.build, weights, rows)
    if not kernels.build.row_major:
        return kernels.narrow(numerics, tree_sum(running_sum(view, 2), -1))
    # The dataflow kernels keep the running sum in bf16, one vector of the row at a time.
    step = 16 if kernels.build.tables else 8
    whole = view[:, :, 0]
    total = np.zeros(whole.shape[:3], np.float32)
    for start in range(0, whole.shape[-1], step):
        part = kernels.narrow(numerics, tree_sum(whole[..., start : start + step], -1))
        total = kernels.narrow(numerics, total + part)
    return total


def write_flat(target: Array, values: Array) -> None:
    """Write [gx, gy, n] values at the start of a tile, whatever its shape."""
    n = values.shape[-1]
    whole = flat(target)
    if whole.shape[-1] == n:
        target[...] = values.reshape(*values.shape[:2], *target.shape[2:])
        return
    if np.shares_memory(whole, target):
        whole[..., :n] = values
        return
    whole[..., :n] = values
    target[...] = whole.reshape(target.shape)


def scores_product(build: Build, bfp16: bool) -> Callable[[Numerics, Array, Array, Array], None]:
    """matmul_a_b_bf16: G += Q K^T."""
    stationary = _Stationary()

    def run(numerics: Numerics, queries: Array, keys: Array, scores: Array) -> None:
        sizes = (flat(queries).shape[-1], flat(keys).shape[-1], flat(scores).shape[-1])
        m, k, n = tile_dims("matmul_a_b_bf16", *sizes)
        height = build.height
        if build.matrix_unit and not build.row_major:
            right = taken_in(numerics, bfp16, keys_by_place(keys, k, n))
            product = _columns_product(stationary.taken_in(numerics, bfp16, queries, k, m), right)
            columns = product.reshape(*product.shape[:2], 8, n // 8, m).transpose(0, 1, 3, 4, 2)
            _add_blocks(numerics, build, columns, scores)
            return
        if build.matrix_unit:
            # Keys that come transposed lie in blocks of 8 x 8 whose rows are the depth.
            right = taken_in(numerics, bfp16, by_depth(keys, k, n, (0, 1, 4, 3, 2, 5)))
            product = _unit_product(stationary.taken_in(numerics, bfp16, queries, k, m), right)
        else:
            left = matrix_from_blocks(blocks_from_flat(queries, m, k, (height, 8), "columns"), "columns")
            if build.row_major:
                right = matrix_from_blocks(blocks_from_flat(keys, k, n, (8, height), "columns"), "columns")
            else:
                transposed = matrix_from_blocks(blocks_from_flat(keys, n, k, (height, 8), "columns"), "columns")
                right = np.ascontiguousarray(transposed.swapaxes(2, 3))
            product = _vector_product(left, right)
        _add_product(numerics, build, product, scores)

    return run


def output_product(build: Build, bfp16: bool) -> Callable[[Numerics, Array, Array, Array], None]:
    """matmul_g_b_bf16: Gp += G V. In npu1 the scores come in 4x4 blocks, two of which make a 4x8 operand."""

    def run(numerics: Numerics, weights: Array, values: Array, output: Array) -> None:
        sizes = (flat(weights).shape[-1], flat(values).shape[-1], flat(output).shape[-1])
        m, k, n = tile_dims("matmul_g_b_bf16", *sizes)
        height = build.height
        if build.matrix_unit:
            left = taken_in(numerics, bfp16, by_depth(weights, k, m))
            right = taken_in(numerics, bfp16, by_depth(values, k, n, (0, 1, 4, 3, 2, 5)))
            if not build.row_major:
                product = _columns_product(left, right)
                columns = product.reshape(*product.shape[:2], n // 8, 8, m).swapaxes(3, 4)
                _add_blocks(numerics, build, columns, output)
                return
            product = _unit_product(left, right)
        else:
            width = 8 if build.row_major else height
            left = matrix_from_blocks(blocks_from_flat(weights, m, k, (height, width), "columns"), "columns")
            product = _vector_product(
                left, matrix_from_blocks(blocks_from_flat(values, k, n, (8, height), "columns"), "columns")
            )
        _add_product(numerics, build, product, output)

    return run


_BY_ROWS = (0, 1, 5, 2, 3, 4)


def by_depth(tile: Array, depth: int, across: int, axes: tuple[int, ...] = _BY_ROWS) -> Array:
    """An operand in 8 x 8 blocks as `[gx, gy, 8, depth/8, across]`: place in the block, block along the depth, the rest.

    A BFP16 block then runs along the third axis, and numpy works on long rows. `axes` order the tile's axes so: by
    default it is `[gx, gy, depth/8, across/8, 8, 8]` with the depth innermost.
    """
    deep, wide = depth // 8, across // 8
    blocks = shaped(tile, *((deep, wide) if axes == _BY_ROWS else (wide, deep)), 8, 8)
    return np.ascontiguousarray(blocks.transpose(axes), np.float32).reshape(*blocks.shape[:2], 8, deep, across)


def keys_by_place(keys: Array, depth: int, across: int) -> Array:
    """Keys as `by_depth` gives them, ordered by their place in a block of eight and then by block.

    Weights come in that order to the second product, and BLAS may sum a row otherwise where it stands elsewhere.
    """
    blocks = shaped(keys, depth // 8, across // 8, 8, 8).transpose(0, 1, 5, 2, 4, 3)
    return np.ascontiguousarray(blocks, np.float32).reshape(*blocks.shape[:2], 8, depth // 8, across)


def taken_in(numerics: Numerics, bfp16: bool, operand: Array) -> Array:
    """An operand from `by_depth` as the unit multiplies it."""
    return numerics.quantise(operand, 2, kind="flash_attention.bfp16") if bfp16 else operand


class _Stationary:
    """Query tiles as the unit takes them in, kept while they stay the same from one block of keys to the next."""

    def __init__(self) -> None:
        self._kept: dict[tuple[Any, ...], tuple[Array, Array]] = {}

    def taken_in(self, numerics: Numerics, bfp16: bool, queries: Array, depth: int, rows: int) -> Array:
        """The operand made of these queries; they are compared bit by bit with those it was made of last."""
        if numerics.report is not None or not queries.flags.c_contiguous or queries.dtype != np.float32:
            return taken_in(numerics, bfp16, by_depth(queries, depth, rows))
        words = queries.view(np.uint32)
        key = (queries.ctypes.data, queries.shape, depth, rows, numerics.exact)
        kept = self._kept.get(key)
        if kept is not None and np.array_equal(kept[0], words):
            return kept[1]
        if kept is None and len(self._kept) >= _TILES_KEPT:
            self._kept.clear()
        taken = taken_in(numerics, bfp16, by_depth(queries, depth, rows))
        self._kept[key] = (words.copy(), taken)
        return taken


def _unit_product(left: Array, right: Array) -> Array:
    """`[gx, gy, M, N]` of two operands that agree on the order along the depth."""
    a, b = (side.reshape(*side.shape[:2], -1, side.shape[-1]) for side in (left, right))
    return np.matmul(a.swapaxes(2, 3), b)


def _columns_product(left: Array, right: Array) -> Array:
    """The same as `[gx, gy, N, M]`, queries along the last axis: attention_step.py works on such columns."""
    a, b = (side.reshape(*side.shape[:2], -1, side.shape[-1]) for side in (left, right))
    return np.matmul(b.swapaxes(2, 3), a)


def _vector_product(left: Array, right: Array) -> Array:
    return np.matmul(np.ascontiguousarray(left, np.float32), np.ascontiguousarray(right, np.float32))


def _add_blocks(numerics: Numerics, build: Build, product: Array, target: Array) -> None:
    """Add a product that is seen as the target's blocks, [gx, gy, N/8, M, 8]."""
    narrow = numerics.rounder("bf16", kind="flash_attention.product", rounding=build.rounding)
    total = narrow(shaped(target, *product.shape[2:]) + product)
    write_flat(target, total.reshape(*total.shape[:2], -1))


def _add_product(numerics: Numerics, build: Build, product: Array, target: Array) -> None:
    m, n = product.shape[2:]
    h = build.height
    spread = np.empty((*product.shape[:2], n // h, m, h), np.float32)
    # A block's row moves as one item: numpy copies runs of eight elements slowly.
    row = np.dtype((np.void, h * spread.itemsize))
    spread.view(row)[..., 0] = product.view(row).swapaxes(2, 3)
    narrow = numerics.rounder("bf16", kind="flash_attention.product", rounding=build.rounding)
    total = narrow(shaped(target, n // h, m, h) + spread)
    write_flat(target, total.reshape(*total.shape[:2], -1))
