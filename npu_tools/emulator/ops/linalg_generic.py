"""linalg.generic, reduce and map on memrefs, with any body.

A body is lowered once and run on whole arrays over the loop domain. Three shapes are recognised: no reduction loop; one
combining op on the accumulator (sum, maximum, …) over everything the rest of the body computes; and sums of products,
which go to contraction.py. Other reductions walk their reduction loops in order, with the parallel loops vectorised.
bf16 sums inside one op stay in float32 and round once where the op is a sum of products (the compiler's
vector.contract); elsewhere they round at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import MemRefType, TensorType
from xdsl.ir import Block, BlockArgument, Operation, OpResult, SSAValue
from xdsl.ir.affine import AffineMap

from npu_tools.emulator.ops.arith import is_array
from npu_tools.emulator.ops.contraction import contraction
from npu_tools.emulator.ops.core import core_numerics
from npu_tools.emulator.ops.domain import Access, access, domain_sizes, plain_dims, with_unit_loops
from npu_tools.emulator.ops.reduction import kind_of, reduce_over
from npu_tools.emulator.ops.signature import (
    affine_maps,
    dtype,
    element_of,
    groups,
    integer,
    integers,
    is_bf16,
    is_float,
    refuse,
    shape_of,
    strings,
    width_of,
)
from npu_tools.emulator.ops.vector_memory import lane_aligned
from npu_tools.emulator.rounding import wrap_integer
from npu_tools.emulator.types import Array, Frame, Instruction, Lower, Lowering, Ref

# The op that combines with the accumulator, as a reduction kind.
_COMBINES = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    "arith.maximumf": "maximumf",
    "arith.minimumf": "minimumf",
    "arith.maxnumf": "maxnumf",
    "arith.minnumf": "minnumf",
    "arith.maxsi": "maxsi",
    "arith.minsi": "minsi",
    "arith.maxui": "maxui",
    "arith.minui": "minui",
    "arith.andi": "and",
    "arith.ori": "or",
    "arith.xori": "xor",
}
_EXTENSIONS = {"arith.extf", "arith.extsi", "arith.extui", "arith.truncf", "arith.sitofp", "arith.uitofp"}


def on_memrefs(op: Operation) -> None:
    if any(isinstance(operand.type, TensorType) for operand in op.operands) or op.results:
        refuse(op, "ops on tensors are not modelled", "bufferise the program first (memrefs in, no results)")


def contents(value: Any) -> Array:
    """An operand's contents [gx|1, gy|1, *shape]: a memref's, or a scalar's."""
    if hasattr(value, "read"):
        return cast("Ref", value).read()
    return value if is_array(value) else np.asarray(value).reshape(1, 1)


