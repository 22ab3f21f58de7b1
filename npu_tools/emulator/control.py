"""Control flow as jumps: scf.for, if, while, parallel, forall; affine.for, if, parallel; calls of functions with bodies.

Lanes that a condition or a loop bound sends different ways part there and meet at the end of the region.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_not
from typing import Any, cast

import numpy as np
from xdsl.dialects import affine, func, scf
from xdsl.dialects.builtin import AffineMapAttr, DenseArrayBase, IntegerAttr
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap

from npu_tools.air.dialect import ChannelGetOp, ChannelPutOp
from npu_tools.emulator import strips, sweeps
from npu_tools.emulator.affine import compile_map, compile_set
from npu_tools.emulator.code import ARRIVED, Builder, Structured
from npu_tools.emulator.lanes import Lanes, rectangles
from npu_tools.emulator.outside import UnwrittenRead
from npu_tools.emulator.tasks import Pending, Task, part
from npu_tools.emulator.types import Array, Fault, Instruction, LanesDiffer

Bound = Callable[[list[Any]], Any]
"""A loop bound as a function of the registers."""
_HERDS_KEPT = 8
"""Herds running at once whose parted registers are remembered."""


def one_number(value: Any) -> int:
    """A value that must be the same in all lanes.

    Raises:
        LanesDiffer: it is not.
    """
    if isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        first = array.flat[0]
        if array.size > 1 and not (array == first).all():
            raise LanesDiffer
        return int(first)
    return int(value)


def meeting_point(builder: Builder) -> int:
    """Emit where lanes that parted meet."""
    pc = builder.here()

    def meet(frame: Any) -> Any:
        return ARRIVED if frame.join == pc else None

    return builder.emit(cast("Instruction", meet))


def copies(pairs: Sequence[tuple[int, int]]) -> Instruction:
    """Registers copied at once, `(to, from)`."""
    if len(pairs) == 1:
        ((to, source),) = pairs

        def copy_one(frame: Any) -> None:
            frame.regs[to] = frame.regs[source]

        return copy_one

    def copy(frame: Any) -> None:
        regs = frame.regs
        values = [regs[source] for _, source in pairs]
        for (to, _), value in zip(pairs, values, strict=True):
            regs[to] = value

    return copy


def lower_loop(
    builder: Builder,
    block: Block,
    lower: Bound,
    upper: Bound,
    step: Bound,
    initial: Sequence[SSAValue],
    results: Sequence[SSAValue],
    yielded: Sequence[SSAValue],
) -> None:
    """A counted loop with carried values."""
    counter = builder.slot(block.args[0])
    carried = [builder.slot(argument) for argument in block.args[1:]]
    limit, stride = builder.fresh(), builder.fresh()
    if carried:
        builder.emit(copies([(to, builder.slot(value)) for to, value in zip(carried, initial, strict=True)]))
    start_pc = builder.emit(_placeholder)
    builder.enter()
    for slot in (counter, limit, stride, *carried):
        builder.note(slot)
    op = builder.op
    if op is not None:
        builder.take_turns(op, ending=False)
    builder.block(block)
    builder.op = op
    if op is not None:
        builder.take_turns(op, ending=True)
    if carried:
        builder.emit(copies([(to, builder.slot(value)) for to, value in zip(carried, yielded, strict=True)]))
    back_pc = builder.here()
    first = start_pc + 1

    def back(frame: Any) -> Any:
        if frame.join == back_pc:
            return ARRIVED
        regs = frame.regs
        value = regs[counter] + regs[stride]
        if value < regs[limit]:
            regs[counter] = value
            return first
        return None

    builder.emit(back)
    builder.leave(back_pc, carried)
    done = builder.here()

    def start(frame: Any) -> Any:
        regs = frame.regs
        low, high, by = one_number(lower(regs)), one_number(upper(regs)), one_number(step(regs))
        if by <= 0:
            raise Fault(
                "endless-loop",
                f"the loop from {low} to {high} steps by {by} and would never end",
                "give the loop a positive step",
            )
        regs[counter], regs[limit], regs[stride] = low, high, by
        return None if low < high else done

    builder.patch(start_pc, start)
    if results:
        builder.emit(copies([(builder.slot(to), source) for to, source in zip(results, carried, strict=True)]))


def _placeholder(_: Any) -> Any:
    raise AssertionError("an instruction was never filled in")


def from_register(builder: Builder, value: SSAValue) -> Bound:
    """The content of a register."""
    slot = builder.slot(value)
    return lambda regs: regs[slot]


def constant(number: int) -> Bound:
    """A number."""
    return lambda _: number


def lower_scf_for(op: Operation, builder: Builder) -> None:
    """scf.for."""
    assert isinstance(op, scf.ForOp)
    block = op.body.block
    last = block.last_op
    yielded = last.operands if last is not None and last.name == "scf.yield" else ()
    at_once = strips.shortcut(op, builder) or sweeps.shortcut(op, builder)
    abreast = builder.machine.trips_abreast(op, builder) if at_once is None else None
    lower_loop(
        builder,
        block,
        from_register(builder, op.lb),
        from_register(builder, op.ub),
        from_register(builder, op.step),
        op.iter_args,
        op.results,
        tuple(yielded),
    )
    if at_once is not None:
        at_once(builder.here())
    if abreast is not None:
        abreast()


def bound_from_map(builder: Builder, affine_map: AffineMap, operands: Sequence[SSAValue], *, lowest: bool) -> Bound:
    """An affine bound: the smallest (upper bounds) or largest (lower bounds) of the map's results."""
    evaluate = compile_map(affine_map)
    slots = [builder.slot(operand) for operand in operands]
    choose = min if lowest else max

    def bound(regs: list[Any]) -> Any:
        values = [one_number(regs[slot]) for slot in slots]
        return choose(one_number(each(values)) for each in evaluate)

    return bound


