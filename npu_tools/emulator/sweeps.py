"""Loops over single elements of buffers, nested or not, executed as one step on all of them.

Builders write out by element what a kernel would do by vector: load, compute, store, at indices that are sums of
multiples of the loops' counters. Where the text shows that no element can notice another, the nest is a handful of array
operations, with the same operation on every element. That needs: counted loops without carried values, directly nested;
in the innermost nothing but scalar arithmetic, loads and stores; and no buffer that is both loaded and stored.

Loads come first and stores last: where something is wrong (an element nobody wrote, an index out of bounds), nothing has
happened yet and the loops are executed as by text, which tells the fault where it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from xdsl.dialects import scf
from xdsl.dialects.builtin import AffineMapAttr
from xdsl.ir import BlockArgument, Operation, SSAValue

from npu_tools.air.dialect import Hierarchy
from npu_tools.emulator.affine import linear_form
from npu_tools.emulator.effects import ALIASES
from npu_tools.emulator.memops import constant_of, memref_type, prop
from npu_tools.emulator.memory import MemRef
from npu_tools.emulator.outside import UnwrittenRead
from npu_tools.emulator.types import Array, Fault, Frame, Instruction, LanesDiffer

if TYPE_CHECKING:
    from npu_tools.emulator.code import Builder

FEWEST = 4
"""Elements from which on it is worth it."""
MOST = 1 << 20
"""Elements at once at most."""
_SCALAR = frozenset(
    {
        *(f"arith.{name}" for name in ("addi", "subi", "muli", "andi", "ori", "xori", "shli", "shrsi", "shrui")),
        *(f"arith.{name}" for name in ("maxsi", "minsi", "maxui", "minui", "extsi", "extui", "trunci", "cmpi")),
        *(f"arith.{name}f" for name in ("add", "sub", "mul", "div", "neg", "ext", "trunc", "cmp")),
        *(f"arith.{name}f" for name in ("maximum", "minimum", "maxnum", "minnum")),
        *(f"arith.{name}" for name in ("select", "sitofp", "uitofp", "fptosi", "fptoui")),
    }
)


class _NotSweep(Exception):
    """The loops are something else."""


@dataclass(frozen=True, slots=True)
class _Form:
    """An index as a number plus multiples of counters plus values from outside."""

    factors: dict[SSAValue, int]
    constant: int
    outside: tuple[tuple[SSAValue, int], ...] = ()

    def plus(self, other: _Form) -> _Form:
        factors = dict(self.factors)
        for counter, factor in other.factors.items():
            factors[counter] = factors.get(counter, 0) + factor
        return _Form(factors, self.constant + other.constant, (*self.outside, *other.outside))

    def times(self, by: int) -> _Form:
        return _Form(
            {counter: factor * by for counter, factor in self.factors.items()},
            self.constant * by,
            tuple((value, factor * by) for value, factor in self.outside),
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an access goes: the memref's register, the first and the last index of each dimension, and their factors."""

    ref: int
    first: list[_Form]
    factors: list[list[int]]
    """By dimension, for each counter."""


