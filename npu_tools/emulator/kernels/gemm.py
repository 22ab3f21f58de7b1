"""Matrix multiplication kernels: C += A B on blocked L1 tiles.

Read in mlir-air programming_examples/matrix_multiplication/{bf16,bf16_in_bf16_out,bf16_in_fp32_out}/mm.cc and
mm_aie2p.cc, {i8,i16}/mm.cc and mm_aie2p.cc, test/xrt/*/mm.cc, and mlir-aie aie_kernels/{aie2,aie2p}/mm.cc.

Layouts. mlir-air's kernels walk blocks column-outer: A is [K/s, M/r, r, s], B is [N/t, K/s, s, t], C is
[N/t, M/r, r, t], each preceded by unit axes in the programs. mlir-aie's walk them row-outer: A [M/r, K/s, r, s],
B [K/s, N/t, s, t], C [M/r, N/t, r, t]; their programs pass flat or two-dimensional memrefs, so r, s, t follow from
the element types and the device the object was built for. `matmul_scalar_*` and `linalg_matmul_view*` are row-major.

Numerics. A 8x8x8 block with bf16 inputs is AIE2P's matrix unit built with AIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16:
BFP16 inputs, float32 accumulator. Other bf16 blocks (4x8x4, 4x8x8) are native bf16 products summed in float32. The
accumulator is loaded from C and stored to C once per call, so a bf16 C is rounded once per K tile: nearest even in
mm_aie2p.cc, which sets it, floor in mm.cc, which does not. Integers wrap: the store shifts by 0 without saturation.

Simplified: the float32 sum over a K tile is BLAS's order, not the 8-wide steps of the unit. One BLAS call is made
per tile, as a stack, so that a tile's bits do not depend on how many lanes run together (OpenBLAS changes the order
of sums at the edges of the matrix it is given, so one call for the whole herd would not agree with per-tile runs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, Operand, shape_of
from npu_tools.emulator.kernels.lanes import (
    Outer,
    block_axes,
    blocks_from_flat,
    matrix_from_blocks,
    natural_view,
    shaped,
)
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.rounding import Rounding
from npu_tools.errors import UnusableInput

MacUnit = Literal["bfp16", "float", "integer"]

_MAX_EXACT_F32 = 1 << 24


@dataclass(frozen=True, slots=True)
class BlockShape:
    """One matrix-unit step: [r, s] times [s, t]."""

    r: int
    s: int
    t: int


def multiply(numerics: Numerics, a: Array, b: Array, unit: MacUnit) -> Array:
    """Row-major tiles `[gx|1, gy|1, M, K] @ [gx|1, gy|1, K, N]`, one BLAS call a tile; integers come back as int64."""
    if unit == "bfp16":
        return numerics.matmul(np.ascontiguousarray(a), np.ascontiguousarray(b))
    if unit == "float":
        return np.matmul(np.ascontiguousarray(a, np.float32), np.ascontiguousarray(b, np.float32))
    return integer_product(a, b)


@dataclass(frozen=True, slots=True)
class Product:
    """C += A B in parts, for callers that use an operand in several products: each as the unit takes it, then the rest."""

    left: Callable[[Numerics, Array], Array]
    right: Callable[[Numerics, Array], Array]
    add: Callable[[Numerics, Array, Array, Array], None]


def integer_product(a: Array, b: Array) -> Array:
    """The exact product as int64 (wrapping at 64 bits), by float BLAS where the sums stay exact."""
    bits_a, bits_b = a.dtype.itemsize * 8, b.dtype.itemsize * 8
    depth = a.shape[-1]
    bound = (1 << (bits_a - 1)) * (1 << (bits_b - 1)) * depth
    if a.dtype.kind == "u" or b.dtype.kind == "u":
        bound *= 4
    if bound <= _MAX_EXACT_F32:
        carrier: type[np.float32] | type[np.float64] = np.float32
    elif bound <= 1 << 53:
        carrier = np.float64
    else:
        return np.matmul(a.astype(np.int64), b.astype(np.int64))
    return np.rint(np.matmul(a.astype(carrier), b.astype(carrier))).astype(np.int64)


def accumulate(numerics: Numerics, target: Array, product: Array, element: str, rounding: Rounding) -> None:
    """target += product, rounded to the element type; `target` is a view in natural order, product its matrix."""
    spread = product.reshape(*product.shape[:2], *target.shape[2:])
    if element == "f32":
        np.add(target, spread, out=target)
    elif element in ("bf16", "f16"):
        target[...] = numerics.rounder(element, kind="gemm", rounding=rounding)(target + spread)
    else:
        target[...] = (target.astype(np.int64) + spread).astype(target.dtype)


def _unit(element: str, block: BlockShape | None) -> MacUnit:
    if element.startswith(("i", "ui")):
        return "integer"
    return "bfp16" if block == BlockShape(8, 8, 8) else "float"


def _blocked(call: Call) -> Built | None:
    """Kernels whose memrefs show the blocks: rank 4 or more on all three operands, column-outer."""
    if len(call.operands) != 3:
        return None
    a, b, c = call.operands
    if any(operand.shape is None or len(operand.shape) < 4 for operand in (a, b, c)):
        return None
    block = _check_blocks(call.symbol, a, b, c)
    unit = _unit(a.element, block)
    rounding: Rounding = "conv_even" if unit == "bfp16" else "floor"
    element = c.element

    def run(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        left = matrix_from_blocks(without_unit_axes(a), "columns")
        right = matrix_from_blocks(without_unit_axes(b), "columns")
        target = natural_view(without_unit_axes(c), "columns")
        accumulate(numerics, target, multiply(numerics, left, right, unit), element, rounding)

    def left(numerics: Numerics, a: Array) -> Array:
        return numerics.quantise(np.ascontiguousarray(matrix_from_blocks(without_unit_axes(a), "columns")), -1)

    def right(numerics: Numerics, b: Array) -> Array:
        return numerics.quantise(np.ascontiguousarray(matrix_from_blocks(without_unit_axes(b), "columns")), -2)

    def add(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        target = natural_view(without_unit_axes(c), "columns")
        accumulate(numerics, target, np.matmul(a, b), element, rounding)

    return Built(
        run,
        detail=Product(left, right, add) if unit == "bfp16" else None,
        reads=(0, 1, 2),
        writes=(2,),
        accumulators=(2,),
        storage_order=tuple(natural_order(operand, "columns") for operand in (a, b, c)),
        rounding=_rounding_text(unit, element, rounding),
        macs=a.size * c.size // (shape_of(a)[-3] * block.r),
    )


def without_unit_axes(view: Array) -> Array:
    """A blocked tile without the unit axes between the lanes and its four block axes; always a view."""
    return view[(slice(None), slice(None), *(0,) * (view.ndim - 6))]


def natural_order(operand: Operand, outer: Outer) -> tuple[int, ...]:
    """The storage order, lane axes first, in which a blocked operand's tile is a row-major matrix."""
    leading = len(shape_of(operand)) - 4
    rows, columns = block_axes(outer, first=2 + leading)
    return (*range(2 + leading), *rows, *columns)


