"""arith ops, with MLIR's semantics, on scalars, lane values and vectors alike.

Every value is a Python int (index), a numpy scalar or an array whose first two axes are lanes; results are fresh and
never changed afterwards. Float results of type bf16 round once, in the core's mode. Integers wrap; widths numpy lacks
live in the next wider type, i1 in bool. Where MLIR leaves a result undefined, this module decides: division by zero is
a Fault, shifts past the width give 0 (or the sign), floats past an integer's range saturate and NaN becomes 0.

Instructions run under `np.errstate(all="ignore")`: overflow and NaN are results here, not events.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
)
from xdsl.ir import Attribute, Operation

from npu_tools.emulator.ops.core import core_numerics
from npu_tools.emulator.ops.fused import stays_in_accumulator
from npu_tools.emulator.ops.signature import (
    attribute,
    dtype,
    integer,
    is_bf16,
    is_float,
    is_index,
    is_vector,
    refuse,
    shape_of,
    width_of,
)
from npu_tools.emulator.rounding import integer_dtype, round_bf16, wrap_integer
from npu_tools.emulator.types import Fault, Frame, Instruction, LanesDiffer, Lower, Lowering

Binary = Callable[[Any, Any], Any]
Unary = Callable[[Any], Any]

NATIVE_WIDTHS = (8, 16, 32, 64)


def is_array(value: Any) -> TypeGuard[NDArray[Any]]:
    """Whether a register value is an array (differs between lanes, or a vector)."""
    return isinstance(value, np.ndarray)


def is_number(value: Any) -> bool:
    """Whether a register value is a number or an array of them, and not a memref or a token."""
    return is_array(value) or isinstance(value, np.generic | int | float)


def plain(value: Any) -> Any:
    """A 0-d array as a scalar, anything else as it is."""
    return value[()] if is_array(value) and value.ndim == 0 else value


def apply_unary(op: Operation, low: Lowering, function: Unary) -> Instruction:
    """An instruction that puts `function` of the operand into the result's register."""
    a, r = low.slot(op.operands[0]), low.slot(op.results[0])

    def run(frame: Frame) -> None:
        regs = frame.regs
        regs[r] = function(regs[a])

    return run


def apply_binary(op: Operation, low: Lowering, function: Binary) -> Instruction:
    """An instruction that puts `function` of both operands into the result's register."""
    a, b, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])

    def run(frame: Frame) -> None:
        regs = frame.regs
        regs[r] = function(regs[a], regs[b])

    return run


# -- constants


def constant(op: Operation, low: Lowering) -> None:
    """`arith.constant`: the register is filled before the run."""
    low.preset(op.results[0], constant_value(op, attribute(op, "value"), op.results[0].type))


def constant_value(op: Operation, value: Attribute | None, kind: Attribute) -> Any:
    """The register content of a constant attribute of this type."""
    if isinstance(value, DenseIntOrFPElementsAttr):
        return _dense(op, cast("DenseIntOrFPElementsAttr[Any]", value), kind)
    if isinstance(value, FloatAttr):
        number: Any = cast("FloatAttr[Any]", value).value.data
    elif isinstance(value, IntegerAttr):
        number = cast("IntegerAttr[Any]", value).value.data
    else:
        refuse(op, f"constants of the form {value} are not known")
    if is_index(kind):
        return int(number)
    return plain(_held(np.asarray(number), kind))


def _dense(op: Operation, value: DenseIntOrFPElementsAttr[Any], kind: Attribute) -> NDArray[Any]:
    if not is_vector(kind):
        refuse(op, f"a constant of type {kind} is no value of the machine", "use a vector or a memref.global")
    shape = shape_of(kind)
    numbers = np.asarray(value.get_values())
    array = _held(numbers, kind)
    if array.size == 1:
        return np.broadcast_to(array.reshape((1,) * (2 + len(shape))), (1, 1, *shape))
    return array.reshape((1, 1, *shape))


def _held(numbers: NDArray[Any], kind: Attribute) -> NDArray[Any]:
    if is_bf16(kind):
        return round_bf16(numbers)
    if is_float(kind) or is_index(kind):
        with np.errstate(over="ignore"):
            return numbers.astype(dtype(kind))
    exact = numbers if numbers.dtype != object else np.array([int(n) & (2**64 - 1) for n in numbers.flat], np.uint64)
    return wrap_integer(exact, width_of(kind)).astype(dtype(kind))


# -- floats


