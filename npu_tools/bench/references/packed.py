"""Weights packed as int4 with scales and zero points, or as BFP16: made here, packed as the kernels read them.

A packed int4 tile is: codes, two a byte, low half first; then one bf16 scale a group and row; then one zero point a
group and row, a byte each. A weight is (code - zero) * scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npu_tools.bench.references.case import Array, Build, Case, Float, Trial, example
from npu_tools.bench.references.norms import root_mean_square

GROUP = 128
"""Weights that share a scale and a zero point, in every example."""

_INT4 = "matrix_vector_multiplication/int4_awq/matvec_int4_packed.py"


@dataclass(frozen=True, slots=True)
class Quantised:
    """An int4 matrix [rows, columns]: codes 0 to 15, scales and zero points [rows, columns / group]."""

    codes: NDArray[np.uint8]
    scales: Float
    zeros: NDArray[np.uint8]

    @classmethod
    def random(cls, rng: np.random.Generator, rows: int, columns: int, group: int = GROUP) -> Quantised:
        """Codes over the whole range, scales and zero points in the usual ones."""
        groups = columns // group
        scales = rng.uniform(0.005, 0.02, (rows, groups)).astype(ml_dtypes.bfloat16).astype(np.float64)
        return cls(
            rng.integers(0, 16, (rows, columns), dtype=np.uint8),
            scales,
            rng.integers(7, 9, (rows, groups), dtype=np.uint8),
        )

    def weights(self) -> Float:
        """The matrix the codes stand for."""
        group = self.codes.shape[1] // self.scales.shape[1]
        zeros = np.repeat(self.zeros, group, axis=1).astype(np.float64)
        return (self.codes - zeros) * np.repeat(self.scales, group, axis=1)

    def tile(self, rows: slice, columns: slice) -> NDArray[np.uint8]:
        """The bytes of one tile; scales and zero points group by group, all rows of a group together."""
        group = self.codes.shape[1] // self.scales.shape[1]
        groups = slice(columns.start // group, columns.stop // group)
        codes = self.codes[rows, columns]
        halves = (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8)
        scales = np.ascontiguousarray(self.scales[rows, groups].T).astype(ml_dtypes.bfloat16)
        return np.concatenate(
            [halves.reshape(-1), scales.reshape(-1).view(np.uint8), self.zeros[rows, groups].T.reshape(-1)]
        )


def tile_bytes(rows: int, columns: int, group: int = GROUP) -> int:
    """Bytes of a packed tile."""
    return rows * columns // 2 + 3 * rows * columns // group


def packed_rows(matrix: Quantised, tile_rows: int, tile_columns: int) -> Array:
    """Tiles in order of rows, then of columns, each one row of bytes."""
    height, width = matrix.codes.shape
    return np.stack(
        [
            matrix.tile(slice(row, row + tile_rows), slice(column, column + tile_columns))
            for row in range(0, height, tile_rows)
            for column in range(0, width, tile_columns)
        ]
    )


def _tiling(total_bytes: int, tiles: int, columns: int) -> tuple[int, int]:
    """Rows and columns of a tile, from the bytes it takes: whole rows of the matrix, or its largest divisor."""
    per_tile = total_bytes // tiles
    width = columns
    while width >= GROUP:
        rows = per_tile // tile_bytes(1, width)
        if rows and tile_bytes(rows, width) == per_tile:
            return rows, width
        width //= 2
    raise ValueError(f"{per_tile} bytes are no packed tile over {columns} columns")


def _kernel_tile(case: Case, position: int, columns: int) -> tuple[int, int]:
    """Rows and columns of the tiles of a packed argument [tiles, bytes]; the vector the kernel reads tells the columns."""
    tiles, size = case.shape(position)
    declared = case.declared("matvec") or case.declared("mv_")
    vectors = [shape[0] for shape in declared or [] if len(shape) == 1 and GROUP <= shape[0] <= columns]
    for width in (*vectors, columns):
        if columns % width == 0 and size % tile_bytes(1, width) == 0:
            return size // tile_bytes(1, width), width
    return _tiling(tiles * size, tiles, columns)


def matvec(case: Case) -> Trial:
    """W @ b, W int4."""
    length, height = case.shape(1)[0], case.shape(2)[0]
    w = Quantised.random(case.rng, height, length)
    b = case.normal(1)
    packed = packed_rows(w, *_kernel_tile(case, 0, length))
    return case.trial({0: packed, 1: b}, {2: (w.weights() @ b, example(_INT4, 1e-1, 5e-2))})


def matvec_add(case: Case) -> Trial:
    """W @ b + r, W int4."""
    length, height = case.shape(1)[0], case.shape(3)[0]
    w = Quantised.random(case.rng, height, length)
    b, r = case.normal(1), case.normal(2)
    packed = packed_rows(w, *_kernel_tile(case, 0, length))
    return case.trial({0: packed, 1: b, 2: r}, {3: (w.weights() @ b + r, example(_INT4, 1e-1, 5e-2))})


def gate_up(raw: Float) -> Float:
    """silu of the even rows times the odd ones."""
    gate, up = raw[0::2], raw[1::2]
    return gate / (1 + np.exp(-gate)) * up


def swiglu_of_norm(case: Case) -> Trial:
    """silu(gate) * up of an RMS-normed vector, gate and up rows of W taking turns."""
    length, height = case.shape(1)[1], 2 * case.shape(2)[0]
    w = Quantised.random(case.rng, height, length)
    x = case.normal(1)
    x[1] = case.rounded(1, x[1] * 0.1 + 1)
    packed = packed_rows(w, *_kernel_tile(case, 0, length))
    normed = case.rounded(1, root_mean_square(x[0]) * x[1])
    tolerance = example("decode_ffn_swiglu/matvec_int4_swiglu_rms.py", 1.5e-1, 5e-1)
    return case.trial({0: packed, 1: x}, {2: (gate_up(w.weights() @ normed), tolerance)})


def post_attention(case: Case) -> Trial:
    """Output projection and residual, RMS norm, gate and up with SwiGLU, down projection and residual."""
    width = case.shape(1)[0]
    hidden = case.shape(3)[0] * _kernel_tile(case, 3, width)[0] // 2
    wo = Quantised.random(case.rng, width, width)
    wgu = Quantised.random(case.rng, 2 * hidden, width)
    wdown = Quantised.random(case.rng, width, hidden)
    attended, residual = case.normal(1), case.normal(2)
    weight = case.rounded(4, case.rng.standard_normal(width) * 0.1 + 1)
    first = case.rounded(7, wo.weights() @ attended + residual)
    normed = case.rounded(1, root_mean_square(first) * weight)
    activated = case.rounded(1, gate_up(wgu.weights() @ normed))
    final = wdown.weights() @ activated + first
    tolerance = example("llms/llama32_1b_int4/multi_launch_builder/o_gemv_ffn_int4_fused.py", 2e-1, 2.0)
    inputs = {
        0: packed_rows(wo, *_kernel_tile(case, 0, width)), 1: attended, 2: residual,
        3: packed_rows(wgu, *_kernel_tile(case, 3, width)), 4: weight,
        5: packed_rows(wdown, *_kernel_tile(case, 5, hidden)),
    }  # fmt: skip
    return case.trial(inputs, {6: (final, tolerance), 7: (first, example(_INT4, 1e-1, 5e-2))})


def matmul(case: Case) -> Trial:
    """A [M, K] @ W, W [K, N] int4: tiles of output columns, then of K."""
    a = case.normal(0)
    columns, steps, size = case.shape(1)
    inner, outer = case.shape(0)[1], case.shape(2)[1]
    w = Quantised.random(case.rng, outer, inner)
    packed = packed_rows(w, outer // columns, inner // steps)
    assert packed.shape[1] == size, "the tile's bytes fit codes, scales and zero points"
    tolerance = example("matrix_multiplication/int4_awq/matmul_int4_packed.py", 1e-1, 5e-2)
    return case.trial({0: a, 1: packed}, {2: (a @ w.weights().T, tolerance)})


def dequantised(case: Case) -> Trial:
    """int4 to bf16, one vector cut into tiles; a tile's bytes are filled up to a multiple of four."""
    tiles, size = case.shape(0)
    count = case.shape(1)[0]
    v = Quantised.random(case.rng, 1, count)
    step = count // tiles
    packed = np.zeros((tiles, size), np.uint8)
    for tile in range(tiles):
        content = v.tile(slice(0, 1), slice(tile * step, (tile + 1) * step))
        packed[tile, : len(content)] = content
    return case.trial({0: packed}, {1: (v.weights(), example("dequant_awq/dequant_awq.py", 1e-1, 5e-2))})


