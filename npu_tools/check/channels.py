"""Channels: their declarations, their indices, and whether both ends exist.

How many of a tile's DMA channels they take is counted in `dma_channels.py`, who sits next to whom in `cascade.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from xdsl.ir import Block

from npu_tools.air.dialect import ChannelAccess, ChannelGetOp, ChannelOp, ChannelPutOp, DmaMemcpyNdOp, RankOp
from npu_tools.check.subject import Subject
from npu_tools.check.walk import L1, L3, around, memory_space
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-air mlir/lib/Dialect/AIR/IR/AIRDialect.cpp (ChannelOp, ChannelPutOp, ChannelGetOp verify)"
LOWERING = "Xilinx/mlir-air mlir/lib/Conversion/AIRLoweringPass.cpp"
TYPES = ("npu_dma_stream", "npu_dma_packet", "npu_cascade", "npu_mmio", "gpu_symmetric_heap")
MAX_PAD = 65535


def find(subject: Subject) -> Iterator[Finding]:
    """Declarations, indices, ends and paddings that the verifier or the lowering refuses."""
    for channel in subject.facts.channels.values():
        yield from _declaration(subject, channel)
        yield from _ends(subject, channel)
    for name, accesses in subject.facts.accesses.items():
        channel = subject.facts.channels.get(name)
        if channel is None:
            yield _undeclared(subject, name, accesses)
            continue
        for access in accesses:
            yield from _indices(subject, access, channel)
            yield from _kind(subject, access, channel)
    for op in subject.facts.ops:
        if isinstance(op, DmaMemcpyNdOp | ChannelAccess):
            yield from _padding(subject, op)
            yield from _ranks(subject, op)


def _undeclared(subject: Subject, name: str, accesses: Sequence[ChannelAccess]) -> Finding:
    text = "failed to get air.channel declaration."
    return _refused(
        subject,
        accesses[0],
        "channel-undeclared",
        f"@{name} is not declared, and {len(accesses)} puts or gets use it: {text}",
        text,
        f"declare it in the module: air.channel @{name} [1, 1]",
    )


def _refused(
    subject: Subject, op: ChannelOp | ChannelAccess | DmaMemcpyNdOp, code: str, message: str, text: str, remedy: str
) -> Finding:
    return subject.finding(
        op, "error", code, message, diagnostic=f"'{op.name}' op {text}", source=SOURCE, remedy=remedy
    )


def _declaration(subject: Subject, channel: ChannelOp) -> Iterator[Finding]:
    kind = channel.channel_type
    if kind not in TYPES:
        listed = ", ".join(f'"{one}"' for one in TYPES[:-1])
        text = f'unsupported channel_type "{kind}"; expected one of {listed}, or "{TYPES[-1]}"'
        yield _refused(subject, channel, "channel-type", text, text, 'use channel_type = "npu_dma_stream"')
    yield from _broadcast(subject, channel)
    yield from _packet_ids(subject, channel)


def _broadcast(subject: Subject, channel: ChannelOp) -> Iterator[Finding]:
    given, size = channel.broadcast_shape, channel.size
    if given is None:
        return
    if len(given) != len(size):
        text = "bundle rank should match broadcast_shape rank"
        yield _refused(
            subject,
            channel,
            "channel-broadcast",
            f"{text}: size {size}, broadcast_shape {given}",
            text,
            f"give both {len(given)} dimensions: size {[1] * len(given)}",
        )
        return
    for index, (one, many) in enumerate(zip(size, given, strict=True)):
        if many < one:
            text = (
                f"broadcast_shape[{index}] ({many}) must be >= size[{index}] ({one}): broadcasting cannot shrink a "
                "dimension"
            )
        elif one not in (1, many):
            text = (
                f"size[{index}] ({one}) is not compatible with broadcast_shape[{index}] ({many}): size must be 1 or "
                "equal to broadcast_shape (NumPy broadcasting rules)"
            )
        else:
            continue
        fitting = [1 if k == index else extent for k, extent in enumerate(size)]
        yield _refused(subject, channel, "channel-broadcast", text, text, f"use size {fitting}")
        return


def _packet_ids(subject: Subject, channel: ChannelOp) -> Iterator[Finding]:
    ids = channel.packet_ids
    if ids is None:
        return
    limit = subject.device.limit("packet.id_max")
    if channel.channel_type != "npu_dma_packet":
        text = '"packet_ids" is only valid on a "npu_dma_packet" channel'
        yield _refused(subject, channel, "packet-ids", text, text, 'set channel_type = "npu_dma_packet"')
        return
    for position, one in enumerate(ids):
        if not 0 <= one <= limit.value:
            text = f'"packet_ids" id ({one}) must be in [0, {limit.value}]'
        elif one in ids[:position]:
            text = f'"packet_ids" id ({one}) is duplicated'
        else:
            continue
        free = next(other for other in range(limit.value + 1) if other not in ids)
        yield _refused(subject, channel, "packet-ids", text, text, f"use id {free} instead")
        return


def _ends(subject: Subject, channel: ChannelOp) -> Iterator[Finding]:
    accesses = subject.facts.accesses.get(channel.sym_name, [])
    puts = [op for op in accesses if isinstance(op, ChannelPutOp)]
    gets = [op for op in accesses if isinstance(op, ChannelGetOp)]
    if bool(puts) is bool(gets):
        return
    lone, there, missing = (puts, "put", "get") if puts else (gets, "get", "put")
    text = "failed to find the other side of air.channel"
    yield subject.finding(
        lone[0],
        "error",
        "channel-no-partner",
        f"@{channel.sym_name} has {len(lone)} air.channel.{there} and no air.channel.{missing}: {text}",
        diagnostic=f"'{lone[0].name}' op {text}",
        source=LOWERING,
        remedy=f"add air.channel.{missing} @{channel.sym_name} in the room at the other end, or remove the channel",
        # An end on a tile may be lowered without its partner, and then waits for ever.
        certain=memory_space(lone[0].memref.type) == L3,
    )


def _indices(subject: Subject, access: ChannelAccess, channel: ChannelOp) -> Iterator[Finding]:
    for position, index in enumerate(access.indices):
        owner = index.owner
        loop = owner.parent_op() if isinstance(owner, Block) else None
        if isinstance(owner, Block) and loop is not None and loop.name == "scf.for" and owner.args[0] is index:
            text = (
                f"channel index {position} is an scf.for induction variable; channel bundle indices must not be "
                "temporal scf.for induction variables"
            )
            yield _refused(
                subject,
                access,
                "channel-index-loop",
                text,
                text,
                "index with herd or launch ids or an scf.parallel variable; a loop over time repeats one index",
            )
            return
    extents = channel.size
    if isinstance(access, ChannelGetOp) and channel.broadcast_shape is not None:
        extents = channel.broadcast_shape
    yield from _in_range(subject, access, extents)


def _in_range(subject: Subject, access: ChannelAccess, extents: Sequence[int]) -> Iterator[Finding]:
    for position, (index, extent) in enumerate(zip(access.indices, extents, strict=False)):
        number = subject.facts.values.constant(index)
        if number is not None and not 0 <= number < extent:
            yield subject.finding(
                access,
                "error",
                "channel-index-range",
                f"index {position} of @{access.chan_name} is {number}, but the channel has {extent} there",
                source=SOURCE,
                remedy=f"use an index from 0 to {extent - 1}, or declare the channel with size {number + 1}",
                certain=False,
            )


def _kind(subject: Subject, access: ChannelAccess, channel: ChannelOp) -> Iterator[Finding]:
    """What channels that are not streams ask of their ends."""
    space = memory_space(access.memref.type)
    if channel.channel_type == "npu_mmio" and space is not None:
        is_put = isinstance(access, ChannelPutOp)
        wanted, name, what = (L3, "L3", "put source") if is_put else (L1, "L1", "get destination")
        if space != wanted:
            text = f'channel_type="npu_mmio" {what} must be in {name} (memory_space={wanted}), got memory_space={space}'
            yield _refused(subject, access, "mmio-memory-space", text, text, f"use a memref in memory space {wanted}")
    if channel.channel_type == "gpu_symmetric_heap" and around(access, RankOp) is None:
        end = "put" if isinstance(access, ChannelPutOp) else "get"
        text = f'channel_type="gpu_symmetric_heap" {end} requires an enclosing air.rank scope'
        yield _refused(subject, access, "symmetric-heap-rank", text, text, 'use "npu_dma_stream" on an NPU')


def _padding(subject: Subject, op: DmaMemcpyNdOp | ChannelAccess) -> Iterator[Finding]:
    before, after = op.pad_before, op.pad_after
    if before is None and after is None:
        return
    if before is None or after is None:
        text = "pad_before and pad_after must both be present or both absent"
    elif len(before) != len(after):
        text = "pad_before and pad_after must have the same number of dimensions"
    elif min((*before, *after), default=0) < 0:
        text = "padding values must be non-negative"
    elif max((*before, *after), default=0) > MAX_PAD:
        text = f"padding values must be <= {MAX_PAD}"
    else:
        return
    dims = len(before or after or [])
    yield _refused(
        subject,
        op,
        "dma-padding",
        text,
        text,
        f"give both as {dims} numbers from 0 to {MAX_PAD}: pad_before = {[0] * dims}",
    )


def _ranks(subject: Subject, op: DmaMemcpyNdOp | ChannelAccess) -> Iterator[Finding]:
    for label, window in op.windows().items():
        sizes, strides = len(window.sizes), len(window.strides)
        if sizes != strides:
            text = f"{label} sizes and strides must have the same number of dimensions, but got {sizes} and {strides}"
            yield _refused(subject, op, "dma-rank", text, text, f"give {max(sizes, strides)} of each")
