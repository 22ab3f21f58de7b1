"""What a reference is given and what it gives: a program's arguments in, inputs and expected outputs out."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, func
from xdsl.dialects.builtin import FloatAttr, IndexType, IntegerAttr, MemRefType
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from npu_tools.air import Program
from npu_tools.air.dialect import HerdOp
from npu_tools.arrays import Argument, signature
from npu_tools.gate import Tolerance

Array = NDArray[Any]
Float = NDArray[np.float64]
BF16 = np.dtype(ml_dtypes.bfloat16)
UPSTREAM = "Xilinx/mlir-air@e972f2942 programming_examples"

EXACT = Tolerance(None, "given", "exact", 0.0, 0.0, None, "whole numbers are equal or wrong")


def example(path: str, rtol: float = 1e-3, atol: float = 1e-8) -> Tolerance:
    """The tolerance upstream's own test of an example uses; the defaults are those of its runner."""
    return Tolerance(None, "upstream", "example", rtol, atol, None, f"{UPSTREAM}/{path}")


def units(count: float, atol: float, reason: str) -> Tolerance:
    """`count` units in the last place of bf16 (2**-7 of the value at most), and `atol` where terms cancel."""
    return Tolerance(None, "given", "bf16 units", count * 2.0**-7, atol, None, reason)


@dataclass(frozen=True, slots=True)
class Expected:
    """What an argument must hold after the run: float64, or integers of the argument's width."""

    values: Array
    tolerance: Tolerance


@dataclass(frozen=True, slots=True)
class Trial:
    """Inputs by argument name, as the function takes them, and what must come out."""

    inputs: dict[str, Array]
    expected: dict[str, Expected]


@dataclass(frozen=True)
class Case:
    """One program to try: its name, its entry function's arguments, a seeded generator."""

    name: str
    program: Program
    arguments: tuple[Argument, ...]
    rng: np.random.Generator = field(repr=False)

    @classmethod
    def of(cls, program: Program, entry: func.FuncOp, name: str, seed: int = 0) -> Case:
        """The case of a program's entry function; the generator depends on the name and the seed alone.

        Raises:
            UnusableInput: an argument has a dynamic shape or is no number.
        """
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        return cls(name, program, tuple(signature(entry)), rng)

    def shape(self, position: int) -> tuple[int, ...]:
        """The shape of an argument."""
        shape = self.arguments[position].shape
        return () if shape is None else shape

    def stored(self, position: int, values: Any) -> Array:
        """Values as an argument holds them: rounded to its float type, wrapped to its integer width, reshaped."""
        argument = self.arguments[position]
        array = np.asarray(values)
        if argument.dtype.kind in "iu" and array.dtype.kind in "iub":
            array = array.astype(np.int64)
        return array.astype(argument.dtype).reshape(self.shape(position))

    def rounded(self, position: int, values: Any) -> Float:
        """Values after rounding to an argument's float type, as float64 of the same shape."""
        return np.asarray(values).astype(self.arguments[position].dtype).astype(np.float64)

    def normal(self, position: int, scale: float = 1.0, shape: tuple[int, ...] | None = None) -> Float:
        """Normal values an argument holds exactly, as float64; its own shape by default."""
        wanted = self.shape(position) if shape is None else shape
        return self.rounded(position, self.rng.standard_normal(wanted) * scale)

    def uniform(self, position: int, low: float, high: float, shape: tuple[int, ...] | None = None) -> Float:
        """Uniform values an argument holds exactly, as float64."""
        wanted = self.shape(position) if shape is None else shape
        return self.rounded(position, self.rng.uniform(low, high, wanted))

    def integers(self, position: int, low: int, high: int, shape: tuple[int, ...] | None = None) -> NDArray[np.int64]:
        """Integers from low to high - 1."""
        return self.rng.integers(low, high, self.shape(position) if shape is None else shape)

    def whole(self, position: int) -> NDArray[np.int64]:
        """Integers over the whole range of an argument's type."""
        limits = np.iinfo(self.arguments[position].dtype)
        return self.rng.integers(limits.min, limits.max, self.shape(position), endpoint=True)

    def trial(self, inputs: dict[int, Any], expected: dict[int, tuple[Any, Tolerance]]) -> Trial:
        """A trial from values by argument position; outputs without an input start as zeros, as on the host."""
        given = {
            position: inputs[position] if position in inputs else np.zeros(self.shape(position), np.int64)
            for position in {*inputs, *expected}
        }
        return Trial(
            {f"arg{position}": self.stored(position, values) for position, values in sorted(given.items())},
            {
                f"arg{position}": Expected(self._expected(position, values), tolerance)
                for position, (values, tolerance) in expected.items()
            },
        )

    def _expected(self, position: int, values: Any) -> Array:
        if self.arguments[position].dtype.kind in "iu":
            array = np.asarray(values)
            return array.reshape(self.shape(position)) if array.dtype == np.uint8 else self.stored(position, array)
        return np.asarray(values, np.float64).reshape(self.shape(position))

    def declared(self, prefix: str) -> list[tuple[int, ...]] | None:
        """The shapes an external function takes, () for scalars; None where no declared name starts so."""
        for name, op in self.program.declarations().items():
            if name.startswith(prefix):
                return [_shape(kind) for kind in op.function_type.inputs.data]
        return None

    def calls(self, prefix: str) -> bool:
        """Whether an external function whose name starts so is called."""
        return any(
            isinstance(op, func.CallOp) and op.callee.string_value().startswith(prefix)
            for op in self.program.module.walk()
        )

    def herd_indices(self) -> list[int]:
        """Index constants handed to herds, in the order of the text: positions, lengths, flags."""
        found: list[int] = []
        for op in self.program.module.walk():
            if isinstance(op, HerdOp):
                for operand in op.kernel_operands:
                    value = constant(operand)
                    if isinstance(operand.type, IndexType) and isinstance(value, int):
                        found.append(value)
        return found

    def constants(self, op_name: str) -> list[int | float]:
        """Constants that ops of a name take as operands, in the order of the text; vectors of one value too."""
        found: list[int | float] = []
        for op in self.program.module.walk():
            if op.name == op_name:
                found.extend(value for operand in op.operands if (value := constant(operand)) is not None)
        return found


Build = Callable[[Case], Trial]


def constant(value: SSAValue) -> int | float | None:
    """The number behind a value, through broadcasts; None where it is not a constant."""
    owner: Operation | None = value.owner if isinstance(value, OpResult) else None
    while owner is not None and owner.name in ("vector.broadcast", "vector.splat", "arith.extf", "arith.truncf"):
        source = owner.operands[0]
        owner = source.owner if isinstance(source, OpResult) else None
    if not isinstance(owner, arith.ConstantOp):
        return None
    number = owner.value
    if isinstance(number, IntegerAttr):
        return int(cast("IntegerAttr[Any]", number).value.data)
    if isinstance(number, FloatAttr):
        return float(cast("FloatAttr[Any]", number).value.data)
    return None


def _shape(kind: Attribute) -> tuple[int, ...]:
    return tuple(cast("MemRefType[Attribute]", kind).get_shape()) if isinstance(kind, MemRefType) else ()
