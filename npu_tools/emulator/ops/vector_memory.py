"""Vectors to and from memrefs: transfer_read, transfer_write, load, store and their masked forms, gather.

A transfer sees a box of the memref, one extent per vector dimension, in the order its permutation map says; a constant
in the map repeats one element. Where `in_bounds` is false, or a mask is given, what lies outside is padding on reading
and dropped on writing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import ArrayAttr, IntegerAttr
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from npu_tools.emulator.ops.arith import is_array
from npu_tools.emulator.ops.signature import affine_map, attribute, dtype, groups, refuse, shape_of
from npu_tools.emulator.types import Array, Fault, Frame, Index, Instruction, LanesDiffer, Lower, Lowering, Ref


@dataclass(frozen=True, slots=True)
class Box:
    """How a vector lies in a memref: for each vector dimension its memref dimension (None: repeated), and extents."""

    vector: tuple[int, ...]
    memref: tuple[int, ...]
    dims: tuple[int | None, ...]
    in_bounds: tuple[bool, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """The box in memref dimensions; 1 where the vector does not go."""
        found = [1] * len(self.memref)
        for extent, dim in zip(self.vector, self.dims, strict=True):
            if dim is not None:
                found[dim] = extent
        return tuple(found)

    @property
    def plain(self) -> bool:
        """Whether the vector is the innermost dimensions of the memref, in order."""
        lead = len(self.memref) - len(self.vector)
        return self.dims == tuple(range(lead, len(self.memref)))

    def vector_order(self) -> Callable[[Array], Array]:
        """What turns a whole box into a vector; nothing to do where the vector is the memref's shape."""
        if not self.plain:
            return self.to_vector
        if len(self.vector) == len(self.memref):
            return _same
        vector = self.vector
        return lambda box: box.reshape(box.shape[0], box.shape[1], *vector)

    def box_order(self) -> Callable[[Array], Array]:
        """What turns a whole vector into a box, the reverse."""
        if not self.plain:
            return self.to_box
        if len(self.vector) == len(self.memref):
            return _same
        extents = self.extents
        return lambda values: values.reshape(values.shape[0], values.shape[1], *extents)

    def to_vector(self, box: Array) -> Array:
        """A box [gx|1, gy|1, *extents], possibly cut, in vector order (repeats are left with extent 1)."""
        named = [dim for dim in self.dims if dim is not None]
        rest = [dim for dim in range(len(self.memref)) if dim not in named]
        moved = box.transpose(0, 1, *(2 + dim for dim in named), *(2 + dim for dim in rest))
        shape = iter(moved.shape[2 : 2 + len(named)])
        return moved.reshape(*moved.shape[:2], *(1 if dim is None else next(shape) for dim in self.dims))

    def to_box(self, values: Array) -> Array:
        """A vector in memref order with the lane axes in front; needs a map without repeats."""
        lead = len(self.memref) - len(self.dims)
        order = sorted(range(len(self.dims)), key=lambda i: cast("int", self.dims[i]))
        moved = values.transpose(0, 1, *(2 + i for i in order))
        if lead == 0:
            return moved
        placed = [1] * len(self.memref)
        for i in order:
            placed[cast("int", self.dims[i])] = values.shape[2 + i]
        return moved.reshape(*values.shape[:2], *placed)


def _same(values: Array) -> Array:
    return values


def box_of(op: Operation, vector: tuple[int, ...], memref: tuple[int, ...]) -> Box:
    """The box of a transfer op, from its permutation map and in_bounds."""
    map_ = affine_map(op, "permutation_map")
    if map_ is None:
        dims: tuple[int | None, ...] = tuple(range(len(memref) - len(vector), len(memref)))
    else:
        dims = tuple(_dim(op, result) for result in map_.results)
    if len(dims) != len(vector):
        refuse(op, f"the permutation map has {len(dims)} results for a vector of rank {len(vector)}")
    found = attribute(op, "in_bounds")
    flags = [False] * len(vector)
    if isinstance(found, ArrayAttr):
        entries = cast("ArrayAttr[IntegerAttr[Any]]", found).data
        flags = [bool(entry.value.data) for entry in entries]
    return Box(vector, memref, dims, tuple(flag or dim is None for flag, dim in zip(flags, dims, strict=True)))


