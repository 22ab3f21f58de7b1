"""The `herdbook` command. Same words as the MCP tools; `--json` prints one object and nothing else.

Exit codes: 0 done, 1 the answer is "no" (no known match, a failed check), 2 unusable input or set-up.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from mcp_server.filtering import COMPONENT, DEVICE, KERNEL, MODEL, PHASE, filters_of
from mcp_server.output import console, emit, fail, say, show_explain, show_record, show_search

if TYPE_CHECKING:
    from kb import Filters, Memory

app = typer.Typer(
    name="herdbook",
    help="Memory for deploying LLMs on AMD XDNA NPUs: paste an error, get the lesson that solves it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with 'herdbook demo'. Connect an agent with 'herdbook connect HOST'.",
)

_PARSER_ERROR: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""What the option parser raises: typer's own class or click's, by typer's version."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
DeviceOption = Annotated[str | None, typer.Option(help=DEVICE)]
ComponentOption = Annotated[str | None, typer.Option(help=COMPONENT)]
PhaseOption = Annotated[str | None, typer.Option(help=f"{PHASE}.")]
KernelOption = Annotated[str | None, typer.Option(help=KERNEL)]
ModelOption = Annotated[str | None, typer.Option(help=MODEL)]
VersionOption = Annotated[
    list[str] | None, typer.Option("--version", metavar="PACKAGE=VERSION", help="An installed version; repeatable.")
]
StatusOption = Annotated[str | None, typer.Option(help="documented, observed, reproduced, superseded or disputed.")]


def main() -> NoReturn:
    """Run the command line (`mcp_server.start` comes before it)."""
    from mcp_server import cli_bench, cli_deploy, cli_evaluate, cli_models, cli_npu, cli_skills, cli_upkeep

    cli_npu.register(app)
    cli_deploy.register(app)
    cli_models.register(app)
    cli_upkeep.register(app)
    app.add_typer(cli_skills.skills_app, name="skills")
    cli_bench.register()
    cli_evaluate.register(app)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="replace")  # pyright: ignore
    from kb import KbError
    from npu_tools.errors import NpuToolsError

    as_json = "--json" in sys.argv
    try:
        code = app(standalone_mode=not as_json)
    except _PARSER_ERROR as error:
        fail(cast("Any", error).format_message() or "no command given; see herdbook --help", as_json=True)
    except (KbError, NpuToolsError) as error:
        fail(str(error), as_json=as_json)
    except BrokenPipeError:
        sys.exit(0)
    except (KeyboardInterrupt, typer.Abort):
        print("herdbook: stopped", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def open_memory() -> Memory:
    """The memory of this environment."""
    from kb import open_memory as opened
    from mcp_server.config import Config

    try:
        return opened(Config.from_environment().memory())
    except ValueError as error:
        fail(str(error), as_json="--json" in sys.argv)


def read_versions(versions: list[str] | None) -> dict[str, str]:
    """Package → version as --version gave them; exits with 2 for an unusable one."""
    pairs = [item.partition("=") for item in versions or []]
    bad = [name for name, sign, value in pairs if not (sign and name and value)]
    if bad:
        fail(
            f"--version {bad[0]!r}: write PACKAGE=VERSION, as in llvm-aie=22.0.0.2026081201",
            as_json="--json" in sys.argv,
        )
    return {name: value for name, _, value in pairs}


@app.command()
def explain(
    file: Annotated[str | None, typer.Argument(help="A log file; '-' or nothing reads standard input.")] = None,
    batch: Annotated[Path | None, typer.Option(help="A JSONL file of {id, query}; answers go to --out.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where --batch writes its JSONL.")] = None,
    device: DeviceOption = None,
    component: ComponentOption = None,
    phase: PhaseOption = None,
    kernel: KernelOption = None,
    model: ModelOption = None,
    versions: VersionOption = None,
    limit: Annotated[int, typer.Option(min=1, max=10, help="Lessons to show.")] = 3,
    full: Annotated[bool, typer.Option(help="Show every lesson whole.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """The lesson that explains a failure: give it the raw log (make 2>&1 | herdbook explain)."""
    from mcp_server.replies import explain_reply

    chosen = filters_of(device, component, phase, kernel, model, read_versions(versions))
    if batch is not None or out is not None:
        if batch is None or out is None:
            fail("--batch CASES.jsonl and --out RESULTS.jsonl go together", as_json=as_json)
        _batch(batch, out, chosen, as_json)
        return
    text = read_text(file, as_json)
    answer = open_memory().explain(text, chosen, limit)
    reply = explain_reply(answer, "full" if full else "concise")
    if not emit(reply.model_dump(), as_json):
        show_explain(reply)
    if reply.no_match:
        raise typer.Exit(1)


@app.command()
def search(
    query: Annotated[list[str], typer.Argument(help="Words, names, a shape.")],
    kind: Annotated[
        str | None, typer.Option(help="lesson, kernel_note, kernel_row, trajectory, model_row, dispute or skill.")
    ] = None,
    device: DeviceOption = None,
    component: ComponentOption = None,
    phase: PhaseOption = None,
    kernel: KernelOption = None,
    model: ModelOption = None,
    status: StatusOption = None,
    versions: VersionOption = None,
    limit: Annotated[int, typer.Option(min=1, max=50)] = 8,
    as_json: JsonFlag = False,
) -> None:
    """Find records of any kind; 'herdbook get ID' shows one whole."""
    from kb.records import KINDS
    from mcp_server.replies import SearchReply, brief_reply

    if kind is not None and kind not in KINDS:
        fail(f"--kind {kind!r} is not one of {', '.join(KINDS)}", as_json=as_json)
    chosen = filters_of(device, component, phase, kernel, model, read_versions(versions), status, kind)
    answer = open_memory().search(" ".join(query), chosen, limit)
    reply = SearchReply(
        no_match=answer.no_match,
        hits=[brief_reply(hit) for hit in answer.hits],
        next_step="herdbook get ID shows a whole record.",
        warnings=list(answer.warnings),
    )
    if not emit(reply.model_dump(), as_json):
        show_search(reply)
    if not reply.hits:
        raise typer.Exit(1)


@app.command()
def get(
    record_id: Annotated[str, typer.Argument(metavar="ID")],
    history: Annotated[bool, typer.Option(help="Show what happened to it in this home too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """One whole record, with its sources and standing."""
    from mcp_server.replies import record_reply

    memory = open_memory()
    hit = memory.get(record_id)
    reply = record_reply(hit, "full")
    events = [{"at": e.at, "type": e.type} for e in memory.history(record_id)] if history else []
    data = (
        reply.model_dump() | {"record": hit.record.model_dump(mode="json")} | ({"history": events} if history else {})
    )
    if not emit(data, as_json):
        show_record(reply, events)


@app.command()
def contribute(
    file: Annotated[
        str | None,
        typer.Argument(help="A record file or a JSON object of its fields; '-' reads stdin; nothing opens $EDITOR."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Store what was learnt. Secrets, home paths, hosts and addresses are taken out first."""
    from mcp_server.config import Config
    from mcp_server.server import contribute_reply

    draft = _draft(_edited(as_json) if file is None and sys.stdin.isatty() else read_text(file, as_json), as_json)
    reply = contribute_reply(open_memory().contribute(draft, Config.from_environment().client or "cli"))
    if not emit(reply.model_dump(), as_json):
        console.print(
            f"[bold green]{reply.action}[/] {reply.id}" + (f" (seen {reply.seen} times)" if reply.seen > 1 else "")
        )
        if reply.redacted:
            console.print("taken out: " + ", ".join(f"{count} × {kind}" for kind, count in reply.redacted.items()))
        for caution in reply.cautions:
            console.print(caution, style="yellow", markup=False)
        if reply.conflicts_with:
            console.print("says otherwise than: " + ", ".join(reply.conflicts_with), style="yellow")
        console.print(reply.next_step)


