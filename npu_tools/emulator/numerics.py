"""Where and how AIE2P rounds: one object that every op module and kernel asks.

    numerics = Numerics()                              # faithful
    numerics.round_to(values, "bf16", kind="arith.addf")
    numerics.matmul(a, b)                              # BFP16 operands, float32 sums
    plain = Numerics("f32")                            # rounds nothing: what a float32 run would give

A core rounds by a control register that is `floor` after reset. Kernels that call `aie::set_rounding` and the
compiler's matrix multiply set it to conv_even, for good; everything else on such a core then rounds to even too.
`with_rounding` gives the same numerics for a core in another mode. Evidence that the mode matters, from errors the
vendor published for NPU2 (mlir-air kernel_registry/details): element-wise add 1.9e-3 (floor gives 1.88e-3, nearest
even 0), half-split RoPE 2.8e-3 (2.8e-3; 0), the fused-cast GEMM 9.7e-3 .. 9.9e-3 where the in-kernel cast has 9.3e-3
.. 9.5e-3 (9.7e-3 .. 9.9e-3 with a flooring cast launch).

What is not modelled: the order of float32 sums, flushing of subnormals, the precision of scalar inverse square roots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import BFloat16Type, ShapedType
from xdsl.ir import Attribute

from npu_tools.emulator import blockfloat, functions
from npu_tools.emulator.rounding import F32, Rounding, round_bf16

Mode = Literal["faithful", "f32"]
Generation = Literal["aie2", "aie2p"]

_FLOAT32 = np.dtype(np.float32)


@dataclass(slots=True)
class RoundingRow:
    """Where rounding happened: how many values passed, how many changed and by how much, relative to the value.

    `op` and `line` say which op of the program did it; both are empty for what rounds outside of any (inputs).
    """

    kind: str
    op: str = ""
    line: int | None = None
    values: int = 0
    changed: int = 0
    max_relative: float = 0.0
    sum_relative: float = 0.0

    @property
    def mean_relative(self) -> float:
        """Mean relative change over all values that passed."""
        return self.sum_relative / self.values if self.values else 0.0


@dataclass(slots=True)
class RoundingReport:
    """Rounding by kind and place, filled while a run with `report=True` goes on. `place` is the op being executed: its name
    and its line in the program."""

    rows: dict[tuple[str, str, int | None], RoundingRow] = field(
        default_factory=dict[tuple[str, str, int | None], RoundingRow]
    )
    place: tuple[str, int | None] = ("", None)

    def note(self, kind: str, before: Any, after: Any) -> None:
        """Count one array that was rounded. Zeros, infinities and NaN count as unchanged."""
        old, new = np.asarray(before, np.float64), np.asarray(after, np.float64)
        row = self.rows.setdefault((kind, *self.place), RoundingRow(kind, *self.place))
        row.values += old.size
        usable = np.isfinite(old) & np.isfinite(new) & (old != 0)
        change = np.abs(new[usable] - old[usable]) / np.abs(old[usable])
        if change.size:
            row.changed += int(np.count_nonzero(change))
            row.max_relative = max(row.max_relative, float(change.max()))
            row.sum_relative += float(change.sum())

    def sorted(self) -> list[RoundingRow]:
        """Rows, the largest total change first."""
        return sorted(self.rows.values(), key=lambda row: -row.sum_relative)


class Numerics:
    """Rounding, the matrix unit and the core's functions, in one mode, for one generation of the core.

    `mode` "f32" rounds nothing and computes every function exactly. `rounding` is the core's register. `generation`
    decides about the matrix unit (AIE2 multiplies bf16 natively) and about exp2 and tanh (AIE2 uses tables).
    """

    __slots__ = ("_others", "generation", "mode", "report", "rounding")

    def __init__(
        self,
        mode: Mode = "faithful",
        *,
        report: bool | RoundingReport = False,
        rounding: Rounding = "conv_even",
        generation: Generation = "aie2p",
    ) -> None:
        self.mode: Mode = mode
        self.rounding: Rounding = rounding
        self.generation: Generation = generation
        self.report: RoundingReport | None = RoundingReport() if report is True else report or None
        self._others: dict[Rounding, Numerics] = {rounding: self}

    def with_rounding(self, rounding: Rounding) -> Numerics:
        """The same numerics on a core whose register holds `rounding`; the report is shared."""
        other = self._others.get(rounding)
        if other is None:
            other = Numerics(self.mode, report=self.report or False, rounding=rounding, generation=self.generation)
            other._others = self._others
            self._others[rounding] = other
        return other

    @property
    def exact(self) -> bool:
        """Whether the functions are the true ones instead of AIE2P's."""
        return self.mode == "f32" or self.generation == "aie2"

    def rounds(self, element: Attribute | str) -> bool:
        """Whether values of this type are rounded at all."""
        return self.mode != "f32" and _is_bf16(element)

    def round_to(
        self, values: Any, element: Attribute | str, *, kind: str = "", rounding: Rounding | None = None
    ) -> Any:
        """The values as `element` holds them. Only bf16 needs work: its arrays are float32; others are native.

        Takes scalars and arrays and gives back the same sort. `rounding` overrides the core's register.
        """
        if not self.rounds(element):
            return values
        how = rounding or self.rounding
        if isinstance(values, np.ndarray):
            rounded: Any = round_bf16(cast("NDArray[Any]", values), how)
        else:
            rounded = _round_scalar(values, how)
        if self.report is not None:
            self.report.note(kind or "unnamed", values, rounded)
        return rounded

    def rounder(
        self, element: Attribute | str, *, kind: str = "", rounding: Rounding | None = None
    ) -> Callable[[Any], Any]:
        """`round_to` with the type settled, which may overwrite its argument: pass only fresh arrays."""
        if not self.rounds(element):
            return _same
        how = rounding or self.rounding
        report = self.report

        def run(values: Any) -> Any:
            if (
                values.__class__ is np.ndarray
                and report is None
                and values.dtype == _FLOAT32
                and values.flags.writeable
            ):
                return round_bf16(values, how, out=values)
            return self.round_to(values, element, kind=kind, rounding=how)

        return run

    def quantise(self, values: Any, axis: int, *, kind: str = "bfp16") -> F32:
        """The values as the matrix unit takes them in, blocks of 8 along `axis`; unchanged where there is no BFP16.

        Quantising once what several products use is the cheap way: `np.matmul` of the results is the unit's product.
        """
        if self.exact:
            return np.asarray(values, np.float32)
        result = blockfloat.quantise(values, axis)
        if self.report is not None:
            self.report.note(kind, values, result)
        return result

    def matmul(self, a: Any, b: Any, *, kind: str = "bfp16") -> F32:
        """Stacks `[..., M, K] @ [..., K, N]` on the matrix unit: BFP16 operands to nearest even, float32 sums.

        Every program seen sets conv_even before it multiplies, so a core's floor does not apply here.
        """
        return np.matmul(self.quantise(a, -1, kind=kind), self.quantise(b, -2, kind=kind))

    def exp2(self, values: Any) -> F32:
        """2 to the values, before narrowing to bf16."""
        return functions.exp2(values, exact=self.exact)

    def exp(self, values: Any) -> F32:
        """e to the values, before narrowing to bf16."""
        return functions.exp(values, exact=self.exact)

    def tanh(self, values: Any) -> F32:
        """tanh; on AIE2P a bf16 number already."""
        return functions.tanh(values, exact=self.exact)

    def rsqrt(self, values: Any) -> F32:
        """One over the square root, float32."""
        return functions.rsqrt(values)

    def inv(self, values: Any) -> F32:
        """One over the values, float32."""
        return functions.inv(values)

    def sigmoid(self, values: Any) -> F32:
        """0.5 * (1 + tanh(x / 2)), each step narrowed to bf16 as the SiLU kernels do."""
        half = self.round_to(np.asarray(values, np.float32) * np.float32(0.5), "bf16", kind="sigmoid")
        plus = self.round_to(
            self.round_to(self.tanh(half), "bf16", kind="sigmoid") + np.float32(1), "bf16", kind="sigmoid"
        )
        return self.round_to(plus * np.float32(0.5), "bf16", kind="sigmoid")

    def silu(self, values: Any) -> F32:
        """x * sigmoid(x), narrowed to bf16."""
        x = np.asarray(values, np.float32)
        return self.round_to(x * self.sigmoid(x), "bf16", kind="silu")


def _same(values: Any) -> Any:
    return values


def _is_bf16(element: Attribute | str) -> bool:
    if isinstance(element, str):
        return element == "bf16"
    if isinstance(element, ShapedType):
        return isinstance(getattr(element, "element_type", None), BFloat16Type)
    return isinstance(element, BFloat16Type)


def _round_scalar(value: Any, how: Rounding) -> np.float32:
    word = int(np.float32(value).view(np.uint32))
    if (word & 0x7FFFFFFF) > 0x7F800000:
        return np.float32(np.nan)
    if how == "conv_even":
        word += 0x7FFF + ((word >> 16) & 1)
    elif how == "floor" and word >> 31:
        word += 0xFFFF
    return np.uint32(word & 0xFFFF0000).view(np.float32)
