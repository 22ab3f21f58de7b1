"""Ops by name: how each is lowered to one numpy instruction over all lanes of a group.

    lower = LOWERINGS["arith.addf"]          # Callable[[Operation, Lowering], Instruction | None]
    instruction = lower(op, lowering)
    instruction(frame)                       # reads and writes frame.regs

An op or a form of one that is not here raises Fault("unsupported-op") when it is lowered, never when it runs.
Control flow, memref and air ops belong to the emulator's own modules.
"""

from npu_tools.emulator.ops import arith, convert, index, linalg, math, vector
from npu_tools.emulator.ops.core import core_numerics, core_rounding
from npu_tools.emulator.types import Lower

LOWERINGS: dict[str, Lower] = {
    **arith.LOWERINGS,
    **convert.LOWERINGS,
    **math.LOWERINGS,
    **vector.LOWERINGS,
    **linalg.LOWERINGS,
    **index.LOWERINGS,
}
"""Every op of arith, math, vector, linalg, index and ub that the emulator executes."""

__all__ = ["LOWERINGS", "core_numerics", "core_rounding"]
