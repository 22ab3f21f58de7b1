"""BFP16, the block float of AIE2P's matrix unit (bfp16ebs8): eight values share one exponent, eight bits each remain.

The shared exponent is the one of the block's largest magnitude; a value is kept as a signed multiple of 2**(e - 6)
between -128 and 127, rounded to nearest even where the core's rounding register says conv_even (AIE_API's bf16 matrix
multiply with -DAIE_API_EMULATE_BFLOAT16_MMUL_WITH_BFP16, mlir-air mm_aie2p.cc), else floored.

    quantise(a, axis=-1) @ quantise(b, axis=-2)     # what the unit multiplies, summed in float32
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.emulator.rounding import F32, Rounding

BLOCK = 8
_EXPONENT_BITS = np.uint32(0x7F800000)
# x + c - c rounds x to multiples of ulp(c), ties to even; c = 1.5 * 2**23 steps of 2**(e - 6), so 1.5 * 2**17 * 2**e.
_MAGIC = np.float32(1.5 * 2**17)
_TOP = np.float32(127 / 64)
# Above this exponent c would overflow; such blocks are scaled down first.
_LARGE = np.float32(2.0**100)
_PIECE = 16 * 1024
# Across rows an operation costs more calls than cache misses: pieces may be larger.
_PIECE_ACROSS = 64 * 1024


def quantise(values: Any, axis: int, how: Rounding = "conv_even") -> F32:
    """`values` as the matrix unit sees them, blocks of 8 along `axis`; a last short block stands alone.

    Infinities and NaN spoil their whole block (it becomes NaN), as they leave no exponent to share.
    """
    array = np.asarray(values, dtype=np.float32)
    axis %= array.ndim
    length = array.shape[axis]
    # Axes of stride 0 are copies: one is enough.
    shared = tuple(n > 1 and stride == 0 for n, stride in zip(array.shape, array.strides, strict=True))
    if any(shared) and not shared[axis]:
        once = array[tuple(slice(0, 1) if same else slice(None) for same in shared)]
        return np.broadcast_to(quantise(once, axis, how), array.shape)
    if length % BLOCK:
        padding = [(0, 0)] * array.ndim
        padding[axis] = (0, BLOCK - length % BLOCK)
        whole = quantise(np.pad(array, padding), axis, how)
        return whole[(slice(None),) * axis + (slice(0, length),)]
    array = np.ascontiguousarray(array)
    if array.size == 0:
        return array.copy()
    out = np.empty_like(array)
    with np.errstate(invalid="ignore", over="ignore"):
        if axis == array.ndim - 1:
            _along_rows(array.reshape(-1, BLOCK), out.reshape(-1, BLOCK), how)
        else:
            inner = int(np.prod(array.shape[axis + 1 :]))
            _across_rows(array.reshape(-1, BLOCK, inner), out.reshape(-1, BLOCK, inner), how)
    return out


def _along_rows(blocks: F32, out: F32, how: Rounding) -> None:
    """Blocks [n, 8], contiguous; columns are gathered because a reduction over eight neighbours is slow in numpy."""
    step = max(1, _PIECE // BLOCK)
    for start in range(0, blocks.shape[0], step):
        piece, target = blocks[start : start + step], out[start : start + step]
        magnitude = np.abs(piece)
        largest = np.maximum(magnitude[:, 0], magnitude[:, 1])
        for column in range(2, BLOCK):
            np.maximum(largest, magnitude[:, column], out=largest)
        _round_blocks(piece, target, largest[:, None], how)


def _across_rows(blocks: F32, out: F32, how: Rounding) -> None:
    """Blocks [n, 8, inner]: eight consecutive rows of `inner` values."""
    step = max(1, _PIECE_ACROSS // (BLOCK * blocks.shape[2]))
    for start in range(0, blocks.shape[0], step):
        piece, target = blocks[start : start + step], out[start : start + step]
        largest = np.abs(piece)
        half = BLOCK
        while half > 1:
            half //= 2
            largest = np.maximum(largest[:, :half], largest[:, half:])
        _round_blocks(piece, target, largest, how)


def _round_blocks(piece: F32, target: F32, largest: NDArray[np.float32], how: Rounding) -> None:
    scale = (np.ascontiguousarray(largest).view(np.uint32) & _EXPONENT_BITS).view(np.float32)
    if how == "conv_even" and not (scale > _LARGE).any():
        magic = scale * _MAGIC
        np.add(piece, magic, out=target)
        np.subtract(target, magic, out=target)
        np.minimum(target, scale * _TOP, out=target)
        return
    # float64 holds every quotient and product here.
    unit = np.where(scale == 0, 1.0, scale.astype(np.float64) / 64)
    steps = piece / unit
    steps = np.rint(steps) if how == "conv_even" else np.floor(steps) if how == "floor" else np.trunc(steps)
    target[...] = np.minimum(steps, 127.0) * unit
    target[np.broadcast_to(~np.isfinite(scale), target.shape)] = np.nan


def multiply(a: Any, b: Any, how: Rounding = "conv_even") -> F32:
    """`[..., M, K] @ [..., K, N]` by the matrix unit: both operands quantised along K, products summed in float32."""
    return np.matmul(quantise(a, -1, how), quantise(b, -2, how))