@app.command()
def outcome(
    record_id: Annotated[str, typer.Argument(metavar="ID")],
    helped: Annotated[bool, typer.Option("--helped/--did-not-help", help="Whether its fix solved the problem.")],
    note: Annotated[str, typer.Option(help="What happened, briefly.")] = "",
    versions: VersionOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Say whether a lesson's fix worked; lessons that stop helping sink."""
    import time

    from mcp_server.config import Config

    client = f"{Config.from_environment().client or 'cli'}/{time.strftime('%Y-%m-%d', time.gmtime())}"
    yes, no = open_memory().report_outcome(record_id, helped, note, client, read_versions(versions))
    say({"id": record_id, "helped": yes, "did_not": no}, as_json, f"{record_id}: helped {yes}, did not {no}")


@app.command(name="export")
def export_command(
    target: Annotated[Path, typer.Argument(help="A new folder, or a file ending in .tar.gz.")],
    record_ids: Annotated[list[str] | None, typer.Option("--id", help="Only this record; repeatable.")] = None,
    new: Annotated[
        bool,
        typer.Option(
            "--new", help="Only what is new since the last such export, for a pull request; TARGET may be a checkout."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write the user records as corpus files, ready for a pull request or another home."""
    from kb.exchange import export

    memory = open_memory()
    if new:
        from harvest.sharing import export_new

        shared = export_new(memory, target)
        data = {
            "target": str(target),
            "records": list(shared.written),
            "left_out": [list(pair) for pair in shared.left_out],
        }
        say(data, as_json, f"{len(shared.written)} new records written to {target}, {len(shared.left_out)} left out")
        return
    for name in record_ids or []:
        memory.get(name)
    try:
        ids = export(memory, target, record_ids)
    except OSError as error:
        fail(f"{target} cannot be written: {error.strerror}; choose another target", as_json=as_json)
    say({"target": str(target), "records": ids}, as_json, f"{len(ids)} records written to {target}")


@app.command(name="import")
def import_command(
    source: Annotated[Path, typer.Argument(help="An exported folder, .tar, .tar.gz, .zip, or a git directory.")],
    reviewed: Annotated[
        bool,
        typer.Option("--reviewed", help="You vouch for them: they rank like the shipped corpus and are not quoted."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Take in exported records. Everything is checked first; nothing already stored is changed."""
    from harvest.sharing import import_shared

    report = import_shared(open_memory(), source, reviewed)
    data = {
        "new": list(report.new), "seen": list(report.seen), "renamed": [list(pair) for pair in report.renamed],
        "refused": list(report.refused), "votes": report.votes, "redacted": dict(report.redacted),
    }  # fmt: skip
    if not emit(data, as_json):
        console.print(f"[green]{len(report.new)} new[/], {len(report.seen)} already here, {report.votes} votes")
        if report.redacted:
            console.print("taken out: " + ", ".join(f"{count} × {kind}" for kind, count in report.redacted.items()))
        for old, name in report.renamed:
            console.print(f"{old} is taken here by another text: stored as {name}", markup=False)
        for line in report.refused:
            console.print(f"refused: {line}", style="red", markup=False)
    if report.refused:
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, add_help_option=False)
def serve(context: typer.Context) -> None:
    """Serve MCP clients on stdio, or over HTTP with --http (herdbook serve --help)."""
    from mcp_server.serve import main as serve_main

    raise typer.Exit(serve_main(context.args))


def read_text(file: str | None, as_json: bool) -> str:
    """The text of a file or of standard input; any bytes are taken."""
    if file is None or file == "-":
        if sys.stdin.isatty():
            fail("give a file, or pipe a log in: make 2>&1 | herdbook explain", as_json=as_json)
        return sys.stdin.buffer.read().decode("utf-8", "replace")
    try:
        return Path(file).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        fail(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}", as_json=as_json)


def _batch(batch: Path, out: Path, chosen: Filters, as_json: bool) -> None:
    """Answer every case of a JSONL file; `text` is the whole lesson as an agent reads it."""
    from rich.progress import track

    from mcp_server.batch import answers, read_cases

    memory = open_memory()
    cases = read_cases(batch)
    steps = answers(memory, cases, chosen)
    if sys.stderr.isatty() and not as_json:
        steps = track(steps, "explaining", total=len(cases), console=console)
    part = out.with_name(out.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for line in steps:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        part.replace(out)
    except OSError as error:
        fail(f"{out} cannot be written: {error.strerror}", as_json=as_json)
    say({"cases": len(cases), "out": str(out)}, as_json, f"{len(cases)} cases answered in {out}")


def _draft(text: str, as_json: bool) -> dict[str, Any]:
    """The fields of a contribution given as a record file or as JSON."""
    if text.lstrip().startswith("{"):
        try:
            data: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            fail(f"the JSON cannot be read: {error}", as_json=as_json)
        if not isinstance(data, dict):
            fail("give one JSON object with title, symptom, cause and fix", as_json=as_json)
        return {str(key): value for key, value in cast("dict[Any, Any]", data).items()}
    from kb.files import parse_fields

    fields = parse_fields(text, "the lesson")
    return {key: value for key, value in fields.items() if key not in ("status", "schema_version")}


TEMPLATE = """\
---
kind: lesson
id: name-it-like-this
title: What goes wrong and why, concretely
components: []
devices: []
phases: []
category: process
provenance:
- evidence: where you saw it
  date: {today}
---

## Symptom
What was seen.

```
the verbatim diagnostic lines
```

## Also seen as
- how someone who does not know the cause would describe it

## Cause

## Fix
1.

## Verify

## Did not help
"""


def _edited(as_json: bool) -> str:
    """What the user wrote in $VISUAL or $EDITOR, from a template; unchanged means they changed their mind."""
    import shlex
    import subprocess
    import tempfile
    from datetime import date

    from mcp_server.config import editor

    template = TEMPLATE.format(today=date.today())
    with tempfile.TemporaryDirectory(prefix="herdbook-") as folder:
        file = Path(folder) / "lesson.md"
        file.write_text(template, encoding="utf-8")
        command = [*shlex.split(editor()), str(file)]
        try:
            done = subprocess.run(command, check=False)  # noqa: S603  (the user's own editor)
        except OSError as error:
            fail(
                f"the editor {command[0]!r} cannot be started ({error.strerror}); set EDITOR, or give a file",
                as_json=as_json,
            )
        text = file.read_text(encoding="utf-8", errors="replace")
    if done.returncode != 0 or text.strip() == template.strip():
        fail("nothing was written, nothing was stored", as_json=as_json)
    return text
