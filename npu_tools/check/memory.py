"""Bytes: what a core's L1 and the memtiles' L2 must hold at once.

Buffers are static: an allocation keeps its place whatever `memref.dealloc` says, so all of a tile's allocations count
together, with the stack. A buffer allocated outside a herd for all its tiles counts with the part one tile touches,
as upstream shrinks it. What ping-pong doubles is counted apart, because a compile option turns it off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import Hierarchy, SegmentOp
from npu_tools.check.pingpong import SOURCE as PING_PONG_SOURCE
from npu_tools.check.pingpong import doubled
from npu_tools.check.subject import Subject
from npu_tools.check.values import Values
from npu_tools.check.walk import L1, L2, Herd, Segment, around, memory_space, moves, root, shape, size_bytes
from npu_tools.findings import Finding

DIAGNOSTIC = "'aie.tile' op allocated buffers exceeded available memory"
SEQUENTIAL = "Basic sequential allocation also failed."
SHARE_SOURCE = "Xilinx/mlir-air mlir/lib/Transform (air-shrink-memref-sizes-by-access)"


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation as it lies in a memory: its bytes, and how many copies the compiler makes."""

    op: Operation
    bytes: int
    copies: int

    def __str__(self) -> str:
        kind = shape(self.op.results[0].type)
        name = "x".join(str(extent) for extent in kind) if kind else "?"
        return f"{name} {self.bytes} B" + (f" x{self.copies}" if self.copies > 1 else "")


def find(subject: Subject) -> Iterator[Finding]:
    """Tiles and memtiles that hold more than they can."""
    for segment in subject.facts.segments:
        for herd in segment.herds:
            yield from _core(subject, herd)
        if segment.op is not None:
            yield from _memtiles(subject, segment, segment.op)


def _core(subject: Subject, herd: Herd) -> Iterator[Finding]:
    buffers = _core_buffers(subject, herd)
    if not buffers:
        return
    limit = subject.device.limit("core.memory_bytes")
    stack = subject.stack_bytes
    single = sum(buffer.bytes for buffer in buffers) + stack
    double = sum(buffer.bytes * buffer.copies for buffer in buffers) + stack
    listed = _listed(buffers)
    if single > limit.value:
        yield subject.finding(
            herd.op,
            "error",
            "l1-overflow",
            f"each tile of herd {herd.name} needs {single} B of L1 ({listed}, {stack} B stack), {single - limit.value} B"
            f" more than the {limit.value} B it has",
            diagnostic=f"{DIAGNOSTIC}. {SEQUENTIAL}",
            limit=limit,
            remedy=_shrink(buffers, limit.value - stack),
        )
    elif double > limit.value and subject.options.omit_pingpong not in ("L1", "all"):
        yield _double(subject, herd, buffers, double)
    elif _earlier(subject, herd) > limit.value and subject.options.omit_pingpong is None:
        yield subject.finding(
            herd.op,
            "warning",
            "l1-overflow-ping-pong",
            f"each tile of herd {herd.name} needs {single} B of L1 ({listed}), and {_earlier(subject, herd)} B with a "
            "toolchain from before 2026-08, which doubles every buffer allocated in its loop; a tile has "
            f"{limit.value} B",
            diagnostic=f"{DIAGNOSTIC}. {SEQUENTIAL}",
            limit=limit,
            source=PING_PONG_SOURCE,
            remedy=f'compile with omit_pingpong="L1", or make the buffers half as large: '
            f"{_earlier(subject, herd) // 2} B then",
            certain=False,
        )
    elif not _banks_hold(buffers, subject):
        banks = subject.device.limit("core.memory_banks")
        yield subject.finding(
            herd.op,
            "note",
            "l1-banks",
            f"the buffers of herd {herd.name} ({listed}) do not fit bank by bank; the compiler falls back to placing "
            "them one after the other, and accesses to one bank may stall",
            diagnostic="Bank-aware allocation failed, trying basic sequential allocation.",
            limit=banks,
            remedy=f"keep single buffers at {limit.value // banks.value} B or less where speed matters",
            certain=False,
        )


def _double(subject: Subject, herd: Herd, buffers: Sequence[Buffer], double: int) -> Finding:
    limit = subject.device.limit("core.memory_bytes")
    decided = subject.options.omit_pingpong is not None
    return subject.finding(
        herd.op,
        "error" if decided else "warning",
        "l1-overflow-ping-pong",
        f"each tile of herd {herd.name} needs {double} B of L1 once the compiler doubles the buffers filled in its "
        f"loop ({_listed(buffers)}), {double - limit.value} B more than the {limit.value} B it has; with single "
        f"buffers it fits",
        diagnostic=f"{DIAGNOSTIC}. {SEQUENTIAL}",
        limit=limit,
        source=PING_PONG_SOURCE,
        remedy='compile with omit_pingpong="L1", or ' + _shrink(buffers, limit.value - subject.stack_bytes),
        certain=decided,
    )


