"""Buffers and windows on them: shared lanes, elements nobody has written yet, bounds, and the bytes alive.

A buffer holds `[lanes x, lanes y, elements]`. A buffer of one core has a lane for each tile of the group that made it;
one that is common to all tiles (L2, L3) has one. As long as all lanes along an axis hold the same, the axis has length
1 in `data`: a broadcast costs one copy, and writing what differs makes the lanes separate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.ir import Attribute

from npu_tools.emulator.elements import bits_of, dtype_of, row_major
from npu_tools.emulator.lanes import Lanes, line
from npu_tools.emulator.outside import POISON, Outside, OutsideWindow, UnwrittenRead
from npu_tools.emulator.pool import Pool
from npu_tools.emulator.types import Array, Fault, Index, Scalar

if TYPE_CHECKING:
    from npu_tools.emulator.deferred import Chain
    from npu_tools.emulator.turns import Turns


Origin = tuple[Any, ...]
"""A buffer that nothing ever writes, and the windows through which contents came from it."""


@dataclass(slots=True, eq=False)
class Buffer:
    """The storage behind memrefs. `lanes` are all lanes it has, `origin` where they lie in the herd."""

    name: str
    element_type: Attribute
    shape: tuple[int, ...]
    space: int
    pool: Pool
    lanes: tuple[int, int] = (1, 1)
    strides: tuple[int, ...] = ()
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    data: Array | None = None
    unwritten: Array | None = None
    missing: int = -1
    """Elements of `data` nobody has written: -1 while all of them, with no mask made yet; 0 when all are written."""
    version: int = 0
    freed: bool = False
    users: int = 0
    """Operations in flight that still need it; freeing waits for them."""
    reported: bool = False
    turns: Turns | None = None
    """Whose turn it is, where herds hand the buffer over."""
    alias: Array | None = None
    """Instead of `data`: a view [lanes, *shape] of another buffer's elements, copied from there as a whole."""
    constant: bool = False
    """Never written, so copies of it may wait for ever."""
    origin: Origin | None = None
    """Where the contents were copied from, as a whole, if that is never written: equal origins are equal contents."""
    source: Buffer | None = None
    """The buffer that `alias` looks at."""
    borrowers: list[Buffer] = field(default_factory=list["Buffer"])
    """Buffers whose `alias` looks at `data`: they take copies before it is changed in place."""
    lent: bool = False
    """Calls put off still look at `data`: the next write goes to storage of its own."""
    deferred: dict[tuple[int, ...], Chain] = field(default_factory=dict["tuple[int, ...]", "Chain"])
    """Calls put off that are going to add to parts of this buffer."""
    per_tile: bool = False
    """Made outside a herd for each of its tiles: gets their lanes when a herd first uses it."""
    by_herd: dict[tuple[int, int], Buffer] = field(default_factory=dict["tuple[int, int]", "Buffer"])

    def __post_init__(self) -> None:
        self.dtype = dtype_of(self.element_type)
        self.strides = self.strides or row_major(self.shape)

    @property
    def size(self) -> int:
        """Elements in one lane."""
        return math.prod(self.shape)

    @property
    def device_bytes(self) -> int:
        """Bytes of one lane on the device."""
        return (self.size * bits_of(self.element_type) + 7) // 8

    def adopt(self, values: Array, *, constant: bool) -> None:
        """Take an array [*shape] as the storage; `constant` where nothing is ever going to write it."""
        self.origin = None
        self.data = values.reshape(1, 1, -1)
        self.constant = constant
        self.version += 1
        self.all_written()

    def for_herd(self, lanes: tuple[int, int]) -> Buffer:
        """The buffer as the tiles of a herd have it: itself, or one with a lane for each tile."""
        if not self.per_tile or lanes == (1, 1):
            return self
        found = self.by_herd.get(lanes)
        if found is None:
            found = Buffer(
                self.name, self.element_type, self.shape, self.space, self.pool, lanes, self.strides, dtype=self.dtype
            )
            self.by_herd[lanes] = found
        return found

    def storage(self) -> Array:
        """`data`, made on first use with its lanes still shared."""
        if self.alias is not None:
            self.own()
        return self.reshape_lanes((1, 1)) if self.data is None else self.data

    def own(self) -> None:
        """Copy what so far is a view of another buffer."""
        view, self.alias = self.alias, None
        if view is not None:
            if self.pool.journal is not None:
                self.pool.journal.spoil()
            self.reshape_lanes((view.shape[0], view.shape[1])).reshape(view.shape)[...] = view

    def borrow(self, source: Buffer, view: Array, origin: Origin | None) -> None:
        """Be a view of another buffer's elements, which come from `origin`, until one of the two is written."""
        if self.data is not None:
            self.pool.give(self.data.nbytes)
        if self.pool.journal is not None:
            self.pool.journal.spoil()
        self.data, self.alias, self.source, self.lent, self.origin = None, view, source, False, origin
        self.version += 1
        self.all_written()
        self.deferred.clear()
        self.borrowers.clear()
        source.borrowers.append(self)

    def call_back(self) -> None:
        """Let those who look at `data` take copies, since it is about to be changed in place."""
        for borrower in self.borrowers:
            if borrower.alias is not None and borrower.source is self:
                borrower.own()
        self.borrowers.clear()

    def forget_borrowers(self) -> None:
        """Leave the storage to those who look at it; the next write makes new one."""
        live = [borrower for borrower in self.borrowers if borrower.alias is not None and borrower.source is self]
        self.borrowers.clear()
        if live:
            for borrower in live:
                borrower.source = None
            self.lent = True

    def lend(self) -> None:
        """Calls put off look at the elements from now on."""
        self.lent = True
        if self.source is not None and self.alias is not None:
            self.source.lent = True

    def reshape_lanes(self, want: tuple[int, int]) -> Array:
        """New storage with these lanes and unspecified contents."""
        self.pool.take(want[0] * want[1] * self.size * self.dtype.itemsize, f"{self.name} ({self.shape})")
        if self.data is not None:
            self.pool.give(self.data.nbytes)
        self.data = np.empty((*want, self.size), dtype=self.dtype)
        self.alias = None
        self.lent = False
        self.version += 1
        return self.data

    def settle(self, low: int, high: int) -> None:
        """Make the calls put off that add to elements [low, high)."""
        for key, chain in list(self.deferred.items()):
            if chain.low < high and low < chain.high:
                del self.deferred[key]
                chain.make()

    def keep_lent(self) -> None:
        """Copy what calls put off look at, before it is changed in place."""
        self.call_back()
        if self.lent and self.data is not None:
            if self.pool.journal is not None:
                self.pool.journal.spoil()
            self.data = self.data.copy()
            self.version += 1
        self.lent = False

    def separate(self, want: tuple[int, int]) -> Array:
        """Give lanes that shared their contents copies of their own along the axes where `want` is more than 1."""
        self.origin = None
        old = self.storage()
        lanes = (max(old.shape[0], want[0]), max(old.shape[1], want[1]))
        if lanes == old.shape[:2]:
            if self.lent or self.borrowers:
                self.keep_lent()
                return self.storage()
            return old
        self.call_back()
        self.lent = False
        mask, missing = self.unwritten, self.missing
        new = np.empty((*lanes, self.size), dtype=self.dtype)
        self.pool.take(new.nbytes - old.nbytes, f"{self.name} ({self.shape})")
        if missing >= 0:
            new[...] = old
            if self.pool.journal is not None:
                self.pool.journal.copied(new, old)
        self.data = new
        self.version += 1
        if mask is not None:
            self.unwritten = np.ascontiguousarray(np.broadcast_to(mask, new.shape))
            self.missing = int(np.count_nonzero(self.unwritten))
        return new

    def all_written(self) -> None:
        """Every element now has a value."""
        self.unwritten, self.missing = None, 0

    def release(self) -> None:
        """Free the storage; later access is a fault."""
        self.freed = True
        for own in self.by_herd.values():
            own.release()
        if self.data is not None:
            self.pool.give(self.data.nbytes)
        self.call_back()
        self.data = self.unwritten = self.alias = None
        self.deferred.clear()
        self.version += 1


