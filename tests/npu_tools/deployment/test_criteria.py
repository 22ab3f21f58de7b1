"""The criteria as data: eight phases, both conventions, limits by head_dim."""

from __future__ import annotations

import pytest

from npu_tools.deployment.criteria import phase, phases
from npu_tools.errors import UnusableInput


def test_there_are_eight_phases_and_every_criterion_has_a_source_and_says_what_counts_as_fixed() -> None:
    assert [each.number for each in phases()] == list(range(8))
    for each in phases():
        assert each.criteria
        for criterion in each.criteria:
            assert criterion.source
            assert criterion.fixed
            assert criterion.convention in ("head", "paper", "both", "ours")
            assert (criterion.bound == "is") == (not criterion.limits)


@pytest.mark.parametrize(("head_dim", "value", "ok"), [(64, 0.985, False), (128, 0.985, True), (256, 0.975, True)])
def test_the_smallest_cosine_asked_of_a_position_depends_on_head_dim(head_dim: int, value: float, ok: bool) -> None:
    assert phase("block").criterion("position_cosine_min").judge(value, head_dim=head_dim).ok is ok


def test_a_criterion_of_the_other_convention_is_a_lens() -> None:
    criterion = phase(3).criterion("layer_cosine_min")
    assert not criterion.judge(0.5).decides
    assert criterion.judge(0.5, convention="paper").decides


def test_what_was_not_measured_never_holds() -> None:
    assert not phase(3).criterion("token_sets").judge(None).ok
    assert not phase(3).criterion("layer_cosine_min").judge(float("nan")).ok


def test_phases_are_found_by_number_name_and_skill() -> None:
    assert phase("phase-4-prefill-optimization") == phase(4) == phase("prefill") == phase("prefill-optimization")
    with pytest.raises(UnusableInput, match="7 evaluator"):
        phase(8)