def float_binary(function: Binary) -> Lower:
    """Lowering of a float op with two operands: computed in the held type, rounded once."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        return rounded_binary(op, low, function)

    return lower


def rounded_binary(op: Operation, low: Lowering, function: Binary) -> Instruction:
    """An instruction that computes in the held type and rounds once."""
    numerics, kind = core_numerics(op, low), op.results[0].type
    if not numerics.rounds(kind):
        return apply_binary(op, low, function)
    rounded = numerics.rounder(kind, kind=op.name)
    a, b, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])

    def run(frame: Frame) -> None:
        regs = frame.regs
        regs[r] = rounded(function(regs[a], regs[b]))

    return run


def mulf(op: Operation, low: Lowering) -> Instruction:
    """Rounds once, unless the product goes on in the accumulator (fused.py)."""
    if stays_in_accumulator(op):
        return apply_binary(op, low, np.multiply)
    return rounded_binary(op, low, np.multiply)


def float_choice(function: Binary) -> Lower:
    """Lowering of a float op whose result is one of its operands: nothing to round."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        return apply_binary(op, low, function)

    return lower


def negf(op: Operation, low: Lowering) -> Instruction:
    """Exact, so nothing rounds."""
    return apply_unary(op, low, np.negative)


def cmpf(op: Operation, low: Lowering) -> Instruction:
    """All sixteen predicates; the unordered ones are true where either side is NaN."""
    predicate = integer(op, "predicate")
    if not 0 <= predicate <= 15:
        refuse(op, f"predicate {predicate} does not exist")
    return apply_binary(op, low, _CMPF[predicate])


def _or_nan(compare: Binary) -> Binary:
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)


def _ordered(a: Any, b: Any) -> Any:
    return ~(np.isnan(a) | np.isnan(b))


_CMPF: tuple[Binary, ...] = (
    lambda a, b: np.equal(a, b) & np.False_,
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    lambda a, b: np.not_equal(a, b) & _ordered(a, b),
    _ordered,
    _or_nan(np.equal),
    _or_nan(np.greater),
    _or_nan(np.greater_equal),
    _or_nan(np.less),
    _or_nan(np.less_equal),
    np.not_equal,
    lambda a, b: np.isnan(a) | np.isnan(b),
    lambda a, b: np.equal(a, b) | np.True_,
)


# -- integers and index


def integer_binary(function: Binary, on_index: Binary | None = None) -> Lower:
    """Lowering of an integer op: numpy's wrapping arithmetic on native widths, else wide and cut.

    `on_index` is the same on Python ints, for uniform index values.
    """

    def lower(op: Operation, low: Lowering) -> Instruction:
        kind = op.results[0].type
        if is_index(kind):
            return apply_binary(op, low, _for_index(function, on_index or function))
        bits = width_of(kind)
        if bits in NATIVE_WIDTHS:
            return apply_binary(op, low, function)

        def cut(a: Any, b: Any) -> Any:
            wide = function(signed_wide(a), signed_wide(b))
            return plain(wrap_integer(wide, bits))

        return apply_binary(op, low, cut)

    return lower


def signed_wide(value: Any) -> Any:
    """A value of an odd width in int64; i1 true is -1, as MLIR reads it signed."""
    array = np.asarray(value)
    return -array.astype(np.int64) if array.dtype == np.bool_ else array.astype(np.int64)


def _for_index(function: Binary, on_python: Binary) -> Binary:
    def run(a: Any, b: Any) -> Any:
        if isinstance(a, int) and isinstance(b, int):
            return int(on_python(a, b))
        return function(a, b)

    return run


def unsigned_binary(function: Binary, on_index: Binary | None = None) -> Lower:
    """Lowering of an integer op that reads its operands as unsigned."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        kind = op.operands[0].type
        bits = width_of(kind)

        def run(a: Any, b: Any) -> Any:
            result = function(as_unsigned(a, bits), as_unsigned(b, bits))
            return plain(wrap_integer(result, bits))

        if is_index(kind):
            return apply_binary(op, low, _for_index(run, on_index or (lambda a, b: int(run(a, b)))))
        return apply_binary(op, low, run)

    return lower


def as_unsigned(value: Any, bits: int) -> Any:
    """The same bits read as an unsigned integer."""
    array = np.asarray(value)
    if bits == 1:
        return array.astype(np.uint8)
    if bits in NATIVE_WIDTHS:
        return array.astype(integer_dtype(bits, signed=False))
    return (array.astype(np.int64) & ((1 << bits) - 1)).astype(integer_dtype(bits, signed=False))


def _checked(function: Binary, name: str) -> Binary:
    def run(a: Any, b: Any) -> Any:
        if not np.all(b):
            raise Fault("division-by-zero", f"{name} by zero", "guard the divisor, or start the loop at 1")
        with np.errstate(over="ignore"):
            return function(a, b)

    return run


def _div_toward_zero(a: Any, b: Any) -> Any:
    return np.floor_divide(np.subtract(a, np.fmod(a, b)), b)


def _python_div(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _ceil_div(a: Any, b: Any) -> Any:
    return np.floor_divide(a, b) + (np.fmod(a, b) != 0)


divide_integers = _checked(_div_toward_zero, "integer division")
"""Signed division towards zero.

