"""Kernels of the fused Q4NX decode against plain numpy in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from npu_tools.emulator.kernels import Surroundings
from npu_tools.emulator.kernels.flash_attention import LOWEST
from npu_tools.emulator.kernels.kernel import Operand


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def block_of(rng: np.random.Generator, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """A weight block as bf16 words in float32, and its weights [32, 256]."""
    q = rng.integers(-8, 8, (32, 256)) if signed else rng.integers(0, 16, (32, 256))
    scales, minima = (rng.random((8, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    order = (q & 15).reshape(2, 16, 256).transpose(0, 2, 1).reshape(-1)
    nibbles = (order[0::2] | (order[1::2] << 4)).astype(np.uint8)
    raw = np.concatenate([scales.view(np.uint8).ravel(), minima.view(np.uint8).ravel(), nibbles])
    words = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    each = q * np.repeat(scales.T.astype(float), 32, axis=1)
    return words, each if signed else each + np.repeat(minima.T.astype(float), 32, axis=1)


@pytest.mark.parametrize("signed", [False, True])
def test_a_projection_adds_a_weight_block_times_its_inputs(bench, signed) -> None:
    words, weights = block_of(np.random.default_rng(0), signed)
    x, total = bench.normal(2, 1, 256), bench.normal(2, 1, 32, seed=1)
    around = Surroundings(options={"Q4_0": signed})
    types = ["256xbf16", "2560xbf16", "32xf32"]
    out = bench.run("proj_qmm_acc256", types, [x, words[None, None], total], around=around)[2]
    exact = total + np.einsum("rk,xyk->xyr", weights, x.astype(float))
    assert np.abs(out - exact).max() < 2e-2 * np.abs(exact).max()


def test_the_cached_projection_fills_and_reads_its_input_sums(bench) -> None:
    words, _ = block_of(np.random.default_rng(0), False)
    x, total = bench.normal(1, 1, 256), zeros(1, 1, 32)
    types = ["256xbf16", "2560xbf16", "32xf32", "32xbf16", "i32", "i32"]
    plain = bench.run("proj_qmm_acc256", types[:3], [x, words[None, None], total])[2]
    filled = bench.run("proj_qmm_acc256_c", types, [x, words[None, None], total, zeros(1, 1, 32), 2, 1])
    assert np.array_equal(filled[2], plain)
    again = bench.run("proj_qmm_acc256_c", types, [x, words[None, None], total, filled[3], 2, 0])
    assert np.array_equal(again[2], plain)
    assert np.count_nonzero(filled[3]) == 8


def test_rows_are_flushed_behind_the_header(bench) -> None:
    out = bench.run(
        "proj_qmm_flush_row", ["32xf32", "80xbf16", "i32"], [np.ones((1, 1, 32), np.float32), zeros(1, 1, 80), 1]
    )[1]
    assert np.flatnonzero(out.ravel()).tolist() == list(range(48, 80))
    assert not bench.run("proj_qmm_zero", ["32xf32", "i32"], [np.ones((1, 1, 32), np.float32), 1])[0].any()


def test_norm_residual_and_glu_follow_their_formulas(bench) -> None:
    x, w = bench.normal(1, 1, 64), bench.normal(1, 1, 128, seed=1)
    types = ["64xbf16", "64xbf16", "128xbf16", "i32"]
    scaled = x.astype(float) / np.sqrt((x.astype(float) ** 2).mean() + 1e-6)
    low = bench.run("rms_norm_lo_aie", types, [zeros(1, 1, 64), x, w, 0])[0]
    high = bench.run("rms_norm_hi_aie", types, [zeros(1, 1, 64), x, w, 0])[0]
    assert np.allclose(low, scaled * w[..., :64], rtol=1e-2, atol=1e-5)
    assert np.allclose(high, scaled * w[..., 64:], rtol=1e-2, atol=1e-5)
    total, kept, _ = bench.run("residual_add_aie", ["64xbf16"] * 3, [zeros(1, 1, 64), low, x])
    assert np.array_equal(total, kept)
    assert np.allclose(total, low + x, rtol=1e-2, atol=1e-2)
    both = bench.normal(1, 1, 128, seed=2, scale=3.0)
    out = bench.run("glu_aie", ["64xbf16", "128xbf16", "i32"], [zeros(1, 1, 64), both, 0])[0]
    gate = both[..., 64:].astype(float)
    assert np.allclose(out, gate / (1 + np.exp(-gate)) * both[..., :64], rtol=4e-2, atol=0.03)


@pytest.mark.parametrize(("table", "heads"), [("plain", 3), ("norm", 2), ("bias", 2), ("partial", 2)])
def test_the_rotary_stage_finds_its_heads_in_the_operand_sizes(bench, table, heads) -> None:
    kv, size = 2, 128 if table == "partial" else 64
    rotary = 96 if table == "partial" else size
    qkv = bench.normal(1, 1, (kv * heads + 2 * kv) * size)
    angle = np.linspace(0, 1.5, rotary // 2)
    lut = np.concatenate([np.cos(angle), np.sin(angle)]).astype(np.float32)
    extra = {"norm": np.ones(2 * size, np.float32), "bias": np.full(qkv.shape[-1], 0.5, np.float32)}.get(
        table, np.zeros(0)
    )
    lut = np.concatenate([lut, extra]).astype(np.float32)[None, None]
    padded = kv * 4 * size
    types = [
        f"{padded}xbf16",
        f"{kv * size}xbf16",
        f"{kv * size}xbf16",
        f"{qkv.shape[-1]}xbf16",
        f"{lut.shape[-1]}xbf16",
        "i32",
    ]
    args = [zeros(1, 1, padded), zeros(1, 1, kv * size), zeros(1, 1, kv * size), qkv, lut, 0]
    q, k, v, *_ = bench.run("rope_compute", types, args)
    rows = qkv.reshape(-1, size).astype(float) + (0.5 if table == "bias" else 0)
    assert np.allclose(v.reshape(kv, size), rows[-kv:], atol=0.03)
    if table == "norm":
        rows = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6)
    first, second = rows[:, : rotary // 2], rows[:, rotary // 2 : rotary]
    turned = np.concatenate(
        [
            first * np.cos(angle) - second * np.sin(angle),
            first * np.sin(angle) + second * np.cos(angle),
            rows[:, rotary:],
        ],
        -1,
    )
    assert np.allclose(k.reshape(kv, size), turned[kv * heads : kv * heads + kv], atol=0.06)
    got = q.reshape(kv, 4, size)
    assert np.allclose(got[:, :heads], turned[: kv * heads].reshape(kv, heads, size), atol=0.06)
    assert not got[:, heads:].any()


@pytest.mark.parametrize(("kv", "heads", "real"), [(2, 8, 4), (2, 8, 3), (1, 8, 8), (1, 4, 2)])
def test_block_attention_over_a_partial_last_block_is_attention(bench, kv, heads, real) -> None:
    size, length, blocks = 64, 40, 3
    q = bench.normal(2, 1, kv, heads // kv, size)
    keys, values = bench.normal(2, 1, blocks * 16, kv, size, seed=1), bench.normal(2, 1, blocks * 16, kv, size, seed=2)
    scores = 192 if heads == 8 else 128
    around = Surroundings(
        options={"Q_HEADS_PER_GROUP": real},
        declared={"attn_kv_blk": (Operand("bf16", (scores,)), Operand("bf16", (16 * kv * size,)))},
    )
    stored_q = q.reshape(2, 1, heads, size // 8, 8).swapaxes(2, 3).reshape(2, 1, -1)
    m, c, s = np.full((2, 1, 16), LOWEST), zeros(2, 1, 8), zeros(2, 1, scores)
    y, total = zeros(2, 1, heads * size), zeros(2, 1, 16)
    q_type, block_type, s_type = f"{heads * size}xbf16", f"{16 * kv * size}xbf16", f"{scores}xbf16"
    for block in range(blocks):
        part = slice(block * 16, block * 16 + 16)
        k = keys[:, :, part].reshape(2, 1, 2, 8, kv, size // 8, 8).transpose(0, 1, 4, 5, 2, 3, 6).reshape(2, 1, -1)
        v = values[:, :, part].reshape(2, 1, 2, 8, kv, size // 8, 8).transpose(0, 1, 2, 4, 5, 3, 6).reshape(2, 1, -1)
        types = [q_type, block_type, "16xbf16", "8xf32", s_type, "i32", "i32"]
        _, _, m, c, s, *_ = bench.run("attn_qk_blk", types, [stored_q, k, m, c, s, block, length], around=around)
        types = [s_type, block_type, f"{heads * size}xf32", "16xf32", "i32", "i32"]
        _, _, y, total, *_ = bench.run("attn_kv_blk", types, [s, v, y, total, block, length], around=around)
    types = [f"{heads * size}xf32", "16xf32", q_type]
    out = bench.run("attn_kv_fin", types, [y, total, zeros(2, 1, heads * size)], around=around)[2]
    count = kv * real
    got = out[..., : count * size].reshape(2, 1, size // 8, count, 8).swapaxes(2, 3).reshape(2, 1, count, size)
    weights = np.exp(np.einsum("xyghd,xykgd->xyghk", q.astype(float), keys[:, :, :length]) / size**0.5)
    exact = np.einsum("xyghk,xykgd->xyghd", weights / weights.sum(-1, keepdims=True), values[:, :, :length])
    exact = exact[:, :, :, :real].reshape(2, 1, count, size)
    assert np.abs(got - exact).mean() < 4e-2 * np.abs(exact).mean()
