"""math ops: AIE2P's own exp, exp2 and tanh on bf16 vectors, exact float32 functions elsewhere, one rounding to bf16.

Which is which: the vector unit has exp2 and tanh for bf16 (`math.exp` reaches exp2 through a product with log2(e)), so
`math.exp`, `math.exp2` and `math.tanh` on bf16 vectors, and in linalg bodies, which become vectors, get the hardware's
values (functions.py). Scalars and float32 go through the C library on the core, taken as exact here. `math.rsqrt`,
`sqrt`, `log`, `sin`, … likewise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from xdsl.ir import Operation

from npu_tools.emulator.functions import rsqrt
from npu_tools.emulator.ops.arith import apply_binary, apply_unary, as_unsigned, plain
from npu_tools.emulator.ops.core import core_numerics
from npu_tools.emulator.ops.signature import inside_linalg, is_bf16, is_float, is_vector, refuse, width_of
from npu_tools.emulator.rounding import wrap_integer
from npu_tools.emulator.types import Frame, Instruction, Lower, Lowering

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(values: Any) -> Any:
    """The error function, in double, given back in the type of the values."""
    array = np.asarray(values)
    return plain(np.asarray(_erf(array.astype(np.float64)), np.float64).astype(array.dtype))


def round_half_away(values: Any) -> Any:
    """To the nearest integer, halves away from zero (math.round)."""
    return np.copysign(np.floor(np.abs(values) + np.asarray(values).dtype.type(0.5)), values)


def _rsqrt(values: Any) -> Any:
    array = np.asarray(values)
    return plain(1 / np.sqrt(array)) if array.dtype != np.float32 else plain(rsqrt(array))


def on_vector_unit(op: Operation) -> bool:
    """Whether the core's bf16 vector functions compute this op."""
    kind = op.results[0].type
    return is_bf16(kind) and (is_vector(kind) or inside_linalg(op))


def float_unary(function: Callable[[Any], Any]) -> Lower:
    """Lowering of an exact function, then one rounding."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        rounded = core_numerics(op, low).rounder(op.results[0].type, kind=op.name)
        return apply_unary(op, low, lambda value: rounded(function(value)))

    return lower


def hardware_unary(name: str, exact: Callable[[Any], Any]) -> Lower:
    """Lowering of exp, exp2 or tanh: the core's own on bf16 vectors, else exact."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        numerics = core_numerics(op, low)
        function = getattr(numerics, name) if on_vector_unit(op) else exact
        rounded = numerics.rounder(op.results[0].type, kind=op.name)
        return apply_unary(op, low, lambda value: rounded(plain(function(value))))

    return lower


