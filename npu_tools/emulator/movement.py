"""air.dma_memcpy_nd, air.channel.put and air.channel.get as instructions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from xdsl.ir import Attribute, Operation

from npu_tools.air.dialect import ChannelGetOp, ChannelPutOp, DmaMemcpyNdOp
from npu_tools.emulator.channels import Channel, Chunk, Stream, Where, index_key, lane_indices
from npu_tools.emulator.code import Builder
from npu_tools.emulator.elements import bits_of, from_device_bytes, memory_space, to_device_bytes
from npu_tools.emulator.journal import Journal, Load, Save
from npu_tools.emulator.memops import memref_type
from npu_tools.emulator.memory import MemRef
from npu_tools.emulator.outside import Outside, OutsideWindow
from npu_tools.emulator.pool import LEVELS
from npu_tools.emulator.tasks import Task, Wait
from npu_tools.emulator.types import Array, Fault, Instruction
from npu_tools.emulator.windows import Locate, Pads, compile_window, move, padded

if TYPE_CHECKING:
    from npu_tools.emulator.machine import Machine

Found = TypeVar("Found")


def pads_of(op: DmaMemcpyNdOp | ChannelPutOp) -> Pads | None:
    """Padding of a source window, None where there is none."""
    before, behind = op.pad_before, op.pad_after
    if not before and not behind:
        return None
    length = max(len(before or ()), len(behind or ()))
    return tuple(before or (0,) * length), tuple(behind or (0,) * length)


def dma_instruction(op: DmaMemcpyNdOp, builder: Builder) -> Instruction:
    """A strided copy."""
    source, target = memref_type(op.src), memref_type(op.dst)
    if source.element_type != target.element_type:
        raise Fault(
            "type-mismatch",
            f"a DMA copies bytes and cannot turn {source.element_type} into {target.element_type}",
            "convert on a core, with arith.truncf or arith.extf",
        )
    find_source = compile_window(builder, op.src, op.src_window, "the source window")
    find_target = compile_window(builder, op.dst, op.dst_window, "the destination window")
    pads = pads_of(op)
    levels = (LEVELS.get(memory_space(source), "L3"), LEVELS.get(memory_space(target), "L3"))
    machine = builder.machine
    moved = machine.counters.dma_bits
    bits = bits_of(source.element_type)

    def dma(frame: Any) -> None:
        regs = frame.regs
        task = cast("Task", frame)
        try:
            destination = find_target(regs)
            count = move(find_source(regs), destination, pads) * frame.gx * frame.gy * bits
        except OutsideWindow as fault:
            machine.fault_at(fault, task, op)
            partly(find_source, find_target, regs, pads)
            return
        moved[levels] = moved.get(levels, 0) + count
        if destination.buffer.lanes == (1, 1) and not frame.soft:
            machine.writers.wrote(task, destination)
        if machine.trace is not None:
            machine.trace.moved(task, levels, count // 8)

    return dma


def window_or_outside(find: Locate, regs: list[Any]) -> MemRef | Outside:
    """The window, also where it reaches beyond its memref."""
    try:
        return find(regs)
    except OutsideWindow as fault:
        return fault.outside


def partly(find_source: Locate, find_target: Locate, regs: list[Any], pads: Pads | None) -> None:
    """A DMA with a window that reaches beyond its memref: move what there is."""
    source, target = window_or_outside(find_source, regs), window_or_outside(find_target, regs)
    if pads is not None and isinstance(source, MemRef):
        values, _ = padded(source, pads)
    else:
        values = source.read() if isinstance(source, Outside) else source.array()
    if math.prod(values.shape[2:]) != math.prod(target.shape):
        raise Fault(
            "count-mismatch",
            f"{math.prod(values.shape[2:])} elements come and {math.prod(target.shape)} fit into the other window",
            "make the products of the two size lists equal",
        )
    target.write(values.reshape(*values.shape[:2], *target.shape))


def channel_of(op: ChannelPutOp | ChannelGetOp, builder: Builder) -> Channel:
    """The declared channel.

    Raises:
        Fault: none of that name is declared.
    """
    channel = builder.machine.channels.get(op.chan_name)
    if channel is None:
        declared = ", ".join(f"@{name}" for name in builder.machine.channels) or "none"
        raise Fault(
            "unknown-symbol",
            f"no air.channel @{op.chan_name} is declared (declared: {declared})",
            f'add "air.channel"() {{sym_name = "{op.chan_name}"}} : () -> () to the module',
        )
    return channel


def is_relayed(op: ChannelPutOp | ChannelGetOp, builder: Builder) -> bool:
    """Whether a memtile's DMA makes this transfer: a segment does, on an L2 buffer."""
    return builder.soft and memory_space(memref_type(op.memref)) == 1


