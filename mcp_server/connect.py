"""`herdbook connect HOST`: add Herdbook to an agent's MCP configuration, keeping the rest of the file.

JSON files are edited as data when they are plain JSON; a file with comments is never rewritten, the
snippet is shown instead. TOML is edited in place with its comments.
"""

from __future__ import annotations

import difflib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast


class ConnectRefused(ValueError):
    """The host's file was not touched; the text says what to do by hand."""


@dataclass(frozen=True, slots=True)
class Host:
    """One agent: where its configuration lives and how an entry looks in it."""

    name: str
    title: str
    path: Callable[[Path, Path], Path]
    key: str
    extra: dict[str, Any]
    note: str = ""


HOSTS = {
    host.name: host
    for host in (
        Host("claude-code", "Claude Code", lambda _home, cwd: cwd / ".mcp.json", "mcpServers", {"type": "stdio"},
             "project scope; `claude mcp add --scope user herdbook -- herdbook serve` does it for all projects"),
        Host("codex", "Codex CLI", lambda home, _cwd: home / ".codex" / "config.toml", "mcp_servers",
             {"startup_timeout_sec": 20}),
        Host("cursor", "Cursor", lambda home, _cwd: home / ".cursor" / "mcp.json", "mcpServers", {}),
        Host("vscode", "VS Code", lambda _home, cwd: cwd / ".vscode" / "mcp.json", "servers", {"type": "stdio"}),
        Host("gemini", "Gemini CLI", lambda home, _cwd: home / ".gemini" / "settings.json", "mcpServers", {}),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """A planned edit: the file, its text before and after."""

    path: Path
    before: str
    after: str

    def diff(self) -> str:
        """The change as a unified diff; empty when there is none."""
        return "".join(
            difflib.unified_diff(
                self.before.splitlines(keepends=True),
                self.after.splitlines(keepends=True),
                str(self.path),
                str(self.path),
            )
        )


def entry(host: Host, command: str | None = None, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """The server entry for `host`."""
    found = {**host.extra, "command": command or command_path(), "args": ["serve"]}
    if environment:
        found["env"] = dict(environment)
    return found


def command_path() -> str:
    """The `herdbook` an agent can start: by its full path, since agents do not know this environment's PATH."""
    beside = Path(sys.executable).with_name("herdbook.exe" if sys.platform == "win32" else "herdbook")
    return str(beside) if beside.exists() else shutil.which("herdbook") or "herdbook"


def plan(host: Host, path: Path, item: dict[str, Any]) -> Change:
    """The edit that adds `item` under the host's key, keeping everything else.

    Raises:
        ConnectRefused: the file is not something that can be edited safely.
    """
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectRefused(f"{path} cannot be read ({error}); add this by hand:\n{snippet(host, item)}") from None
    after = _toml(host, path, before, item) if path.suffix == ".toml" else _json(host, path, before, item)
    return Change(path, before, after)


def apply(change: Change) -> Path | None:
    """Write the change, keeping a copy of the old file beside it; returns the copy's path."""
    backup = None
    change.path.parent.mkdir(parents=True, exist_ok=True)
    if change.path.exists():
        backup = _free(change.path.with_name(change.path.name + ".herdbook-backup"))
        shutil.copy2(change.path, backup)
    part = change.path.with_name(change.path.name + ".herdbook-part")
    part.write_text(change.after, encoding="utf-8", newline="")
    part.replace(change.path)
    return backup


def _free(path: Path) -> Path:
    """`path`, or with a number behind it: the first copy of a file is never written over."""
    numbered = (path.with_name(f"{path.name}{number}") for number in range(2, 1000))
    return next((name for name in (path, *numbered) if not name.exists()), path)


def _kept(old: Any, item: dict[str, Any]) -> dict[str, Any]:
    """`item` with the environment an earlier entry had, unless it brings its own."""
    environment = cast("dict[str, Any]", old).get("env") if isinstance(old, dict) else None
    return {**item, "env": environment} if environment and "env" not in item else item


def snippet(host: Host, item: dict[str, Any]) -> str:
    """What to paste by hand."""
    if host.name == "codex":
        import tomlkit

        return tomlkit.dumps({host.key: {"herdbook": item}})
    return json.dumps({host.key: {"herdbook": item}}, indent=2)


def _json(host: Host, path: Path, before: str, item: dict[str, Any]) -> str:
    try:
        data: Any = json.loads(before) if before.strip() else {}
    except ValueError as error:
        raise ConnectRefused(
            f"{path} is not plain JSON ({error}), so it is left alone; add this by hand:\n{snippet(host, item)}"
        ) from None
    servers: Any = cast("dict[str, Any]", data).get(host.key, {}) if isinstance(data, dict) else None
    if not isinstance(servers, dict):
        raise ConnectRefused(f"{path} has another shape than expected; add this by hand:\n{snippet(host, item)}")
    others = cast("dict[str, Any]", servers)
    data[host.key] = {**others, "herdbook": _kept(others.get("herdbook"), item)}
    indent: int | str = "\t" if "\n\t" in before else next((n for n in (2, 4) if f'\n{" " * n}"' in before), 2)
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


def _toml(host: Host, path: Path, before: str, item: dict[str, Any]) -> str:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        data = tomlkit.parse(before)
        table = data.setdefault(host.key, tomlkit.table(is_super_table=True))
        table["herdbook"] = _kept(table.get("herdbook"), item)
        return tomlkit.dumps(data)
    except (TOMLKitError, TypeError) as error:
        raise ConnectRefused(
            f"{path} is not TOML that can be edited ({error}); add this by hand:\n{snippet(host, item)}"
        ) from None