def lower_affine_for(op: Operation, builder: Builder) -> None:
    """affine.for."""
    assert isinstance(op, affine.ForOp)
    block = op.body.block
    last = block.last_op
    yielded = tuple(last.operands) if last is not None and last.name == "affine.yield" else ()
    step = cast("IntegerAttr[Any]", op.step).value.data
    lower_loop(
        builder,
        block,
        bound_from_map(builder, op.lowerBoundMap.data, op.lowerBoundOperands, lowest=False),
        bound_from_map(builder, op.upperBoundMap.data, op.upperBoundOperands, lowest=True),
        constant(step),
        op.inits,
        op.results,
        yielded,
    )


def lower_branches(
    builder: Builder,
    condition: Bound,
    then: Region,
    otherwise: Region | None,
    results: Sequence[SSAValue],
) -> None:
    """Two ways that meet again; `otherwise` may be missing or empty."""
    merged = [builder.slot(result) for result in results]
    test_pc = builder.emit(_placeholder)
    yes = _branch(builder, then, merged)
    jump_pc = builder.emit(_placeholder)
    no: tuple[int, int] | None = None
    if (
        otherwise is not None
        and otherwise.blocks
        and (otherwise.block.first_op is not otherwise.block.last_op or results)
    ):
        no = _branch(builder, otherwise, merged)
    meet_at = meeting_point(builder)
    for way in (yes, no):
        if way is not None:
            builder.code.regions[way[1]].end = meet_at

    def jump(_: Any) -> int:
        return meet_at

    builder.patch(jump_pc, jump)
    machine = builder.machine
    aside = transfer_aside(builder, yes, meet_at) if no is None and not merged else None
    else_pc = no[0] if no is not None else meet_at
    else_way = no if no is not None else (meet_at, -1)

    known: dict[Any, tuple[tuple[Lanes, ...], tuple[Lanes, ...]]] = {}

    def test(frame: Any) -> Any:
        value = condition(frame.regs)
        if isinstance(value, np.ndarray):
            lanes = cast("Array", value)
            key = (lanes.tobytes(), lanes.shape, frame.gx, frame.gy)
            ways = known.get(key)
            if ways is None:
                mask = np.broadcast_to(lanes.astype(np.bool_), (frame.gx, frame.gy))
                ways = known[key] = (rectangles(mask), rectangles(~mask))
            if not ways[1]:
                return None
            if ways[0]:
                if aside is not None and aside(frame, ways[0]):
                    return meet_at
                machine.scheduler.branch(cast("Task", frame), ways, (yes, else_way), meet_at)
                return machine.parted
            return else_pc
        return None if value else else_pc

    builder.patch(test_pc, test)


