"""`herdbook skills`: list them, show one, install them for an agent, check that prompts bring up the right one."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mcp_server.output import columns, console, emit, fail

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]

skills_app = typer.Typer(help="The skills: how each part of a deployment is done.", no_args_is_help=True)


@skills_app.command("list")
def list_skills(as_json: JsonFlag = False) -> None:
    """Every skill with its phase and other names."""
    from mcp_server.skills import entry, files

    entries = [entry(path) for path in files(_folder())]
    if not emit({"skills": entries}, as_json):
        table = columns("skill", "phase", "also known as", "what for")
        for one in entries:
            purpose = one["description"].split(". ")[0].split(": ", 1)[-1]
            table.add_row(one["name"], one["phase"] or "any", ", ".join(one["aliases"]), purpose[:110])
        console.print(table)


@skills_app.command("show")
def show_skill(
    name: Annotated[str, typer.Argument(help="Its name, or another it goes by.")], as_json: JsonFlag = False
) -> None:
    """The text of one skill."""
    from mcp.server.mcpserver.exceptions import ResourceNotFoundError

    from mcp_server.skills import text_of

    try:
        text = text_of(_folder(), name)
    except ResourceNotFoundError as error:
        fail(str(error), as_json=as_json)
    if not emit({"name": name, "markdown": text}, as_json):
        console.print(text, markup=False, highlight=False)


@skills_app.command("install")
def install_skills(
    host: Annotated[str | None, typer.Argument(help="claude-code, codex, cursor, vscode or gemini.")] = None,
    to: Annotated[Path | None, typer.Option(help="Another folder to put them in.")] = None,
    user: Annotated[bool, typer.Option("--user", help="For all your projects (below your home folder).")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this skill; repeatable.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Copy the skills into an agent's skills folder, here or for all projects. A changed SKILL.md is kept as SKILL.md.bak."""
    from kb.skills import install
    from mcp_server.skills import SKILL_FOLDERS

    if (host is None) == (to is None):
        fail(f"name an agent ({', '.join(SKILL_FOLDERS)}) or --to FOLDER", as_json=as_json)
    if host is not None and host not in SKILL_FOLDERS:
        fail(f"{host!r} is not one of {', '.join(SKILL_FOLDERS)}; --to FOLDER takes any folder", as_json=as_json)
    place = to if to is not None else (Path.home() if user else Path.cwd()) / SKILL_FOLDERS[host or ""]
    done = install(_folder(), place.expanduser(), only)
    counts = {action: sum(one.action == action for one in done) for action in ("new", "changed", "same")}
    if not emit({"folder": str(place), **counts, "skills": [asdict(one) for one in done]}, as_json):
        said = ", ".join(f"{count} {action}" for action, count in counts.items() if count)
        console.print(f"{place}: {said}", markup=False)


@skills_app.command("check")
def check_skills(as_json: JsonFlag = False) -> None:
    """Read every skill, and ask the memory each trigger prompt: the right skill first, or none."""
    from kb.filters import Filters
    from kb.skills import read_triggers, score_triggers
    from mcp_server.cli import open_memory

    memory = open_memory()

    def ask(prompt: str) -> tuple[str | None, float]:
        answer = memory.search(prompt, Filters(kinds=("skill",)), 1)
        return (None if answer.no_match else answer.hits[0].record.id), answer.confidence

    scored = score_triggers(read_triggers(_folder()), ask)
    missed = [one for one in scored if not one.right]
    data: dict[str, Any] = {
        "prompts": len(scored),
        "right": len(scored) - len(missed),
        "missed": [{**asdict(one.trigger), "first": one.first, "confidence": one.confidence} for one in missed],
        "dense": memory.encoder() is not None,
    }
    if not emit(data, as_json):
        console.print(f"{data['right']} of {data['prompts']} prompts bring up the right skill, or none")
        for one in missed:
            wish = "must" if one.trigger.wanted else "must not"
            console.print(
                f"  {one.trigger.prompt!r} {wish} bring up {one.trigger.skill}; first: {one.first}", markup=False
            )
    if missed:
        raise typer.Exit(1)


def _folder() -> Path:
    from mcp_server.config import Config

    return Config.from_environment().skills
