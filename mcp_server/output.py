"""How answers look on a terminal; with `--json`, how they are printed as data."""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from mcp_server.replies import ExplainReply, LessonReply, RecordReply, SearchReply

# Piped output is for programs and files: no line of it is broken.
console = Console(highlight=False, width=None if sys.stdout.isatty() else 10_000)
_errors = Console(stderr=True, highlight=False)


def emit(data: dict[str, Any], as_json: bool) -> bool:
    """Print `data` as one JSON object when asked to; says whether it did."""
    if as_json:
        sys.stdout.write(json.dumps(data, ensure_ascii=False, indent=2, default=str) + "\n")
    return as_json


def say(data: dict[str, Any], as_json: bool, text: str) -> None:
    """`data` as JSON when asked to, else the one line `text`."""
    if not emit(data, as_json):
        console.print(text, markup=False, soft_wrap=True)


def fail(message: str, *, as_json: bool = False) -> NoReturn:
    """Say what is wrong and what to do, and leave with 2."""
    if as_json:
        sys.stdout.write(json.dumps({"error": message}, ensure_ascii=False) + "\n")
    _errors.print(f"[bold red]herdbook:[/] {escape(message)}", soft_wrap=True)
    sys.exit(2)


def columns(*headings: str) -> Table:
    """An empty table with these headings, without lines, as every listing here is shown."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def show_explain(reply: ExplainReply) -> None:
    """An explanation for a person."""
    for warning in reply.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}")
    if reply.no_match:
        console.print(Panel(escape(reply.summary), style="yellow", expand=False))
        if reply.signature:
            console.print("searched for: " + escape(" | ".join(reply.signature[:2])), style="dim")
        if reply.nearest:
            console.print("nearest records (about [bold]other[/] failures):")
            console.print(_table(reply.nearest))
    else:
        _lesson_panel(reply.lessons[0])
        if len(reply.lessons) > 1:
            console.print("also possible:")
            console.print(_table(reply.lessons[1:]))
    console.print(escape(reply.next_step), style="dim")


def _lesson_panel(lesson: LessonReply) -> None:
    body: list[str] = []
    body += [f"[yellow]{escape(caution)}[/]" for caution in lesson.cautions]
    for name in ("symptom", "cause", "fix", "verify", "did_not_help"):
        text = getattr(lesson, name)
        if text:
            body.append(f"[bold cyan]{name.replace('_', ' ')}[/]\n{escape(text)}")
    facts = [lesson.applies_to, lesson.status, "; ".join(lesson.sources)]
    body.append("[dim]" + escape(" · ".join(fact for fact in facts if fact)) + "[/]")
    title = f"[bold]{escape(lesson.title)}[/]"
    where = f"{lesson.id} · confidence {lesson.confidence:.2f} · {', '.join(lesson.matched_on)}"
    console.print(
        Panel("\n\n".join(body), title=title, subtitle=escape(where), border_style="green", title_align="left")
    )


def _table(lessons: list[LessonReply]) -> Table:
    table = columns("id", "confidence", "title")
    for lesson in lessons:
        table.add_row(escape(lesson.id), f"{lesson.confidence:.2f}", escape(lesson.title))
    return table


def show_search(reply: SearchReply) -> None:
    """Search hits for a person."""
    for warning in reply.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}")
    if not reply.hits:
        console.print("nothing fits; drop a filter or use other words")
        return
    if reply.no_match:
        console.print("no close match; the nearest records:", style="yellow")
    table = columns("id", "kind", "status", "confidence", "title")
    for hit in reply.hits:
        table.add_row(escape(hit.id), hit.kind, hit.status, f"{hit.confidence:.2f}", escape(hit.title))
    console.print(table)


def show_record(reply: RecordReply, events: list[dict[str, str]]) -> None:
    """A record for a person."""
    for caution in reply.cautions:
        console.print(caution, style="yellow", markup=False)
    console.print(reply.markdown, markup=False, soft_wrap=True)
    console.print(f"helped {reply.helped}, did not {reply.did_not}, seen {reply.seen}", style="dim")
    for event in events:
        console.print(f"{event['at']} {event['type']}", style="dim")
