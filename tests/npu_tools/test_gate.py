"""The gate: what passes, what is missed and why, and what a wrong output is recognised as."""

from __future__ import annotations

import io
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from npu_tools.errors import UnknownKernel, UnusableInput
from npu_tools.gate import given, judge, judge_tokens, kernel_names, tolerance_for
from npu_tools.gate.looks_like import wrong_heads
from npu_tools.gate.tokens import top_k

RNG = np.random.default_rng(7)
REFERENCE = RNG.standard_normal((64, 128))
TOLERANCE = given(1.6e-2, 1e-3)


def kinds(actual: np.ndarray, reference: np.ndarray = REFERENCE, previous: np.ndarray | None = None) -> list[str]:
    verdict = judge(actual, reference, TOLERANCE, previous=previous)
    assert not verdict.passed
    return [likeness.kind for likeness in verdict.looks_like]


def test_an_output_within_tolerance_passes_and_names_its_convention() -> None:
    verdict = judge(REFERENCE.astype(ml_dtypes.bfloat16), REFERENCE, tolerance_for("gemv"))
    assert verdict.passed
    assert verdict.convention == "upstream"
    assert verdict.metrics is not None
    assert 0 < verdict.metrics.mean_rel_l1 < 4e-3


def test_a_single_element_out_of_bounds_is_enough_to_miss_and_is_named() -> None:
    actual = REFERENCE.copy()
    actual[17, 5] += 1
    verdict = judge(actual, REFERENCE, TOLERANCE)
    assert not verdict.passed
    assert verdict.worst is not None
    assert verdict.worst.index == (17, 5)
    assert "1 of 8192" in verdict.reason


def test_a_factor_of_two_is_missed_though_its_cosine_is_one() -> None:
    verdict = judge(REFERENCE * 2, REFERENCE, TOLERANCE)
    assert not verdict.passed
    assert verdict.metrics is not None
    assert verdict.metrics.cosine == pytest.approx(1)
    assert verdict.looks_like[0].kind == "constant factor"


def test_nan_comes_before_everything_but_shape() -> None:
    actual = REFERENCE.copy()
    actual[3, 4] = np.nan
    verdict = judge(actual, REFERENCE, given(1e9, 1e9))
    assert not verdict.passed
    assert "[3, 4]" in verdict.reason


def test_another_shape_is_missed_with_a_hint() -> None:
    assert "transposed" in judge(REFERENCE.T.copy(), REFERENCE, TOLERANCE).reason
    assert "reshape" in judge(REFERENCE.ravel(), REFERENCE, TOLERANCE).reason


def test_integers_are_not_compared_with_floats() -> None:
    assert "dtype" in judge(np.ones((2, 2), np.int32), np.ones((2, 2)), TOLERANCE).reason


def test_bf16_survives_saving_and_loading() -> None:
    """numpy loads ml_dtypes.bfloat16 back as two-byte records."""
    file = io.BytesIO()
    np.save(file, REFERENCE.astype(ml_dtypes.bfloat16))
    file.seek(0)
    assert judge(np.load(file), REFERENCE, tolerance_for("gemv")).passed


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_reference_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(UnusableInput, match="finite"):
        judge(REFERENCE, np.full_like(REFERENCE, value), TOLERANCE)


def test_an_empty_reference_is_refused() -> None:
    with pytest.raises(UnusableInput, match="empty"):
        judge(np.zeros((0, 4)), np.zeros((0, 4)), TOLERANCE)


def test_text_is_refused() -> None:
    with pytest.raises(UnusableInput, match="real numbers"):
        judge(np.array(["a"]), np.array([1.0]), TOLERANCE)


def test_every_kernel_has_a_tolerance_with_its_source() -> None:
    for name in kernel_names():
        found = tolerance_for(name)
        assert found.atol > 0
        assert "kernel_registry" in found.source


def test_the_gemm_tiers_differ() -> None:
    assert tolerance_for("gemm").atol < tolerance_for("gemm", tier="low").atol


def test_the_papers_convention_adds_a_pearson_floor() -> None:
    noise = RNG.standard_normal(REFERENCE.shape) * 0.3
    wide = tolerance_for("gemm", "paper")
    verdict = judge(REFERENCE + noise, REFERENCE, wide)
    assert not verdict.passed
    assert "Pearson" in verdict.reason
    assert verdict.convention == "paper"


