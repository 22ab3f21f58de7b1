"""Which buffers the compiler doubles: the conditions of upstream's ping-pong pass, read off the source program.

The pass works on the lowered program: DMAs have become channels, and an allocation whose uses all lie in one innermost
loop has been sunk into it. Here a `dma_memcpy_nd` into a buffer counts as the channel.get it becomes. The deepest loop
that qualifies has its own allocations doubled; outer ones keep a single copy.

Source: Xilinx/mlir-air mlir/lib/Transform/AIRDependencyScheduleOpt.cpp (LabelScfForLoopForPingPongPattern,
AIRFuseAllocDealloc).
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Block, Operation, Region, SSAValue

from npu_tools.air.dialect import ChannelGetOp, DmaMemcpyNdOp, ExecuteOp, HerdOp, Hierarchy
from npu_tools.check.values import Values
from npu_tools.check.walk import L1, Facts, allocation, memory_space, root

SOURCE = "Xilinx/mlir-air mlir/lib/Transform/AIRDependencyScheduleOpt.cpp (air-label-scf-for-to-ping-pong)"
_WRITES = frozenset({"memref.store", "affine.store", "vector.transfer_write", "vector.store", "linalg.fill"})
_PURE = frozenset(
    {"memref.subview", "memref.cast", "memref.expand_shape", "memref.collapse_shape", "memref.reinterpret_cast"}
)


def doubled(facts: Facts, room: Region, *, earlier: bool = False) -> frozenset[Operation]:
    """The memref.alloc ops of a herd's or segment's body that end up with two copies.

    `earlier` asks the pass as it was before it looked at who touches a buffer first (2026-08): it doubled more.
    """
    if (room, earlier) not in facts.doubled:
        facts.doubled[room, earlier] = frozenset(_doubled(room, facts.values, earlier))
    return facts.doubled[room, earlier]


def _doubled(room: Region, values: Values, earlier: bool) -> set[Operation]:
    homes = _homes(room)
    found: set[Operation] = set()
    for loop in _loops(room):
        nested = any(_qualifies(inner, homes, values, earlier) for inner in _nested(loop))
        if _qualifies(loop, homes, values, earlier) and not nested:
            found.update(homes[loop])
    return found


def _homes(room: Region) -> dict[Operation, set[Operation]]:
    """For each loop the allocations that sit in it once sinking is done."""
    homes: dict[Operation, set[Operation]] = {loop: set() for loop in _loops(room)}
    for op in _ops(room):
        if op.name != "memref.alloc":
            continue
        users = [user for user in _users(op) if user.name != "memref.dealloc"]
        loop = _innermost_around(users, homes) if users else None
        own = _loop_of(op, homes)
        if loop is not None and (own is None or loop is own or own in _ancestors(loop)) and _sinks_into(loop, own):
            homes[loop].add(op)
        elif own is not None:
            homes[own].add(op)
    return homes


def _sinks_into(loop: Operation, own: Operation | None) -> bool:
    """Whether the pass moves allocations into this loop: not where another loop and other work share its body."""
    if loop is own:
        return True
    body = loop.regions[0].block
    nested = any(op.name in ("scf.for", "scf.parallel") for op in body.ops)
    impure = sum(not _is_pure(op) for op in body.ops if op is not body.last_op)
    return not (nested and impure <= 1)


def _qualifies(loop: Operation, homes: dict[Operation, set[Operation]], values: Values, earlier: bool) -> bool:
    if not homes[loop] or (not earlier and any(_unsafe(one, homes) for one in (loop, *_nested(loop)))):
        return False
    if any("air.disable_ping_pong" in one.attributes for one in (loop, *_nested(loop))):
        return False
    fills: dict[Operation, list[Operation]] = {}
    for op in _ops(loop.regions[0]):
        target = _filled(op)
        if target is None or target not in homes[loop]:
            continue
        if _trips_within(op, loop, values) != 1:
            return False
        fills.setdefault(target, []).append(op)
    return all(
        _exclusive(a, b, loop) for same in fills.values() for index, a in enumerate(same) for b in same[index + 1 :]
    )


def _unsafe(loop: Operation, homes: dict[Operation, set[Operation]]) -> bool:
    """A buffer of the loop that is read before it is written, or a shared one an opaque call may touch."""
    seen: set[Operation] = set()
    for op in _ops(loop.regions[0]):
        if op.name in ("memref.alloc", "memref.dealloc") or op.name in _PURE or isinstance(op, ExecuteOp):
            continue
        for operand in op.operands:
            if memory_space(operand.type) is None:
                continue
            alloc = allocation(operand)
            if alloc is not None and alloc in homes[loop]:
                if alloc not in seen:
                    seen.add(alloc)
                    if not _writes(op, operand):
                        return True
            elif op.name in ("func.call", "call") and _is_herd_argument(operand):
                return True
    return False


def _writes(op: Operation, memref: SSAValue) -> bool:
    """Whether the op surely overwrites the buffer without reading it."""
    if isinstance(op, ChannelGetOp):
        return True
    if isinstance(op, DmaMemcpyNdOp):
        return op.dst is memref
    return op.name in _WRITES and op.operands[-1 if op.name == "linalg.fill" else 1] is memref


def _filled(op: Operation) -> Operation | None:
    """The allocation a data movement fills."""
    if isinstance(op, ChannelGetOp):
        return allocation(op.memref)
    return allocation(op.dst) if isinstance(op, DmaMemcpyNdOp) else None


def _is_herd_argument(memref: SSAValue) -> bool:
    owner = memref.owner
    return (
        isinstance(owner, Block)
        and isinstance(owner.parent_op(), HerdOp)
        and memory_space(memref.type) == L1
        and root(memref) is not memref
    )


def _is_pure(op: Operation) -> bool:
    return op.name.startswith(("arith.", "affine.apply", "index.")) or op.name in _PURE


def _exclusive(a: Operation, b: Operation, loop: Operation) -> bool:
    """Whether two ops lie in different arms of one affine.if inside the loop."""
    arms_a, arms_b = dict(_arms(a, loop)), dict(_arms(b, loop))
    return any(branch in arms_b and arms_b[branch] is not region for branch, region in arms_a.items())


def _arms(op: Operation, loop: Operation) -> Iterator[tuple[Operation, Region]]:
    region = op.parent_region()
    while region is not None and (parent := region.parent_op()) is not None and parent is not loop:
        if parent.name == "affine.if":
            yield parent, region
        region = parent.parent_region()


def _trips_within(op: Operation, loop: Operation, values: Values) -> int | None:
    trips: int | None = 1
    parent = op.parent_op()
    while parent is not None and parent is not loop:
        if parent.name in ("scf.for", "affine.for", "scf.parallel", "scf.forall"):
            times = values.trips(parent)
            trips = None if trips is None or times is None else trips * times
        parent = parent.parent_op()
    return trips


def _users(alloc: Operation) -> Iterator[Operation]:
    """The ops that use an allocation, through views, executes and hierarchy arguments."""
    queue: list[SSAValue] = list(alloc.results)
    while queue:
        value = queue.pop()
        for use in value.uses:
            op = use.operation
            if op.name in _PURE:
                queue.extend(op.results)
            elif op.name == "air.execute_terminator" and isinstance(parent := op.parent_op(), ExecuteOp):
                if use.index + 1 < len(parent.results):
                    queue.append(parent.results[use.index + 1])
            else:
                yield op


def _innermost_around(ops: list[Operation], homes: dict[Operation, set[Operation]]) -> Operation | None:
    """The deepest loop that holds all the ops."""
    common: list[Operation] | None = None
    for op in ops:
        loops = [one for one in _ancestors(op) if one in homes]
        common = loops if common is None else [one for one in common if one in loops]
    return common[0] if common else None


def _loop_of(op: Operation, homes: dict[Operation, set[Operation]]) -> Operation | None:
    return next((one for one in _ancestors(op) if one in homes), None)


def _ancestors(op: Operation) -> Iterator[Operation]:
    parent = op.parent_op()
    while parent is not None:
        yield parent
        parent = parent.parent_op()


def _nested(loop: Operation) -> list[Operation]:
    return list(_loops(loop.regions[0]))


def _loops(region: Region) -> Iterator[Operation]:
    for op in _ops(region):
        if op.name == "scf.for":
            yield op


def _ops(region: Region) -> Iterator[Operation]:
    """The ops of a room in order, without those of rooms inside it."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            if isinstance(op, Hierarchy):
                continue
            for nested in op.regions:
                yield from _ops(nested)
