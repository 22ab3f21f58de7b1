"""Combining many values into one: the kinds that vector.reduction, multi_reduction, contract and linalg share.

Sums and products of bf16 run in float32 and round once at the end, as the vector unit's accumulators do. Minimum and
maximum are exact. Integer sums wrap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Attribute, Operation

from npu_tools.emulator.ops.arith import as_unsigned
from npu_tools.emulator.ops.signature import element_of, is_float, refuse, width_of
from npu_tools.emulator.rounding import wrap_integer


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of combining: a ufunc, and whether operands are read as unsigned."""

    ufunc: np.ufunc
    unsigned: bool = False
    exact: bool = False


KINDS: dict[str, Kind] = {
    "add": Kind(np.add),
    "mul": Kind(np.multiply),
    "minsi": Kind(np.minimum, exact=True),
    "maxsi": Kind(np.maximum, exact=True),
    "minui": Kind(np.minimum, unsigned=True, exact=True),
    "maxui": Kind(np.maximum, unsigned=True, exact=True),
    "minimumf": Kind(np.minimum, exact=True),
    "maximumf": Kind(np.maximum, exact=True),
    "minnumf": Kind(np.fmin, exact=True),
    "maxnumf": Kind(np.fmax, exact=True),
    "minf": Kind(np.minimum, exact=True),
    "maxf": Kind(np.maximum, exact=True),
    "and": Kind(np.bitwise_and),
    "or": Kind(np.bitwise_or),
    "xor": Kind(np.bitwise_xor),
}


def kind_of(op: Operation, name: str) -> Kind:
    """The kind by name.

    Raises:
        Fault: there is none of that name.
    """
    found = KINDS.get(name)
    if found is None:
        refuse(op, f"reductions of kind {name!r} are not known")
    return found


def reduce_over(kind: Kind, values: NDArray[Any], axes: tuple[int, ...], element: Attribute, acc: Any | None) -> Any:
    """`values` combined over `axes`, then with `acc`; integers wrapped to the element type, floats not yet rounded."""
    if is_float(element):
        result = _many(kind.ufunc, values, axes)
        return result if acc is None else kind.ufunc(result, acc)
    bits = width_of(element)
    read: Callable[[Any], NDArray[Any]] = (lambda v: as_unsigned(v, bits)) if kind.unsigned else _signed
    result = _many(kind.ufunc, read(values), axes)
    if acc is not None:
        result = kind.ufunc(result, read(acc))
    return wrap_integer(result, bits if isinstance(element_of(element), IntegerType) else 64)


def _signed(values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    return -array.astype(np.int64) if array.dtype == np.bool_ else array.astype(np.int64)


def _many(ufunc: np.ufunc, values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """Reduction over several axes; a plain ufunc does several only where it is reorderable, and fmin is not in name."""
    result = values
    for axis in sorted(axes, reverse=True):
        result = ufunc.reduce(result, axis=axis)
    return result
