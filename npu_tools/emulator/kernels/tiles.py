"""Kernels that move or touch a tile element by element: copies, the transpose, small demonstration functions.

Read in mlir-air programming_examples: passthrough/passthrough_kernel/passThrough.cc, rope_sincos/rope.cc
(vector_copy_bf16_144_16), data_transfer_transpose/dma_bf16/transpose.cc, herd_dataflow/extern_func.cc (add_3_bf16); and
test/xrt/05_extern_func/chess/beefmaker_kernel.cc, test/xrt/07_extern_linalg/kernel.cpp (add_bf16),
test/airhost/50_air_mmult_2x2_extern/chess/extern_kernel.cc.

transpose_bf16's M and N are macros and its memrefs flat: the options DIM_M and DIM_N give them, or a two-dimensional
source; 2048 elements are the source file's own default of 64 x 32. Any other flat size is refused, since every guess
would run and be silently wrong. add_bf16 and add_3_bf16 round down (floor): no mode is set.
"""

from __future__ import annotations

import numpy as np

from npu_tools.emulator.kernels.gemm import integer_product
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs, shape_of
from npu_tools.emulator.kernels.lanes import flat, shaped, uniform, write_part
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput


def _pass_through(call: Call) -> Built | None:
    scalars = len(call.operands) - 2
    if memrefs(call) != (0, 1) or scalars not in (1, 2):
        return None

    def run(numerics: Numerics, source: Array, target: Array, *sizes: Array | int) -> None:
        count = 1
        for size in sizes:
            count *= uniform(size)
        write_part(target, flat(source)[..., :count], 0)

    return Built(run, (0, *range(2, 2 + scalars)), (1,), "none")


def _copy(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 2:
        return None
    count = int(call.match["count"])

    def run(numerics: Numerics, source: Array, target: Array) -> None:
        write_part(target, flat(source)[..., :count], 0)

    return Built(run, (0,), (1,), "none")


def transpose_extents(call: Call) -> tuple[int, int]:
    """Rows and columns of the source of transpose_bf16."""
    source, options = call.operands[0], call.surroundings.options
    rows, columns = 64, 32
    if "DIM_M" in options and "DIM_N" in options:
        rows, columns = int(options["DIM_M"]), int(options["DIM_N"])
    elif len(shape_of(source)) == 2:
        rows, columns = shape_of(source)
    if rows * columns != source.size or call.operands[1].size != source.size:
        raise UnusableInput(
            f"@{call.symbol} has its {source.size} elements' rows and columns compiled in (-DDIM_M, -DDIM_N; 64 and 32 "
            "by default), and the program does not say them. Give the options DIM_M and DIM_N."
        )
    return rows, columns


def _transpose(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 2:
        return None
    rows, columns = transpose_extents(call)

    def run(numerics: Numerics, source: Array, target: Array) -> None:
        turned = shaped(source, rows, columns).swapaxes(2, 3)
        write_part(target, turned.reshape(*turned.shape[:2], -1), 0)

    return Built(run, (0,), (1,), "none")


def _add_three(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 2:
        return None

    def run(numerics: Numerics, source: Array, target: Array) -> None:
        values = numerics.round_to(flat(source) + np.float32(3), "bf16", kind="add_3", rounding="floor")
        write_part(target, values, 0)

    return Built(run, (0,), (1,), "bf16 (floor)")


def _add(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None

    def run(numerics: Numerics, a: Array, b: Array, target: Array) -> None:
        values = numerics.round_to(flat(a) + flat(b), "bf16", kind="add", rounding="floor")
        write_part(target, values, 0)

    return Built(run, (0, 1), (2,), "bf16 (floor)")


def _beefmaker(call: Call) -> Built | None:
    if memrefs(call) != (0,) or len(call.operands) != 1:
        return None

    def run(numerics: Numerics, target: Array) -> None:
        n = flat(target).shape[-1] // 4 * 4
        words = np.tile(np.array([0xDEADBEEF, 0xCAFECAFE, 0x000DECAF, 0], np.uint32), n // 4)
        words[3::4] = 0x5A1AD000 + np.arange(0, n, 4)
        write_part(target, words.view(np.int32).astype(target.dtype)[None, None], 0)

    return Built(run, (), (0,), "none")


def _extern_matmul(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None
    if any(operand.element != "i32" or len(shape_of(operand)) != 2 for operand in call.operands):
        return None

    def run(numerics: Numerics, a: Array, b: Array, c: Array) -> None:
        c[...] = (c.astype(np.int64) + integer_product(a, b)).astype(np.int32)

    return Built(run, (0, 1, 2), (2,), "int32, wrapping", accumulators=(2,))


FAMILIES: tuple[Family, ...] = (
    Family(
        "pass_through",
        r"passThrough(?:Line|Tile)",
        ("passThroughLine", "passThroughTile"),
        "mlir-air programming_examples/passthrough/passthrough_kernel/passThrough.cc",
        "source, target, width (or height and width)",
        _pass_through,
    ),
    Family(
        "vector_copy_n",
        r"vector_copy_bf16_(?P<count>\d+)_\d+",
        ("vector_copy_bf16_144_16",),
        "mlir-air programming_examples/rope_sincos/rope.cc",
        "source, target",
        _copy,
    ),
    Family(
        "transpose",
        r"transpose_bf16",
        ("transpose_bf16",),
        "mlir-air programming_examples/data_transfer_transpose/dma_bf16/transpose.cc",
        "source [M, N], target [N, M], flat",
        _transpose,
    ),
    Family(
        "add_3",
        r"add_3_bf16",
        ("add_3_bf16",),
        "mlir-air programming_examples/herd_dataflow/extern_func.cc",
        "source, target",
        _add_three,
    ),
    Family(
        "add_bf16",
        r"add_bf16",
        ("add_bf16",),
        "mlir-air test/xrt/07_extern_linalg/kernel.cpp",
        "a, b, sum",
        _add,
    ),
    Family(
        "beefmaker",
        r"beefmaker_kernel",
        ("beefmaker_kernel",),
        "mlir-air test/xrt/05_extern_func/chess/beefmaker_kernel.cc",
        "a buffer of i32",
        _beefmaker,
    ),
    Family(
        "extern_matmul",
        r"extern_kernel",
        ("extern_kernel",),
        "mlir-air test/airhost/50_air_mmult_2x2_extern/chess/extern_kernel.cc",
        "row-major A, B and C of i32",
        _extern_matmul,
    ),
)