def transfer_aside(
    builder: Builder, way: tuple[int, int], meet_at: int
) -> Callable[[Any, tuple[Lanes, ...]], bool] | None:
    """How a region of one channel transfer in a herd is executed without parting the lanes; None for other regions.

    The transfer runs for a rectangle of lanes while the task stands still. False says that it did not happen, since it
    has to wait or a fault is near: then the lanes part, and the transfer is tried again by a task of its own.
    """
    pc, region = way
    op = builder.code.ops[pc] if pc + 2 == meet_at else None
    if builder.soft or not isinstance(op, ChannelGetOp | ChannelPutOp) or op.results:
        return None
    instruction = builder.code.instructions[pc]
    memref = builder.slot(op.memref)
    used = sorted(builder.code.regions[region].slots)
    cut: dict[Pending, tuple[list[Any], tuple[Lanes, ...], Task]] = {}

    def execute(frame: Any, lanes: tuple[Lanes, ...]) -> bool:
        task = cast("Task", frame)
        if len(lanes) != 1 or task.pending or task.regs[memref].buffer.freed or task.regs[memref].buffer.missing:
            return False
        values = [task.regs[slot] for slot in used]
        # Mostly the same registers time after time: cut them once for each herd that runs.
        known = cut.get(task.instance)
        if known is None or known[1] is not lanes or any(map(is_not, values, known[0])):
            if len(cut) >= _HERDS_KEPT:
                cut.clear()
            known = cut[task.instance] = (values, lanes, part(task, lanes[0], region))
        child = known[2]
        child.pc, child.clock, child.order = pc, task.clock, task.order
        try:
            if instruction(child) is not None:
                return False
        except (Fault, LanesDiffer, UnwrittenRead):
            return False
        task.clock = max(task.clock, child.clock)
        return True

    return execute


def _branch(builder: Builder, body: Region, merged: list[int]) -> tuple[int, int]:
    region = builder.enter()
    start = builder.here()
    op = builder.op
    builder.block(body.block)
    builder.op = op
    last = body.block.last_op
    if merged and last is not None:
        builder.emit(copies([(to, builder.slot(value)) for to, value in zip(merged, last.operands, strict=True)]))
    builder.leave(-1, merged)
    return start, region


def lower_scf_if(op: Operation, builder: Builder) -> None:
    """scf.if."""
    assert isinstance(op, scf.IfOp)
    lower_branches(builder, from_register(builder, op.cond), op.true_region, op.false_region, op.results)


def lower_affine_if(op: Operation, builder: Builder) -> None:
    """affine.if."""
    condition = op.properties.get("condition") or op.attributes.get("condition")
    contains = compile_set(cast("Any", condition).data)
    slots = [builder.slot(operand) for operand in op.operands]
    then, otherwise = op.regions[0], op.regions[1]
    last: list[Any] = [None, None]

    def holds(regs: list[Any]) -> Any:
        # Mostly tile ids, which stay the same arrays for a whole herd: ask once.
        values = [regs[slot] for slot in slots]
        before = last[0]
        if before is not None and all(a is b for a, b in zip(values, before, strict=True)):
            return last[1]
        last[0], last[1] = values, contains(values)
        return last[1]

    lower_branches(builder, holds, then, otherwise, op.results)


