"""What a server loads before it can answer `initialize`: the SDK, and nothing heavier."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = [
    "numpy",
    "torch",
    "transformers",
    "sentence_transformers",
    "chromadb",
    "onnxruntime",
    "tokenizers",
    "kb.memory",
]


def loaded_by(code: str) -> set[str]:
    """The modules a fresh interpreter holds after running `code`."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", ["mcp_server.serve", "mcp_server.server", "mcp_server.http"])
def test_importing_the_server_loads_nothing_heavy(module: str) -> None:
    assert loaded_by(f"import {module}").isdisjoint(HEAVY)


def test_building_the_server_loads_nothing_heavy() -> None:
    code = "from mcp_server import Config, build_server; build_server(Config.from_environment({}))"
    found = loaded_by(code)
    assert "mcp.server.mcpserver.server" in found
    assert found.isdisjoint(HEAVY)


def test_standard_output_is_claimed_before_the_sdk_is_loaded() -> None:
    """So that a module that prints while it loads cannot spoil the protocol."""
    found = loaded_by("import mcp_server.serve")
    assert "mcp_server.wire" in found
    assert found.isdisjoint(["mcp", "pydantic", "anyio"])


def test_the_first_question_does_load_the_memory() -> None:
    """Guards the guards above: the same look sees the heavy modules once they are needed."""
    code = """
from mcp_server import Config, build_server
from mcp_server.server import LazyMemory
from dataclasses import replace
from pathlib import Path
import tempfile
config = replace(Config.from_environment({}), home=Path(tempfile.mkdtemp()), dense=False)
LazyMemory(config)().close()
"""
    assert {"numpy", "kb.memory"} <= loaded_by(code)


def test_a_whole_conversation_loads_no_model_library() -> None:
    """torch and its like stay out of the server even after it has answered (extras may be installed)."""
    code = """
import asyncio, tempfile
from dataclasses import replace
from pathlib import Path
from mcp import Client
from mcp_server import Config, build_server
config = replace(Config.from_environment(), home=Path(tempfile.mkdtemp()), chroma=None)
async def talk():
    async with Client(build_server(config)) as client:
        result = await client.call_tool("explain_error", {"error_text": "error: Repeat count exceeds the [0:255] range."})
        assert not result.is_error
asyncio.run(talk())
"""
    found = loaded_by(code)
    assert "kb.memory" in found
    assert found.isdisjoint(["torch", "transformers", "sentence_transformers", "chromadb", "onnxruntime"])
