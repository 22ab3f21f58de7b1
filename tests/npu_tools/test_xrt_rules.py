"""The table of rules is whole: every rule has a test that exists, or a reason."""

from __future__ import annotations

from pathlib import Path

from npu_tools.backends.xrt.rules import Rule, missing, read_rules
from tests.npu_tools.xrt_support import name
from tests.stand_in.behaviours import ALL

HERE = Path(__file__).parent


def test_every_rule_names_a_test_that_exists_or_a_reason() -> None:
    rules = read_rules()
    assert not missing(rules, HERE)
    for rule in rules:
        assert bool(rule.tests) != bool(rule.reason), rule
        assert "/" in rule.source or rule.source.endswith(("PR 1770", "PR 1827", "PR 1840")), rule


def test_every_case_that_is_named_is_one_the_stand_in_has() -> None:
    cases = {name(one) for one in ALL}
    named = {test.partition("[")[2].rstrip("]") for rule in read_rules() for test in rule.tests if "[" in test}
    assert named <= cases


def test_every_part_of_the_facts_is_there() -> None:
    sections = {rule.section for rule in read_rules()}
    assert {f"0.{n}" for n in range(1, 9)} <= sections
    assert {f"3.7.{n}" for n in range(1, 13)} <= sections
    assert {"2.7", "3.1", "3.2", "3.3", "3.4", "3.5", "3.6", "9"} <= sections


def test_a_test_that_is_gone_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_there() -> None: ...\n", encoding="utf-8")
    rule = Rule("0.0", "r", "s", ("test_a.py::test_there[x]", "test_a.py::test_gone", "test_b.py::test_there"))
    assert missing([rule], tmp_path) == ["test_a.py::test_gone", "test_b.py::test_there"]
