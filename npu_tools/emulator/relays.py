"""What a memtile's DMA does after the text of its segment: the same transfers over and over, as data comes.

A segment that gets into an L2 buffer and puts from it describes a chain of descriptors which starts anew at its end. So
upstream's programs may let the host send, and the cores take, more often than the text of the segment passes on.
Transfers on L2 buffers are remembered while their segment lives. When nothing else can go on and data lies in front of
such a chain, the chain goes round again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xdsl.ir import Operation

from npu_tools.emulator.channels import Stream
from npu_tools.emulator.code import Code, Region
from npu_tools.emulator.memory import Buffer
from npu_tools.emulator.tasks import Pending, Task
from npu_tools.emulator.types import Fault, Instruction

if TYPE_CHECKING:
    from npu_tools.emulator.machine import Machine

KEPT = 4096
"""Transfers remembered for one buffer; longer chains than any memtile holds."""


@dataclass(slots=True)
class _Step:
    """One transfer, with the registers it was made with, and for a get the stream it takes from."""

    instruction: Instruction
    frame: Task
    op: Operation
    source: Stream | None


@dataclass(slots=True, eq=False)
class _Chain:
    """The transfers of one buffer in the order of the text."""

    buffer: Buffer
    steps: list[_Step] = field(default_factory=list[_Step])
    started: bool = False


@dataclass(slots=True)
class Relays:
    """The chains of all segments that are running."""

    machine: Machine
    chains: dict[int, _Chain] = field(default_factory=dict[int, _Chain])

    def note(self, task: Task, buffer: Buffer, instruction: Instruction, op: Operation, source: Stream | None) -> None:
        """Remember a transfer of a segment on an L2 buffer."""
        chain = self.chains.get(id(buffer))
        if chain is None or chain.buffer is not buffer:
            chain = self.chains[id(buffer)] = _Chain(buffer)
            task.instance.on_done.append(self._forget(id(buffer)))
        if len(chain.steps) < KEPT:
            frame = Task(
                task.code, list(task.regs), 1, 1, task.instance, task.depth, task.segment, soft=True, beside=True
            )
            chain.steps.append(_Step(instruction, frame, op, source))

    def _forget(self, key: int) -> Callable[[], None]:
        return lambda: self.chains.pop(key, None) and None

    def go_round(self) -> bool:
        """Start every chain that has data in front of it which the text does not wait for."""
        scheduler = self.machine.scheduler
        claimed = {
            id(stream)
            for task in scheduler.waiting.values()
            if task.wait is not None and not task.relay
            for stream in (task.wait.streams if task.wait.kind == "get" else ())
        }
        started = False
        for chain in list(self.chains.values()):
            first = chain.steps[0].source
            if chain.started or first is None or not first.available or id(first) in claimed:
                continue
            chain.started = started = True
            self._start(chain)
        return started

    def _start(self, chain: _Chain) -> None:
        machine = self.machine
        steps = chain.steps
        if chain.buffer.freed:
            chain.buffer.freed = False
        code = Code(f"{chain.buffer.name}, repeated")
        code.regions.append(Region(-1, 0))

        def again(step: _Step) -> Instruction:
            def run(_: Any) -> Any:
                return step.instruction(step.frame)

            return run

        code.instructions = [*(again(step) for step in steps), lambda _: 0]
        code.ops = [*(step.op for step in steps), None]
        code.touches = [()] * len(code.instructions)
        code.region_of = [0] * len(code.instructions)
        task = Task(code, [], 1, 1, Pending(code.name, steps[0].op), soft=True, beside=True, relay=True)
        machine.scheduler.start(task)
        machine.blame(
            Fault(
                "relay-repeats",
                f"the transfers on {chain.buffer.name} repeat beyond the text of the segment, since data for them "
                "keeps coming: the memtile's DMA starts its chain of descriptors anew",
                "nothing, if that is meant; otherwise loop over the get and the put as often as data comes",
            ),
            steps[0].op,
            "note",
        )
