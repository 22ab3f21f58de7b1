"""Attributes by which a front end pins a flow or a herd to a place: they must name a place there is."""

from __future__ import annotations

from collections.abc import Iterator

from npu_tools.air.dialect import ChannelAccess, ChannelOp
from npu_tools.check.subject import Subject
from npu_tools.check.walk import L2, Herd, Segment, memory_space
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-air mlir/lib/Conversion/AIRToAIESchedulingUtils.cpp"
PLACER = "Xilinx/mlir-air mlir/lib/Transform/AIRHerdPlacementPass.cpp (extractPinnedHerds)"
FIRST_CORE_ROW = 2
"""Rows count from the shim: 0 is the shim, 1 the memtile."""


def find(subject: Subject) -> Iterator[Finding]:
    """Pins outside the device."""
    for channel in subject.facts.channels.values():
        yield from _range(
            subject,
            channel,
            "air.tile_dma_channel",
            "core.dma_channels",
            "air.tile_dma_channel = {0} is out of range [0, {1})",
        )
        yield from _range(
            subject, channel, "air.shim_col", "array.columns", "air.shim_col column {0} is out of range [0, {1})"
        )
    for accesses in subject.facts.accesses.values():
        for access in accesses:
            if memory_space(access.memref.type) == L2:
                yield from _range(
                    subject,
                    access,
                    "air.memtile_dma_channel_min",
                    "memtile.dma_channels",
                    "air.memtile_dma_channel_min = {0} is out of range [0, {1})",
                )
    for segment in subject.facts.segments:
        for herd in segment.herds:
            yield from _herd(subject, segment, herd)


def _range(subject: Subject, op: ChannelAccess | ChannelOp, name: str, limit_name: str, text: str) -> Iterator[Finding]:
    pin, limit = op.int_attr(name), subject.device.limit(limit_name)
    if pin is None or 0 <= pin < limit.value:
        return
    said = text.format(pin, limit.value)
    yield subject.finding(
        op,
        "error",
        "pin-range",
        said,
        diagnostic=f"'{op.name}' op {said}",
        limit=limit,
        source=SOURCE,
        remedy=f"use a number from 0 to {limit.value - 1}, or leave {name} out",
    )


def _herd(subject: Subject, segment: Segment, herd: Herd) -> Iterator[Finding]:
    x, y = herd.op.x_loc, herd.op.y_loc
    if segment.op is None or x is None or y is None or herd.columns is None or herd.rows is None:
        return
    columns, rows = subject.device.columns, subject.device.core_rows
    row = y - FIRST_CORE_ROW
    if x >= 0 and row >= 0 and x + herd.columns <= columns and row + herd.rows <= rows:
        return
    yield subject.finding(
        herd.op,
        "warning",
        "herd-pin-ignored",
        f"herd {herd.name} ({herd.columns}x{herd.rows}) is pinned to column {x}, row {y}, which is outside the "
        f"{columns}x{rows} cores (rows {FIRST_CORE_ROW} to {FIRST_CORE_ROW + rows - 1}); the pin is ignored",
        diagnostic=f"ignoring user-pinned x_loc/y_loc ({x}, {y}) on air.herd '{herd.name}': position is outside the segment",
        source=PLACER,
        remedy=f"pin it to columns 0 to {max(0, columns - herd.columns)} and rows {FIRST_CORE_ROW} to "
        f"{FIRST_CORE_ROW + max(0, rows - herd.rows)}, or leave x_loc and y_loc out",
        certain=False,
    )