def lower_while(op: Operation, builder: Builder) -> None:
    """scf.while: `before` decides, `after` goes round. Lanes that leave at different times meet behind, not inside."""
    assert isinstance(op, scf.WhileOp)
    before, after = op.before_region.block, op.after_region.block
    carried = [builder.slot(argument) for argument in before.args]
    if carried:
        builder.emit(copies([(to, builder.slot(v)) for to, v in zip(carried, op.arguments, strict=True)]))
    first = builder.here()
    builder.block(before)
    last = before.last_op
    assert last is not None, "the reader refuses a scf.while without scf.condition"
    decided, passed = builder.slot(last.operands[0]), last.operands[1:]
    given = [(builder.slot(to), builder.slot(v)) for to, v in zip(after.args, passed, strict=True)]
    if given:
        builder.emit(copies(given))
    test_pc = builder.emit(_placeholder)
    builder.block(after)
    closing = after.last_op
    if carried and closing is not None:
        builder.emit(copies([(to, builder.slot(v)) for to, v in zip(carried, closing.operands, strict=True)]))

    def back(_: Any) -> int:
        return first

    builder.emit(back)
    done = builder.here()

    def test(frame: Any) -> Any:
        return None if one_number(frame.regs[decided]) else done

    builder.patch(test_pc, test)
    if op.results:
        builder.emit(copies([(builder.slot(r), source) for r, (source, _) in zip(op.results, given, strict=True)]))


