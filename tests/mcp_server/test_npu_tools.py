"""check, compile, run, gate and job as a client sees them: answers, bounds, and what a bad request gets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from mcp import Client
from mcp.types import CallToolResult, TextContent

from mcp_server import Config, build_server

ADD = """
func.func @add(%a: memref<64xi32>, %b: memref<64xi32>, %c: memref<64xi32>) {
  air.launch () in () args(%la=%a, %lb=%b, %lc=%c) : memref<64xi32>, memref<64xi32>, memref<64xi32> {
    air.segment @seg args(%sa=%la, %sb=%lb, %sc=%lc) : memref<64xi32>, memref<64xi32>, memref<64xi32> {
      %c1 = arith.constant 1 : index
      air.herd @adder tile (%tx, %ty) in (%sx=%c1, %sy=%c1) args(%ha=%sa, %hb=%sb, %hc=%sc) : memref<64xi32>, memref<64xi32>, memref<64xi32> {
        %x = memref.alloc() : memref<64xi32, 2>
        %y = memref.alloc() : memref<64xi32, 2>
        air.dma_memcpy_nd (%x[] [] [], %ha[] [] []) : (memref<64xi32, 2>, memref<64xi32>)
        air.dma_memcpy_nd (%y[] [] [], %hb[] [] []) : (memref<64xi32, 2>, memref<64xi32>)
        %c0 = arith.constant 0 : index
        %one = arith.constant 1 : index
        %c64 = arith.constant 64 : index
        scf.for %i = %c0 to %c64 step %one {
          %p = memref.load %x[%i] : memref<64xi32, 2>
          %q = memref.load %y[%i] : memref<64xi32, 2>
          %r = arith.addi %p, %q : i32
          memref.store %r, %x[%i] : memref<64xi32, 2>
        }
        air.dma_memcpy_nd (%hc[] [] [], %x[] [] []) : (memref<64xi32>, memref<64xi32, 2>)
        memref.dealloc %x : memref<64xi32, 2>
        memref.dealloc %y : memref<64xi32, 2>
      }
    }
  }
  return
}
"""
TOO_BIG = ADD.replace("64xi32", "20480xi32")
DEADLOCK = """
module {
  air.channel @never [1]
  func.func @stuck(%a: memref<8xi32>) {
    air.launch () in () args(%la=%a) : memref<8xi32> {
      air.channel.get @never[] (%la[] [] []) : (memref<8xi32>)
    }
    return
  }
}
"""


@pytest.fixture
def workspace(lexical_config: Config, tmp_path: Path) -> Config:
    """A server's configuration with a workspace of its own."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    return replace(lexical_config, workspace=folder)


def call(config: Config, tool: str, arguments: dict[str, Any], *, confined: bool = False) -> CallToolResult:
    async def run() -> CallToolResult:
        async with Client(build_server(config, confined=confined)) as client:
            result = await client.call_tool(tool, arguments)
            assert isinstance(result, CallToolResult)
            return result

    return anyio.run(run)


