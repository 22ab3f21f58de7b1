"""How many separate streams a program needs at cores, memtiles and shims: what the DMA channel rules compare.

A DMA or channel access that reads the same window on several tiles is one stream (the compiler broadcasts it); writes
are one stream a tile. Accesses of one buffer may be merged by the compiler, so counts come as a lower bound (accesses
of the same memref share their largest count) and as the plain sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import ChannelAccess, DmaMemcpyNdOp, HerdOp
from npu_tools.check.values import Linear, Values
from npu_tools.check.walk import L1, Facts, Herd, Move, Segment, TileUse, around, root

Side = Literal["in", "out"]
UNCOUNTED = frozenset({"npu_cascade", "npu_mmio", "gpu_symmetric_heap"})
"""Channel types that take no DMA channel of a tile."""


@dataclass(slots=True)
class Count:
    """Streams of one kind of tile and direction: by memref (merged) and in all."""

    by_root: dict[SSAValue | str, int] = field(default_factory=dict["SSAValue | str", int])
    total: int = 0
    ops: list[Operation] = field(default_factory=list[Operation])

    def add(self, key: SSAValue | str, streams: int, op: Operation) -> None:
        """One access with so many streams."""
        self.by_root[key] = max(self.by_root.get(key, 0), streams)
        self.total += streams
        self.ops.append(op)

    @property
    def least(self) -> int:
        """The fewest streams left if accesses of the same memref are merged."""
        return sum(self.by_root.values())


def counted(facts: Facts, move: Move) -> bool:
    """Whether a movement takes a DMA channel."""
    if move.channel is None:
        return True
    channel = facts.channels.get(move.channel)
    return channel is None or channel.channel_type not in UNCOUNTED


def is_packet(facts: Facts, move: Move) -> bool:
    """Whether a movement is packet-switched, so that it shares a DMA channel with others."""
    channel = facts.channels.get(move.channel or "")
    return channel is not None and channel.channel_type == "npu_dma_packet"


def tile_streams(facts: Facts, herd: Herd, tile: tuple[int, int], side: Side) -> Count:
    """The streams into or out of one core."""
    count = Count()
    seen: set[tuple[object, ...]] = set()
    for op in herd.ops:
        for use in facts.uses(op):
            if tile not in use.tiles:
                continue
            values = facts.at(op, tile)
            for move in _moves(facts, use):
                if move.side != side or move.space != L1 or not counted(facts, move):
                    continue
                key = ("packet",) if is_packet(facts, move) else _identity(move, values)
                if key not in seen:
                    seen.add(key)
                    count.add(_merging(move, key), 1, move.op)
    return count


def far_streams(facts: Facts, segment: Segment, space: int, side: Side) -> Count:
    """The streams out of (`out`: read) or into (`in`: written) all buffers in L2 or L3 of a segment and its launch."""
    count = Count()
    for herd in segment.herds:
        for op in herd.ops:
            for use in facts.uses(op):
                for move in _moves(facts, use):
                    if move.side == side and move.space == space and counted(facts, move):
                        _count_in_herd(facts, op, use, move, count)
    for op in _outside(segment):
        for move in facts.moves(op):
            if move.side == side and move.space == space and counted(facts, move):
                count.add(root(move.memref), _instances(facts, move), op)
    return count


def _moves(facts: Facts, use: TileUse) -> Iterator[Move]:
    for visit in use.visits:
        yield from facts.moves(visit.op)


def _count_in_herd(facts: Facts, op: HerdOp, use: TileUse, move: Move, count: Count) -> None:
    if isinstance(move.op, ChannelAccess) or move.side == "in":
        streams = len(use.tiles)
    else:
        windows: set[tuple[Linear | None, ...]] = set()
        for tile in use.tiles:
            values = facts.at(op, tile)
            windows.add(tuple(values.linear(entry) for entry in move.window.offsets))
        streams = len(windows)
    count.add(root(move.memref), streams, move.op)


def _instances(facts: Facts, move: Move) -> int:
    """How many channels of an array an access outside herds drives."""
    if not move.indices:
        return 1
    total = 1
    for index in move.indices:
        span = facts.values.span(index)
        total *= 1 if span is None else span[1] - span[0] + 1
    return total


def _outside(segment: Segment) -> Iterator[Operation]:
    """The ops of a segment and of its launch that are not in a herd."""
    room = segment.launch or segment.op
    for op in room.walk() if room is not None else ():
        if isinstance(op, DmaMemcpyNdOp | ChannelAccess) and around(op, HerdOp) is None:
            yield op


def _identity(move: Move, values: Values) -> tuple[object, ...]:
    if move.channel is None:
        return (move.op,)
    return (move.channel, *(values.linear(index) for index in move.indices))


def _merging(move: Move, identity: tuple[object, ...]) -> SSAValue | str:
    """What accesses must share for the compiler to be able to merge them: the buffer at the other end."""
    if isinstance(move.op, DmaMemcpyNdOp):
        return root(move.op.src if move.side == "in" else move.op.dst)
    return str(identity)
