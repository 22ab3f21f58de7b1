"""Which memory may be allocated and touched where: the AIR verifier's rules for segments and herds.

It does not count bytes (`memory.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import HerdOp, Hierarchy, SegmentOp
from npu_tools.check.subject import Subject
from npu_tools.check.walk import L1, L2, around, memory_space
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-air mlir/lib/Dialect/AIR/IR/AIRDialect.cpp (verifyAllocMemorySpace, verifyComputeMemoryAccess)"
_NAMES = {0: "L3", L2: "L2", L1: "L1"}
_ADDRESSED = {
    "memref.load": 0,
    "memref.store": 1,
    "affine.load": 0,
    "affine.store": 1,
    "vector.transfer_read": 0,
    "vector.transfer_write": 1,
    "vector.load": 0,
    "vector.store": 1,
}
"""Which operand of a direct access is the memref."""


def find(subject: Subject) -> Iterator[Finding]:
    """Allocations in a memory that their room does not hold, and cores that address another memory than L1."""
    for op in subject.facts.ops:
        if op.name == "memref.alloc":
            yield from _allocation(subject, op)
        elif op.name in _ADDRESSED and len(op.operands) > _ADDRESSED[op.name]:
            yield from _access(subject, op, op.operands[_ADDRESSED[op.name]])


def _allocation(subject: Subject, op: Operation) -> Iterator[Finding]:
    space = memory_space(op.results[0].type)
    herd, segment = around(op, HerdOp), around(op, SegmentOp)
    if space is None or (herd is None and segment is None):
        return
    room, least = ("air.herd", L1) if herd is not None else ("air.segment", L2)
    if space >= least:
        return
    name, found = _NAMES[least], _NAMES.get(space, f"{space}")
    text = f"memref.alloc inside {room} must have memory space >= {name}, but found memory space {found}"
    where = "in the herd, or allocate it in the segment and move it in with air.dma_memcpy_nd" if herd else "here"
    yield subject.finding(
        op,
        "error",
        "alloc-memory-space",
        text,
        diagnostic=text,
        source=SOURCE,
        remedy=f"give the memref memory space {least} ({name}) {where}: memref<…, {least} : i32>",
    )


def _access(subject: Subject, op: Operation, memref: SSAValue) -> Iterator[Finding]:
    space = memory_space(memref.type)
    if space is None or space >= L1 or not _in_herd(op):
        return
    text = (
        f"inside 'air.herd' accesses memref with memory_space {_NAMES.get(space, space)}; AIE core tiles can only "
        "access L1 or more local memory directly. Use air.dma_memcpy_nd to stage data first."
    )
    yield subject.finding(
        op,
        "error",
        "core-memory-access",
        text,
        diagnostic=text,
        source=SOURCE,
        remedy="allocate a buffer in memory space 2 in the herd, move the data into it with air.dma_memcpy_nd, "
        "and address that buffer",
    )


def _in_herd(op: Operation) -> bool:
    room = around(op, Hierarchy)
    return isinstance(room, HerdOp)