def _check_blocks(symbol: str, a: Operand, b: Operand, c: Operand) -> BlockShape:
    if any(size != 1 for operand in (a, b, c) for size in shape_of(operand)[:-4]):
        raise UnusableInput(f"@{symbol} takes one tile a call; the axes before the four block axes must be 1.")
    k_blocks, m_blocks, r, s = shape_of(a)[-4:]
    n_blocks, k_blocks_b, s_b, t = shape_of(b)[-4:]
    n_blocks_c, m_blocks_c, r_c, t_c = shape_of(c)[-4:]
    if (k_blocks, s) != (k_blocks_b, s_b) or (m_blocks, r) != (m_blocks_c, r_c) or (n_blocks, t) != (n_blocks_c, t_c):
        raise UnusableInput(
            f"@{symbol} takes A [K/s, M/r, r, s], B [N/t, K/s, s, t] and C [N/t, M/r, r, t]; "
            f"the operands are {a.shape}, {b.shape} and {c.shape}. Make the block counts agree."
        )
    return BlockShape(r, s, t)


def _rounding_text(unit: MacUnit, element: str, rounding: Rounding) -> str:
    if unit == "integer":
        return f"exact sums, stored to {element} by wrapping"
    inputs = "BFP16 inputs (blocks of 8 along K)" if unit == "bfp16" else "bf16 products"
    store = f"C rounded to {element} once per call ({rounding})" if element == "bf16" else "C kept in float32"
    return f"{inputs}, float32 sums, {store}"


