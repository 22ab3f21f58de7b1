"""A ledger tells lessons: what failed, what was changed, what passed; and never more than that."""

from __future__ import annotations

from pathlib import Path

from harvest import apply_plan, plan_harvest, undo
from harvest.draft import NOT_STATED
from harvest.written import attempt, decision, write_deployment
from kb import Memory
from kb.records import KernelRow, Lesson, Trajectory

SHAPE = {"M": 512, "K": 2048, "N": 256}
OVERFLOW = "L2 capacity exceeded: 622592 bytes > 524288"


def failing_then_passing(why: str = "") -> list[tuple[str, int | None, dict[str, object]]]:
    return [
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 8}, False, code="l2_overflow", message=OVERFLOW)),
        ("decision", 1, decision("gemv", "tile_m", 8, 2, why)),
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 2}, True)),
    ]


def lessons(memory: Memory) -> list[Lesson]:
    return [hit.record for hit in memory.records() if isinstance(hit.record, Lesson)]


def test_a_failure_a_decision_and_a_pass_make_one_lesson(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(tmp_path / "w", "Qwen2.5-0.5B", *failing_then_passing("two rows of K fit the buffer"))
    apply_plan(empty, plan_harvest(empty, folder))
    (lesson,) = lessons(empty)
    assert OVERFLOW in lesson.symptom
    assert lesson.fix == "1. Change tile_m of gemv from 8 to 2."
    assert lesson.cause == "two rows of K fit the buffer"
    assert lesson.status == "observed"
    assert lesson.provenance[0].evidence is not None
    assert lesson.provenance[0].evidence.startswith("ledger:")


def test_a_cause_nobody_stated_is_asked_for_and_never_made_up(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(tmp_path / "w", "m", *failing_then_passing())
    plan = plan_harvest(empty, folder)
    (item,) = [item for item in plan.items if item.kind == "lesson"]
    assert item.needs == ("cause",)
    assert isinstance(item.record, Lesson)
    assert item.record.cause == NOT_STATED
    answered = plan_harvest(empty, folder, answers={item.id: {"cause": "K rows of A do not fit beside B"}})
    (item,) = [item for item in answered.items if item.kind == "lesson"]
    assert item.needs == ()


def test_what_was_tried_in_vain_is_kept_as_such(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(
        tmp_path / "w", "m",
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 8}, False, code="l2_overflow", message=OVERFLOW)),
        ("decision", 1, decision("gemv", "herd_n", 4, 2)),
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 8}, False, code="l2_overflow", message=OVERFLOW)),
        ("decision", 1, decision("gemv", "tile_m", 8, 2)),
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 2}, True)),
    )  # fmt: skip
    apply_plan(empty, plan_harvest(empty, folder))
    (lesson,) = lessons(empty)
    assert "herd_n" in lesson.did_not_help
    assert "herd_n" not in lesson.fix


def test_a_failure_that_went_away_by_itself_is_no_lesson(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(
        tmp_path / "w", "m",
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 8}, False, code="l2_overflow", message=OVERFLOW)),
        ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 8}, True)),
    )  # fmt: skip
    plan = plan_harvest(empty, folder)
    assert [item.kind for item in plan.items if item.action == "new"] == ["kernel_row"]
    assert any("nothing recorded was changed" in item.why for item in plan.of("refused"))


def test_a_measured_row_says_how_it_was_measured_and_on_what(tmp_path: Path, empty: Memory) -> None:
    environment = {"device": "NPU Strix", "power_mode": "Turbo", "xrt": "2.21.0", "packages": {"llvm-aie": "21.0"}}
    how = {"warm_up": 5, "iterations": 20, "timed": "start() and the wait", "environment": environment}
    passed = attempt(
        "kernel", "gemv", SHAPE, {"tile_m": 2}, True, backend="xrt", measured_us=61.5, metrics={"measured": how}
    )
    step = {
        "name": "merge", "before_us": 80.0, "after_us": 61.5, "timing": "measured", "gate_seq": 2, "kept": True, "why": "",
        "measurement": how,
    }  # fmt: skip
    folder = write_deployment(tmp_path / "w", "m", ("attempt", 1, passed), ("step", 4, step))
    apply_plan(empty, plan_harvest(empty, folder))
    (row,) = [hit.record for hit in empty.records() if isinstance(hit.record, KernelRow)]
    (trajectory,) = [hit.record for hit in empty.records() if isinstance(hit.record, Trajectory)]
    assert trajectory.steps[0].unit == "us, measured"
    assert "device NPU Strix" in trajectory.notes
    assert [(f.metric, f.value, f.unit) for f in row.figures] == [("latency", 61.5, "us")]
    assert row.power_mode == "Turbo"
    assert row.measured_on == row.provenance[0].date
    for said in ("20 runs after 5 warm-ups", "device NPU Strix", "xrt 2.21.0", "llvm-aie 21.0"):
        assert said in row.notes


def test_a_ledger_with_a_broken_chain_is_evidence_of_nothing(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(tmp_path / "w", "m", *failing_then_passing("a reason"))
    path = folder / "ledger.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("a reason", "other one"), encoding="utf-8")
    plan = plan_harvest(empty, folder)
    assert plan.counts() == {"new": 0, "seen": 0, "conflicts": 0, "refused": 1}
    assert "no evidence" in plan.items[0].why


def test_steps_become_a_trajectory_with_the_gate_that_still_passed(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(
        tmp_path / "w", "m",
        ("attempt", 4, attempt("model", "", {}, {}, True)),
        ("step", 4, {"name": "merge", "before_us": 900.0, "after_us": 500.0, "timing": "modelled", "gate_seq": 2, "kept": True, "why": "one call"}),
        ("step", 4, {"name": "layout", "before_us": 500.0, "after_us": 520.0, "timing": "modelled", "gate_seq": 2, "kept": False, "why": "slower"}),
    )  # fmt: skip
    apply_plan(empty, plan_harvest(empty, folder))
    (found,) = [hit.record for hit in empty.records() if isinstance(hit.record, Trajectory)]
    assert [(s.change, s.before, s.after, s.helped) for s in found.steps] == [
        ("merge", 900.0, 500.0, True),
        ("layout", 500.0, 520.0, False),
    ]
    assert "the gate still passed" in (found.steps[0].detail or "")


def test_a_modelled_time_never_becomes_a_measured_figure(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(
        tmp_path / "w", "m", ("attempt", 1, attempt("kernel", "gemv", SHAPE, {"tile_m": 2}, True))
    )
    apply_plan(empty, plan_harvest(empty, folder))
    (row,) = [hit.record for hit in empty.records() if isinstance(hit.record, KernelRow)]
    assert row.figures == []
    assert row.measured_on is None
    assert "Modelled, not measured" in row.notes
    assert (row.shape, row.tile) == (SHAPE, {"tile_m": 2})


def test_harvesting_again_adds_nothing_and_undoing_leaves_nothing(tmp_path: Path, empty: Memory) -> None:
    folder = write_deployment(tmp_path / "w", "m", *failing_then_passing("a reason"))
    first = apply_plan(empty, plan_harvest(empty, folder))
    assert len(first.added) == 2
    assert plan_harvest(empty, folder).counts()["new"] == 0
    assert apply_plan(empty, plan_harvest(empty, folder)).id is None
    assert set(undo(empty).withdrawn) == set(first.added)
    assert empty.records() == []
    assert empty.explain(OVERFLOW).hits == ()
    assert len(apply_plan(empty, plan_harvest(empty, folder)).added) == 2
