"""`herdbook kernel list | show | best | test`: the recipes, what was measured of them, and whether they pass.

Measured rows come from the memory, whoever wrote them; a shape without a row is "not measured", never interpolated.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from mcp_server.output import columns, console, emit, fail

if TYPE_CHECKING:
    from kb.records import KernelRow
    from npu_tools.recipes import CaseRun, Recipe, RefusalRun

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else there.")]
NameArgument = Annotated[str, typer.Argument(metavar="KERNEL", help="gemm, gemv, lm_head_gemv …")]
NOT_MEASURED = "not measured"


def register(kernel_app: typer.Typer) -> None:
    """Add the commands to `herdbook kernel`."""
    kernel_app.command("list")(list_command)
    kernel_app.command("show")(show_command)
    kernel_app.command("best")(best_command)
    kernel_app.command("test")(try_command)


def list_command(as_json: JsonFlag = False) -> None:
    """The recipes: their shapes, how many cases each must pass, how many rows of it were measured or verified only."""
    rows = _rows()
    found: list[dict[str, Any]] = []
    for each in _recipes():
        manifest = each.manifest
        own = [row for row in rows if row.kernel == each.checked_as]
        measured = [row for row in own if row.figures]
        found.append(
            {
                "name": each.name,
                "title": manifest.title,
                "shape": "x".join(manifest.shape),
                "cases": len(manifest.cases),
                "refused": len(manifest.refused),
                "measured": len(measured),
                "modelled": len(own) - len(measured),
                "tolerance": manifest.tolerance.kernel,
                "objects": manifest.objects,
            }
        )
    if emit({"kernels": found}, as_json):
        return
    table = columns("kernel", "shape", "cases", "refused", "measured rows", "modelled rows", "title")
    for row in found:
        names = ("name", "shape", "cases", "refused", "measured", "modelled")
        table.add_row(*(str(row[name]) for name in names), row["title"])
    console.print(table)


def show_command(kernel: NameArgument, as_json: JsonFlag = False) -> None:
    """A recipe's page, its settings, and every row: measured ones with figures, modelled ones with what the model said."""
    recipe = _recipe(kernel)
    rows = [_as_dict(row) for row in _rows() if row.kernel == recipe.checked_as]
    measured, verified = _apart(rows)
    settings = {name: one.model_dump() for name, one in recipe.manifest.settings.items()}
    data = {"name": recipe.name, "title": recipe.manifest.title, "page": recipe.page(), "settings": settings}
    if emit({**data, "shape": recipe.manifest.shape, "measured": measured, "verified": verified}, as_json):
        return
    console.print(data["page"], markup=False)
    table = columns("setting", "chosen by", "meaning")
    for name, one in recipe.manifest.settings.items():
        table.add_row(name, one.source, escape(one.help))
    console.print(table)
    _show_rows(rows)


def best_command(
    kernel: NameArgument,
    shape: Annotated[str, typer.Argument(help="MxKxN, MxK …")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting, as tile_m=64; repeatable.")
    ] = None,
    device: Annotated[str, typer.Option(help="npu2 or npu1.")] = "npu2",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Configurations to show.")] = 5,
    as_json: JsonFlag = False,
) -> None:
    """What was measured for this shape, which settings the recipe takes, and the legal ones fastest by the cost model."""
    from dataclasses import asdict

    recipe = _recipe(kernel)
    resolved = recipe.resolve(shape, _pairs(settings, as_json), device)
    rows = [_as_dict(row) for row in _rows() if row.kernel == recipe.checked_as and _same(row, resolved.shape)]
    measured, verified = _apart(rows)
    modelled = _ranked(recipe, resolved.extents, device, limit)
    data: dict[str, Any] = {
        "kernel": recipe.name,
        "shape": resolved.shape,
        "measured": measured or NOT_MEASURED,
        "verified": verified,
        "chosen": {"by": resolved.chosen, "settings": resolved.settings, "ok": resolved.ok},
        "findings": [finding.as_dict() for finding in resolved.findings],
        "parts": [asdict(part) for part in resolved.parts],
        "modelled": modelled,
    }
    if not emit(data, as_json):
        _show_rows(rows)
        console.print(f"the recipe takes ({resolved.chosen}): {escape(_words(resolved.settings))}")
        for finding in resolved.findings:
            console.print(f"{finding.severity} [bold]{finding.code}[/]: {escape(finding.message)}")
        for part in resolved.parts:
            extents = "x".join(map(str, part.shape))
            console.print(f"{escape(part.role)}: {part.kernel} {extents} {escape(_words(part.settings))}")
        table = columns("modelled µs", "low", "high", "settings")
        for row in modelled:
            table.add_row(*(f"{row[name]:.1f}" for name in ("modelled_us", "low", "high")), _words(row["settings"]))
        if modelled:
            console.print(table)
    sys.exit(0 if resolved.ok else 1)


