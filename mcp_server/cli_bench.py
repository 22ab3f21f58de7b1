"""The benches of npu_tools: real programs, forms of MLIR, checks, cost, numerics, speed. Each prints its targets.

Exit code 0 when every target holds, 1 when one does not, 2 for unusable input.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from mcp_server.cli_upkeep import bench_app, progress_bar
from mcp_server.output import columns, console, emit, fail

if TYPE_CHECKING:
    from npu_tools.bench.program import ProgramResult

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
Target = tuple[str, str, str, bool]
"""What was measured, the figure, what is asked of it, whether it holds."""


def register() -> None:
    """Add the commands to `herdbook bench`, which cli_upkeep makes."""
    for name, command in (
        ("programs", programs),
        ("forms", forms),
        ("check", check),
        ("cost", cost),
        ("numerics", numerics),
        ("speed", speed),
    ):
        bench_app.command(name)(command)


def programs(
    folder: Annotated[Path, typer.Argument(help="A folder of .mlir programs, or one file.")],
    only: Annotated[str, typer.Option(metavar="GLOB", help="Only files whose stem fits, as 'matrix_*'.")] = "*",
    workers: Annotated[int, typer.Option(min=1, max=64, help="Programs at a time, each in its own process.")] = 2,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds one run may take.")] = 300,
    device: Annotated[
        str | None, typer.Option(help="Check against npu1 or npu2; npu2 unless the name says npu1.")
    ] = None,
    numerics: Annotated[
        Literal["faithful", "f32"], typer.Option(help="The device's rounding, or plain f32.")
    ] = "faithful",
    grouping: Annotated[
        Literal["lifted", "per-tile"], typer.Option(help="All tiles at once, or one by one.")
    ] = "lifted",
    seed: Annotated[int, typer.Option(min=0, help="Of the inputs.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write one JSON object a program here (JSONL).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Every program read, checked, run on seeded inputs, and compared with an independent numpy reference.

    Target: all are read, pass the check and run to the end; at least 60 of upstream's 102 agree with their reference.
    """
    from npu_tools.bench.program import Trying
    from npu_tools.bench.programs import measure_programs, program_files

    files = program_files(folder, only)
    trying = Trying(device=device, numerics=numerics, grouping=grouping, timeout_s=timeout, seed=seed)
    done = 0
    with progress_bar("running", as_json) as step:

        def each(result: ProgramResult) -> None:
            nonlocal done
            done += 1
            step(done, len(files))
            if not as_json:
                _show_program(result)

        measured = measure_programs(folder, trying, only=only, workers=workers, each=each)
    if out is not None:
        lines = "".join(json.dumps(one.as_dict(), ensure_ascii=False) + "\n" for one in measured.results)
        try:
            out.write_text(lines, encoding="utf-8")
        except OSError as error:
            fail(f"{out} cannot be written: {error.strerror or error}", as_json=as_json)
    total = len(files)
    known = measured.count("faulty program")
    faulty = f", {known} with the fault they are known for" if known else ""
    targets = [
        ("read", f"{measured.parsed} of {total}", "all", measured.parsed == total),
        ("pass the check", f"{measured.checked} of {total}", "all", measured.checked == total),
        (f"run to the end{faulty}", f"{measured.ran} of {total}", "all", measured.ran == total),
        ("agree with a reference", str(measured.agreeing), f">= {measured.wanted}", measured.agreeing >= measured.wanted),
        ("differ from their reference", str(measured.count("differs")), "0", not measured.count("differs")),
    ]  # fmt: skip
    data = measured.as_dict() | {"targets": _as_dicts(targets)}
    if not emit(data, as_json):
        rest = [one for one in measured.results if one.verdict != "agrees" or one.refusals]
        if rest:
            table = columns("program", "verdict", "why")
            for one in rest:
                why = one.reason if one.verdict != "agrees" else "; ".join(one.refusals)
                table.add_row(one.name, one.verdict, escape(why[:400]))
            console.print(table)
        _show_targets(targets)
    _leave(targets)


