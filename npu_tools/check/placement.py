"""Whether the herds of a segment find room: upstream's placer, and what it cannot place anyhow.

Herds that exchange data by cascade or share L1 are placed next to each other by rules this module does not follow;
for those only what no placement could hold is refused.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

from npu_tools.air.dialect import ChannelAccess
from npu_tools.check.subject import Subject
from npu_tools.check.walk import L1, Herd, Segment, memory_space
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-air mlir/lib/Transform/AIRHerdPlacementPass.cpp"
UNROLL_SOURCE = "Xilinx/mlir-air mlir/lib/Conversion/AIRToAIEPass.cpp (validateSegmentUnrollFactors)"


def find(subject: Subject) -> Iterator[Finding]:
    """Herds that do not fit, alone or side by side, and segments unrolled in a way the array does not have."""
    for segment in subject.facts.segments:
        columns = yield from _unrolled_columns(subject, segment)
        if columns is None:
            continue
        rows = subject.device.core_rows
        if segment.op is not None:
            columns, rows = segment.op.x_size or columns, segment.op.y_size or rows
        known = [herd for herd in segment.herds if herd.columns is not None and herd.rows is not None]
        alone = [herd for herd in known if not _fits(herd, columns, rows)]
        for herd in alone:
            yield _unplaced(subject, [herd], columns, rows, _shape_remedy(herd, columns, rows))
        if alone or segment.op is None:
            continue  # herds outside a segment are placed one by one
        yield from _together(subject, segment, known, columns, rows)


def _unrolled_columns(subject: Subject, segment: Segment) -> Generator[Finding, None, int | None]:
    """The columns one copy of the segment has. (Yields findings, returns the columns.)"""
    across, down = segment.unroll
    total = subject.device.columns
    if segment.op is None or (across in (0, 1) and down in (0, 1)):
        return total
    if across is None or down is None:
        text = "segment unroll X-dimension size must be a static constant"
        yield subject.finding(
            segment.op,
            "error",
            "segment-unroll-dynamic",
            text,
            diagnostic=text,
            source=UNROLL_SOURCE,
            remedy="make the size an arith.constant",
        )
        return None
    if down > 1:
        text = "segment unroll Y-dimension (row-wise) is not supported."
        yield subject.finding(
            segment.op,
            "error",
            "segment-unroll-rows",
            f"{text} The segment is unrolled {across} x {down}.",
            diagnostic=text,
            source=UNROLL_SOURCE,
            remedy=f"unroll by columns alone: {across * down} x 1, at most {total} x 1",
        )
        return None
    if across > total:
        yield subject.finding(
            segment.op,
            "error",
            "segment-unroll-columns",
            f"the segment is unrolled {across} times, but {subject.device.name} has {total} columns",
            limit=subject.device.limit("array.columns"),
            remedy=f"unroll at most {total} times and loop over the rest",
            certain=False,
        )
        return None
    return total // across


def _fits(herd: Herd, columns: int, rows: int) -> bool:
    return herd.columns is not None and herd.rows is not None and herd.columns <= columns and herd.rows <= rows


def _together(subject: Subject, segment: Segment, herds: Sequence[Herd], columns: int, rows: int) -> Iterator[Finding]:
    needed = sum(herd.tiles or 0 for herd in herds)
    if needed > columns * rows:
        names = ", ".join(f"{herd.name} {herd.columns}x{herd.rows}" for herd in herds)
        remedy = (
            f"the segment's herds ({names}) take {needed} tiles of {columns * rows}; shrink them to "
            f"{columns * rows} in all, or put some in a segment of another launch"
        )
        yield _unplaced(subject, _left_over(herds, columns, rows) or herds[-1:], columns, rows, remedy)
    elif not _neighbours(subject, segment) and (left := _left_over(herds, columns, rows)):
        remedy = (
            f"make the herds fit side by side in {columns}x{rows}: equal heights of a divisor of {rows} always pack, "
            f"for example {columns}x1 each"
        )
        yield _unplaced(subject, left, columns, rows, remedy, certain=not _pinned(herds))


def _left_over(herds: Sequence[Herd], columns: int, rows: int) -> list[Herd]:
    """The herds without a place when the largest are placed first, row by row from the bottom left."""
    taken: set[tuple[int, int]] = set()
    waiting = sorted(herds, key=lambda herd: -(herd.tiles or 0))
    for row in range(rows):
        for column in range(columns):
            if (column, row) in taken:
                continue
            for herd in waiting:
                width, height = herd.columns or 1, herd.rows or 1
                cells = {(column + x, row + y) for x in range(width) for y in range(height)}
                inside = column + width <= columns and row + height <= rows
                if inside and not cells & taken:
                    taken |= cells
                    waiting.remove(herd)
                    break
    return waiting


def _neighbours(subject: Subject, segment: Segment) -> bool:
    """Whether herds of the segment are placed by their neighbours: cascades between them, or L1 in common."""
    shared: dict[object, int] = {}
    for herd in segment.herds:
        for value in {operand for op in herd.ops for operand in op.kernel_operands}:
            if memory_space(value.type) == L1:
                shared[value] = shared.get(value, 0) + 1
        for op in (inner for one in herd.ops for inner in one.walk() if isinstance(inner, ChannelAccess)):
            channel = subject.facts.channels.get(op.chan_name)
            if channel is not None and channel.channel_type == "npu_cascade":
                return True
    return any(count > 1 for count in shared.values())


def _pinned(herds: Sequence[Herd]) -> bool:
    return any(op.x_loc is not None or op.y_loc is not None for herd in herds for op in herd.ops)


def _shape_remedy(herd: Herd, columns: int, rows: int) -> str:
    """The largest herds that fit in place of one that does not."""
    tiles = herd.tiles or 0
    fitting = [
        (width, height)
        for width in range(1, columns + 1)
        for height in range(1, rows + 1)
        if width * height == tiles or (width * height < tiles and tiles % (width * height) == 0)
    ]
    width, height = max(fitting or [(min(columns, herd.columns or 1), min(rows, herd.rows or 1))], key=_area)
    if width * height == tiles:
        return f"use the same {tiles} tiles as a {width}x{height} herd"
    return f"use a {width}x{height} herd and give each tile {-(-tiles // (width * height))} times the work"


def _area(shape: tuple[int, int]) -> tuple[int, int]:
    return shape[0] * shape[1], shape[0]


def _unplaced(
    subject: Subject, herds: Sequence[Herd], columns: int, rows: int, remedy: str, *, certain: bool = True
) -> Finding:
    first = herds[0]
    named = "".join(f"\nUnplaced herd: {herd.name}" for herd in herds)
    sizes = ", ".join(f"{herd.columns}x{herd.rows}" for herd in herds)
    return subject.finding(
        first.op,
        "error",
        "herd-placement",
        f"No valid placement found for herd {first.name}: {sizes} (columns x rows) with {columns}x{rows} tiles "
        f"on {subject.device.name}",
        diagnostic="No valid placement found." + named,
        limit=subject.device.limit("array.columns" if (first.columns or 0) > columns else "array.core_rows"),
        source=SOURCE,
        remedy=remedy,
        certain=certain,
    )
