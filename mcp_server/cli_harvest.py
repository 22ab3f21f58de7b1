"""`herdbook harvest`: what a deployment learnt, into the memory; what stands of it; taking it back."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.markup import escape

from mcp_server.output import columns, console, emit, fail, say

if TYPE_CHECKING:
    from harvest import Plan
    from harvest.recall import ExtractionReport
    from harvest.transfer import TransferReport
    from kb import Memory

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


def register(app: typer.Typer) -> None:
    """Add the command to the `herdbook` command, and its bench to `herdbook bench`."""
    from mcp_server.cli_upkeep import bench_app

    app.command()(harvest)
    app.command()(reproduce)
    for name, function in (("transfer", transfer), ("planted", planted), ("hostile", hostile)):
        bench_app.command(name)(function)


def harvest(
    folder: Annotated[Path | None, typer.Argument(help="A workspace, a checkout with notes, or one file.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Apply without asking; conflicts of notes with reviewed lessons wait.")
    ] = False,
    minimum: Annotated[
        str,
        typer.Option(
            help="The least status taken in: observed, or reproduced (cases are run again on the emulator first)."
        ),
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
    from mcp_server.config import kernels_folder

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
    shipped = kernels_folder()
    prove = partial(h.proven, recipes=[shipped]) if minimum == "reproduced" else None
    plan = h.plan_harvest(
        memory, folder, answers=_answers(answers, as_json), minimum=minimum, recipes=shipped, proven=prove
    )
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


def reproduce(
    lesson: Annotated[str, typer.Argument(help="Id of a lesson harvested from a ledger or from jobs.")],
    recipes: Annotated[Path | None, typer.Option(help="Also look here for recipes, before the shipped ones.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a lesson's failing and fixed case again on the emulator; when both end as it says, it is 'reproduced'."""
    import harvest as h
    from mcp_server.cli import open_memory
    from mcp_server.config import kernels_folder

    done = h.reproduce(open_memory(), lesson, [*([recipes] if recipes else []), kernels_folder()])
    if not emit(done.as_dict(), as_json):
        for name, one in (("failing", done.failing), ("fixed", done.fixed)):
            console.print(
                f"{name:8} {'passed' if one.passed else 'failed'} {one.code} {one.reason[:300]}", markup=False
            )
        console.print(
            f"{'[green]reproduced[/]' if done.confirmed else '[yellow]not reproduced[/]'}: {escape(done.why)}"
        )
    if not done.confirmed:
        raise typer.Exit(1)