def float_binary(function: Callable[[Any, Any], Any]) -> Lower:
    """Lowering of an exact function of two floats, then one rounding."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        rounded = core_numerics(op, low).rounder(op.results[0].type, kind=op.name)
        return apply_binary(op, low, lambda a, b: rounded(function(a, b)))

    return lower


def fma(op: Operation, low: Lowering) -> Instruction:
    """a * b + c with the sum in float32 and one rounding to bf16.

    The product is rounded to float32 on the way; it is exact where the factors are bf16 numbers, which is what the
    multiplier of AIE2P takes (float32 factors go through it in three bf16 parts, so they are not fused there either).
    """
    rounded = core_numerics(op, low).rounder(op.results[0].type, kind=op.name)
    a, b, c = (low.slot(operand) for operand in op.operands)
    r = low.slot(op.results[0])

    def run(frame: Frame) -> None:
        regs = frame.regs
        regs[r] = rounded(regs[a] * regs[b] + regs[c])

    return run


def clampf(op: Operation, low: Lowering) -> Instruction:
    """min(max(x, low), high)."""
    value, least, most = (low.slot(operand) for operand in op.operands)
    r = low.slot(op.results[0])

    def run(frame: Frame) -> None:
        regs = frame.regs
        regs[r] = np.minimum(np.maximum(regs[value], regs[least]), regs[most])

    return run


def fpowi(op: Operation, low: Lowering) -> Instruction:
    """A float to an integer power."""
    rounded = core_numerics(op, low).rounder(op.results[0].type, kind=op.name)
    return apply_binary(op, low, lambda a, b: rounded(np.power(a, np.asarray(b).astype(np.asarray(a).dtype))))


def ipowi(op: Operation, low: Lowering) -> Instruction:
    """An integer to an integer power; negative powers give 0, but for 1 and -1."""
    bits = width_of(op.results[0].type)

    def run(a: Any, b: Any) -> Any:
        base, power = np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)
        whole = np.power(base, np.maximum(power, 0))
        inverse = np.where(base == 1, 1, np.where(base == -1, np.where(power % 2 == 0, 1, -1), 0))
        return plain(wrap_integer(np.where(power < 0, inverse, whole), bits))

    return apply_binary(op, low, run)


def bit_count(how: str) -> Lower:
    """Lowering of ctpop, ctlz and cttz."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        bits = width_of(op.results[0].type)
        places = np.arange(bits, dtype=np.uint64)

        def run(value: Any) -> Any:
            unsigned = as_unsigned(value, bits).astype(np.uint64)
            digits = (unsigned[..., None] >> places) & np.uint64(1)
            if how == "ones":
                count = digits.sum(axis=-1)
            else:
                ordered = digits if how == "trailing" else digits[..., ::-1]
                count = np.where(ordered.any(axis=-1), ordered.argmax(axis=-1), bits)
            return plain(wrap_integer(count.astype(np.int64), bits))

        return apply_unary(op, low, run)

    return lower


def absi(op: Operation, low: Lowering) -> Instruction:
    """The magnitude; the most negative number stays, as it wraps."""
    bits = width_of(op.results[0].type)
    return apply_unary(op, low, lambda v: plain(wrap_integer(np.abs(np.asarray(v).astype(np.int64)), bits)))


def classify(function: Callable[[Any], Any]) -> Lower:
    """Lowering of isnan, isinf, isfinite."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        if not is_float(op.operands[0].type):
            refuse(op, "takes a float")
        return apply_unary(op, low, function)

    return lower


LOWERINGS: dict[str, Lower] = {
    "math.exp": hardware_unary("exp", np.exp),
    "math.exp2": hardware_unary("exp2", np.exp2),
    "math.tanh": hardware_unary("tanh", np.tanh),
    "math.rsqrt": float_unary(_rsqrt),
    "math.erf": float_unary(erf),
    "math.erfc": float_unary(lambda value: 1 - erf(value)),
    "math.round": float_unary(round_half_away),
    **{
        f"math.{name}": float_unary(function)
        for name, function in {
            "absf": np.abs,
            "acos": np.arccos,
            "acosh": np.arccosh,
            "asin": np.arcsin,
            "asinh": np.arcsinh,
            "atan": np.arctan,
            "atanh": np.arctanh,
            "cbrt": np.cbrt,
            "ceil": np.ceil,
            "cos": np.cos,
            "cosh": np.cosh,
            "expm1": np.expm1,
            "floor": np.floor,
            "log": np.log,
            "log10": np.log10,
            "log1p": np.log1p,
            "log2": np.log2,
            "roundeven": np.rint,
            "sin": np.sin,
            "sinh": np.sinh,
            "sqrt": np.sqrt,
            "tan": np.tan,
            "trunc": np.trunc,
        }.items()
    },
    "math.atan2": float_binary(np.arctan2),
    "math.copysign": float_binary(np.copysign),
    "math.powf": float_binary(np.power),
    "math.fpowi": fpowi,
    "math.ipowi": ipowi,
    "math.fma": fma,
    "math.clampf": clampf,
    "math.absi": absi,
    "math.ctpop": bit_count("ones"),
    "math.ctlz": bit_count("leading"),
    "math.cttz": bit_count("trailing"),
    "math.isnan": classify(np.isnan),
    "math.isinf": classify(np.isinf),
    "math.isfinite": classify(np.isfinite),
}
"""What this module lowers, by op name."""
