"""Cascades: a core hands its accumulator to the core east or south of it, and to no other.

Only cascades inside one herd are followed tile by tile; between herds the placer decides.
"""

from __future__ import annotations

from collections.abc import Iterator

from npu_tools.air.dialect import ChannelAccess, ChannelGetOp, ChannelOp
from npu_tools.check.subject import Subject
from npu_tools.check.walk import L1, Herd, element_bits, memory_space, shape
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-aie lib/Dialect/AIE/IR/AIEDialect.cpp (CascadeFlowOp::verify), AIELowerCascadeFlows.cpp"
LOWERING = "Xilinx/mlir-air mlir/lib/Conversion/AIRToAIEPass.cpp (ConvertCascadeChannelIfToAIE)"

Tile = tuple[int, int]


def find(subject: Subject) -> Iterator[Finding]:
    """Cascade ends that are not neighbours, go the wrong way, or carry what the port cannot."""
    cascades = {
        name: channel for name, channel in subject.facts.channels.items() if channel.channel_type == "npu_cascade"
    }
    for name, channel in cascades.items():
        for access in subject.facts.accesses.get(name, []):
            yield from _payload(subject, access)
        for segment in subject.facts.segments:
            for herd in segment.herds:
                yield from _neighbours(subject, herd, channel)


def _payload(subject: Subject, access: ChannelAccess) -> Iterator[Finding]:
    kind = access.memref.type
    if memory_space(kind) not in (None, L1):
        yield subject.finding(
            access,
            "error",
            "cascade-memory-space",
            f"@{access.chan_name} is a cascade between cores, but this end is in memory space {memory_space(kind)}",
            source=LOWERING,
            remedy="put and get cascades in a herd, on a buffer in memory space 2",
        )
    elif shape(kind) is None or element_bits(kind) is None:
        text = "cascade channel requires static memref shape"
        yield subject.finding(
            access,
            "error",
            "cascade-shape",
            text,
            diagnostic=f"'{access.name}' op {text}",
            source=LOWERING,
            remedy="give the buffer a static shape",
        )


def _neighbours(subject: Subject, herd: Herd, channel: ChannelOp) -> Iterator[Finding]:
    puts: dict[tuple[int, ...], tuple[Tile, ChannelAccess]] = {}
    gets: dict[tuple[int, ...], tuple[Tile, ChannelAccess]] = {}
    for op in herd.ops:
        for use in subject.facts.uses(op):
            accesses = [
                visit.op
                for visit in use.visits
                if isinstance(visit.op, ChannelAccess) and visit.op.chan_name == channel.sym_name
            ]
            for tile in use.tiles if accesses else ():
                values = subject.facts.at(op, tile)
                for access in accesses:
                    index = values.constants(list(access.indices))
                    if index is not None:
                        ends = gets if isinstance(access, ChannelGetOp) else puts
                        ends.setdefault(tuple(index), (tile, access))
    for index, (source, access) in puts.items():
        if index not in gets:
            continue
        target = gets[index][0]
        step = (target[0] - source[0], target[1] - source[1])
        if step in ((1, 0), (0, -1)):
            continue
        far = abs(step[0]) + abs(step[1]) != 1
        yield subject.finding(
            access,
            "error",
            "cascade-neighbour",
            f"@{channel.sym_name}{list(index)} goes from tile {source} to tile {target} of herd {herd.name}; "
            + ("they are not neighbours" if far else "a cascade runs east or south alone"),
            diagnostic="'aie.cascade_flow' op tiles must be adjacent" if far else None,
            source=SOURCE,
            remedy=f"get it on tile {(source[0] + 1, source[1])} (east) or {(source[0], source[1] - 1)} (south, one row "
            "lower)",
            certain=False,
        )
        return
