"""Whether instances of a launch, segment or herd write the same place: upstream's locality verifier, where it is sure.

A launch is asked about L3 and an unrolled segment about L2. Upstream asks a herd about L1 as well, after passes that
give each tile a buffer of its own; this module does not follow those and leaves herds out. Only accesses with a window
are judged; what an external kernel writes is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import BlockArgument, Operation, SSAValue

from npu_tools.air.dialect import ChannelAccess, ChannelGetOp, DmaMemcpyNdOp, Hierarchy, LaunchOp, SegmentOp
from npu_tools.check.subject import Subject
from npu_tools.check.walk import L2, L3, memory_space
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-air mlir/lib/Transform/AIRVerifyHierarchyLocality.cpp (on unless --placed-ir-verifiers=off)"
_VIEWS = frozenset({"memref.cast", "memref.expand_shape", "memref.collapse_shape", "memref.transpose"})
_STORES = frozenset({"memref.store", "affine.store", "vector.transfer_write", "vector.store"})


@dataclass(frozen=True, slots=True)
class _Write:
    """One write of an operand: the op, and what its position depends on (None: it covers the whole memref)."""

    op: Operation
    offsets: list[int | SSAValue] | None


def find(subject: Subject) -> Iterator[Finding]:
    """Operands that every instance writes at the same place."""
    for op in subject.facts.ops:
        if isinstance(op, LaunchOp | SegmentOp):
            ids = [
                one
                for one, size in zip(op.ids, op.sizes, strict=False)
                if (subject.facts.values.constant(size) or 1) > 1
            ]
            if ids:
                yield from _operands(subject, op, ids)


def _operands(subject: Subject, room: Hierarchy, ids: list[BlockArgument]) -> Iterator[Finding]:
    level = L3 if isinstance(room, LaunchOp) else L2
    for index, argument in enumerate(room.kernel_args):
        if memory_space(argument.type) != level:
            continue
        writes, replicated = _writes(subject, argument, ids)
        if replicated:
            continue
        for write in writes:
            missing = _missing(subject, write, ids)
            if missing is not None:
                yield _finding(subject, room, index, write, missing)
                break


def _missing(subject: Subject, write: _Write, ids: list[BlockArgument]) -> int | None:
    """The dimension of an id that the write does not depend on."""
    offsets = write.offsets or []
    return next(
        (one.index for one in ids if not any(subject.facts.values.depends_on(offset, [one]) for offset in offsets)),
        None,
    )


def _writes(subject: Subject, argument: SSAValue, ids: list[BlockArgument]) -> tuple[list[_Write], bool]:
    """The writes through an argument, and whether it is one buffer an instance anyway (channels or calls by id)."""
    depends = subject.facts.values.depends_on
    found: list[_Write] = []
    queue: list[SSAValue] = [argument]
    while queue:
        value = queue.pop()
        for use in value.uses:
            op = use.operation
            if op.name in _VIEWS:
                queue.extend(op.results)
            elif isinstance(op, Hierarchy):
                queue.extend(
                    inner for outer, inner in zip(op.kernel_operands, op.kernel_args, strict=False) if outer is value
                )
            elif isinstance(op, ChannelAccess) and any(depends(index, ids) for index in op.indices):
                return [], True
            elif op.name == "func.call":
                if any(memory_space(operand.type) is None and depends(operand, ids) for operand in op.operands):
                    return [], True
            elif isinstance(op, ChannelGetOp) or (isinstance(op, DmaMemcpyNdOp) and op.dst is value):
                window = op.window if isinstance(op, ChannelGetOp) else op.dst_window
                found.append(_Write(op, None if not window.offsets else list(window.offsets)))
            elif op.name in _STORES and op.operands[1] is value:
                found.append(_Write(op, list(op.operands[2:])))
    return found, False


def _finding(subject: Subject, room: Hierarchy, index: int, write: _Write, missing: int) -> Finding:
    reason = (
        "access spans the entire memref ([][][]); every iteration instance touches the same locations"
        if write.offsets is None
        else "iteration variable does not appear in any offset of this access; iterations cannot be disjoint"
    )
    place = subject.facts.program.where(write.op)
    line = f" (line {place.line})" if place else ""
    size = subject.facts.values.constant(room.sizes[missing])
    return subject.finding(
        room,
        "error",
        "instances-overlap",
        f"operand {index} of {room.name} is written by all of its {size} instances along dimension {missing} at the same "
        f"place{line}",
        diagnostic=f"'{room.name}' op kernel operand #{index}: {reason}",
        source=SOURCE,
        remedy=f"put id {missing} of the {room.name.removeprefix('air.')} in an offset of that access, or allocate the "
        "buffer inside the body",
        certain=isinstance(room, LaunchOp),
    )
