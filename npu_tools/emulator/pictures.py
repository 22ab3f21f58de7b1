"""Pictures of a run: when each tile and channel was busy, and what memory each tile used.

    draw_timeline(result.trace, Path("run.svg"))
    draw_tile_map(result.trace, Path("tiles.svg"))

matplotlib comes with the extra `pictures`, since it would take the base install over its limit.
Times in them are modelled. The file's ending decides the format: .svg, .png or .pdf.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npu_tools.device import Device, device
from npu_tools.emulator.trace import Event, Trace
from npu_tools.errors import UnusableInput

ENDINGS = (".svg", ".png", ".pdf")
MAX_LANES = 64
"""Rows of a timeline; a picture with more cannot be read."""
_COLOURS = {"dma": "#4477aa", "put": "#ee6677", "get": "#228833", "kernel": "#ccbb44"}


def draw_timeline(trace: Trace, path: Path) -> None:
    """One row a tile and a body, one bar an event, over modelled µs.

    Raises:
        UnusableInput: nothing was traced, another file ending, or the file cannot be written.
    """
    rows: dict[str, list[Event]] = {}
    for event in trace.events:
        for name in _rows_of(event):
            rows.setdefault(name, []).append(event)
    for event in trace.events:
        if event.kind in ("put", "get"):
            rows.setdefault(f"channel @{event.what}", []).append(event)
    if not rows:
        raise UnusableInput("nothing was traced: the run moved no data and called no kernel")
    order = sorted(rows, key=lambda name: (name.startswith("channel"), name.startswith("tile")))
    names = order[:MAX_LANES]
    figure, axes = _figure(12, 1.2 + 0.24 * len(names))
    for row, name in enumerate(names):
        for kind, colour in _COLOURS.items():
            spans = [(e.start, max(e.end - e.start, 1e-3)) for e in rows[name] if e.kind == kind]
            if spans:
                axes.broken_barh(spans, (row - 0.4, 0.8), facecolors=colour, label=kind)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("modelled µs, from round rates: the order and shape of things; for a time see modelled_us")
    missing = order[MAX_LANES:]
    notes = [f"{len(missing)} rows left out from {missing[0]} on"] if missing else []
    notes += [f"{trace.truncated} events left out"] * bool(trace.truncated)
    axes.set_title("Emulated timeline (modelled)" + (": " + ", ".join(notes) if notes else ""), fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    axes.legend(once.values(), once.keys(), fontsize=7, loc="upper right")
    _save(figure, path)


def draw_tile_map(trace: Trace, path: Path, target: Device | None = None) -> None:
    """Peak L1 bytes of each core tile of the array and peak L2 bytes in all, against the device's limits.

    Raises:
        UnusableInput: nothing was traced, another file ending, or the file cannot be written.
    """
    target = target or device("npu2")
    peaks, l2_peak = peak_bytes(trace)
    if not peaks and not l2_peak:
        raise UnusableInput("nothing was traced: the run allocated nothing in L1 or L2")
    columns = max([target.columns, *(x + 1 for x, _ in peaks)])
    rows = max([target.core_rows, *(y + 1 for _, y in peaks)])
    figure, axes = _figure(1.1 * columns + 1, 0.9 * (rows + 1) + 1)
    from matplotlib.patches import Rectangle

    for x in range(columns):
        for y in range(rows):
            used = peaks.get((x, y), 0)
            share = used / target.core.memory_bytes
            axes.add_patch(Rectangle((x, y + 1), 0.94, 0.9, facecolor=_shade(share), edgecolor="#555555"))
            if used:
                axes.text(
                    x + 0.47, y + 1.45, f"{used / 1024:.1f} KiB\n{share:.0%}", ha="center", va="center", fontsize=7
                )
    l2_limit = target.memtile.memory_bytes * target.columns
    share = l2_peak / l2_limit
    axes.add_patch(Rectangle((0, 0), columns - 0.06, 0.9, facecolor=_shade(share), edgecolor="#555555"))
    axes.text(
        columns / 2,
        0.45,
        f"L2: {l2_peak / 1024:.0f} KiB, {share:.0%} of {target.columns} memtiles",
        ha="center",
        va="center",
        fontsize=8,
    )
    axes.set_xlim(-0.1, columns)
    axes.set_ylim(-0.1, rows + 1)
    axes.set_axis_off()
    axes.set_title(
        f"Peak buffers by herd tile, {target.name} (L1 {target.core.memory_bytes // 1024} KiB a core)", fontsize=9
    )
    _save(figure, path)


def _rows_of(event: Event) -> Iterator[str]:
    """A herd's events on the rows of its tiles, whichever herd it is; others on the row of their body."""
    if not event.who.startswith("herd"):
        yield event.who
        return
    for x in range(event.x, event.x + event.nx):
        for y in range(event.y, event.y + event.ny):
            yield f"tile ({x}, {y})"


def peak_bytes(trace: Trace) -> tuple[dict[tuple[int, int], int], int]:
    """Most bytes alive at once: in L1 by tile, in L2 together."""
    herds = {(u.x + u.nx, u.y + u.ny) for u in trace.uses if u.in_herd}
    herds |= {(e.x + e.nx, e.y + e.ny) for e in trace.events if e.who.startswith("herd")}
    extents = (max((x for x, _ in herds), default=1), max((y for _, y in herds), default=1))
    own: dict[tuple[int, int, int], int] = {}
    shared: dict[int, int] = {}
    peaks: dict[tuple[int, int], int] = {}
    l2 = l2_peak = 0
    for use in trace.uses:
        if use.level == "L2":
            l2 += use.change_bytes
            l2_peak = max(l2_peak, l2)
        if use.level != "L1":
            continue
        if use.in_herd:
            tiles = [(x, y) for x in range(use.x, use.x + use.nx) for y in range(use.y, use.y + use.ny)]
            for x, y in tiles:
                own[(use.instance, x, y)] = own.get((use.instance, x, y), 0) + use.change_bytes
        else:
            tiles = [(x, y) for x in range(extents[0]) for y in range(extents[1])]
            change = use.change_bytes // len(tiles) if use.shape[:2] == extents else use.change_bytes
            shared[use.instance] = shared.get(use.instance, 0) + change
        around = max(shared.values(), default=0)
        for x, y in tiles:
            inside = own.get((use.instance, x, y), 0)
            peaks[(x, y)] = max(peaks.get((x, y), 0), inside + around)
    return peaks, l2_peak


def _shade(share: float) -> Any:
    from matplotlib import colormaps

    return "#ffffff" if share == 0 else "#dd3333" if share > 1 else colormaps["YlGnBu"](0.1 + 0.6 * share)


def ready() -> None:
    """Whether pictures can be drawn here; asked before a long run.

    Raises:
        UnusableInput: the plotting library is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnusableInput("drawing needs matplotlib: pip install 'herdbook[pictures]'")


def _figure(width_in: float, height_in: float) -> tuple[Any, Any]:
    ready()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, min(height_in, 40)), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise UnusableInput(f"a picture is written as {', '.join(ENDINGS)}, not {path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise UnusableInput(f"cannot write {path}: {error.strerror or error}") from None
