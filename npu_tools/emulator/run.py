"""Run one function of a program on arrays.

    result = run_program(program, {"arg0": a, "arg1": b})
    result.ok, result.outputs["arg2"], result.findings

Modelled functionally: what the device computes, not when. Faults of the program are findings; only misuse (inputs that
do not fit, an unknown function) raises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Operation

from npu_tools.air import Program
from npu_tools.emulator.arguments import Held, Inputs, by_position, memref_argument, result_array, scalar_argument
from npu_tools.emulator.bound import BoundInputs, held
from npu_tools.emulator.code import Code
from npu_tools.emulator.counters import Counters
from npu_tools.emulator.machine import Grouping, Machine
from npu_tools.emulator.memory import MemRef
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.schedule import Limits, Stopped
from npu_tools.emulator.stall import deadlock, give_way
from npu_tools.emulator.tasks import Pending, Task
from npu_tools.emulator.trace import Recorder, Trace
from npu_tools.emulator.types import Array, Fault
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

MAX_BYTES = 8 << 30
MAX_INSTRUCTIONS = 2_000_000_000


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run gave. `ok` means it came to its end without an error finding; outputs are there either way."""

    ok: bool
    function: str
    outputs: dict[str, Array]
    findings: list[Finding]
    counters: Counters
    wall_s: float
    ran_on: Literal["emulator"] = "emulator"
    numerics: str = "faithful"
    grouping: Grouping = "lifted"
    trace: Trace | None = field(default=None, repr=False)


