"""Function arguments: which arrays go in, checked, and which come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import BFloat16Type, MemRefType
from xdsl.ir import Attribute

from npu_tools.emulator.elements import bits_of, dtype_of, memory_space, row_major, static_shape
from npu_tools.emulator.memory import Buffer, MemRef
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.pool import Pool
from npu_tools.emulator.types import Array
from npu_tools.errors import UnusableInput

Inputs = Mapping[str, Any] | Sequence[Any] | None
"""Arrays by `arg0`, `arg1`, … or in order; None or a missing entry leaves a memref unwritten."""


@dataclass(frozen=True, slots=True)
class Held:
    """An argument checked and converted before the run: `values` as the emulator holds them, never to be written."""

    given: Array
    values: Array


def by_position(inputs: Inputs, count: int) -> list[Any]:
    """The given values in argument order, None where nothing is given.

    Raises:
        UnusableInput: there are more than arguments, or a name is no argument.
    """
    given: list[Any] = [None] * count
    if inputs is None:
        return given
    if isinstance(inputs, Mapping):
        for name, value in inputs.items():
            position = int(name[3:]) if name.startswith("arg") and name[3:].isdecimal() else -1
            if not 0 <= position < count:
                raise UnusableInput(
                    f"there is no argument {name!r}: this function takes arg0 to arg{count - 1}. Name inputs so."
                )
            given[position] = value
        return given
    if len(inputs) > count:
        raise UnusableInput(f"{len(inputs)} inputs are given, and the function takes {count}. Leave out the rest.")
    given[: len(inputs)] = list(inputs)
    return given


def scalar_argument(name: str, kind: Attribute, value: Any) -> Any:
    """A scalar argument as registers hold it.

    Raises:
        UnusableInput: none is given, or it is no number.
    """
    if value is None:
        raise UnusableInput(f"{name} is a {kind} and has no value. Give a number.")
    if np.ndim(value) != 0:
        raise UnusableInput(f"{name} is a {kind}; an array of shape {list(np.shape(value))} is given. Give a number.")
    dtype = dtype_of(kind)
    return int(value) if kind.name == "index" else dtype.type(value)


def memref_argument(
    name: str, kind: MemRefType[Any], value: Any, pool: Pool, numerics: Numerics, *, written: bool
) -> MemRef:
    """A memref argument; on a buffer of its own where the program writes it, so the caller's array stays as it is.

    Raises:
        UnusableInput: shape or element type do not fit.
    """
    shape = static_shape(kind)
    buffer = Buffer(f"%{name}", kind.element_type, shape, memory_space(kind), pool)
    ref = MemRef(buffer, shape, row_major(shape))
    if isinstance(value, Held):
        if written:
            ref.write(value.values.reshape(1, 1, *shape))
        else:
            buffer.adopt(value.values, constant=True)
    elif value is not None:
        given = np.asarray(value)
        fitted = fitting(name, kind, shape, given, numerics)
        own = not np.may_share_memory(fitted, given)
        if fitted.flags.c_contiguous and (own or not written):
            pool.take(fitted.nbytes if own else 0, name)
            buffer.adopt(fitted, constant=not written)
        else:
            ref.write(fitted.reshape(1, 1, *shape))
    return ref


def fitting(name: str, kind: MemRefType[Any], shape: tuple[int, ...], values: Array, numerics: Numerics) -> Array:
    """The array as the emulator holds it, rounded to bf16 where the program says so."""
    if values.shape != shape:
        hint = " It has as many elements: reshape it." if values.size == int(np.prod(shape)) else ""
        raise UnusableInput(
            f"{name} is {kind}, shape {list(shape)}; an array of shape {list(values.shape)} is given.{hint}"
        )
    element = kind.element_type
    want = dtype_of(element)
    have = values.dtype
    if have == want:
        fitted = values
    elif want.kind == "f" and (have.kind == "f" or have == ml_dtypes.bfloat16):
        fitted = values.astype(want)
    elif want.kind in "iu" and have.kind in "iu":
        low, high = integer_range(element)
        if values.size and (int(values.min()) < low or int(values.max()) > high):
            raise UnusableInput(
                f"{name} is {kind}: values from {low} to {high}; {values.min()} to {values.max()} are given."
            )
        fitted = values.astype(want)
    elif want.kind == "b" and have.kind in "iub":
        fitted = values.astype(np.bool_)
    else:
        raise UnusableInput(f"{name} is {kind}; an array of {have} is given. Convert it to {want} first.")
    if isinstance(element, BFloat16Type) and numerics.mode == "faithful" and have != ml_dtypes.bfloat16:
        if not rounded_already(fitted):
            fitted = numerics.round_to(np.array(fitted), "bf16")
    return fitted


def rounded_already(values: Array) -> bool:
    """Whether float32 values all fit bf16: no bit is set in the lower halves."""
    words = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    return not words.size or int(np.bitwise_or.reduce(words)) & 0xFFFF == 0


def integer_range(element: Attribute) -> tuple[int, int]:
    """The smallest and largest number an integer element can stand for: signless ones may be read either way."""
    bits = bits_of(element)
    kind = dtype_of(element).kind
    return (0, (1 << bits) - 1) if kind == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def result_array(ref: MemRef, numerics: Numerics) -> Array:
    """A memref argument after the run, bf16 as ml_dtypes.bfloat16 (float32 in f32 mode, which rounds nothing)."""
    values = np.array(ref.array().reshape(ref.shape))
    if isinstance(ref.element_type, BFloat16Type) and numerics.mode == "faithful":
        return cast("Array", values.astype(ml_dtypes.bfloat16))
    return values
