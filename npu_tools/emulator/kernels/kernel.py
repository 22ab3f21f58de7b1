"""What an external kernel is to the emulator: a symbol, its operands and a numpy function over herd lanes.

A kernel function takes the numerics and one value per operand. A memref operand is an ndarray with two leading lane
axes, `[gx|1, gy|1, *shape]`, bf16 held as float32; a scalar operand is a number or an array `[gx|1, gy|1]`. Outputs
are written in place. Shapes are read off the arrays: the C++ bakes them in as macros, the program states them as
memref types, and where the two can disagree the family checks the types in `build`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerType,
    MemRefType,
)
from xdsl.ir import Attribute

Array = NDArray[Any]

Run = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a call: its element type by name, and its shape (None for a scalar)."""

    element: str
    shape: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Elements in the memref; 1 for a scalar."""
        return int(np.prod(self.shape)) if self.shape else 1


@dataclass(frozen=True, slots=True)
class ExternalKernel:
    """A function an `air.herd` links with, ready to run on all lanes at once.

    `reads` and `writes` are operand indices; an accumulator is in both. `accumulators` names those. `storage_order`
    holds, for each operand that prefers one, the permutation of the array axes (0 and 1 are the lanes) which makes
    its tile a natural row-major matrix in memory, so that no copy is needed; None means the logical order is best.
    `source` is the C++ file the behaviour was read in and `rounding` says where it rounds. `macs` counts the
    multiply-accumulates of one call on one tile, 0 for kernels that are not products.
    """

    symbol: str
    family: str
    run: Run
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    source: str
    rounding: str
    accumulators: tuple[int, ...] = ()
    storage_order: tuple[tuple[int, ...] | None, ...] = ()
    macs: int = 0
    detail: object = None
    """What the family knows of the call, for those who make several calls as one."""


Option = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a call's symbol and operand types leave open and the program around it may tell.

    `function` is the enclosing function's name and `arguments` its operands, `declared` the operands of every private
    function of the module. `observed` is what the data movement around the calls shows (see surroundings.py).
    `options` are build parameters given by the user, under the C++ macro's name (`dk_full`) or as documented by the
    family that reads them; they win over everything derived.
    """

    function: str = ""
    arguments: tuple[Operand, ...] = ()
    declared: Mapping[str, tuple[Operand, ...]] = field(default_factory=dict[str, tuple[Operand, ...]])
    observed: Mapping[str, int] = field(default_factory=dict[str, int])
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])


@dataclass(frozen=True, slots=True)
class Call:
    """What a family is asked about: the symbol, the match of its pattern, the operands, the object linked with."""

    symbol: str
    match: re.Match[str]
    operands: tuple[Operand, ...]
    link_with: str
    surroundings: Surroundings = Surroundings()


@dataclass(frozen=True, slots=True)
class Built:
    """A family's answer: the function with its effects."""

    run: Run
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    rounding: str
    accumulators: tuple[int, ...] = ()
    storage_order: tuple[tuple[int, ...] | None, ...] = ()
    source: str | None = None
    macs: int = 0
    detail: object = None


@dataclass(frozen=True, slots=True)
class Family:
    """Symbols that mean the same function at any size.

    `pattern` is a regular expression for the bare symbol; a program may put a prefix (`down_`) or a suffix (`_m64`)
    around it. `build` returns None when the operands are not this family's, so that another one may claim the symbol.
    """

    name: str
    pattern: str
    symbols: tuple[str, ...]
    source: str
    takes: str
    build: Callable[[Call], Built | None]


def operand(attribute: Attribute) -> Operand:
    """The operand a type describes."""
    if isinstance(attribute, MemRefType):
        memref = cast("MemRefType[Attribute]", attribute)
        return Operand(element_name(memref.element_type), tuple(memref.get_shape()))
    return Operand(element_name(attribute))


def element_name(attribute: Attribute) -> str:
    """The element type as it is written in MLIR, "?" for one that no kernel takes."""
    match attribute:
        case BFloat16Type():
            return "bf16"
        case Float16Type():
            return "f16"
        case Float32Type():
            return "f32"
        case Float64Type():
            return "f64"
        case IndexType():
            return "index"
        case IntegerType():
            return f"i{attribute.width.data}"
        case _:
            return "?"


def elements(operands: Sequence[Operand]) -> tuple[str, ...]:
    """The operands' element types, in order."""
    return tuple(operand.element for operand in operands)


def shape_of(operand: Operand) -> tuple[int, ...]:
    """The shape of a memref operand.

    Raises:
        ValueError: the operand is a scalar.
    """
    if operand.shape is None:
        raise ValueError("a scalar operand has no shape")
    return operand.shape


def memrefs(call: Call) -> tuple[int, ...]:
    """Indices of the memref operands."""
    return tuple(index for index, operand in enumerate(call.operands) if operand.shape is not None)
