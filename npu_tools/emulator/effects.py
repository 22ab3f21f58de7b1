"""Which memrefs an op, or a whole body, reads and writes: known before the run, from the text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Block, Operation, SSAValue

from npu_tools.air.dialect import ChannelGetOp, ChannelPutOp, DmaMemcpyNdOp, Hierarchy

Effect = tuple[bool, bool]
"""Reads, writes."""

BOTH: Effect = (True, True)
ALIASES = frozenset(
    {
        "memref.subview",
        "memref.collapse_shape",
        "memref.expand_shape",
        "memref.cast",
        "memref.memory_space_cast",
        "memref.reinterpret_cast",
        "memref.view",
        "memref.transpose",
        "memref.assume_alignment",
    }
)
_FIRST_WRITTEN = frozenset({"memref.store", "affine.store", "vector.store", "vector.transfer_write"})
_READ_ONLY = frozenset({"memref.load", "affine.load", "vector.load", "vector.transfer_read", "memref.dim"})

ExternalEffects = Callable[[func.CallOp], "tuple[tuple[int, ...], tuple[int, ...]] | None"]
"""The operands an external kernel reads and writes, None where it is unknown."""


def is_memref(value: SSAValue) -> bool:
    """Whether a value is a memref."""
    return isinstance(value.type, MemRefType)


@dataclass(slots=True)
class Effects:
    """Reads and writes of bodies and ops, remembered."""

    external: ExternalEffects
    functions: dict[str, func.FuncOp]
    _bodies: dict[Block, dict[SSAValue, Effect]] = field(default_factory=dict[Block, "dict[SSAValue, Effect]"])

    def of_op(self, op: Operation) -> list[tuple[SSAValue, Effect]]:
        """The memref operands of one op, with what is done to them, nested regions included."""
        operands = [value for value in op.operands if is_memref(value)]
        if not operands or op.name in ALIASES:
            return []
        if isinstance(op, DmaMemcpyNdOp):
            return [(op.dst, (False, True)), (op.src, (True, False))]
        if isinstance(op, ChannelPutOp):
            return [(op.memref, (True, False))]
        if isinstance(op, ChannelGetOp):
            return [(op.memref, (False, True))]
        if isinstance(op, Hierarchy):
            inside = self.of_body(op.body.block)
            pairs = zip(op.kernel_operands, op.kernel_args, strict=True)
            return [(value, inside[argument]) for value, argument in pairs if argument in inside]
        if isinstance(op, func.CallOp):
            return self._of_call(op)
        if op.name in _READ_ONLY:
            return [(value, (True, False)) for value in operands]
        if op.name in _FIRST_WRITTEN:
            return [(value, (False, True)) for value in operands]
        if op.name == "memref.copy":
            return [(op.operands[0], (True, False)), (op.operands[1], (False, True))]
        if op.name == "memref.dealloc":
            return []
        return [(value, BOTH) for value in operands]

    def _of_call(self, op: func.CallOp) -> list[tuple[SSAValue, Effect]]:
        function = self.functions.get(op.callee.string_value())
        if function is not None:
            inside = self.of_body(function.body.block)
            pairs = zip(op.arguments, function.body.block.args, strict=True)
            return [(value, inside[argument]) for value, argument in pairs if argument in inside]
        known = self.external(op)
        found: list[tuple[SSAValue, Effect]] = []
        for index, value in enumerate(op.arguments):
            if is_memref(value):
                found.append((value, BOTH if known is None else (index in known[0], index in known[1])))
        return found

    def of_body(self, block: Block) -> dict[SSAValue, Effect]:
        """What a body does to the memrefs it is given or finds: by the value as the body names it."""
        known = self._bodies.get(block)
        if known is not None:
            return known
        found: dict[SSAValue, Effect] = {}
        self._bodies[block] = found
        roots: dict[SSAValue, SSAValue] = {}
        for op in _flat(block):
            if op.name in ALIASES and op.operands:
                source = op.operands[0]
                for result in op.results:
                    roots[result] = roots.get(source, source)
                continue
            for value, effect in self.of_op(op):
                root = roots.get(value, value)
                before = found.get(root, (False, False))
                found[root] = (before[0] or effect[0], before[1] or effect[1])
        return found


def _flat(block: Block) -> list[Operation]:
    """All ops of a block and of its control flow, but not of launches, segments and herds in it."""
    found: list[Operation] = []
    for op in block.ops:
        found.append(op)
        if isinstance(op, Hierarchy) or op.name == "linalg.generic":
            continue
        for region in op.regions:
            for inner in region.blocks:
                found.extend(_flat(inner))
    return found


def users(value: SSAValue) -> list[Operation]:
    """The ops that use a value."""
    return [use.operation for use in value.uses]
