"""Whether as many elements are put on a channel as are taken from it, where the text settles how often everything runs.

Nothing in the toolchain counts this: the side that has more to do waits for ever on the device, or the next launch finds
what was left. Left to the emulator are channels under an undecided branch, a loop of unknown length or a window of
unknown size, and those with an end in L2: a memtile's descriptors go round, so that one get and put there may serve many
(llama2_mha and attention_decode in mlir-air's programming_examples rely on it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Region

from npu_tools.air.dialect import ChannelAccess, ChannelOp, ChannelPutOp, HerdOp, Hierarchy
from npu_tools.check.subject import Subject
from npu_tools.check.values import Values
from npu_tools.check.walk import L2, Facts, Visit, elements, memory_space, visits
from npu_tools.findings import Finding

STREAMS = ("npu_dma_stream", "npu_dma_packet", "npu_cascade")


@dataclass(slots=True)
class Traffic:
    """What one function moves through one channel; None once it is not known."""

    puts: int | None = 0
    gets: int | None = 0
    first: dict[str, ChannelAccess] = field(default_factory=dict[str, ChannelAccess])

    def add(self, access: ChannelAccess, count: int | None) -> None:
        """Count one access, by how many elements it moves in all."""
        self.first.setdefault(access.name, access)
        if memory_space(access.memref.type) == L2:
            count = None
        if isinstance(access, ChannelPutOp):
            self.puts = None if self.puts is None or count is None else self.puts + count
        else:
            self.gets = None if self.gets is None or count is None else self.gets + count


def find(subject: Subject) -> Iterator[Finding]:
    """Channels whose puts and gets move different numbers of elements."""
    facts = subject.facts
    called = {op.callee.string_value() for op in facts.ops if isinstance(op, CallOp)}
    for function in facts.program.functions():
        if function.sym_name.data not in called:
            for name, traffic in _traffic(function, facts).items():
                yield from _judged(subject, facts.channels.get(name), traffic)


def _judged(subject: Subject, channel: ChannelOp | None, traffic: Traffic) -> Iterator[Finding]:
    if channel is None or channel.channel_type not in STREAMS or not traffic.puts or not traffic.gets:
        return
    copies = prod(channel.broadcast_shape) // max(1, prod(channel.size)) if channel.broadcast_shape else 1
    sent, taken = traffic.puts * copies, traffic.gets
    if sent == taken:
        return
    more, less = ("put", "taken") if sent > taken else ("taken", "put")
    copied = f" ({copies} copies of {traffic.puts})" if copies > 1 else ""
    put, get = (traffic.first[name] for name in ("air.channel.put", "air.channel.get"))
    place = subject.facts.program.where(get if sent > taken else put)
    yield subject.finding(
        put if sent > taken else get,
        "error",
        "channel-count",
        f"{sent} elements{copied} are put on @{channel.sym_name} in one run of the function and {taken} are taken: "
        f"the side with more {'puts' if sent > taken else 'gets'} waits for ever",
        source="mlir-air lowers puts and gets to DMA tasks of fixed length and never compares them; the emulator finds the same",
        remedy=f"{abs(sent - taken)} more elements are {more} than {less}: compare window sizes and how often the loops "
        f"around them run (the other end is at line {place.line if place is not None else '?'})",
    )


def _traffic(function: FuncOp, facts: Facts) -> dict[str, Traffic]:
    found: dict[str, Traffic] = {}
    _room(visits(function.body, facts.values), facts, facts.values, 1, found)
    return found


def _room(
    listed: Iterator[Visit] | tuple[Visit, ...],
    facts: Facts,
    values: Values,
    times: int | None,
    found: dict[str, Traffic],
) -> None:
    """Count the accesses of a room that runs `times` times, and of the rooms within."""
    for visit in listed:
        op = visit.op
        often = None if times is None or visit.trips is None or not visit.sure else times * visit.trips
        if isinstance(op, ChannelAccess):
            moved = _elements(op, values)
            found.setdefault(op.chan_name, Traffic()).add(op, None if often is None or moved is None else often * moved)
        elif isinstance(op, HerdOp):
            for use in facts.uses(op):
                known = often if values.constants(list(op.sizes)) is not None else None
                _room(use.visits, facts, use.values, None if known is None else known * len(use.tiles), found)
        elif isinstance(op, Hierarchy):
            sizes = values.constants(list(op.sizes))
            inner = None if often is None or sizes is None else often * prod(sizes)
            _room(visits(_body(op), values), facts, values, inner, found)


def _body(op: Hierarchy) -> Region:
    return op.body


def _elements(access: ChannelAccess, values: Values) -> int | None:
    """How many elements one execution moves, zeros of padding included."""
    if not access.window.sizes:
        return elements(access.memref.type)
    sizes = values.constants(list(access.window.sizes))
    if sizes is None:
        return None
    before, after = access.pad_before or [0] * len(sizes), access.pad_after or [0] * len(sizes)
    if len(before) != len(sizes) or len(after) != len(sizes):
        return None
    return prod(size + low + high for size, low, high in zip(sizes, before, after, strict=True))