def tile_dims(symbol: str, a: int, b: int, c: int) -> tuple[int, int, int]:
    """M, K and N from the element counts of A [M, K], B [K, N] and C [M, N]."""
    m = round((a * c / b) ** 0.5)
    if m == 0 or a % m or c % m or (a // m) * (c // m) != b:
        raise UnusableInput(
            f"@{symbol}: no M, K, N give A, B and C tiles of {a}, {b} and {c} elements. Check the memref sizes."
        )
    return m, a // m, c // m


def _matrices(call: Call) -> tuple[int, int, int]:
    a, b, c = call.operands
    shapes = [shape_of(operand) for operand in (a, b, c)]
    if all(len(shape) == 2 for shape in shapes):
        (m, k), (k_b, n), c_shape = shapes
        if k == k_b and c_shape == (m, n):
            return m, k, n
    return tile_dims(call.symbol, a.size, b.size, c.size)


def _row_major(call: Call) -> Built | None:
    """`matmul_scalar_*`, `linalg_matmul_view*`: plain loops over row-major tiles."""
    if len(call.operands) != 3 or any(operand.shape is None for operand in call.operands):
        return None
    m, k, n = _matrices(call)
    unit = _unit(call.operands[0].element, None)
    element = call.operands[2].element

    def run(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        product = multiply(numerics, shaped(a, m, k), shaped(b, k, n), unit)
        accumulate(numerics, c, product, element, "conv_even")

    return Built(run, (0, 1, 2), (2,), _rounding_text(unit, element, "conv_even"), accumulators=(2,), macs=m * k * n)


# mlir-aie's block shapes by input and output element, for objects of either generation. Both exist upstream; the
# AIE2P ones are taken, since the programs we see that use them are built for npu2.
_AIE_BLOCKS = {
    "bf16": BlockShape(8, 8, 8),
    "i8": BlockShape(8, 8, 8),
    "i16": BlockShape(4, 4, 8),
}


def _row_outer(call: Call) -> Built | None:
    """mlir-aie's `matmul_<in>_<out>` on flat or two-dimensional memrefs: blocks row-outer, A, B and C alike."""
    if len(call.operands) != 3 or any(operand.shape is None for operand in call.operands):
        return None
    block = _AIE_BLOCKS.get(call.operands[0].element)
    if block is None:
        return None
    m, k, n = _matrices(call)
    if m % block.r or k % block.s or n % block.t:
        raise UnusableInput(
            f"@{call.symbol} works in blocks of {block.r}x{block.s}x{block.t}; M={m}, K={k}, N={n} is no multiple."
        )
    unit = _unit(call.operands[0].element, block)
    element = call.operands[2].element

    def run(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        left = matrix_from_blocks(blocks_from_flat(a, m, k, (block.r, block.s), "rows"), "rows")
        right = matrix_from_blocks(blocks_from_flat(b, k, n, (block.s, block.t), "rows"), "rows")
        product = multiply(numerics, left, right, unit)
        blocks = blocks_from_flat(c, m, n, (block.r, block.t), "rows")
        target = natural_view(blocks, "rows")
        accumulate(numerics, target, product, element, "conv_even")
        if not np.shares_memory(blocks, c):
            c[...] = blocks.reshape(c.shape)

    return Built(run, (0, 1, 2), (2,), _rounding_text(unit, element, "conv_even"), accumulators=(2,), macs=m * k * n)


def _typed(call: Call) -> Built | None:
    return _blocked(call) or _row_outer(call)


FAMILIES: tuple[Family, ...] = (
    Family(
        name="gemm_blocked",
        pattern=r"op_has_no_registered_library_name",
        symbols=("op_has_no_registered_library_name",),
        source="mlir-air programming_examples/matrix_multiplication/*/mm.cc, mm_aie2p.cc",
        takes="A [K/s, M/r, r, s], B [N/t, K/s, s, t], C [N/t, M/r, r, t]",
        build=_blocked,
    ),
    Family(
        name="gemm_row_major",
        pattern=r"matmul_scalar_[a-z]+\d+_[a-z]+\d+|linalg_matmul_view\d+x\d+x[a-z]+\d+as\d+(?:_view\d+x\d+x[a-z]+\d+as\d+)+",
        symbols=("matmul_scalar_bf16_bf16", "linalg_matmul_view64x64xbf16as2_view64x64xbf16as2_view64x64xf32as2"),
        source="mlir-air programming_examples/matrix_multiplication/*/mm.cc, test/xrt/{12,18,19}*/kernel.cpp",
        takes="row-major A [M, K], B [K, N], C [M, N]",
        build=_row_major,
    ),
    Family(
        name="gemm_typed",
        pattern=r"matmul_(?:bf16|i8|i16|i32)_(?:bf16|f32|i8|i16|i32)",
        symbols=("matmul_bf16_bf16", "matmul_bf16_f32", "matmul_i8_i8", "matmul_i8_i16", "matmul_i16_i32"),
        source="mlir-air test/xrt/*/mm.cc (blocked memrefs); mlir-aie aie_kernels/{aie2,aie2p}/mm.cc (flat memrefs)",
        takes="A, B, C as blocks [K/s, M/r, r, s], [N/t, K/s, s, t], [N/t, M/r, r, t], or flat row-outer blocks",
        build=_typed,
    ),
)
