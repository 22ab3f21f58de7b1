"""The evaluator's bench: results are kept, and a deployment that was not made is not one that was accused."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_tools.errors import UnusableInput
from npu_tools.evaluator import bench
from npu_tools.evaluator.bench import NOT_MADE, Row, measure_evaluator
from npu_tools.evaluator.benign import Benign
from npu_tools.evaluator.cheats import Cheat
from npu_tools.evaluator.honest import Making
from npu_tools.evaluator.kept import CASES, Kept

PASSING: dict[str, object] = {"verdict": "pass", "reasons": []}


@pytest.fixture
def honest(tmp_path: Path) -> Path:
    """A folder with as much of a deployment as the bench itself reads."""
    folder = tmp_path / "honest"
    folder.mkdir()
    (folder / "ledger.jsonl").write_text("one\n", encoding="utf-8")
    return folder


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two cases, and the folders the evaluator was asked about."""
    asked: list[str] = []

    def run(target: Path, **_: object) -> dict[str, object]:
        asked.append(target.name)
        if target.name == "lie":
            return {"verdict": "fail", "reasons": [{"code": "stale", "text": "old", "severity": "error"}]}
        return PASSING

    monkeypatch.setattr(bench, "run_evaluator", run)
    monkeypatch.setattr(bench, "CHEATS", (Cheat("lie", "a lie", ("stale",), lambda _: None),))
    monkeypatch.setattr(bench, "BENIGN", (Benign("copy", "a copy", plant=lambda _: None),))
    return asked


def test_kept_results_are_not_had_again(tmp_path: Path, honest: Path, evaluated: list[str]) -> None:
    place, kernels = tmp_path / "out", tmp_path / "kernels"
    place.mkdir()
    first = measure_evaluator(place, kernels, workspace=honest, only="honest:*", kept=Kept(place, kernels))
    assert [row.name for row in first.rows] == ["copy"]
    assert first.left == ("lie",)
    second = measure_evaluator(place, kernels, workspace=honest, kept=Kept(place, kernels))
    assert [row.name for row in second.rows] == ["lie", "copy"]
    assert second.ok
    assert not second.left
    assert evaluated == ["copy", "lie"]
    assert second.as_dict()["caught"] == 1
    assert second.as_dict()["accused"] == 0


def test_a_result_counts_for_its_code_and_its_deployment(tmp_path: Path, honest: Path) -> None:
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    row = {"kind": "cheat", "name": "lie"}
    Kept(tmp_path, kernels).add(row, honest)
    assert Kept(tmp_path, kernels).row("cheat", "lie", honest) == row
    assert Kept(tmp_path, kernels).row("cheat", "truth", honest) is None
    (honest / "ledger.jsonl").write_text("two\n", encoding="utf-8")
    assert Kept(tmp_path, kernels).row("cheat", "lie", honest) is None
    Kept(tmp_path, kernels).add(row, None)
    (kernels / "design.py").write_text("", encoding="utf-8")
    assert Kept(tmp_path, kernels).row("cheat", "lie", None) is None


def test_a_line_cut_off_is_no_result_and_spoils_none(tmp_path: Path) -> None:
    Kept(tmp_path, tmp_path).add({"kind": "cheat", "name": "one"}, None)
    with (tmp_path / CASES).open("a", encoding="utf-8") as file:
        file.write('{"code": "')
    Kept(tmp_path, tmp_path).add({"kind": "cheat", "name": "two"}, None)
    kept = Kept(tmp_path, tmp_path)
    assert kept.row("cheat", "one", None)
    assert kept.row("cheat", "two", None)


def test_a_deployment_not_made_is_not_accused(
    tmp_path: Path, honest: Path, evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Making) -> Path:
        raise UnusableInput("no room")

    monkeypatch.setattr(bench, "make_honest", broken)
    monkeypatch.setattr(bench, "BENIGN", (Benign("other", "another", make=lambda making: making),))
    rows: list[Row] = []
    found = measure_evaluator(tmp_path, tmp_path / "kernels", workspace=honest, only="other", each=rows.append)
    assert rows[0].verdict == NOT_MADE
    assert "no room" in rows[0].text
    assert not found.ok
    assert (found.as_dict()["accused"], found.as_dict()["not_made"]) == (0, 1)
    assert evaluated == []