BLOCK = 8


def block_float(values: Float) -> tuple[NDArray[np.uint8], Float]:
    """BFP16 records [n, 9] of blocks [n, 8], and what they stand for.

    A record is the largest magnitude's biased exponent, then eight signed multiples of 2 ** (exponent - 6), rounded to
    the nearest that fits.
    """
    largest = np.abs(values).max(axis=1, keepdims=True)
    exponents = np.floor(np.log2(np.where(largest == 0, 1.0, largest))).astype(np.int64)
    step = np.exp2(exponents - 6.0)
    mantissas = np.clip(np.rint(values / step), -128, 127)
    records = np.concatenate([exponents + 127, mantissas], axis=1).astype(np.int64).astype(np.uint8)
    return records, mantissas * step


def matmul_block_float(case: Case) -> Trial:
    """A bf16 [M, K] @ B, B [K, N] in BFP16: tiles of columns, then of K; blocks of 8 x 8, K innermost, columns outside."""
    a = case.normal(0, case.shape(0)[1] ** -0.5)
    column_tiles, inner_tiles, _ = case.shape(1)
    inner, outer = case.shape(0)[1], case.shape(2)[1]
    b = case.rounded(0, case.rng.standard_normal((inner, outer)) * inner**-0.5)
    depth, width = inner // inner_tiles, outer // column_tiles
    # [K tile, K block, 8, N tile, N block, 8] to [N tile, K tile, N block, K block, column, 8 of K]
    order = (3, 0, 4, 1, 5, 2)
    blocks = b.reshape(inner_tiles, depth // BLOCK, BLOCK, column_tiles, width // BLOCK, BLOCK).transpose(order)
    records, values = block_float(blocks.reshape(-1, BLOCK))
    held = values.reshape(blocks.shape).transpose(np.argsort(order)).reshape(inner, outer)
    tolerance = example("matrix_multiplication/bf16_x_bfp16/matmul_bf16_x_bfp16.py", 1e-1, 5e-2)
    return case.trial({0: a, 1: records}, {2: (a @ held, tolerance)})


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("*__matvec_int4_packed", matvec),
    ("@matvec_int4_packed", matvec),
    ("*__matvec_int4_packed_add", matvec_add),
    ("@matvec_int4_packed_add", matvec_add),
    ("*__matvec_int4_swiglu_rms", swiglu_of_norm),
    ("@matvec_int4_swiglu_rms", swiglu_of_norm),
    ("*__o_gemv_ffn_int4_fused", post_attention),
    ("@o_gemv_ffn_int4_fused", post_attention),
    ("*__matmul_int4_packed", matmul),
    ("@matmul_int4_packed", matmul),
    ("*__matmul_bf16_x_bfp16", matmul_block_float),
    ("@matmul_bf16_x_bfp16", matmul_block_float),
    ("dequant_awq*", dequantised),
    ("@dequant", dequantised),
)
