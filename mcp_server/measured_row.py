"""A measurement as a record: a kernel row with its figures, and the machine it was taken on."""

from __future__ import annotations

import hashlib
import json
import tempfile
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kb import Memory
    from kb.records import KernelRow
    from npu_tools.backends.xrt.profile import Timed
    from npu_tools.recipes import Recipe

_HERDS = (("herd_m", "herd_n"), ("columns", "rows"), ("herd_x", "herd_y"))


def measured_row(timed: Timed, recipe: Recipe, command: str) -> KernelRow | None:
    """The row of a measurement; None where nothing was measured."""
    from kb.records import Figure, KernelRow, Provenance

    resolved, environment = timed.resolved, timed.environment
    if timed.median_us is None or resolved is None or environment is None:
        return None
    said = timed.as_dict()
    day = environment.taken_at[:10]
    figures = [Figure(metric="latency", value=said["median_us"], unit="us")]
    operations = _operations(recipe.checked_as, dict(resolved.shape))
    if operations:
        figures.append(Figure(metric="throughput", value=round(operations / timed.median_us / 1000, 1), unit="GFLOPS"))
    errors = [verdict.metrics.mean_rel_l1 for verdict in timed.verdicts.values() if verdict.metrics is not None]
    if errors:
        figures.append(Figure(metric="mean_rel_L1", value=float(f"{max(errors):.3g}"), unit="ratio"))
    herd = next(
        (f"{resolved.settings[x]}x{resolved.settings.get(y, 1)}" for x, y in _HERDS if x in resolved.settings), None
    )
    tiles = {
        name: value
        for name, value in resolved.settings.items()
        if isinstance(value, int) and not isinstance(value, bool) and not any(name in pair for pair in _HERDS)
    }
    inputs = {one.element for one in recipe.arguments(resolved) if one.role == "input"}
    outputs = {one.element for one in recipe.arguments(resolved) if one.role == "output"}
    kinds = sorted(inputs) or ["bf16"]
    key = json.dumps([resolved.shape, resolved.settings, environment.as_dict(), said["times_us"]], default=str)
    mark = hashlib.sha256(key.encode()).hexdigest()[:8]
    return KernelRow(
        id=f"measured-{recipe.checked_as.replace('_', '-')}-{resolved.extents}-{mark}",
        title=f"{recipe.checked_as} {resolved.extents}: {said['median_us']:g} µs measured on {environment.device} ({timed.format})",
        status="observed",
        components=["mlir-air"],
        devices=[environment.target if environment.target in ("npu1", "npu2") else "npu2"],
        phases=["1"],
        kernels=[recipe.checked_as],
        provenance=[Provenance(evidence=f"{command}; toolchain {environment.tools}", date=date.fromisoformat(day))],
        kernel=recipe.checked_as,
        shape=dict(resolved.shape),
        dtype=f"{'+'.join(kinds)}->{'+'.join(sorted(outputs))}" if outputs and outputs != inputs else kinds[0],
        tile=tiles,
        herd=herd,
        method=str(resolved.settings["method"]) if "method" in resolved.settings else None,
        precision=str(resolved.settings["precision"]) if "precision" in resolved.settings else None,
        figures=figures,
        measured_on=date.fromisoformat(day),
        power_mode=environment.power_mode,
        notes=_notes(said, environment.as_dict()),
    )


def keep(row: KernelRow, memory: Memory) -> str:
    """Store a row in the memory; its id there."""
    from kb.exchange import import_from
    from kb.files import dump_record

    with tempfile.TemporaryDirectory(prefix="herdbook-") as folder:
        (Path(folder) / f"{row.id}.md").write_text(dump_record(row), encoding="utf-8")
        report = import_from(memory, Path(folder))
    return next(iter((*report.new, *report.seen)), row.id)


def _operations(kernel: str, shape: dict[str, int]) -> int | None:
    """Multiplications and additions, where the kernel is a product."""
    sizes = list(shape.values())
    if kernel == "gemm" and len(sizes) == 3:
        return 2 * sizes[0] * sizes[1] * sizes[2]
    if kernel == "gemv" and len(sizes) == 2:
        return 2 * sizes[0] * sizes[1]
    return None


def _notes(said: dict[str, Any], environment: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["packages"].items())
    lines = [
        f"Median of {said['iterations']} runs after {said['warm_up']} warm-ups, {said['p10_us']:g} to {said['p90_us']:g} µs (tenths); "
        f"timed: {said['timed']}. Format {said['format']}.",
        f"Power mode {environment['power_mode']}, platform profile {environment['platform_profile']}, firmware {environment['firmware']}, "
        f"driver {environment['driver']}, XRT {environment['xrt']}, kernel {environment['kernel']}; {versions}.",
    ]
    if environment["context_length"]:
        lines.append(f"Context length {environment['context_length']}.")
    return "\n".join([*lines, *environment["notes"]])
