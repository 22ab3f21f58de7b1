"""Access to what is not there: elements beyond a memref, and elements nobody has written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npu_tools.emulator.types import Array, Fault, Index

if TYPE_CHECKING:
    from npu_tools.emulator.memory import MemRef

POISON = {"f": np.nan, "i": -85, "u": 170, "b": True}
"""What an element nobody wrote reads as, by numpy kind: NaN, -85 (170 where unsigned) for integers."""


@dataclass(frozen=True, slots=True)
class Outside:
    """A window that reaches beyond its memref: what of it lies inside is read and written, the rest is not there."""

    ref: MemRef
    offset: Index
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def _places(self) -> tuple[Array, Array]:
        """For each lane and element its place in the memref, 0 where there is none, and whether there is one."""
        ref = self.ref
        offset = np.broadcast_to(np.asarray(self.offset), (ref.gx, ref.gy))
        places = offset.reshape(ref.gx, ref.gy, *(1 for _ in self.shape))
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            steps = np.arange(size) * stride
            places = places + steps.reshape(*(1 for _ in self.shape[:axis]), -1, *(1 for _ in self.shape[axis + 1 :]))
        inside = (places >= 0) & (places < ref.extent)
        return np.where(inside, places, 0), inside

    def read(self) -> Array:
        """Values [gx, gy, *shape], with a telling value for what lies outside."""
        places, inside = self._places()
        flat = self.ref.flat_view()
        values = np.empty(places.shape, flat.dtype)
        for x, y in np.ndindex(*places.shape[:2]):
            lane = flat[x if flat.shape[0] > 1 else 0, y if flat.shape[1] > 1 else 0]
            values[x, y] = lane[places[x, y]]
        values[~inside] = POISON[flat.dtype.kind]
        return values

    def write(self, values: Array) -> None:
        """Write what lies inside, lane after lane."""
        places, inside = self._places()
        self.ref.buffer.separate(self.ref.buffer.lanes)
        self.ref.buffer.all_written()
        flat = self.ref.flat_view()
        wide = np.broadcast_to(values, places.shape)
        for x, y in np.ndindex(*places.shape[:2]):
            lane = flat[x if flat.shape[0] > 1 else 0, y if flat.shape[1] > 1 else 0]
            lane[places[x, y][inside[x, y]]] = wide[x, y][inside[x, y]]


class OutsideWindow(Fault):
    """A window of data movement reaches beyond its memref."""

    def __init__(self, outside: Outside, message: str, remedy: str) -> None:
        super().__init__("out-of-bounds", message, remedy)
        self.outside = outside


class UnwrittenRead(Exception):
    """An instruction reads elements nobody has written. The scheduler reports it, poisons them and tries again."""

    def __init__(self, ref: MemRef) -> None:
        self.ref = ref
        super().__init__(ref.buffer.name)