def _dim(op: Operation, result: object) -> int | None:
    if isinstance(result, AffineDimExpr):
        return result.position
    if isinstance(result, AffineConstantExpr) and result.value == 0:
        return None
    refuse(op, f"the permutation map result {result} is neither a dimension nor 0")


def clipped(box: Box, offsets: Sequence[Index], *, all_dims: bool) -> tuple[int, ...]:
    """How much of the box lies inside the memref, in memref dimensions.

    Raises:
        LanesDiffer: lanes are cut differently.
    """
    extents = list(box.extents)
    for extent_index, dim in enumerate(box.dims):
        if dim is None or (box.in_bounds[extent_index] and not all_dims):
            continue
        offset = offsets[dim]
        room = box.memref[dim] - (int(offset.max()) if is_array(offset) else cast("int", offset))
        if room < extents[dim]:
            if is_array(offset):
                raise LanesDiffer
            extents[dim] = max(0, room)
    return tuple(extents)


def _indices(low: Lowering, values: Sequence[SSAValue]) -> Callable[[list[Any]], list[Index]]:
    slots = [low.slot(value) for value in values]
    return lambda regs: [regs[slot] for slot in slots]


def transfer_read(op: Operation, low: Lowering) -> Instruction:
    """`vector.transfer_read`."""
    (source,), indices, (padding,), masks = _four(op)
    vector = shape_of(op.results[0].type)
    box = box_of(op, vector, shape_of(source.type))
    if masks and not box.plain:
        refuse(op, "a mask together with a permutation map is not modelled", "transpose after an unpermuted read")
    ref, pad, r = low.slot(source), low.slot(padding), low.slot(op.results[0])
    mask = low.slot(masks[0]) if masks else None
    where = _indices(low, indices)
    full = box.extents
    careful = mask is not None or not all(box.in_bounds)
    repeated = any(dim is None for dim in box.dims)
    kind, order = dtype(op.results[0].type), box.vector_order()
    if not careful and not repeated:
        slots = [low.slot(index) for index in indices]

        def straight(frame: Frame) -> None:
            regs = frame.regs
            part = cast("Ref", regs[ref]).at([regs[slot] for slot in slots], full)
            regs[r] = order(part.read()).copy()

        return straight

    def run(frame: Frame) -> None:
        regs = frame.regs
        memref, offsets = cast("Ref", regs[ref]), where(regs)
        extents = clipped(box, offsets, all_dims=mask is not None) if careful else full
        if extents == full:
            read = order(memref.at(offsets, full).read())
            values: Any = np.broadcast_to(read, (*read.shape[:2], *vector)) if repeated else read
        else:
            values = _padded(memref, offsets, extents, box, lane_aligned(regs[pad], len(vector)))
        if mask is not None:
            values = np.where(regs[mask], values, np.asarray(lane_aligned(regs[pad], len(vector)), kind))
        regs[r] = np.array(values)

    return run


def lane_aligned(scalar: Any, rank: int) -> Any:
    """A scalar register value that broadcasts against vectors of this rank."""
    return scalar.reshape(scalar.shape + (1,) * rank) if is_array(scalar) else scalar


def _padded(memref: Ref, offsets: Sequence[Index], extents: tuple[int, ...], box: Box, padding: Any) -> Array:
    kind = dtype(memref.element_type)
    lanes = padding.shape[:2] if is_array(padding) else (1, 1)
    if 0 in extents:
        return np.broadcast_to(np.asarray(padding, kind), (*lanes, *box.vector))
    part = box.to_vector(memref.at(offsets, extents).read())
    lanes = np.broadcast_shapes(lanes, part.shape[:2])
    whole = np.empty((*lanes, *box.vector), kind)
    whole[...] = padding
    whole[(slice(None), slice(None), *(_cut(n, dim) for n, dim in zip(part.shape[2:], box.dims, strict=True)))] = part
    return whole


