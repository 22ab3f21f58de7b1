"""Named linalg ops on memrefs: fill, copy, elementwise, contractions, convolutions, pooling, moving of data.

Results of bf16 round once an op, in the core's mode. Ops on tensors are refused: the programs the device gets are
bufferised. `linalg.generic` and its like are in linalg_generic.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
from xdsl.ir import Attribute, Operation, SSAValue

from npu_tools.emulator.ops.arith import divide_integers
from npu_tools.emulator.ops.core import core_numerics
from npu_tools.emulator.ops.domain import access, plain_dims
from npu_tools.emulator.ops.linalg_generic import LOWERINGS as GENERIC
from npu_tools.emulator.ops.linalg_generic import accumulate_product, contents, on_memrefs, slots_of
from npu_tools.emulator.ops.linalg_named import NAMED_MAPS, pool_kind, structure_of
from npu_tools.emulator.ops.math import erf, round_half_away
from npu_tools.emulator.ops.reduction import kind_of, reduce_over
from npu_tools.emulator.ops.signature import (
    attribute,
    dtype,
    element_of,
    groups,
    integer,
    integers,
    is_bf16,
    is_float,
    refuse,
    shape_of,
    width_of,
)
from npu_tools.emulator.ops.vector_memory import lane_aligned
from npu_tools.emulator.rounding import wrap_integer
from npu_tools.emulator.types import Array, Frame, Instruction, Lower, Lowering, Ref


def fill(op: Operation, low: Lowering) -> Instruction:
    """Every element the same."""
    on_memrefs(op)
    value, target = low.slot(op.operands[0]), low.slot(op.operands[1])
    kind, element = dtype(op.operands[1].type), element_of(op.operands[1].type)
    rounded = core_numerics(op, low).rounder(element, kind=op.name)
    rank = len(shape_of(op.operands[1].type))

    def run(frame: Frame) -> None:
        regs = frame.regs
        number = np.asarray(lane_aligned(regs[value], rank)).astype(kind)
        cast("Ref", regs[target]).write(rounded(number if number.ndim else number[()]))

    return run


def _convert(values: Array, source: Attribute, target: Attribute) -> Array:
    """Values of one element type as another, for ops that cast their inputs."""
    if is_float(target) or dtype(source) == dtype(target):
        return values.astype(dtype(target), copy=False)
    return wrap_integer(values, width_of(target))


def copy(op: Operation, low: Lowering) -> Instruction:
    """Contents to a memref of the same shape, cast where the element types differ."""
    on_memrefs(op)
    source, target = op.operands[0], op.operands[1]
    a, b = low.slot(source), low.slot(target)
    rounded = core_numerics(op, low).rounder(element_of(target.type), kind=op.name)
    same = element_of(source.type) == element_of(target.type)

    def run(frame: Frame) -> None:
        values = contents(frame.regs[a])
        cast("Ref", frame.regs[b]).write(
            values if same else rounded(_convert(np.array(values), source.type, target.type))
        )

    return run


Function = Callable[..., Any]


def elementwise(function: Function, *, rounds: bool = True) -> Lower:
    """Lowering of a named elementwise op; `function` takes the inputs."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        on_memrefs(op)
        inputs, outputs = groups(op)[:2]
        return _map(op, low, inputs, outputs[0], function, rounds=rounds)

    return lower


def _map(
    op: Operation, low: Lowering, inputs: Sequence[SSAValue], output: SSAValue, function: Function, *, rounds: bool
) -> Instruction:
    slots, target = slots_of(inputs, low), low.slot(output)
    element = element_of(output.type)
    numerics = core_numerics(op, low)
    rounded = numerics.rounder(element, kind=op.name)
    rank = len(shape_of(output.type))
    wide = is_float(element)
    kind = dtype(element)

    def run(frame: Frame) -> None:
        regs = frame.regs
        values = [_aligned(regs[slot], rank) for slot in slots]
        result = np.asarray(function(*values))
        done = rounded(result.astype(kind, copy=False)) if wide and rounds else result
        cast("Ref", regs[target]).write(done if wide else wrap_integer(done, width_of(element)).astype(kind))

    return run


def _aligned(value: Any, rank: int) -> Array:
    array = contents(value)
    return array if array.ndim == rank + 2 else lane_aligned(array, rank)


