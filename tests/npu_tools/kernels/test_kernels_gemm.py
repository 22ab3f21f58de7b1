"""Matrix multiplication and fill kernels against plain loops over their blocked layouts."""

from __future__ import annotations

import numpy as np
import pytest
from xdsl.dialects.builtin import MemRefType, bf16

from npu_tools.emulator.kernels import known_symbols, lookup
from npu_tools.emulator.kernels.lanes import merged
from npu_tools.errors import UnusableInput

M, K, N = 32, 24, 16


def blocked(matrix: np.ndarray, r: int, c: int) -> np.ndarray:
    """A row-major matrix [gx, gy, R, C] as blocks [gx, gy, C/c, R/r, r, c], element by element."""
    gx, gy, rows, columns = matrix.shape
    blocks = np.empty((gx, gy, columns // c, rows // r, r, c), matrix.dtype)
    for row in range(rows):
        for column in range(columns):
            blocks[:, :, column // c, row // r, row % r, column % c] = matrix[:, :, row, column]
    return blocks


def types(blocks: list[np.ndarray], elements: tuple[str, str, str]) -> list[str]:
    return [
        "x".join(map(str, array.shape[2:])) + f"x{element}" for array, element in zip(blocks, elements, strict=True)
    ]


@pytest.mark.parametrize("symbol", ["op_has_no_registered_library_name", "op_has_no_registered_library_name_m64"])
def test_a_block_gemm_with_f32_accumulator_adds_the_product_and_rounds_only_its_inputs(bench, symbol) -> None:
    a, b = bench.normal(3, 1, M, K), bench.normal(1, 2, K, N, seed=1)
    c = bench.normal(3, 2, M, N, seed=2)
    args = [blocked(a, 8, 8), blocked(b, 8, 8), blocked(c, 8, 8)]
    shapes = ["1x1x" + text for text in types(args, ("bf16", "bf16", "f32"))]
    result = bench.run(symbol, shapes, [array.reshape(*array.shape[:2], 1, 1, *array.shape[2:]) for array in args])[2]
    expected = c.astype(np.float64) + np.einsum(
        "xymk,xykn->xymn", np.broadcast_to(a, (3, 2, M, K)), np.broadcast_to(b, (3, 2, K, N)), dtype=np.float64
    )
    got = merged(result[:, :, 0, 0], [[0], [1], [3, 4], [2, 5]])
    error = np.abs(got - expected).mean() / np.abs(expected).mean()
    assert 1e-4 < error < 1.5e-2  # BFP16 blocks of 8 cost about 9e-3 of the product


def test_a_4x8x4_block_gemm_is_float32_inside_and_rounds_its_bf16_accumulator_down(bench) -> None:
    a, b, c = bench.normal(1, 1, M, K), bench.normal(1, 1, K, N, seed=1), bench.normal(1, 1, M, N, seed=2)
    args = [blocked(a, 4, 8), blocked(b, 8, 4), blocked(c, 4, 4)]
    result = bench.run("op_has_no_registered_library_name", types(args, ("bf16", "bf16", "bf16")), args)[2]
    exact = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    got = merged(result, [[0], [1], [3, 4], [2, 5]])
    assert np.all(got <= exact + 1e-4)
    assert np.all(exact - got <= np.abs(exact) * 2**-7 + 1e-4)


def test_integer_gemms_are_exact_and_wrap_to_the_output_width(bench) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-128, 128, (2, 1, M, 32), dtype=np.int8)
    b = rng.integers(-128, 128, (1, 2, 32, N), dtype=np.int8)
    c = rng.integers(-32768, 32768, (2, 2, M, N), dtype=np.int16)
    args = [blocked(a, 8, 8), blocked(b, 8, 8), blocked(c, 8, 8)]
    result = bench.run("op_has_no_registered_library_name", types(args, ("i8", "i8", "i16")), args)[2]
    expected = (c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)).astype(np.int16)
    assert np.array_equal(merged(result, [[0], [1], [3, 4], [2, 5]]), expected)


def test_a_gemm_gives_the_same_bits_for_one_tile_as_for_a_herd(bench) -> None:
    for m, k, n in ((64, 32, 128), (16, 64, 16), (32, 128, 48)):
        a, b = bench.normal(4, 1, m, k), bench.normal(1, 3, k, n, seed=1)
        args = [blocked(a, 8, 8), blocked(b, 8, 8), np.zeros((4, 3, n // 8, m // 8, 8, 8), np.float32)]
        bench.run("op_has_no_registered_library_name", types(args, ("bf16", "bf16", "f32")), args)


def test_a_gemm_writes_through_views_in_its_preferred_storage_order(bench) -> None:
    a, b = bench.normal(2, 1, M, K), bench.normal(1, 2, K, N, seed=1)
    args = [blocked(a, 8, 8), blocked(b, 8, 8), np.zeros((2, 2, N // 8, M // 8, 8, 8), np.float32)]
    shapes = types(args, ("bf16", "bf16", "f32"))
    kernel = bench.kernel("op_has_no_registered_library_name", shapes)
    assert kernel.accumulators == (2,)
    natural = []
    for array, order in zip(args, kernel.storage_order, strict=True):
        stored = np.ascontiguousarray(array.transpose(order))
        natural.append(stored.transpose(np.argsort(order)))
    kernel.run(bench.numerics, *natural)
    expected = bench.run("op_has_no_registered_library_name", shapes, args)[2]
    assert np.array_equal(natural[2], expected)
    assert np.shares_memory(merged(natural[2], [[0], [1], [3, 4], [2, 5]]), natural[2])


def test_row_major_gemms_take_two_dimensional_tiles(bench) -> None:
    a, b, c = bench.normal(1, 1, 16, 24), bench.normal(2, 1, 24, 8, seed=1), bench.normal(2, 1, 16, 8, seed=2)
    symbol = "linalg_matmul_view16x24xbf16as2_view24x8xbf16as2_view16x8xf32as2"
    result = bench.run(symbol, ["16x24xbf16", "24x8xbf16", "16x8xf32"], [a, b, c])[2]
    assert np.allclose(result, c + a.astype(np.float64) @ b, rtol=1e-5, atol=1e-5)


def test_flat_typed_gemms_take_blocks_row_outer(bench) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (1, 1, 16, 16)).astype(np.int8), rng.integers(-9, 9, (1, 1, 16, 24)).astype(np.int8)
    flat_a = a.reshape(1, 1, 2, 8, 2, 8).transpose(0, 1, 2, 4, 3, 5).reshape(1, 1, -1)
    flat_b = b.reshape(1, 1, 2, 8, 3, 8).transpose(0, 1, 2, 4, 3, 5).reshape(1, 1, -1)
    result = bench.run(
        "matmul_i8_i16", ["256xi8", "384xi8", "384xi16"], [flat_a, flat_b, np.zeros((1, 1, 384), np.int16)]
    )[2]
    got = result.reshape(2, 3, 8, 8).transpose(0, 2, 1, 3).reshape(16, 24)
    assert np.array_equal(got, (a.astype(int) @ b.astype(int))[0, 0])


def test_fill_kernels_zero_their_tile_whatever_value_they_are_given(bench) -> None:
    ones = np.ones((2, 1, 6, 8), np.float32)
    for symbol, shapes, args in (
        ("zero_f32_mn_m32", ["6x8xf32"], [ones]),
        ("linalg_fill_i32_view6x8xi32as2", ["6x8xi32"], [ones.astype(np.int32)]),
        ("linalg_fill_bf16", ["bf16", "6x8xbf16"], [7.0, ones]),
        ("down_zero_vectorized_bf16", ["6x8xbf16"], [ones]),
    ):
        assert not bench.run(symbol, shapes, args)[-1].any()


def test_the_fill_of_the_decode_example_clears_one_row_from_an_offset(bench) -> None:
    ones = np.ones((2, 1, 3, 8), np.float32)
    result = bench.run("linalg_fill_bf16", ["i32", "3x8xbf16"], [8, ones], "mha.o")[1]
    assert np.array_equal(result.sum(-1)[0, 0], [8, 0, 8])


def test_narrowing_to_bf16_goes_to_nearest_even(bench) -> None:
    source = np.float32([1.0, 1.00390625, 1.01171875, -1.00390625]).reshape(1, 1, 2, 2)
    result = bench.run("f32_to_bf16_mn_m64", ["2x2xf32", "2x2xbf16"], [source, np.zeros_like(source)])[1]
    assert result.ravel().tolist() == [1.0, 1.0, 1.015625, -1.0]
    part = bench.run(
        "f32_to_bf16_n", ["4xf32", "4xbf16", "i32"], [source.reshape(1, 1, 4), np.full((1, 1, 4), 9, np.float32), 2]
    )[1]
    assert part.ravel().tolist() == [1.0, 1.0, 9.0, 9.0]


def test_operands_that_do_not_fit_a_known_symbol_are_refused_with_what_it_takes() -> None:
    wrong = [MemRefType(bf16, [4, 8, 8, 8]), MemRefType(bf16, [16, 5, 8, 8]), MemRefType(bf16, [16, 8, 8, 8])]
    with pytest.raises(UnusableInput, match=r"N/t, K/s"):
        lookup("op_has_no_registered_library_name", wrong, "mm.o")
    with pytest.raises(UnusableInput, match="Check the private declaration"):
        lookup("op_has_no_registered_library_name", wrong[:2], "mm.o")


def test_an_unknown_symbol_has_no_kernel_and_known_ones_can_be_listed() -> None:
    assert lookup("my_secret_kernel", [MemRefType(bf16, [4])], None) is None
    assert "op_has_no_registered_library_name" in known_symbols()