def _cut(extent: int, dim: int | None) -> slice:
    return slice(None) if dim is None else slice(0, extent)


def transfer_write(op: Operation, low: Lowering) -> Instruction:
    """`vector.transfer_write` to a memref."""
    (value,), (target,), indices, masks = _four(op)
    if op.results:
        refuse(op, "writes to tensors are not modelled", "bufferise the program first")
    vector = shape_of(value.type)
    box = box_of(op, vector, shape_of(target.type))
    if None in box.dims:
        refuse(op, "a write cannot repeat a dimension")
    if masks and not box.plain:
        refuse(op, "a mask together with a permutation map is not modelled", "transpose before an unpermuted write")
    values, ref = low.slot(value), low.slot(target)
    mask = low.slot(masks[0]) if masks else None
    where = _indices(low, indices)
    full = box.extents
    careful = mask is not None or not all(box.in_bounds)

    if not careful:
        slots, order = [low.slot(index) for index in indices], box.box_order()

        def straight(frame: Frame) -> None:
            regs = frame.regs
            cast("Ref", regs[ref]).at([regs[slot] for slot in slots], full).write(order(regs[values]))

        return straight

    def run(frame: Frame) -> None:
        regs = frame.regs
        memref, offsets = cast("Ref", regs[ref]), where(regs)
        extents = clipped(box, offsets, all_dims=mask is not None) if careful else full
        if 0 in extents:
            return
        content, chosen = box.to_box(regs[values]), None if mask is None else box.to_box(regs[mask])
        if extents != full:
            inside = (slice(None), slice(None), *(slice(0, extent) for extent in extents))
            content, chosen = content[inside], None if chosen is None else chosen[inside]
        _put(memref.at(offsets, extents), content, chosen)

    return run


def _put(part: Ref, content: Array, mask: Array | None) -> None:
    if mask is None or bool(mask.all()):
        part.write(content)
    elif mask.any():
        np.copyto(part.writable(), content, where=mask)


def _four(op: Operation) -> list[list[SSAValue]]:
    found = groups(op)
    if len(found) != 4:
        refuse(op, f"{len(found)} operand groups where 4 are expected")
    return found


def load(op: Operation, low: Lowering) -> Instruction:
    """`vector.load`: the innermost dimensions from here on, always in bounds."""
    ref, r = low.slot(op.operands[0]), low.slot(op.results[0])
    where = _indices(low, op.operands[1:])
    vector, memref = shape_of(op.results[0].type), shape_of(op.operands[0].type)
    sizes = (1,) * (len(memref) - len(vector)) + vector

    def run(frame: Frame) -> None:
        regs = frame.regs
        part = cast("Ref", regs[ref]).at(where(regs), sizes).read()
        regs[r] = np.array(part.reshape(*part.shape[:2], *vector))

    return run


def store(op: Operation, low: Lowering) -> Instruction:
    """`vector.store`."""
    value, ref = low.slot(op.operands[0]), low.slot(op.operands[1])
    where = _indices(low, op.operands[2:])
    vector, memref = shape_of(op.operands[0].type), shape_of(op.operands[1].type)
    sizes = (1,) * (len(memref) - len(vector)) + vector

    def run(frame: Frame) -> None:
        regs = frame.regs
        values: Array = regs[value]
        cast("Ref", regs[ref]).at(where(regs), sizes).write(values.reshape(*values.shape[:2], *sizes))

    return run