def compile_indices(
    op: ChannelPutOp | ChannelGetOp, builder: Builder, resolve: Callable[[Where, Where], Found]
) -> Callable[[Any], list[Found]]:
    """What `resolve` makes of the channel index of each lane; one entry where all lanes share it."""
    slots = [builder.slot(index) for index in op.indices]
    known: dict[tuple[Any, ...], list[Found]] = {}

    def find(frame: Any) -> list[Found]:
        regs = frame.regs
        values = [regs[slot] for slot in slots]
        instance = frame.segment
        key = (instance, index_key(values, frame.gx, frame.gy))
        found = known.get(key)
        if found is None:
            indices = lane_indices(values, frame.gx, frame.gy)
            found = known[key] = [resolve(index, instance) for index in indices]
        return found

    return find


def put_instruction(op: ChannelPutOp, builder: Builder) -> Instruction:
    """Send a window. Cores wait while the channel holds its depth of transfers; launches and segments do not."""
    channel = channel_of(op, builder)
    targets = compile_indices(op, builder, channel.targets)
    find = builder.machine.windows[op] = compile_window(builder, op.memref, op.window, "the window")
    pads = pads_of(op)
    machine = builder.machine
    scheduler = machine.scheduler
    level = LEVELS.get(memory_space(memref_type(op.memref)), "L3")
    element = memref_type(op.memref).element_type
    bits, mixed = bits_of(element), channel.mixed
    sent = machine.counters.channel_bits
    relayed, memref_slot = is_relayed(op, builder), builder.slot(op.memref)

    def put(frame: Any) -> Any:
        task = cast("Task", frame)
        groups = targets(frame)
        if len(groups) == 1 and task.gx * task.gy > 1:
            groups = groups * (task.gx * task.gy)
        if not task.soft and any(stream.full for group in groups for stream in group):
            return _room(task, channel, groups)
        try:
            window = find(task.regs)
            values, mask = (window.array(), window.unwritten_part()) if pads is None else padded(window, pads)
        except OutsideWindow as fault:
            machine.fault_at(fault, task, op)
            values, mask = fault.outside.read(), None
        count = math.prod(values.shape[2:])
        flat = _flat_copy(values, count)
        masks = None if mask is None else _flat_copy(mask, count)
        if machine.pool.journal is not None:
            plain = masks is None and pads is None and not mixed
            _note_put(machine.pool.journal, op, flat.reshape(values.shape), values, plain)
        if mixed:
            flat = to_device_bytes(flat, element)
            masks = None if masks is None else np.repeat(masks, bits // 8, axis=2)
        for lane, group in enumerate(groups):
            x, y = divmod(lane, task.gy)
            data = _lane(flat, x, y)
            unwritten = None if masks is None else _lane(masks, x, y)
            for stream in group:
                stream.push(Chunk(data, unwritten, clock=task.clock))
                if stream.receivers:
                    scheduler.wake(stream.receivers)
        total = count * len(groups) * bits
        if relayed and not task.beside:
            machine.relays.note(task, task.regs[memref_slot].buffer, put, op, None)
        sent[channel.name, level] = sent.get((channel.name, level), 0) + total
        if machine.trace is not None:
            machine.trace.sent(task, channel.name, total // 8)
        return None

    return put


def _note_put(journal: Journal, op: ChannelPutOp, flat: Array, values: Array, plain: bool) -> None:
    if not plain:
        journal.spoil()
    elif memory_space(memref_type(op.memref)) == 0:
        journal.note(Load(op, flat), flat.nbytes)
    else:
        journal.copied(flat, values)


def _flat_copy(values: Array, count: int) -> Array:
    flat = np.empty((*values.shape[:2], count), values.dtype)
    flat.reshape(values.shape)[...] = values
    return flat


def _lane(values: Array, x: int, y: int) -> Array:
    return values[x if values.shape[0] > 1 else 0, y if values.shape[1] > 1 else 0]


def _room(task: Task, channel: Channel, groups: list[list[Stream]]) -> Wait:
    free = np.array([not any(stream.full for stream in group) for group in groups]).reshape(task.gx, task.gy)
    full = [stream for group in groups for stream in group if stream.full]

    def detail() -> str:
        stream = full[0]
        return (
            f"room in channel @{channel.name}{list(stream.index)}, which holds {len(stream.chunks)} transfers that "
            f"nobody has taken ({stream.puts} puts, {stream.gets} gets)"
        )

    return Wait("put", [stream.senders for stream in full], detail, ready=free if free.any() else None, streams=full)


def get_instruction(op: ChannelGetOp, builder: Builder) -> Instruction:
    """Receive into a window: waits until as many elements as it holds have come."""
    channel = channel_of(op, builder)
    sources = compile_indices(op, builder, channel.stream)
    find = builder.machine.windows[op] = compile_window(builder, op.memref, op.window, "the window")
    machine = builder.machine
    scheduler = machine.scheduler
    level = LEVELS.get(memory_space(memref_type(op.memref)), "L3")
    element = memref_type(op.memref).element_type
    bits, mixed = bits_of(element), channel.mixed
    received = machine.counters.channel_bits
    relayed = is_relayed(op, builder)

    def get(frame: Any) -> Any:
        task = cast("Task", frame)
        window = find(task.regs)
        count = window.size * (bits // 8) if mixed else window.size
        streams = sources(frame)
        lanes = task.gx * task.gy
        if len(streams) == 1:
            if streams[0].available < count * lanes:
                return _data(machine, task, channel, streams * lanes, count)
            streams = streams * lanes if lanes > 1 else streams
        elif len(set(map(id, streams))) == lanes:
            for stream in streams:
                if stream.available < count:
                    return _data(machine, task, channel, streams, count)
        else:
            needed: dict[int, int] = {}
            for stream in streams:
                needed[id(stream)] = needed.get(id(stream), 0) + count
            if any(stream.available < needed[id(stream)] for stream in streams):
                return _data(machine, task, channel, streams, count)
        _receive(task, op, window, streams, count, element if mixed else None)
        if relayed and not task.beside:
            machine.relays.note(task, window.buffer, get, op, streams[0])
        for stream in streams:
            if stream.senders:
                scheduler.wake(stream.senders)
        total = window.size * len(streams) * bits
        received[level, channel.name] = received.get((level, channel.name), 0) + total
        if window.buffer.lanes == (1, 1) and not task.soft:
            machine.writers.wrote(task, window)
        if machine.trace is not None:
            machine.trace.received(task, channel.name, total // 8)
        return None

    return get


def _receive(
    task: Task, op: ChannelGetOp, window: MemRef, streams: list[Stream], count: int, element: Attribute | None
) -> None:
    """Take from the streams into the window; `element` is what travelling bytes stand for."""
    taken = [stream.take(count) for stream in streams]
    if element is not None:
        taken = [(from_device_bytes(data, element), _by_element(mask, window.size), at) for data, mask, at in taken]
        count = window.size
    task.clock = max(task.clock, *(clock for _, _, clock in taken))
    first = taken[0][0]
    no_mask = all(mask is None for _, mask, _ in taken)
    journal = window.buffer.pool.journal
    if journal is not None and (element is not None or not no_mask):
        journal.spoil()
    if all(data is first for data, _, _ in taken) and no_mask:
        whole = first.reshape(1, 1, *window.shape)
        window.write(whole)
        if journal is not None and window.buffer.space == 0:
            journal.note(Save(op, whole))
        return
    values = np.empty((task.gx, task.gy, count), first.dtype)
    flat = values.reshape(-1, count)
    for lane, (data, _, _) in enumerate(taken):
        flat[lane] = data
        if journal is not None:
            journal.copied(flat[lane], data)
    unwritten: Array | None = None
    if not no_mask:
        unwritten = np.zeros(values.shape, np.bool_)
        masks = unwritten.reshape(-1, count)
        for lane, (_, mask, _) in enumerate(taken):
            if mask is not None:
                masks[lane] = mask
        unwritten = unwritten.reshape(task.gx, task.gy, *window.shape)
    spread = values.reshape(task.gx, task.gy, *window.shape)
    window.write(spread, unwritten)
    if journal is not None and window.buffer.space == 0:
        journal.note(Save(op, spread))


def _by_element(mask: Array | None, count: int) -> Array | None:
    return None if mask is None else np.asarray(mask.reshape(count, -1).any(axis=1))


def _data(machine: Machine, task: Task, channel: Channel, streams: list[Stream], count: int) -> Wait:
    left = {id(stream): stream.available for stream in streams}
    ready: list[bool] = []
    for stream in streams:
        enough = left[id(stream)] >= count
        if enough:
            left[id(stream)] -= count
        ready.append(enough)
    lacking = [stream for stream, enough in zip(streams, ready, strict=True) if not enough]
    for stream in lacking:
        stream.wanted = max(stream.wanted, count)
        if stream.senders:
            machine.scheduler.wake(stream.senders)
    mask = np.array(ready).reshape(task.gx, task.gy)

    def detail() -> str:
        stream = lacking[0]
        return (
            f"{count} {'bytes' if channel.mixed else 'elements'} from channel @{channel.name}{list(stream.index)}, where {stream.available} are "
            f"({stream.puts} puts of {stream.put_elements} elements, {stream.gets} gets of {stream.get_elements})"
        )

    return Wait(
        "get",
        [stream.receivers for stream in lacking],
        detail,
        ready=mask if mask.any() else None,
        soft=task.soft,
        streams=lacking,
        needed=count,
    )


def memory_op(op: Operation, builder: Builder) -> Instruction:
    """The instruction of a data movement op."""
    if isinstance(op, DmaMemcpyNdOp):
        return dma_instruction(op, builder)
    if isinstance(op, ChannelPutOp):
        return put_instruction(op, builder)
    assert isinstance(op, ChannelGetOp), "only data movement ops come here"
    return get_instruction(op, builder)
