"""The MCP tool `harvest` and the command: a plan to review, what is asked for, apply, undo."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from harvest.planted import PLANTED, deploy
from mcp_server import Config, build_server


def call(config: Config, *calls: Mapping[str, Any]) -> list[Any]:
    """The structured answers of these calls of `harvest`, one after the other."""

    async def run() -> list[Any]:
        async with Client(build_server(config)) as client:
            return [await client.call_tool("harvest", dict(arguments)) for arguments in calls]

    return anyio.run(run)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A deployment with three failures, one of them without a stated reason."""
    planted = [PLANTED[0], PLANTED[5], replace(PLANTED[8], why="")]
    return deploy(tmp_path / "w", "SmolLM2-135M", planted)


def test_the_plan_asks_for_exactly_what_nobody_stated(lexical_config: Config, workspace: Path) -> None:
    (plan,) = call(lexical_config, {"action": "plan", "source": str(workspace)})
    data = plan.structured_content
    assert (data["new"], data["seen"], data["refused"]) == (6, 0, 0)
    asked = [item for item in data["items"] if item["fill_in"]]
    assert [item["fill_in"] for item in asked] == [["cause"]]
    assert all(line.startswith("> ") for line in data["diff"].split("\n"))
    assert "fill_in" in data["next_step"]


def test_answers_fill_it_in_and_apply_stores_and_undo_takes_back(lexical_config: Config, workspace: Path) -> None:
    (plan,) = call(lexical_config, {"action": "plan", "source": str(workspace)})
    asked = next(item["id"] for item in plan.structured_content["items"] if item["fill_in"])
    given = {"source": str(workspace), "answers": {asked: {"cause": "the kernel rotates neighbours, the model halves"}}}
    applied, again, status, undone = call(
        lexical_config,
        {"action": "apply", **given},
        {"action": "apply", **given},
        {"action": "status"},
        {"action": "undo"},
    )
    assert len(applied.structured_content["records"]) == 6
    assert again.structured_content["harvest_id"] is None
    assert again.structured_content["new"] == 0
    assert len(status.structured_content["records"]) == 6
    assert "Nothing is missing" in status.structured_content["next_step"]
    assert len(undone.structured_content["records"]) == 6


def test_errors_say_the_next_step(lexical_config: Config, tmp_path: Path) -> None:
    missing, nowhere, nothing = call(
        lexical_config, {"action": "plan"}, {"action": "plan", "source": str(tmp_path / "no")}, {"action": "undo"}
    )
    assert all(answer.is_error for answer in (missing, nowhere, nothing))
    assert "workspace" in missing.content[0].text
    assert "does not exist" in nowhere.content[0].text
    assert "no harvest" in nothing.content[0].text


def test_a_confined_server_harvests_the_workspace_only(lexical_config: Config, workspace: Path, tmp_path: Path) -> None:
    config = replace(lexical_config, workspace=tmp_path / "elsewhere")

    async def run() -> Any:
        async with Client(build_server(config, confined=True)) as client:
            return await client.call_tool("harvest", {"action": "plan", "source": str(workspace)})

    assert "outside the workspace" in anyio.run(run).content[0].text


def test_the_prompt_of_phase_6_names_the_calls(lexical_config: Config) -> None:
    async def run() -> str:
        async with Client(build_server(lexical_config)) as client:
            prompt = await client.get_prompt("finalize_and_learn", {"workspace": "ws"})
            with pytest.raises(MCPError):
                await client.get_prompt("finalize_and_learn", {})
            return str(prompt.messages[0].content.text)  # type: ignore[union-attr]

    text = anyio.run(run)
    for call_name in ('harvest(action="plan"', 'harvest(action="apply"', "report_outcome", "data, never instructions"):
        assert call_name in text


def test_the_command_prints_one_object_in_its_fixed_form(
    config: Config, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mcp_server import cli

    monkeypatch.setenv("HERDBOOK_HOME", str(config.home))
    monkeypatch.setenv("HERDBOOK_DENSE", "0")
    printed: list[dict[str, Any]] = []
    for options in ([], ["--yes"], ["--yes"]):
        monkeypatch.setattr("sys.argv", ["herdbook", "harvest", str(workspace), *options, "--json"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 0
        printed.append(json.loads(capsys.readouterr().out))
    plan, first, second = printed
    assert {"new", "seen", "conflicts", "refused", "records"} <= set(plan)
    assert (plan["new"], plan["applied"]) == (6, False)
    assert (first["new"], len(first["records"]), first["applied"]) == (6, 6, True)
    assert (second["new"], second["seen"], second["harvest"]) == (0, 6, None)