def hardware(name: str, exact: Function) -> Lower:
    """Lowering of a named op that the core's bf16 vector functions compute."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        on_memrefs(op)
        inputs, outputs = groups(op)[:2]
        function = getattr(core_numerics(op, low), name) if is_bf16(outputs[0].type) else exact
        return _map(op, low, inputs, outputs[0], function, rounds=True)

    return lower


def _divide(a: Array, b: Array) -> Any:
    return np.divide(a, b) if a.dtype.kind == "f" else divide_integers(a, b)


def _rsqrt(x: Array) -> Any:
    return np.reciprocal(np.sqrt(x))


def structured(op: Operation, low: Lowering) -> Instruction:
    """A named contraction or convolution, through its indexing maps."""
    on_memrefs(op)
    inputs, outputs = groups(op)[:2]
    shapes = [shape_of(value.type) for value in (*inputs, *outputs)]
    form = structure_of(op, shapes)
    a, b = inputs[0], inputs[1]
    unit = form.matrix and is_bf16(a.type) and is_bf16(b.type)
    return accumulate_product(op, low, a, b, outputs[0], form.maps, form.sizes, matrix_unit=unit)


def pooling(op: Operation, low: Lowering) -> Instruction:
    """A named pooling op: windows of the input combined into the output."""
    on_memrefs(op)
    inputs, outputs = groups(op)[:2]
    shapes = [shape_of(value.type) for value in (*inputs, *outputs)]
    form = structure_of(op, shapes)
    kind = kind_of(op, pool_kind(op.name, is_float=is_float(outputs[0].type)))
    source, target = low.slot(inputs[0]), low.slot(outputs[0])
    seen = access(form.maps[0], form.sizes, shapes[0])
    element = element_of(outputs[0].type)
    rounded = core_numerics(op, low).rounder(element, kind=op.name)
    order = plain_dims(form.maps[2])
    assert order is not None
    axes = tuple(2 + d for d in range(len(form.sizes)) if d not in order)
    kept = [d for d in range(len(form.sizes)) if d in order]

    def run(frame: Frame) -> None:
        memref = cast("Ref", frame.regs[target])
        before = memref.read()
        windows = seen.over(contents(frame.regs[source]))
        result = np.asarray(reduce_over(kind, windows, axes, element, None))
        ordered = result.transpose(0, 1, *(2 + kept.index(d) for d in order))
        total = reduce_over(kind, ordered, (), element, before)
        memref.write(total if kind.exact else rounded(total))

    return run


def transpose(op: Operation, low: Lowering) -> Instruction:
    """Dimensions in another order."""
    on_memrefs(op)
    order = integers(op, "permutation")
    return _move(op, low, lambda values: values.transpose(0, 1, *(2 + d for d in order)))


def broadcast(op: Operation, low: Lowering) -> Instruction:
    """Repeated along new dimensions."""
    on_memrefs(op)
    added = integers(op, "dimensions")
    return _move(op, low, lambda values: np.expand_dims(values, tuple(2 + d for d in added)))


def _move(op: Operation, low: Lowering, change: Callable[[Array], Array]) -> Instruction:
    source, target = low.slot(op.operands[0]), low.slot(op.operands[1])

    def run(frame: Frame) -> None:
        cast("Ref", frame.regs[target]).write(change(contents(frame.regs[source])))

    return run


def pack(op: Operation, low: Lowering) -> Instruction:
    """`linalg.pack` on memrefs: tiles of some dimensions become inner dimensions; the rest of a tile is padding."""
    on_memrefs(op)
    source, target = op.operands[0], op.operands[1]
    spots, tiles = integers(op, "inner_dims_pos"), integers(op, "static_inner_tiles", _inner_tiles(op))
    rank = len(shape_of(source.type))
    outer = integers(op, "outer_dims_perm", ()) or tuple(range(rank))
    padding = op.operands[2] if len(op.operands) > 2 else None
    pad_slot = None if padding is None else low.slot(padding)
    a, b = low.slot(source), low.slot(target)
    shape = shape_of(source.type)
    tile_of = dict(zip(spots, tiles, strict=True))
    counts = [math.ceil(n / tile_of.get(d, 1)) for d, n in enumerate(shape)]
    room = [counts[d] * tile_of.get(d, 1) for d in range(rank)]
    if room != list(shape) and padding is None:
        refuse(
            op, f"tiles {list(tiles)} do not divide {list(shape)} and no padding value is given", "give a padding value"
        )

    def run(frame: Frame) -> None:
        values = contents(frame.regs[a])
        if room != list(shape):
            whole = np.empty((*values.shape[:2], *room), values.dtype)
            whole[...] = lane_aligned(frame.regs[cast("int", pad_slot)], rank)
            whole[(slice(None), slice(None), *(slice(0, n) for n in shape))] = values
            values = whole
        split = values.reshape(*values.shape[:2], *(n for d in range(rank) for n in _pair(d, counts, tile_of)))
        at = list(_axes(rank, tile_of))
        order = [at[d][0] for d in outer] + [cast("int", at[d][1]) for d in spots]
        cast("Ref", frame.regs[b]).write(split.transpose(0, 1, *(2 + axis for axis in order)))

    return run


def unpack(op: Operation, low: Lowering) -> Instruction:
    """`linalg.unpack` on memrefs, the reverse of pack; padding is dropped."""
    on_memrefs(op)
    source, target = op.operands[0], op.operands[1]
    spots, tiles = integers(op, "inner_dims_pos"), integers(op, "static_inner_tiles", _inner_tiles(op))
    shape = shape_of(target.type)
    rank = len(shape)
    outer = integers(op, "outer_dims_perm", ()) or tuple(range(rank))
    tile_of = dict(zip(spots, tiles, strict=True))
    counts = [math.ceil(n / tile_of.get(d, 1)) for d, n in enumerate(shape)]
    at = list(_axes(rank, tile_of))
    order = [at[d][0] for d in outer] + [cast("int", at[d][1]) for d in spots]
    a, b = low.slot(source), low.slot(target)

    def run(frame: Frame) -> None:
        values = contents(frame.regs[a])
        split = values.transpose(0, 1, *(2 + int(i) for i in np.argsort(order)))
        whole = split.reshape(*values.shape[:2], *(counts[d] * tile_of.get(d, 1) for d in range(rank)))
        cast("Ref", frame.regs[b]).write(whole[(slice(None), slice(None), *(slice(0, n) for n in shape))])

    return run


def _inner_tiles(op: Operation) -> tuple[int, ...] | None:
    return None if attribute(op, "inner_tiles") is None else integers(op, "inner_tiles")


def _pair(dim: int, counts: Sequence[int], tile_of: dict[int, int]) -> tuple[int, ...]:
    return (counts[dim], tile_of[dim]) if dim in tile_of else (counts[dim],)


def _axes(rank: int, tile_of: dict[int, int]) -> Iterator[tuple[int, int | None]]:
    """For each dimension its axis in the split array, and that of its tile."""
    axis = 0
    for dim in range(rank):
        yield axis, axis + 1 if dim in tile_of else None
        axis += 2 if dim in tile_of else 1


def softmax(op: Operation, low: Lowering) -> Instruction:
    """`linalg.softmax` along a dimension, in float32 with the core's exp for bf16."""
    on_memrefs(op)
    axis = 2 + integer(op, "dimension")
    numerics = core_numerics(op, low)
    exp: Function = numerics.exp if is_bf16(op.operands[1].type) else np.exp

    def compute(x: Array) -> Array:
        raised = exp(x - x.max(axis=axis, keepdims=True))
        return raised / raised.sum(axis=axis, keepdims=True)

    return _map(op, low, op.operands[:1], op.operands[1], compute, rounds=True)