def try_command(
    kernel: NameArgument,
    size: Annotated[Literal["small", "large", "all"], typer.Option(help="Which cases.")] = "small",
    case: Annotated[int | None, typer.Option(min=1, help="One case by its number in kernel.toml.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the trial inputs.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Run a recipe's cases on the emulator and gate them; see that what must be refused is refused, for the right reason."""
    from npu_tools.recipes import run_case, run_refusals

    recipe = _recipe(kernel)
    listed = recipe.manifest.cases
    if case is not None and case > len(listed):
        fail(f"{recipe.name} has {len(listed)} cases, no case {case}", as_json=as_json)
    chosen = [listed[case - 1]] if case is not None else [one for one in listed if size in ("all", one.size)]
    runs: list[CaseRun] = []
    for one in chosen:
        if not as_json:
            console.print(f"[dim]{recipe.name} {_words(one.shape)} {escape(_words(one.settings))} …[/]")
        runs.append(run_case(recipe, one.shape, one.settings, seed=seed, published=one.mean_rel_l1))
    refusals = [] if case is not None else list(run_refusals(recipe))
    passed = all(run.passed for run in runs) and all(one.passed for one in refusals)
    data = {"cases": [run.as_dict() for run in runs], "refusals": [one.as_dict() for one in refusals], "passed": passed}
    if not emit({"kernel": recipe.name, **data}, as_json):
        console.print(_runs_table(runs))
        if refusals:
            console.print(_refusals_table(refusals))
        console.print("[green]passed[/]" if passed else "[red]failed[/]")
    sys.exit(0 if passed else 1)


def _runs_table(runs: list[CaseRun]) -> Table:
    table = columns(
        "shape", "gate", "mean_rel_L1", "rounded", "published", "emulated s", "modelled µs", "settings, reason"
    )
    for run in runs:
        said = _words({**run.resolved.settings}) if run.passed else run.reason
        table.add_row(
            run.resolved.extents,
            "[green]passed[/]" if run.passed else "[red]missed[/]",
            _figure(run.mean_rel_l1),
            _figure(run.mean_rel_l1_rounded),
            _figure(run.published),
            f"{run.wall_s:.2f}",
            "" if run.modelled_us is None else f"{run.modelled_us:.0f}",
            escape(said),
        )
    return table


def _refusals_table(refusals: list[RefusalRun]) -> Table:
    table = columns("shape", "refused", "must be", "found", "why")
    for one in refusals:
        table.add_row(
            "x".join(str(extent) for extent in one.shape.values()),
            "[green]yes[/]" if one.passed else "[red]no[/]",
            one.code,
            ", ".join(one.found) or "nothing",
            escape(one.why),
        )
    return table


def _recipes() -> list[Recipe]:
    from mcp_server.config import kernels_folder
    from npu_tools.recipes import recipes

    return recipes(kernels_folder())


def _recipe(name: str) -> Recipe:
    from mcp_server.config import kernels_folder
    from npu_tools.recipes import recipe

    return recipe(kernels_folder(), name)


def _rows() -> list[KernelRow]:
    """Every measured row of the memory."""
    from kb.filters import Filters
    from kb.records import KernelRow
    from mcp_server.cli import open_memory

    memory = open_memory()
    try:
        hits = memory.records(Filters(kinds=("kernel_row",)))
        return [hit.record for hit in hits if isinstance(hit.record, KernelRow)]
    finally:
        memory.close()


def _apart(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows with figures, and those of kernels that passed their gate where nothing was measured."""
    return [row for row in rows if row["figures"]], [row for row in rows if not row["figures"]]


def _same(row: KernelRow, shape: dict[str, int]) -> bool:
    """Whether a row is of this shape; axes are matched by position, since rows name some of them otherwise."""
    return tuple(row.shape.values()) == tuple(shape.values())


def _as_dict(row: KernelRow) -> dict[str, Any]:
    """A row with its figures, its tiles and where it comes from."""
    return {
        "id": row.id,
        "shape": dict(row.shape),
        "dtype": row.dtype,
        "tile": dict(row.tile),
        "herd": row.herd,
        "method": row.method,
        "precision": row.precision,
        "figures": {figure.metric: f"{figure.value:g} {figure.unit}" for figure in row.figures},
        "status": row.status,
        "used_by": row.used_by,
        "notes": row.notes,
        "provenance": [one.model_dump(mode="json", exclude_none=True) for one in row.provenance],
    }


def _ranked(recipe: Recipe, extents: str, device: str, limit: int) -> list[dict[str, Any]]:
    from npu_tools.errors import NpuToolsError
    from npu_tools.estimate import tune_kernel

    try:
        ranked = tune_kernel(recipe.checked_as, extents, None, device, limit).ranked
    except NpuToolsError:
        return []  # nothing was measured of this kernel that a model could be fitted to
    return [{"settings": dict(one.settings), **one.prediction.as_dict()} for one in ranked]


def _show_rows(rows: list[dict[str, Any]]) -> None:
    if not rows:
        console.print(NOT_MEASURED)
        return
    table = columns("shape", "dtype", "tile", "herd", "method", "figures", "id")
    for row in rows:
        extents = "x".join(str(extent) for extent in row["shape"].values())
        figures = ", ".join(f"{name} {value}" for name, value in row["figures"].items()) or "modelled only"
        table.add_row(
            extents, row["dtype"], _words(row["tile"]), row["herd"] or "", row["method"] or "", figures, row["id"]
        )
    console.print(table)
    if not any(row["figures"] for row in rows):
        console.print(NOT_MEASURED)


def _pairs(given: list[str] | None, as_json: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    for item in given or []:
        name, sign, value = item.partition("=")
        if not (sign and name and value):
            fail(f"--set {item!r}: write NAME=VALUE, as in tile_m=64", as_json=as_json)
        found[name.strip()] = value.strip()
    return found


def _words(settings: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items() if value not in ("", None))


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"
