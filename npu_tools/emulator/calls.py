"""func.call to external kernels: finding them, handing them their operands, counting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType, StringAttr
from xdsl.ir import Attribute, Operation

from npu_tools.air.dialect import HerdOp
from npu_tools.emulator.code import Builder
from npu_tools.emulator.counters import KernelCount
from npu_tools.emulator.deferred import can_wait, put_off
from npu_tools.emulator.effects import is_memref
from npu_tools.emulator.journal import Call
from npu_tools.emulator.kernels import ExternalKernel, known_symbols, lookup, surroundings_of
from npu_tools.emulator.tasks import Task
from npu_tools.emulator.types import Fault, Instruction
from npu_tools.errors import UnusableInput

if TYPE_CHECKING:
    from npu_tools.emulator.machine import Machine


class Externals:
    """The external kernels of one program, by call."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._found: dict[Operation, ExternalKernel] = {}

    def effects(self, op: func.CallOp) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The operands a call reads and writes; None where the kernel is unknown."""
        try:
            kernel = self.kernel(op, op.callee.string_value())
        except Fault:
            return None
        return kernel.reads, kernel.writes

    def of(self, op: func.CallOp) -> ExternalKernel:
        """The kernel a call means.

        Raises:
            Fault: there is none, or the call is of a function with a body.
        """
        return self.kernel(op, op.callee.string_value())

    def kernel(self, op: func.CallOp, symbol: str) -> ExternalKernel:
        """The kernel a call means.

        Raises:
            Fault: there is none, or it takes other operands.
        """
        found = self._found.get(op)
        if found is not None:
            return found
        link_with = self._link_with(op, symbol)
        try:
            kernel = lookup(symbol, [value.type for value in op.arguments], link_with, surroundings_of(op))
        except UnusableInput as error:
            raise Fault("kernel-operands", str(error), "give the operands the kernel takes") from error
        if kernel is None:
            declared = "" if symbol in self._machine.declarations else ", and the module does not declare it"
            known = known_symbols()
            close = [name for name in known if name[:6] == symbol[:6]] or list(known)
            raise Fault(
                "missing-kernel",
                f"@{symbol} is an external function (link_with = {link_with or 'nothing'}{declared}) and the emulator "
                f"has no kernel of that name",
                f"use one of those it has ({', '.join(close[:6])}, {len(known)} in all), or write it with linalg, vector and arith ops",
                diagnostic=f"undefined symbol: {symbol}",
            )
        self._found[op] = kernel
        return kernel

    def _link_with(self, op: Operation, symbol: str) -> str | None:
        current: Operation | None = op
        while current is not None:
            if isinstance(current, HerdOp) and current.link_with:
                return current.link_with
            current = current.parent_op()
        declaration = self._machine.declarations.get(symbol)
        attribute = declaration.attributes.get("link_with") if declaration is not None else None
        return attribute.data if isinstance(attribute, StringAttr) else None

    def instruction(self, op: func.CallOp, symbol: str, builder: Builder) -> Instruction:
        """The call as an instruction."""
        machine = self._machine
        kernel = self.kernel(op, symbol)
        if op.results:
            raise Fault(
                "unsupported-op",
                f"@{symbol} returns values; external kernels here write their results into memrefs",
                "pass a memref for the result",
            )
        slots = [builder.slot(value) for value in op.arguments]
        memrefs = {index for index, value in enumerate(op.arguments) if is_memref(value)}
        reads = [(index, slots[index]) for index in kernel.reads if index in memrefs]
        writes = [(index, slots[index]) for index in kernel.writes if index in memrefs]
        if "copy" in symbol:
            # A copy that fills its target in part leaves the rest as it was: that is no read.
            reads = [(index, slot) for index, slot in reads if index not in kernel.writes]
        both = {index for index, _ in reads} & {index for index, _ in writes}
        numerics = machine.numerics
        run = kernel.run
        count = machine.counters.kernels.setdefault(symbol, KernelCount())
        macs = macs_of(kernel, op)

        if can_wait(kernel, tuple(element_name(value.type) for value in op.arguments)):

            def later(frame: Any) -> None:
                regs = frame.regs
                if machine.pool.journal is not None:
                    machine.pool.journal.spoil()
                put_off(kernel, numerics, [regs[slot] for slot in slots])
                lanes = frame.gx * frame.gy
                count.calls += lanes
                count.macs += macs * lanes
                if machine.trace is not None:
                    machine.trace.called(cast("Task", frame), symbol, macs)

            return later

        def call(frame: Any) -> None:
            regs = frame.regs
            arguments: list[Any] = [regs[slot] for slot in slots]
            for index, slot in reads:
                arguments[index] = regs[slot].read()
            for index, slot in writes:
                arguments[index] = regs[slot].writable()
            for index in both:
                arguments[index] = regs[slots[index]].array()
            run(numerics, *arguments)
            if machine.pool.journal is not None:
                machine.pool.journal.note(Call(kernel, numerics, tuple(arguments)))
            lanes = frame.gx * frame.gy
            count.calls += lanes
            count.macs += macs * lanes
            if machine.trace is not None:
                machine.trace.called(cast("Task", frame), symbol, macs)

        return call


def element_name(kind: Attribute) -> str:
    """The element type of an operand as MLIR writes it."""
    return str(cast("MemRefType[Any]", kind).element_type if isinstance(kind, MemRefType) else kind)


def macs_of(kernel: ExternalKernel, op: func.CallOp) -> int:
    """Multiply-accumulates of one call; 0 where the kernel does not say."""
    macs = getattr(kernel, "macs", 0)
    _ = op
    return int(macs)
