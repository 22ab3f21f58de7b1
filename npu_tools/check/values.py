"""What index arithmetic of a program comes to: constants, linear forms over loops and ids, ranges, conditions.

An integer SSA value is a linear form over the variables it depends on (loop variables, ids of a launch, segment or
herd); what is not linear (mod, floordiv, min, max) is a variable of its own with a range. Values handed into an
isolated body are followed outwards, so a window inside a herd is known in terms of the launch around it.

    values = Values({herd.ids[0]: 2})
    values.constant(offset)   # 128, or None where it is not the same always
    values.span(offset)       # (0, 448), inclusive, over all loops and ids that are not fixed

Nothing here knows a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from xdsl.dialects.builtin import AffineMapAttr, AffineSetAttr, IntegerAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind,
    AffineConstantExpr,
    AffineConstraintKind,
    AffineDimExpr,
    AffineExpr,
    AffineSymExpr,
)

from npu_tools.air.dialect import Hierarchy

Span = tuple[int, int]
_CASTS = frozenset({"arith.index_cast", "arith.index_castui", "arith.extsi", "arith.extui", "arith.trunci"})
_DEPTH = 200
"""How many ops deep a value is followed; deeper ones count as unknown."""


@dataclass(frozen=True, slots=True)
class Linear:
    """const + Σ coefficient · variable."""

    const: int
    terms: tuple[tuple[SSAValue, int], ...] = ()

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """This form and `factor` times another one."""
        terms = dict(self.terms)
        for variable, coefficient in other.terms:
            terms[variable] = terms.get(variable, 0) + factor * coefficient
        kept = tuple((variable, coefficient) for variable, coefficient in terms.items() if coefficient)
        return Linear(self.const + factor * other.const, kept)

    def times(self, factor: int) -> Linear:
        """This form multiplied by a constant."""
        return Linear(0).plus(self, factor) if factor else Linear(0)


class Values:
    """The values of a program with some of its ids fixed."""

    def __init__(self, fixed: Mapping[SSAValue, int] | None = None) -> None:
        self._fixed = dict(fixed or {})
        self._linear: dict[SSAValue, Linear | None] = {}
        self._spans: dict[SSAValue, Span | None] = {}
        self._nested = 0

    def constant(self, value: int | SSAValue) -> int | None:
        """The value where it is one number, else None."""
        form = self.linear(value)
        return form.const if form is not None and not form.terms else None

    def constants(self, values: Sequence[int | SSAValue]) -> list[int] | None:
        """All values as numbers, or None where one of them is not."""
        found = [self.constant(value) for value in values]
        return None if None in found else cast("list[int]", found)

    def linear(self, value: int | SSAValue, depth: int = 0) -> Linear | None:
        """The value as a linear form, or None where it cannot be said."""
        if isinstance(value, int):
            return Linear(value)
        if value in self._fixed:
            return Linear(self._fixed[value])
        if value not in self._linear:
            if depth > _DEPTH:
                return None
            self._linear[value] = None
            self._linear[value] = self._form(value, depth + 1)
        return self._linear[value]

    def span(self, value: int | SSAValue | Linear) -> Span | None:
        """The least and the greatest number the value takes, or None where it has no known bound."""
        form = value if isinstance(value, Linear) else self.linear(value)
        if form is None:
            return None
        low = high = form.const
        for variable, coefficient in form.terms:
            bounds = self._variable_span(variable)
            if bounds is None:
                return None
            ends = (bounds[0] * coefficient, bounds[1] * coefficient)
            low, high = low + min(ends), high + max(ends)
        return low, high

    def depends_on(self, value: int | SSAValue, variables: Sequence[SSAValue]) -> bool:
        """Whether one of the variables can change the value (True also where nothing is known)."""
        wanted, seen = set(variables), set[SSAValue]()
        queue: list[int | SSAValue] = [value]
        while queue:
            form = self.linear(queue.pop())
            if form is None:
                return True
            for variable, _ in form.terms:
                if variable in wanted:
                    return True
                if variable not in seen and not isinstance(owner := variable.owner, Block):
                    seen.add(variable)
                    queue.extend(owner.operands)
        return False

    def trips(self, loop: Operation) -> int | None:
        """How often the body of a loop runs, or None where it is not always the same."""
        match loop.name:
            case "scf.for":
                bounds = self.constants(list(loop.operands[:3]))
            case "affine.for":
                bounds = self._affine_bounds(loop)
            case "scf.parallel" | "scf.forall" | "affine.parallel":
                return self._parallel_trips(loop)
            case _:
                return None
        if bounds is None or bounds[2] <= 0:
            return None
        return max(0, -(-(bounds[1] - bounds[0]) // bounds[2]))

    def holds(self, branch: Operation) -> bool | None:
        """Whether the condition of affine.if or scf.if is true, false, or not always the same (None)."""
        if branch.name == "affine.if":
            return self._set_holds(branch)
        if branch.name == "scf.if":
            return self._truth(branch.operands[0])
        return None

    # -- forms -----------------------------------------------------------------------------------------------------

    def _form(self, value: SSAValue, depth: int) -> Linear | None:
        owner = value.owner
        if isinstance(owner, Block):
            return self._argument(value, owner, depth)
        number = _constant_of(owner)
        if number is not None:
            return Linear(number)
        operands = owner.operands
        match owner.name:
            case name if name in _CASTS:
                return self.linear(operands[0], depth)
            case "arith.addi" | "index.add":
                return self._sum(operands, 1, depth)
            case "arith.subi" | "index.sub":
                return self._sum(operands, -1, depth)
            case "arith.muli" | "index.mul":
                return self._product(self.linear(operands[0], depth), self.linear(operands[1], depth))
            case "arith.divsi" | "arith.divui" | "arith.floordivsi" | "index.divs" | "index.divu":
                return self._folded(value, operands, depth, lambda a, b: a // b if b else None)
            case "arith.ceildivsi" | "arith.ceildivui":
                return self._folded(value, operands, depth, lambda a, b: -(-a // b) if b else None)
            case "arith.remsi" | "arith.remui" | "index.rems" | "index.remu":
                return self._folded(value, operands, depth, lambda a, b: a % b if b else None)
            case "arith.minsi" | "arith.minui":
                return self._folded(value, operands, depth, min)
            case "arith.maxsi" | "arith.maxui":
                return self._folded(value, operands, depth, max)
            case "arith.select":
                truth = self._truth(operands[0])
                return Linear(0, ((value, 1),)) if truth is None else self.linear(operands[1 if truth else 2], depth)
            case "affine.apply":
                return self._apply(value, owner, depth)
            case "arith.shli":
                return self._folded(value, operands, depth, lambda a, b: a << b if 0 <= b < 64 else None)
            case _:
                return Linear(0, ((value, 1),))

    def _argument(self, value: SSAValue, block: Block, depth: int) -> Linear | None:
        parent = block.parent_op()
        if isinstance(parent, Hierarchy):
            index = next(i for i, argument in enumerate(block.args) if argument is value)
            dims = len(parent.sizes)
            if index < dims:
                single = self.constant(parent.sizes[index]) == 1
                return Linear(0) if single else Linear(0, ((value, 1),))
            if index < 2 * dims:
                return self.linear(parent.sizes[index - dims], depth)
            return self.linear(parent.kernel_operands[index - 2 * dims], depth)
        if parent is not None and parent.name == "scf.for" and block.args[0] is value and self.trips(parent) == 1:
            return self.linear(parent.operands[0], depth)
        return Linear(0, ((value, 1),))

    def _sum(self, operands: Sequence[SSAValue], sign: int, depth: int) -> Linear | None:
        left, right = self.linear(operands[0], depth), self.linear(operands[1], depth)
        return None if left is None or right is None else left.plus(right, sign)

    def _product(self, left: Linear | None, right: Linear | None) -> Linear | None:
        if left is None or right is None:
            return None
        if not right.terms:
            return left.times(right.const)
        return right.times(left.const) if not left.terms else None

    def _folded(
        self, value: SSAValue, operands: Sequence[SSAValue], depth: int, combine: Callable[[int, int], int | None]
    ) -> Linear | None:
        left, right = self.linear(operands[0], depth), self.linear(operands[1], depth)
        if left is not None and right is not None and not left.terms and not right.terms:
            result = combine(left.const, right.const)
            return None if result is None else Linear(result)
        return Linear(0, ((value, 1),))

    def _apply(self, value: SSAValue, op: Operation, depth: int) -> Linear | None:
        attribute = _attribute(op, "map")
        if not isinstance(attribute, AffineMapAttr) or len(attribute.data.results) != 1:
            return Linear(0, ((value, 1),))
        forms = [self.linear(operand, depth) for operand in op.operands]
        if None in forms:
            return None
        known = cast("list[Linear]", forms)
        form = _affine(attribute.data.results[0], known[: attribute.data.num_dims], known[attribute.data.num_dims :])
        return form if form is not None else Linear(0, ((value, 1),))

    # -- ranges ----------------------------------------------------------------------------------------------------

    def _variable_span(self, variable: SSAValue) -> Span | None:
        if variable not in self._spans:
            if self._nested > _DEPTH // 4:
                return None
            self._spans[variable] = None
            self._nested += 1
            self._spans[variable] = self._bounds(variable)
            self._nested -= 1
        return self._spans[variable]

    def _bounds(self, variable: SSAValue) -> Span | None:
        owner = variable.owner
        if isinstance(owner, Block):
            return self._argument_bounds(variable, owner)
        if owner.name == "affine.apply":
            return self._apply_bounds(owner)
        spans = [self.span(operand) for operand in owner.operands[-2:]]
        if None in spans or len(spans) < 2:
            return None
        (a, b), (c, d) = cast("list[Span]", spans)
        match owner.name:
            case "arith.remsi" | "arith.remui" | "index.rems" | "index.remu":
                return (0, min(b, d - 1)) if c == d > 0 and a >= 0 else None
            case "arith.divsi" | "arith.divui" | "arith.floordivsi" | "index.divs" | "index.divu":
                return (a // c, b // c) if c == d > 0 and a >= 0 else None
            case "arith.ceildivsi" | "arith.ceildivui":
                return (-(-a // c), -(-b // c)) if c == d > 0 and a >= 0 else None
            case "arith.minsi" | "arith.minui":
                return min(a, c), min(b, d)
            case "arith.maxsi" | "arith.maxui":
                return max(a, c), max(b, d)
            case "arith.select":
                return min(a, c), max(b, d)
            case _:
                return None

    def _argument_bounds(self, variable: SSAValue, block: Block) -> Span | None:
        parent = block.parent_op()
        if parent is None:
            return None
        index = next(i for i, argument in enumerate(block.args) if argument is variable)
        if isinstance(parent, Hierarchy):
            size = self.constant(parent.sizes[index]) if index < len(parent.sizes) else None
            return (0, size - 1) if size else None
        if parent.name in ("scf.for", "affine.for") and index == 0:
            trips = self.trips(parent)
            bounds = self.constants(list(parent.operands[:3])) if parent.name == "scf.for" else None
            bounds = bounds if parent.name == "scf.for" else self._affine_bounds(parent)
            return (bounds[0], bounds[0] + (trips - 1) * bounds[2]) if bounds and trips else None
        if parent.name == "scf.parallel":
            dims = len(block.args)
            bounds = self.constants([parent.operands[index + offset * dims] for offset in range(3)])
            if bounds is None or bounds[2] <= 0 or bounds[1] <= bounds[0]:
                return None
            return bounds[0], bounds[0] + (bounds[1] - bounds[0] - 1) // bounds[2] * bounds[2]
        return None

    def _apply_bounds(self, op: Operation) -> Span | None:
        attribute = _attribute(op, "map")
        spans = [self.span(operand) for operand in op.operands]
        if not isinstance(attribute, AffineMapAttr) or None in spans:
            return None
        known = cast("list[Span]", spans)
        data = attribute.data
        return _affine_span(data.results[0], known[: data.num_dims], known[data.num_dims :])

    # -- control ---------------------------------------------------------------------------------------------------

    def _affine_bounds(self, loop: Operation) -> list[int] | None:
        low, high, step = (_attribute(loop, name) for name in ("lowerBoundMap", "upperBoundMap", "step"))
        if not isinstance(low, AffineMapAttr) or not isinstance(high, AffineMapAttr):
            return None
        lows = [_affine(result, [], []) for result in low.data.results] if not low.data.num_dims else []
        highs = [_affine(result, [], []) for result in high.data.results] if not high.data.num_dims else []
        if len(lows) != 1 or len(highs) != 1 or lows[0] is None or highs[0] is None:
            return None
        width = cast("IntegerAttr[Any]", step).value.data if isinstance(step, IntegerAttr) else 1
        return [lows[0].const, highs[0].const, width]

    def _parallel_trips(self, loop: Operation) -> int | None:
        if loop.name != "scf.parallel":
            return None
        dims = len(loop.regions[0].block.args)
        total = 1
        for index in range(dims):
            bounds = self.constants([loop.operands[index + offset * dims] for offset in range(3)])
            if bounds is None or bounds[2] <= 0:
                return None
            total *= max(0, -(-(bounds[1] - bounds[0]) // bounds[2]))
        return total

    def _set_holds(self, branch: Operation) -> bool | None:
        attribute = _attribute(branch, "condition")
        if not isinstance(attribute, AffineSetAttr):
            return None
        data = attribute.data
        forms = [self.linear(operand) for operand in branch.operands]
        if None in forms:
            return None
        known = cast("list[Linear]", forms)
        verdict: bool | None = True
        for constraint in data.constraints:
            form = _affine(constraint.lhs, known[: data.num_dims], known[data.num_dims :])
            right = _affine(constraint.rhs, known[: data.num_dims], known[data.num_dims :])
            span = None if form is None or right is None else self.span(form.plus(right, -1))
            if span is None:
                verdict = None
                continue
            met = _compare(span, constraint.kind)
            if met is False:
                return False
            verdict = verdict if met else None
        return verdict

    def _truth(self, condition: SSAValue, depth: int = 0) -> bool | None:
        owner = condition.owner
        if isinstance(owner, Block) or depth > _DEPTH:
            return None
        if owner.name == "arith.cmpi":
            return self._comparison(owner)
        if owner.name in ("arith.andi", "arith.ori"):
            sides = [self._truth(operand, depth + 1) for operand in owner.operands]
            decisive = owner.name == "arith.ori"
            if decisive in sides:
                return decisive
            return None if None in sides else not decisive
        if owner.name == "arith.xori":
            sides = [self._truth(operand, depth + 1) for operand in owner.operands]
            return None if None in sides else sides[0] is not sides[1]
        number = _constant_of(owner)
        return None if number is None else bool(number)

    def _comparison(self, op: Operation) -> bool | None:
        predicate = _attribute(op, "predicate")
        left, right = self.linear(op.operands[0]), self.linear(op.operands[1])
        if left is None or right is None or not isinstance(predicate, IntegerAttr):
            return None
        span = self.span(left.plus(right, -1))
        if span is None:
            return None
        low, high = span
        match cast("IntegerAttr[Any]", predicate).value.data:
            case 0:
                return True if low == high == 0 else False if low > 0 or high < 0 else None
            case 1:
                return False if low == high == 0 else True if low > 0 or high < 0 else None
            case 2 | 6:
                return True if high < 0 else False if low >= 0 else None
            case 3 | 7:
                return True if high <= 0 else False if low > 0 else None
            case 4 | 8:
                return True if low > 0 else False if high <= 0 else None
            case _:
                return True if low >= 0 else False if high < 0 else None


def _attribute(op: Operation, name: str) -> Attribute | None:
    # Not `or`: an IntegerAttr of 0 is false.
    found = op.properties.get(name)
    return op.attributes.get(name) if found is None else found


def _constant_of(op: Operation) -> int | None:
    if op.name not in ("arith.constant", "index.constant"):
        return None
    value = _attribute(op, "value")
    return cast("IntegerAttr[Any]", value).value.data if isinstance(value, IntegerAttr) else None


def _compare(span: Span, kind: AffineConstraintKind) -> bool | None:
    low, high = span
    if kind is AffineConstraintKind.eq:
        return True if low == high == 0 else False if low > 0 or high < 0 else None
    if kind is AffineConstraintKind.ge:
        return True if low >= 0 else False if high < 0 else None
    return True if high <= 0 else False if low > 0 else None


def _affine(expression: AffineExpr, dims: Sequence[Linear], symbols: Sequence[Linear]) -> Linear | None:
    """The expression over linear forms; None where it is not linear."""
    if isinstance(expression, AffineConstantExpr):
        return Linear(expression.value)
    if isinstance(expression, AffineDimExpr):
        return dims[expression.position] if expression.position < len(dims) else None
    if isinstance(expression, AffineSymExpr):
        return symbols[expression.position] if expression.position < len(symbols) else None
    if not isinstance(expression, AffineBinaryOpExpr):
        return None
    left, right = _affine(expression.lhs, dims, symbols), _affine(expression.rhs, dims, symbols)
    if left is None or right is None:
        return None
    if expression.kind is AffineBinaryOpKind.Add:
        return left.plus(right)
    if expression.kind is AffineBinaryOpKind.Mul:
        return left.times(right.const) if not right.terms else right.times(left.const) if not left.terms else None
    if left.terms or right.terms or not right.const:
        return None
    match expression.kind:
        case AffineBinaryOpKind.Mod:
            return Linear(left.const % right.const)
        case AffineBinaryOpKind.FloorDiv:
            return Linear(left.const // right.const)
        case _:
            return Linear(-(-left.const // right.const))


def _affine_span(expression: AffineExpr, dims: Sequence[Span], symbols: Sequence[Span]) -> Span | None:
    """The range of an expression over ranges."""
    if isinstance(expression, AffineConstantExpr):
        return expression.value, expression.value
    if isinstance(expression, AffineDimExpr):
        return dims[expression.position] if expression.position < len(dims) else None
    if isinstance(expression, AffineSymExpr):
        return symbols[expression.position] if expression.position < len(symbols) else None
    if not isinstance(expression, AffineBinaryOpExpr):
        return None
    left, right = _affine_span(expression.lhs, dims, symbols), _affine_span(expression.rhs, dims, symbols)
    if left is None or right is None:
        return None
    divisor = right[0] if right[0] == right[1] > 0 else None
    match expression.kind:
        case AffineBinaryOpKind.Add:
            return left[0] + right[0], left[1] + right[1]
        case AffineBinaryOpKind.Mul:
            ends = [a * b for a in left for b in right]
            return min(ends), max(ends)
        case AffineBinaryOpKind.Mod if divisor:
            whole = left[0] // divisor == left[1] // divisor
            return (left[0] % divisor, left[1] % divisor) if whole else (0, divisor - 1)
        case AffineBinaryOpKind.FloorDiv if divisor:
            return left[0] // divisor, left[1] // divisor
        case AffineBinaryOpKind.CeilDiv if divisor:
            return -(-left[0] // divisor), -(-left[1] // divisor)
        case _:
            return None
