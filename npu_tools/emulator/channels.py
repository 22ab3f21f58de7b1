"""Channels: for each receiving index a stream of elements, filled by puts and emptied by gets.

One put may serve several gets and several puts one get. With `broadcast_shape` every receiving index that a put
reaches has a stream of its own. An index beyond a dimension of extent 1 of a broadcast channel means that dimension's
only entry, as upstream's builders write it.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from npu_tools.emulator.types import Array, Fault, Index

Where = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Chunk:
    """What one put brought: elements [n] in transfer order, how many are taken, and which nobody ever wrote."""

    data: Array
    unwritten: Array | None = None
    taken: int = 0
    clock: float = 0.0


@dataclass(slots=True, eq=False)
class Stream:
    """The elements on their way to one receiving index."""

    channel: str
    index: Where
    depth: int
    chunks: deque[Chunk] = field(default_factory=deque[Chunk])
    available: int = 0
    """Elements that can be taken; bytes where the channel carries several element types."""
    wanted: int = 0
    puts: int = 0
    gets: int = 0
    put_elements: int = 0
    get_elements: int = 0
    joined: int = 0
    """How often what one get takes had to be put together from several puts."""
    receivers: list[Any] = field(default_factory=list[Any])
    senders: list[Any] = field(default_factory=list[Any])

    @property
    def full(self) -> bool:
        """Whether a sender that waits for room has to; not while a receiver waits for more than is there."""
        return len(self.chunks) >= self.depth and self.available >= self.wanted

    def clear(self) -> None:
        """As it was before the first put."""
        self.chunks.clear()
        self.receivers.clear()
        self.senders.clear()
        self.available = self.wanted = self.puts = self.gets = self.put_elements = self.get_elements = 0

    def push(self, chunk: Chunk) -> None:
        """Add what a put brought."""
        self.chunks.append(chunk)
        self.available += len(chunk.data)
        self.puts += 1
        self.put_elements += len(chunk.data)

    def take(self, count: int) -> tuple[Array, Array | None, float]:
        """The next `count` elements, which must be there, their unwritten mask, and when the last arrived."""
        self.available -= count
        self.wanted = 0
        self.gets += 1
        self.get_elements += count
        chunk = self.chunks[0]
        if chunk.taken == 0 and len(chunk.data) == count:
            self.chunks.popleft()
            return chunk.data, chunk.unwritten, chunk.clock
        parts: list[Array] = []
        masks: list[Array] = []
        clock, missing = 0.0, count
        while missing:
            chunk = self.chunks[0]
            part = slice(chunk.taken, chunk.taken + missing)
            data = chunk.data[part]
            parts.append(data)
            masks.append(np.zeros(len(data), np.bool_) if chunk.unwritten is None else chunk.unwritten[part])
            clock = max(clock, chunk.clock)
            missing -= len(data)
            chunk.taken += len(data)
            if chunk.taken == len(chunk.data):
                self.chunks.popleft()
        self.joined += len(parts) > 1
        mask = np.concatenate(masks) if any(part.any() for part in masks) else None
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)), mask, clock


@dataclass(slots=True, eq=False)
class Channel:
    """One declared channel."""

    name: str
    size: tuple[int, ...]
    kind: str
    broadcast: tuple[int, ...] | None
    depth: int
    local: bool = False
    """Whether every instance of an unrolled segment has a channel of its own: only that segment uses it."""
    streams: dict[tuple[Where, Where], Stream] = field(default_factory=dict["tuple[Where, Where]", Stream])
    """By segment instance, () where the channel is not local, and receiving index."""
    mixed: bool = False
    """Whether puts and gets name different element types: elements then travel as the device's bytes."""
    _targets: dict[tuple[Where, Where], list[Stream]] = field(
        default_factory=dict["tuple[Where, Where]", "list[Stream]"]
    )

    def stream(self, index: Where, instance: Where = ()) -> Stream:
        """The stream a receiver at this index, in this segment instance, takes from."""
        extents = self.broadcast or self.size
        key = (instance if self.local else (), self._inside(index, extents))
        found = self.streams.get(key)
        if found is None:
            found = self.streams[key] = Stream(self.name, key[1], self.depth)
        return found

    def targets(self, index: Where, instance: Where = ()) -> list[Stream]:
        """The streams a sender at this index, in this segment instance, fills."""
        key = (instance if self.local else (), index)
        found = self._targets.get(key)
        if found is None:
            where = self._inside(index, self.size)
            if self.broadcast is None:
                found = [self.stream(where, instance)]
            else:
                spread = product(*self._spread(where, self.broadcast))
                found = [self.stream(receiver, instance) for receiver in spread]
            self._targets[key] = found
        return found

    def _spread(self, where: Where, broadcast: tuple[int, ...]) -> list[range]:
        """For each dimension the receiving entries that one sending entry reaches."""
        size = (*self.size, *(1 for _ in broadcast[len(self.size) :]))
        position = (*where, *(0 for _ in broadcast[len(where) :]))
        spread: list[range] = []
        for extent, senders, at in zip(broadcast, size, position, strict=True):
            each = max(1, extent // senders)
            spread.append(range(at * each, (at + 1) * each))
        return spread

    def _inside(self, index: Where, extents: tuple[int, ...]) -> Where:
        extents = extents or (1,)
        if len(index) < len(extents):
            index = (*index, *(0 for _ in extents[len(index) :]))
        if len(index) > len(extents) and any(index[len(extents) :]):
            raise self._no_such(index, extents)
        where: list[int] = []
        for entry, extent in zip(index, extents, strict=False):
            if 0 <= entry < extent:
                where.append(entry)
            elif extent == 1 and self.broadcast is not None:
                where.append(0)
            else:
                raise self._no_such(index, extents)
        return tuple(where)

    def _no_such(self, index: Where, extents: tuple[int, ...]) -> Fault:
        return Fault(
            "channel-index",
            f"channel @{self.name} has no entry {list(index)}: its extents are {list(extents)}, "
            f"{math.prod(extents)} in all",
            f"declare @{self.name} larger, or keep the indices in range",
        )


Key = tuple[Any, ...]


def index_key(values: list[Index], gx: int, gy: int) -> Key:
    """Something that tells channel indices of a group apart, for remembering what they lead to."""
    parts: list[Any] = [gx, gy]
    for value in values:
        if isinstance(value, np.ndarray):
            parts.append(value.tobytes())
            parts.append(value.shape)
        else:
            parts.append(int(value))
    return tuple(parts)


def lane_indices(values: list[Index], gx: int, gy: int) -> list[Where]:
    """The channel index of each lane, x outermost; a single entry where all lanes have the same."""
    if not any(isinstance(value, np.ndarray) for value in values):
        return [tuple(int(value) for value in values)]
    spread = [np.broadcast_to(np.asarray(value), (gx, gy)).reshape(-1).tolist() for value in values]
    return list(zip(*spread, strict=True))
