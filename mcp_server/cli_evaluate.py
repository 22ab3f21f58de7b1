"""`herdbook evaluate DIR`: an independent look at a deployment; and `herdbook bench evaluator`, which looks at the looker."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from mcp_server.cli_upkeep import bench_app
from mcp_server.output import columns, console, emit, fail

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


def register(app: typer.Typer) -> None:
    """Add the two commands."""
    app.command("evaluate")(evaluate)
    bench_app.command("evaluator")(bench)


def evaluate(
    workspace: Annotated[Path, typer.Argument(metavar="DIR", help="A deployment's workspace.")],
    effort: Annotated[
        Literal["papers", "quick", "full"],
        typer.Option(help="papers: run nothing; quick: kernels for about a minute; full: every kernel."),
    ] = "quick",
    seed: Annotated[int | None, typer.Option(min=0, help="Of samples and inputs; not to be foreseen without.")] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="The ledger's head as 'herdbook deploy' printed it, from where you kept it."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Whether a deployment is what it claims: gates, recipes, files and times looked through, kernels and model run again.

    A fresh process that believes nothing written before. Writes evaluation_report.md and verdict.json into DIR. Somebody who
    writes the whole folder anew, hashes and all, is found out by --head alone.
    """
    from mcp_server.config import kernels_folder
    from npu_tools.evaluator import run_evaluator

    answer = run_evaluator(workspace.absolute(), kernels=kernels_folder(), seed=seed, effort=effort, head=head)
    if not emit(answer, as_json):
        for reason in answer["reasons"]:
            colour = "red" if reason["severity"] == "error" else "yellow"
            console.print(
                f"[{colour}]{reason['code']}[/] {escape(reason['text'])} [dim]({escape(reason['evidence'])})[/]"
            )
        words = {
            "pass": "[green]pass[/]",
            "pass_with_warnings": "[yellow]pass with warnings[/]",
            "fail": "[red]fail[/]",
        }
        console.print(f"{words[answer['verdict']]}; {escape(str(workspace / 'evaluation_report.md'))} says more")
        if head is None:
            console.print(
                f"ledger head {answer['about']['head']}: keep it elsewhere, and give it next time with --head"
            )
    sys.exit(1 if answer["verdict"] == "fail" else 0)


def bench(
    workspace: Annotated[
        Path | None, typer.Option(help="An honest deployment to plant into; by default a small one is made first.")
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="GLOB", help="Only cases whose name fits; 'honest:*' and 'cheat:*' are the halves.")
    ] = "*",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep the deployment and every result here; what this code already gave is not run again.",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Cheats planted one by one in an honest deployment, and honest differences: what the evaluator says of each.

    Target: every cheat caught with its reason, no honest deployment accused.
    """
    from mcp_server.config import kernels_folder
    from npu_tools.evaluator.bench import measure_evaluator
    from npu_tools.evaluator.kept import Kept

    def each(row: Any) -> None:
        if not as_json:
            mark = "[green]✓[/]" if row.ok else "[red]✗[/]"
            console.print(f"{mark} {row.kind:7} {row.name}: {row.verdict} [dim]{escape(', '.join(row.codes))}[/]")

    with contextlib.ExitStack() as opened:
        if out is None:
            made = tempfile.TemporaryDirectory(prefix="bench-evaluator-", ignore_cleanup_errors=True)
            place = Path(opened.enter_context(made))
        else:
            place = out.absolute()
        try:
            place.mkdir(parents=True, exist_ok=True)
            kept = Kept(place, kernels_folder()) if out is not None else None
            measured = measure_evaluator(place, kernels_folder(), workspace=workspace, only=only, kept=kept, each=each)
        except OSError as error:
            fail(f"{place} cannot be written: {error.strerror or error}", as_json=as_json)
    data = measured.as_dict()
    if not emit(data, as_json):
        table = columns("kind", "case", "wanted", "found", "seconds")
        for row in measured.rows:
            wanted = row.wanted or "no error"
            shown = (wanted, ", ".join(row.codes) or "nothing", f"{row.wall_s:.0f}")
            table.add_row(row.kind, row.name, *(escape(cell) for cell in shown))
        console.print(table)
        console.print(
            f"caught {data['caught']} of {data['cheats']} cheats with the right reason, "
            f"accused {data['accused']} of {data['honest']} honest deployments"
        )
        if data["not_made"]:
            console.print(f"[red]{data['not_made']} honest deployments could not be made[/]")
        if data["left"]:
            console.print(f"[dim]{len(data['left'])} cases have no result yet[/]")
    sys.exit(0 if measured.ok else 1)
