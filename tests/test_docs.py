"""The documents say what is there: every command, tool, variable and host, and nothing that is not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import anyio
import pytest
from mcp import Client

from mcp_server import Config, build_server
from mcp_server.connect import HOSTS, entry, snippet

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = (".py", ".md", ".toml", ".json", ".jsonl", ".mlir", ".sh")
COMMANDS = (
    "explain", "search", "get", "contribute", "outcome", "export", "import", "serve", "setup", "doctor", "corpus", "bench",
    "demo", "connect", "device", "check", "compile", "run", "gate", "job", "predict", "kernel", "harvest",
    "reproduce", "deploy", "generate", "evaluate", "skills",
)  # fmt: skip


def herdbook(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from mcp_server.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments], capture_output=True, text=True, encoding="utf-8", check=False
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_stands_in_the_readme(command: str) -> None:
    done = herdbook(command, "--help")
    assert done.returncode == 0
    assert len(done.stdout) > 200
    assert re.search(rf"herdbook[^\n]*\b{command}\b|`[^`\n]*\b{command}\b[^`\n]*`", README)


def test_the_help_lists_exactly_these_commands() -> None:
    listed = set(re.findall(r"^│ (\w+) ", herdbook("--help").stdout, re.MULTILINE))
    assert listed == set(COMMANDS)


def test_every_tool_stands_in_the_readme(lexical_config: Config) -> None:
    async def names() -> list[str]:
        async with Client(build_server(lexical_config)) as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    for name in anyio.run(names):
        assert f"`{name}`" in README


@pytest.mark.parametrize("host", sorted(HOSTS))
def test_the_readme_shows_what_connect_writes(host: str) -> None:
    """The entry, as data, wherever the host's file format allows comparing."""
    shown = snippet(HOSTS[host], entry(HOSTS[host], command="herdbook"))
    if host == "codex":
        blocks = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", README, re.DOTALL)]
        assert tomllib.loads(shown) in blocks
    else:
        blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", README, re.DOTALL)]
        assert json.loads(shown) in blocks


def test_the_tree_in_the_readme_names_every_module() -> None:
    for path in (ROOT / "kb").glob("*.py"):
        if path.name not in ("__init__.py", "errors.py"):
            assert path.name in README, path.name


def test_no_text_names_a_machine_path_or_a_registry_host() -> None:
    texts = list(ROOT.glob("*.md"))
    for folder in ("kb", "npu_tools", "mcp_server", "harvest", "kernels", "docs", "tests"):
        texts += [path for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS and "corpus" not in path.parts]
    for path in texts:
        if path == Path(__file__).resolve():
            continue
        # The questions under data/ quote logs, in which people build in /tmp/x/.
        scratch = "" if "data" in path.parts else r"/tmp/\w/|"
        machine = rf"{scratch}/root/\w|(?<![\w.])/work/\w|pypi\.org|registry\.npmjs\.org|deb\.debian\.org"
        found = re.search(machine, path.read_text(encoding="utf-8", errors="replace"))
        assert found is None, f"{path}: {found}"
