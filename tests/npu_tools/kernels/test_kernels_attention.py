"""FlashAttention kernels, alone against plain rows and together against attention in float64."""

from __future__ import annotations

import numpy as np
import pytest

from npu_tools.emulator.kernels import Surroundings
from npu_tools.emulator.kernels.flash_attention import LOWEST, fast_exp2, table_exp
from npu_tools.emulator.kernels.kernel import Operand

ROWS, KEYS, WIDTH = 16, 32, 16


def to_blocks(matrix: np.ndarray, r: int, c: int) -> np.ndarray:
    """[gx, gy, R, C] as the memory of column-outer blocks, [gx, gy, R*C]."""
    gx, gy, rows, columns = matrix.shape
    split = matrix.reshape(gx, gy, rows // r, r, columns // c, c)
    return np.ascontiguousarray(split.transpose(0, 1, 4, 2, 3, 5)).reshape(gx, gy, -1)


def from_blocks(memory: np.ndarray, rows: int, r: int, c: int) -> np.ndarray:
    gx, gy = memory.shape[:2]
    columns = memory.reshape(gx, gy, -1).shape[-1] // rows
    blocks = memory.reshape(gx, gy, columns // c, rows // r, r, c)
    return blocks.transpose(0, 1, 3, 4, 2, 5).reshape(gx, gy, rows, columns)


def attention(bench, link: str, r: int, scaled: bool) -> tuple[np.ndarray, np.ndarray]:
    """Two key blocks of attention for lanes [2, 1], through the kernels and in float64."""
    q = bench.normal(2, 1, ROWS, 64)
    keys, values = bench.normal(2, 1, 2 * KEYS, 64, seed=1), bench.normal(2, 1, 2 * KEYS, WIDTH, seed=2)
    up, sp, ratio = (np.zeros((2, 1, ROWS, 1), np.float32) for _ in range(3))
    out = np.zeros((2, 1, ROWS, WIDTH), np.float32)
    vector, tile, flat = f"{ROWS}x1xbf16", f"{ROWS}x{WIDTH}xbf16", f"{ROWS * KEYS}xbf16"
    (up,) = bench.run("neg_inf_fill_up_bf16", [vector], [up], link)
    for block in range(2):
        part = slice(block * KEYS, (block + 1) * KEYS)
        g = np.zeros((2, 1, ROWS * KEYS), np.float32)
        k = to_blocks(keys[:, :, part], r, 8).reshape(2, 1, KEYS, 64)
        v = to_blocks(values[:, :, part], 8, r).reshape(2, 1, KEYS, WIDTH)
        a = to_blocks(q, r, 8).reshape(q.shape)
        g = bench.run("matmul_a_b_bf16", [f"{ROWS}x64xbf16", f"{KEYS}x64xbf16", flat], [a, k, g], link)[2]
        g, up, s, ratio = bench.run("fused_softmax", [flat, vector, vector, vector], [g, up, sp * 0, ratio], link)
        out = bench.run("mul_r_gp", [vector, tile], [ratio, out], link)[1]
        out = bench.run("matmul_g_b_bf16", [flat, f"{KEYS}x{WIDTH}xbf16", tile], [g, v, out], link)[2]
        s = bench.run("accum_sp_r_s", [vector] * 3, [sp, ratio, s], link)[2]
        sp = bench.run("vector_copy_32elems", ["i32", vector, vector], [0, s, sp], link)[2]
    out = bench.run("div_gp_sp", [vector, tile], [sp, out], link)[1]
    scores = q.astype(np.float64) @ keys.swapaxes(2, 3) / (8.0 if scaled else 1.0)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return from_blocks(out, ROWS, r, r), (weights / weights.sum(-1, keepdims=True)) @ values


@pytest.mark.parametrize(("link", "r", "limit"), [("attn_npu2.o", 8, 6e-2), ("attn_npu1.o", 4, 3e-2)])
def test_the_kernels_together_are_attention_within_the_published_error(bench, link, r, limit) -> None:
    got, expected = attention(bench, link, r, scaled=True)
    error = np.abs(got - expected).mean() / np.abs(expected).mean()
    assert 1e-3 < error < limit


@pytest.mark.parametrize(("link", "r"), [("attn_npu2.o", 8), ("attn_npu1.o", 4)])
def test_row_maxima_and_sums_follow_the_rows_of_the_blocked_tile(bench, link, r) -> None:
    g = bench.normal(2, 1, ROWS, KEYS)
    zeros = np.zeros((2, 1, ROWS, 1), np.float32)
    types = [f"{ROWS * KEYS}xbf16", f"{ROWS}x1xbf16"]
    top = bench.run("max_g_bf16", types, [to_blocks(g, r, r), zeros], link)[1]
    assert np.array_equal(top[..., 0], g.max(-1))
    total = bench.run("sum_g", types, [to_blocks(np.abs(g), r, r), zeros], link)[1]
    assert np.allclose(total[..., 0], np.abs(g).sum(-1), rtol=2**-7)


def test_a_row_that_is_masked_whole_keeps_finite_weights(bench) -> None:
    g = np.full((1, 1, ROWS * KEYS), -np.inf, np.float32)
    vectors = [np.full((1, 1, ROWS, 1), LOWEST), *(np.zeros((1, 1, ROWS, 1), np.float32) for _ in range(2))]
    types = [f"{ROWS * KEYS}xbf16"] + [f"{ROWS}x1xbf16"] * 3
    result = bench.run("fused_softmax", types, [g, *vectors], "attn_npu2.o")
    assert all(np.isfinite(array).all() for array in result)


@pytest.mark.parametrize(("link", "r"), [("attn_npu2.o", 8), ("attn_npu1.o", 4)])
def test_the_causal_mask_hides_later_keys_lane_by_lane(bench, link, r) -> None:
    g = bench.normal(3, 1, 16, 16)
    query, key = np.array([[0], [1], [2]]), np.array([[1], [1], [1]])
    tile = to_blocks(g, r, r).reshape(3, 1, 16, 16)
    (result, *_) = bench.run("apply_causal_mask", ["16x16xbf16", "i32", "i32"], [tile, query, key], link)
    got = from_blocks(result, 16, r, r)
    assert np.isneginf(got[0]).all()
    assert np.array_equal(np.isneginf(got[1, 0]), np.triu(np.ones((16, 16), bool), 1))
    assert np.array_equal(got[2], g[2])


def test_the_window_mask_hides_later_and_too_old_keys(bench) -> None:
    g = bench.normal(1, 1, 16, 16)
    tile = to_blocks(g, 8, 8).reshape(1, 1, 16, 16)
    types = ["16x16xbf16", "i32", "i32", "i32"]
    hidden = {
        key: np.isneginf(from_blocks(bench.run("apply_window_mask", types, [tile, 4, key, 2])[0], 16, 8, 8))[0, 0]
        for key in range(6)
    }
    lower = np.tril(np.ones((16, 16), bool))
    assert hidden[0].all()
    assert hidden[1].all()
    assert np.array_equal(hidden[2], lower)
    assert not hidden[3].any()
    assert np.array_equal(hidden[4], ~lower)
    assert hidden[5].all()


def test_a_query_pair_is_taken_apart_by_the_lane_s_half(bench) -> None:
    pair = np.arange(2 * 8 * 16, dtype=np.float32).reshape(1, 1, 16, 16)
    target = np.zeros((2, 1, 8, 16), np.float32)
    half = np.array([[0], [1]])
    result = bench.run("copy_half_tile", ["16x16xbf16", "8x16xbf16", "i32"], [pair, target, half])[1]
    blocks = pair.reshape(2, 2, 64)
    assert np.array_equal(result[0].ravel(), blocks[:, 0].ravel())
    assert np.array_equal(result[1].ravel(), blocks[:, 1].ravel())


def test_chunk_calls_work_on_their_slice_of_the_slab(bench) -> None:
    around = Surroundings(options={"dk_tile": 32, "dv_tile": 16})
    q, k = bench.normal(1, 1, 16, 64), bench.normal(1, 1, 16, 64, seed=1)
    g = np.zeros((1, 1, 256), np.float32)
    types = ["16x64xbf16", "16x64xbf16", "256xbf16"]
    whole = bench.run("matmul_a_b_bf16", types, [q, k, g], "attn_npu2.o")[2]
    for chunk in range(2):
        g = bench.run("matmul_a_b_bf16_chunk", [*types, "i32"], [q, k, g, chunk], "attn_npu2.o", around)[2]
    assert np.allclose(g, whole, atol=0.1)
    slab = np.ones((1, 1, 16, 32), np.float32)
    divided = bench.run(
        "div_gp_sp_at",
        ["16x1xbf16", "16x32xbf16", "i32"],
        [np.full((1, 1, 16, 1), 2, np.float32), slab, 1],
        "attn_npu2.o",
        around,
    )[1]
    assert np.array_equal(divided.ravel(), np.repeat([1.0, 0.5], 256).astype(np.float32))


def test_the_dataflow_object_is_row_major_outside_its_products(bench) -> None:
    around = Surroundings(declared={"vector_copy_32x96elems": (Operand("i32"),)})
    g = bench.normal(1, 2, ROWS, KEYS)
    types = [f"{ROWS * KEYS}xbf16", f"{ROWS}x1xbf16"]
    top = bench.run(
        "max_g_bf16", types, [g.reshape(1, 2, -1), np.zeros((1, 2, ROWS, 1), np.float32)], "attn.o", around
    )[1]
    assert np.array_equal(top[..., 0], g.max(-1))
    weights = bench.run("exp_g_minus_u", types[::-1], [top, g.reshape(1, 2, -1)], "attn.o", around)[1]
    assert np.allclose(weights.reshape(g.shape), np.exp(g.astype(np.float64) - top), rtol=3e-2)
    total = bench.run("sum_g", types, [weights, top * 0], "attn.o", around)[1]
    assert np.allclose(total[..., 0], weights.reshape(g.shape).sum(-1), rtol=3e-2)


def test_the_score_scale_comes_from_the_whole_head_dimension(bench) -> None:
    old, new = np.zeros((1, 1, 16, 1), np.float32), np.full((1, 1, 16, 1), 8.0, np.float32)
    types = ["16x1xbf16"] * 3
    small = bench.run("exp_up_minus_u", types, [old, new, old], "attn_npu2.o", Surroundings(options={"dk_full": 64}))[2]
    heads_first = Surroundings(arguments=(Operand("bf16", (2, 512, 256)),))
    large = bench.run("exp_up_minus_u", types, [old, new, old], "attn_npu2.o", heads_first)[2]
    assert np.allclose(small, np.exp(-1.0), rtol=7e-2)
    assert np.allclose(large, np.exp(-0.5), rtol=7e-2)


def test_the_table_exponential_is_accurate_to_its_tables_and_stays_finite() -> None:
    x = np.linspace(-80, 80, 4001, dtype=np.float32)
    assert np.allclose(table_exp(x), np.exp(x.astype(np.float64)), rtol=1.2e-2)
    assert np.isfinite(table_exp(np.float32([-np.inf, LOWEST, 127.0]))).all()


def test_the_fast_power_of_two_is_the_numerics_one(bench) -> None:
    x = np.concatenate([np.linspace(-125, 0, 20001), np.linspace(-2, 10, 4001)]).astype(np.float32)
    assert np.array_equal(fast_exp2(bench.numerics, x), bench.numerics.exp2(x))
    assert not fast_exp2(bench.numerics, np.float32([LOWEST, -np.inf, -127.5])).any()