def test_unknown_kernels_conventions_and_tiers_say_what_there_is() -> None:
    with pytest.raises(UnknownKernel, match="rope"):
        tolerance_for("gem")
    with pytest.raises(UnusableInput, match="upstream"):
        tolerance_for("gemm", "mine")
    with pytest.raises(UnusableInput, match="high"):
        tolerance_for("gemm", tier="best")
    with pytest.raises(UnknownKernel, match="upstream"):
        tolerance_for("layernorm", "paper")


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_tolerance_must_be_a_finite_number(bad: float) -> None:
    with pytest.raises(UnusableInput):
        given(bad, 0)


# -- what it looks like ---------------------------------------------------------------------------


def test_a_stale_buffer_is_recognised_by_the_previous_output() -> None:
    old = RNG.standard_normal(REFERENCE.shape)
    assert kinds(old, previous=old)[0] == "stale buffer"
    half = np.concatenate([REFERENCE[:32], old[32:]])
    assert "stale buffer" in kinds(half, previous=old)


def test_a_missing_attention_scale_is_named() -> None:
    verdict = judge(REFERENCE / 8, REFERENCE, TOLERANCE)
    assert "1/sqrt(64)" in verdict.looks_like[0].evidence


def test_zeros_and_fills() -> None:
    assert kinds(np.zeros_like(REFERENCE))[0] == "all zeros"
    assert kinds(np.full_like(REFERENCE, 7.0))[0] == "one value everywhere"


def test_half_the_rows() -> None:
    actual = REFERENCE.copy()
    actual[32:] = 0
    assert kinds(actual)[0] == "half the rows"


def test_every_second_row() -> None:
    actual = REFERENCE.copy()
    actual[1::2] = RNG.standard_normal((32, 128))
    assert kinds(actual)[0] == "every second row"


def test_one_tile_with_its_bounds() -> None:
    actual = REFERENCE.copy()
    actual[16:32, 32:64] = RNG.standard_normal((16, 32))
    verdict = judge(actual, REFERENCE, TOLERANCE)
    assert verdict.looks_like[0].kind == "one tile"
    assert "rows 16–31 and columns 32–63" in verdict.looks_like[0].evidence


def test_a_few_wrong_elements_are_not_taken_for_a_pattern() -> None:
    actual = REFERENCE.copy()
    actual[3, 5] += 1
    assert kinds(actual) in (["lone elements"], ["near-zero elements"])
    small = np.unravel_index(np.argsort(np.abs(REFERENCE), axis=None)[:5], REFERENCE.shape)
    actual = REFERENCE.copy()
    actual[small] += 2e-3
    assert kinds(actual) == ["near-zero elements"]


def test_one_stretch_of_a_vector() -> None:
    actual = REFERENCE[0].copy()
    actual[96:] = 0
    assert kinds(actual, REFERENCE[0])[0] == "one stretch"


def test_a_repeated_part() -> None:
    assert "one part repeated" in kinds(np.concatenate([REFERENCE[:32]] * 2))


def test_wrong_angle_and_wrong_layout_of_a_rotation() -> None:
    first, second = REFERENCE[:, :64], REFERENCE[:, 64:]
    angle = 0.7
    turned = np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), first * np.sin(angle) + second * np.cos(angle)], axis=1
    )
    assert "wrong rotation" in kinds(turned)
    interleaved = np.stack([first, second], axis=2).reshape(REFERENCE.shape)
    assert {"permuted", "wrong rotation layout"} & set(kinds(interleaved))


def test_layouts() -> None:
    square = RNG.standard_normal((64, 64))
    assert "transposed" in kinds(square.T.copy(), square)
    blocked = REFERENCE.reshape(8, 8, 16, 8).transpose(0, 2, 1, 3).reshape(REFERENCE.shape)
    assert "blocked layout" in kinds(blocked)
    assert "shifted by a row" in kinds(np.roll(REFERENCE, 1, axis=0))
    assert "permuted" in kinds(RNG.permutation(REFERENCE.ravel()).reshape(REFERENCE.shape))


def test_offsets_and_factors_per_axis() -> None:
    assert "constant offset" in kinds(REFERENCE + 0.5)
    assert "one offset a column" in kinds(REFERENCE + RNG.standard_normal(128))
    assert "one factor a column" in kinds(REFERENCE * RNG.uniform(0.5, 1.5, 128))
    assert "one factor a row" in kinds(REFERENCE * RNG.uniform(0.5, 1.5, (64, 1)))


