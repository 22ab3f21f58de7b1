"""The deployment tool and command without running anything: what is opened, changed, and refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from mcp_server import Config, build_server
from mcp_server.deployments import model_of
from npu_tools.errors import UnusableInput

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "num_hidden_layers": 2, "hidden_size": 128,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256, "vocab_size": 512,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.fixture
def workspace(lexical_config: Config, tmp_path: Path) -> Config:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return replace(lexical_config, workspace=folder)


def calls(config: Config, *each: dict[str, Any]) -> list[CallToolResult]:
    """The answers to calls of the tool, one after the other."""

    async def run() -> list[CallToolResult]:
        async with Client(build_server(config)) as client:
            found: list[CallToolResult] = []
            for arguments in each:
                result = await client.call_tool("deployment", {"workspace": "tiny", **arguments})
                assert isinstance(result, CallToolResult)
                found.append(result)
            return found

    return anyio.run(run)


def said(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def test_a_deployment_is_opened_changed_and_shown(workspace: Config) -> None:
    start = {"action": "start", "config": CONFIG, "options": {"weights": "random:7", "seq_len": 64}}
    results = calls(
        workspace,
        start,
        start,
        {"action": "set", "key": "gemm", "settings": {"tile_m": 32}, "why": "to see"},
        {"action": "recipe", "kernel": "eltwise_add", "file": "README.md"},
        {"action": "recipe", "kernel": "eltwise_add", "file": "README.md", "text": "mine"},
        {"action": "note", "text": "begun"},
        {"action": "status"},
    )
    assert not any(result.is_error for result in results), [said(each) for each in results if each.is_error]
    answers = [result.structured_content or {} for result in results]
    assert answers[0]["next_phase"] == 0
    assert answers[0]["next_skill"].startswith("phase-0")
    assert answers[1]["ledger_lines"] == 1, "opening it again changes nothing"
    assert answers[2]["settings"] == {"gemm": {"tile_m": 32}}
    assert answers[3]["text"]
    assert answers[-1]["recipes"] == {"eltwise_add": ["README.md"]}
    assert answers[-1]["ledger_lines"] == 4
    assert all(len(said(result)) < 6000 for result in results)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "status"}, "no deployment"),
        ({"action": "run"}, "no deployment"),
        ({"action": "start"}, "exactly one"),
        ({"action": "start", "model": "gpt-9"}, "llama-3.2-1b"),
        ({"action": "start", "config": CONFIG, "options": {"layers": 9}}, "1 to 2"),
        ({"action": "set", "key": "gemm"}, "settings"),
        ({"action": "note"}, "text"),
        ({"action": "status", "workspace": "../elsewhere"}, "outside the workspace"),
    ],
)
def test_unusable_requests_say_what_to_change(workspace: Config, arguments: dict[str, Any], words: str) -> None:
    (result,) = calls(workspace, arguments)
    assert result.is_error
    assert words in said(result)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"action": "set", "key": "gem", "settings": {"tile_m": 1}}, "no recipe"),
        ({"action": "set", "key": "gemm", "settings": {"tile_q": 1}}, "no setting"),
        ({"action": "recipe", "kernel": "gemm", "file": "reference.py", "text": "x"}, "judged by"),
        ({"action": "recipe", "kernel": "gemm", "file": "design.py", "find": "nowhere", "text": "x"}, "0 times"),
        ({"action": "recipe", "kernel": "gemm", "file": "../gemv/design.py"}, "no file"),
        ({"action": "answer", "answer": "yes"}, "no open question"),
        ({"action": "note", "text": "x", "about": 99}, "no line 99"),
    ],
)
def test_unusable_moves_say_what_to_change(workspace: Config, arguments: dict[str, Any], words: str) -> None:
    _, result = calls(workspace, {"action": "start", "config": CONFIG, "options": {"seq_len": 64}}, arguments)
    assert result.is_error
    assert words in said(result)


def test_a_model_is_meant_by_a_file_a_folder_a_name_or_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    by_file = model_of(str(tmp_path / "config.json"), None, Path)
    by_folder = model_of(str(tmp_path), "random:3", Path)
    assert by_file.config == by_folder.config == CONFIG
    assert by_file.weights == "random:1"
    assert by_folder.weights == "random:3"
    named = model_of("Qwen/Qwen3-0.6B", None, Path)
    assert named.name == "qwen3-0.6b"
    assert model_of(CONFIG, str(tmp_path), Path).weights == str(tmp_path)
    with pytest.raises(UnusableInput, match="there is no"):
        model_of(str(tmp_path / "none"), None, Path)


def test_what_a_workspace_was_opened_with_need_not_be_said_again_and_cannot_be_contradicted(workspace: Config) -> None:
    start = {"action": "start", "config": CONFIG, "options": {"weights": "random:7", "seq_len": 64, "prompts": 2}}
    again, other, back = calls(
        workspace, start, {"action": "start", "config": CONFIG},
        {"action": "start", "config": CONFIG, "options": {"seq_len": 128}}, {"action": "start", "config": CONFIG},
    )[1:]  # fmt: skip
    assert (again.structured_content or {})["ledger_lines"] == 1
    assert (other.structured_content or {})["ledger_lines"] == 2, "no phase has passed: it may be opened otherwise"
    assert (back.structured_content or {})["ledger_lines"] == 2

    def command(*options: str) -> subprocess.CompletedProcess[str]:
        code = "from mcp_server.cli import main; main()"
        folder = str((workspace.workspace or Path()) / "tiny")
        return subprocess.run(
            [sys.executable, "-P", "-c", code, "deploy", "--workspace", folder, "--status", "--json", *options],
            capture_output=True, text=True, encoding="utf-8", check=False,
        )  # fmt: skip

    shown = json.loads(command().stdout)
    assert (shown["opened"]["seq_len"], shown["opened"]["prompts"], shown["opened"]["weights"]) == (128, 2, "random:7")
    assert shown["ledger_head"]
    refused = command("--seq", "64", "--weights", "random:8")
    assert refused.returncode == 2
    assert "seq_len 64 (it has 128)" in json.loads(refused.stdout)["error"]
    assert "weights random:8 (it has random:7)" in json.loads(refused.stdout)["error"]


@pytest.mark.parametrize(("model", "prefill", "decode"), [("qwen2.5-3b", 7, 5)])
def test_the_bench_counts_the_elfs_upstream_runs_a_layer_with(model: str, prefill: int, decode: int) -> None:
    code = "from mcp_server.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "bench", "deploy", model, "--plan", "--json"],
        capture_output=True, text=True, encoding="utf-8", check=False,
    )  # fmt: skip
    (row,) = json.loads(done.stdout)["models"]
    assert row["prefill_elfs"] == {"ours": prefill, "upstream": prefill}
    assert row["decode_elfs"] == {"ours": decode, "upstream": decode}
    assert row["modelled"]["ttft_s"] == pytest.approx(row["published"]["ttft_s"], rel=0.25)
