"""Launches, segments, herds and asynchronous operations: what starts when, and who waits for whom.

An op without a token is waited for where it stands, in launches and segments only softly: if nothing else can go on,
the text behind it runs too, except for what touches the same buffers. An op with a token starts when its dependencies
are done and the text goes on at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice, product
from typing import Any, cast

import numpy as np
from xdsl.ir import Operation

from npu_tools.air.dialect import (
    AirOp,
    AsyncTokenType,
    HerdOp,
    Hierarchy,
    LaunchOp,
    RankOp,
)
from npu_tools.emulator.code import Builder, Code, Structured, end_task
from npu_tools.emulator.control import copies, one_number
from npu_tools.emulator.lanes import Lanes
from npu_tools.emulator.memory import MemRef
from npu_tools.emulator.movement import memory_op
from npu_tools.emulator.repeats import Repeated
from npu_tools.emulator.tasks import Pending, Task, Token, Wait, detached
from npu_tools.emulator.types import Fault, Instruction

MAX_TILES = 1 << 16
"""More tiles than any device has: a herd or segment this large is a mistake in the sizes."""


def tokens_of(regs: list[Any], slots: Sequence[int]) -> Token:
    """What is still under way among the tokens in these registers."""
    found: list[Pending] = []
    for slot in slots:
        for pending in cast("Token", regs[slot] or ()):
            if not pending.done:
                found.append(pending)
    return tuple(found)


def wait_for(slots: Sequence[int], *, soft: bool = False) -> Instruction:
    """Wait until these tokens are done."""

    def wait(frame: Any) -> Any:
        left = tokens_of(frame.regs, slots)
        if not left:
            task = cast("Task", frame)
            for slot in slots:
                for pending in cast("Token", frame.regs[slot] or ()):
                    task.clock = max(task.clock, pending.clock)
            return None
        names = ", ".join(pending.what for pending in left)
        return Wait("token", [pending.waiters for pending in left], lambda: f"the end of {names}", soft=soft)

    return wait


def token_slot(op: Operation, builder: Builder) -> int | None:
    """The register of the token an op returns, None where it is synchronous."""
    token = next((result for result in op.results if isinstance(result.type, AsyncTokenType)), None)
    return None if token is None else builder.slot(token)


def dependency_slots(op: Operation, builder: Builder) -> list[int]:
    """The registers of the tokens an op waits for."""
    return [builder.slot(value) for value in op.operands if isinstance(value.type, AsyncTokenType)]


def detach(task: Task, machine: Any, code: Code, what: str, op: Operation) -> Pending:
    """Execute code on its own from here, with the registers as they are."""
    child = detached(task, 0, len(code.instructions), what, op)
    child.code = code
    task.children.append(child.instance)
    machine.scheduler.start(child)
    return child.instance


def small_code(builder: Builder, op: Operation, instructions: list[Instruction]) -> Code:
    """A stretch of instructions of one op as code of its own."""
    count = len(instructions)
    return Code(
        builder.code.name,
        [*instructions, end_task],
        [*([op] * count), None],
        [()] * (count + 1),
        [0] * (count + 1),
        builder.code.regions,
    )


def lower_movement(op: Operation, builder: Builder) -> None:
    """DMA, put and get, with and without tokens."""
    machine = builder.machine
    instruction = memory_op(op, builder)
    token, dependencies = token_slot(op, builder), dependency_slots(op, builder)
    touches = machine.touches(op, builder)
    if token is None:
        if dependencies:
            builder.emit(wait_for(dependencies))
        builder.emit(instruction, touches)
        return
    code = small_code(builder, op, [*([wait_for(dependencies)] if dependencies else []), instruction])
    what = machine.describe(op)

    def start(frame: Any) -> Any:
        task = cast("Task", frame)
        if not task.soft:
            signal = instruction(frame)
            if signal is None:
                task.regs[token] = ()
            return signal
        if not tokens_of(task.regs, dependencies):
            signal = instruction(frame)
            if signal is None:
                task.regs[token] = ()
                return None
        task.regs[token] = (detach(task, machine, code, what, op),)
        return None

    builder.emit(start)


def lower_hierarchy(op: Operation, builder: Builder) -> None:
    """launch, segment, herd (and rank, of which there is one)."""
    assert isinstance(op, Hierarchy)
    machine = builder.machine
    body = machine.body_code(op)
    sizes = [builder.slot(value) for value in op.sizes]
    operands = [builder.slot(value) for value in op.kernel_operands]
    token, dependencies = token_slot(op, builder), dependency_slots(op, builder)
    what = machine.describe(op)
    is_herd, is_launch = isinstance(op, HerdOp), isinstance(op, LaunchOp | RankOp)
    holder = builder.fresh()
    side_by_side = machine.iterations_abreast(op)
    repeated = machine.repeated(op, body) if side_by_side[0] == 1 else None
    touches = machine.touches(op, builder)

    def spawn(frame: Any) -> None:
        task = cast("Task", frame)
        extents = [one_number(task.regs[slot]) for slot in sizes]
        if min(extents, default=1) < 0 or math.prod(extents) > machine.max_points(op):
            raise Fault(
                "bad-size", f"{what} has sizes {extents}", "use sizes from 1 to what the device and the loop need"
            )
        values = [task.regs[slot] for slot in operands]
        pending = Pending(what, op)
        pending.touches = tuple(
            (task.regs[slot].buffer, writes) for slot, writes in touches if isinstance(task.regs[slot], MemRef)
        )
        for buffer, _ in pending.touches:
            buffer.users += 1
        if is_herd:
            start_herd(machine, task, body, pending, extents, values)
        elif is_launch:
            start_launch(machine, task, body, pending, extents, values, side_by_side, repeated)
        else:
            start_segment(machine, task, body, pending, extents, values)
        task.regs[holder] = (pending,)
        if token is not None:
            task.regs[token] = (pending,)
            task.children.append(pending)

    if token is not None:
        if not dependencies:
            builder.emit(spawn, touches)
            return
        # The body starts later, from a task of its own: it waits, starts the body and stays until it is through.
        code = small_code(builder, op, [wait_for(dependencies), spawn, wait_for([holder])])

        def start(frame: Any) -> None:
            task = cast("Task", frame)
            if tokens_of(task.regs, dependencies):
                task.regs[token] = (detach(task, machine, code, what, op),)
            else:
                spawn(frame)

        builder.emit(start, touches)
        return
    if dependencies:
        builder.emit(wait_for(dependencies))
    builder.emit(spawn, touches)

    def finished(frame: Any) -> Any:
        (pending,) = cast("Token", frame.regs[holder])
        if pending.done:
            frame.clock = max(frame.clock, pending.clock)
            return None
        return Wait("body", [pending.waiters], lambda: f"the end of {what}", soft=not is_launch, bodies=(pending,))

    builder.emit(finished)


def start_herd(machine: Any, task: Task, code: Code, pending: Pending, extents: list[int], values: list[Any]) -> None:
    """All tiles as one group, or each as its own."""
    gx, gy = (*extents, 1, 1)[:2] if len(extents) < 3 else (extents[0], math.prod(extents[1:]))
    pending.left = gx * gy * task.gx
    if gx * gy == 0:
        machine.scheduler.finish(pending)
        return
    if task.gx > 1:
        given = [on_tiles(value, task.gx, gx * gy) for value in values]
        machine.scheduler.start(row_task(task, code, pending, extents, given))
        return
    given = [on_tiles(value, gx, gy) for value in values]
    if machine.grouping == "lifted":
        machine.scheduler.start(herd_task(machine, task, code, pending, extents, given, Lanes(0, gx, 0, gy)))
        return
    for x, y in product(range(gx), range(gy)):
        tile = Lanes(x, 1, y, 1)
        own = [value.lanes_cut(tile) if isinstance(value, MemRef) else value for value in given]
        machine.scheduler.start(herd_task(machine, task, code, pending, extents, own, tile))


def on_tiles(value: Any, gx: int, gy: int) -> Any:
    """A value from around the herd as its tiles see it."""
    if not isinstance(value, MemRef):
        return value
    buffer = value.buffer.for_herd((gx, gy))
    return MemRef(buffer, value.shape, value.strides, value.offset, value.dx, 0, value.x0, 0, gx, gy)


def row_task(task: Task, code: Code, pending: Pending, extents: list[int], given: list[Any]) -> Task:
    """The tiles of a herd one tile high, along the second axis, for iterations along the first."""
    regs = code.registers()
    count = math.prod(extents)
    tiles = np.arange(count, dtype=np.int64).reshape(1, count)
    ids = [tiles if extent == count and count > 1 else 0 for extent in extents]
    for slot, value in zip(code.arguments, [*ids, *extents, *given], strict=True):
        regs[slot] = value
    lanes = Lanes(0, task.gx, 0, count)
    return Task(code, regs, task.gx, count, pending, task.depth + 1, task.segment, at=lanes, clock=task.clock)


def herd_task(
    machine: Any, task: Task, code: Code, pending: Pending, extents: list[int], given: list[Any], tiles: Lanes
) -> Task:
    """A group of tiles at the start of the body."""
    regs = code.registers()
    ids: list[Any] = []
    for axis, (start, count) in enumerate(((tiles.x0, tiles.nx), (tiles.y0, tiles.ny))[: len(extents)]):
        numbers = np.arange(start, start + count, dtype=np.int64)
        ids.append(start if count == 1 else numbers.reshape((count, 1) if axis == 0 else (1, count)))
    for slot, value in zip(code.arguments, [*ids, *extents, *given], strict=True):
        regs[slot] = value
    return Task(code, regs, tiles.nx, tiles.ny, pending, task.depth + 1, task.segment, at=tiles, clock=task.clock)


def start_segment(
    machine: Any, task: Task, code: Code, pending: Pending, extents: list[int], values: list[Any]
) -> None:
    """Every unrolled instance at once."""
    points = list(product(*(range(extent) for extent in extents)))
    pending.left = len(points) * task.gx
    if not points:
        machine.scheduler.finish(pending)
    for point in points:
        started = plain_task(task, code, pending, [*point, *extents, *values], lanes=task.gx)
        started.segment = point
        machine.scheduler.start(started)


def start_launch(
    machine: Any,
    task: Task,
    code: Code,
    pending: Pending,
    extents: list[int],
    values: list[Any],
    side_by_side: tuple[int, int],
    repeated: Repeated | None,
) -> None:
    """One iteration after the other, the last dimension fastest; or some at once, or all by steps, the first excepted."""
    points = product(*(range(extent) for extent in extents))
    pending.left = 1
    most, axis = side_by_side

    first = machine.counters.launch_iterations
    start = (0,) * len(extents)
    plan = repeated if repeated is not None and repeated.often(extents) else None
    plan = plan if plan is not None and plan.begin(values, start, pending) else None

    def iterate() -> None:
        begun = machine.counters.launch_iterations > first
        if plan is not None and (begun or plan.begins_with_steps) and plan.learnt():
            stuck = plan.repeat(points, [*extents, *values])
            together = [] if stuck is None else [stuck]
        else:
            together = list(islice(points, most if begun else 1))
        if not together:
            machine.scheduler.finish(pending)
            return
        if plan is not None and not plan.goes_on(together[0]):
            plan.begin(values, together[0], pending)
        count = len(together)
        machine.counters.launch_iterations += count
        point: list[Any] = list(together[0])
        name = f"{pending.what} iteration {together[0]}" if point else pending.what
        iteration = Pending(name, pending.op, left=count)
        iteration.on_done.append(lambda: followed(iteration))
        given = values
        if count > 1:
            point[axis] = np.array([each[axis] for each in together], np.int64).reshape(count, 1)
            given = [on_tiles(value, count, 1) for value in values]
        machine.scheduler.start(
            plain_task(task, code, iteration, [*point, *extents, *given], pending.clock, lanes=count)
        )

    def followed(iteration: Pending) -> None:
        pending.clock = max(pending.clock, iteration.clock)
        iterate()

    iterate()


def plain_task(
    task: Task, code: Code, pending: Pending, arguments: list[Any], clock: float = 0.0, lanes: int = 1
) -> Task:
    """A launch or segment body with its arguments, for `lanes` iterations."""
    regs = code.registers()
    for slot, value in zip(code.arguments, arguments, strict=True):
        regs[slot] = value
    at = Lanes(0, lanes, 0, 1)
    return Task(
        code, regs, lanes, 1, pending, task.depth + 1, task.segment, soft=True, at=at, clock=max(task.clock, clock)
    )


_HARMLESS = ("memref.alloc", "affine.apply", "arith.", "memref.subview", "memref.cast", "index.", "memref.get_global")


def lower_execute(op: Operation, builder: Builder) -> None:
    """air.execute: its region when the dependencies are done; without results it waits beside the text."""
    machine = builder.machine
    token, dependencies = token_slot(op, builder), dependency_slots(op, builder)
    results = [builder.slot(result) for result in op.results if not isinstance(result.type, AsyncTokenType)]
    body = op.regions[0].block
    last = body.last_op
    what = machine.describe(op)
    harmless = all(inner.name.startswith(_HARMLESS) for inner in body.ops if inner is not last)
    place = builder.emit(end_task)
    start_pc = builder.here()
    builder.block(body)
    builder.op = op
    yielded = list(last.operands) if last is not None else []
    if results:
        builder.emit(copies([(to, builder.slot(v)) for to, v in zip(results, yielded, strict=True)]))
    stop_pc = builder.here()

    def done(frame: Any) -> None:
        if token is not None:
            frame.regs[token] = ()

    builder.emit(done)
    after = builder.here()

    def start(frame: Any) -> Any:
        task = cast("Task", frame)
        left = tokens_of(task.regs, dependencies)
        if not left or harmless:
            return None
        if results or not task.soft or token is None:
            names = ", ".join(pending.what for pending in left)
            return Wait("token", [pending.waiters for pending in left], lambda: f"the end of {names}")
        child = detached(task, start_pc, stop_pc, what, op)
        child.code = builder.code.until(stop_pc, end_task)
        waiting = wait_for(dependencies)
        child.code.instructions[place] = waiting
        child.pc = place
        task.children.append(child.instance)
        machine.scheduler.start(child)
        task.regs[token] = (child.instance,)
        return after

    builder.patch(place, start)


def lower_wait_all(op: Operation, builder: Builder) -> None:
    """air.wait_all: one token for many, or a wait where it returns none."""
    token, dependencies = token_slot(op, builder), dependency_slots(op, builder)
    if token is None:
        builder.emit(wait_for(dependencies))
        return

    def gather(frame: Any) -> None:
        frame.regs[token] = tokens_of(frame.regs, dependencies)

    builder.emit(gather)


def lower_unsupported_air(op: Operation, builder: Builder) -> None:
    """AIR ops that name things outside the program."""
    assert isinstance(op, AirOp)
    raise Fault(
        "unsupported-op",
        f"{op.name} stands for something outside this program, which the emulator cannot execute",
        "replace it by ops or by a call of an external kernel",
    )


STRUCTURED: dict[str, Structured] = {
    "air.launch": lower_hierarchy,
    "air.segment": lower_hierarchy,
    "air.herd": lower_hierarchy,
    "air.rank": lower_hierarchy,
    "air.dma_memcpy_nd": lower_movement,
    "air.channel.put": lower_movement,
    "air.channel.get": lower_movement,
    "air.execute": lower_execute,
    "air.wait_all": lower_wait_all,
    "air.custom": lower_unsupported_air,
    "air.translate": lower_unsupported_air,
}