def test_precision() -> None:
    noise = REFERENCE * (1 + 0.02 * RNG.standard_normal(REFERENCE.shape))
    assert kinds(noise)[0] == "low precision"
    assert kinds(REFERENCE * (1 - 0.035 * RNG.uniform(0.4, 1, REFERENCE.shape)))[-1] in {
        "truncated rounding",
        "constant factor",
    }
    clipped = np.clip(REFERENCE, -1, 1)
    assert "clipped" in kinds(clipped)


def test_truncation_at_the_end_as_nan() -> None:
    actual = REFERENCE.copy()
    actual[40:] = np.nan
    assert kinds(actual)[0] == "truncated output"


@hypothesis_given(st.integers(0, 5), st.sampled_from(["float32", "float64", "int32", "bool"]), st.integers(0, 99))
def test_any_pair_of_arrays_gets_a_json_verdict_or_a_clear_refusal(rank: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0, 4, rank))
    with np.errstate(all="ignore"):
        actual = (rng.standard_normal(shape) * 3).astype(dtype)
        reference = (rng.standard_normal(shape) * 3).astype(dtype)
    if reference.size == 0 or not np.isfinite(reference).all():
        with pytest.raises(UnusableInput, match="reference"):
            judge(actual, reference, TOLERANCE)
        return
    json.dumps(judge(actual, reference, TOLERANCE, previous=actual).as_dict(), allow_nan=False)


# -- tokens ---------------------------------------------------------------------------------------


def test_identical_tokens_pass() -> None:
    logits = RNG.standard_normal((32, 50))
    assert judge_tokens(logits, logits).passed


def test_a_divergence_within_each_others_top_five_passes_and_later_steps_do_not_count() -> None:
    ours, theirs = RNG.standard_normal((32, 50)), np.zeros((0,))
    theirs = ours.copy()
    ours[4, 0], ours[4, 1] = 10, 9
    theirs[4, 0], theirs[4, 1] = 9, 10
    ours[9] = -theirs[9]
    verdict = judge_tokens(ours, theirs)
    assert verdict.passed
    assert verdict.step == 4


def test_a_token_outside_the_others_top_five_fails_in_either_direction() -> None:
    base = np.tile(np.arange(50.0), (32, 1))
    other = base.copy()
    other[6, 0] = 100
    assert not judge_tokens(other, base).passed
    assert not judge_tokens(base, other).passed


def test_too_few_steps_or_another_vocabulary_is_refused() -> None:
    with pytest.raises(UnusableInput, match="32 steps"):
        judge_tokens(np.zeros((4, 50)), np.zeros((4, 50)))
    with pytest.raises(UnusableInput, match="vocabulary"):
        judge_tokens(np.zeros((32, 50)), np.zeros((32, 51)))


def test_nan_logits_miss() -> None:
    broken = np.full((32, 50), np.nan)
    assert not judge_tokens(broken, np.zeros((32, 50))).passed


def test_the_k_best_are_those_of_a_whole_sort_with_ties_infinities_and_nan() -> None:
    rng = np.random.default_rng(5)
    for case in range(300):
        values = rng.integers(-3, 3, int(rng.integers(1, 30))).astype(np.float32)
        values[int(rng.integers(values.size))] = (np.nan, np.inf, -np.inf, 0.0, -0.0)[case % 5]
        for k in (1, 2, 5, 40):
            whole = np.lexsort((np.arange(values.size), -values.astype(np.float64)))[:k]
            assert top_k(values, k) == [int(token) for token in whole]


@pytest.mark.parametrize("heads", [2, 4, 12])
def test_heads_of_another_group_are_told_by_heads_whatever_their_number(heads: int) -> None:
    want = RNG.standard_normal((16, heads * 8))
    got = want.copy()
    got[:, heads // 2 * 8 :] = RNG.standard_normal((16, heads // 2 * 8))
    told = wrong_heads(got, want, heads)
    assert told is not None
    assert told.kind == "wrong heads"
    assert told.evidence.startswith("whole heads are wrong, the other heads are right (")


def test_what_is_wrong_in_all_heads_or_in_part_of_one_is_not_told_by_heads() -> None:
    want = RNG.standard_normal((16, 32))
    part = want.copy()
    part[:4, 8:16] = RNG.standard_normal((4, 8)) + 3
    for got, heads in ((RNG.standard_normal((16, 32)), 4), (part, 4), (want, 4), (part, 1), (part, 5)):
        assert wrong_heads(got, want, heads) is None
