"""What no tool diagnoses: windows past the end of a buffer in L3, and outputs that are only partly written.

Older builders divided N by tile_n alone, or took an M below tile_m·herd_m: the program compiles, and runs wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import DmaMemcpyNdOp, HerdOp, Hierarchy
from npu_tools.check.subject import Subject
from npu_tools.check.values import Linear, Span
from npu_tools.check.walk import L3, Facts, Move, elements, root, shape, visits
from npu_tools.findings import Finding

SOURCE = (
    "Xilinx/mlir-air programming_examples/matrix_multiplication (silent traps: N % (tile_n·herd_n), M < tile_m·herd_m)"
)


def find(subject: Subject) -> Iterator[Finding]:
    """Transfers that reach outside an L3 buffer, and L3 buffers that are written in part."""
    said: set[tuple[Operation, str]] = set()
    for op in subject.facts.ops:
        for move in subject.facts.moves(op):
            if move.space == L3 and (op, move.side) not in said:
                said.add((op, move.side))
                yield from _bounds(subject, move)
    yield from _coverage(subject)


def _bounds(subject: Subject, move: Move) -> Iterator[Finding]:
    count = elements(move.memref.type)
    reach = _reach(subject.facts, move)
    if count is None or reach is None or (reach[0] >= 0 and reach[1] < count):
        return
    low, high = reach
    over = high - count + 1
    what = {"in": "written", "out": "read"}[move.side]
    extents = shape(move.memref.type) or ()
    yield subject.finding(
        move.op,
        "warning",
        "window-out-of-bounds",
        f"elements {low} to {high} of a buffer of {count} ({'x'.join(str(e) for e in extents)}) are {what}: "
        + (f"{over} past its end" if over > 0 else f"{-low} before its start")
        + "; nothing refuses this, other data is touched",
        source=SOURCE,
        remedy="make the extents multiples of the tile times the herd (M of tile_m·herd_m, N of tile_n·herd_n): pad the "
        + f"buffer to {high + 1} elements, or use smaller tiles or fewer of them",
        certain=False,
    )


def _reach(facts: Facts, move: Move) -> Span | None:
    """The first and last element touched over all loops and tiles, or None where that is not known."""
    if move.window.is_whole:
        return None
    sizes, strides = facts.values.constants(move.window.sizes), facts.values.constants(move.window.strides)
    if sizes is None or strides is None or len(sizes) != len(strides) or min(sizes, default=0) < 1:
        return None
    if _is_guarded(move.op):
        return None
    address = Linear(0)
    # A list that is shorter than the other belongs to the innermost dimensions.
    for offset, stride in zip(reversed(move.window.offsets), reversed(strides), strict=False):
        form = facts.values.linear(offset)
        if form is None:
            return None
        address = address.plus(form, stride)
    span = facts.values.span(address)
    if span is None:
        return None
    reach = sum(stride * (size - 1) for size, stride in zip(sizes, strides, strict=True))
    return span[0], span[1] + reach


def _is_guarded(op: Operation) -> bool:
    """Whether a branch around the op may keep it from running for some ids."""
    parent = op.parent_op()
    while parent is not None:
        if parent.name in ("affine.if", "scf.if", "scf.index_switch", "scf.while"):
            return True
        parent = parent.parent_op()
    return False


def _coverage(subject: Subject) -> Iterator[Finding]:
    """Function arguments that are written, never read, and written with fewer elements than they have."""
    facts = subject.facts
    for function in facts.program.functions():
        written: dict[SSAValue, int | None] = {}
        place: dict[SSAValue, Operation] = {}
        read: set[SSAValue] = set()
        for op, times in _counted(facts, function.body.blocks[0].parent_op()):
            for move in facts.moves(op):
                if move.space != L3:
                    continue
                target = root(move.memref)
                if move.side == "out":
                    read.add(target)
                    continue
                size = _window_elements(facts, move)
                known = written.get(target, 0)
                place[target] = op
                written[target] = None if known is None or size is None or times is None else known + size * times
        for target, total in written.items():
            count = elements(target.type)
            if total is None or count is None or target in read or total >= count:
                continue
            yield subject.finding(
                place[target],
                "warning",
                "output-partly-written",
                f"all transfers together write {total} of this output's {count} elements; the rest keeps what was there",
                source=SOURCE,
                remedy=f"make the tiles and the launch cover the whole extent: {total} of {count} elements is "
                f"{_ratio(total, count)}",
                certain=False,
            )


def _counted(facts: Facts, function: Operation | None) -> Iterator[tuple[Operation, int | None]]:
    """The data movements of a function with how often each runs, over launches, segments, tiles and loops."""
    if function is None:
        return
    queue: list[tuple[Operation, int | None]] = [(function, 1)]
    while queue:
        room, times = queue.pop()
        for visit in visits(room.regions[0], facts.values):
            runs = None if times is None or visit.trips is None or not visit.sure else times * visit.trips
            op = visit.op
            if op.name in ("air.launch", "air.segment", "air.rank"):
                size = _instances(facts, op)
                queue.append((op, None if runs is None or size is None else runs * size))
            elif isinstance(op, HerdOp):
                for use in facts.uses(op):
                    for inner in use.visits:
                        known = runs is not None and inner.trips is not None and inner.sure
                        yield inner.op, (runs or 0) * (inner.trips or 0) * len(use.tiles) if known else None
            elif isinstance(op, DmaMemcpyNdOp) or op.name.startswith("air.channel"):
                yield op, runs


def _instances(facts: Facts, op: Operation) -> int | None:
    if not isinstance(op, Hierarchy):
        return 1
    sizes = facts.values.constants(list(op.sizes))
    if sizes is None:
        return None
    total = 1
    for size in sizes:
        total *= size
    return total


def _window_elements(facts: Facts, move: Move) -> int | None:
    if move.window.is_whole:
        return elements(move.memref.type)
    sizes, strides = facts.values.constants(move.window.sizes), facts.values.constants(move.window.strides)
    if sizes is None or strides is None:
        return None
    total = 1
    for size, stride in zip(sizes, strides, strict=False):
        total *= size if stride else 1
    return total


def _ratio(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"