@dataclass(slots=True)
class _Sweep:
    """What is known of a nest while it is read: counters, indices and values, in the order of the text."""

    builder: Builder
    outer: scf.ForOp
    counters: list[tuple[SSAValue, int, int, int]] = field(default_factory=list["tuple[SSAValue, int, int, int]"])
    """Each loop's counter, first value, step and trips, outermost first."""
    steps: list[Instruction] = field(default_factory=list[Instruction])
    forms: dict[SSAValue, _Form] = field(default_factory=dict[SSAValue, _Form])
    settled: set[SSAValue] = field(default_factory=set[SSAValue])
    """Values made inside that are the same for all elements."""
    varying: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    """Registers with [gx|1, gy|1, *trips]."""
    still: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    loaded: set[SSAValue] = field(default_factory=set[SSAValue])
    stored: dict[SSAValue, tuple[_Place, SSAValue]] = field(default_factory=dict[SSAValue, "tuple[_Place, SSAValue]"])

    @property
    def trips(self) -> tuple[int, ...]:
        return tuple(trips for *_, trips in self.counters)

    def read_loop(self, loop: scf.ForOp) -> None:
        """A loop of the nest: index arithmetic and one loop in it, or the elements themselves."""
        bounds = tuple(constant_of(value) for value in (loop.lb, loop.ub, loop.step))
        if loop.iter_args or not all(isinstance(bound, int) for bound in bounds):
            raise _NotSweep
        low, high, step = cast("tuple[int, int, int]", bounds)
        if step < 1 or high <= low:
            raise _NotSweep
        counter = loop.body.block.args[0]
        self.counters.append((counter, low, step, -(-(high - low) // step)))
        self.forms[counter] = _Form({counter: 1}, 0)
        body = [op for op in loop.body.block.ops if op.name != "scf.yield"]
        inner = [op for op in body if isinstance(op, scf.ForOp)]
        if inner and body[-1] is not inner[0]:
            raise _NotSweep
        for op in body:
            if isinstance(op, scf.ForOp):
                self.read_loop(op)
            elif inner and not self._is_index(op):
                raise _NotSweep
            else:
                self._one(op)

    def _is_index(self, op: Operation) -> bool:
        indices = [result.type.name == "index" for result in op.results]
        return op.name == "arith.constant" or (bool(indices) and all(indices))

    def _one(self, op: Operation) -> None:
        if op.name == "memref.load":
            self._load(op)
        elif op.name == "memref.store":
            self._store(op)
        elif op.name == "arith.constant" or (
            (op.name in _SCALAR or op.name == "affine.apply") and all(self._same(value) for value in op.operands)
        ):
            self._settle(op)
        elif self._is_index(op):
            self._index(op)
        elif op.name in _SCALAR:
            self._elementwise(op)
        else:
            raise _NotSweep

    def _inside(self, value: SSAValue) -> bool:
        owner = value.owner
        current = owner if isinstance(owner, Operation) else owner.parent_op()
        while current is not None and current is not self.outer:
            current = current.parent_op()
        return current is self.outer

    def _same(self, value: SSAValue) -> bool:
        """Whether a value is the same for all elements."""
        return value in self.settled or not self._inside(value)

    def _settle(self, op: Operation) -> None:
        instruction = self.builder.machine.lowerings[op.name](op, self.builder)
        if instruction is not None:
            self.steps.append(instruction)
        self.settled.update(op.results)

    def _form(self, value: SSAValue) -> _Form:
        number = constant_of(value)
        if isinstance(number, int):
            return _Form({}, number)
        found = self.forms.get(value)
        if found is None:
            if not self._same(value):
                raise _NotSweep
            found = _Form({}, 0, ((value, 1),))
        return found

    def _index(self, op: Operation) -> None:
        """An index that differs between elements: sums of multiples only."""
        (result,) = op.results
        if op.name == "affine.apply":
            affine_map = cast("AffineMapAttr", prop(op, "map")).data
            form = linear_form(affine_map.results[0], affine_map.num_dims) if len(affine_map.results) == 1 else None
            if form is None:
                raise _NotSweep
            total = _Form({}, form[1])
            for at, factor in form[0].items():
                total = total.plus(self._form(op.operands[at]).times(factor))
            self.forms[result] = total
            return
        if op.name not in ("arith.addi", "arith.subi", "arith.muli"):
            raise _NotSweep
        left, right = (self._form(operand) for operand in op.operands)
        if op.name == "arith.muli":
            for one, other in ((left, right), (right, left)):
                if not other.factors and not other.outside:
                    self.forms[result] = one.times(other.constant)
                    return
            raise _NotSweep
        self.forms[result] = left.plus(right if op.name == "arith.addi" else right.times(-1))

    def _place(self, memref: SSAValue, indices: tuple[SSAValue, ...]) -> tuple[SSAValue, _Place]:
        """The buffer an access goes to, and where in it."""
        root = memref
        while isinstance(root.owner, Operation) and root.owner.name in ALIASES:
            root = root.owner.operands[0]
        owner = root.owner
        known = (
            isinstance(root, BlockArgument) and isinstance(root.block.parent_op(), Hierarchy)
            if not isinstance(owner, Operation)
            else owner.name == "memref.alloc"
        )
        if not known or self._inside(memref) or memref_type(memref).element_type.name == "index":
            raise _NotSweep
        forms = [self._form(index) for index in indices]
        factors = [[form.factors.get(counter, 0) * step for counter, _, step, _ in self.counters] for form in forms]
        if any(factor < 0 for each in factors for factor in each):
            raise _NotSweep
        first = [
            _Form(
                {},
                form.constant + sum(form.factors.get(counter, 0) * low for counter, low, _, _ in self.counters),
                form.outside,
            )
            for form in forms
        ]
        return root, _Place(self.builder.slot(memref), first, factors)

    def _load(self, op: Operation) -> None:
        root, place = self._place(op.operands[0], tuple(op.operands[1:]))
        self.loaded.add(root)
        register, window = self.builder.fresh(), self.window(place)
        self.varying[op.results[0]] = register

        def load(frame: Frame) -> None:
            frame.regs[register] = window(frame.regs).read()

        self.steps.append(load)

    def _store(self, op: Operation) -> None:
        root, place = self._place(op.operands[1], tuple(op.operands[2:]))
        if root in self.stored:
            raise _NotSweep
        self.register(op.operands[0])
        self.stored[root] = (place, op.operands[0])

    def window(self, place: _Place) -> Callable[[list[Any]], MemRef]:
        """The elements of an access as a window of the nest's shape."""
        slots = {value: self.builder.slot(value) for form in place.first for value, _ in form.outside}
        trips = self.trips

        def locate(regs: list[Any]) -> MemRef:
            first = [
                form.constant + sum((regs[slots[value]] * factor for value, factor in form.outside), 0)
                for form in place.first
            ]
            last = [
                at + sum(factor * (count - 1) for factor, count in zip(factors, trips, strict=True))
                for at, factors in zip(first, place.factors, strict=True)
            ]
            ref = cast("MemRef", regs[place.ref])
            one = (1,) * len(first)
            ref.at(last, one)
            begin = ref.at(first, one)
            strides = tuple(
                sum(factors[position] * stride for factors, stride in zip(place.factors, ref.strides, strict=True))
                for position in range(len(trips))
            )
            return MemRef(
                begin.buffer, trips, strides, begin.offset, begin.dx, begin.dy, begin.x0, begin.y0, begin.gx, begin.gy
            )

        return locate

    def register(self, value: SSAValue) -> int:
        """The register of a value as all elements see it."""
        found = self.varying.get(value, self.still.get(value))
        if found is not None:
            return found
        if not self._same(value) or value in self.forms:
            raise _NotSweep
        source, register = self.builder.slot(value), self.builder.fresh()
        self.still[value] = register
        axes = (1,) * len(self.counters)

        def spread(frame: Frame) -> None:
            content = frame.regs[source]
            if isinstance(content, np.ndarray):
                array = cast("Array", content)
                content = array.reshape(*array.shape, *axes)
            frame.regs[register] = content

        self.steps.append(spread)
        return register

    def _elementwise(self, op: Operation) -> None:
        """The op's own instruction, on registers that hold all elements."""
        builder = self.builder
        (result,) = op.results
        given = {operand: self.register(operand) for operand in op.operands}
        register = builder.fresh()
        instruction = builder.on_registers(op, {**given, result: register})
        if instruction is None:
            raise _NotSweep
        self.varying[result] = register
        self.steps.append(instruction)


def shortcut(op: scf.ForOp, builder: Builder) -> Callable[[int], None] | None:
    """Emit an instruction that executes a nest over elements at once and goes on behind it, and otherwise into it.

    To be emitted right before the loop; the function returned is to be told where it ends.
    """
    machine = builder.machine
    if builder.herd is None or machine.trace is not None or machine.numerics.report is not None:
        return None
    if builder.turns and any(inner in builder.turns for inner in op.walk()):
        return None
    sweep = _Sweep(builder, op)
    try:
        sweep.read_loop(op)
    except (_NotSweep, Fault):
        return None
    if not sweep.stored or set(sweep.stored) & sweep.loaded or not FEWEST <= math.prod(sweep.trips) <= MOST:
        return None
    run, ends = _instruction(sweep)
    builder.emit(run)
    return ends.append


def _instruction(sweep: _Sweep) -> tuple[Instruction, list[int]]:
    """All elements at once, and the list that takes the pc to go on at."""
    writes = [(sweep.window(place), sweep.register(value)) for place, value in sweep.stored.values()]
    steps, ends, trips = tuple(sweep.steps), list[int](), sweep.trips

    def run(frame: Any) -> int | None:
        regs = frame.regs
        try:
            for step in steps:
                step(frame)
            targets = [(window(regs), regs[register]) for window, register in writes]
        except (UnwrittenRead, LanesDiffer, Fault):
            return None
        if any(target.buffer.freed or not _apart(target) for target, _ in targets):
            return None
        for target, values in targets:
            target.write(_whole(values, trips))
        return ends[0]

    return run, ends


def _whole(values: Any, trips: tuple[int, ...]) -> Array:
    """Values with lane axes and all elements."""
    array = np.asarray(values)
    if array.ndim == 0:
        return np.broadcast_to(array, (1, 1, *trips))
    return np.broadcast_to(array, (*array.shape[:2], *trips))


def _apart(window: MemRef) -> bool:
    """Whether no two elements of a window are one place."""
    reach = 1
    for stride, count in sorted(zip(window.strides, window.shape, strict=True)):
        if count > 1:
            if stride < reach:
                return False
            reach = stride * count
    return True
