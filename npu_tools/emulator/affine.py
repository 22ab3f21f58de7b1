"""Affine maps and sets as functions of index values, uniform or differing between lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSet,
    AffineSymExpr,
)

from npu_tools.emulator.types import Fault, Index

Evaluate = Callable[[Sequence[Index]], Index]
"""An expression as a function of its operands: the dims, then the symbols."""


def compile_map(affine_map: AffineMap) -> list[Evaluate]:
    """One function for each result."""
    return [compile_expression(result, affine_map.num_dims) for result in affine_map.results]


def compile_expression(expression: AffineExpr, dims: int) -> Evaluate:
    """The expression as a function; sums of multiples, the usual case, take one step."""
    linear = linear_form(expression, dims)
    if linear is None:
        return _compile(expression, dims)
    terms, constant = sorted(linear[0].items()), linear[1]
    if not terms:
        return lambda _: constant
    if len(terms) == 1:
        ((position, factor),) = terms
        if factor == 1 and constant == 0:
            return lambda values: values[position]
        return lambda values: values[position] * factor + constant

    def evaluate(values: Sequence[Index]) -> Index:
        total: Any = constant
        for position, factor in terms:
            total = total + values[position] * factor
        return total

    return evaluate


def linear_form(expression: AffineExpr, dims: int) -> tuple[dict[int, int], int] | None:
    """The expression as factors by operand position (dims, then symbols) and a constant; None where it is not so."""
    match expression:
        case AffineConstantExpr():
            return {}, expression.value
        case AffineDimExpr():
            return {expression.position: 1}, 0
        case AffineSymExpr():
            return {dims + expression.position: 1}, 0
        case AffineBinaryOpExpr():
            left, right = linear_form(expression.lhs, dims), linear_form(expression.rhs, dims)
            if left is None or right is None:
                return None
            if expression.kind is AffineBinaryOpKind.Add:
                sums = dict(left[0])
                for position, factor in right[0].items():
                    sums[position] = sums.get(position, 0) + factor
                return {p: f for p, f in sums.items() if f}, left[1] + right[1]
            if expression.kind is AffineBinaryOpKind.Mul and not (left[0] and right[0]):
                terms, factor = (left, right[1]) if not right[0] else (right, left[1])
                return {p: f * factor for p, f in terms[0].items()}, terms[1] * factor
        case _:
            pass
    return None


def _compile(expression: AffineExpr, dims: int) -> Evaluate:
    match expression:
        case AffineConstantExpr():
            value = expression.value
            return lambda _: value
        case AffineDimExpr():
            position = expression.position
            return lambda values: values[position]
        case AffineSymExpr():
            position = dims + expression.position
            return lambda values: values[position]
        case AffineBinaryOpExpr():
            left, right = compile_expression(expression.lhs, dims), compile_expression(expression.rhs, dims)
            match expression.kind:
                case AffineBinaryOpKind.Add:
                    return lambda values: left(values) + right(values)
                case AffineBinaryOpKind.Mul:
                    return lambda values: left(values) * right(values)
                case AffineBinaryOpKind.Mod:
                    return lambda values: left(values) % _divisor(right(values))
                case AffineBinaryOpKind.FloorDiv:
                    return lambda values: left(values) // _divisor(right(values))
                case AffineBinaryOpKind.CeilDiv:
                    return lambda values: -(-left(values) // _divisor(right(values)))
        case _:
            raise Fault("unsupported-op", f"affine expression {expression} is of a kind unknown here")


def _divisor(value: Index) -> Index:
    if np.any(np.less_equal(value, 0)):
        raise Fault(
            "bad-divisor",
            f"an affine mod, floordiv or ceildiv divides by {value}, and only positive numbers are defined",
            "make the divisor a positive constant",
        )
    return value


def compile_set(affine_set: AffineSet) -> Callable[[Sequence[Index]], Any]:
    """Whether operands lie in the set: bool, or a boolean array [gx|1, gy|1]."""
    tests = [
        (compile_expression(constraint.lhs, affine_set.num_dims), constraint.kind, _constant(constraint.rhs))
        for constraint in affine_set.constraints
    ]

    def contains(values: Sequence[Index]) -> Any:
        holds: Any = True
        for evaluate, kind, bound in tests:
            value = evaluate(values)
            if kind is AffineConstraintKind.ge:
                holds = holds & (value >= bound)
            elif kind is AffineConstraintKind.le:
                holds = holds & (value <= bound)
            else:
                holds = holds & (value == bound)
        return holds

    return contains


def _constant(expression: AffineExpr) -> int:
    if isinstance(expression, AffineConstantExpr):
        return expression.value
    raise Fault("unsupported-op", f"an affine constraint is compared with {expression}, which is no constant")
