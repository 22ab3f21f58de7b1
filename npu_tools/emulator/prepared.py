"""A program lowered once and run often: what a loaded kernel is on a device.

    prepared = PreparedProgram(program, outputs=(2,))
    weights = prepared.bind({"arg0": weight})
    for vector in vectors:
        prepared.run(weights.joined({"arg1": vector})).outputs["arg2"]

Every run gives what `run_program` would: the machine is emptied between runs, and thrown away after one that failed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from npu_tools.air import Program
from npu_tools.emulator.arguments import Held, Inputs
from npu_tools.emulator.bound import BoundInputs, held
from npu_tools.emulator.code import Code
from npu_tools.emulator.machine import Machine
from npu_tools.emulator.numerics import Mode, Numerics
from npu_tools.emulator.run import MAX_BYTES, MAX_INSTRUCTIONS, RunResult, choose_function, lowered, run_on
from npu_tools.emulator.schedule import Limits
from npu_tools.emulator.types import Fault
from npu_tools.findings import Finding


class _Lowered:
    """A machine with the function lowered on it, and what lowering found."""

    def __init__(self, machine: Machine, code: Code) -> None:
        self.machine, self.code = machine, code
        self.findings: tuple[Finding, ...] = tuple(machine.findings)
        self.seen = machine.seen


class PreparedProgram:
    """One function of a program. `outputs` are the argument positions a run gives back, all without it.

    Runs in several threads at once are run on machines of their own.
    """

    def __init__(
        self,
        program: Program,
        *,
        function: str | None = None,
        numerics: Mode = "faithful",
        outputs: Collection[int] | None = None,
    ) -> None:
        self.program, self.outputs = program, outputs
        self.numerics: Mode = numerics
        self.function = choose_function(program, function)
        self._idle: list[_Lowered] = []

    def bind(self, inputs: Inputs) -> BoundInputs:
        """Inputs checked and converted once.

        Raises:
            UnusableInput: inputs of the wrong shape or type.
        """
        bound = held(self.function, inputs, self.numerics)
        if self.outputs is None:
            return bound
        # What is not given back need not be there twice, as it was given and as it is held.
        values = [
            Held(value.values, value.values) if isinstance(value, Held) and at not in self.outputs else value
            for at, value in enumerate(bound.values)
        ]
        return BoundInputs(bound.function, bound.mode, tuple(values))

    def run(
        self,
        inputs: BoundInputs,
        *,
        timeout_s: float | None = None,
        max_bytes: int = MAX_BYTES,
        max_instructions: int | None = MAX_INSTRUCTIONS,
        progress: Callable[[int], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> RunResult:
        """One run.

        Raises:
            UnusableInput: the inputs are bound to something else, or one given unbound does not fit.
        """
        started = time.monotonic()
        deadline = None if timeout_s is None else started + timeout_s
        limits = Limits(deadline, timeout_s, max_instructions, cancelled, progress)
        values = inputs.for_run(self.function, self.numerics)
        known = self._idle.pop() if self._idle else None
        if known is not None:
            known.machine.renew(limits, max_bytes, known.findings, known.seen)
        else:
            machine = Machine(self.program, Numerics(self.numerics), "lifted", limits, max_bytes, None)
            try:
                known = _Lowered(machine, lowered(machine, self.function))
            except Fault:
                return run_on(machine, self.function, values, started)  # which lowers again and says what is wrong
        result = run_on(known.machine, self.function, values, started, code=known.code, wanted=self.outputs)
        if result.ok:
            result = replace(result, counters=result.counters.copy())
            # Module constants may have been written: such a machine is not as it was.
            if not known.machine.globals:
                # Now, not before the next run: what is at rest holds no memory.
                known.machine.renew(Limits(), max_bytes, known.findings, known.seen)
                self._idle.append(known)
        return result
