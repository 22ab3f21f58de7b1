"""`herdbook bench deploy`: what each run is started with, and what a bench that goes on adds up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mcp_server import bench_deploy


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the children, which do nothing and say that all is well."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, '{"ok": true, "summary": "fine"}', "")

    monkeypatch.setattr(bench_deploy.subprocess, "run", run)
    return commands


def _table(capsys: pytest.CaptureFixture[str], models: list[str], out: Path, **options: Any) -> dict[str, Any]:
    asked: dict[str, Any] = {
        "seq": 64,
        "layers": None,
        "prompts": 1,
        "steps": 8,
        "long_seq": 2048,
        "long_until": 3,
        "seed": None,
    }
    with pytest.raises(SystemExit) as ended:
        bench_deploy.deploy(models, out, timeout=10, plan_only=False, as_json=True, **{**asked, **options})
    assert ended.value.code == 0
    return json.loads(capsys.readouterr().out)


def _after(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_a_model_runs_whole_and_one_layer_at_the_papers_length(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    runs = _table(capsys, ["qwen3-0.6b"], tmp_path)["models"][0]["runs"]
    assert [_after(command, "--seq") for command in started] == ["64", "2048"]
    assert "--layers" not in started[0]
    assert _after(started[1], "--layers") == "1"
    assert runs[0]["limits"].startswith("all 28 layers, 64 tokens")
    assert runs[0]["limits"].endswith("seed 1")


def test_a_seed_that_is_not_the_first_has_a_workspace_of_its_own(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _table(capsys, ["qwen3-0.6b"], tmp_path, long_seq=0)
    _table(capsys, ["qwen3-0.6b"], tmp_path, long_seq=0, seed=5)
    assert [_after(command, "--weights") for command in started] == ["random:1", "random:5"]
    assert [Path(_after(command, "-w")).name for command in started] == ["qwen3-0.6b-depth", "qwen3-0.6b-depth-seed5"]


def test_a_bench_that_goes_on_counts_the_time_before(
    started: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "qwen3-0.6b-depth.wall_s").write_text("100.0\n", encoding="utf-8")
    run = _table(capsys, ["qwen3-0.6b"], tmp_path, long_seq=0)["models"][0]["runs"][0]
    assert 100 <= run["wall_s"] < 200
    assert len(started) == 1
