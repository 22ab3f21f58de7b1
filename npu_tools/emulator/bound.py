"""Inputs bound to a program once and used by many runs, as buffers that stay on a device are.

    bound = bind_inputs(program, {"arg0": a, "arg1": b})
    for _ in range(3):
        result = run_program(program, bound)

Checking, converting and rounding the arrays happens here and no longer in `run_program`. A run adopts what it only
reads, and copies what it writes, so that every run starts from the same values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from xdsl.dialects import func
from xdsl.dialects.builtin import MemRefType

from npu_tools.emulator.arguments import Held, Inputs, by_position, fitting
from npu_tools.emulator.elements import static_shape
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput


@dataclass(frozen=True, slots=True, eq=False)
class BoundInputs:
    """Arguments of one function in order: what a memref holds, numbers as given, None where nothing is."""

    function: func.FuncOp
    mode: str
    values: tuple[Any, ...]

    def for_run(self, function: func.FuncOp, mode: str) -> tuple[Any, ...]:
        """The values, for a run of this function with numerics of this mode.

        Raises:
            UnusableInput: they were bound to another function or for the other mode.
        """
        if function is not self.function:
            raise UnusableInput(
                f"these inputs are bound to another @{self.function.sym_name.data} than the one that is to run. "
                "Bind them to the program that runs."
            )
        if mode != self.mode:
            raise UnusableInput(f"these inputs are bound for {self.mode!r} numerics; the run is {mode!r}. Bind again.")
        return self.values

    def joined(self, inputs: Mapping[str, Any]) -> BoundInputs:
        """These with further arguments by name, which are converted by each run anew.

        Raises:
            UnusableInput: an argument is none of the function's, or bound already.
        """
        values = list(self.values)
        for position, value in enumerate(by_position(inputs, len(values))):
            if value is None:
                continue
            if values[position] is not None:
                raise UnusableInput(f"arg{position} is bound already. Leave it out, or bind without it.")
            values[position] = value
        return BoundInputs(self.function, self.mode, tuple(values))


def held(function: func.FuncOp, inputs: Inputs, numerics: Numerics | Literal["faithful", "f32"]) -> BoundInputs:
    """Copies of the arrays as the emulator holds them; what the caller does to the arrays later is not seen.

    Raises:
        UnusableInput: an input does not fit.
        Fault: an argument has a type the emulator cannot hold.
    """
    rounding = Numerics(numerics) if isinstance(numerics, str) else numerics
    kinds = [argument.type for argument in function.body.block.args]
    values = by_position(inputs, len(kinds))
    for position, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        if isinstance(kind, MemRefType) and value is not None:
            memref = cast("MemRefType[Any]", kind)
            given = np.asarray(value)
            fitted = fitting(f"arg{position}", memref, static_shape(memref), given, rounding)
            own = np.ascontiguousarray(fitted)
            own = own.copy() if np.may_share_memory(own, given) else own
            own.flags.writeable = False
            values[position] = Held(given, own)
    return BoundInputs(function, rounding.mode, tuple(values))