LOWERINGS: dict[str, Lower] = {
    **GENERIC,
    "linalg.fill": fill,
    "linalg.copy": copy,
    "linalg.transpose": transpose,
    "linalg.broadcast": broadcast,
    "linalg.pack": pack,
    "linalg.unpack": unpack,
    "linalg.softmax": softmax,
    "linalg.add": elementwise(np.add),
    "linalg.sub": elementwise(np.subtract),
    "linalg.mul": elementwise(np.multiply),
    "linalg.div": elementwise(_divide),
    "linalg.max": elementwise(np.maximum, rounds=False),
    "linalg.min": elementwise(np.minimum, rounds=False),
    "linalg.powf": elementwise(np.power),
    "linalg.select": elementwise(np.where, rounds=False),
    "linalg.abs": elementwise(np.abs, rounds=False),
    "linalg.negf": elementwise(np.negative, rounds=False),
    "linalg.ceil": elementwise(np.ceil),
    "linalg.floor": elementwise(np.floor),
    "linalg.round": elementwise(round_half_away),
    "linalg.square": elementwise(np.square),
    "linalg.sqrt": elementwise(np.sqrt),
    "linalg.rsqrt": elementwise(_rsqrt),
    "linalg.reciprocal": elementwise(np.reciprocal),
    "linalg.log": elementwise(np.log),
    "linalg.erf": elementwise(erf),
    "linalg.exp": hardware("exp", np.exp),
    "linalg.tanh": hardware("tanh", np.tanh),
    **{name: structured for name in NAMED_MAPS if "pooling" not in name},
    **{name: pooling for name in NAMED_MAPS if "pooling" in name},
}
"""What this module lowers, by op name."""
