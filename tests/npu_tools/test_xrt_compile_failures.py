"""Every documented failure of compiling: the adapter says the right thing, in time, with the lesson behind it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from npu_tools.backends import Refused
from npu_tools.backends.xrt.outcomes import lesson_of, outcomes
from tests.npu_tools.xrt_support import NOT_HUNG_S, ROOT, assert_said, gemv, made, name, two_launches
from tests.stand_in.behaviours import ALL, COMPILE, REFUSED, Behaviour


@pytest.mark.parametrize("behaviour", COMPILE, ids=name)
def test_a_failed_compile_is_an_answer_with_cause_and_remedy(tmp_path: Path, behaviour: Behaviour) -> None:
    started = time.monotonic()
    _, backend = made(tmp_path, behaviour)
    text, options = gemv()
    kernel = backend.load(text, name="gemv", options={**options, **behaviour.options}, outputs=(2,))
    assert time.monotonic() - started < NOT_HUNG_S
    assert isinstance(kernel, Refused) != behaviour.ok
    assert_said(kernel.findings, behaviour)
    if not behaviour.ok:
        left = [path.name for path in (tmp_path / "cache").rglob("*") if path.name.startswith("air.")]
        assert not left, "a failed compile leaves nothing that could be taken for an artefact"


@pytest.mark.parametrize("behaviour", REFUSED, ids=name)
def test_what_upstream_refuses_or_gets_wrong_in_silence_is_refused_before_any_tool_runs(
    tmp_path: Path, behaviour: Behaviour
) -> None:
    machine, backend = made(tmp_path, behaviour)
    kernel = backend.load(two_launches(), name="gemm", options=behaviour.options, outputs=(3,))
    assert isinstance(kernel, Refused)
    assert_said(kernel.findings, behaviour)
    assert not machine.calls("aircc")


def test_at_least_thirty_documented_failures_are_reproduced_each_with_its_source() -> None:
    failing = [one for one in ALL if not one.ok and one.code]
    assert len(failing) >= 30
    assert all(one.fact.count("/") >= 1 for one in ALL)
    assert len({one.name for one in ALL}) == len(ALL)


def test_every_lesson_the_adapter_names_is_in_the_corpus() -> None:
    shipped = {path.stem for path in (ROOT / "kb" / "corpus").rglob("*.md")}
    named = {row.code: lesson_of(row.code) for row in outcomes()}
    assert {lesson for lesson in named.values() if lesson} <= shipped
    without = {code for code, lesson in named.items() if lesson is None}
    assert without <= {"stopped"}, "a request to stop is no failure"
