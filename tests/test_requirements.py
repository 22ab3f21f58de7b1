"""The table of promises and the tests agree, both ways."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import anyio
import pytest
from mcp import Client

from mcp_server import Config, build_server

TESTS = Path(__file__).resolve().parent
SOURCES = {"packaging", "memory", "mcp_server", "npu_tools", "surfaces", "protocol"}

_spec = importlib.util.spec_from_file_location("herdbook_requirements", TESTS / "requirements.py")
assert _spec is not None
assert _spec.loader is not None
requirements = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = requirements
_spec.loader.exec_module(requirements)


def functions_of(file: Path) -> set[str]:
    """The test functions of a file, by reading it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def missing(rows: tuple[object, ...]) -> list[str]:
    """Rows whose test does not exist."""
    found: list[str] = []
    for row in rows:
        file, _, name = row.test.partition("::")  # type: ignore[attr-defined]
        if not (TESTS / file).is_file() or name not in functions_of(TESTS / file):
            found.append(row.test)  # type: ignore[attr-defined]
    return found


def test_every_promise_has_a_test() -> None:
    assert missing(requirements.REQUIREMENTS) == []


@pytest.mark.parametrize("test", ["mcp_server/test_tools.py::test_gone", "mcp_server/test_gone.py::test_x"])
def test_a_promise_without_a_test_is_seen(test: str) -> None:
    """Guards the guard above."""
    assert missing((requirements.Requirement("a", "memory", test),)) == [test]


def test_every_test_of_the_tools_stands_for_a_promise() -> None:
    """The other way: a test of the tools that no row names is a promise nobody wrote down."""
    file = "mcp_server/test_tools.py"
    named = {row.test for row in requirements.REQUIREMENTS}
    assert {f"{file}::{name}" for name in functions_of(TESTS / file)} <= named


def test_rows_are_whole_and_said_once() -> None:
    rows = requirements.REQUIREMENTS
    assert all(row.behaviour and row.source in SOURCES for row in rows)
    assert len({row.behaviour for row in rows}) == len({row.test for row in rows}) == len(rows)


def test_every_tool_stands_in_the_table(lexical_config: Config) -> None:
    async def names() -> list[str]:
        async with Client(build_server(lexical_config)) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    first = requirements.REQUIREMENTS[0].behaviour
    for name in anyio.run(names):
        assert name in first