def answer(config: Config, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = call(config, tool, arguments)
    assert not result.is_error, said(result)
    assert result.structured_content is not None
    return result.structured_content


def said(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def test_a_program_is_checked_compiled_run_and_gated(workspace: Config) -> None:
    (workspace.workspace / "add.mlir").write_text(ADD, encoding="utf-8")
    checked = answer(workspace, "check", {"program": "add.mlir"})
    assert checked["parsed"]
    assert checked["ok"], checked
    compiled = answer(workspace, "compile", {"program": "add.mlir"})
    assert compiled["ok"], compiled
    assert not compiled["facts"]["cached"]
    assert answer(workspace, "compile", {"program": "add.mlir"})["facts"]["cached"]
    a, b = np.arange(64, dtype=np.int32), np.full(64, 5, np.int32)
    np.savez(workspace.workspace / "in.npz", arg0=a, arg1=b)
    np.save(workspace.workspace / "ref.npy", a + b)
    ran = answer(workspace, "run", {"artefact": compiled["artefact"], "inputs": "in.npz", "outputs": "out.npz"})
    assert ran["state"] == "done"
    assert ran["ok"], ran
    assert ran["ran_on"] == "emulator"
    gated = answer(
        workspace, "gate", {"actual": "out.npz#arg2", "reference": "ref.npy", "rtol": 0, "atol": 0}
    )  # fmt: skip
    assert gated["passed"], gated
    assert answer(workspace, "job", {"id": ran["job"]})["job"]["ok"]
    assert ran["job"] in [each["job"] for each in answer(workspace, "job", {"action": "list"})["latest"]]


def test_a_refused_program_is_an_answer_with_limit_remedy_and_lesson(workspace: Config) -> None:
    reply = answer(workspace, "compile", {"program_text": TOO_BIG})
    assert reply["ok"] is False
    worst = reply["findings"][0]
    assert worst["severity"] == "error"
    assert "allocated buffers exceeded available memory" in worst["diagnostic"]
    assert worst["line"]
    assert worst["remedy"]
    assert worst["source"]
    assert reply["lessons"], reply


def test_a_deadlock_is_explained(workspace: Config) -> None:
    reply = answer(workspace, "run", {"program_text": DEADLOCK})
    assert reply["state"] == "done"
    assert reply["ok"] is False
    assert "never" in json.dumps(reply["findings"])


def test_text_that_is_no_program_is_told_with_its_place(workspace: Config) -> None:
    reply = answer(workspace, "check", {"program_text": "func.func @f( {"})
    assert reply["parsed"] is False
    assert reply["findings"][0]["line"] == 1


def test_a_kernel_and_a_model_are_checked(workspace: Config) -> None:
    fine = answer(workspace, "check", {"kernel": "gemm", "shape": "2048x2048x8192"})
    assert fine["ok"]
    bad = answer(workspace, "check", {"kernel": "gemm", "shape": "2048x2048x2048", "settings": {"tile_m": 512}})
    assert not bad["ok"]
    config = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8}
    (workspace.workspace / "config.json").write_text(json.dumps(config), encoding="utf-8")
    refused = answer(workspace, "check", {"model": "config.json"})
    assert not refused["ok"]


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("check", {}, "exactly one"),
        ("check", {"kernel": "gemm"}, "shape"),
        ("check", {"kernel": "gem", "shape": "1x1x1"}, "no kernel"),
        ("check", {"program": "none.mlir"}, "cannot read"),
        ("check", {"program_text": "module {}", "device": "npu9"}, "npu2"),
        ("check", {"model": "none"}, "cannot read"),
        ("compile", {"program_text": "module {}", "program": "x"}, "exactly one"),
        ("run", {"artefact": "none"}, "no artefact"),
        ("job", {"id": "run-1"}, "no job"),
        ("job", {"action": "cancel"}, "id"),
        ("gate", {"actual": "a.npy", "reference": "b.npy", "kernel": "gemm"}, "cannot read"),
    ],
)
def test_unusable_requests_say_what_to_change(
    workspace: Config, tool: str, arguments: dict[str, Any], words: str
) -> None:
    result = call(workspace, tool, arguments)
    assert result.is_error
    assert words in said(result)


def test_a_run_with_unusable_inputs_fails_with_the_reason(workspace: Config) -> None:
    np.savez(workspace.workspace / "in.npz", arg0=np.zeros(3, np.int32))
    reply = answer(workspace, "run", {"program_text": ADD, "inputs": "in.npz"})
    assert reply["state"] == "failed"
    assert "arg0" in reply["reason"]


def test_over_http_only_files_of_the_workspace_are_used(workspace: Config, tmp_path: Path) -> None:
    (tmp_path / "secret.mlir").write_text("top secret", encoding="utf-8")
    for path in (str(tmp_path / "secret.mlir"), "../secret.mlir"):
        result = call(workspace, "check", {"program": path}, confined=True)
        assert result.is_error
        assert "outside the workspace" in said(result)
        assert "top secret" not in said(result)


def test_answers_stay_small_however_much_is_found(workspace: Config) -> None:
    lines = "\n".join(f"        %z{n} = memref.alloc() : memref<20480xi32, 2>" for n in range(200))
    many = ADD.replace("        %x = ", lines + "\n        %x = ")
    result = call(workspace, "check", {"program_text": many})
    assert len(said(result)) < 9000


@pytest.mark.parametrize("argument", ["outputs", "timeline", "tile_map"])
def test_nothing_is_written_outside_the_workspace(workspace: Config, tmp_path: Path, argument: str) -> None:
    result = call(workspace, "run", {"program_text": ADD, argument: str(tmp_path / "elsewhere.npz")})
    assert result.is_error
    assert "outside the workspace" in said(result)
    assert not (tmp_path / "elsewhere.npz").exists()
