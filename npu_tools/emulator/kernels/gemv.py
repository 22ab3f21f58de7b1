"""Matrix-vector and vector-matrix kernels in bf16 and int8.

Read in mlir-air programming_examples: matrix_vector_multiplication/bf16/mv.cc, bf16_cascade/mv_bf16.cc,
ffn_swiglu/decode/ffn_kernels.cc and ffn_swiglu/prefill/ffn_kernels.cc, vector_matrix_multiplication/{bf16,i8,
block_quantized_i8}/single_core/vm.cc, llama2_mha/mha.cc; mlir-aie aie_kernels/aie2/mv.cc (the layout of the second).

    matvec_vectorized_bf16_bf16(m, k, row_offset, A, b, c)   c[row_offset:][:m] = A b; float32 sums, nearest even once
    matvec_vectorized_bf16(A, b, c)                          c += A b; float32 sums, nearest even once
    matvec_vectorized_bf16_bf16(A, b, c)                     c += A b, A as [k/2, m, 2]; c rounded down every 8 columns
    partial_plus_r_bf16(p, r, offset, d)                     d = p + r[offset:]; nearest even, the mode its object set
    matmul_bf16(A, B, C)                                     C += bf16(A B), row-major scalar loops, rounded down
    vecmat_bf16_bf16([offset,] a, B, c)                      c += a B, row-major B [k, n]; c rounded down every 8 rows
    vecmat_i8_i32(a, B, c)                                   c += a B exactly, B as [n/8, k/16, 16, 8]
    vecmat_i8_f32_i32_G(a, sa, B, sb, c)                     the same in groups of G rows, each scaled by sa[g] sb[., g, .]

None goes through BFP16. The length m of an output is read off the array, so an object built with another DIM_M_OUTPUT
than the program's tile is not seen here. The grouped int8 kernel multiplies its two scales in float32 first.
"""

from __future__ import annotations

import numpy as np

from npu_tools.emulator.kernels.gemm import integer_product, tile_dims
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, matrix_from_blocks, shaped, uniform, write_part
from npu_tools.emulator.kernels.sums import running_sum
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput

_ROUNDED_OFTEN = "bf16 products summed in float32, c rounded down (floor) every 8 terms"


def dot_rows(matrix: Array, vector: Array) -> Array:
    """`[gx, gy, m, k]` times `[gx, gy, k]` in float32, one BLAS call a tile: [gx, gy, m]."""
    columns = np.ascontiguousarray(vector, np.float32)[..., None]
    return np.matmul(np.ascontiguousarray(matrix, np.float32), columns)[..., 0]


def _matvec(call: Call) -> Built | None:
    if memrefs(call) != (3, 4, 5) or len(call.operands) != 6:
        return None

    def run(
        numerics: Numerics,
        rows: Array | int,
        depth: Array | int,
        offset: Array | int,
        matrix: Array,
        vector: Array,
        out: Array,
    ) -> None:
        m, k, start = uniform(rows), uniform(depth), uniform(offset)
        a, b = flat(matrix), flat(vector)
        if a.shape[-1] < m * k or b.shape[-1] < k:
            raise UnusableInput(f"@{call.symbol} reads A [{m}, {k}] and b [{k}]; the tiles are smaller than that.")
        total = dot_rows(a[..., : m * k].reshape(*a.shape[:2], m, k), b[..., :k])
        write_part(out, numerics.round_to(total, "bf16", kind="gemv", rounding="conv_even"), start)

    rounding = "float32 sums, one rounding a row to nearest even"
    return Built(run, (0, 1, 2, 3, 4), (5,), rounding, macs=call.operands[3].size)


