"""What cannot be right on any device: dynamic shapes, ops of unknown dialects, empty herds, counts and indices that
contradict the types in the text.

It knows no limits; values that are not constants are left to the emulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation, SSAValue

from npu_tools.air.dialect import DmaMemcpyNdOp, Hierarchy
from npu_tools.air.windows import Window
from npu_tools.check.subject import Subject
from npu_tools.check.walk import shape
from npu_tools.findings import Finding

DIALECTS = frozenset(
    "affine aie aiex aievec air airrt amdgpu arith async bufferization builtin cf complex emitc func gpu index linalg llvm "
    "math memref ml_program nvgpu omp pdl quant rocdl scf shape spirv tensor tosa transform ub vector x86vector xilinx".split()
)
"""Dialects that mlir-air's tools register or pass on; another one stops `aircc` at the parser."""
SOURCE = "MLIR's parser (unregistered ops are refused without --allow-unregistered-dialect, which aircc does not set)"
STATIC = "Xilinx/mlir-air mlir/lib/Conversion/AIRToAIEPass.cpp: buffers and descriptors take static shapes"


def find(subject: Subject) -> Iterator[Finding]:
    """Everything above, at its op."""
    if not subject.facts.program.functions():
        yield subject.finding(
            subject.facts.program.module, "warning", "no-function", "no function with a body: there is nothing to compile",
            remedy="put the launch into a func.func",
        )  # fmt: skip
    told: set[SSAValue] = set()
    for op in subject.facts.ops:
        yield from _dialect(subject, op)
        yield from _dynamic(subject, op, told)
        if isinstance(op, Hierarchy):
            yield from _sizes(subject, op)
        elif isinstance(op, DmaMemcpyNdOp):
            yield from _counts(subject, op)
        elif op.name in ("memref.load", "memref.store"):
            yield from _index(subject, op)
        elif op.name == "scf.for" and subject.facts.values.constant(op.operands[2]) == 0:
            yield subject.finding(
                op,
                "error",
                "loop-step-zero",
                "the step of this loop is 0: it never ends",
                remedy="give a positive step",
            )


def _dialect(subject: Subject, op: Operation) -> Iterator[Finding]:
    dialect = op.name.partition(".")[0]
    if dialect in DIALECTS:
        return
    yield subject.finding(
        op,
        "error",
        "unknown-dialect",
        f"{op.name} is of the dialect {dialect!r}, which the toolchain does not know",
        diagnostic=f"operation being parsed with an unregistered dialect: '{op.name}'",
        source=SOURCE,
        remedy="lower it to ops of the registered dialects (linalg, vector, arith, memref, scf, …) first",
    )


def _dynamic(subject: Subject, op: Operation, told: set[SSAValue]) -> Iterator[Finding]:
    values = list(op.results) if op.name in ("memref.alloc", "memref.alloca") else []
    if op.name == "func.func" and op.regions and op.regions[0].blocks:
        values = list(op.regions[0].blocks[0].args)
    for value in values:
        kind = value.type
        if value in told or not isinstance(kind, MemRefType) or all(extent >= 0 for extent in kind.get_shape()):
            continue
        told.add(value)
        yield subject.finding(
            op,
            "error",
            "dynamic-shape",
            f"{kind} has a dynamic extent; the device's buffers and descriptors are static",
            source=STATIC,
            remedy="print the program for one concrete shape; another shape is another program",
        )


def _sizes(subject: Subject, op: Hierarchy) -> Iterator[Finding]:
    for axis, size in enumerate(op.sizes):
        extent = subject.facts.values.constant(size)
        if extent is not None and extent <= 0:
            yield subject.finding(
                op,
                "error",
                "hierarchy-size",
                f"extent {axis} of this {op.name.removeprefix('air.')} is {extent}: nothing would run",
                remedy="give an extent of at least 1",
            )


def _counts(subject: Subject, op: DmaMemcpyNdOp) -> Iterator[Finding]:
    if op.pad_before or op.pad_after:
        return
    there, here = _moved(op.dst_window, op.dst), _moved(op.src_window, op.src)
    if there is None or here is None or there == here:
        return
    yield subject.finding(
        op,
        "error",
        "count-mismatch",
        f"{here} elements are read and {there} written: both ends of a transfer move the same number",
        remedy=f"give both windows {min(here, there)} elements, or pad with pad_before and pad_after",
    )


def _moved(window: Window, memref: SSAValue) -> int | None:
    if not window.sizes:
        extents = shape(memref.type)
        return None if extents is None or any(extent < 0 for extent in extents) else prod(extents)
    return prod(size for size in window.sizes if isinstance(size, int)) if all(
        isinstance(size, int) for size in window.sizes
    ) else None  # fmt: skip


def _index(subject: Subject, op: Operation) -> Iterator[Finding]:
    at = 0 if op.name == "memref.load" else 1
    extents = shape(op.operands[at].type)
    if extents is None:
        return
    for axis, (extent, index) in enumerate(zip(extents, op.operands[at + 1 :], strict=False)):
        value = subject.facts.values.constant(index)
        if value is not None and extent >= 0 and not 0 <= value < extent:
            yield subject.finding(
                op,
                "error",
                "index-out-of-bounds",
                f"index {value} of dimension {axis} is outside 0 to {extent - 1}",
                remedy=f"keep the index within 0 to {extent - 1}; nothing refuses this, other data is touched",
            )
