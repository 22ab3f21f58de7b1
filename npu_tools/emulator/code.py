"""Lowered region bodies: a flat list of instructions with jumps, and the builder that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xdsl.ir import Block, Operation, SSAValue

from npu_tools.emulator.types import Fault, Instruction, Lower

if TYPE_CHECKING:
    from npu_tools.emulator.machine import Machine
    from npu_tools.emulator.numerics import Numerics, RoundingReport
    from npu_tools.emulator.turns import Turn


@dataclass(slots=True)
class Region:
    """A structured region within the code: lanes that part inside it meet again at `end`.

    `slots` are the registers its instructions use, `merged` those that carry values out of it at `end`.
    """

    parent: int
    start: int
    end: int = -1
    slots: set[int] = field(default_factory=set[int])
    merged: list[int] = field(default_factory=list[int])


Touch = tuple[int, bool]
"""A register that holds a memref an instruction touches, and whether it writes."""


@dataclass(slots=True)
class Code:
    """Instructions of one body, with the op each came from. `end` is the pc of the last, which ends the task."""

    name: str
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    ops: list[Operation | None] = field(default_factory=list["Operation | None"])
    touches: list[tuple[Touch, ...]] = field(default_factory=list[tuple[Touch, ...]])
    region_of: list[int] = field(default_factory=list[int])
    regions: list[Region] = field(default_factory=list[Region])
    slot_count: int = 0
    presets: dict[int, Any] = field(default_factory=dict[int, Any])
    arguments: list[int] = field(default_factory=list[int])

    @property
    def end(self) -> int:
        """The pc of the instruction that ends the task."""
        return len(self.instructions) - 1

    def registers(self) -> list[Any]:
        """Fresh registers, constants filled in."""
        regs: list[Any] = [None] * self.slot_count
        for slot, content in self.presets.items():
            regs[slot] = content
        return regs

    def until(self, stop: int, end: Instruction) -> Code:
        """The same code, ending before `stop`."""
        return Code(
            self.name,
            [*self.instructions[:stop], end],
            [*self.ops[:stop], None],
            [*self.touches[:stop], ()],
            [*self.region_of[:stop], 0],
            self.regions,
            self.slot_count,
            self.presets,
            self.arguments,
        )


def _placed(instruction: Instruction, report: RoundingReport, place: tuple[str, int | None]) -> Instruction:
    """The instruction, telling the report where values are rounded meanwhile."""

    def run(frame: Any) -> Any:
        report.place = place
        return instruction(frame)

    return run


def end_task(_: Any) -> Any:
    """The last instruction of a body."""
    return END


class Signal:
    """What an instruction returns to the scheduler instead of a jump."""

    __slots__ = ()


END = Signal()
"""The body is through."""
ARRIVED = Signal()
"""Lanes that parted are where they meet again."""


@dataclass
class Builder:
    """Lowers one body; what `types.Lowering` promises to op modules, and more for control flow."""

    machine: Machine
    code: Code
    slots: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    region: int = 0
    soft: bool = True
    """Whether the body is one of a launch, segment or function, where waiting follows program order only softly."""
    op: Operation | None = None
    herd: Operation | None = None
    turns: dict[Operation, list[Turn]] = field(default_factory=dict["Operation", "list[Turn]"])
    """Where the herd or segment takes turns on buffers that are handed over."""
    beside: dict[Operation, Structured] = field(default_factory=dict["Operation", "Structured"])
    """Loops of the segment that run beside its text, and how they are lowered."""
    inlined: tuple[str, ...] = ()

    @property
    def numerics(self) -> Numerics:
        """The numerics of the run."""
        return self.machine.numerics

    def slot(self, value: SSAValue) -> int:
        """The register of an SSA value, noted as used in the current region."""
        slot = self.slots.get(value)
        if slot is None:
            slot = self.slots[value] = self.fresh()
        self.note(slot)
        return slot

    def note(self, slot: int) -> None:
        """Note that instructions of the current region use a register."""
        at = self.region
        while at >= 0:
            region = self.code.regions[at]
            region.slots.add(slot)
            at = region.parent

    def fresh(self) -> int:
        """A register of its own."""
        self.code.slot_count += 1
        slot = self.code.slot_count - 1
        self.note(slot)
        return slot

    def preset(self, value: SSAValue, content: Any) -> None:
        """Give an SSA value its content before the run."""
        self.code.presets[self.slot(value)] = content

    def emit(self, instruction: Instruction, touches: tuple[Touch, ...] = ()) -> int:
        """Append an instruction and return its pc."""
        report = self.numerics.report
        if report is not None and self.op is not None:
            place = self.machine.place(self.op)
            instruction = _placed(instruction, report, (self.op.name, place.line if place is not None else None))
        self.code.instructions.append(instruction)
        self.code.ops.append(self.op)
        self.code.touches.append(touches)
        self.code.region_of.append(self.region)
        return len(self.code.instructions) - 1

    def on_registers(self, op: Operation, registers: Mapping[SSAValue, int]) -> Instruction | None:
        """The op's own instruction, not emitted, with its operands and results in other registers than theirs."""
        own = {value: self.slots.get(value) for value in registers}
        self.slots.update(registers)
        try:
            return self.machine.lowerings[op.name](op, self)
        finally:
            for value, slot in own.items():
                if slot is None:
                    del self.slots[value]
                else:
                    self.slots[value] = slot

    def here(self) -> int:
        """The pc of the next instruction."""
        return len(self.code.instructions)

    def patch(self, pc: int, instruction: Instruction) -> None:
        """Replace an instruction, now that its jump target is known."""
        self.code.instructions[pc] = instruction

    def enter(self) -> int:
        """Begin a structured region and return its number."""
        self.code.regions.append(Region(self.region, self.here()))
        self.region = len(self.code.regions) - 1
        return self.region

    def leave(self, end: int, merged: list[int]) -> None:
        """Finish the current region: its lanes meet at `end`, where `merged` registers are put together."""
        region = self.code.regions[self.region]
        region.end, region.merged = end, merged
        self.region = region.parent

    def straight(self, block: Block) -> list[Instruction]:
        """Instructions of a block without control flow, terminator left out."""
        found: list[Instruction] = []
        for op in block.ops:
            if op is block.last_op and op.next_op is None and not op.results and op.name.endswith(("yield", "return")):
                break
            lower = self.machine.lowerings.get(op.name)
            if lower is None:
                raise unsupported(op)
            instruction = lower(op, self)
            if instruction is not None:
                found.append(instruction)
        return found

    def block(self, block: Block) -> None:
        """Lower all ops of a block, terminator left out."""
        for op in block.ops:
            if op is block.last_op and is_terminator(op):
                break
            self.one(op)

    def take_turns(self, op: Operation, *, ending: bool) -> None:
        """Emit the beginning or the end of the turns taken at an op."""
        for turn in self.turns.get(op, ()):
            self.emit(self.machine.turn(self.slot(turn.argument), turn, ending=ending))

    def one(self, op: Operation) -> None:
        """Lower one op, and the turns taken around it; those of a loop are taken within."""
        around = op in self.turns and not op.name.endswith((".for", ".while", ".parallel"))
        self.op = op
        if around:
            self.take_turns(op, ending=False)
        self.beside.pop(op, Builder.lower_here)(op, self)
        if around:
            self.take_turns(op, ending=True)

    @staticmethod
    def lower_here(op: Operation, builder: Builder) -> None:
        """Lower one op where it stands."""
        builder.lower(op)

    def lower(self, op: Operation) -> None:
        """Lower one op, without the turns around it."""
        machine = self.machine
        structured = machine.structured.get(op.name)
        try:
            if structured is not None:
                structured(op, self)
                return
            lower: Lower | None = machine.lowerings.get(op.name)
            if lower is None:
                raise unsupported(op)
            instruction = lower(op, self)
        except Fault as fault:
            machine.blame(fault, op)
            return
        if instruction is not None:
            self.op = op
            self.emit(instruction, machine.touches(op, self))


Structured = Callable[[Operation, Builder], None]
"""Lowers an op that emits several instructions or has regions."""


def is_terminator(op: Operation) -> bool:
    """Whether the op only ends its block."""
    return op.next_op is None and op.name.endswith(
        ("yield", "_terminator", "return", "reduce", "in_parallel", "scf.condition")
    )


def unsupported(op: Operation) -> Fault:
    """The fault for an op the emulator does not know."""
    return Fault(
        "unsupported-op",
        f"the emulator cannot execute {op.name}",
        "rewrite it with arith, math, vector, linalg, memref, scf or affine ops, or as an external kernel",
    )
