"""Shim descriptors: what a launch's transfers to and from L3 come to once their loops are folded.

The compiler folds the loops around a transfer (launch, segment, herd) into dimensions of one descriptor. What cannot
be folded becomes more descriptors, and loops the address does not depend on become the queue's repeat count. Compiled
with `runtime_loop_tiling_sizes` the outer loops are cut up instead, so what is said here is no certainty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import LaunchOp
from npu_tools.check.streams import counted
from npu_tools.check.subject import Subject
from npu_tools.check.values import Linear, Values
from npu_tools.check.walk import L3, Facts, Move, element_bits
from npu_tools.check.windows import Dim, canonical, is_linear, split
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-air mlir/lib/Conversion/AIRRtToNpuPass.cpp (tileIllegalWrapDim, DMA conversion)"
DIMS = 4
"""Three dimensions and the iteration."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A transfer with its loops: how many descriptors, and how often the queue repeats them."""

    descriptors: int
    repeats: int
    dims: tuple[Dim, ...]
    was_cut: bool = False
    """Whether the outermost dimension was too long for its field and had to be cut in two."""


def find(subject: Subject) -> Iterator[Finding]:
    """Transfers that repeat too often or fall apart into more descriptors than a shim holds."""
    for op in subject.facts.ops:
        for move in subject.facts.moves(op):
            if move.space != L3 or not counted(subject.facts, move):
                continue
            folded = fold(subject, move)
            if folded is not None:
                yield from _repeats(subject, move, folded)
                yield from _descriptors(subject, move, folded)


def fold(subject: Subject, move: Move) -> Folded | None:
    """What the transfer and the loops around it come to, or None where the address is not known."""
    values = subject.facts.values
    sizes, strides = values.constants(move.window.sizes), values.constants(move.window.strides)
    bits = element_bits(move.memref.type)
    if sizes is None or strides is None or bits is None or not sizes or min(sizes) < 1:
        return None
    address = _address(move, strides, values)
    loops = _loops(move.op, subject.facts)
    if address is None or loops is None:
        return None
    steps = dict(address.terms)
    outer = [Dim(trips, steps.get(variable, 0) * step) for variable, trips, step in loops]
    dims = canonical([dim.size for dim in outer] + list(sizes), [dim.stride for dim in outer] + list(strides))
    return _fold(dims, subject, bits)


def _fold(dims: list[Dim], subject: Subject, bits: int) -> Folded:
    repeats = 1
    while dims and dims[0].stride == 0:
        repeats *= dims[0].size
        dims = dims[1:]
    inner: list[Dim] = []
    for dim in dims:
        if dim.stride == 0:
            repeats *= dim.size
        else:
            inner.append(dim)
    if is_linear(inner):
        return Folded(1, repeats, tuple(inner))
    cut: list[Dim] = []
    most = subject.device.shim.max_wrap
    granule = max(1, 8 * subject.device.granule_bytes // bits)
    for position, dim in enumerate(inner):
        bound = subject.device.iteration_max - 1 if position == 0 and len(inner) >= DIMS else most
        cut.extend(split(dim, bound, granule if dim.stride == 1 else 1))
    was_cut = inner[0].size > most
    room = DIMS - (1 if repeats > 1 else 0)
    extra = 1
    while len(cut) > room:
        extra *= cut[0].size
        cut = cut[1:]
    return Folded(extra, repeats, tuple(cut), was_cut)


def _address(move: Move, strides: Sequence[int], values: Values) -> Linear | None:
    total = Linear(0)
    # A list that is shorter than the other belongs to the innermost dimensions.
    for offset, stride in zip(reversed(move.window.offsets), reversed(strides), strict=False):
        form = values.linear(offset)
        if form is None:
            return None
        total = total.plus(form, stride)
    return total


def _loops(op: Operation, facts: Facts) -> list[tuple[SSAValue, int, int]] | None:
    """The loops around a transfer from the outside in: variable, trips and step. None where one is not counted."""
    found: list[tuple[SSAValue, int, int]] = []
    parent = op.parent_op()
    while parent is not None:
        if isinstance(parent, LaunchOp):
            for variable, size in reversed(list(zip(parent.ids, parent.sizes, strict=False))):
                trips = facts.values.constant(size)
                if trips is None:
                    return None
                found.append((variable, trips, 1))
        elif parent.name == "scf.for":
            trips, step = facts.values.trips(parent), facts.values.constant(parent.operands[2])
            if trips is None or step is None:
                return None
            found.append((parent.regions[0].block.args[0], trips, step))
        elif parent.name in ("scf.while", "affine.for", "scf.forall"):
            return None
        parent = parent.parent_op()
    return list(reversed(found))


def _repeats(subject: Subject, move: Move, folded: Folded) -> Iterator[Finding]:
    limit = subject.device.limit("queue.repeat_max")
    repeats = folded.repeats - 1
    if repeats <= limit.value:
        return
    fewer = -(-folded.repeats // (limit.value + 1))
    yield subject.finding(
        move.op,
        "warning",
        "queue-repeat",
        f"the transfer is repeated {folded.repeats} times without its address changing: a repeat count of {repeats}, and "
        f"a queue repeats at most {limit.value} times",
        diagnostic="'aiex.npu.push_queue' op Repeat count exceeds the [0:255] range.",
        limit=limit,
        remedy=f"make the loops around it {fewer} times shorter (larger tile_m, smaller m_input, more tiles): at most "
        f"{limit.value + 1} repeats, or compile with runtime_loop_tiling_sizes=[16, 16]",
        certain=False,
    )


def _descriptors(subject: Subject, move: Move, folded: Folded) -> Iterator[Finding]:
    limit = subject.device.limit("shim.bd_count")
    if folded.descriptors <= limit.value:
        if folded.was_cut and len(folded.dims) == DIMS:
            yield _cut(subject, move, folded)
        return
    yield subject.finding(
        move.op,
        "warning",
        "shim-bd-count",
        f"the transfer with the loops around it needs {folded.descriptors} buffer descriptors of {DIMS} dimensions; a shim "
        f"has {limit.value} for all its transfers",
        diagnostic="'aiex.dma_configure_task' op Allocator exhausted available buffer descriptor IDs",
        limit=limit,
        source=SOURCE,
        remedy=f"use larger tiles or another order of loops so that at most {limit.value} descriptors remain, or compile "
        "with runtime_loop_tiling_sizes",
        certain=False,
    )


def _cut(subject: Subject, move: Move, folded: Folded) -> Finding:
    shown = " x ".join(str(dim.size) for dim in folded.dims)
    limit = subject.device.limit("shim.wrap_bits")
    return subject.finding(
        move.op,
        "error",
        "shim-bd-cut",
        f"the loop around the transfer runs more than {subject.device.shim.max_wrap} times and is cut in two, which takes "
        f"all {DIMS} dimensions of the descriptor ({shown}); transfers of this form were measured to run out of "
        "descriptors",
        diagnostic="'aiex.dma_configure_task' op Allocator exhausted available buffer descriptor IDs",
        limit=limit,
        source="Xilinx/mlir-air programming_examples/kernel_registry/details/SiLU_Mul_bf16.md (placeable tile_n and herd_x)",
        remedy=f"make the loop run at most {subject.device.shim.max_wrap} times (a larger tile), or the tile at most "
        f"{subject.device.shim.max_wrap} elements (no cut there)",
        certain=False,
    )
