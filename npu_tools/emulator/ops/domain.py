"""Operands seen over an iteration domain: affine maps as strided views.

A structured op walks a box of loops d0 … dn. `access(map, sizes, shape).over(array)` shows an operand over it as a view
[gx|1, gy|1, *s] with s[i] = sizes[i] where the map uses di and 1 where it does not, so that numpy broadcasting lines
operands up. Linear maps (matmul, convolutions, strided windows) copy nothing; others gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
)

from npu_tools.emulator.types import Array, Fault


def linear(expr: AffineExpr, dims: int) -> tuple[tuple[int, ...], int] | None:
    """The coefficient of each dimension and the constant, or None where the expression is not linear."""
    match expr:
        case AffineConstantExpr():
            return (0,) * dims, expr.value
        case AffineDimExpr():
            return tuple(int(i == expr.position) for i in range(dims)), 0
        case AffineBinaryOpExpr():
            left, right = linear(expr.lhs, dims), linear(expr.rhs, dims)
            if left is None or right is None:
                return None
            if expr.kind == AffineBinaryOpKind.Add:
                return tuple(a + b for a, b in zip(left[0], right[0], strict=True)), left[1] + right[1]
            if expr.kind == AffineBinaryOpKind.Mul and not any(right[0]):
                return tuple(a * right[1] for a in left[0]), left[1] * right[1]
            if expr.kind == AffineBinaryOpKind.Mul and not any(left[0]):
                return tuple(b * left[1] for b in right[0]), left[1] * right[1]
            return None
        case _:
            return None


def used_dims(map_: AffineMap) -> set[int]:
    """The dimensions a map's results depend on."""
    return {expr.position for result in map_.results for expr in result.dfs() if isinstance(expr, AffineDimExpr)}


def plain_dims(map_: AffineMap) -> tuple[int, ...] | None:
    """The dimensions a projected permutation names, in order; None for other maps."""
    found: list[int] = []
    for result in map_.results:
        if not isinstance(result, AffineDimExpr) or result.position in found:
            return None
        found.append(result.position)
    return tuple(found)


def with_unit_loops(
    maps: Sequence[AffineMap], shapes: Sequence[tuple[int, ...]], first_output: int
) -> tuple[list[AffineMap], int]:
    """Maps in which each constant 0 that indexes an output dimension of extent 1 is a loop of its own, and their number.

    An output is then indexed by loops alone, which is what the rest relies on.
    """
    dims = maps[0].num_dims
    added = 0
    results: list[tuple[AffineExpr, ...]] = []
    for position, (map_, shape) in enumerate(zip(maps, shapes, strict=True)):
        found = list(map_.results)
        for axis, expr in enumerate(found):
            constant = isinstance(expr, AffineConstantExpr) and expr.value == 0
            if position >= first_output and constant and shape[axis] == 1:
                found[axis] = AffineDimExpr(dims + added)
                added += 1
        results.append(tuple(found))
    return [AffineMap(dims + added, 0, exprs) for exprs in results], added


