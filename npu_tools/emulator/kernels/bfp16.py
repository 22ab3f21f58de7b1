"""Kernels on packed BFP16 tiles (bfp16ebs8): eight values in nine bytes, the shared exponent first.

Read in mlir-air programming_examples/matrix_multiplication/bf16_x_bfp16/mm_bf16_x_bfp16.cc and its packer in
matmul_bf16_x_bfp16.py, bfp16/bfp_cvt.cc and bfp16_utils.py; mlir-aie aie_kernels/aie2p/mm_bfp.cc.

A value is mantissa * 2**(exponent - 127 - 6), the mantissa a signed byte. Tiles are 8x8 blocks of 72 bytes, each row of
a block one group of eight along K (along N in C). A is [M/8, K/8], B is [N/8, K/8] with blocks transposed, [n, k];
mm_bfp.cc's C is [M/8, N/8] and holds BFP16 itself, so it is quantised at every call, by floor: the kernel sets no mode.
mm_bf16_x_bfp16.cc quantises A to nearest even and keeps C in float32, blocks [N/8, M/8, 8, 8].

In "f32" mode A is not quantised; B and mm_bfp's C still are, since they are bytes.
"""

from __future__ import annotations

import numpy as np

from npu_tools.emulator import blockfloat
from npu_tools.emulator.kernels.gemm import accumulate, tile_dims, without_unit_axes
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs, shape_of
from npu_tools.emulator.kernels.lanes import flat, matrix_from_blocks, natural_view, write_part
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput

_BIAS = 127 + 6


def decode(packed: Array) -> Array:
    """BFP16 bytes `[gx, gy, 9n]` as float32 `[gx, gy, 8n]`."""
    groups = np.ascontiguousarray(packed).view(np.uint8).reshape(*packed.shape[:2], -1, 9)
    mantissas = np.ascontiguousarray(groups[..., 1:]).view(np.int8).astype(np.float32)
    values = np.ldexp(mantissas, groups[..., :1].astype(np.int32) - _BIAS)
    return values.reshape(*packed.shape[:2], -1)


def encode(values: Array) -> Array:
    """Float32 `[gx, gy, 8n]` as BFP16 bytes `[gx, gy, 9n]`, rounded by floor."""
    blocks = np.ascontiguousarray(values, np.float32).reshape(*values.shape[:2], -1, 8)
    exponents = (np.abs(blocks).max(axis=-1, keepdims=True).view(np.uint32) >> np.uint32(23)).astype(np.int32)
    kept = blockfloat.quantise(blocks, -1, "floor")
    mantissas = np.ldexp(kept.astype(np.float64), _BIAS - exponents)
    groups = np.empty((*blocks.shape[:-1], 9), np.uint8)
    groups[..., :1] = exponents
    groups[..., 1:] = np.clip(mantissas, -128, 127).astype(np.int8).view(np.uint8)
    return groups.reshape(*values.shape[:2], -1)


def blocked_matrix(values: Array, rows: int, columns: int) -> Array:
    """Values of row-outer 8x8 blocks, `[gx, gy, n]`, as the row-major matrix `[gx, gy, rows, columns]`."""
    return matrix_from_blocks(values.reshape(*values.shape[:2], rows // 8, columns // 8, 8, 8), "rows")


def _elements(call: Call, index: int) -> int:
    size = call.operands[index].size
    if size % 72:
        raise UnusableInput(
            f"@{call.symbol}: operand {index} has {size} bytes, no whole number of 72-byte BFP16 blocks."
        )
    return size // 9 * 8


def _mixed(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None
    a, _, c = call.operands
    if len(shape_of(a)) < 4 or len(shape_of(c)) < 4:
        return None
    m, k = shape_of(a)[-4] * 8, shape_of(a)[-3] * 8
    n = c.size // m
    if _elements(call, 1) != n * k or a.size != m * k:
        raise UnusableInput(
            f"@{call.symbol} takes A [M/8, K/8, 8, 8], {n * k // 8 * 9} bytes of B and C [N/8, M/8, 8, 8]; "
            f"A is {a.shape}, C {c.shape} and B has {call.operands[1].size} bytes."
        )

    def run(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        left = np.ascontiguousarray(matrix_from_blocks(without_unit_axes(a), "rows"))
        right = blocked_matrix(decode(flat(b)), n, k).swapaxes(2, 3)
        product = np.matmul(numerics.quantise(left, -1), np.ascontiguousarray(right))
        accumulate(numerics, natural_view(without_unit_axes(c), "columns"), product, "f32", "conv_even")

    return Built(run, (0, 1, 2), (2,), "A to BFP16 (nearest even), B is BFP16, float32 sums and C", accumulators=(2,))


def _all_bfp16(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None
    m, k, n = tile_dims(call.symbol, *(_elements(call, index) for index in range(3)))

    def run(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        left = np.ascontiguousarray(blocked_matrix(decode(flat(a)), m, k))
        right = np.ascontiguousarray(blocked_matrix(decode(flat(b)), n, k).swapaxes(2, 3))
        product = np.matmul(left, right)
        spread = product.reshape(*product.shape[:2], m // 8, 8, n // 8, 8).transpose(0, 1, 2, 4, 3, 5)
        total = decode(flat(c)) + spread.reshape(*product.shape[:2], -1)
        write_part(c, encode(total).view(c.dtype), 0)

    rounding = "float32 sums, C stored as BFP16 (floor) at every call"
    return Built(run, (0, 1, 2), (2,), rounding, accumulators=(2,), macs=m * k * n)


def _zero_packed(call: Call) -> Built | None:
    if memrefs(call) != (0,) or len(call.operands) != 1:
        return None

    def run(numerics: Numerics, tile: Array) -> None:
        tile[...] = 0

    return Built(run, (), (0,), "none")


def _drain(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 2:
        return None
    element = call.operands[1].element

    def run(numerics: Numerics, packed: Array, out: Array) -> None:
        values = numerics.round_to(decode(flat(packed)), element, kind="bfp16_drain", rounding="conv_even")
        write_part(out, values, 0)

    return Built(run, (0,), (1,), "exact into float32; a BFP16 value is a bf16 value already")


FAMILIES: tuple[Family, ...] = (
    Family(
        "gemm_bf16_x_bfp16",
        r"matmul_bf16_x_bfp16_packed_f32",
        ("matmul_bf16_x_bfp16_packed_f32",),
        "mlir-air programming_examples/matrix_multiplication/bf16_x_bfp16/mm_bf16_x_bfp16.cc",
        "A [M/8, K/8, 8, 8] bf16, B packed, C [N/8, M/8, 8, 8] f32",
        _mixed,
    ),
    Family(
        "gemm_bfp16",
        r"matmul_vectorized_bfp16",
        ("matmul_vectorized_bfp16",),
        "mlir-aie aie_kernels/aie2p/mm_bfp.cc",
        "A, B and C packed",
        _all_bfp16,
    ),
    Family(
        "zero_bfp16",
        r"zero_kernel",
        ("zero_kernel",),
        "mlir-aie aie_kernels/aie2p/mm_bfp.cc",
        "a packed tile",
        _zero_packed,
    ),
    Family(
        "bfp16_drain",
        r"bfp16_to_(?:bf16|f32)_mn",
        ("bfp16_to_bf16_mn", "bfp16_to_f32_mn"),
        "mlir-air programming_examples/matrix_multiplication/bfp16/bfp_cvt.cc",
        "a packed tile, a tile of its values",
        _drain,
    ),
)
