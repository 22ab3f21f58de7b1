"""What a program does where: rooms, herds as the placer sees them, and what each tile reaches.

The rules of this package read these facts and nothing else of the program, so that they stay short:

    facts = Facts.of(program)
    for segment in facts.segments:
        for herd in segment.herds:            # ops that share a name are one herd, as upstream has it
            for use in herd.uses(facts):      # tiles that run the same ops
                use.tiles, use.visits, use.values

A visit is an op reached, with how often; ops under a branch that no tile takes are not visited. Nothing here knows a
device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, cast

from xdsl.dialects.builtin import DYNAMIC_INDEX, FixedBitwidthType, IndexType, IntegerAttr, MemRefType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from npu_tools.air import Program
from npu_tools.air.dialect import (
    ChannelAccess,
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    HerdOp,
    Hierarchy,
    LaunchOp,
    SegmentOp,
)
from npu_tools.air.windows import Window
from npu_tools.check.values import Values

L1, L2, L3 = 2, 1, 0
MAX_TILES = 4096
"""Herds with more tiles are not looked at tile by tile; no device has as many."""
_VIEWS = frozenset(
    {
        "memref.subview",
        "memref.cast",
        "memref.expand_shape",
        "memref.collapse_shape",
        "memref.reinterpret_cast",
        "memref.transpose",
        "memref.memory_space_cast",
        "memref.view",
    }
)
_BRANCHES = frozenset({"affine.if", "scf.if", "scf.index_switch"})
_LOOPS = frozenset({"scf.for", "scf.parallel", "scf.forall", "affine.for", "affine.parallel", "scf.while"})


@dataclass(frozen=True, slots=True)
class Visit:
    """One op reached; `trips` is None where it is not known how often, `sure` is False under an undecided branch."""

    op: Operation
    trips: int | None
    sure: bool
    arms: tuple[tuple[Operation, int], ...] = ()
    """The undecided branches around it and the arm of each."""


@dataclass(frozen=True, slots=True)
class Move:
    """One end of a data movement: what goes into (`in`) or out of (`out`) a memref, and through which channel."""

    op: Operation
    side: Literal["in", "out"]
    memref: SSAValue
    window: Window
    channel: str | None
    indices: tuple[SSAValue, ...]

    @property
    def space(self) -> int | None:
        """The memory space of the memref."""
        return memory_space(self.memref.type)


@dataclass(frozen=True, slots=True)
class TileUse:
    """Tiles of one herd op that run the same ops, with the values of the first of them."""

    herd: HerdOp
    tiles: tuple[tuple[int, int], ...]
    visits: tuple[Visit, ...]
    values: Values


@dataclass(frozen=True, slots=True)
class Herd:
    """Herd ops of one name in one segment: the same tiles, their bodies one after the other."""

    name: str
    ops: tuple[HerdOp, ...]
    columns: int | None
    rows: int | None

    @property
    def tiles(self) -> int | None:
        """How many tiles it takes, or None where its sizes are not constant."""
        return None if self.columns is None or self.rows is None else self.columns * self.rows

    @property
    def op(self) -> HerdOp:
        """The first op, for its place."""
        return self.ops[0]


@dataclass(frozen=True, slots=True)
class Segment:
    """One air.segment, or the room of herds outside any (`op` is None then)."""

    op: SegmentOp | None
    launch: LaunchOp | None
    function: FuncOp
    herds: tuple[Herd, ...]
    unroll: tuple[int | None, int | None] = (1, 1)


@dataclass(frozen=True)
class Facts:
    """A program with its rooms found."""

    program: Program
    values: Values
    segments: tuple[Segment, ...]
    channels: dict[str, ChannelOp]
    ops: tuple[Operation, ...]
    _uses: dict[HerdOp, tuple[TileUse, ...]] = field(default_factory=dict["HerdOp", "tuple[TileUse, ...]"])
    _at: dict[tuple[HerdOp, tuple[int, int]], Values] = field(
        default_factory=dict["tuple[HerdOp, tuple[int, int]]", "Values"]
    )
    _moves: dict[Operation, tuple[Move, ...]] = field(default_factory=dict["Operation", "tuple[Move, ...]"])
    doubled: dict[tuple[Region, bool], frozenset[Operation]] = field(
        default_factory=dict["tuple[Region, bool]", "frozenset[Operation]"]
    )
    """What `pingpong.doubled` found for each body."""

    @staticmethod
    def of(program: Program) -> Facts:
        """The facts of a program."""
        values = Values()
        segments = [segment for function in program.functions() for segment in _segments(function, values)]
        ops = tuple(program.module.walk())
        channels = {op.sym_name: op for op in ops if isinstance(op, ChannelOp)}
        return Facts(program, values, tuple(segments), channels, ops)

    @cached_property
    def accesses(self) -> dict[str, list[ChannelAccess]]:
        """The puts and gets of each channel name, in the order of the text."""
        found: dict[str, list[ChannelAccess]] = {}
        for op in self.ops:
            if isinstance(op, ChannelAccess):
                found.setdefault(op.chan_name, []).append(op)
        return found

    @cached_property
    def launches(self) -> dict[FuncOp, list[LaunchOp]]:
        """The launches of each function."""
        return {
            function: [op for op in function.walk() if isinstance(op, LaunchOp)]
            for function in self.program.functions()
        }

    def moves(self, op: Operation) -> tuple[Move, ...]:
        """The ends of the data movement an op is; none where it is something else."""
        if op not in self._moves:
            self._moves[op] = tuple(moves(op))
        return self._moves[op]

    def at(self, herd: HerdOp, tile: tuple[int, int]) -> Values:
        """The values on one tile of a herd op."""
        key = (herd, tile)
        if key not in self._at:
            self._at[key] = Values(dict(zip(herd.ids, tile, strict=False)))
        return self._at[key]

    def uses(self, herd: HerdOp) -> tuple[TileUse, ...]:
        """What the tiles of a herd op reach, tiles that reach the same together."""
        if herd not in self._uses:
            self._uses[herd] = tuple(_tile_uses(herd, self.values))
        return self._uses[herd]


def moves(op: Operation) -> list[Move]:
    """The ends of the data movement this op is; none where it is something else."""
    if isinstance(op, DmaMemcpyNdOp):
        return [
            Move(op, "out", op.src, op.src_window, None, ()),
            Move(op, "in", op.dst, op.dst_window, None, ()),
        ]
    if isinstance(op, ChannelPutOp):
        return [Move(op, "out", op.memref, op.window, op.chan_name, tuple(op.indices))]
    if isinstance(op, ChannelGetOp):
        return [Move(op, "in", op.memref, op.window, op.chan_name, tuple(op.indices))]
    return []


def visits(
    region: Region,
    values: Values,
    *,
    trips: int | None = 1,
    sure: bool = True,
    arms: tuple[tuple[Operation, int], ...] = (),
) -> Iterator[Visit]:
    """The ops of a room with how often each runs; bodies of launches, segments and herds are rooms of their own."""
    for block in region.blocks:
        for op in block.ops:
            yield Visit(op, trips, sure, arms)
            if isinstance(op, Hierarchy):
                continue
            if op.name in _BRANCHES:
                yield from _branch(op, values, trips, sure, arms)
            elif op.name in _LOOPS:
                times = values.trips(op)
                inner = None if trips is None or times is None else trips * times
                if times != 0:
                    yield from visits(op.regions[-1], values, trips=inner, sure=sure and times is not None, arms=arms)
            else:
                for nested in op.regions:
                    yield from visits(nested, values, trips=trips, sure=sure, arms=arms)


def _branch(
    op: Operation, values: Values, trips: int | None, sure: bool, arms: tuple[tuple[Operation, int], ...]
) -> Iterator[Visit]:
    verdict = values.holds(op)
    for index, region in enumerate(op.regions):
        if verdict is None:
            yield from visits(region, values, trips=trips, sure=False, arms=(*arms, (op, index)))
        elif verdict is (index == 0):
            yield from visits(region, values, trips=trips, sure=sure, arms=arms)


def around(op: Operation, kind: type[Operation]) -> Operation | None:
    """The nearest op of a kind around this one."""
    parent = op.parent_op()
    while parent is not None and not isinstance(parent, kind):
        parent = parent.parent_op()
    return parent


def memory_space(kind: Attribute) -> int | None:
    """The memory space of a memref type: 0 is L3, 1 is L2, 2 is L1; None for what is neither."""
    if not isinstance(kind, MemRefType):
        return None
    space = cast("MemRefType[Attribute]", kind).memory_space
    if isinstance(space, IntegerAttr):
        return cast("IntegerAttr[Any]", space).value.data
    return L3 if space.name == "none" else None


def shape(kind: Attribute) -> tuple[int, ...] | None:
    """The extents of a memref type, or None where one is not static."""
    if not isinstance(kind, MemRefType):
        return None
    extents = tuple(entry.data for entry in cast("MemRefType[Attribute]", kind).shape)
    return None if DYNAMIC_INDEX in extents else extents


def element_bits(kind: Attribute) -> int | None:
    """The bits of an element of a memref type."""
    if not isinstance(kind, MemRefType):
        return None
    element = cast("MemRefType[Attribute]", kind).element_type
    if isinstance(element, IndexType):
        return 32
    return element.bitwidth if isinstance(element, FixedBitwidthType) else None


def elements(kind: Attribute) -> int | None:
    """How many elements a memref type has."""
    extents = shape(kind)
    if extents is None:
        return None
    total = 1
    for extent in extents:
        total *= extent
    return total


def size_bytes(kind: Attribute) -> int | None:
    """The bytes of a memref type; elements below a byte take a whole one."""
    count, bits = elements(kind), element_bits(kind)
    return None if count is None or bits is None else count * max(1, bits // 8)


def root(memref: SSAValue) -> SSAValue:
    """The allocation or function argument a memref is a view of."""
    for _ in range(100):
        owner = memref.owner
        if isinstance(owner, Block):
            parent = owner.parent_op()
            if not isinstance(parent, Hierarchy):
                return memref
            index = next(i for i, argument in enumerate(owner.args) if argument is memref) - 2 * len(parent.sizes)
            if index < 0:
                return memref
            memref = parent.kernel_operands[index]
        elif owner.name in _VIEWS:
            memref = owner.operands[0]
        elif isinstance(owner, ExecuteOp):
            index = next(i for i, result in enumerate(owner.results) if result is memref) - 1
            last = owner.body.block.last_op
            if last is None or not 0 <= index < len(last.operands):
                return memref
            memref = last.operands[index]
        else:
            return memref
    return memref


def allocation(memref: SSAValue) -> Operation | None:
    """The memref.alloc behind a memref, or None."""
    owner = root(memref).owner
    return owner if isinstance(owner, Operation) and owner.name in ("memref.alloc", "memref.alloca") else None


def _segments(function: FuncOp, values: Values) -> Iterator[Segment]:
    loose: dict[LaunchOp | None, list[HerdOp]] = {}
    for op in function.walk():
        if isinstance(op, SegmentOp):
            launch = around(op, LaunchOp)
            herds = _herds([inner for inner in op.walk() if isinstance(inner, HerdOp)], values)
            sizes = [values.constant(size) for size in op.sizes]
            unroll = ((*sizes, 1, 1)[0], (*sizes, 1, 1)[1]) if sizes else (1, 1)
            yield Segment(op, cast("LaunchOp | None", launch), function, herds, unroll)
        elif isinstance(op, HerdOp) and around(op, SegmentOp) is None:
            loose.setdefault(cast("LaunchOp | None", around(op, LaunchOp)), []).append(op)
    for launch, ops in loose.items():
        yield Segment(None, launch, function, _herds(ops, values))


def _herds(ops: Sequence[HerdOp], values: Values) -> tuple[Herd, ...]:
    named: dict[str, list[HerdOp]] = {}
    for index, op in enumerate(ops):
        named.setdefault(op.sym_name or f"herd {index}", []).append(op)
    herds: list[Herd] = []
    for name, same in named.items():
        sizes = [values.constant(size) for size in same[0].sizes]
        columns, rows = (sizes[0], sizes[1] if len(sizes) > 1 else 1) if sizes else (1, 1)
        herds.append(Herd(name, tuple(same), columns, rows))
    return tuple(herds)


def _tile_uses(herd: HerdOp, values: Values) -> Iterator[TileUse]:
    sizes = values.constants(list(herd.sizes))
    if sizes is None:
        yield TileUse(herd, ((0, 0),), tuple(visits(herd.body, values)), values)
        return
    columns, rows = (*sizes, 1, 1)[0], (*sizes, 1, 1)[1] if len(sizes) > 1 else 1
    tiles = [(x, y) for x in range(columns) for y in range(rows)] if 0 < columns * rows <= MAX_TILES else [(0, 0)]
    ids = list(herd.ids)
    branches = [op for op in herd.body.walk() if op.name in _BRANCHES or op.name in _LOOPS]
    if len(tiles) == 1 or not any(_turns_on(op, ids, values) for op in branches):
        fixed = Values({**dict(zip(ids, tiles[0], strict=False))}) if len(tiles) == 1 else values
        yield TileUse(herd, tuple(tiles), tuple(visits(herd.body, fixed)), fixed)
        return
    alike: dict[tuple[bool | int | None, ...], list[tuple[int, int]]] = {}
    of_tile: dict[tuple[bool | int | None, ...], Values] = {}
    for tile in tiles:
        fixed = Values(dict(zip(ids, tile, strict=False)))
        verdicts = tuple(fixed.holds(op) if op.name in _BRANCHES else fixed.trips(op) for op in branches)
        alike.setdefault(verdicts, []).append(tile)
        of_tile.setdefault(verdicts, fixed)
    for verdicts, same in alike.items():
        yield TileUse(herd, tuple(same), tuple(visits(herd.body, of_tile[verdicts])), of_tile[verdicts])


def _turns_on(op: Operation, ids: list[Any], values: Values) -> bool:
    """Whether a branch or loop can go differently for different ids."""
    seen: set[SSAValue] = set()
    queue = list(op.operands)
    while queue:
        value = queue.pop()
        if value in seen:
            continue
        seen.add(value)
        if any(value is one for one in ids):
            return True
        owner = value.owner
        if isinstance(owner, Operation) and not isinstance(owner, ExecuteOp):
            queue.extend(owner.operands)
    return False