def transfer(
    folder: Annotated[
        Path, typer.Argument(help="A checkout of tonyjie/mlir-air, branch llm_mapping, or its programming_examples.")
    ],
    dense: Annotated[bool, typer.Option(help="Search by meaning too, where the weights are here.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Upstream's deployments in the order they happened: each one's failures asked of what the earlier ones wrote down.

    Target: at least 0.80 of the failures that repeat are answered at rank 3, beside no memory and beside plain BM25 over
    the raw documents; at least 90 % of the documents' lessons come out, at most 10 % junk. What repeats, and which lessons
    there are, is one person's judgement, with reasons and sources, in harvest/data/.
    """
    from harvest.recall import WANTED_JUNK, WANTED_RECALL, measure_extraction
    from harvest.transfer import WANTED_AT_3, measure_transfer
    from mcp_server.cli_upkeep import progress_bar

    with progress_bar("harvesting", as_json) as step, _empty_memories(dense) as empty:
        report = measure_transfer(folder, empty, step)
        told = measure_extraction(folder, empty)
    targets = [
        ("repeated failures answered at rank 3", f"{report.share(3):.2f}", f">= {WANTED_AT_3:.2f}", report.share(3) >= WANTED_AT_3),
        ("listed lessons that come out", f"{told.found} of {told.listed} ({told.recall:.1%})", f">= {WANTED_RECALL:.0%}", told.recall >= WANTED_RECALL),
        ("lesson records that tell none of them", f"{len(told.junk)} of {told.records} ({told.junk_share:.1%})", f"<= {WANTED_JUNK:.0%}", told.junk_share <= WANTED_JUNK),
        ("a second run adds", str(told.second_run_adds), "0", told.second_run_adds == 0),
        (f"the same store in {told.orders} orders", "yes" if told.same_in_any_order else "no", "yes", told.same_in_any_order),
    ]  # fmt: skip
    data = report.as_dict() | {"extraction": asdict(told), "targets": _as_data(targets)}
    if not emit(data, as_json):
        _show_transfer(report, told)
        _show_targets(targets)
    if not all(ok for *_, ok in targets):
        raise typer.Exit(1)


def planted(
    dense: Annotated[bool, typer.Option(help="Search by meaning too, where the weights are here.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Twenty planted failures of different kinds: the lesson each gives, and its rank when the next model's deployment fails so.

    Every kind is brought about in deployments of two tiny models on the emulator: a setting or a recipe spoilt, the gate
    that fails, the change taken back. Targets: twenty of the machine, each with exactly one right lesson, at rank 1 among
    what was harvested.
    Beside the shipped corpus the rank is told and has no target: a documented lesson may answer first.
    """
    import tempfile

    from harvest.kinds import measure_planted
    from mcp_server.cli_upkeep import progress_bar
    from mcp_server.config import kernels_folder

    with (
        progress_bar("planting", as_json) as step, tempfile.TemporaryDirectory(prefix="herdbook-") as folder,
        _empty_memories(dense) as empty, _shipped_memories(dense) as corpus,
    ):  # fmt: skip
        report = measure_planted(kernels_folder(), Path(folder), empty, corpus, step)
    total = len(report.rows)
    targets = [
        ("made by the machine", f"{report.machine} of {total}", "20 of 20", report.machine == total == 20),
        ("exactly one right lesson", f"{report.right} of {total}", "20 of 20", report.right == total == 20),
        ("first among harvested lessons", f"{report.first} of {total}", "20 of 20", report.first == total == 20),
    ]
    data = report.as_dict() | {"targets": _as_data(targets)}
    if not emit(data, as_json):
        table = columns("planted", "ledger", "lessons", "right", "rank", "beside the corpus", "first there")
        for row in report.rows:
            silent, same = (
                " (no known match)" if row.no_match else "",
                " (the same fix)" if row.documented_answer else "",
            )
            first = "" if row.rank_beside_corpus == 1 else f"{row.first_beside_corpus}{same}"
            ranks = f"{row.rank or '-'}{silent}", str(row.rank_beside_corpus or "-")
            table.add_row(row.code, row.ledger, str(row.lessons), "yes" if row.right else "no", *ranks, escape(first))
        console.print(table)
        console.print(
            f"beside the shipped corpus: {report.first_beside_corpus} first, {report.by_documented} more answered by a "
            f"documented lesson with the same fix, of {total}"
        )
        _show_targets(targets)
    if not all(ok for *_, ok in targets):
        raise typer.Exit(1)


def hostile(as_json: JsonFlag = False) -> None:
    """Two hundred hostile notes, harvested with --yes over the shipped corpus: what was stored, ranked or displaced.

    Secrets of thirty kinds, personal data, orders to agents, harmful and poisoned fixes, giants, binaries, made by rule.
    """
    import tempfile

    from harvest.hostile import measure_hostile

    with tempfile.TemporaryDirectory(prefix="herdbook-") as folder, _shipped_memories(False) as corpus:
        report = measure_hostile(Path(folder), corpus)
    count = sum(report.notes.values())
    targets = [
        ("hostile notes", str(count), "200", count == 200),
        ("records stored", str(report.stored), "0", report.stored == 0),
        ("groups whose marked text is in the database or the plan", str(len(report.marks)), "0", not report.marks),
        ("documented lessons displaced", f"{len(report.displaced)} of {report.documented}", "0", not report.displaced),
        (f"of {report.accepted} poisoned notes let in by --conflicts: first, or unquoted", str(len(report.returned)), "0", not report.returned),
    ]  # fmt: skip
    data = report.as_dict() | {"targets": _as_data(targets)}
    if not emit(data, as_json):
        table = columns("notes", "")
        for group, number in report.notes.items():
            table.add_row(group, str(number))
        console.print(table)
        said = ", ".join(f"{number} {why}" for why, number in report.refused.items())
        console.print(f"refused: {said}; {report.waiting} wait for a person as conflicts", markup=False)
        _show_targets(targets)
    if not all(ok for *_, ok in targets):
        raise typer.Exit(1)


def _as_data(targets: Sequence[tuple[str, str, str, bool]]) -> list[dict[str, Any]]:
    return [dict(zip(("what", "figure", "target", "ok"), one, strict=True)) for one in targets]


def _show_targets(targets: Sequence[tuple[str, str, str, bool]]) -> None:
    table = columns("measured", "figure", "target", "")
    for what, figure, target, ok in targets:
        table.add_row(what, figure, target, "[green]holds[/]" if ok else "[red]missed[/]")
    console.print(table)


def _show_transfer(report: TransferReport, told: ExtractionReport) -> None:
    table = columns(
        "deployment", "failures", "repeated", "harvest @1", "@3", "raw documents @1", "@3", "raw windows @1", "@3"
    )
    for row in report.by_deployment():
        cells = [row[f"{of}_{rank}"] for of in ("rank", "raw_documents", "raw_windows") for rank in (1, 3)]
        table.add_row(row["deployment"], str(row["failures"]), str(row["repeated"]), *map(str, cells))
    shares = [f"{report.share(rank, of):.2f}" for of in ("rank", "raw_documents", "raw_windows") for rank in (1, 3)]
    table.add_row("share of the repeated", str(len(report.asked)), str(len(report.repeated)), *shares)
    table.caption = "no memory answers none; a raw document is a whole file, a window forty lines of one"
    console.print(table)
    for one in report.repeated:
        if not 0 < one.rank <= 3:
            console.print(f"missed: {one.id} (first was: {one.first})", style="yellow", markup=False)
    new = [one for one in report.asked if not one.repeated]
    console.print(
        f"new failures: {len(new)}, of which {sum(one.no_match for one in new)} were told apart as no known match"
    )
    for name in report.changed:
        console.print(f"left out, the document changed: {name}", style="yellow", markup=False)
    for what in told.missed:
        console.print(f"did not come out: {what}", style="yellow", markup=False)
    for title in told.junk:
        console.print(f"tells none of the listed lessons: {title[:100]}", style="dim", markup=False)


@contextmanager
def _empty_memories(dense: bool) -> Generator[Callable[[], Memory]]:
    """Makes memories without any record, in a temporary folder."""
    import shutil
    import tempfile
    from contextlib import closing
    from dataclasses import replace

    from kb import open_memory
    from mcp_server.config import Config

    config = Config.from_environment()
    with tempfile.TemporaryDirectory(prefix="herdbook-") as folder, ExitStack() as stack:
        made = 0

        def make() -> Memory:
            nonlocal made
            made += 1
            base = Path(folder) / str(made)
            (base / "corpus").mkdir(parents=True)
            (base / "compiled").mkdir()
            shutil.copy(config.compiled / "ranking.json", base / "compiled")
            place = replace(
                config.memory(),
                corpus=base / "corpus",
                compiled=base / "compiled",
                home=base / "home",
                dense=dense,
                chroma=None,
            )
            return stack.enter_context(closing(open_memory(place)))

        yield make


@contextmanager
def _shipped_memories(dense: bool) -> Generator[Callable[[], Memory]]:
    """Makes memories over the shipped records with nothing of their own, in a temporary folder."""
    import tempfile
    from contextlib import closing
    from dataclasses import replace

    from kb import open_memory
    from mcp_server.config import Config

    config = Config.from_environment().memory()
    with tempfile.TemporaryDirectory(prefix="herdbook-") as folder, ExitStack() as stack:
        made = 0

        def make() -> Memory:
            nonlocal made
            made += 1
            place = replace(config, home=Path(folder) / str(made), dense=dense, chroma=None)
            return stack.enter_context(closing(open_memory(place)))

        yield make


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