@dataclass(slots=True, eq=False)
class MemRef:
    """A window on a buffer for a group of `gx` by `gy` lanes (see `types.Ref`).

    Lane (x, y) of the group sees buffer lane (`x0` + x, `y0` + y), from element `offset` + x*`dx` + y*`dy` on.
    """

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    dx: int = 0
    dy: int = 0
    x0: int = 0
    y0: int = 0
    gx: int = 1
    gy: int = 1
    _view: Array | None = None
    _version: int = -1
    _whole: bool | None = None

    @property
    def element_type(self) -> Attribute:
        """Element type as in the program."""
        return self.buffer.element_type

    @property
    def size(self) -> int:
        """Elements in one lane of the window."""
        return math.prod(self.shape)

    @property
    def whole(self) -> bool:
        """Whether the window is the whole buffer, in order, in all its lanes."""
        if self._whole is None:
            buffer = self.buffer
            lanes_x, lanes_y = buffer.lanes
            self._whole = (
                self.offset == 0
                and self.dx == 0
                and self.dy == 0
                and (lanes_x == 1 or self.gx == lanes_x)
                and (lanes_y == 1 or self.gy == lanes_y)
                and self.size == buffer.size
                and (self.strides == buffer.strides if self.shape == buffer.shape else self.dense)
            )
        return self._whole

    @property
    def dense(self) -> bool:
        """Whether the window and its buffer are dense and row-major."""
        return self.strides == row_major(self.shape) and self.buffer.strides == row_major(self.buffer.shape)

    def lanes_cut(self, lanes: Lanes) -> MemRef:
        """The same window for a part of the lanes."""
        own_x, own_y = self.buffer.lanes[0] > 1, self.buffer.lanes[1] > 1
        return MemRef(
            self.buffer,
            self.shape,
            self.strides,
            self.offset + lanes.x0 * self.dx + lanes.y0 * self.dy,
            self.dx if lanes.nx > 1 else 0,
            self.dy if lanes.ny > 1 else 0,
            self.x0 + lanes.x0 if own_x else 0,
            self.y0 + lanes.y0 if own_y else 0,
            lanes.nx,
            lanes.ny,
        )

    def array(self) -> Array:
        """The window as a strided view [gx|1, gy|1, *shape] of the storage, without any check."""
        buffer = self.buffer
        if self._version == buffer.version and self._view is not None:
            return self._view
        if buffer.deferred:
            buffer.settle(*self.span())
        data = buffer.data
        if data is None:
            if buffer.freed:
                raise self._freed()
            if buffer.alias is not None:
                seen = self._on_alias(buffer.alias)
                if seen is not None:
                    self._view, self._version = seen, buffer.version
                    return seen
            data = buffer.storage()
        self._view = self._on(data)
        self._version = buffer.version
        return self._view

    def _on(self, data: Array) -> Array:
        item = data.itemsize
        own_x = data.strides[0] if data.shape[0] > 1 else 0
        own_y = data.strides[1] if data.shape[1] > 1 else 0
        step_x, step_y = own_x + self.dx * item, own_y + self.dy * item
        return np.ndarray(
            (self.gx if step_x else 1, self.gy if step_y else 1, *self.shape),
            data.dtype,
            data,
            self.offset * item + self.x0 * own_x + self.y0 * own_y,
            (step_x, step_y, *(stride * item for stride in self.strides)),
        )

    def _on_alias(self, view: Array) -> Array | None:
        """The window on a view of another buffer, where its elements lie there as they would here."""
        if self.shape == self.buffer.shape and self.whole:
            return view
        item = view.itemsize
        if any(
            n > 1 and a != b * item
            for n, a, b in zip(view.shape[2:], view.strides[2:], self.buffer.strides, strict=True)
        ):
            return None
        own_x = view.strides[0] if view.shape[0] > 1 else 0
        own_y = view.strides[1] if view.shape[1] > 1 else 0
        step_x, step_y = own_x + self.dx * item, own_y + self.dy * item
        start = view[self.x0 if view.shape[0] > 1 else 0, self.y0 if view.shape[1] > 1 else 0].reshape(-1)
        if not np.may_share_memory(start, view):
            return None
        return np.lib.stride_tricks.as_strided(
            start[self.offset :],
            (self.gx if step_x else 1, self.gy if step_y else 1, *self.shape),
            (step_x, step_y, *(stride * item for stride in self.strides)),
            writeable=False,
        )

    def _freed(self) -> Fault:
        return Fault(
            "use-after-dealloc",
            f"{self.buffer.name} is used after memref.dealloc has freed it",
            "move the dealloc behind the last use, or make the dealloc depend on it",
        )

    def read(self) -> Array:
        """Contents [gx|1, gy|1, *shape]: a view, never to be written."""
        view = self.array()
        if self.buffer.missing:
            self._note_unwritten()
        return view

    def _note_unwritten(self) -> None:
        unwritten = self.unwritten_view()
        if unwritten is None or unwritten.any():
            raise UnwrittenRead(self)

    def poison(self) -> tuple[int, int]:
        """Give elements nobody wrote a telling value, and count them: how many there are, of how many read."""
        self.buffer.origin = None
        unwritten = self.unwritten_view()
        view = self.array()
        value = POISON[view.dtype.kind]
        if unwritten is None:
            view[...] = value
            count = view.size
        else:
            view[unwritten] = value
            count = int(np.count_nonzero(unwritten))
        self._mark_written(None)
        return count, view.size

    def unwritten_view(self) -> Array | None:
        """Which elements nobody has written, as a view like `array`; None while that is all of them."""
        mask = self.buffer.unwritten
        return None if mask is None else self._on(mask)

    def is_unwritten(self) -> bool:
        """Whether nobody has written any element of the window."""
        if not self.buffer.missing:
            return False
        view = self.unwritten_view()
        return view is None or bool(view.all())

    def unwritten_part(self) -> Array | None:
        """A mask [gx|1, gy|1, *shape] of elements nobody has written, or None where all are written."""
        if not self.buffer.missing:
            return None
        view = self.unwritten_view()
        if view is None:
            return np.ones((1, 1, *self.shape), dtype=np.bool_)
        return view.copy() if view.any() else None

    def write(self, values: Array | np.generic | float, unwritten: Array | None = None) -> None:
        """Overwrite the whole window; `unwritten` marks elements that are copies of what nobody wrote.

        Raises:
            Fault: the buffer is freed.
        """
        buffer = self.buffer
        if buffer.freed:
            raise self._freed()
        buffer.origin = None
        vx = vy = 1
        if isinstance(values, np.ndarray) and values.ndim >= 2 and values.ndim == len(self.shape) + 2:
            vx, vy = values.shape[0], values.shape[1]
        if self.whole and (buffer.lanes[0] > 1 or vx == 1) and (buffer.lanes[1] > 1 or vy == 1) and unwritten is None:
            data = buffer.data
            buffer.deferred.clear()
            if buffer.borrowers:
                # Whole new contents: the old storage stays with those who look at it.
                buffer.forget_borrowers()
            if data is None or data.shape[0] != vx or data.shape[1] != vy or buffer.lent:
                buffer.reshape_lanes((vx, vy))
            self.array()[...] = values
            buffer.unwritten, buffer.missing = None, 0
            if buffer.pool.journal is not None and buffer.space != 0:
                buffer.pool.journal.copied(self.array(), values)
            return
        self._separate(vx, vy)
        view = self.array()
        if (view.shape[0] == 1 and vx > 1) or (view.shape[1] == 1 and vy > 1):
            values = _last_lane(view, values)
        view[...] = values
        if buffer.pool.journal is not None and buffer.space != 0:
            buffer.pool.journal.copied(view, values)
        if buffer.missing:
            self._mark_written(unwritten)
        elif unwritten is not None:
            self._mark_unwritten(unwritten)

    def _separate(self, vx: int, vy: int) -> None:
        """Give the buffer's lanes storage of their own where this window is going to make them differ."""
        buffer = self.buffer
        if buffer.alias is not None:
            buffer.own()
        lanes_x, lanes_y = buffer.lanes
        want_x = lanes_x if lanes_x > 1 and (vx > 1 or self.dx or self.gx != lanes_x) else 1
        want_y = lanes_y if lanes_y > 1 and (vy > 1 or self.dy or self.gy != lanes_y) else 1
        if want_x > 1 or want_y > 1:
            buffer.separate((want_x, want_y))
        elif buffer.lent or buffer.borrowers:
            buffer.keep_lent()

    def _mark_written(self, unwritten: Array | None) -> None:
        buffer = self.buffer
        if buffer.unwritten is None:
            buffer.unwritten = np.ones(buffer.storage().shape, dtype=np.bool_)
            buffer.missing = buffer.unwritten.size
        mask = self._on(buffer.unwritten)
        if unwritten is None:
            buffer.missing -= int(np.count_nonzero(mask))
            mask[...] = False
        else:
            mask[...] = unwritten
            buffer.missing = int(np.count_nonzero(buffer.unwritten))
        if not buffer.missing:
            buffer.unwritten = None

    def _mark_unwritten(self, unwritten: Array) -> None:
        buffer = self.buffer
        buffer.unwritten = np.zeros(buffer.storage().shape, dtype=np.bool_)
        self._on(buffer.unwritten)[...] = unwritten
        buffer.missing = int(np.count_nonzero(buffer.unwritten))

    def writable(self) -> Array:
        """Contents [gx, gy, *shape] to be changed in place; counts as written whole."""
        view = self.writable_kept()
        if self.buffer.missing:
            self._mark_written(None)
        return view

    def writable_kept(self) -> Array:
        """Like `writable`, but elements nobody wrote stay marked (for kernels that also read what they write)."""
        buffer = self.buffer
        if buffer.freed:
            raise self._freed()
        buffer.separate(buffer.lanes)
        return self.array()

    def at(self, offsets: Sequence[Index], sizes: Sequence[int], strides: Sequence[int] | None = None) -> MemRef:
        """The part of the window at these offsets.

        Raises:
            Fault: it reaches outside the window.
        """
        own = self.strides
        base = dx = dy = 0
        for axis, offset in enumerate(offsets):
            step = 1 if strides is None else strides[axis]
            if isinstance(offset, np.ndarray):
                first, along_x, along_y = line(offset)
                last = first + max(0, along_x * (self.gx - 1)) + max(0, along_y * (self.gy - 1))
                low = first + min(0, along_x * (self.gx - 1)) + min(0, along_y * (self.gy - 1))
                dx += along_x * own[axis]
                dy += along_y * own[axis]
            else:
                first = last = low = int(offset)
            if low < 0 or last + (sizes[axis] - 1) * step >= self.shape[axis]:
                raise self._outside(axis, low, last + (sizes[axis] - 1) * step)
            base += first * own[axis]
        return MemRef(
            self.buffer,
            tuple(sizes),
            own if strides is None else tuple(a * b for a, b in zip(own, strides, strict=True)),
            self.offset + base,
            self.dx + dx,
            self.dy + dy,
            self.x0,
            self.y0,
            self.gx,
            self.gy,
        )

    def _outside(self, axis: int, low: int, high: int) -> Fault:
        name, extent = self.buffer.name, self.shape[axis]
        return Fault(
            "out-of-bounds",
            f"elements {low} to {high} of dimension {axis} of {name} are touched, but it has {extent} (0 to {extent - 1})",
            "make the loop bounds or tile sizes divide the shape, or guard the access",
        )

    def linear(
        self, offset: Index, shape: tuple[int, ...], strides: tuple[int, ...], *, what: str = "the window"
    ) -> MemRef:
        """A window by element offset and strides, counted from where this memref starts (data movement).

        Raises:
            Fault: it reaches outside the memref.
        """
        base, dx, dy = (offset, 0, 0) if isinstance(offset, int) else line(offset)
        low = base + min(0, dx * (self.gx - 1)) + min(0, dy * (self.gy - 1))
        high = base + max(0, dx * (self.gx - 1)) + max(0, dy * (self.gy - 1))
        for size, stride in zip(shape, strides, strict=True):
            if stride >= 0:
                high += (size - 1) * stride
            else:
                low += (size - 1) * stride
        extent = self.extent
        if low < 0 or high >= extent:
            raise OutsideWindow(
                Outside(self, offset, shape, strides),
                f"{what} of {self.buffer.name} touches elements {low} to {high}, but the memref holds {extent} "
                f"(0 to {extent - 1}): {'it starts before the buffer' if low < 0 else f'{high - extent + 1} too many'}",
                f"make offset + Σ (size-1)·stride stay under {extent}: sizes {list(shape)}, strides {list(strides)}",
            )
        return MemRef(
            self.buffer,
            shape,
            strides,
            self.offset + base,
            self.dx + dx,
            self.dy + dy,
            self.x0,
            self.y0,
            self.gx,
            self.gy,
        )

    def origin(self) -> Origin | None:
        """What tells the contents of this window from those of others, if they come from what is never written."""
        buffer = self.buffer
        whole = buffer if buffer.constant else buffer.origin
        if whole is None:
            return None
        lanes = (self.dx, self.dy, self.x0, self.y0, self.gx, self.gy)
        return whole, self.offset, self.shape, self.strides, lanes

    def span(self) -> tuple[int, int]:
        """The elements of one buffer lane from the first to behind the last that any lane of the group sees."""
        low = high = self.offset
        steps = ((self.gx, self.dx), (self.gy, self.dy), *zip(self.shape, self.strides, strict=True))
        for count, step in steps:
            low += min(0, (count - 1) * step)
            high += max(0, (count - 1) * step)
        return low, high + 1

    def flat_view(self) -> Array:
        """Everything from where the memref starts, [gx|1, gy|1, extent]."""
        return reshaped_ref(self, (self.extent,), (1,)).array()

    @property
    def extent(self) -> int:
        """Elements from the first to behind the last of the memref, gaps included."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))

    def load(self, indices: Sequence[Index]) -> Scalar:
        """One element per lane."""
        part = self.at(indices, (1,) * len(self.shape))
        view = part.array()
        if self.buffer.missing:
            view = part.read()
        view = view.reshape(view.shape[:2])
        if view.size == 1:
            scalar = view[0, 0]
            return int(scalar) if scalar.dtype == np.int64 and self.is_index else scalar
        return view.copy()

    @property
    def is_index(self) -> bool:
        """Whether elements are of type index, which registers hold as Python int."""
        return self.element_type.name == "index"

    def store(self, indices: Sequence[Index], value: Scalar) -> None:
        """Write one element per lane."""
        part = self.at(indices, (1,) * len(self.shape))
        if isinstance(value, np.ndarray):
            value = value.reshape(*value.shape, *part.shape)
        part.write(value)


def reshaped_ref(part: MemRef, shape: tuple[int, ...], strides: tuple[int, ...]) -> MemRef:
    """The same storage seen with another shape."""
    return MemRef(part.buffer, shape, strides, part.offset, part.dx, part.dy, part.x0, part.y0, part.gx, part.gy)


def _last_lane(view: Array, values: Any) -> Array:
    """What remains when lanes that differ write to one place: what the last lane writes."""
    kept = values[-1:] if view.shape[0] == 1 and values.shape[0] > 1 else values
    return kept[:, -1:] if view.shape[1] == 1 and values.shape[1] > 1 else kept
