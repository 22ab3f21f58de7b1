"""Skills over MCP: an index and a file each as resources, a prompt that starts one; `search` and `get` find them as tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError

SKILL_FOLDERS = {
    "claude-code": ".claude/skills",
    "codex": ".agents/skills",
    "cursor": ".cursor/skills",
    "vscode": ".agents/skills",
    "gemini": ".agents/skills",
}
"""Agent → where it looks for skills, below a project or the home folder. Claude Code's and Cursor's own; the folder that
Codex CLI, Gemini CLI and others share (google-gemini/gemini-cli docs/cli/skills.md, 2026)."""


def add_skills(server: MCPServer[Any], folder: Path) -> None:
    """Serve the skills in `folder`."""

    @server.resource("skill://index.json", title="Skills", mime_type="application/json")
    def index() -> str:
        """Every skill with its description and the digest of its file."""
        return json.dumps({"skills": [entry(path) for path in files(folder)]}, indent=1, ensure_ascii=False)

    @server.resource("skill://{name}/SKILL.md", title="A skill", mime_type="text/markdown")
    def skill(name: str) -> str:
        """One skill: how to do one part of a deployment."""
        return text_of(folder, name)

    @server.prompt(title="Follow a skill")
    def follow_skill(name: str, task: str = "") -> str:
        """Have the agent do one part of a deployment as its skill says: deploy-new-llm, phase-1-kernel-validation, …"""
        try:
            text = text_of(folder, name)
        except ResourceNotFoundError as error:
            raise ValueError(str(error)) from None
        return f"Do this as the skill below says, with Herdbook's tools.\n\n{task}\n\n{text}"


def files(folder: Path) -> list[Path]:
    """The skills' files."""
    from kb.skills import skill_files

    return skill_files(folder)


def entry(path: Path) -> dict[str, Any]:
    """A skill in an index: name, description, where to read it, SHA-256 of the file."""
    from kb.skills import digest_of, read_skill

    skill = read_skill(path)
    return {
        "name": skill.id,
        "description": skill.description,
        "aliases": skill.aliases,
        "phase": skill.phases[0] if skill.phases else None,
        "uri": f"skill://{skill.id}/SKILL.md",
        "sha256": digest_of(path),
    }


def text_of(folder: Path, name: str) -> str:
    """The file of the skill called `name`, or known by that alias.

    Raises:
        ResourceNotFoundError: there is none; the text names those there are.
    """
    from kb.skills import read_skill

    known = files(folder)
    for path in known:
        if path.parent.name == name or name in read_skill(path).aliases:
            return path.read_text(encoding="utf-8")
    names = ", ".join(path.parent.name for path in known)
    raise ResourceNotFoundError(f"no skill {name[:80]!r}; there are {names}")