Raises:
    Fault: a divisor is zero.
"""
divsi = integer_binary(_checked(_div_toward_zero, "arith.divsi"), _checked(_python_div, "arith.divsi"))
remsi = integer_binary(
    _checked(np.fmod, "arith.remsi"), _checked(lambda a, b: a - _python_div(a, b) * b, "arith.remsi")
)
divui = unsigned_binary(_checked(np.floor_divide, "arith.divui"))
remui = unsigned_binary(_checked(np.fmod, "arith.remui"))
floordivsi = integer_binary(
    _checked(np.floor_divide, "arith.floordivsi"), _checked(lambda a, b: a // b, "arith.floordivsi")
)
ceildivsi = integer_binary(
    _checked(lambda a, b: (_ceil_div(a, b)).astype(np.asarray(a).dtype), "arith.ceildivsi"),
    _checked(lambda a, b: -(-a // b), "arith.ceildivsi"),
)
ceildivui = unsigned_binary(_checked(_ceil_div, "arith.ceildivui"))


def _shift_amount(b: Any, bits: int) -> Any:
    """The amount as numpy takes it: past the width numpy gives 0 or the sign, which is what is documented above."""
    amount = as_unsigned(b, bits)
    return np.minimum(amount, bits).astype(np.int64)


def shift(how: str) -> Lower:
    """Lowering of shli, shrui and shrsi."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        kind = op.results[0].type
        bits = width_of(kind)

        def run(a: Any, b: Any) -> Any:
            amount = _shift_amount(b, bits)
            if how == "left":
                # Two steps where the amount is the full width of the carrier, which C leaves undefined.
                wide = np.asarray(a).astype(np.int64)
                result = np.where(amount >= bits, 0, np.left_shift(wide, np.minimum(amount, bits - 1)))
            elif how == "logical":
                wide = as_unsigned(a, bits).astype(np.uint64)
                shifted = np.right_shift(wide, np.minimum(amount, bits - 1).astype(np.uint64))
                result = np.where(amount >= bits, np.uint64(0), shifted)
            else:
                result = np.right_shift(signed_wide(a), np.minimum(amount, bits - 1))
            return plain(wrap_integer(result, bits))

        if is_index(kind):
            return apply_binary(op, low, lambda a, b: _index_again(run(a, b)))
        return apply_binary(op, low, run)

    return lower


def _index_again(value: Any) -> Any:
    return value if is_array(value) and value.ndim else int(value)


# Python's operators, not numpy's: on two ints they are ten times faster, and loops compare indices all the time.
CMPI: tuple[Binary, ...] = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def cmpi(op: Operation, low: Lowering) -> Instruction:
    """All ten predicates; the last four read the bits as unsigned."""
    predicate = integer(op, "predicate")
    kind = op.operands[0].type
    bits = width_of(kind)
    if not 0 <= predicate <= 9:
        refuse(op, f"predicate {predicate} does not exist")
    if predicate >= 6:
        compare = CMPI[predicate - 4]
        return apply_binary(op, low, lambda a, b: plain(compare(as_unsigned(a, bits), as_unsigned(b, bits))))
    compare = CMPI[predicate]
    if bits == 1 and predicate >= 2:
        return apply_binary(op, low, lambda a, b: plain(compare(signed_wide(a), signed_wide(b))))
    return apply_binary(op, low, compare)