def forms(
    folder: Annotated[Path, typer.Argument(help="A folder of .mlir files, searched with its subfolders.")],
    every: Annotated[bool, typer.Option("--all", help="Also files without AIR ops.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """How much MLIR text is read and comes back the same when printed: files, and programs between // ----- lines.

    Target: 95 % of upstream's test files with AIR ops.
    """
    from npu_tools.air import measure_forms

    if not folder.is_dir():
        fail(f"{folder} is no folder", as_json=as_json)
    measured = measure_forms(folder, air_only=not every)
    totals = measured.totals()
    if not totals["files"]:
        fail(f"no .mlir file with AIR ops in {folder}", as_json=as_json)
    targets = [
        _share("files read and printed the same", totals["files_whole"], totals["files"], 0.95),
        _share("programs read and printed the same", totals["programs_round_trip"], totals["programs"], 0.95),
    ]
    bad = [row for row in measured.files if not row.whole]
    if not emit(totals | {"not_whole": [asdict(row) for row in bad], "targets": _as_dicts(targets)}, as_json):
        for row in bad:
            console.print(f"{row.name}: {row.round_trips} of {row.chunks}; {row.error}", markup=False)
        _show_targets(targets)
    _leave(targets)


def check(
    programs: Annotated[
        Path | None, typer.Option(help="A folder with outcome_<name>.mlir, for the outcomes that are programs.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """The check beside documented outcomes: what upstream measured to run, and what its tools or devices refused.

    Target: precision and recall >= 0.90, under 1 s a kernel and 5 s a model, at least 80 outcomes.
    """
    from npu_tools.check.outcomes import measure_outcomes

    report = measure_outcomes(programs=programs)
    overall = report.overall
    targets: list[Target] = [
        ("outcomes with a source", str(overall.outcomes), ">= 80", overall.outcomes >= 80),
        ("precision", f"{overall.precision:.3f}", ">= 0.90", overall.precision >= 0.9),
        ("recall", f"{overall.recall:.3f}", ">= 0.90", overall.recall >= 0.9),
        ("slowest kernel", f"{report.slowest_kernel_s:.3f} s", "< 1 s", report.slowest_kernel_s < 1),
        ("slowest model", f"{report.slowest_model_s:.3f} s", "< 5 s", report.slowest_model_s < 5),
    ]
    if not emit(report.as_dict() | {"targets": _as_dicts(targets)}, as_json):
        table = columns("diagnostic", "refused", "caught", "named", "recall")
        for name, one in report.by_diagnostic.items():
            table.add_row(name, str(one.caught + one.missed), str(one.caught), str(one.named), f"{one.recall:.2f}")
        console.print(table)
        held = report.held_out
        console.print(f"held out: {held.outcomes} outcomes, precision {held.precision:.3f}, recall {held.recall:.3f}")
        for line in report.as_dict()["wrong"]:
            console.print(f"  {line}", markup=False)
        if report.not_tried:
            console.print(
                f"{len(report.not_tried)} outcomes are programs; give their folder with --programs", style="dim"
            )
        _show_targets(targets)
    _leave(targets)


def cost(as_json: JsonFlag = False) -> None:
    """The cost model beside the measured rows of the corpus: five-fold, models left out, configurations ranked.

    Target: 93 % of GEMM rows within 20 %; GEMV, RMSNorm, RoPE and SiLU at most 8 % off in the mean; 7 of 9 models'
    time to first token and tokens a second within 20 %, each with its own rows left out.
    """
    report = cost_report()
    gemm = report.kernels["gemm"].trusted
    models = len(report.models)
    targets: list[Target] = [
        ("GEMM rows within 20 %, five-fold", f"{gemm.within_20:.1%}", ">= 93 %", gemm.within_20 >= 0.93),
        *(
            (f"{name} mean error, five-fold", f"{one.trusted.mape:.1%}", "<= 8 %", one.trusted.mape <= 0.08)
            for name in ("gemv", "rmsnorm", "rope", "silu_mul")
            if (one := report.kernels.get(name)) is not None
        ),
        ("models' TTFT within 20 %", f"{report.ttft_within_20} of {models}", ">= 7", report.ttft_within_20 >= 7),
        ("models' tokens/s within 20 %", f"{report.tokens_within_20} of {models}", ">= 7", report.tokens_within_20 >= 7),
    ]  # fmt: skip
    if not emit(report.as_dict() | {"targets": _as_dicts(targets)}, as_json):
        table = columns("kernel", "rows", "suspicious", "mean error", "within 20 %", "roofline", "interval holds")
        for name, one in report.kernels.items():
            table.add_row(
                name,
                str(one.rows),
                str(one.suspicious),
                f"{one.trusted.mape:.1%}",
                f"{one.trusted.within_20:.1%}",
                f"{one.roofline.mape:.1%}",
                f"{one.coverage:.0%}",
            )
        console.print(table)
        table = columns("model", "TTFT s", "modelled", "off", "tokens/s", "modelled", "off")
        for one in report.models:
            table.add_row(
                one.model,
                f"{one.ttft_s:.2f}",
                f"{one.modelled_ttft_s:.2f}",
                f"{one.ttft_off:+.0%}",
                f"{one.tokens_per_s:.1f}",
                f"{one.modelled_tokens_per_s:.1f}",
                f"{one.tokens_off:+.0%}",
            )
        console.print(table)
        ranked = report.ranked()
        console.print(
            f"tile configurations in measured order: Kendall tau {ranked.tau:.2f}, "
            f"{ranked.clear_tau:.2f} over pairs that differ clearly; all times here are {report.label}"
        )
        _show_targets(targets)
    _leave(targets)


def numerics(as_json: JsonFlag = False) -> None:
    """Modelled rounding errors beside those upstream publishes for NPU2 (mean_rel_L1).

    Target: GEMM rows within 3 % of the published error (what is published with two digits is itself within 0.6 %),
    GEMV at most the published bound.
    """
    from npu_tools.emulator.numerics_table import compared

    rows = compared()
    precise = [row for row in rows if row.what.startswith("GEMM") and " direct " not in row.what]
    direct = [row for row in rows if " direct " in row.what]
    gemv = [row for row in rows if row.what.startswith("GEMV")]
    worst = max((abs(row.deviation) for row in precise), default=1.0)
    targets: list[Target] = [
        ("GEMM, f32 accumulators: worst deviation", f"{worst:.1%}", "<= 3 %", worst <= 0.03),
        ("GEMV: over the published bound", str(sum(row.deviation > 0 for row in gemv)), "0", all(row.deviation <= 0 for row in gemv)),
    ]  # fmt: skip
    mean = sum(abs(row.deviation) for row in direct) / len(direct) if direct else 0.0
    data = {
        "rows": [asdict(row) | {"deviation": row.deviation} for row in rows],
        "direct_path_mean_deviation": mean,
        "targets": _as_dicts(targets),
    }
    if not emit(data, as_json):
        table = columns("kernel", "published", "modelled", "off by")
        for row in rows:
            sign = "<= " if row.bound else ""
            table.add_row(row.what, f"{sign}{row.published:.3e}", f"{row.modelled:.3e}", f"{row.deviation:+.1%}")
        console.print(table)
        console.print(f"direct path (bf16 accumulators): {mean:.1%} off in the mean; 'python -m "
                      "npu_tools.emulator.numerics_table' lists the forms that were tried", markup=False)  # fmt: skip
        _show_targets(targets)
    _leave(targets)


def speed(
    peer_python: Annotated[Path | None, typer.Option(help="An interpreter with torch, if this one has none.")] = None,
    only: Annotated[str, typer.Option(metavar="GLOB", help="gemm, gemv or attention; all by default.")] = "*",
    repeats: Annotated[int, typer.Option(min=1, max=50, help="Rounds, peers taking turns; the best counts.")] = 3,
    small: Annotated[bool, typer.Option("--small", help="Small shapes: a trial of the bench, no target.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Full programs on the emulator beside torch's f32 on one thread: GEMM, GEMV, FlashAttention.

    Target: 2048^3 bf16 GEMM at most 3.5 times torch, GEMV 8192x2048 at most 5, attention 2048x2048 with 32 heads at
    most 8. Both sides run in child processes with one BLAS thread and take turns, on arguments that are there: torch's
    tensors, and inputs bound to the program beforehand. The seconds are of lowering, run and outputs; what binding took
    stands beside them.
    """
    from mcp_server.config import kernels_folder
    from npu_tools.bench.speed import NoPeer, measure_speed

    with progress_bar("measuring", as_json) as step:
        measured = measure_speed(peer_python, kernels_folder(), only=only, repeats=repeats, small=small, progress=step)
    if isinstance(measured, NoPeer):
        fail(measured.message, as_json=as_json)
    targets: list[Target] = [
        (f"{row.name} {row.shape}", f"{row.ratio:.2f}x torch", f"<= {row.target:g}x", row.ok) for row in measured.rows
    ]
    if not emit(measured.as_dict() | {"targets": _as_dicts(targets)}, as_json):
        table = columns("program", "shape", "emulator s", "torch s", "ratio", "of processor s", "binding s", "rounds")
        for row in measured.rows:
            rounds = " ".join(f"{ours:.3f}/{theirs:.4f}" for ours, theirs in row.rounds)
            seconds = (f"{row.emulator_s:.4f}", f"{row.peer_s:.4f}", f"{row.ratio:.2f}")
            busy = "" if row.processor_ratio is None else f"{row.processor_ratio:.2f}"
            table.add_row(row.name, row.shape, *seconds, busy, f"{row.binding_s:.3f}", rounds)
        console.print(table)
        console.print(json.dumps(measured.conditions), style="dim", markup=False)
        if not small:
            _show_targets(targets)
    if not small:
        _leave(targets)


def cost_report() -> Any:
    """The cost model fitted to the corpus's measured rows, with all its figures."""
    from mcp_server.cli import open_memory
    from npu_tools.cost.report import measure_cost

    records = open_memory().corpus.records.values()
    by_kind: dict[str, list[dict[str, Any]]] = {"kernel_row": [], "model_row": []}
    for record in records:
        if record.kind in by_kind:
            by_kind[record.kind].append(record.model_dump(mode="json"))
    return measure_cost(by_kind["kernel_row"], by_kind["model_row"])


def _show_program(one: ProgramResult) -> None:
    colour = {"agrees": "green", "differs": "red", "not run": "red"}.get(one.verdict, "yellow")
    error = max((row.mean_rel_l1 or 0.0 for row in one.outputs), default=None)
    share = max((row.worst_share or 0.0 for row in one.outputs), default=None)
    figures = "" if error is None or share is None else f" mean_rel_L1 {error:.2e}, worst {share:.2f} of allowed"
    refused = f" [red]refused by the check: {escape(one.refusals[0][:160])}[/]" if one.refusals else ""
    reason = f" {escape(one.reason[:200])}" if one.reason else ""
    console.print(f"[{colour}]{one.verdict:14}[/] {one.name} ({one.run_s:.1f} s){figures}{reason}{refused}")


def _share(what: str, part: int, whole: int, wanted: float) -> Target:
    value = part / whole
    return (what, f"{part} of {whole} ({value:.1%})", f">= {wanted:.0%}", value >= wanted)


def _as_dicts(targets: Sequence[Target]) -> list[dict[str, Any]]:
    return [{"what": what, "figure": figure, "target": target, "ok": ok} for what, figure, target, ok in targets]


def _show_targets(targets: Sequence[Target]) -> None:
    table = columns("measured", "figure", "target", "")
    for what, figure, target, ok in targets:
        table.add_row(what, figure, target, "[green]holds[/]" if ok else "[red]missed[/]")
    console.print(table)


def _leave(targets: Sequence[Target]) -> None:
    if not all(ok for *_, ok in targets):
        sys.exit(1)
