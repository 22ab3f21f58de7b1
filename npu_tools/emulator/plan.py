"""Lower a program for the emulator without running it: what `compile` means here.

    findings, summary = plan_program(program, "gemm")
    summary   # {"bodies": 5, "instructions": 61}

The plan itself holds closures and is not kept on disk; lowering takes milliseconds and `run` does it again. What a
compile gives is the certainty that every op, type and external kernel of the program is known.
"""

from __future__ import annotations

from typing import Any, Literal

from npu_tools.air import Program
from npu_tools.emulator.machine import Machine
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.run import MAX_BYTES, choose_function
from npu_tools.emulator.schedule import Limits
from npu_tools.emulator.types import Fault
from npu_tools.findings import Finding


def plan_program(
    program: Program, function: str | None = None, *, numerics: Literal["faithful", "f32"] = "faithful"
) -> tuple[list[Finding], dict[str, Any]]:
    """What lowering finds wrong, and how large the plan is.

    Raises:
        UnusableInput: no such function, or a choice is needed.
    """
    entry = choose_function(program, function)
    machine = Machine(program, Numerics(numerics), "lifted", Limits(), MAX_BYTES, None)
    try:
        machine.lower_body(entry.body.block.args, entry, f"func @{entry.sym_name.data}", soft=True)
    except Fault as fault:
        machine.blame(fault, entry)
    codes = machine.codes()
    return list(machine.findings), {
        "bodies": len(codes) + 1,
        "instructions": sum(len(code.instructions) for code in codes),
    }