def _matvec_accumulating(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None

    def run(numerics: Numerics, matrix: Array, vector: Array, out: Array) -> None:
        k, m = flat(vector).shape[-1], flat(out).shape[-1]
        total = flat(out) + dot_rows(shaped(matrix, m, k), flat(vector))
        write_part(out, numerics.round_to(total, "bf16", kind="gemv", rounding="conv_even"), 0)

    _check_matrix(call, call.operands[0].size, call.operands[2].size, call.operands[1].size)
    rounding = "float32 sums, c rounded once per call to nearest even"
    return Built(run, (0, 1, 2), (2,), rounding, accumulators=(2,), macs=call.operands[0].size)


def _matvec_word_transposed(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None
    _check_matrix(call, call.operands[0].size, call.operands[2].size, call.operands[1].size)

    def run(numerics: Numerics, matrix: Array, vector: Array, out: Array) -> None:
        k, m = flat(vector).shape[-1], flat(out).shape[-1]
        pairs = shaped(matrix, k // 2, m, 2)
        columns = pairs.swapaxes(3, 4).reshape(*pairs.shape[:2], k, m)
        _accumulate_by_eight(numerics, flat(vector), columns, out, 0)

    return Built(run, (0, 1, 2), (2,), _ROUNDED_OFTEN, accumulators=(2,), macs=call.operands[0].size)


def _accumulate_by_eight(numerics: Numerics, weights: Array, rows: Array, out: Array, start: int) -> None:
    """out[start:] += weights [.., k] times rows [.., k, n], stored to bf16 (floor) after every 8 rows."""
    narrow = numerics.rounder("bf16", kind="gemv", rounding="floor")
    n = rows.shape[-1]
    total = np.array(flat(out)[..., start : start + n])
    for row in range(0, rows.shape[2], 8):
        terms = weights[..., row : row + 8, None] * rows[:, :, row : row + 8]
        total = narrow(total + running_sum(terms, 2))
    write_part(out, total, start)


def _check_matrix(call: Call, matrix: int, rows: int, depth: int) -> None:
    if matrix != rows * depth:
        raise UnusableInput(
            f"@{call.symbol} takes A [m, k], b [k], c [m]; A has {matrix} elements, b {depth} and c {rows}."
        )


def _partial_plus(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 3) or len(call.operands) != 4:
        return None

    def run(numerics: Numerics, partial: Array, residual: Array, offset: Array | int, out: Array) -> None:
        start, m = uniform(offset), flat(out).shape[-1]
        total = flat(partial)[..., :m] + flat(residual)[..., start : start + m]
        write_part(out, numerics.round_to(total, "bf16", kind="gemv", rounding="conv_even"), 0)

    return Built(run, (0, 1, 2), (3,), "one rounding to nearest even")


def _matmul_scalar(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None
    m, k, n = tile_dims(call.symbol, *(operand.size for operand in call.operands))

    def run(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        narrow = numerics.rounder("bf16", kind="gemm", rounding="floor")
        left, right = np.ascontiguousarray(shaped(a, m, k)), np.ascontiguousarray(shaped(b, k, n))
        product = narrow(np.matmul(left, right))
        write_part(c, narrow(flat(c) + product.reshape(*product.shape[:2], -1)), 0)

    rounding = "float32 sums, product and C both rounded down (floor)"
    return Built(run, (0, 1, 2), (2,), rounding, accumulators=(2,), macs=m * k * n)


def _vecmat(call: Call) -> Built | None:
    offset = call.operands[0].shape is None
    if memrefs(call) != ((1, 2, 3) if offset else (0, 1, 2)) or len(call.operands) != (4 if offset else 3):
        return None

    def run(numerics: Numerics, *args: Array) -> None:
        start = uniform(args[0]) if offset else 0
        vector, matrix, out = args[-3:]
        k = flat(vector).shape[-1]
        n = flat(matrix).shape[-1] // k
        _accumulate_by_eight(numerics, flat(vector), shaped(matrix, k, n), out, start)

    last = len(call.operands) - 1
    macs = call.operands[-2].size
    return Built(run, tuple(range(last + 1)), (last,), _ROUNDED_OFTEN, accumulators=(last,), macs=macs)


def _blocks_of_b(matrix: Array, k: int) -> Array:
    """B as [n/8, k/16, 16, 8] blocks, in whatever shape, as [gx, gy, k, n]."""
    n = flat(matrix).shape[-1] // k
    return matrix_from_blocks(shaped(matrix, n // 8, k // 16, 16, 8), "columns")


def _vecmat_i8(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None

    def run(numerics: Numerics, vector: Array, matrix: Array, out: Array) -> None:
        a = flat(vector)[:, :, None]
        product = integer_product(a, _blocks_of_b(matrix, a.shape[-1]))[:, :, 0]
        write_part(out, (flat(out).astype(np.int64) + product).astype(out.dtype), 0)

    return Built(run, (0, 1, 2), (2,), "exact int32", accumulators=(2,), macs=call.operands[1].size)


def _vecmat_i8_grouped(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2, 3, 4) or len(call.operands) != 5:
        return None
    group = int(call.match["group"])

    def run(numerics: Numerics, vector: Array, scale: Array, matrix: Array, scales: Array, out: Array) -> None:
        a, total = flat(vector), np.array(flat(out), np.float32)
        k, n = a.shape[-1], total.shape[-1]
        b = _blocks_of_b(matrix, k)
        # Scales of B follow its column blocks: [n/8, k/group, 8].
        of_b = shaped(scales, n // 8, k // group, 8)
        for index in range(k // group):
            rows = slice(index * group, (index + 1) * group)
            part = integer_product(a[:, :, None, rows], b[:, :, rows])[:, :, 0].astype(np.float32)
            factor = flat(scale)[..., index, None] * of_b[:, :, :, index].reshape(*of_b.shape[:2], n)
            total = total + part * factor
        write_part(out, total, 0)

    rounding, macs = "exact int32 inside a group, float32 across groups", call.operands[2].size
    return Built(run, (0, 1, 2, 3, 4), (4,), rounding, accumulators=(4,), macs=macs)


_AIR = "mlir-air programming_examples/"

FAMILIES: tuple[Family, ...] = (
    Family(
        "gemv",
        r"matvec_vectorized_bf16_bf16",
        ("matvec_vectorized_bf16_bf16",),
        _AIR + "matrix_vector_multiplication/bf16/mv.cc",
        "m, k, row offset, A [m, k], b [k], c",
        _matvec,
    ),
    Family(
        "gemv_word_transposed",
        r"matvec_vectorized_bf16_bf16",
        ("matvec_vectorized_bf16_bf16",),
        _AIR + "ffn_swiglu/decode/ffn_kernels.cc",
        "A as [k/2, m, 2], b [k], c [m]",
        _matvec_word_transposed,
    ),
    Family(
        "gemv_accumulating",
        r"matvec_vectorized_bf16",
        ("matvec_vectorized_bf16",),
        _AIR + "matrix_vector_multiplication/bf16_cascade/mv_bf16.cc",
        "A [m, k], b [k], c [m]",
        _matvec_accumulating,
    ),
    Family(
        "residual_add",
        r"partial_plus_r_bf16",
        ("partial_plus_r_bf16",),
        _AIR + "matrix_vector_multiplication/bf16_cascade/mv_bf16.cc",
        "partial [m], residual, offset, sum [m]",
        _partial_plus,
    ),
    Family(
        "gemm_scalar",
        r"matmul_bf16",
        ("matmul_bf16",),
        _AIR + "ffn_swiglu/prefill/ffn_kernels.cc",
        "row-major A [m, k], B [k, n], C [m, n]",
        _matmul_scalar,
    ),
    Family(
        "vecmat",
        r"vecmat_bf16_bf16",
        ("vecmat_bf16_bf16",),
        _AIR + "vector_matrix_multiplication/bf16/single_core/vm.cc, llama2_mha/mha.cc",
        "an optional offset into c, a [k], B [k, n], c",
        _vecmat,
    ),
    Family(
        "vecmat_i8",
        r"vecmat_i8_i32",
        ("vecmat_i8_i32",),
        _AIR + "vector_matrix_multiplication/i8/single_core/vm.cc",
        "a [k], B [n/8, k/16, 16, 8], c [n]",
        _vecmat_i8,
    ),
    Family(
        "vecmat_i8_grouped",
        r"vecmat_i8_f32_i32_(?P<group>\d+)",
        ("vecmat_i8_f32_i32_32",),
        _AIR + "vector_matrix_multiplication/block_quantized_i8/single_core/vm.cc",
        "a [k], its scales [k/G], B [n/8, k/16, 16, 8], its scales [n/8, k/G, 8], c [n]",
        _vecmat_i8_grouped,
    ),
)
