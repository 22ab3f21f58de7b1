"""Narrowing, block float and the core's functions, against ml_dtypes, plain numpy and published figures."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_tools.emulator import blockfloat, functions
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.rounding import (
    integer_dtype,
    is_bf16,
    round_bf16,
    shift_round_saturate,
    to_integer,
    wrap_integer,
)

words = st.integers(min_value=0, max_value=2**32 - 1)


def as_floats(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


@given(st.lists(words, min_size=1, max_size=64))
@settings(max_examples=100, deadline=None)
def test_rounding_to_even_gives_the_bits_of_ml_dtypes(bits):
    values = as_floats(bits)
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_bf16(values), expected)


@given(st.lists(words, min_size=1, max_size=64))
@settings(max_examples=60, deadline=None)
def test_floor_is_the_largest_bf16_not_above_and_toward_zero_never_grows(bits):
    values = as_floats(bits)
    finite = np.isfinite(values)
    low, cut = round_bf16(values, "floor"), round_bf16(values, "toward_zero")
    assert is_bf16(low[finite])
    assert is_bf16(cut[finite])
    assert (low[finite] <= values[finite]).all()
    assert (np.abs(cut[finite]) <= np.abs(values[finite])).all()
    # The next bf16 above the floored one lies above the value, unless it was exact.
    inside = finite & (np.abs(values) < 1e38) & (np.abs(values) > 1e-30)
    up = -round_bf16(-values[inside], "floor")
    assert ((up == low[inside]) | (up > values[inside])).all()


def test_rounding_in_place_on_a_view_with_gaps_leaves_the_gaps_alone():
    base = np.full((4, 6), 1.001, np.float32)
    view = base[:, ::2]
    round_bf16(view, out=view)
    assert (base[:, ::2] == 1.0).all()
    assert (base[:, 1::2] == np.float32(1.001)).all()


@given(words, st.sampled_from(["conv_even", "floor", "toward_zero"]))
@settings(max_examples=60, deadline=None)
def test_a_scalar_rounds_as_an_array_does(bits, how):
    value = as_floats([bits])
    scalar = Numerics(rounding=how).round_to(value[0], "bf16")
    np.testing.assert_array_equal(np.array([scalar]), round_bf16(value, how))


def test_f32_mode_rounds_nothing_and_multiplies_exactly():
    plain = Numerics("f32")
    values = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    assert plain.round_to(values, "bf16") is values
    np.testing.assert_array_equal(plain.matmul(values, values), values @ values)
    np.testing.assert_array_equal(plain.exp2(values), np.exp2(values))


def test_the_report_counts_what_changed_by_kind_and_is_shared_between_cores():
    numerics = Numerics(report=True)
    numerics.round_to(np.float32([1.0, 1.001, 3.0]), "bf16", kind="arith.addf")
    numerics.with_rounding("floor").rounder("bf16", kind="arith.addf")(np.float32([1.001]))
    (row,) = numerics.report.sorted()
    assert (row.kind, row.values, row.changed) == ("arith.addf", 4, 2)
    assert row.max_relative == pytest.approx(0.001, rel=0.01)


def slow_quantise(values: np.ndarray, axis: int) -> np.ndarray:
    moved = np.moveaxis(values.astype(np.float64), axis, -1)
    blocks = moved.reshape(*moved.shape[:-1], -1, 8)
    largest = np.abs(blocks).max(-1, keepdims=True)
    unit = np.where(largest == 0, 1.0, 2.0 ** (np.floor(np.log2(np.where(largest == 0, 1.0, largest))) - 6))
    kept = np.clip(np.rint(blocks / unit), -128, 127) * unit
    return np.moveaxis(kept.reshape(moved.shape), -1, axis).astype(np.float32)


@pytest.mark.parametrize(("shape", "axis"), [((5, 64), -1), ((64, 5), -2), ((2, 3, 16, 24), 2), ((3, 1, 8, 40), 3)])
def test_block_float_agrees_with_a_plain_computation_in_double(shape, axis):
    values = round_bf16(np.random.default_rng(0).standard_normal(shape) * 10.0)
    np.testing.assert_array_equal(blockfloat.quantise(values, axis), slow_quantise(values, axis))


def test_block_float_ties_go_to_even_and_the_top_saturates():
    block = np.float32([[127.5, 64.5, 65.5, -127.5, 0, 1, -0.5, 0.25]])
    np.testing.assert_array_equal(blockfloat.quantise(block, 1), np.float32([[127, 64, 66, -128, 0, 1, 0, 0]]))
    floored = blockfloat.quantise(block, 1, "floor")
    np.testing.assert_array_equal(floored, np.float32([[127, 64, 65, -128, 0, 1, -1, 0]]))


def test_block_float_of_zeros_huge_values_and_infinities():
    rows = np.zeros((3, 8), np.float32)
    rows[1] = 3e38
    rows[2, 3] = np.inf
    result = blockfloat.quantise(rows, -1)
    assert (result[0] == 0).all()
    np.testing.assert_allclose(result[1], rows[1], rtol=1 / 128)
    assert np.isnan(result[2]).all()


def test_block_float_keeps_a_shared_axis_shared_and_a_short_tail_apart():
    values = round_bf16(np.random.default_rng(2).standard_normal((1, 4, 20)))
    shared = blockfloat.quantise(np.broadcast_to(values, (6, 4, 20)), -1)
    assert shared.strides[0] == 0
    np.testing.assert_array_equal(
        shared[5, :, 16:], slow_quantise(np.pad(values, [(0, 0), (0, 0), (0, 4)]), -1)[0, :, 16:20]
    )


def test_exp2_is_exact_at_integers_and_overshoots_by_at_most_6_15_percent():
    whole = np.arange(-126, 127, dtype=np.float32)
    np.testing.assert_array_equal(functions.exp2(whole), np.exp2(whole))
    x = np.linspace(-20, 20, 40_001, dtype=np.float32)
    ratio = functions.exp2(x) / np.exp2(x)
    assert ratio.min() >= 1 - 1e-5
    assert ratio.max() == pytest.approx(1.0615, abs=2e-4)


def test_exp2_underflows_overflows_and_keeps_nan():
    result = functions.exp2(np.float32([-np.inf, -400, 400, np.inf, np.nan]))
    np.testing.assert_array_equal(result, np.float32([0, 0, np.inf, np.inf, np.nan]))


def test_hardware_tanh_is_x_up_to_a_half_then_a_table_and_odd():
    x = round_bf16(np.linspace(-9, 9, 2_001))
    y = functions.tanh(x)
    assert is_bf16(y)
    small = np.abs(x) <= 0.5
    np.testing.assert_array_equal(y[small], x[small])
    np.testing.assert_allclose(y[~small], np.tanh(x[~small]), atol=0.03)
    np.testing.assert_array_equal(functions.tanh(-x), -y)
    np.testing.assert_array_equal(functions.tanh(np.float32([-np.inf, np.inf])), np.float32([-1, 1]))


def test_functions_are_true_on_aie2_and_in_f32_mode():
    x = np.linspace(-2, 2, 101, dtype=np.float32)
    for numerics in (Numerics(generation="aie2"), Numerics("f32")):
        np.testing.assert_array_equal(numerics.tanh(x), np.tanh(x))
        np.testing.assert_array_equal(numerics.exp(x), np.exp(x))


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1), st.sampled_from([4, 8, 16, 32, 64])
)
@settings(max_examples=60, deadline=None)
def test_floats_become_integers_towards_zero_and_saturate(values, bits):
    result = to_integer(np.array(values, np.float32), bits)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    expected = [
        0 if v != v else max(low, min(high, int(v) if abs(v) < 1e300 else (high if v > 0 else low))) for v in values
    ]
    assert [int(v) for v in result] == expected


@given(st.lists(st.integers(-(2**62), 2**62), min_size=1), st.sampled_from([1, 4, 8, 16, 32, 64]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_integers_wrap_as_twos_complement(values, bits, signed):
    wrapped = wrap_integer(np.array(values, np.int64), bits, signed=signed)
    assert wrapped.dtype == integer_dtype(bits, signed=signed)
    for value, got in zip(values, wrapped, strict=True):
        assert (int(got) - value) % 2**bits == 0


@given(st.integers(-(2**40), 2**40), st.integers(0, 20))
@settings(max_examples=60, deadline=None)
def test_shift_round_saturate_rounds_half_to_even_then_saturates(value, shift):
    expected = int(np.clip(round(value / 2**shift), -128, 127))
    assert int(shift_round_saturate(np.int64(value), shift, 8)) == expected
    assert int(shift_round_saturate(np.int64(value), shift, 8, how="floor")) == int(np.clip(value >> shift, -128, 127))


def test_a_run_reports_roundings_by_op_and_line():
    from npu_tools.air import parse_program
    from npu_tools.emulator.run import run_program

    text = """func.func @f(%a: memref<4xbf16>) {
  %c0 = arith.constant 0 : index
  %x = memref.load %a[%c0] : memref<4xbf16>
  %y = arith.mulf %x, %x : bf16
  %z = arith.addf %y, %x : bf16
  memref.store %z, %a[%c0] : memref<4xbf16>
  return
}
"""
    numerics = Numerics(report=True)
    run_program(parse_program(text, name="a.mlir"), [np.full(4, 1.0078125, np.float32)], numerics=numerics)
    found = {(row.op, row.line) for row in numerics.report.sorted()}
    assert found == {("arith.mulf", 4), ("arith.addf", 5)}
