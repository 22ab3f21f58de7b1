"""Kernels that set, copy or narrow a whole tile: zero_*, linalg_fill_*, *_fill_*, f32_to_bf16_*, copies.

Read in mlir-air zero.cc (every example has its own), matrix_multiplication/bf16_in_bf16_out/mm_aie2p.cc (zero_f32_mn,
f32_to_bf16_mn, f32_to_bf16_n), bf16_x_bfp16/mm_bf16_x_bfp16.cc and int4_awq/mv_int4_bf16.cc (zero_vectorized_f32_mn).
Zeroing takes no value in C++: a scalar operand of `linalg_fill_*` of the tile's own type is MLIR's fill value, and the
C++ object ignores it. llama2_mha/mha.cc's linalg_fill_bf16(offset, tile) clears one row from an offset. Narrowing rounds to nearest even (all three set conv_even).
"""

from __future__ import annotations

import numpy as np

from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, store, uniform, write_part
from npu_tools.emulator.numerics import Numerics


def _zero(call: Call) -> Built | None:
    targets = memrefs(call)
    if len(targets) != 1:
        return None
    (target,) = targets
    tile = call.operands[target]
    # mha.cc's linalg_fill takes where to start, as i32 before a bf16 tile, and clears one row of DIM_N from there.
    starts = target == 1 and call.operands[0].element == "i32" and tile.element in ("bf16", "f32")

    def run(numerics: Numerics, *args: Array) -> None:
        if starts:
            row = args[target].shape[-1]
            write_part(args[target], np.zeros((1, 1, row), np.float32), uniform(args[0]))
        else:
            args[target][...] = 0

    return Built(run, reads=(0,) if starts else (), writes=(target,), rounding="none")


def _narrow_all(call: Call) -> Built | None:
    if len(call.operands) != 2 or memrefs(call) != (0, 1) or call.operands[1].element != "bf16":
        return None

    def run(numerics: Numerics, source: Array, target: Array) -> None:
        values = numerics.round_to(source, "bf16", kind="f32_to_bf16", rounding="conv_even")
        if source.shape[2:] == target.shape[2:]:
            target[...] = values
        else:
            store(target, values)

    return Built(run, reads=(0,), writes=(1,), rounding="float32 to bf16, nearest even")


def _narrow_n(call: Call) -> Built | None:
    if len(call.operands) != 3 or memrefs(call) != (0, 1):
        return None

    def run(numerics: Numerics, source: Array, target: Array, count: Array | int) -> None:
        n = uniform(count)
        values = numerics.round_to(flat(source)[..., :n], "bf16", kind="f32_to_bf16", rounding="conv_even")
        write_part(target, values, 0)

    return Built(run, reads=(0, 2), writes=(1,), rounding="float32 to bf16, nearest even, the first n elements")


FAMILIES: tuple[Family, ...] = (
    Family(
        name="zero",
        pattern=r"zero(?:_vectorized|_scalar)?_(?:bf16|f32|i8|i16|i32)(?:_mn)?|linalg_fill_[a-z]+\d+(?:_view\w+as\d+)?",
        symbols=(
            "zero_f32_mn",
            "zero_bf16",
            "zero_vectorized_bf16",
            "zero_vectorized_f32_mn",
            "linalg_fill_bf16",
            "linalg_fill_i32_view16x8xi32as2",
        ),
        source="mlir-air programming_examples/**/zero.cc, matrix_multiplication/*/mm_aie2p.cc",
        takes="one memref, and optional scalars that are not used",
        build=_zero,
    ),
    Family(
        name="f32_to_bf16",
        pattern=r"f32_to_bf16_mn",
        symbols=("f32_to_bf16_mn",),
        source="mlir-air programming_examples/matrix_multiplication/bf16_in_bf16_out/mm_aie2p.cc",
        takes="f32 tile, bf16 tile of the same size",
        build=_narrow_all,
    ),
    Family(
        name="f32_to_bf16_n",
        pattern=r"f32_to_bf16_n",
        symbols=("f32_to_bf16_n",),
        source="mlir-air programming_examples/matrix_multiplication/bf16_in_bf16_out/mm_aie2p.cc",
        takes="f32 tile, bf16 tile, element count i32",
        build=_narrow_n,
    ),
)