def _earlier(subject: Subject, herd: Herd) -> int:
    """The bytes of a tile with the ping-pong pass of earlier toolchains."""
    return _total(_core_buffers(subject, herd, earlier=True)) + subject.stack_bytes


def _core_buffers(subject: Subject, herd: Herd, *, earlier: bool = False) -> list[Buffer]:
    """The buffers of the fullest tile of a herd."""
    facts = subject.facts
    best: list[Buffer] = []
    two = {op for one in herd.ops for op in doubled(facts, one.body, earlier=earlier)}
    tiles = {tile for op in herd.ops for use in facts.uses(op) for tile in use.tiles}
    shared = _shared(herd, facts.values)
    for tile in _different(subject, herd, tiles):
        buffers = list(shared)
        for op in herd.ops:
            for use in facts.uses(op):
                if tile not in use.tiles:
                    continue
                for visit in use.visits:
                    kind = visit.op.results[0].type if visit.op.results else None
                    if visit.op.name == "memref.alloc" and kind is not None and memory_space(kind) == L1:
                        count = size_bytes(kind)
                        if count and _is_used(visit.op):
                            buffers.append(Buffer(visit.op, count, 2 if visit.op in two else 1))
        if _total(buffers) > _total(best):
            best = buffers
    return best


def _different(subject: Subject, herd: Herd, tiles: set[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """One tile of each kind."""
    seen: set[tuple[int, ...]] = set()
    for tile in sorted(tiles):
        key = tuple(index for op in herd.ops for index, use in enumerate(subject.facts.uses(op)) if tile in use.tiles)
        if key not in seen:
            seen.add(key)
            yield tile


def _total(buffers: Sequence[Buffer]) -> int:
    return sum(buffer.bytes * buffer.copies for buffer in buffers)


def _shared(herd: Herd, values: Values) -> list[Buffer]:
    """L1 buffers handed into the herd, with the bytes one tile touches of each."""
    touched: dict[Operation, int] = {}
    for op in herd.ops:
        for operand, argument in zip(op.kernel_operands, op.kernel_args, strict=False):
            owner = root(operand).owner
            if memory_space(operand.type) != L1 or not isinstance(owner, Operation) or owner.name != "memref.alloc":
                continue
            whole = size_bytes(owner.results[0].type) or 0
            part = _part(argument, list(op.ids), values)
            if argument.uses:
                touched[owner] = max(touched.get(owner, 0), whole if part is None else min(part, whole))
    return [Buffer(op, count, 1) for op, count in touched.items()]


def _part(argument: SSAValue, ids: list[SSAValue], values: Values) -> int | None:
    """The bytes of the largest window that depends on the tile's ids, or None where one does not."""
    whole, count = size_bytes(argument.type), 0
    total = 1
    for extent in shape(argument.type) or ():
        total *= extent
    if whole is None or not total:
        return None
    for use in argument.uses:
        op = use.operation
        if op.name == "memref.subview":
            sizes = _static_sizes(op)
            own = [operand for operand in list(op.operands)[1:]]
        else:
            found = [move for move in moves(op) if move.memref is argument]
            if not found or found[0].window.is_whole:
                if op.name == "memref.dealloc":
                    continue
                return None
            sizes = values.constants(found[0].window.sizes)
            own = [entry for entry in found[0].window.offsets if isinstance(entry, SSAValue)]
        if sizes is None or not any(values.depends_on(value, ids) for value in own):
            return None
        product = 1
        for size in sizes:
            product *= size
        count = max(count, product)
    return whole // total * count if count else None


def _static_sizes(subview: Operation) -> list[int] | None:
    kind = shape(subview.results[0].type)
    return list(kind) if kind is not None else None


def _is_used(alloc: Operation) -> bool:
    return any(use.operation.name != "memref.dealloc" for result in alloc.results for use in result.uses)


def _banks_hold(buffers: Sequence[Buffer], subject: Subject) -> bool:
    """Whether buffers go into banks whole, largest first, each into the emptiest bank that takes it."""
    core = subject.device.core
    room = [core.memory_bytes // core.memory_banks] * core.memory_banks
    room[0] -= subject.stack_bytes
    for size in sorted((buffer.bytes for buffer in buffers for _ in range(buffer.copies)), reverse=True):
        bank = max(range(len(room)), key=lambda index: room[index])
        if room[bank] < size:
            return False
        room[bank] -= size
    return True


def _memtiles(subject: Subject, segment: Segment, op: SegmentOp) -> Iterator[Finding]:
    """L2: all buffers of a segment against all its memtiles, and single ones against one memtile."""
    two = doubled(subject.facts, op.body)
    buffers: list[Buffer] = []
    for inner in op.walk():
        kind = inner.results[0].type if inner.results else None
        if inner.name != "memref.alloc" or kind is None or memory_space(kind) != L2:
            continue
        count = size_bytes(kind)
        if count and _is_used(inner) and around(inner, SegmentOp) is op:
            buffers.append(Buffer(inner, count, 2 if inner in two else 1))
    if not buffers:
        return
    limit = subject.device.limit("memtile.memory_bytes")
    across = segment.unroll[0] or 1
    columns = max(1, subject.device.columns // max(1, across))
    room = columns * limit.value
    single, double = sum(buffer.bytes for buffer in buffers), _total(buffers)
    if single > room:
        yield subject.finding(
            op,
            "error",
            "l2-overflow",
            f"the segment's L2 buffers take {single} B ({_listed(buffers)}), {single - room} B more than {columns} "
            f"memtiles of {limit.value} B hold",
            diagnostic=DIAGNOSTIC,
            limit=limit,
            remedy=_shrink(buffers, room),
        )
    elif double > room and subject.options.omit_pingpong not in ("L2", "all"):
        decided = subject.options.omit_pingpong is not None
        yield subject.finding(
            op,
            "error" if decided else "warning",
            "l2-overflow-ping-pong",
            f"the segment's L2 buffers take {double} B once those filled in a loop are doubled ({_listed(buffers)}), "
            f"{double - room} B more than {columns} memtiles of {limit.value} B hold",
            diagnostic=DIAGNOSTIC,
            limit=limit,
            source=PING_PONG_SOURCE,
            remedy='compile with omit_pingpong="L2", or ' + _shrink(buffers, room),
            certain=decided,
        )
    for buffer in buffers:
        if buffer.bytes > limit.value and _is_whole_everywhere(buffer.op):
            yield subject.finding(
                buffer.op,
                "error",
                "l2-buffer-too-large",
                f"the buffer takes {buffer.bytes} B and is only moved whole, so it cannot be split over memtiles of "
                f"{limit.value} B",
                diagnostic=DIAGNOSTIC,
                limit=limit,
                remedy=f"move at most {limit.value} B at a time: {-(-buffer.bytes // limit.value)} or more parts",
            )


def _is_whole_everywhere(alloc: Operation) -> bool:
    """Whether every movement takes the whole buffer."""
    queue: list[SSAValue] = list(alloc.results)
    seen = False
    while queue:
        value = queue.pop()
        for use in value.uses:
            op = use.operation
            found = [move for move in moves(op) if move.memref is value]
            if found:
                seen = True
                if not all(move.window.is_whole for move in found):
                    return False
            elif op.name.startswith("air.") and op.regions:
                if isinstance(op, Hierarchy):
                    queue.extend(
                        argument
                        for operand, argument in zip(op.kernel_operands, op.kernel_args, strict=False)
                        if operand is value
                    )
                else:
                    return False
            elif op.name not in ("memref.dealloc",):
                return False
    return seen


def _listed(buffers: Sequence[Buffer]) -> str:
    shown = ", ".join(str(buffer) for buffer in sorted(buffers, key=lambda one: -one.bytes * one.copies)[:6])
    return shown + (f" and {len(buffers) - 6} more" if len(buffers) > 6 else "")


def _shrink(buffers: Sequence[Buffer], room: int) -> str:
    """What makes the buffers fit: the largest one cut to a power-of-two part, or how many bytes in all."""
    largest = max(buffers, key=lambda one: one.bytes * one.copies)
    rest = _total(buffers) - largest.bytes * largest.copies
    left = (room - rest) // largest.copies
    parts = 2
    while parts <= 1 << 12 and largest.bytes // parts > left:
        parts *= 2
    if left > 0 and largest.bytes // parts <= left and parts <= 1 << 12:
        kind = shape(largest.op.results[0].type) or ()
        name = "x".join(str(extent) for extent in kind)
        return (
            f"cut the {name} buffer from {largest.bytes} B to {largest.bytes // parts} B (1/{parts} of the tile): "
            f"{rest + largest.bytes // parts * largest.copies} B of {room} B then"
        )
    scale = 2
    while scale <= 1 << 12 and _total(buffers) // scale > room:
        scale *= 2
    return f"make all tiles 1/{scale} as large: {_total(buffers) // scale} B of {room} B then"
