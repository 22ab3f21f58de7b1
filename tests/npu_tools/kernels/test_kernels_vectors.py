"""GEMV, vector-matrix, activation and rotary kernels against plain numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from npu_tools.emulator.kernels import Surroundings, activation

BF16 = 2.0**-8


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_gemv_rounds_each_row_once_and_writes_from_its_row_offset(bench) -> None:
    a, b = bench.normal(4, 1, 8, 128), bench.normal(1, 1, 128, seed=1)
    types = ["i32", "i32", "i32", "8x128xbf16", "128xbf16", "32xbf16"]
    out = bench.run("matvec_vectorized_bf16_bf16", types, [8, 128, 16, a, b, zeros(4, 1, 32)])[5]
    exact = np.einsum("xyrk,k->xyr", a.astype(np.float64), b[0, 0])
    assert np.allclose(out[..., 16:24], exact, rtol=BF16, atol=1e-6)
    assert not out[..., :16].any()
    assert not out[..., 24:].any()


def test_accumulating_gemv_adds_onto_its_output(bench) -> None:
    a, b, c = bench.normal(2, 2, 8, 64), bench.normal(1, 2, 64, seed=1), bench.normal(2, 2, 8, seed=2)
    out = bench.run("down_matvec_vectorized_bf16", ["8x64xbf16", "64xbf16", "8xbf16"], [a, b, c])[2]
    exact = c + np.einsum("xyrk,zyk->xyr", a.astype(np.float64), b)
    assert np.allclose(out, exact, rtol=BF16, atol=1e-6)


def test_word_transposed_gemv_reads_pairs_of_columns(bench) -> None:
    a, b = bench.normal(1, 1, 16, 32), bench.normal(1, 1, 32, seed=1)
    stored = a.reshape(1, 1, 16, 16, 2).transpose(0, 1, 3, 2, 4).reshape(1, 1, -1)
    types = ["512xbf16", "32xbf16", "16xbf16"]
    out = bench.run("matvec_vectorized_bf16_bf16", types, [stored, b, zeros(1, 1, 16)], "ffn_kernels.o")[2]
    assert np.allclose(out[0, 0], a[0, 0].astype(np.float64) @ b[0, 0], atol=0.15)


def test_residual_add_takes_its_part_of_the_residual(bench) -> None:
    p, r = bench.normal(2, 1, 8), bench.normal(1, 1, 32, seed=1)
    out = bench.run("partial_plus_r_bf16", ["8xbf16", "32xbf16", "i32", "8xbf16"], [p, r, 8, zeros(2, 1, 8)])[3]
    assert np.allclose(out, p + r[..., 8:16], rtol=BF16)


def test_scalar_matmul_of_the_prefill_ffn_is_row_major(bench) -> None:
    a, b, c = bench.normal(1, 1, 16, 32), bench.normal(2, 1, 32, 8, seed=1), bench.normal(2, 1, 16, 8, seed=2)
    args = [array.reshape(*array.shape[:2], -1) for array in (a, b, c)]
    out = bench.run("matmul_bf16", ["512xbf16", "256xbf16", "128xbf16"], args, "ffn_kernels.o")[2]
    assert np.allclose(out.reshape(c.shape), c + a.astype(np.float64) @ b, atol=0.2)


@pytest.mark.parametrize("offset", [None, 16])
def test_vecmat_accumulates_rows_of_b(bench, offset) -> None:
    a, b = bench.normal(1, 2, 24), bench.normal(1, 2, 24, 16, seed=1)
    types, args = ["24xbf16", "24x16xbf16", "3x16xbf16"], [a, b, zeros(1, 2, 3, 16)]
    if offset is not None:
        types, args = ["i32", *types], [offset, *args]
    out = bench.run("vecmat_bf16_bf16", types, args)[-1]
    exact = np.einsum("xyk,xykn->xyn", a.astype(np.float64), b)
    assert np.allclose(out[:, :, 0 if offset is None else 1], exact, atol=0.15)
    assert not out[:, :, 2].any()


def blocks_of_b(b: np.ndarray) -> np.ndarray:
    k, n = b.shape
    return np.ascontiguousarray(b.reshape(k // 16, 16, n // 8, 8).transpose(2, 0, 1, 3))[None, None]


def test_integer_vecmat_is_exact_and_the_grouped_one_scales_each_group(bench) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (1, 1, 2, 32)).astype(np.int8), rng.integers(-9, 9, (64, 16)).astype(np.int8)
    c = rng.integers(-9, 9, (1, 1, 16)).astype(np.int32)
    out = bench.run("vecmat_i8_i32", ["2x32xi8", "2x4x16x8xi8", "16xi32"], [a, blocks_of_b(b), c])[2]
    assert np.array_equal(out.ravel(), c.ravel() + a.ravel().astype(int) @ b.astype(int))
    sa, sb = rng.random((1, 1, 2), np.float32), rng.random((1, 1, 2, 2, 8), np.float32)
    types = ["2x32xi8", "2xf32", "2x4x16x8xi8", "2x2x8xf32", "16xf32"]
    out = bench.run("vecmat_i8_f32_i32_32", types, [a, sa, blocks_of_b(b), sb, zeros(1, 1, 16)])[4]
    parts = np.einsum("gk,gkn->gn", a.reshape(2, 32).astype(float), b.reshape(2, 32, 16).astype(float))
    factors = sa.ravel()[:, None] * sb[0, 0].transpose(1, 0, 2).reshape(2, 16)
    assert np.allclose(out.ravel(), (parts * factors).sum(0), rtol=1e-5)


def test_silu_and_gelu_are_close_to_their_functions_and_stop_at_n(bench) -> None:
    gate, up = bench.normal(2, 1, 256), bench.normal(2, 1, 256, seed=1)
    x = gate.astype(np.float64)
    types = ["256xbf16", "256xbf16", "256xbf16", "i32"]
    references = {
        "silu_and_mul_bf16": x / (1 + np.exp(-x)) * up,
        "swiglu_bf16": x / (1 + np.exp(-x)) * up,
        "gelu_and_mul_bf16": 0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3))) * up,
    }
    for symbol, expected in references.items():
        out = bench.run(symbol, types, [gate, up, zeros(2, 1, 256), 240])[2]
        error = np.abs(out - expected)[..., :240].mean() / np.abs(expected).mean()
        assert 1e-3 < error < 3e-2, symbol
        assert not out[..., 240:].any()


def test_softmax_sums_to_one_over_whole_vectors_and_zeroes_the_rest(bench) -> None:
    x = bench.normal(1, 1, 256, scale=2.0)
    for link, count, used in (("softmax.o", 31, 32), ("mha.o", 31, 32), ("mha.o", 32, 32), ("softmax.o", 32, 48)):
        out = bench.run("softmax_bf16", ["256xbf16", "i32", "256xbf16"], [x, count, zeros(1, 1, 256)], link)[2]
        weights = np.exp(x[..., :used].astype(np.float64) - x[..., :used].max())
        assert np.allclose(out[..., :used], weights / weights.sum(), rtol=7e-2)
        assert not out[..., used:].any()


def test_rope_pairs_halves_and_the_lut_example_pairs_neighbours(bench) -> None:
    x, angle = bench.normal(3, 1, 64), np.linspace(0, 1.5, 32)
    cos, sin = np.cos(angle), np.sin(angle)
    types = ["64xbf16", "64xbf16", "64xbf16", "i32"]
    first, second = x[..., :32].astype(float), x[..., 32:].astype(float)
    halves = np.concatenate([cos, sin]).astype(np.float32).reshape(1, 1, 64)
    out = bench.run("rope", types, [x, halves, zeros(3, 1, 64), 64])[2]
    assert np.allclose(out, np.concatenate([first * cos - second * sin, first * sin + second * cos], -1), atol=0.02)
    pairs = np.stack([cos, sin], -1).astype(np.float32).reshape(1, 1, 64)
    out = bench.run("rope", types, [x, pairs, zeros(3, 1, 64), 64], around=Surroundings(function="rope_lut"))[2]
    even, odd = x[..., 0::2].astype(float), x[..., 1::2].astype(float)
    assert np.allclose(out[..., 0::2], even * cos - odd * sin, atol=0.04)
    assert np.allclose(out[..., 1::2], even * sin + odd * cos, atol=0.04)


def test_partial_rope_copies_what_it_does_not_rotate(bench) -> None:
    x, lut = bench.normal(1, 1, 64), bench.normal(1, 1, 64, seed=1)
    types = ["64xbf16", "64xbf16", "64xbf16", "i32", "i32"]
    out = bench.run("rope_partial", types, [x, lut, zeros(1, 1, 64), 64, 32])[2]
    assert np.array_equal(out[..., 32:], x[..., 32:])
    assert np.allclose(
        out[..., :16], x[..., :16] * lut[..., :16] - x[..., 16:32] * lut[..., 16:32], rtol=1e-2, atol=0.02
    )


@pytest.mark.parametrize(
    ("symbol", "link", "element"),
    [
        ("sinf_bf16", "rope.o", "bf16"),
        ("sinf_bf16_24_8", "mha.o", "bf16"),
        ("sinf_bf16_32_16", "attn_decode_npu2.o", "f32"),
    ],
)
def test_sine_and_cosine_hold_over_all_quadrants(bench, symbol, link, element) -> None:
    angles = np.linspace(0, 12, 33, dtype=np.float32).reshape(1, 1, 33)
    angles = angles if element == "f32" else bench.normal(1, 1, 1) * 0 + np.float32(np.round(angles * 8) / 8)
    types = [f"33x{element}", "33xbf16"]
    sine = bench.run(symbol, types, [angles, zeros(1, 1, 33)], link)[1]
    cosine = bench.run(symbol.replace("sinf", "cosf"), types, [angles, zeros(1, 1, 33)], link)[1]
    limit = 0.03 if element == "f32" else 0.06
    assert np.allclose(sine, np.sin(angles.astype(float)), atol=limit)
    assert np.allclose(cosine, np.cos(angles.astype(float)), atol=limit)


def test_position_frequencies_follow_the_object_they_come_from(bench) -> None:
    short = bench.run("freq_pos_bf16_24_8", ["i32", "24xbf16"], [3, zeros(1, 1, 24)], "mha.o")[1]
    assert np.allclose(short.ravel(), 3 * 10000.0 ** (-np.arange(24) / 24), rtol=2e-2)
    padded = bench.run("freq_pos_bf16", ["i32", "32xbf16"], [3, zeros(1, 1, 32)], "rope.o")[1]
    assert np.array_equal(padded[..., :24], short)
    assert not padded[..., 24:].any()
    single = bench.run("freq_pos_f32_32_16", ["i32", "32xf32"], [np.array([[3], [5]]), zeros(2, 1, 32)])[1]
    assert np.allclose(single[:, 0], np.array([[3], [5]]) * 500000.0 ** (-np.arange(32) / 32), atol=3e-6)


def test_rotation_in_place_touches_its_head_only(bench) -> None:
    data, cos, sin = bench.normal(1, 1, 3, 48), bench.normal(1, 1, 24, seed=1), bench.normal(1, 1, 24, seed=2)
    types = ["i32", "24xbf16", "24xbf16", "3x48xbf16"]
    out = bench.run("shuffle_apply_rope_bf16_48", types, [48, cos, sin, data], "mha.o")[3]
    assert np.array_equal(out[:, :, [0, 2]], data[:, :, [0, 2]])
    even, odd = data[:, :, 1, 0::2], data[:, :, 1, 1::2]
    assert np.allclose(out[:, :, 1, 0::2], even * cos - odd * sin, atol=0.04)
    wide = bench.normal(1, 1, 6, 64)
    types = ["i32", "32xbf16", "32xbf16", "6x64xbf16"]
    c, s = bench.normal(1, 1, 32, seed=1), bench.normal(1, 1, 32, seed=2)
    out = bench.run("shuffle_apply_rope_bf16_64", types, [64, c, s, wide], "attn_decode_npu2.o")[3]
    assert np.allclose(out[:, :, 1, :32], wide[:, :, 1, :32] * c - wide[:, :, 1, 32:] * s, atol=0.04)


@pytest.mark.parametrize("symbol", ["silu_and_mul_bf16", "gelu_and_mul_bf16"])
def test_a_table_of_every_bf16_number_gives_the_bits_of_the_stages(bench, monkeypatch, symbol: str) -> None:
    gate, up = bench.normal(2, 1, 4096, scale=3.0), bench.normal(2, 1, 4096, seed=1)
    gate[0, 0, :5] = [0.0, -0.0, np.inf, -np.inf, np.nan]
    types = ["4096xbf16", "4096xbf16", "4096xbf16", "i32"]
    with np.errstate(all="ignore"):
        looked_up = bench.run(symbol, types, [gate, up, zeros(2, 1, 4096), 4096])[2]
        monkeypatch.setattr(activation, "_looked_up", lambda *_: None)
        staged = bench.run(symbol, types, [gate, up, zeros(2, 1, 4096), 4096])[2]
    assert np.array_equal(looked_up, staged, equal_nan=True)