def extended(function: Callable[[Any, Any, int], tuple[Any, Any]]) -> Lower:
    """Lowering of the ops with a low and a high (or overflow) result."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        bits = width_of(op.operands[0].type)
        if bits > 32:
            refuse(op, f"the full product or sum of i{bits} does not fit the emulator's 64 bits", "use i32 or narrower")
        a, b = low.slot(op.operands[0]), low.slot(op.operands[1])
        first, second = low.slot(op.results[0]), low.slot(op.results[1])

        def run(frame: Frame) -> None:
            regs = frame.regs
            regs[first], regs[second] = function(regs[a], regs[b], bits)

        return run

    return lower


def _addui(a: Any, b: Any, bits: int) -> tuple[Any, Any]:
    total = as_unsigned(a, bits).astype(np.int64) + as_unsigned(b, bits).astype(np.int64)
    return plain(wrap_integer(total, bits)), plain((total >> bits) != 0)


def _mulsi(a: Any, b: Any, bits: int) -> tuple[Any, Any]:
    product = signed_wide(a) * signed_wide(b)
    return plain(wrap_integer(product, bits)), plain(wrap_integer(product >> bits, bits))


def _mului(a: Any, b: Any, bits: int) -> tuple[Any, Any]:
    product = as_unsigned(a, bits).astype(np.uint64) * as_unsigned(b, bits).astype(np.uint64)
    high = np.right_shift(product, np.uint64(bits))
    return plain(wrap_integer(product.astype(np.int64), bits)), plain(wrap_integer(high.astype(np.int64), bits))


# -- choice


def select(op: Operation, low: Lowering) -> Instruction:
    """A condition per lane or per element; memrefs and tokens need one that is the same in all lanes."""
    c, a, b = (low.slot(operand) for operand in op.operands)
    r = low.slot(op.results[0])
    rank = len(shape_of(op.results[0].type)) if is_vector(op.results[0].type) else 0
    per_element = is_vector(op.operands[0].type)
    index = is_index(op.results[0].type) and rank == 0

    def run(frame: Frame) -> None:
        regs = frame.regs
        condition: Any = regs[c]
        if not is_array(condition):
            regs[r] = regs[a] if condition else regs[b]
            return
        mask, yes, no = condition, regs[a], regs[b]
        if not is_number(yes):
            raise LanesDiffer
        if rank and not per_element:
            mask = mask.reshape(mask.shape + (1,) * rank)
        chosen = cast("Any", np.where(mask, yes, no))
        regs[r] = chosen.astype(np.int64) if index else chosen

    return run


LOWERINGS: dict[str, Lower] = {
    "arith.constant": constant,
    "arith.addf": float_binary(np.add),
    "arith.subf": float_binary(np.subtract),
    "arith.mulf": mulf,
    "arith.divf": float_binary(np.divide),
    "arith.remf": float_binary(np.fmod),
    "arith.maximumf": float_choice(np.maximum),
    "arith.minimumf": float_choice(np.minimum),
    "arith.maxnumf": float_choice(np.fmax),
    "arith.minnumf": float_choice(np.fmin),
    "arith.maxf": float_choice(np.maximum),
    "arith.minf": float_choice(np.minimum),
    "arith.negf": negf,
    "arith.cmpf": cmpf,
    "arith.addi": integer_binary(np.add, lambda a, b: a + b),
    "arith.subi": integer_binary(np.subtract, lambda a, b: a - b),
    "arith.muli": integer_binary(np.multiply, lambda a, b: a * b),
    "arith.andi": integer_binary(np.bitwise_and, lambda a, b: a & b),
    "arith.ori": integer_binary(np.bitwise_or, lambda a, b: a | b),
    "arith.xori": integer_binary(np.bitwise_xor, lambda a, b: a ^ b),
    "arith.maxsi": integer_binary(np.maximum, max),
    "arith.minsi": integer_binary(np.minimum, min),
    "arith.maxui": unsigned_binary(np.maximum),
    "arith.minui": unsigned_binary(np.minimum),
    "arith.divsi": divsi,
    "arith.divui": divui,
    "arith.remsi": remsi,
    "arith.remui": remui,
    "arith.floordivsi": floordivsi,
    "arith.ceildivsi": ceildivsi,
    "arith.ceildivui": ceildivui,
    "arith.shli": shift("left"),
    "arith.shrui": shift("logical"),
    "arith.shrsi": shift("arithmetic"),
    "arith.addui_extended": extended(_addui),
    "arith.mulsi_extended": extended(_mulsi),
    "arith.mului_extended": extended(_mului),
    "arith.cmpi": cmpi,
    "arith.select": select,
}
"""What this module lowers, by op name."""