def run_program(
    program: Program,
    inputs: Inputs | BoundInputs = None,
    *,
    function: str | None = None,
    numerics: Numerics | Literal["faithful", "f32"] = "faithful",
    grouping: Grouping = "lifted",
    timeout_s: float | None = None,
    max_bytes: int = MAX_BYTES,
    max_instructions: int | None = MAX_INSTRUCTIONS,
    progress: Callable[[int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    trace: bool = False,
) -> RunResult:
    """Run a function and return its arguments as they are afterwards, with everything that went wrong.

    `inputs` are arrays by `arg0`, `arg1`, … or in order, or what `bind_inputs` made of them; memrefs without one start
    unwritten. `progress` is told how
    many instructions were executed, now and then; `cancelled` is asked as often.

    Raises:
        UnusableInput: inputs of the wrong shape or type, or no such function.
    """
    started = time.monotonic()
    rounding = Numerics(numerics) if isinstance(numerics, str) else numerics
    deadline = None if timeout_s is None else started + timeout_s
    limits = Limits(deadline, timeout_s, max_instructions, cancelled, progress)
    recorder = Recorder() if trace else None
    machine = Machine(program, rounding, grouping, limits, max_bytes, recorder)
    entry = choose_function(program, function)
    if isinstance(inputs, BoundInputs):
        inputs = inputs.for_run(entry, rounding.mode)
    return run_on(machine, entry, inputs, started)


def run_on(
    machine: Machine,
    entry: func.FuncOp,
    inputs: Inputs,
    started: float,
    *,
    code: Code | None = None,
    wanted: Collection[int] | None = None,
) -> RunResult:
    """The run itself, on a machine that is fresh or renewed. `code` is the function lowered before; `wanted` are the
    argument positions to give back, all of them without it."""
    name = entry.sym_name.data
    outputs: dict[str, Array] = {}
    try:
        arguments = bind(machine, entry, inputs)
        execute(machine, entry, name, arguments, code)
        _unwritten_outputs(machine, entry, arguments)
        outputs = results(entry, inputs, arguments, machine.numerics, wanted)
    except Fault as fault:
        machine.blame(fault, entry)
    machine.pool.forget()
    counters = machine.counters
    counters.instructions = machine.scheduler.executed
    counters.peak_bytes = machine.pool.peak
    for channel in machine.channels.values():
        counters.channel_puts[channel.name] = sum(stream.puts for stream in channel.streams.values())
        counters.channel_gets[channel.name] = sum(stream.gets for stream in channel.streams.values())
    return RunResult(
        ok=not any(finding.severity == "error" for finding in machine.findings),
        function=name,
        outputs=outputs,
        findings=machine.findings,
        counters=counters,
        wall_s=time.monotonic() - started,
        numerics=machine.numerics.mode,
        grouping=machine.grouping,
        trace=machine.trace.trace if machine.trace is not None else None,
    )


def bind_inputs(
    program: Program,
    inputs: Inputs,
    *,
    function: str | None = None,
    numerics: Numerics | Literal["faithful", "f32"] = "faithful",
) -> BoundInputs:
    """Check and convert inputs once, for any number of runs of one function.

    Raises:
        UnusableInput: inputs of the wrong shape or type, or no such function.
        Fault: an argument has a type the emulator cannot hold.
    """
    return held(choose_function(program, function), inputs, numerics)


def choose_function(program: Program, name: str | None) -> func.FuncOp:
    """The function of that name, or the only one that no other calls.

    Raises:
        UnusableInput: there is none, or more than one and no name.
    """
    functions = {each.sym_name.data: each for each in program.functions()}
    if not functions:
        raise UnusableInput(f"{program.name} has no function with a body. Nothing can be run.")
    if name is not None:
        if name not in functions:
            raise UnusableInput(f"{program.name} has no function @{name}. It has: {', '.join(functions)}.")
        return functions[name]
    called = {
        op.callee.string_value()
        for op in program.module.walk()
        if op.name == func.CallOp.name and isinstance(op, func.CallOp)
    }
    entries = [each for key, each in functions.items() if key not in called]
    if len(entries) != 1:
        raise UnusableInput(
            f"{program.name} has {len(entries)} functions to start from: {', '.join(functions)}. Name one."
        )
    return entries[0]


def bind(machine: Machine, entry: func.FuncOp, inputs: Inputs) -> dict[str, Any]:
    """The function's arguments by name.

    Raises:
        UnusableInput: an input does not fit.
        Fault: an argument has a type the emulator cannot hold.
    """
    kinds = [argument.type for argument in entry.body.block.args]
    given = by_position(inputs, len(kinds))
    bound: dict[str, Any] = {}
    effects = machine.effects.of_body(entry.body.block)
    for position, (kind, value) in enumerate(zip(kinds, given, strict=True)):
        name = f"arg{position}"
        if isinstance(kind, MemRefType):
            memref = cast("MemRefType[Any]", kind)
            written = effects.get(entry.body.block.args[position], (False, False))[1]
            bound[name] = memref_argument(name, memref, value, machine.pool, machine.numerics, written=written)
        else:
            bound[name] = scalar_argument(name, kind, value)
    return bound


def results(
    entry: func.FuncOp,
    inputs: Inputs,
    arguments: dict[str, Any],
    rounding: Numerics,
    wanted: Collection[int] | None = None,
) -> dict[str, Array]:
    """The memref arguments as they are afterwards; those nothing writes are the arrays that were given."""
    given = by_position(inputs, len(entry.body.block.args))
    found: dict[str, Array] = {}
    for position, (name, value) in enumerate(arguments.items()):
        if isinstance(value, MemRef) and (wanted is None or position in wanted):
            unchanged = value.buffer.constant and given[position] is not None
            array = given[position].given if isinstance(given[position], Held) else given[position]
            found[name] = np.asarray(array) if unchanged else result_array(value, rounding)
    return found


def execute(
    machine: Machine, entry: func.FuncOp, name: str, arguments: dict[str, Any], code: Code | None = None
) -> None:
    """Lower unless that was done before, run, and look at what is left over."""
    if code is None:
        code = lowered(machine, entry)
    if any(finding.severity == "error" for finding in machine.findings):
        return
    regs = code.registers()
    for slot, value in zip(code.arguments, arguments.values(), strict=True):
        regs[slot] = value
    instance = Pending(f"func @{name}", entry)
    task = Task(code, regs, 1, 1, instance, soft=True)
    machine.scheduler.start(task)
    try:
        # Overflow and NaN are results like others here, as on the device.
        with np.errstate(all="ignore"):
            machine.scheduler.run(lambda: give_way(machine))
    except Stopped as stopped:
        current = machine.scheduler.current
        op = current.code.ops[current.pc] if current is not None else None
        machine.blame(Fault(stopped.code, str(stopped), stopped.remedy), op or entry)
        return
    except Fault:
        return
    if any(not task.relay for task in machine.scheduler.waiting.values()):
        fault, blamed = deadlock(machine)
        machine.blame(fault, blamed.code.ops[blamed.pc] or entry)
        return
    _left_over(machine)


def lowered(machine: Machine, entry: func.FuncOp) -> Code:
    """The function's body as the machine runs it; what lowering finds wrong is among the machine's findings.

    Raises:
        Fault: nothing of it can be lowered.
    """
    return machine.lower_body(entry.body.block.args, entry, f"func @{entry.sym_name.data}", soft=True)


def _left_over(machine: Machine) -> None:
    """Elements that nobody took."""
    for channel in machine.channels.values():
        for stream in channel.streams.values():
            if stream.available:
                machine.blame(
                    Fault(
                        "left-over",
                        f"{stream.available} elements are left in channel @{channel.name}{list(stream.index)} at the end: "
                        f"{stream.puts} puts of {stream.put_elements} elements met {stream.gets} gets of "
                        f"{stream.get_elements}. On the device the sender would wait for ever",
                        "make puts and gets move the same number of elements",
                    ),
                    _declaration(machine, channel.name),
                )


def _declaration(machine: Machine, name: str) -> Operation:
    for op in machine.program.module.walk():
        symbol = op.properties.get("sym_name") or op.attributes.get("sym_name")
        if op.name == "air.channel" and getattr(symbol, "data", None) == name:
            return op
    return machine.program.module


def _unwritten_outputs(machine: Machine, entry: func.FuncOp, arguments: dict[str, Any]) -> None:
    """Arguments that started unwritten and were written in part: what is missing reads as NaN, or -85."""
    for name, value in arguments.items():
        if isinstance(value, MemRef) and value.buffer.missing:
            total = value.buffer.size
            missing = total if value.buffer.missing < 0 else value.buffer.missing
            machine.blame(
                Fault(
                    "unwritten-output",
                    f"{missing} of {total} elements of {name} were given no value by the caller or the program",
                    f"pass an array for {name} if it is an input; otherwise check which tiles write it",
                ),
                entry,
                "warning",
            )
            value.poison()
