"""Attention's calls on blocks of keys made one: the same bits as one after the other, on ordinary and on hard values."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from npu_tools.emulator.kernels import Surroundings, attention_step
from npu_tools.emulator.kernels.attention_step import Loop, Mask, Operands, fits, to_bf16, weights_of
from npu_tools.emulator.kernels.flash_attention import BUILDS, LOWEST, Kernels
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.rounding import round_bf16

GX, GY = 2, 3
SYMBOLS = (
    "zero_fill_g_bf16",
    "matmul_a_b_bf16",
    "fused_softmax",
    "mul_r_gp",
    "matmul_g_b_bf16",
    "accum_sp_r_s",
    "vector_copy_32elems",
)
TYPES = (
    ("4096xbf16",),
    ("64x64xbf16", "64x64xbf16", "4096xbf16"),
    ("4096xbf16", "64x1xbf16", "64x1xbf16", "64x1xbf16"),
    ("64x1xbf16", "64x64xbf16"),
    ("4096xbf16", "64x64xbf16", "64x64xbf16"),
    ("64x1xbf16", "64x1xbf16", "64x1xbf16"),
    ("i32", "64x1xbf16", "64x1xbf16"),
)


def kernels(bench, link: str = "attn_npu2.o") -> list:
    around = Surroundings(options={"dk_full": 64})
    return [bench.kernel(symbol, types, link, around) for symbol, types in zip(SYMBOLS, TYPES, strict=True)]


def operands(scale: float, seed: int = 0) -> Operands:
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return round_bf16(rng.standard_normal(shape).astype(np.float32) * np.float32(scale))

    line = (GX, GY, 64, 1)
    top = np.full(line, LOWEST) if seed % 2 else normal(*line)
    return Operands(
        queries=normal(GX, GY, 64, 64),
        keys=normal(1, GY, 64, 64),
        scores=normal(GX, GY, 4096),
        top=top,
        total=normal(*line),
        ratio=normal(*line),
        values=normal(1, GY, 64, 64),
        output=normal(GX, GY, 64, 64),
        denominator=normal(*line),
    )


def another_block(given: Operands, seed: int) -> Operands:
    """The same queries and state with other keys and values."""
    other = operands(float(np.abs(given.keys).max()) / 4, seed)
    return replace(given, keys=other.keys, values=other.values)


def copied(given: Operands) -> Operands:
    arrays = {field.name: getattr(given, field.name) for field in fields(Operands)}
    return Operands(
        **{name: array.copy() if isinstance(array, np.ndarray) else array for name, array in arrays.items()}
    )


def one_by_one(numerics: Numerics, calls: list, o: Operands) -> None:
    arguments = (
        (o.scores,),
        (o.queries, o.keys, o.scores),
        (o.scores, o.top, o.total, o.ratio),
        (o.ratio, o.output),
        (o.scores, o.values, o.output),
        (o.denominator, o.ratio, o.total),
        (0, o.total, o.denominator),
    )
    for call, given in zip(calls, arguments, strict=True):
        if call.family == "fused_softmax" and o.mask is not None:
            o.mask.kernel.run(numerics, o.scores, o.mask.query, o.mask.key)
        call.run(numerics, *given)


def both(bench, given: Operands, blocks: int = 1) -> tuple[Operands, Operands]:
    numerics, calls = Numerics(), kernels(bench)
    once, apart = copied(given), copied(given)
    common = fits(numerics, calls, once)
    assert common is not None
    loop = Loop(numerics, common, calls, once, {})
    with np.errstate(all="ignore"):
        loop.begin()
        for block in range(blocks):
            loop.block(another_block(once, block) if block else once, keep=True)
            one_by_one(numerics, calls, another_block(apart, block) if block else apart)
        loop.end()
    return once, apart


def differing(once: Operands, apart: Operands) -> list[str]:
    names = ("top", "total", "ratio", "output", "denominator")
    return [
        name
        for name in names
        if not np.array_equal(getattr(once, name).view(np.uint32), getattr(apart, name).view(np.uint32))
    ]


@pytest.mark.parametrize(("scale", "seed"), [(0.05, 0), (1.0, 1), (1.0, 2), (6.0, 3), (40.0, 4), (0.0, 5)])
def test_the_calls_as_one_give_the_bits_of_one_after_the_other(bench, scale: float, seed: int) -> None:
    assert not differing(*both(bench, operands(scale, seed)))


@pytest.mark.parametrize("scale", [1.0, 5.0, 2.0**-60])
def test_many_blocks_give_the_bits_of_one_after_the_other(bench, scale: float) -> None:
    """Long enough for the bounds on the outputs to become too weak, and for outputs below the normal numbers."""
    given = operands(1.0, 13)
    given.values[...] *= np.float32(scale)
    given.output[...] *= np.float32(2.0**-100 if scale < 1 else 1)
    assert not differing(*both(bench, given, blocks=16))


@pytest.mark.parametrize("seed", range(20, 26))
def test_sums_that_are_rounded_on_the_way_give_the_same_bits(bench, seed: int) -> None:
    """Magnitudes far apart: what a float32 sum loses depends on its order."""
    given, rng = operands(1.0, seed), np.random.default_rng(seed)
    for array, least in ((given.queries, -9), (given.keys, -9), (given.values, -16)):
        array *= np.exp2(rng.integers(least, 3, array.shape)).astype(np.float32)
    given.queries[...] *= np.float32(0.5)
    assert not differing(*both(bench, given, blocks=3))


@pytest.mark.parametrize("seed", [14, 15])
@pytest.mark.parametrize("scale", [1.0, 20.0, np.nan])
def test_masked_blocks_give_the_bits_of_one_after_the_other(bench, scale: float, seed: int) -> None:
    """Tiles behind, on and before the diagonal: two of queries against three of keys."""
    given = operands(1.0 if np.isnan(scale) else scale, seed)
    if np.isnan(scale):
        given.queries[0, 2, 3, 4] = np.nan
    kernel = bench.kernel("apply_causal_mask", ["64x64xbf16", "i32", "i32"], "attn_npu2.o")
    query, key = np.array([[1], [2]], np.int32), np.array([[0, 1, 2]], np.int32)
    assert not differing(*both(bench, replace(given, mask=Mask(kernel, query, key)), blocks=2))
    assert not differing(*both(bench, replace(given, mask=Mask(kernel, 0, 0))))
    assert not differing(*both(bench, replace(given, mask=Mask(kernel, 0, 1))))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("name", ["queries", "keys", "values", "output"])
def test_values_that_are_no_numbers_or_too_large_give_the_same_bits_too(bench, name: str, value: float) -> None:
    given = operands(1.0, 7)
    getattr(given, name)[0, 1, 5, 9] = round_bf16(np.float32([value]))[0]
    assert not differing(*both(bench, given))


def test_weights_far_below_their_row_s_maximum_are_nothing(bench) -> None:
    given = operands(1.0, 9)
    given.keys[0, 1, :, :8] *= np.float32(256)
    assert not differing(*both(bench, given))


def test_other_builds_and_plain_numerics_are_left_alone(bench) -> None:
    assert fits(Numerics("f32"), kernels(bench), operands(1.0)) is None
    assert fits(Numerics(), kernels(bench, "attn_npu1.o"), operands(1.0)) is None


def test_a_blas_that_sums_otherwise_for_many_tiles_is_left_alone(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_step, "_sums_alike", lambda *sizes: False)
    assert fits(Numerics(), kernels(bench), operands(1.0)) is None


def test_keys_that_differ_between_columns_are_left_alone(bench) -> None:
    given = operands(1.0)
    assert fits(Numerics(), kernels(bench), replace(given, keys=given.queries)) is None


@pytest.mark.parametrize("exponent", [1, 100, 127, 128, 200])
def test_every_mantissa_is_rounded_as_to_nearest_even(exponent: int) -> None:
    words = np.arange(1 << 23, dtype=np.uint32) | np.uint32(exponent << 23)
    values = words.view(np.float32).copy()
    expected = round_bf16(values)
    to_bf16(values, np.empty_like(values))
    assert np.array_equal(values, expected)


@pytest.mark.parametrize("depth", [32, 64, 80, 96, 128, 192, 256])
def test_every_difference_gives_the_weight_of_the_exponential(depth: int) -> None:
    numerics, build = Numerics(), Kernels(BUILDS["npu2"], depth**-0.5)
    magnitudes = (np.arange(0x7F80, dtype=np.uint32) << 16).view(np.float32)
    values = -magnitudes[magnitudes > 0]
    expected = build.exp(numerics, values.copy())
    weights = values.copy()
    with np.errstate(over="ignore"):
        assert weights_of(weights, numerics, build) is not None
    assert np.array_equal(weights.view(np.uint32), expected.view(np.uint32))


def test_a_block_is_split_where_it_is_too_large_for_the_cache(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_step, "_AT_ONCE", 1)
    assert not differing(*both(bench, operands(1.0, 11), blocks=2))