def _write_over(target: Ref, values: Array, map_: AffineMap, sizes: Sequence[int]) -> None:
    """Values over the domain (extent 1 where constant) into a memref indexed by a projected permutation."""
    dims = plain_dims(map_)
    assert dims is not None
    rest = [d for d in range(len(sizes)) if d not in dims]
    moved = values.transpose(0, 1, *(2 + d for d in dims), *(2 + d for d in rest))
    target.write(moved.reshape(*moved.shape[: 2 + len(dims)]))


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a structured op, ready to run on arrays over a domain."""

    steps: list[Instruction]
    arguments: list[int]
    yields: list[int]
    captured: list[int]
    counters: list[tuple[int, int]]
    """Registers of `linalg.index` ops, each with its loop."""

    def run(
        self, frame: Frame, inputs: Sequence[Any], sizes: Sequence[int], at: Mapping[int, int] | None = None
    ) -> list[Any]:
        """What the body yields for these block arguments, each an array over the domain.

        `at` fixes loops that are walked one step after the other.
        """
        regs, rank = frame.regs, len(sizes)
        for slot, loop in self.counters:
            regs[slot] = _counter(loop, sizes, at or {})
        kept = {slot: regs[slot] for slot in self.captured}
        for slot, value in kept.items():
            # A value that differs between lanes must not be taken for one that differs along the domain.
            regs[slot] = lane_aligned(value, rank) if is_array(value) and value.ndim == 2 else value
        for slot, value in zip(self.arguments, inputs, strict=True):
            regs[slot] = value
        for step in self.steps:
            step(frame)
        found = [regs[slot] for slot in self.yields]
        for slot, value in kept.items():
            regs[slot] = value
        return found


def _counter(loop: int, sizes: Sequence[int], at: Mapping[int, int]) -> Array:
    values = np.array([at[loop]]) if loop in at else np.arange(sizes[loop], dtype=np.int64)
    return values.reshape(1, 1, *(-1 if d == loop else 1 for d in range(len(sizes))))


def body_of(op: Operation, low: Lowering) -> Body:
    """The body of an op with one block.

    Raises:
        Fault: it has none, or more.
    """
    if len(op.regions) != 1 or len(op.regions[0].blocks) != 1:
        refuse(op, "a body of one block is expected")
    block = op.regions[0].block
    last = block.last_op
    if last is None or not last.name.endswith(".yield"):
        refuse(op, "the body does not end in a yield")
    inner = set(block.walk())
    captured = {
        low.slot(value)
        for one in inner
        for value in one.operands
        if not _defined_in(value, block, inner) and not isinstance(value.type, MemRefType)
    }
    return Body(
        low.straight(block),
        [low.slot(argument) for argument in block.args],
        [low.slot(value) for value in last.operands],
        sorted(captured),
        [(low.slot(one.results[0]), integer(one, "dim")) for one in block.ops if one.name == "linalg.index"],
    )


def _defined_in(value: SSAValue, block: Block, inner: set[Operation]) -> bool:
    if isinstance(value, BlockArgument):
        return value.block is block
    return isinstance(value, OpResult) and value.op in inner


@dataclass(frozen=True, slots=True)
class Generic:
    """A `linalg.generic` taken apart."""

    op: Operation
    inputs: list[SSAValue]
    outputs: list[SSAValue]
    maps: list[AffineMap]
    iterators: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def reduced(self) -> list[int]:
        """The reduction loops."""
        return [i for i, kind in enumerate(self.iterators) if kind != "parallel"]

    def accesses(self) -> list[Access]:
        """How each operand, inputs first, is seen over the loops."""
        operands = [*self.inputs, *self.outputs]
        return [
            access(map_, self.sizes, shape_of(operand.type)) for map_, operand in zip(self.maps, operands, strict=True)
        ]

    @property
    def block(self) -> Block:
        """The body's block."""
        return self.op.regions[0].block


def generic(op: Operation, low: Lowering) -> Instruction:
    """`linalg.generic`."""
    on_memrefs(op)
    inputs, outputs = groups(op)[:2]
    shapes = [shape_of(operand.type) for operand in op.operands]
    maps, units = with_unit_loops(affine_maps(op), shapes, len(inputs))
    iterators = tuple("parallel" if "parallel" in kind else "reduction" for kind in strings(op, "iterator_types"))
    iterators += ("parallel",) * units
    sizes = domain_sizes(op.name, maps, shapes) if maps[0].num_dims else ()
    it = Generic(op, inputs, outputs, maps, iterators, sizes)
    for map_ in maps[len(inputs) :]:
        if plain_dims(map_) is None:
            refuse(op, f"an output indexed by {map_} is not modelled", "index outputs by plain loops")
    if not it.reduced:
        return _elementwise(it, low)
    if len(outputs) == 1:
        product = _product(it)
        if product is not None:
            return _sum_of_products(it, product, low)
        combined = _combined(it)
        # A bf16 sum rounds at every step; only what is exact, or wider, may be summed in one go.
        if combined is not None and not (is_bf16(outputs[0].type) and combined[0] in ("add", "mul")):
            return _combine(it, *combined, low)
    return _in_order(it, low)


def slots_of(values: Sequence[SSAValue], low: Lowering) -> list[int]:
    return [low.slot(value) for value in values]


def _arguments_used(it: Generic) -> list[bool]:
    return [argument.first_use is not None for argument in it.block.args]


def _elementwise(it: Generic, low: Lowering) -> Instruction:
    body, accesses = body_of(it.op, low), it.accesses()
    operands, used = slots_of([*it.inputs, *it.outputs], low), _arguments_used(it)
    targets = slots_of(it.outputs, low)
    output_maps = it.maps[len(it.inputs) :]

    def run(frame: Frame) -> None:
        regs = frame.regs
        arguments = [
            seen.over(contents(regs[slot])) if needed else None
            for slot, seen, needed in zip(operands, accesses, used, strict=True)
        ]
        for slot, value, map_ in zip(targets, body.run(frame, arguments, it.sizes), output_maps, strict=True):
            _write_over(cast("Ref", regs[slot]), _spread(value, it.sizes), map_, it.sizes)

    return run


def _spread(value: Any, sizes: Sequence[int]) -> Array:
    """A body's result over the whole domain (it may be constant along some loops, or altogether)."""
    array = value if is_array(value) and value.ndim == 2 + len(sizes) else lane_aligned(np.asarray(value), len(sizes))
    if array.ndim != 2 + len(sizes):
        array = np.asarray(value).reshape((1,) * (2 + len(sizes)))
    return np.broadcast_to(array, (*array.shape[:2], *sizes))


