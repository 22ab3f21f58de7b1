"""What one run is made of: the program, its lowered bodies, memory, channels, counters, findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

import numpy as np
from xdsl.dialects import func, memref, scf
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, Operation, SSAValue

from npu_tools.air import Place, Program
from npu_tools.air.dialect import ChannelGetOp, ChannelOp, ChannelPutOp, HerdOp, Hierarchy, LaunchOp, SegmentOp
from npu_tools.emulator import abreast, control, hierarchy, memops, repeats, trips, turns
from npu_tools.emulator.calls import Externals
from npu_tools.emulator.channels import Channel
from npu_tools.emulator.code import Builder, Code, Region, Signal, Structured, Touch, end_task
from npu_tools.emulator.counters import Counters
from npu_tools.emulator.effects import Effects
from npu_tools.emulator.elements import dtype_of, memory_space, row_major, static_shape
from npu_tools.emulator.layout import storage_strides
from npu_tools.emulator.memory import Buffer, MemRef
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.ops import LOWERINGS
from npu_tools.emulator.outside import POISON, UnwrittenRead
from npu_tools.emulator.pool import Pool
from npu_tools.emulator.relays import Relays
from npu_tools.emulator.schedule import Limits, Scheduler
from npu_tools.emulator.tasks import Task
from npu_tools.emulator.trace import Recorder
from npu_tools.emulator.types import Fault, Instruction, Lower
from npu_tools.emulator.views import copied_bytes
from npu_tools.emulator.windows import Locate
from npu_tools.emulator.writers import Writers
from npu_tools.findings import Finding, Severity

Grouping = Literal["lifted", "per-tile"]

CHANNEL_DEPTH = 1
"""Transfers a channel holds before a core that puts has to wait."""
_DECLARED = frozenset({ChannelPutOp.name, ChannelGetOp.name, ChannelOp.name, memref.GlobalOp.name})
MAX_POINTS = {"tile": 1 << 12, "iteration": 1 << 24}
"""Sizes of a herd or segment, and of a launch, beyond which the sizes must be a mistake."""


class Machine:
    """One run's state. Lowering functions, the scheduler and op modules find everything here."""

    def __init__(
        self,
        program: Program,
        numerics: Numerics,
        grouping: Grouping,
        limits: Limits,
        max_bytes: int,
        trace: Recorder | None,
    ) -> None:
        self.program = program
        self.numerics = numerics
        self.grouping: Grouping = grouping
        self.trace = trace
        self.findings: list[Finding] = []
        self.counters = Counters()
        self.pool = Pool(max_bytes)
        self.scheduler = Scheduler(limits, self._fault_in, self._unwritten_in)
        self.parted = Signal()
        self.relays = Relays(self)
        self.writers = Writers(lambda fault, task: self._fault_in(fault, task))
        self.functions: dict[str, func.FuncOp] = {f.sym_name.data: f for f in program.functions()}
        self.declarations = program.declarations()
        self.structured: dict[str, Structured] = {
            **memops.STRUCTURED,
            **control.STRUCTURED,
            **hierarchy.STRUCTURED,
        }
        self.lowerings: dict[str, Lower] = {**LOWERINGS, **memops.LOWERINGS}
        self.externals = Externals(self)
        self.effects = Effects(self.externals.effects, self.functions)
        self.globals: dict[str, memref.GlobalOp] = {}
        self.channels: dict[str, Channel] = {}
        self._buffers: dict[str, Buffer] = {}
        self._codes: dict[Operation, Code] = {}
        self.windows: dict[Operation, Locate] = {}
        """The windows of channel puts and gets, by op."""
        self._seen: set[tuple[str, int, int]] = set()
        carried: dict[str, Attribute] = {}
        homes: dict[str, set[Operation | None]] = {}
        mixed: set[str] = set()
        for op in program.module.walk():
            if op.name not in _DECLARED:
                continue
            if isinstance(op, ChannelPutOp | ChannelGetOp):
                homes.setdefault(op.chan_name, set()).add(unrolled_segment(op))
                element = memops.memref_type(op.memref).element_type
                if carried.setdefault(op.chan_name, element) != element:
                    mixed.add(op.chan_name)
            if isinstance(op, memref.GlobalOp):
                self.globals[op.sym_name.data] = op
            elif isinstance(op, ChannelOp):
                self.channels[op.sym_name] = Channel(
                    op.sym_name,
                    tuple(op.size),
                    op.channel_type,
                    tuple(op.broadcast_shape) if op.broadcast_shape else None,
                    CHANNEL_DEPTH,
                )
        for name, places in homes.items():
            if name in self.channels:
                self.channels[name].local = len(places) == 1 and None not in places
                self.channels[name].mixed = name in mixed

    def renew(
        self, limits: Limits, max_bytes: int, findings: Sequence[Finding], seen: set[tuple[str, int, int]]
    ) -> None:
        """Begin another run of what was lowered on this machine, after one that came to its end.

        Lowered code holds on to the scheduler, the pool, the counters and the streams, so these are emptied in place.
        `findings` are those of lowering, and `seen` where they are.
        """
        self.findings, self._seen = list(findings), set(seen)
        self.counters.clear()
        self.pool.forget()
        self.pool.limit, self.pool.live, self.pool.peak = max_bytes, 0, 0
        self.pool.journal = None
        self.scheduler.renew(limits)
        self.relays = Relays(self)
        self.writers = Writers(lambda fault, task: self._fault_in(fault, task))
        for channel in self.channels.values():
            for stream in channel.streams.values():
                stream.clear()

    @property
    def seen(self) -> set[tuple[str, int, int]]:
        """Codes and places of the findings so far."""
        return set(self._seen)

    def place(self, op: Operation) -> Place | None:
        """Where an op stands in the text."""
        return self.program.where(op)

    def describe(self, op: Operation) -> str:
        """An op for messages: its kind, its name or channel, its line."""
        place = self.place(op)
        line = f" (line {place.line})" if place is not None else ""
        if isinstance(op, Hierarchy):
            name = f" @{op.sym_name}" if op.sym_name else ""
            return f"{op.name.removeprefix('air.')}{name}{line}"
        if isinstance(op, ChannelPutOp | ChannelGetOp):
            return f"{op.name.removeprefix('air.')} @{op.chan_name}{line}"
        return f"{op.name}{line}"

    def max_points(self, op: Operation) -> int:
        """The most tiles of a herd or segment, or iterations of a launch."""
        return MAX_POINTS["iteration" if isinstance(op, LaunchOp) else "tile"]

    def shares(self, value: SSAValue) -> turns.Shares | None:
        """What each side does with a buffer that is handed over; None where it is not."""
        return turns.shares_of(value, self.effects)

    def fresh_turns(self, shares: turns.Shares, name: str) -> turns.Turns:
        """The state of such a buffer before anybody's turn."""
        return turns.fresh(shares, name)

    def turn(self, slot: int, turn: turns.Turn, *, ending: bool) -> Instruction:
        """The beginning or the end of a side's turn on a buffer it shares."""
        return turns.end(slot, turn, self.scheduler.wake) if ending else turns.begin(slot, turn)

    def iterations_abreast(self, op: Hierarchy) -> tuple[int, int]:
        """How many iterations of a launch may run side by side, and along which of its dimensions."""
        if self.grouping != "lifted" or self.trace is not None:
            return 1, 0
        most, axis = abreast.width(op, self.functions, self.effects)
        if most > 1:
            fit = abreast.L2_BYTES // max(1, copied_bytes(op, self.effects))
            most = max(most, min(abreast.WIDEST, fit))
        return most, axis

    def trips_abreast(self, op: scf.ForOp, builder: Builder) -> Callable[[], None] | None:
        """Emit what runs the trips of a core's loop side by side; to be called again behind the loop."""
        return trips.side_by_side(op, builder)

    def repeated(self, op: Hierarchy, code: Code) -> repeats.Repeated | None:
        """How the iterations of a launch after the first can be done by steps; None where they are run."""
        if self.grouping != "lifted" or self.trace is not None or self.numerics.report is not None:
            return None
        agreed = repeats.alike(op, self.functions) if isinstance(op, LaunchOp) else None
        if not isinstance(op, LaunchOp) or agreed is None:
            return None
        return repeats.Repeated(self, op, code, agreed)

    def storage_strides(self, value: SSAValue, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Strides in elements of the buffer a value is given."""
        try:
            return storage_strides(value, shape, self.externals.of)
        except Fault:
            return row_major(shape)

    def touches(self, op: Operation, builder: Builder) -> tuple[Touch, ...]:
        """The registers of the memrefs an op touches, and whether it writes them."""
        return tuple((builder.slot(value), effect[1]) for value, effect in self.effects.of_op(op))

    def external_call(self, op: func.CallOp, symbol: str, builder: Builder) -> Instruction:
        """The instruction of a call to an external kernel."""
        return self.externals.instruction(op, symbol, builder)

    def body_code(self, op: Hierarchy) -> Code:
        """The lowered body of a launch, segment or herd."""
        found = self._codes.get(op)
        if found is None:
            found = self.lower_body(op.body.block.args, op, self.describe(op), soft=not isinstance(op, HerdOp))
            self._codes[op] = found
        return found

    def codes(self) -> list[Code]:
        """The bodies of launches, segments and herds lowered so far."""
        return list(self._codes.values())

    def lower_body(self, arguments: Sequence[SSAValue], op: Operation, name: str, *, soft: bool) -> Code:
        """Lower the one block of an op's region."""
        code = Code(name)
        code.regions.append(Region(-1, 0))
        builder = Builder(self, code, soft=soft, op=op)
        if isinstance(op, HerdOp):
            builder.herd, builder.turns = op, turns.places(op, self.effects)
        elif isinstance(op, SegmentOp | LaunchOp):
            builder.turns = turns.places(op, self.effects)
            builder.beside = dict.fromkeys(turns.loops_beside(op, builder.turns), turns.lower_beside)
        code.arguments = [builder.slot(argument) for argument in arguments]
        regions = op.regions[0].blocks
        if len(regions) != 1:
            raise Fault(
                "unsupported-op",
                f"{op.name} has {len(regions)} blocks; only structured control flow is executed",
                "use scf.for, scf.if and scf.while instead of cf.br and cf.cond_br",
            )
        builder.block(regions[0])
        builder.op = op
        code.regions[0].end = builder.here()
        builder.emit(cast("Instruction", _end_of(builder.here())))
        return code

    def global_buffer(self, symbol: str, declared: memref.GlobalOp) -> Buffer:
        """The storage of a module constant."""
        found = self._buffers.get(symbol)
        if found is None:
            kind = cast("MemRefType[Any]", declared.type)
            shape = static_shape(kind)
            found = Buffer(f"@{symbol}", kind.element_type, shape, memory_space(kind), self.pool)
            contents = memops.global_contents(declared)
            if contents is not None:
                values = np.ascontiguousarray(contents, dtype=dtype_of(kind.element_type))
                MemRef(found, shape, row_major(shape)).write(values.reshape(1, 1, *shape))
            self._buffers[symbol] = found
        return found

    def blame(self, fault: Fault, op: Operation, severity: Severity = "error") -> None:
        """Make a finding of a fault at an op, once for each place and code."""
        place = self.place(op)
        line, column = (place.line, place.column) if place is not None else (None, None)
        key = (fault.code, line or 0, column or 0)
        if key in self._seen:
            return
        self._seen.add(key)
        self.findings.append(
            Finding(
                severity,
                fault.code,
                fault.message,
                op=op.name,
                line=line,
                column=column,
                diagnostic=fault.diagnostic,
                remedy=fault.remedy,
            )
        )

    def fault_at(self, fault: Fault, task: Task, op: Operation, severity: Severity = "error") -> None:
        """Make a finding of a fault that a task met at an op."""
        text = f"{task.label}: {fault.message}"
        self.blame(Fault(fault.code, text, fault.remedy, diagnostic=fault.diagnostic), op, severity)

    def _fault_in(self, fault: Fault, task: Task) -> None:
        self.fault_at(fault, task, task.code.ops[task.pc] or self.program.module)

    def _unwritten_in(self, read: UnwrittenRead, task: Task) -> None:
        ref = read.ref
        count, total = ref.poison()
        op = task.code.ops[task.pc] or self.program.module
        self.fault_at(
            Fault(
                "uninitialised-read",
                f"{count} of {total} elements read from {ref.buffer.name} were never written; they are "
                f"{POISON[ref.array().dtype.kind]} from here on",
                "write the buffer first: fill it, or let a DMA or channel.get cover the whole of what is read",
            ),
            task,
            op,
            "note" if may_be_discarded(op) else "error",
        )

    def noted_depth(self, task: Task) -> None:
        """A channel had to hold more transfers than it does by itself."""
        op = task.code.ops[task.pc]
        if op is None or task.wait is None or not task.wait.streams:
            return
        stream = task.wait.streams[0]
        self.blame(
            Fault(
                "channel-depth",
                f"{task.label}: the design only goes on if channel @{stream.channel}{list(stream.index)} holds "
                f"{len(stream.chunks) + 1} transfers at once",
                "let the receiver take them before the next put; a core's ping-pong buffers hold two at most",
            ),
            op,
            "warning",
        )


def unrolled_segment(op: Operation) -> Operation | None:
    """The unrolled segment an op stands in."""
    current = op.parent_op()
    while current is not None and not isinstance(current, SegmentOp):
        current = current.parent_op()
    return current if isinstance(current, SegmentOp) and current.sizes else None


def may_be_discarded(op: Operation) -> bool:
    """Whether an op only loads what an arith.select then takes or leaves, as builders write a choice of buffers."""
    uses = [use for result in op.results for use in result.uses]
    return op.name == "memref.load" and all(use.operation.name == "arith.select" and use.index > 0 for use in uses)


def _end_of(pc: int) -> Any:
    """The end of a body, where also the lanes that parted in its outermost region meet."""
    from npu_tools.emulator.code import ARRIVED, END

    def end(frame: Any) -> Any:
        return ARRIVED if frame.join == pc else END

    return end


_ = end_task
