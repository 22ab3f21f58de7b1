"""vector ops that stay in registers: arrays [gx|1, gy|1, *shape] in, fresh arrays out.

Memory is in vector_memory.py. `vector.fma` is one rounding after a float32 sum (math.fma); reductions of bf16 run in
float32 and round once (reduction.py); `vector.contract` on bf16, or on float32 that was bf16 just before, is what the
compiler gives to the matrix unit (contraction.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from xdsl.ir import Attribute, Operation, OpResult, SSAValue

from npu_tools.emulator.ops import math as math_ops
from npu_tools.emulator.ops.arith import apply_unary, is_array
from npu_tools.emulator.ops.contraction import contraction
from npu_tools.emulator.ops.convert import from_bits, to_bits
from npu_tools.emulator.ops.core import core_numerics
from npu_tools.emulator.ops.domain import domain_sizes
from npu_tools.emulator.ops.reduction import kind_of, reduce_over
from npu_tools.emulator.ops.signature import (
    affine_maps,
    attribute,
    dtype,
    element_of,
    integer,
    integers,
    is_bf16,
    is_float,
    is_index,
    is_vector,
    refuse,
    shape_of,
    width_of,
    word,
)
from npu_tools.emulator.ops.vector_memory import LOWERINGS as MEMORY
from npu_tools.emulator.ops.vector_memory import lane_aligned
from npu_tools.emulator.rounding import wrap_integer
from npu_tools.emulator.types import Array, Frame, Instruction, Lower, Lowering

_DYNAMIC = -(1 << 63)


def as_vector(value: Any, kind: Attribute) -> Array:
    """A register value of this type with its lane axes, whether it is a scalar or a vector."""
    if is_vector(kind):
        return value
    return value if is_array(value) else np.asarray(value, dtype(kind)).reshape(1, 1)


def as_scalar(array: Array, kind: Attribute) -> Any:
    """One element per lane as scalars are kept: plain where all lanes share it."""
    if array.shape[:2] != (1, 1) or is_vector(kind):
        return array
    value = array[0, 0]
    return int(value) if is_index(kind) else value


def lane_grid(lanes: Sequence[int]) -> tuple[Array, Array]:
    """Indices of all lanes, to be used with a third index per lane."""
    return np.arange(lanes[0]).reshape(-1, 1), np.arange(lanes[1]).reshape(1, -1)


def broadcast(op: Operation, low: Lowering) -> Instruction:
    """A scalar or a vector of lower rank repeated; the result shares its memory."""
    source, target = op.operands[0].type, op.results[0].type
    shape = shape_of(target)
    kind = dtype(target)
    lead = len(shape) - len(shape_of(source))

    def run(value: Any) -> Array:
        if not is_array(value):
            return np.broadcast_to(np.asarray(value, kind), (1, 1, *shape))
        spread = value.reshape(*value.shape[:2], *(1,) * lead, *value.shape[2:])
        return np.broadcast_to(spread, (*value.shape[:2], *shape))

    return apply_unary(op, low, run)


def shape_cast(op: Operation, low: Lowering) -> Instruction:
    """The same elements in another shape."""
    shape = shape_of(op.results[0].type)
    return apply_unary(op, low, lambda value: value.reshape(*value.shape[:2], *shape))


def transpose(op: Operation, low: Lowering) -> Instruction:
    """Dimensions in another order."""
    name = "permutation" if attribute(op, "permutation") is not None else "transp"
    order = tuple(2 + dim for dim in integers(op, name))
    return apply_unary(op, low, lambda value: value.transpose(0, 1, *order))


def flat_transpose(op: Operation, low: Lowering) -> Instruction:
    """`vector.flat_transpose`: a flat column-major matrix, turned."""
    rows, columns = integer(op, "rows"), integer(op, "columns")
    return apply_unary(
        op,
        low,
        lambda value: value.reshape(*value.shape[:2], columns, rows).swapaxes(2, 3).reshape(value.shape),
    )


def _positions(op: Operation, dynamic: Sequence[SSAValue], low: Lowering) -> list[tuple[bool, int]]:
    """Each position as (is a register, number)."""
    name = "static_position" if attribute(op, "static_position") is not None else "position"
    slots = iter([low.slot(value) for value in dynamic])
    return [(True, next(slots)) if n == _DYNAMIC else (False, n) for n in integers(op, name, ())]


def _place(regs: list[Any], positions: list[tuple[bool, int]]) -> list[Any]:
    return [regs[number] if in_register else number for in_register, number in positions]


def extract(op: Operation, low: Lowering) -> Instruction:
    """An element or a sub-vector at static or dynamic positions."""
    positions = _positions(op, op.operands[1:], low)
    source, r = low.slot(op.operands[0]), low.slot(op.results[0])
    kind = op.results[0].type

    def run(frame: Frame) -> None:
        regs = frame.regs
        regs[r] = as_scalar(np.array(_pick(regs[source], _place(regs, positions))), kind)

    return run


def _pick(value: Array, place: Sequence[Any]) -> Array:
    for index in place:
        if is_array(index):
            lanes = np.broadcast_shapes(value.shape[:2], index.shape[:2])
            wide = np.broadcast_to(value, (*lanes, *value.shape[2:]))
            chosen = index.reshape(index.shape[:2] + (1,) * (value.ndim - 2))
            chosen = np.broadcast_to(chosen, (*lanes, 1, *value.shape[3:]))
            value = np.take_along_axis(wide, chosen, axis=2)[:, :, 0]
        else:
            value = value[:, :, int(index)]
    return value


def insert(op: Operation, low: Lowering) -> Instruction:
    """A copy of the vector with an element or sub-vector replaced."""
    positions = _positions(op, op.operands[2:], low)
    source, dest, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])
    source_kind, shape = op.operands[0].type, shape_of(op.results[0].type)

    def run(frame: Frame) -> None:
        regs = frame.regs
        part, place = as_vector(regs[source], source_kind), _place(regs, positions)
        lanes = np.broadcast_shapes(
            part.shape[:2], regs[dest].shape[:2], *(index.shape[:2] for index in place if is_array(index))
        )
        whole = np.array(np.broadcast_to(regs[dest], (*lanes, *shape)))
        if any(is_array(index) for index in place):
            x, y = lane_grid(lanes)
            whole[(x, y, *(np.asarray(index) for index in place))] = np.broadcast_to(part, (*lanes, *part.shape[2:]))
        else:
            whole[(slice(None), slice(None), *(int(index) for index in place))] = part
        regs[r] = whole

    return run


def extract_element(op: Operation, low: Lowering) -> Instruction:
    """`vector.extractelement`, from a vector of rank 1 or 0."""
    source, r = low.slot(op.operands[0]), low.slot(op.results[0])
    position = low.slot(op.operands[1]) if len(op.operands) > 1 else None
    kind = op.results[0].type

    def run(frame: Frame) -> None:
        regs = frame.regs
        place = [] if position is None else [regs[position]]
        regs[r] = as_scalar(np.array(_pick(regs[source], place)), kind)

    return run


def insert_element(op: Operation, low: Lowering) -> Instruction:
    """`vector.insertelement`, into a vector of rank 1 or 0."""
    source, dest, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])
    position = low.slot(op.operands[2]) if len(op.operands) > 2 else None
    kind, shape = op.operands[0].type, shape_of(op.results[0].type)

    def run(frame: Frame) -> None:
        regs = frame.regs
        part = as_vector(regs[source], kind)
        if position is None:
            regs[r] = part
            return
        index = regs[position]
        lanes = np.broadcast_shapes(
            part.shape[:2], regs[dest].shape[:2], index.shape[:2] if is_array(index) else (1, 1)
        )
        whole = np.array(np.broadcast_to(regs[dest], (*lanes, *shape)))
        x, y = lane_grid(lanes)
        whole[x, y, np.asarray(index)] = part
        regs[r] = whole

    return run


def extract_strided_slice(op: Operation, low: Lowering) -> Instruction:
    """A box of the leading dimensions."""
    cut = _slices(integers(op, "offsets"), integers(op, "sizes"), integers(op, "strides"))
    return apply_unary(op, low, lambda value: value[cut])


def _slices(offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> tuple[slice, ...]:
    boxes = (
        slice(offset, offset + (size - 1) * stride + 1, stride)
        for offset, size, stride in zip(offsets, sizes, strides, strict=True)
    )
    return (slice(None), slice(None), *boxes)


def insert_strided_slice(op: Operation, low: Lowering) -> Instruction:
    """A copy of the destination with a box replaced."""
    source, dest, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])
    part_shape, shape = shape_of(op.operands[0].type), shape_of(op.results[0].type)
    offsets = integers(op, "offsets")
    lead = len(shape) - len(part_shape)
    cut = _slices(offsets, (1,) * lead + part_shape, (1,) * lead + integers(op, "strides"))

    def run(frame: Frame) -> None:
        regs = frame.regs
        part: Array = regs[source]
        lanes = np.broadcast_shapes(part.shape[:2], regs[dest].shape[:2])
        whole = np.array(np.broadcast_to(regs[dest], (*lanes, *shape)))
        whole[cut] = part.reshape(*part.shape[:2], *(1,) * lead, *part.shape[2:])
        regs[r] = whole

    return run


def reduction(op: Operation, low: Lowering) -> Instruction:
    """A vector of rank 1 to a scalar, with an optional accumulator."""
    return _reduce(op, low, axes=tuple(range(2, 2 + len(shape_of(op.operands[0].type)))))


def multi_reduction(op: Operation, low: Lowering) -> Instruction:
    """Some dimensions combined, with an accumulator."""
    return _reduce(op, low, axes=tuple(2 + dim for dim in integers(op, "reduction_dims")))


def _reduce(op: Operation, low: Lowering, axes: tuple[int, ...]) -> Instruction:
    kind = kind_of(op, word(attribute(op, "kind")))
    target = op.results[0].type
    element = element_of(target)
    rounded = core_numerics(op, low).rounder(element, kind=op.name)
    source, r = low.slot(op.operands[0]), low.slot(op.results[0])
    acc = low.slot(op.operands[1]) if len(op.operands) > 1 else None

    def run(frame: Frame) -> None:
        regs = frame.regs
        before = None if acc is None else as_vector(regs[acc], target)
        result = np.asarray(reduce_over(kind, regs[source], axes, element, before))
        regs[r] = as_scalar(result if kind.exact else rounded(result), target)

    return run


def from_bf16(value: SSAValue) -> bool:
    """Whether a value is bf16, or was just before it was extended to float32."""
    if is_bf16(value.type):
        return True
    return isinstance(value, OpResult) and value.op.name == "arith.extf" and is_bf16(value.op.operands[0].type)


def vector_contract(op: Operation, low: Lowering) -> Instruction:
    """`vector.contract` of any indexing maps; see contraction.py for the units."""
    maps = affine_maps(op)
    if len(op.operands) != 3 or len(maps) != 3:
        refuse(op, "masked contractions are not modelled", "use contractions without masks")
    found = word(attribute(op, "kind"))
    if found not in ("", "add"):
        refuse(op, f"only sums of products are modelled, not {found!r}", "use elementwise ops and a reduction")
    a, b, acc = (low.slot(operand) for operand in op.operands)
    r = low.slot(op.results[0])
    target = op.results[0].type
    element = element_of(target)
    shapes = [shape_of(operand.type) for operand in op.operands[:2]]
    numerics = core_numerics(op, low)
    rounded = numerics.rounder(element, kind=op.name)
    unit = from_bf16(op.operands[0]) and from_bf16(op.operands[1])
    plan = contraction(op.name, maps, domain_sizes(op.name, maps[:2], shapes), shapes, matrix_unit=unit)
    wide = is_float(element)

    def run(frame: Frame) -> None:
        regs = frame.regs
        total = plan.of(regs[a], regs[b], numerics)
        before = as_vector(regs[acc], target)
        if wide:
            result = rounded(np.asarray(total + before, dtype(element)))
        else:
            result = wrap_integer(total + before.astype(np.int64), width_of(element))
        regs[r] = as_scalar(result, target)

    return run


def outerproduct(op: Operation, low: Lowering) -> Instruction:
    """A column times a row (or a vector times a scalar), added to an optional accumulator."""
    kind = kind_of(op, word(attribute(op, "kind")) or "add")
    element = element_of(op.results[0].type)
    a, b, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])
    acc = low.slot(op.operands[2]) if len(op.operands) > 2 else None
    matrix = is_vector(op.operands[1].type)
    rounded = core_numerics(op, low).rounder(element, kind=op.name)
    wide = is_float(element)

    def run(frame: Frame) -> None:
        regs = frame.regs
        left: Array = regs[a]
        right = regs[b][:, :, None, :] if matrix else lane_aligned(regs[b], 1)
        product: Any = (left[..., None] if matrix else left) * right
        total = product if acc is None else kind.ufunc(product, regs[acc])
        regs[r] = rounded(total) if wide else wrap_integer(total, width_of(element))

    return run


def shuffle(op: Operation, low: Lowering) -> Instruction:
    """Elements of two vectors by number along the first dimension; -1 (anything) gives the first."""
    mask = np.maximum(np.array(integers(op, "mask"), np.int64), 0)
    a, b, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])

    def run(frame: Frame) -> None:
        regs = frame.regs
        first, second = regs[a], regs[b]
        lanes = np.broadcast_shapes(first.shape[:2], second.shape[:2])
        parts = [np.broadcast_to(part, (*lanes, *part.shape[2:])) for part in (first, second)]
        regs[r] = np.concatenate(parts, axis=2)[:, :, mask]

    return run


def interleave(op: Operation, low: Lowering) -> Instruction:
    """Elements of two vectors in turn along the last dimension."""
    a, b, r = low.slot(op.operands[0]), low.slot(op.operands[1]), low.slot(op.results[0])

    def run(frame: Frame) -> None:
        regs = frame.regs
        pair = np.stack(np.broadcast_arrays(regs[a], regs[b]), axis=-1)
        regs[r] = pair.reshape(*pair.shape[:-2], -1)

    return run


def deinterleave(op: Operation, low: Lowering) -> Instruction:
    """Even and odd elements of the last dimension."""
    a, even, odd = low.slot(op.operands[0]), low.slot(op.results[0]), low.slot(op.results[1])

    def run(frame: Frame) -> None:
        regs = frame.regs
        value: Array = regs[a]
        regs[even], regs[odd] = value[..., 0::2], value[..., 1::2]

    return run


def bitcast(op: Operation, low: Lowering) -> Instruction:
    """The same bits in elements of another width along the last dimension (little endian)."""
    source, target = op.operands[0].type, op.results[0].type
    shape = shape_of(target)

    def run(value: Any) -> Array:
        bits = np.ascontiguousarray(to_bits(value, source))
        carrier = np.dtype("<u2") if is_bf16(target) else np.dtype(f"<u{dtype(target).itemsize}")
        packed = bits.astype(bits.dtype.newbyteorder("<"), copy=False).view(carrier)
        return from_bits(packed, target).reshape(*value.shape[:2], *shape)

    if not is_float(source) and width_of(source) not in (8, 16, 32, 64):
        refuse(op, f"elements of {source} are not whole bytes", "bitcast whole bytes and shift the parts out")
    if not is_float(target) and width_of(target) not in (8, 16, 32, 64):
        refuse(op, f"elements of {target} are not whole bytes", "bitcast to whole bytes and shift the parts out")
    return apply_unary(op, low, run)


def step(op: Operation, low: Lowering) -> None:
    """`vector.step`: 0, 1, 2, …"""
    (length,) = shape_of(op.results[0].type)
    low.preset(op.results[0], np.arange(length, dtype=np.int64).reshape(1, 1, length))


def constant_mask(op: Operation, low: Lowering) -> None:
    """A box of true from the origin, known beforehand."""
    shape = shape_of(op.results[0].type)
    low.preset(op.results[0], _box_mask(list(integers(op, "mask_dim_sizes")), shape))


def create_mask(op: Operation, low: Lowering) -> Instruction:
    """A box of true from the origin whose extents are operands, per lane."""
    slots = [low.slot(operand) for operand in op.operands]
    r, shape = low.slot(op.results[0]), shape_of(op.results[0].type)

    def run(frame: Frame) -> None:
        frame.regs[r] = _box_mask([frame.regs[slot] for slot in slots], shape)

    return run


def _box_mask(extents: Sequence[Any], shape: tuple[int, ...]) -> Array:
    mask = np.ones((1, 1, *shape), np.bool_)
    for axis, extent in enumerate(extents):
        along = np.arange(shape[axis]).reshape((-1,) + (1,) * (len(shape) - axis - 1))
        mask = mask & (along < lane_aligned(extent, len(shape)))
    return mask


def from_elements(op: Operation, low: Lowering) -> Instruction:
    """A vector from its elements, row-major."""
    slots = [low.slot(operand) for operand in op.operands]
    r, kind = low.slot(op.results[0]), op.results[0].type
    shape = shape_of(kind)

    def run(frame: Frame) -> None:
        values = [as_vector(frame.regs[slot], element_of(kind)) for slot in slots]
        stacked = np.stack(np.broadcast_arrays(*values), axis=-1)
        frame.regs[r] = stacked.astype(dtype(kind)).reshape(*stacked.shape[:2], *shape)

    return run


def to_elements(op: Operation, low: Lowering) -> Instruction:
    """All elements of a vector, row-major."""
    source = low.slot(op.operands[0])
    slots = [low.slot(result) for result in op.results]
    kind = element_of(op.operands[0].type)

    def run(frame: Frame) -> None:
        flat = frame.regs[source].reshape(*frame.regs[source].shape[:2], -1)
        for i, slot in enumerate(slots):
            frame.regs[slot] = as_scalar(flat[:, :, i], kind)

    return run


def nothing(op: Operation, low: Lowering) -> Instruction:
    """Ops with no effect on values (vector.print)."""

    def run(frame: Frame) -> None:
        return None

    return run


LOWERINGS: dict[str, Lower] = {
    **MEMORY,
    "vector.broadcast": broadcast,
    "vector.splat": broadcast,
    "vector.shape_cast": shape_cast,
    "vector.transpose": transpose,
    "vector.flat_transpose": flat_transpose,
    "vector.extract": extract,
    "vector.insert": insert,
    "vector.extractelement": extract_element,
    "vector.insertelement": insert_element,
    "vector.extract_strided_slice": extract_strided_slice,
    "vector.insert_strided_slice": insert_strided_slice,
    "vector.reduction": reduction,
    "vector.multi_reduction": multi_reduction,
    "vector.fma": math_ops.fma,
    "vector.contract": vector_contract,
    "vector.outerproduct": outerproduct,
    "vector.shuffle": shuffle,
    "vector.interleave": interleave,
    "vector.deinterleave": deinterleave,
    "vector.bitcast": bitcast,
    "vector.step": step,
    "vector.create_mask": create_mask,
    "vector.constant_mask": constant_mask,
    "vector.from_elements": from_elements,
    "vector.to_elements": to_elements,
    "vector.print": nothing,
}
"""What this module lowers, by op name."""