def lower_points(
    builder: Builder,
    block: Block,
    lowers: Sequence[Bound],
    uppers: Sequence[Bound],
    steps: Sequence[Bound],
    before: Callable[[], None] | None = None,
    after: Callable[[], None] | None = None,
) -> None:
    """The body once for each point of a box, the last dimension fastest."""
    if before is not None:
        before()
    names = [builder.slot(argument) for argument in block.args[: len(lowers)]]
    points, position = builder.fresh(), builder.fresh()
    start_pc = builder.emit(_placeholder)
    builder.enter()
    for slot in (points, position, *names):
        builder.note(slot)
    op = builder.op
    builder.block(block)
    builder.op = op
    if after is not None:
        after()
    back_pc = builder.here()
    first = start_pc + 1

    def place(regs: list[Any]) -> bool:
        box, at = regs[points], regs[position]
        for slot, (low, count, by) in zip(reversed(names), reversed(box), strict=True):
            regs[slot] = low + (at % count) * by
            at //= count
        return at == 0

    def back(frame: Any) -> Any:
        if frame.join == back_pc:
            return ARRIVED
        regs = frame.regs
        regs[position] += 1
        return first if place(regs) else None

    builder.emit(back)
    builder.leave(back_pc, [])
    done = builder.here()

    def start(frame: Any) -> Any:
        regs = frame.regs
        box: list[tuple[int, int, int]] = []
        for low, high, by in zip(lowers, uppers, steps, strict=True):
            a, b, c = one_number(low(regs)), one_number(high(regs)), one_number(by(regs))
            if c <= 0:
                raise Fault("endless-loop", f"a loop from {a} to {b} steps by {c}", "give it a positive step")
            box.append((a, max(0, -(-(b - a) // c)), c))
        if any(count == 0 for _, count, _ in box):
            return done
        regs[points], regs[position] = box, 0
        place(regs)
        return None

    builder.patch(start_pc, start)


def lower_scf_parallel(op: Operation, builder: Builder) -> None:
    """scf.parallel with scf.reduce: point after point, reductions in that order."""
    assert isinstance(op, scf.ParallelOp)
    block = op.body.block
    totals = [builder.slot(result) for result in op.results]
    last = block.last_op

    def before() -> None:
        if totals:
            builder.emit(copies([(to, builder.slot(v)) for to, v in zip(totals, op.initVals, strict=True)]))

    def after() -> None:
        if not totals or last is None:
            return
        for total, operand, region in zip(totals, last.operands, last.regions, strict=True):
            left, right = (builder.slot(argument) for argument in region.block.args)
            builder.emit(copies([(left, total), (right, builder.slot(operand))]))
            builder.block(region.block)
            closing = region.block.last_op
            assert closing is not None, "the reader refuses an empty reduction"
            builder.emit(copies([(total, builder.slot(closing.operands[0]))]))

    lower_points(
        builder,
        block,
        [from_register(builder, v) for v in op.lowerBound],
        [from_register(builder, v) for v in op.upperBound],
        [from_register(builder, v) for v in op.step],
        before,
        after,
    )


def lower_forall(op: Operation, builder: Builder) -> None:
    """scf.forall without shared results."""
    if op.results:
        raise Fault(
            "unsupported-op",
            "scf.forall that returns tensors has no meaning on memrefs",
            "bufferize the program first, or use scf.for",
        )
    dynamic = iter(op.operands)

    def bounds(name: str) -> list[Bound]:
        attribute = op.properties.get(name) or op.attributes.get(name)
        values = cast("DenseArrayBase[Any]", attribute).get_values()
        return [from_register(builder, next(dynamic)) if v < -(1 << 62) else constant(int(v)) for v in values]

    lower_points(
        builder, op.regions[0].block, bounds("staticLowerBound"), bounds("staticUpperBound"), bounds("staticStep")
    )


def lower_affine_parallel(op: Operation, builder: Builder) -> None:
    """affine.parallel without reductions."""
    if op.results:
        raise Fault("unsupported-op", "affine.parallel with reductions is not executed", "use scf.for with iter_args")

    def attribute(name: str) -> Any:
        return op.properties.get(name) or op.attributes.get(name)

    lower_map = cast("AffineMapAttr", attribute("lowerBoundsMap")).data
    upper_map = cast("AffineMapAttr", attribute("upperBoundsMap")).data
    steps = [cast("IntegerAttr[Any]", step).value.data for step in attribute("steps").data]
    operands = list(op.operands)
    split = lower_map.num_dims + lower_map.num_symbols

    def bounds(affine_map: AffineMap, values: Sequence[SSAValue]) -> list[Bound]:
        slots = [builder.slot(value) for value in values]
        return [
            lambda regs, each=each: each([one_number(regs[slot]) for slot in slots]) for each in compile_map(affine_map)
        ]

    lower_points(
        builder,
        op.regions[0].block,
        bounds(lower_map, operands[:split]),
        bounds(upper_map, operands[split:]),
        [constant(step) for step in steps],
    )


def lower_call(op: Operation, builder: Builder) -> None:
    """func.call: an external kernel, or the body of a function put in its place."""
    assert isinstance(op, func.CallOp)
    symbol = op.callee.string_value()
    machine = builder.machine
    function = machine.functions.get(symbol)
    if function is None:
        instruction = machine.external_call(op, symbol, builder)
        builder.emit(instruction, machine.touches(op, builder))
        return
    if symbol in builder.inlined:
        raise Fault(
            "recursion",
            f"@{symbol} calls itself: {' → '.join((*builder.inlined, symbol))}",
            "cores have no call stack to speak of: use a loop",
        )
    body = function.body.block
    outer_slots, outer_inlined = builder.slots, builder.inlined
    arguments = [builder.slot(value) for value in op.arguments]
    results = [builder.slot(result) for result in op.results]
    builder.slots, builder.inlined = {}, (*outer_inlined, symbol)
    if arguments:
        builder.emit(copies([(builder.slot(a), v) for a, v in zip(body.args, arguments, strict=True)]))
    builder.block(body)
    last = body.last_op
    if results and last is not None:
        builder.emit(copies([(to, builder.slot(v)) for to, v in zip(results, last.operands, strict=True)]))
    builder.slots, builder.inlined = outer_slots, outer_inlined


STRUCTURED: dict[str, Structured] = {
    "scf.for": lower_scf_for,
    "affine.for": lower_affine_for,
    "scf.if": lower_scf_if,
    "affine.if": lower_affine_if,
    "scf.while": lower_while,
    "scf.parallel": lower_scf_parallel,
    "scf.forall": lower_forall,
    "affine.parallel": lower_affine_parallel,
    "func.call": lower_call,
}
