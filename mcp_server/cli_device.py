"""Commands about the device itself: `herdbook kernel profile`, and `herdbook bench adapter`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from mcp_server.output import columns, console, emit, fail

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]


def register(kernel_app: typer.Typer, bench_app: typer.Typer) -> None:
    """Add the commands to `herdbook kernel` and `herdbook bench`."""
    kernel_app.command("profile")(profile)
    bench_app.command("adapter")(adapter)


def profile(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="gemm, gemv, rmsnorm …")],
    shape: Annotated[str, typer.Argument(help="MxKxN, MxK …")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as tile_m=64; repeatable.")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            "--against", metavar="NAME=VALUE,…", help="Another configuration, timed in turn with it; repeatable."
        ),
    ] = None,
    iterations: Annotated[int, typer.Option(min=1, max=10_000, help="Timed runs.")] = 20,
    warm_up: Annotated[int, typer.Option(min=0, max=1000, help="Runs before them.")] = 5,
    context: Annotated[
        int | None, typer.Option(min=1, help="Context length the kernel serves, kept with the figure.")
    ] = None,
    device: Annotated[str, typer.Option(help="npu2 or npu1.")] = "npu2",
    keep: Annotated[bool, typer.Option("--keep", help="Store the row in the memory, as measured.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure a kernel on the NPU: gated first, then timed in a process of its own, with the machine's modes and versions."""
    from mcp_server.cli import open_memory
    from mcp_server.config import Config, kernels_folder
    from mcp_server.measured_row import keep as store
    from mcp_server.measured_row import measured_row
    from npu_tools.backends.xrt import Toolchain, XrtBackend
    from npu_tools.backends.xrt.profile import profile_recipes
    from npu_tools.recipes import recipe

    config = Config.from_environment()
    found = recipe(kernels_folder(), kernel)
    chosen = [_pairs(settings, as_json), *(_pairs(one.split(","), as_json) for one in against or [])]
    toolchain = Toolchain.model_validate(dict(config.toolchain))
    with XrtBackend(toolchain, cache=config.home / "artefacts", device=device) as backend:
        timed = profile_recipes(
            backend, found, shape, chosen, warm_up=warm_up, iterations=iterations, context_length=context
        )
    kept: list[str] = []
    if keep:
        memory = open_memory()
        for one in timed:
            row = measured_row(one, found, f"herdbook kernel profile {kernel} {shape}")
            if row is not None:
                kept.append(store(row, memory))
    data: dict[str, Any] = {
        "kernel": kernel,
        "shape": shape,
        "measurements": [one.as_dict() for one in timed],
        "kept": kept,
    }
    if not emit(data, as_json):
        table = columns("settings", "gate", "median µs", "p10", "p90", "format", "reason")
        for one in timed:
            said = one.as_dict()
            words = " ".join(f"{name}={value}" for name, value in said["settings"].items())
            figures = [
                f"{said[name]:g}" if said[name] is not None else "" for name in ("median_us", "p10_us", "p90_us")
            ]
            gate = "[green]passed[/]" if one.passed else "[red]no[/]"
            table.add_row(escape(words), gate, *figures, said["format"], escape(said["reason"]))
        console.print(table)
        for one in timed:
            for finding in one.findings:
                console.print(f"{finding.severity} [bold]{finding.code}[/]: {escape(finding.message)}")
                if finding.remedy:
                    console.print(f"    [dim]remedy:[/] {escape(finding.remedy)}")
        for note in timed[0].environment.notes if timed and timed[0].environment else ():
            console.print(note, style="yellow", markup=False)
        for record in kept:
            console.print(f"kept as {record}", markup=False)
    sys.exit(0 if all(one.passed for one in timed) else 1)


def adapter(
    tests: Annotated[
        Path | None, typer.Option(help="The folder of its tests; the checkout's by default, where there is one.")
    ] = None,
    gaps: Annotated[bool, typer.Option(help="Only what no test covers.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Every rule of the real toolchain that concerns the device adapter, with the test that covers it, or why none does.

    Target: all have a test or a reason, and every test that is named exists.
    """
    from mcp_server.config import package_folder
    from npu_tools.backends.xrt.rules import missing, read_rules

    rules = read_rules()
    folder = tests or package_folder("npu_tools").parent / "tests" / "npu_tools"
    here = folder.is_dir()
    lost = missing(rules, folder) if here else []
    covered = sum(rule.covered for rule in rules)
    told = sum(bool(rule.reason) for rule in rules)
    ok = covered + told == len(rules) and not lost
    data = {
        "ok": ok, "rules": [rule.as_dict() for rule in rules], "covered": covered, "with_a_reason": told,
        "tests_looked_for": here, "missing": lost,
    }  # fmt: skip
    if emit(data, as_json):
        sys.exit(0 if ok else 1)
    table = columns("section", "rule", "source", "test, or why there is none")
    for rule in rules:
        if gaps and rule.covered:
            continue
        said = (
            "; ".join(name.split("::", 1)[1] for name in rule.tests) if rule.tests else f"[dim]{escape(rule.reason)}[/]"
        )
        table.add_row(rule.section, escape(rule.rule), escape(rule.source), said if rule.reason else escape(said))
    console.print(table)
    for name in lost:
        console.print(f"no such test: {name}", style="red", markup=False)
    where = "" if here else " (the tests are not installed; run it in a checkout to see that they exist)"
    console.print(f"{len(rules)} rules: {covered} covered by a test, {told} with a reason{where}", markup=False)
    sys.exit(0 if ok else 1)


def _pairs(given: list[str] | None, as_json: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in given or []:
        name, sign, value = item.partition("=")
        if not (sign and name.strip() and value.strip()):
            fail(f"{item!r}: write NAME=VALUE, as in tile_m=64", as_json=as_json)
        text = value.strip()
        found[name.strip()] = int(text) if text.lstrip("-").isdecimal() else text
    return found
