"""`herdbook harvest`: what a deployment learnt, into the memory; what stands of it; taking it back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape

from mcp_server.output import columns, console, emit, fail, say

if TYPE_CHECKING:
    from harvest import Plan

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


def register(app: typer.Typer) -> None:
    """Add the command to the `herdbook` command."""
    app.command()(harvest)


def harvest(
    folder: Annotated[Path | None, typer.Argument(help="A workspace, a checkout with notes, or one file.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Apply without asking; conflicts of notes with reviewed lessons wait.")
    ] = False,
    minimum: Annotated[
        str, typer.Option(help="With --yes, the least status taken in: observed or reproduced.")
    ] = "observed",
    conflicts: Annotated[
        bool, typer.Option("--conflicts", help="Take in conflicts with reviewed lessons too.")
    ] = False,
    answers: Annotated[
        Path | None, typer.Option(help='JSON of what was asked for: {"ID or evidence": {"cause": "…"}}.')
    ] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show every record as it would be written.")] = False,
    status: Annotated[bool, typer.Option("--status", help="What was harvested so far.")] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Take the latest harvest back, or the one named by --id.")
    ] = False,
    harvest_id: Annotated[str | None, typer.Option("--id", help="With --undo: which harvest.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Lessons, steps and verified shapes out of ledgers, jobs, logs, notes and transcripts. A plan first; nothing is guessed."""
    import harvest as h
    from mcp_server.cli import open_memory

    memory = open_memory()
    if status:
        _status(h.status(memory), as_json)
        return
    if undo:
        done = h.undo(memory, harvest_id)
        data = {"undone": done.id, "withdrawn": list(done.withdrawn), "changed": list(done.changed)}
        say(
            data,
            as_json,
            f"{done.id} is taken back: {len(done.withdrawn)} records withdrawn, {len(done.changed)} changed",
        )
        return
    if folder is None:
        fail("name the folder to harvest, or use --status or --undo", as_json=as_json)
    if minimum not in ("observed", "reproduced"):
        fail(f"--minimum {minimum!r}: observed or reproduced", as_json=as_json)
    plan = h.plan_harvest(memory, folder, answers=_answers(answers, as_json), minimum=minimum)
    if not as_json:
        _show(plan, diff)
    todo = any(
        item.action in ("new", "conflict") or item.record != item.before
        for item in plan.items
        if item.action != "refused"
    )
    agreed = yes or (todo and not as_json and sys.stdin.isatty() and typer.confirm("Take these in?"))
    applied = h.apply_plan(memory, plan, approve_conflicts=conflicts) if agreed else None
    data = plan.counts() | {
        "records": plan.record_ids() if applied is None else [n for n in plan.record_ids() if n not in applied.waiting],
        "applied": applied is not None, "harvest": applied.id if applied is not None else None,
        "waiting": list(applied.waiting) if applied is not None else [],
        "items": [item.as_dict() for item in plan.items],
    }  # fmt: skip
    if diff:
        data["diff"] = plan.diff()
    if not emit(data, as_json):
        if applied is None:
            console.print("nothing was written; --yes takes these in" if todo else "nothing new", style="dim")
        elif applied.id is None:
            console.print("nothing new: nothing was written")
        else:
            console.print(
                f"[green]{applied.id}[/]: {len(applied.added)} added, {len(applied.changed)} changed; 'herdbook harvest --undo' takes it back"
            )
            for name in applied.waiting:
                console.print(f"waits for --conflicts: {name}", style="yellow", markup=False)


def _answers(path: Path | None, as_json: bool) -> dict[str, dict[str, str]]:
    if path is None:
        return {}
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{path} cannot be read: {error}", as_json=as_json)
    if not isinstance(data, dict) or not all(isinstance(v, dict) for v in cast("dict[str, Any]", data).values()):
        fail(f'{path}: write {{"ID or evidence": {{"cause": "…", "fix": "…"}}}}', as_json=as_json)
    return cast("dict[str, dict[str, str]]", data)


def _show(plan: Plan, diff: bool) -> None:
    if diff:
        console.print(plan.diff(), markup=False, soft_wrap=True)
    table = columns("", "kind", "title", "why")
    colours = {"new": "green", "seen": "dim", "conflict": "yellow", "refused": "red"}
    for item in plan.items:
        if item.action == "seen" and item.record == item.before:
            continue
        lacks = f"; not stated: {', '.join(item.needs)}" if item.needs else ""
        table.add_row(
            f"[{colours[item.action]}]{item.action}[/]",
            item.kind,
            escape(item.title[:90]),
            escape(item.why[:140] + lacks),
        )
    console.print(table)
    console.print(", ".join(f"{count} {name}" for name, count in plan.counts().items()))


def _status(stand: Any, as_json: bool) -> None:
    data = {"harvests": list(stand.harvests), "records": list(stand.records), "incomplete": list(stand.incomplete)}
    if emit(data, as_json):
        return
    for one in stand.harvests:
        console.print(f"{one['at']}  {one['id']}  of {one['of']}: {one['candidates']} candidates", markup=False)
    console.print(f"{len(stand.records)} records; {len(stand.incomplete)} without a stated cause")