@dataclass(frozen=True, slots=True)
class Product:
    """The two inputs of a sum of products, by number, and whether they go to the matrix unit."""

    a: int
    b: int
    matrix_unit: bool


def _yielded(it: Generic) -> Operation | None:
    last = it.block.last_op
    value = last.operands[0] if last is not None and last.operands else None
    return value.op if isinstance(value, OpResult) else None


def _combined(it: Generic) -> tuple[str, SSAValue] | None:
    """The kind and the other operand where the body is `acc = acc <op> rest`, rest without the accumulator."""
    top = _yielded(it)
    acc = it.block.args[len(it.inputs)]
    if top is None or top.name not in _COMBINES or acc.uses.get_length() != 1 or acc not in top.operands:
        return None
    other = next(operand for operand in top.operands if operand is not acc)
    return _COMBINES[top.name], other


def _source(value: SSAValue) -> SSAValue:
    while isinstance(value, OpResult) and value.op.name in _EXTENSIONS:
        value = value.op.operands[0]
    return value


def _product(it: Generic) -> Product | None:
    combined = _combined(it)
    if combined is None or combined[0] != "add":
        return None
    value = combined[1]
    while isinstance(value, OpResult) and value.op.name in _EXTENSIONS:
        value = value.op.operands[0]
    if not isinstance(value, OpResult) or value.op.name not in ("arith.mulf", "arith.muli"):
        return None
    left, right = (_source(operand) for operand in value.op.operands)
    args = list(it.block.args)[: len(it.inputs)]
    if left not in args or right not in args or left is right:
        return None
    if any(unsigned.name == "arith.extui" for unsigned in it.block.ops):
        return None
    return Product(
        args.index(cast("Any", left)), args.index(cast("Any", right)), is_bf16(left.type) and is_bf16(right.type)
    )


def _sum_of_products(it: Generic, product: Product, low: Lowering) -> Instruction:
    maps = [it.maps[product.a], it.maps[product.b], it.maps[-1]]
    a, b = it.inputs[product.a], it.inputs[product.b]
    return accumulate_product(it.op, low, a, b, it.outputs[0], maps, it.sizes, matrix_unit=product.matrix_unit)


def accumulate_product(
    op: Operation,
    low: Lowering,
    a: SSAValue,
    b: SSAValue,
    c: SSAValue,
    maps: Sequence[AffineMap],
    sizes: Sequence[int],
    *,
    matrix_unit: bool,
) -> Instruction:
    """c += sum of a * b: one rounding to the type of c at the end."""
    plan = contraction(op.name, maps, sizes, [shape_of(a.type), shape_of(b.type)], matrix_unit=matrix_unit)
    left, right, target = low.slot(a), low.slot(b), low.slot(c)
    element = element_of(c.type)
    numerics = core_numerics(op, low)
    rounded = numerics.rounder(element, kind=op.name)
    wide = is_float(element)
    kind = dtype(element)

    def run(frame: Frame) -> None:
        regs = frame.regs
        total = plan.of(contents(regs[left]), contents(regs[right]), numerics)
        memref = cast("Ref", regs[target])
        before = memref.read()
        if wide:
            memref.write(rounded(np.asarray(before + total, kind)))
        else:
            memref.write(wrap_integer(before.astype(np.int64) + total, width_of(element)))

    return run


def _combine(it: Generic, name: str, rest: SSAValue, low: Lowering) -> Instruction:
    """Everything but the combining op over the whole domain, then one reduction."""
    kind = kind_of(it.op, name)
    body, accesses = body_of(it.op, low), it.accesses()
    top = _yielded(it)
    assert top is not None
    # The combining op itself runs too, on a neutral stand-in, and its result is dropped: cheaper than lowering twice.
    operands, used = slots_of(it.inputs, low), _arguments_used(it)
    value, target = low.slot(rest), low.slot(it.outputs[0])
    element = element_of(it.outputs[0].type)
    rounded = core_numerics(it.op, low).rounder(element, kind=top.name)
    out = it.maps[-1]
    order = plain_dims(out)
    assert order is not None
    axes = tuple(2 + d for d in it.reduced)
    kept = [d for d in range(len(it.sizes)) if d not in it.reduced]

    def run(frame: Frame) -> None:
        regs = frame.regs
        memref = cast("Ref", regs[target])
        before = memref.read()
        arguments = [
            seen.over(contents(regs[slot])) if needed else None
            for slot, seen, needed in zip(operands, accesses, used, strict=False)
        ]
        body.run(frame, [*arguments, accesses[-1].over(before)], it.sizes)
        result = reduce_over(kind, _spread(regs[value], it.sizes), axes, element, None)
        ordered = np.asarray(result).transpose(0, 1, *(2 + kept.index(d) for d in order))
        total = reduce_over(kind, ordered, (), element, before)
        memref.write(total if kind.exact else rounded(total))

    return run


