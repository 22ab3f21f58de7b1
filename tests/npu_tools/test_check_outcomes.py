"""The checks against what upstream measured and documented."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_tools.check.outcomes import OutcomeReport, measure_outcomes, outcomes

PROGRAMS = Path(__file__).parent.parent / "data" / "air"


@pytest.fixture(scope="module")
def report() -> OutcomeReport:
    return measure_outcomes(programs=PROGRAMS)


def test_precision_and_recall_reach_nine_in_ten(report: OutcomeReport) -> None:
    assert report.overall.precision >= 0.90
    assert report.overall.recall >= 0.90


def test_so_do_they_for_outcomes_no_rule_was_read_off(report: OutcomeReport) -> None:
    assert report.held_out.outcomes >= 80
    assert report.held_out.precision >= 0.90
    assert report.held_out.recall >= 0.90


def test_most_caught_outcomes_are_caught_for_the_documented_reason(report: OutcomeReport) -> None:
    assert report.overall.named >= 0.9 * report.overall.caught


def test_every_diagnostic_with_several_outcomes_is_mostly_caught(report: OutcomeReport) -> None:
    for says, agreement in report.by_diagnostic.items():
        assert agreement.outcomes < 5 or agreement.recall >= 0.8, says


def test_there_are_enough_outcomes_failing_and_passing_and_all_have_sources() -> None:
    counted = [one for one in outcomes() if one.counted]
    assert sum(one.refused for one in counted) >= 80
    assert sum(not one.refused for one in counted) >= 80
    for one in outcomes():
        assert len(one.commit) == 40, one
        assert one.source.startswith(("Xilinx/mlir-air ", "tonyjie/mlir-air ")), one
        assert one.says or not one.refused, one
        assert one.status in {"", "disputed", "old-tree"}, one
        assert one.why or not one.status, one


def test_no_outcome_is_told_twice() -> None:
    told = [str(one) for one in outcomes()]
    assert len(told) == len(set(told))


def test_program_outcomes_are_tried_only_where_their_files_are(report: OutcomeReport) -> None:
    assert not report.not_tried
    alone = measure_outcomes()
    assert {one.kernel for one in alone.not_tried} == {"program"}


def test_the_report_names_what_it_got_wrong(report: OutcomeReport) -> None:
    shown = report.as_dict()
    assert len(shown["wrong"]) == report.overall.missed + report.overall.false_alarms
    assert all("check says" in line for line in shown["wrong"])