def domain_sizes(name: str, maps: Sequence[AffineMap], shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """How far each loop runs, from the operands whose maps name it alone.

    Raises:
        Fault: two operands disagree, or no operand says.
    """
    sizes: dict[int, int] = {}
    for map_, shape in zip(maps, shapes, strict=True):
        if len(map_.results) != len(shape):
            raise Fault(
                "malformed-op",
                f"{name}: an indexing map has {len(map_.results)} results for an operand of shape {list(shape)}",
                "give one result per dimension of the operand",
            )
        for result, extent in zip(map_.results, shape, strict=True):
            if extent < 0:
                raise Fault(
                    "dynamic-shape",
                    f"{name}: an operand has a dimension that is only known at run time",
                    "give every dimension as a number",
                )
            if isinstance(result, AffineDimExpr):
                known = sizes.setdefault(result.position, extent)
                if known != extent:
                    raise Fault(
                        "shape-mismatch",
                        f"{name}: loop d{result.position} runs to {known} by one operand and to {extent} by another",
                        "make the operand shapes agree with the indexing maps",
                    )
    missing = [i for i in range(maps[0].num_dims) if i not in sizes]
    if missing:
        raise Fault(
            "malformed-op",
            f"{name}: no operand gives the extent of loop d{missing[0]}",
            "add an operand that is indexed by this loop alone",
        )
    return tuple(sizes[i] for i in range(maps[0].num_dims))


@dataclass(frozen=True, slots=True)
class Access:
    """How one operand is seen over a domain, settled when the op is lowered.

    `extents` is the view's shape behind the lane axes. `order` is for maps that name loops alone: the operand's axes
    by ascending loop, and `None` where a loop is not used. `terms` is for other linear maps: per loop, the operand
    axes and how many elements of each one step moves; `start` is where the origin of the domain lies.
    `places` is for the rest: the operand element of every point.
    """

    extents: tuple[int, ...]
    order: tuple[tuple[int, ...], tuple[Any, ...]] | None = None
    terms: tuple[tuple[tuple[int, int], ...], ...] = ()
    start: tuple[slice, ...] = ()
    places: tuple[Array, ...] | None = None

    def over(self, array: Array) -> Array:
        """The operand [gx|1, gy|1, *shape] as [gx|1, gy|1, *extents]; a view but for maps that are not linear."""
        if self.order is not None:
            axes, spread = self.order
            return array.transpose(axes)[spread]
        if self.places is not None:
            return array[(slice(None), slice(None), *self.places)]
        steps = array.strides
        strides = tuple(sum(count * steps[axis] for axis, count in term) for term in self.terms)
        return as_strided(array[self.start], (*array.shape[:2], *self.extents), (*steps[:2], *strides), writeable=False)


def access(map_: AffineMap, sizes: Sequence[int], shape: Sequence[int]) -> Access:
    """The access of an operand of this shape.

    Raises:
        Fault: an index leaves the operand.
    """
    dims = len(sizes)
    used = used_dims(map_)
    extents = tuple(sizes[i] if i in used else 1 for i in range(dims))
    named = plain_dims(map_)
    if named is not None and all(shape[axis] == sizes[loop] for axis, loop in enumerate(named)):
        axes = (0, 1, *(2 + named.index(loop) for loop in sorted(named)))
        every = slice(None)
        spread = (every, every, *(every if loop in used else None for loop in range(dims)))
        return Access(extents, order=(axes, spread))
    forms = [linear(expr, dims) for expr in map_.results]
    start: list[slice] = [slice(None), slice(None)]
    terms: list[list[tuple[int, int]]] = [[] for _ in range(dims)]
    for axis, form in enumerate(forms):
        if form is None:
            grid: list[Any] = list(np.indices(extents, sparse=True))
            places = tuple(np.broadcast_to(evaluate(expr, grid), extents) for expr in map_.results)
            for place, extent in zip(places, shape, strict=True):
                _inside(int(place.min()), int(place.max()), extent)
            return Access(extents, places=places)
        coefficients, constant = form
        reach = [c * (extents[i] - 1) for i, c in enumerate(coefficients)]
        _inside(constant + sum(min(0, r) for r in reach), constant + sum(max(0, r) for r in reach), shape[axis])
        start.append(slice(constant, None))
        for loop, count in enumerate(coefficients):
            if count:
                terms[loop].append((2 + axis, count))
    return Access(extents, terms=tuple(tuple(term) for term in terms), start=tuple(start))


def _inside(first: int, last: int, extent: int) -> None:
    if first < 0 or last >= extent:
        raise Fault(
            "out-of-bounds",
            f"an indexing map reaches elements {first} to {last} of a dimension of {extent}",
            "make the loop extents fit the operand",
        )


def evaluate(expr: AffineExpr, dims: Sequence[Any], symbols: Sequence[Any] = ()) -> Any:
    """An affine expression of ints or arrays; floordiv, ceildiv and mod as MLIR has them."""
    match expr:
        case AffineConstantExpr():
            return expr.value
        case AffineDimExpr():
            return dims[expr.position]
        case AffineBinaryOpExpr():
            a, b = evaluate(expr.lhs, dims, symbols), evaluate(expr.rhs, dims, symbols)
            match expr.kind:
                case AffineBinaryOpKind.Add:
                    return a + b
                case AffineBinaryOpKind.Mul:
                    return a * b
                case AffineBinaryOpKind.Mod:
                    return a % b
                case AffineBinaryOpKind.FloorDiv:
                    return a // b
                case AffineBinaryOpKind.CeilDiv:
                    return -(-a // b)
        case _:
            return symbols[getattr(expr, "position", 0)]
