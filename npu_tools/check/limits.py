"""Findings that restate a device limit for a tiled kernel, each with its numbers and the text the real tools print.

Nothing here knows a kernel: its module says how many bytes, channels or words it needs, this one what the device has.
"""

from __future__ import annotations

from collections.abc import Mapping

from npu_tools.device import Device
from npu_tools.findings import Finding

REGISTRY = "Xilinx/mlir-air programming_examples/kernel_registry"
OUT_OF_MEMORY = "'aie.tile' op allocated buffers exceeded available memory"
OUT_OF_CHANNELS = "failed to map to shim dma channels: out of channels"
OUT_OF_BDS = "'aiex.dma_configure_task' op Allocator exhausted available buffer descriptor IDs"
NO_PLACEMENT = "No valid placement found."


def memory(device: Device, room: str, parts: Mapping[str, int]) -> Finding | None:
    """The buffers of one tile against its memory; `room` is "core" (L1, its stack a part) or "memtile" (L2)."""
    limit = device.limit(f"{room}.memory_bytes")
    total = sum(parts.values())
    if total <= limit.value:
        return None
    level, code = ("L1 of one core", "l1_bytes") if room == "core" else ("L2 of one memtile", "l2_bytes")
    sums = " + ".join(f"{name} {size}" for name, size in parts.items() if size)
    return Finding(
        severity="error",
        code=code,
        message=f"{level} has {limit.value} bytes; {sums} = {total}",
        diagnostic=OUT_OF_MEMORY,
        limit=str(limit),
        source=limit.source,
    )


def multiple(what: str, value: int, by: str, divisor: int, *, diagnostic: str, source: str) -> Finding | None:
    """A size that must be a whole number of tiles."""
    if value % divisor == 0:
        return None
    return Finding(
        severity="error",
        code="divisibility",
        message=f"{what} = {value} is not a multiple of {by} = {divisor} (remainder {value % divisor})",
        diagnostic=diagnostic,
        limit=f"{what} % ({by}) == 0",
        source=source,
    )


def herd(device: Device, columns: int, rows: int, *, names: tuple[str, str] = ("columns", "rows")) -> Finding | None:
    """A herd against the array."""
    if columns <= device.columns and rows <= device.core_rows:
        return None
    wide = columns > device.columns
    limit = device.limit("array.columns" if wide else "array.core_rows")
    name, have = (names[0], columns) if wide else (names[1], rows)
    return Finding(
        severity="error",
        code="herd_size",
        message=f"{name} = {have}, a {columns}x{rows} herd; {device.name} has {device.columns} columns "
        f"of {device.core_rows} cores",
        diagnostic=NO_PLACEMENT,
        limit=str(limit),
        source=limit.source,
    )


def shim_channels(device: Device, tiles: int, *, into: int, out: int, shared: int = 0) -> Finding | None:
    """Streams between L3 and the tiles, one shim channel each; `shared` ones are broadcast and count once."""
    limit = device.limit("shim.dma_channels")
    have = limit.value * device.columns
    for way, per_tile, common in (("into", into, shared), ("out of", out, 0)):
        need = per_tile * tiles + common
        if need > have:
            return Finding(
                severity="error",
                code="shim_channels",
                message=f"{per_tile} streams {way} each of {tiles} tiles need {need} shim channels; "
                f"{device.columns} columns x {limit.value} = {have}, so at most {(have - common) // per_tile} tiles",
                diagnostic=OUT_OF_CHANNELS,
                limit=str(limit),
                source=limit.source,
            )
    return None


def stride(device: Device, what: str, words: int, elements: int) -> Finding | None:
    """The step of a shim BD, in 4-byte words."""
    if words <= device.shim.max_step:
        return None
    limit = device.limit("shim.step_bits")
    return Finding(
        severity="error",
        code="stride",
        message=f"{what} steps {elements} elements = {words} words of 4 bytes; "
        f"a shim BD holds steps of 1 to {device.shim.max_step}",
        diagnostic=f"'aie.dma_bd' op Stride {elements} exceeds the [1:{device.shim.max_step}] range.",
        limit=str(limit),
        source=limit.source,
    )


def repeats(device: Device, what: str, times: int) -> Finding | None:
    """How often one queue entry repeats; the hardware counts repeats, so `times` - 1."""
    limit = device.limit("queue.repeat_max")
    if times - 1 <= limit.value:
        return None
    return Finding(
        severity="error",
        code="repeat_count",
        message=f"{what} {times} times, a repeat count of {times - 1}; a queue entry holds {limit.value}",
        diagnostic=f"'aiex.npu.push_queue' op Repeat count exceeds the [0:{limit.value}] range.",
        limit=str(limit),
        source=limit.source,
    )


def granule(device: Device, what: str, elements: int, element_bytes: int) -> Finding | None:
    """A transfer against the 4-byte granule."""
    limit = device.limit("dma.granule_bytes")
    if elements * element_bytes % limit.value == 0:
        return None
    return Finding(
        severity="error",
        code="granule",
        message=f"{what} moves {elements} element(s) of {element_bytes} bytes, not a multiple of {limit.value} bytes",
        diagnostic=f"Transfer sizes must be multiples of {limit.value} bytes.",
        limit=str(limit),
        source=limit.source,
    )


def odd_trips(what: str, trips: int, *, severe: bool, source: str) -> Finding | None:
    """A ping-pong loop with an odd number of trips: measured wrong at 5, 9 and 15, right at 1 and 3."""
    if trips < 5 or trips % 2 == 0:
        return None
    return Finding(
        severity="error" if severe else "warning",
        code="odd_trips",
        message=f"{what} runs {trips} times; ping-pong unrolls by two, and an odd remainder of such a loop "
        "gave wrong results without any message",
        limit="even trip counts (1 and 3 were right, 5, 9 and 15 wrong)",
        source=source,
        certain=False,
    )
