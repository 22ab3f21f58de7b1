"""Kernels on packed weights and integer convolutions against plain loops."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from npu_tools.emulator.kernels import Surroundings
from npu_tools.emulator.kernels.bfp16 import decode, encode
from npu_tools.errors import UnusableInput


def pack_int4(rng: np.random.Generator, rows: int, k: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """A packed tile (bytes as int8) and the weights it stands for, [rows, k]."""
    q, z = rng.integers(0, 16, (rows, k)), rng.integers(0, 16, (k // group, rows))
    scales = rng.random((k // group, rows)).astype(ml_dtypes.bfloat16)
    nibbles = (q[:, 0::2] | (q[:, 1::2] << 4)).astype(np.uint8)
    packed = np.concatenate([nibbles.ravel(), scales.ravel().view(np.uint8), z.ravel().astype(np.uint8)])
    weights = (q - np.repeat(z.T, group, axis=1)) * np.repeat(scales.T.astype(float), group, axis=1)
    return packed.view(np.int8), weights


def lanes_of(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([part[0] for part in parts])[:, None], np.stack([part[1] for part in parts])[:, None]


@pytest.mark.parametrize("group", [128, 32])
def test_int4_gemv_unpacks_weights_scales_and_zero_points(bench, group) -> None:
    rng = np.random.default_rng(0)
    packed, weights = lanes_of([pack_int4(rng, 8, 256, group) for _ in range(3)])
    b, c = bench.normal(1, 1, 256), bench.normal(3, 1, 8, seed=1)
    exact = np.einsum("xyrk,k->xyr", weights, b[0, 0].astype(float))
    types = [f"{packed.shape[-1]}xi8", "256xbf16", "8xbf16"]
    out = bench.run("matvec_int4_bf16_packed", types, [packed, b, c])[2]
    assert np.abs(out - c - exact).max() < 2e-2 * np.abs(exact).max()
    stored = bench.run("og_matvec_int4_bf16_packed_store", types, [packed, b, c])[2]
    assert np.abs(stored - exact).max() < 2e-2 * np.abs(exact).max()


def test_int4_gemv_reads_its_vector_from_an_offset(bench) -> None:
    packed, weights = pack_int4(np.random.default_rng(0), 8, 256, 128)
    b, c = bench.normal(1, 1, 512), np.zeros((1, 1, 8), np.float32)
    types = [f"{packed.size}xi8", "512xbf16", "i32", "8xbf16"]
    out = bench.run("matvec_int4_bf16_packed_b_offset", types, [packed[None, None], b, 256, c])[3]
    exact = weights @ b[0, 0, 256:].astype(float)
    assert np.abs(out.ravel() - exact).max() < 2e-2 * np.abs(exact).max()


def test_int4_gemm_scales_each_group_of_the_product(bench) -> None:
    rng = np.random.default_rng(0)
    packed, weights = lanes_of([pack_int4(rng, 16, 128, 64) for _ in range(2)])
    a, c = bench.normal(2, 1, 16, 128), bench.normal(2, 1, 16, 16, seed=1)
    types = [f"{packed.shape[-1]}xi8", "16x128xbf16", "16x16xf32"]
    out = bench.run("matmul_int4_bf16_packed_f32", types, [packed, a, c])[2]
    exact = a.astype(float) @ weights.swapaxes(2, 3)
    assert np.abs(out - c - exact).mean() < 2e-2 * np.abs(exact).mean()


def test_int4_dequantisation_rounds_each_weight_once(bench) -> None:
    packed, weights = pack_int4(np.random.default_rng(0), 1, 256, 128)
    out = bench.run(
        "dequant_int4_bf16", [f"{packed.size}xi8", "256xbf16"], [packed[None, None], np.zeros((1, 1, 256), np.float32)]
    )[1]
    assert np.allclose(out.ravel(), weights.ravel(), rtol=2.0**-8)


def test_packed_bytes_that_hold_no_such_tile_are_refused(bench) -> None:
    with pytest.raises(UnusableInput, match="groups of"):
        bench.kernel("matvec_int4_bf16_packed", ["1000xi8", "256xbf16", "8xbf16"])


def row_outer(matrix: np.ndarray) -> np.ndarray:
    """[gx, gy, R, C] as 8x8 blocks in row-outer order, flat."""
    gx, gy, rows, columns = matrix.shape
    return matrix.reshape(gx, gy, rows // 8, 8, columns // 8, 8).transpose(0, 1, 2, 4, 3, 5).reshape(gx, gy, -1)


def test_bfp16_bytes_hold_a_shared_exponent_and_eight_mantissas() -> None:
    values = np.float32([1, -1, 0.5, 0, 1.984375, -(2**-6), 0.25, 1]).reshape(1, 1, 8)
    packed = encode(values)
    assert packed.ravel().tolist() == [127, 64, 192, 32, 0, 127, 255, 16, 64]
    assert np.array_equal(decode(packed), values)


def test_a_gemm_on_packed_weights_takes_them_as_they_are(bench) -> None:
    a, b, c = bench.normal(2, 1, 32, 64), bench.normal(1, 2, 64, 16, seed=1), bench.normal(2, 2, 32, 16, seed=2)
    packed = encode(row_outer(b.swapaxes(2, 3)))
    a_blocks = row_outer(a).reshape(2, 1, 4, 8, 8, 8)
    c_blocks = c.reshape(2, 2, 4, 8, 2, 8).transpose(0, 1, 4, 2, 3, 5)
    types = ["4x8x8x8xbf16", f"{packed.shape[-1]}xi8", "2x4x8x8xf32"]
    out = bench.run(
        "matmul_bf16_x_bfp16_packed_f32", types, [a_blocks, packed.view(np.int8), np.ascontiguousarray(c_blocks)]
    )[2]
    got = out.transpose(0, 1, 3, 4, 2, 5).reshape(c.shape) - c
    exact = a.astype(float) @ b.astype(float)
    assert 1e-3 < np.abs(got - exact).mean() / np.abs(exact).mean() < 2e-2


def test_a_gemm_that_accumulates_in_bfp16_loses_bits_at_every_call(bench) -> None:
    a, b = bench.normal(1, 1, 32, 64), bench.normal(1, 1, 64, 16, seed=1)
    pa, pb = encode(row_outer(a)), encode(row_outer(b.swapaxes(2, 3)))
    pc = encode(np.zeros((1, 1, 512), np.float32)).view(np.int8)
    types = [f"{part.shape[-1]}xi8" for part in (pa, pb, pc)]
    pc = bench.run("matmul_vectorized_bfp16", types, [pa.view(np.int8), pb.view(np.int8), pc])[2]
    out = bench.run("bfp16_to_f32_mn", [types[2], "512xf32"], [pc, np.zeros((1, 1, 512), np.float32)])[1]
    got = out.reshape(4, 2, 8, 8).transpose(0, 2, 1, 3).reshape(32, 16)
    exact = a[0, 0].astype(float) @ b[0, 0].astype(float)
    assert np.abs(got - exact).mean() < 4e-2 * np.abs(exact).mean()
    assert not bench.run("zero_kernel", [types[2]], [pc])[0].any()


def to_line(pixels: np.ndarray) -> np.ndarray:
    """[W, C] as a line [C/8, W, 8], flat, one lane."""
    width, channels = pixels.shape
    return pixels.reshape(width, channels // 8, 8).transpose(1, 0, 2).reshape(1, 1, -1)


def to_weights(kernel: np.ndarray) -> np.ndarray:
    """[taps, I, O] as [O/8, I/8, taps, 8, 8], flat, one lane."""
    taps, inputs, outputs = kernel.shape
    split = kernel.reshape(taps, inputs // 8, 8, outputs // 8, 8)
    return np.ascontiguousarray(split.transpose(3, 1, 0, 2, 4)).reshape(1, 1, -1)


def test_the_1x1_convolution_shifts_rounds_and_clips_to_bytes(bench) -> None:
    rng = np.random.default_rng(0)
    x, k = rng.integers(-128, 128, (32, 16)).astype(np.int8), rng.integers(-128, 128, (1, 16, 8)).astype(np.int8)
    out = np.zeros((1, 1, 32, 1, 8), np.int8)
    types = ["32x1x16xi8", "128xi8", "32x1x8xi8", "i32", "i32", "i32", "i32"]
    args = [to_line(x).reshape(1, 1, 32, 1, 16), to_weights(k), out, 32, 16, 8, 9]
    got = bench.run("conv2dk1_i8", types, args)[2]
    expected = np.clip(np.floor((x.astype(int) @ k[0].astype(int)) / 512 + 0.5), 0, 255).astype(np.uint8)
    assert np.array_equal(got.view(np.uint8).ravel(), to_line(expected).ravel())


@pytest.mark.parametrize("check", [0, 1, 2])
def test_the_3x3_convolution_counts_the_outside_as_zero(bench, check) -> None:
    rng = np.random.default_rng(check)
    lines = rng.integers(0, 256, (3, 32, 8)).astype(np.uint8)
    k = rng.integers(-128, 128, (9, 8, 16)).astype(np.int8)
    types = ["32x1x8xi8"] * 3 + ["1152xi8", "512xi8"] + ["i32"] * 9
    args = [to_line(line).reshape(1, 1, 32, 1, 8).view(np.int8) for line in lines]
    args += [to_weights(k), np.zeros((1, 1, 512), np.int8), 32, 8, 8, 3, 3, check, 10, 8, 256]
    got = bench.run("conv2dk3_ui8", types, args)[4]
    picture = np.pad(lines.astype(int), [(0, 0), (1, 1), (0, 0)])
    if check == 0:
        picture[0] = 0
    if check == 2:
        picture[2] = 0
    total = sum(
        picture[row, column : column + 32] @ k[row * 3 + column, :, 8:].astype(int)
        for row in range(3)
        for column in range(3)
    )
    expected = np.clip(np.floor(np.asarray(total) / 1024 + 0.5), 0, 255).astype(np.uint8)
    assert np.array_equal(got.view(np.uint8)[0, 0, 256:], to_line(expected).ravel())
    assert not got[0, 0, :256].any()


def test_the_skip_convolution_adds_the_residual_between_its_two_shifts(bench) -> None:
    rng = np.random.default_rng(0)
    x, k = rng.integers(0, 256, (32, 16)).astype(np.uint8), rng.integers(-128, 128, (1, 16, 8)).astype(np.int8)
    skip = rng.integers(-128, 128, (32, 8)).astype(np.int8)
    halves = np.concatenate([to_line(x[:, :8]), to_line(x[:, 8:])], axis=-1).view(np.int8)
    types = ["512xi8", "i32", "128xi8", "32x1x8xi8", "32x1x8xi8"] + ["i32"] * 5
    args = [
        halves,
        256,
        to_weights(k),
        np.zeros((1, 1, 32, 1, 8), np.int8),
        to_line(skip).reshape(1, 1, 32, 1, 8),
        32,
        16,
        8,
        8,
        1,
    ]
    got = bench.run("conv2dk1_skip_i8", types, args)[3]
    inner = np.clip(np.floor((x.astype(int) @ k[0].astype(int)) / 256 + 0.5), -128, 127) + skip
    expected = np.clip(np.floor(inner / 2 + 0.5), 0, 255).astype(np.uint8)
    assert np.array_equal(got.view(np.uint8).ravel(), to_line(expected).ravel())


def test_the_patch_convolution_rounds_halves_away_from_zero(bench) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 98, 8, 8)).astype(np.uint8)
    k = rng.integers(-128, 128, (2, 98, 8, 8)).astype(np.int8)
    types = ["12544xi8", "12544xi8", "256xi8"] + ["i32"] * 5
    args = [x.view(np.int8).reshape(1, 1, -1), k.reshape(1, 1, -1), np.zeros((1, 1, 256), np.int8), 224, 4, 16, 14, 14]
    got = bench.run("conv2dk14_i8", types, args)[2].reshape(2, 2, 8, 8)
    total = np.einsum("tpqk,opkc->otqc", x.astype(np.int64), k.astype(np.int64)) / 2**14
    expected = np.clip(np.sign(total) * np.floor(np.abs(total) + 0.5), -128, 127)
    assert np.array_equal(got, expected.astype(np.int8))


def test_decode_scores_and_outputs_work_at_their_position(bench) -> None:
    q, k, scores = bench.normal(2, 1, 4, 64), bench.normal(2, 1, 64, seed=1), np.zeros((2, 1, 4, 128), np.float32)
    out = bench.run("attn_1_group", ["4x64xbf16", "64xbf16", "i32", "4x128xbf16"], [q, k, 7, scores])[3]
    assert np.allclose(out[..., 7], np.einsum("xyhd,xyd->xyh", q.astype(float), k), rtol=1e-2, atol=1e-3)
    assert np.count_nonzero(out) == np.count_nonzero(out[..., 7])
    v, acc = bench.normal(2, 1, 64, seed=2), bench.normal(2, 1, 4, 64, seed=3)
    got = bench.run("attn_2_group", ["4x128xbf16", "64xbf16", "i32", "4x64xbf16"], [out, v, 7, acc])[3]
    assert np.allclose(got, acc + out[..., 7, None] * v[:, :, None], rtol=1e-2, atol=1e-2)
    one = bench.run(
        "attn_1",
        ["1x48xbf16", "48xbf16", "i32", "256xbf16"],
        [q[..., :1, :48], k[..., :48], 3, np.zeros((2, 1, 256), np.float32)],
    )[3]
    assert np.allclose(
        one[..., 3], (q[..., 0, :48].astype(float) * k[..., :48]).sum(-1) / 48**0.5, rtol=1e-2, atol=1e-3
    )


def test_the_small_rms_norm_and_its_neighbours(bench) -> None:
    x, w = bench.normal(1, 1, 64), bench.normal(1, 1, 64, seed=1)
    zeros = np.zeros((1, 1, 64), np.float32)
    out = bench.run("simple_rms_bf16", ["64xbf16", "64xbf16", "64xbf16", "i32"], [x, w, zeros, 64])[2]
    exact = x.astype(float) * w / np.sqrt((x.astype(float) ** 2).mean() + 1e-5)
    assert np.allclose(out, exact, rtol=3e-2, atol=1e-3)
    packed = np.concatenate([x, w], -1)
    first, second = bench.run("xrms_demux_bf16", ["128xbf16", "64xbf16", "64xbf16", "i32"], [packed, zeros, zeros, 64])[
        1:3
    ]
    assert np.array_equal(first, x)
    assert np.array_equal(second, w)


def test_tiles_are_copied_transposed_and_passed_through(bench) -> None:
    line = np.arange(64, dtype=np.uint8).reshape(1, 1, 64)
    assert np.array_equal(bench.run("passThroughLine", ["64xi8", "64xi8", "i32"], [line, line * 0, 64])[1], line)
    flat = bench.normal(1, 1, 2048)
    turned = bench.run("transpose_bf16", ["2048xbf16", "2048xbf16"], [flat, flat * 0])[1]
    assert np.array_equal(turned.reshape(32, 64), flat.reshape(64, 32).T)
    around = Surroundings(options={"DIM_M": 2, "DIM_N": 4})
    small = bench.run(
        "transpose_bf16", ["8xbf16", "8xbf16"], [flat[..., :8], np.zeros((1, 1, 8), np.float32)], around=around
    )[1]
    assert np.array_equal(small.reshape(4, 2), flat[0, 0, :8].reshape(2, 4).T)
    with pytest.raises(UnusableInput, match="DIM_M"):
        bench.kernel("transpose_bf16", ["8xbf16", "8xbf16"])
