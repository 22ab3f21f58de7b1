"""DMA channels, descriptors and locks that cores, memtiles and shims have, against the streams a program needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from xdsl.ir import Operation

from npu_tools.air.dialect import ChannelAccess
from npu_tools.check.pingpong import doubled
from npu_tools.check.streams import Count, counted, far_streams, tile_streams
from npu_tools.check.subject import Subject
from npu_tools.check.walk import L1, L2, L3, Herd, Segment, allocation
from npu_tools.findings import Finding

CHANNEL_SOURCE = "Xilinx/mlir-air mlir/lib/Conversion/AIRToAIESchedulingUtils.cpp (TileDMAAllocator, ShimDMAAllocator)"
ROUTER = "Xilinx/mlir-aie lib/Dialect/AIE/Transforms/AIECreatePathFindFlows.cpp"
_SIDES: tuple[tuple[Literal["in", "out"], str], ...] = (("in", "input"), ("out", "output"))


def find(subject: Subject) -> Iterator[Finding]:
    """Cores, memtiles and shims that need more channels, descriptors or locks than they have."""
    for segment in subject.facts.segments:
        for herd in segment.herds:
            yield from _core(subject, herd)
        yield from _shim(subject, segment)
        yield from _memtile(subject, segment)
        yield from _memtile_descriptors(subject, segment)
        yield from _routing(subject, segment)


def _columns(subject: Subject, segment: Segment) -> int:
    return max(1, subject.device.columns // max(1, segment.unroll[0] or 1))


def _core(subject: Subject, herd: Herd) -> Iterator[Finding]:
    tiles = _kinds_of_tiles(subject, herd)
    said: set[str] = set()
    for tile in tiles:
        for side, word in _SIDES:
            count = tile_streams(subject.facts, herd, tile, side)
            limit = subject.device.limit("core.dma_channels")
            if count.total > limit.value and word not in said:
                said.add(word)
                yield _core_channels(subject, herd, tile, word, count)
        if "descriptors" not in said and (finding := _core_descriptors(subject, herd, tile)):
            said.add("descriptors")
            yield finding
        if "locks" not in said and (finding := _core_locks(subject, herd, tile)):
            said.add("locks")
            yield finding


def _kinds_of_tiles(subject: Subject, herd: Herd) -> list[tuple[int, int]]:
    """One tile of each kind: those that run the same ops of every herd op are one kind."""
    kinds: dict[tuple[int, ...], tuple[int, int]] = {}
    uses = [subject.facts.uses(op) for op in herd.ops]
    for tile in sorted({tile for one in uses for use in one for tile in use.tiles}):
        key = tuple(index for one in uses for index, use in enumerate(one) if tile in use.tiles)
        kinds.setdefault(key, tile)
    return list(kinds.values())


def _core_channels(subject: Subject, herd: Herd, tile: tuple[int, int], word: str, count: Count) -> Finding:
    limit = subject.device.limit("core.dma_channels")
    mergeable = count.least <= limit.value
    return subject.finding(
        count.ops[limit.value],
        "warning" if mergeable else "error",
        "core-dma-channels",
        f"tile {tile} of herd {herd.name} needs {count.total} {word} DMA channels; a core has {limit.value}"
        + (f" (the compiler may merge them into {count.least})" if mergeable else ""),
        diagnostic=f"'aie.tile' op number of {word} DMA channel exceeded!",
        limit=limit,
        source=CHANNEL_SOURCE,
        remedy=f"bring {count.total - limit.value + 1} of the {word}s in one transfer (pack them in one buffer), send "
        "them on one channel in turn, use a cascade, or a channel of type npu_dma_packet",
        certain=False,
    )


def _core_descriptors(subject: Subject, herd: Herd, tile: tuple[int, int]) -> Finding | None:
    """Each different window of a tile is a descriptor, twice where its buffer is doubled."""
    limit = subject.device.limit("core.bd_count")
    two = {op for one in herd.ops for op in doubled(subject.facts, one.body)}
    needed: dict[tuple[object, ...], int] = {}
    last = herd.op
    for op in herd.ops:
        for use in subject.facts.uses(op):
            if tile not in use.tiles:
                continue
            for visit in use.visits:
                for move in subject.facts.moves(visit.op):
                    if move.space != L1 or not counted(subject.facts, move):
                        continue
                    alloc = allocation(move.memref)
                    key = (alloc or move.memref, move.channel, move.side, str(move.window))
                    needed[key] = 2 if alloc in two else 1
                    last = move.op
    total = sum(needed.values())
    if total <= limit.value:
        return None
    return subject.finding(
        last,
        "error",
        "core-bd-count",
        f"tile {tile} of herd {herd.name} needs {total} buffer descriptors for {len(needed)} different transfers; a core "
        f"has {limit.value}",
        diagnostic=f"'aie.dma_bd' op Allocator exhausted available BD IDs (maximum {limit.value} available for channel 0)",
        limit=limit,
        remedy=f"move the same windows in a loop instead of {len(needed)} separate transfers, or split the herd's work "
        "over more launches",
        certain=False,
    )


def _core_locks(subject: Subject, herd: Herd, tile: tuple[int, int]) -> Finding | None:
    """Two locks a stream."""
    limit = subject.device.limit("core.locks")
    streams = {
        (move.channel, tuple(subject.facts.at(op, tile).constants(list(move.indices)) or []))
        if move.channel
        else move.op
        for op in herd.ops
        for use in subject.facts.uses(op)
        if tile in use.tiles
        for visit in use.visits
        for move in subject.facts.moves(visit.op)
        if move.space == L1 and counted(subject.facts, move)
    }
    needed = 2 * len(streams)
    if needed <= limit.value or all(not isinstance(stream, tuple) for stream in streams):
        return None
    return subject.finding(
        herd.op,
        "error",
        "core-locks",
        f"tile {tile} of herd {herd.name} takes part in {len(streams)} streams and needs {needed} locks; a core has "
        f"{limit.value}",
        diagnostic=f"not allocated a lock. because only {limit.value} locks available in this tile.",
        limit=limit,
        remedy=f"use at most {limit.value // 2} channels on a tile: send several buffers in turn on one channel",
        certain=False,
    )


def _shim(subject: Subject, segment: Segment) -> Iterator[Finding]:
    columns = _columns(subject, segment)
    limit = subject.device.limit("shim.dma_channels")
    room = limit.value * columns
    for side, word, arrow in (("out", "input", "L3 to the array"), ("in", "output", "the array to L3")):
        count = far_streams(subject.facts, segment, L3, "out" if side == "out" else "in")
        if count.least <= room:
            continue
        alone = (
            max(
                far_streams(subject.facts, _only(segment, herd), L3, "out" if side == "out" else "in").least
                for herd in segment.herds
            )
            if len(segment.herds) > 1
            else count.least
        )
        tiles = max((herd.tiles or 0 for herd in segment.herds), default=0)
        fitting = max(1, room * tiles // count.least) if tiles else room
        ends = (0, 1) if word == "input" else (1, 0)
        yield subject.finding(
            count.ops[0],
            "error" if alone > room else "warning",
            "shim-dma-channels",
            f"{count.least} streams from {arrow}, but {columns} columns have {room} shim DMA channels that way",
            diagnostic=f"no ShimNOCTile has sufficient DMA capacity for {ends[1]} input/{ends[0]} output channels near "
            "centroid column 0; out of shim DMA channels",
            limit=limit,
            source=CHANNEL_SOURCE,
            remedy=f"use a herd of at most {fitting} tiles, broadcast what tiles share, or stage the data through L2 and "
            f"move it with {room} or fewer streams",
            certain=False,
        )


def _memtile(subject: Subject, segment: Segment) -> Iterator[Finding]:
    columns = _columns(subject, segment)
    limit = subject.device.limit("memtile.dma_channels")
    room = limit.value * columns
    for side, word in (("out", "outgoing"), ("in", "incoming")):
        count = far_streams(subject.facts, segment, L2, "out" if side == "out" else "in")
        if count.least > room:
            yield subject.finding(
                count.ops[0],
                "error",
                "memtile-dma-channels",
                f"{count.least} {word} streams at L2, but {columns} memtiles have {room} DMA channels that way",
                diagnostic=f"'aie.tile' op uses more {'output' if side == 'out' else 'input'} channels than available on "
                "this tile",
                limit=limit,
                source=CHANNEL_SOURCE,
                remedy=f"broadcast what tiles share, or join rows of tiles before L2: at most {room} streams",
                certain=False,
            )


def _memtile_descriptors(subject: Subject, segment: Segment) -> Iterator[Finding]:
    """Each different transfer of an L2 buffer outside herds is a descriptor on a memtile, chained by its channel."""
    facts = subject.facts
    chains: dict[tuple[object, ...], dict[tuple[object, ...], int]] = {}
    last: Operation | None = None
    two = doubled(facts, segment.op.body) if segment.op is not None else frozenset[Operation]()
    for op in segment.op.walk() if segment.op is not None else ():
        for move in facts.moves(op) if isinstance(op, ChannelAccess) else ():
            if move.space != L2 or not counted(facts, move):
                continue
            alloc = allocation(move.memref)
            chain = (move.channel, move.side, *(facts.values.linear(index) for index in move.indices))
            key = (alloc or move.memref, str(move.window))
            chains.setdefault(chain, {})[key] = 2 if alloc in two else 1
            last = op
    if last is None:
        return
    columns = _columns(subject, segment)
    pool, limit = subject.device.limit("memtile.bd_pool"), subject.device.limit("memtile.bd_count")
    longest = max(chains, key=lambda chain: sum(chains[chain].values()))
    length, total = sum(chains[longest].values()), sum(sum(chain.values()) for chain in chains.values())
    if length > pool.value:
        yield subject.finding(
            last,
            "error",
            "memtile-bd-pool",
            f"@{longest[0]} takes {length} different transfers of L2 buffers; a memtile's channel reaches {pool.value} "
            "descriptors (even channels 0 to 23, odd ones 24 to 47)",
            diagnostic="'aie.memtile_dma' op could not find and assign a valid BD id",
            limit=pool,
            remedy=f"move the same window in a loop, or spread the {length} transfers over {-(-length // pool.value)} channels",
            certain=False,
        )
    elif total > limit.value * columns:
        yield subject.finding(
            last,
            "error",
            "memtile-bd-count",
            f"the segment's L2 buffers take {total} different transfers; {columns} memtiles have {limit.value} descriptors "
            "each",
            diagnostic=f"'aie.memtile_dma' op has more than {limit.value} blocks",
            limit=limit,
            remedy=f"move the same windows in loops: at most {limit.value * columns} different transfers",
            certain=False,
        )


def _routing(subject: Subject, segment: Segment) -> Iterator[Finding]:
    """What the switchboxes between memtiles and the lowest cores let through, over all columns."""
    columns = _columns(subject, segment)
    for side, name, way in (("out", "memtile.switch_north", "up"), ("in", "core.switch_south", "down")):
        limit = subject.device.limit(name)
        room = limit.value * columns
        which = "out" if side == "out" else "in"
        needed = sum(_to_herds(subject, segment, space, which) for space in (L2, L3))
        if needed > room:
            yield subject.finding(
                segment.op or segment.herds[0].op,
                "error",
                "routing",
                f"{needed} streams go {way} between the memtiles and the cores, but {columns} columns carry {room}",
                diagnostic="Unable to find a legal routing",
                limit=limit,
                source=ROUTER,
                remedy=f"broadcast what tiles share so that at most {room} different streams remain, or use fewer tiles",
                certain=False,
            )


def _only(segment: Segment, *herds: Herd) -> Segment:
    """The herds alone, without what moves around them."""
    return Segment(None, None, segment.function, herds)


def _to_herds(subject: Subject, segment: Segment, space: int, side: Literal["in", "out"]) -> int:
    only = _only(segment, *segment.herds)
    return far_streams(subject.facts, only, space, side).least