def masked_load(op: Operation, low: Lowering) -> Instruction:
    """`vector.maskedload`: pass-through where the mask is off, which may lie outside the memref."""
    ref, r = low.slot(op.operands[0]), low.slot(op.results[0])
    where = _indices(low, op.operands[1:-2])
    mask, through = low.slot(op.operands[-2]), low.slot(op.operands[-1])
    box = _innermost(op.results[0].type, op.operands[0].type)

    def run(frame: Frame) -> None:
        regs = frame.regs
        memref, offsets, other = cast("Ref", regs[ref]), where(regs), regs[through]
        extents = clipped(box, offsets, all_dims=True)
        if 0 in extents:
            regs[r] = other
            return
        part = box.to_vector(memref.at(offsets, extents).read())
        inside = (slice(None), slice(None), *(slice(0, n) for n in part.shape[2:]))
        chosen = np.where(regs[mask][inside], part, other[inside])
        whole = np.array(np.broadcast_to(other, (*chosen.shape[:2], *box.vector)))
        whole[inside] = chosen
        regs[r] = whole

    return run


def masked_store(op: Operation, low: Lowering) -> Instruction:
    """`vector.maskedstore`."""
    ref = low.slot(op.operands[0])
    where = _indices(low, op.operands[1:-2])
    mask, value = low.slot(op.operands[-2]), low.slot(op.operands[-1])
    box = _innermost(op.operands[-1].type, op.operands[0].type)

    def run(frame: Frame) -> None:
        regs = frame.regs
        memref, offsets = cast("Ref", regs[ref]), where(regs)
        extents = clipped(box, offsets, all_dims=True)
        if 0 in extents:
            return
        inside = (slice(None), slice(None), *(slice(0, extent) for extent in extents))
        _put(memref.at(offsets, extents), box.to_box(regs[value])[inside], box.to_box(regs[mask])[inside])

    return run


def _innermost(vector: Any, memref: Any) -> Box:
    shape, whole = shape_of(vector), shape_of(memref)
    return Box(shape, whole, tuple(range(len(whole) - len(shape), len(whole))), (False,) * len(shape))


def gather(op: Operation, low: Lowering) -> Instruction:
    """`vector.gather` from a memref of rank 1."""
    if len(shape_of(op.operands[0].type)) != 1 or len(op.operands) != 5:
        refuse(op, "only gathers from memrefs of rank 1 are modelled", "collapse the memref first")
    ref, base, places, mask, through = (low.slot(operand) for operand in op.operands)
    r = low.slot(op.results[0])
    extent = shape_of(op.operands[0].type)[0]

    def run(frame: Frame) -> None:
        regs = frame.regs
        chosen: Array = regs[mask]
        index: Array = np.asarray(regs[places], np.int64) + lane_aligned(regs[base], regs[places].ndim - 2)
        wanted = (
            index[np.broadcast_to(chosen, np.broadcast_shapes(index.shape, chosen.shape))]
            if chosen.any()
            else index[:0]
        )
        if wanted.size and (wanted.min() < 0 or wanted.max() >= extent):
            raise Fault(
                "out-of-bounds",
                f"vector.gather reads elements {wanted.min()} to {wanted.max()} of {extent}",
                "mask the indices that lie outside",
            )
        content = cast("Ref", regs[ref]).read()
        lanes = np.broadcast_shapes(index.shape[:2], content.shape[:2])
        flat = np.clip(index, 0, extent - 1).reshape(*index.shape[:2], -1)
        taken = np.take_along_axis(
            np.broadcast_to(content, (*lanes, extent)), np.broadcast_to(flat, (*lanes, flat.shape[-1])), axis=2
        )
        regs[r] = np.where(chosen, taken.reshape(*lanes, *index.shape[2:]), regs[through])

    return run


LOWERINGS: dict[str, Lower] = {
    "vector.transfer_read": transfer_read,
    "vector.transfer_write": transfer_write,
    "vector.load": load,
    "vector.store": store,
    "vector.maskedload": masked_load,
    "vector.maskedstore": masked_store,
    "vector.gather": gather,
}
"""What this module lowers, by op name."""
