"""index and ub ops: 64-bit indices as Python ints or lane arrays, and poison as zero.

`ub.poison` stands for any value; it is read as padding that a mask or bound keeps from being used, so zero serves.
"""

from __future__ import annotations

import numpy as np
from xdsl.ir import Operation

from npu_tools.emulator.ops import arith, convert
from npu_tools.emulator.ops.signature import attribute, dtype, integer, is_index, refuse, shape_of, word
from npu_tools.emulator.types import Instruction, Lower, Lowering

_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def constant(op: Operation, low: Lowering) -> None:
    """`index.constant`."""
    low.preset(op.results[0], integer(op, "value"))


def bool_constant(op: Operation, low: Lowering) -> None:
    """`index.bool.constant`."""
    low.preset(op.results[0], np.bool_(integer(op, "value")))


def cmp(op: Operation, low: Lowering) -> Instruction:
    """`index.cmp`, all ten predicates."""
    found = word(attribute(op, "pred"))
    if found not in _PREDICATES:
        refuse(op, f"predicate {found!r} does not exist")
    number = _PREDICATES.index(found)
    if number >= 6:
        unsigned = arith.CMPI[number - 4]
        return arith.apply_binary(
            op, low, lambda a, b: arith.plain(unsigned(arith.as_unsigned(a, 64), arith.as_unsigned(b, 64)))
        )
    return arith.apply_binary(op, low, arith.CMPI[number])


def poison(op: Operation, low: Lowering) -> None:
    """`ub.poison`: zero of its type."""
    kind = op.results[0].type
    shape = shape_of(kind)
    if is_index(kind) and not shape:
        low.preset(op.results[0], 0)
        return
    zero = dtype(kind).type(0)
    low.preset(op.results[0], np.broadcast_to(zero, (1, 1, *shape)) if shape else zero)


def sizeof(op: Operation, low: Lowering) -> None:
    """`index.sizeof`: 64 bits here."""
    low.preset(op.results[0], 64)


LOWERINGS: dict[str, Lower] = {
    "index.constant": constant,
    "index.bool.constant": bool_constant,
    "index.sizeof": sizeof,
    "index.cmp": cmp,
    "index.casts": convert.index_cast(signed=True),
    "index.castu": convert.index_cast(signed=False),
    "index.divs": arith.divsi,
    "index.divu": arith.divui,
    "index.rems": arith.remsi,
    "index.remu": arith.remui,
    "index.floordivs": arith.floordivsi,
    "index.ceildivs": arith.ceildivsi,
    "index.ceildivu": arith.ceildivui,
    "index.shl": arith.shift("left"),
    "index.shru": arith.shift("logical"),
    "index.shrs": arith.shift("arithmetic"),
    **{
        f"index.{name}": arith.LOWERINGS[f"arith.{same}"]
        for name, same in {
            "add": "addi",
            "sub": "subi",
            "mul": "muli",
            "and": "andi",
            "or": "ori",
            "xor": "xori",
            "maxs": "maxsi",
            "maxu": "maxui",
            "mins": "minsi",
            "minu": "minui",
        }.items()
    },
    "ub.poison": poison,
}
"""What this module lowers, by op name."""
