"""Windows: which elements of a memref a data movement touches, as lists of integers and SSA values.

In the text a list is `[0, %i, 64]`. In the op it is a static array, with a marker where an SSA value stands, beside
the values themselves; that marker never leaves this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

DYNAMIC = -(1 << 63)
"""The marker for "an SSA value stands here" in static arrays (MLIR's ShapedType::kDynamic)."""

Mixed = int | SSAValue


@dataclass(frozen=True, slots=True)
class Window:
    """Offsets, sizes and strides in elements of the memref, innermost dimension last; all empty: the whole memref."""

    offsets: list[Mixed]
    sizes: list[Mixed]
    strides: list[Mixed]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is said, so that the whole memref is meant."""
        return not (self.offsets or self.sizes or self.strides)

    @property
    def is_static(self) -> bool:
        """Whether every entry is an integer."""
        return all(isinstance(entry, int) for entry in (*self.offsets, *self.sizes, *self.strides))


def mixed(static: Sequence[int] | None, dynamic: Sequence[SSAValue]) -> list[Mixed]:
    """The list that a static array and the values for its markers stand for; no array means all are values.

    Raises:
        ValueError: there are more or fewer values than markers.
    """
    if static is None:
        return list(dynamic)
    markers = sum(entry == DYNAMIC for entry in static)
    if markers != len(dynamic):
        raise ValueError(f"{markers} places for SSA values but {len(dynamic)} values")
    values = iter(dynamic)
    return [next(values) if entry == DYNAMIC else entry for entry in static]