def _in_order(it: Generic, low: Lowering) -> Instruction:
    """Reduction loops one step after the other, parallel loops vectorised."""
    body, accesses = body_of(it.op, low), it.accesses()
    operands, used = slots_of(it.inputs, low), _arguments_used(it)
    targets = slots_of(it.outputs, low)
    reduced = it.reduced
    output_maps = it.maps[len(it.inputs) :]
    for map_ in output_maps:
        if set(plain_dims(map_) or ()) & set(reduced):
            refuse(it.op, "an output indexed by a reduction loop is not modelled", "make that loop parallel")
    one = tuple(1 if d in reduced else n for d, n in enumerate(it.sizes))

    def run(frame: Frame) -> None:
        regs = frame.regs
        inputs = [
            seen.over(contents(regs[slot])) if needed else None
            for slot, seen, needed in zip(operands, accesses, used, strict=False)
        ]
        state: list[Any] = [
            seen.over(cast("Ref", regs[slot]).read())
            for slot, seen in zip(targets, accesses[len(it.inputs) :], strict=True)
        ]
        for point in np.ndindex(*(it.sizes[d] for d in reduced)):
            here = [None if value is None else _at(value, reduced, point) for value in inputs]
            state = body.run(frame, [*here, *state], it.sizes, dict(zip(reduced, point, strict=True)))
        for slot, value, map_ in zip(targets, state, output_maps, strict=True):
            _write_over(cast("Ref", regs[slot]), _spread(value, one), map_, one)

    return run


def _at(view: Array, dims: Sequence[int], point: Sequence[int]) -> Array:
    cut: list[slice] = [slice(None)] * view.ndim
    for dim, index in zip(dims, point, strict=True):
        if view.shape[2 + dim] > 1:
            cut[2 + dim] = slice(index, index + 1)
    return view[tuple(cut)]


def index(op: Operation, low: Lowering) -> Instruction:
    """`linalg.index`: its register is filled by `Body.run`, which knows the loops."""
    parent = op.parent_op()
    if parent is None or not parent.name.startswith("linalg."):
        refuse(op, "stands outside a structured op")

    def run(frame: Frame) -> None:
        return None

    return run


def reduce(op: Operation, low: Lowering) -> Instruction:
    """`linalg.reduce` with any body, one input and one output or several of each."""
    on_memrefs(op)
    half = len(op.operands) // 2
    dims = integers(op, "dimensions")
    rank = len(shape_of(op.operands[0].type))
    identity = AffineMap.identity(rank)
    kept = AffineMap(rank, 0, tuple(identity.results[d] for d in range(rank) if d not in dims))
    iterators = tuple("reduction" if d in dims else "parallel" for d in range(rank))
    inputs, outputs = list(op.operands[:half]), list(op.operands[half:])
    it = Generic(op, inputs, outputs, [identity] * half + [kept] * half, iterators, shape_of(op.operands[0].type))
    combined = _combined(it) if half == 1 else None
    if combined is not None and not (is_bf16(outputs[0].type) and combined[0] in ("add", "mul")):
        return _combine(it, *combined, low)
    return _in_order(it, low)


def map_(op: Operation, low: Lowering) -> Instruction:
    """`linalg.map`: a body on inputs of one shape."""
    on_memrefs(op)
    inputs, outputs = list(op.operands[:-1]), [op.operands[-1]]
    sizes = shape_of(outputs[0].type)
    body = body_of(op, low)
    slots, target = slots_of(inputs, low), low.slot(outputs[0])
    takes = len(op.regions[0].block.args)

    def run(frame: Frame) -> None:
        regs = frame.regs
        arguments: list[Any] = [contents(regs[slot]) for slot in slots]
        if takes == len(arguments) + 1:
            arguments.append(cast("Ref", regs[target]).read())
        (result,) = body.run(frame, arguments, sizes)
        cast("Ref", regs[target]).write(_spread(result, sizes))

    return run


LOWERINGS: dict[str, Lower] = {
    "linalg.generic": generic,
    "linalg.index": index,
    "linalg.reduce": reduce,
    "linalg.map": map_,
}
"""What this module lowers, by op name."""
