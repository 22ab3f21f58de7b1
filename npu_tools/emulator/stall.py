"""When every task waits: what gives way, and if nothing does, who waits for whom.

In this order of preference: lanes of a group that could go on part from those that cannot; lanes that have arrived where lanes meet
go on alone; launches, segments and functions go past what they only wait for because it stands earlier in the text; chains of L2 transfers go round again;
channels hold one more transfer; an access goes ahead of an operation that might touch the same buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npu_tools.emulator.lanes import rectangles
from npu_tools.emulator.tasks import Fork, Task, detached, widen
from npu_tools.emulator.types import Fault

if TYPE_CHECKING:
    from npu_tools.emulator.machine import Machine

SHOWN = 8
"""Waiting tasks named in a message."""


def give_way(machine: Machine) -> bool:
    """Let something go on; False when nothing can."""
    waiting = _by_depth(machine)
    return (
        _part_lanes(machine, waiting)
        or _go_without_the_others(machine, waiting)
        or _pass_by(machine, waiting)
        or machine.relays.go_round()
        or _hold_more(machine, waiting)
        or _ignore_hazard(machine, waiting)
    )


def _by_depth(machine: Machine) -> list[Task]:
    """Waiting tasks, outermost and oldest first; chains that go round do not count."""
    tasks = [task for task in machine.scheduler.waiting.values() if not task.relay]
    return sorted(tasks, key=lambda task: (task.depth, task.order))


def _part_lanes(machine: Machine, waiting: list[Task]) -> bool:
    parted = False
    for task in waiting:
        wait = task.wait
        if wait is None or wait.ready is None or task.gx * task.gy == 1:
            continue
        machine.scheduler.waiting.pop(id(task), None)
        task.wait = None
        machine.scheduler.split(task, [*rectangles(wait.ready), *rectangles(~wait.ready)])
        parted = True
    return parted


def _go_without_the_others(machine: Machine, waiting: list[Task]) -> bool:
    seen: list[Fork] = []
    for task in waiting:
        fork = task.fork
        while fork is not None:
            if fork not in seen and (fork.arrived or fork.idle):
                seen.append(fork)
                released = widen(fork)
                if released:
                    for child in released:
                        machine.scheduler.ready.append(child)
                    return True
            fork = fork.parent.fork
    return False


def _pass_by(machine: Machine, waiting: list[Task]) -> bool:
    """Release the outermost, oldest soft wait."""
    for task in waiting:
        wait = task.wait
        if wait is None or not wait.soft or task.beside:
            continue
        scheduler = machine.scheduler
        scheduler.waiting.pop(id(task), None)
        task.wait = None
        if wait.kind == "body":
            task.pending.extend(pending for pending in wait.bodies if not pending.done)
        else:
            op = task.code.ops[task.pc]
            what = machine.describe(op) if op is not None else "an operation"
            child = detached(task, task.pc, task.pc + 1, what, op)
            child.instance.touches = tuple(
                (task.regs[slot].buffer, writes) for slot, writes in task.code.touches[task.pc]
            )
            for buffer, _ in child.instance.touches:
                buffer.users += 1
            task.pending.append(child.instance)
            scheduler.start(child)
        task.pc += 1
        scheduler.ready.append(task)
        return True
    return False


def _hold_more(machine: Machine, waiting: list[Task]) -> bool:
    widened = False
    for task in waiting:
        wait = task.wait
        if wait is None or wait.kind != "put":
            continue
        for stream in wait.streams:
            if stream.full:
                stream.depth = len(stream.chunks) + 1
                widened = True
        machine.noted_depth(task)
        machine.scheduler.resume(task)
        if widened:
            return True
    return widened


def _ignore_hazard(machine: Machine, waiting: list[Task]) -> bool:
    for task in waiting:
        if task.wait is not None and task.wait.kind == "hazard":
            task.unsafe_pc = task.pc
            machine.scheduler.resume(task)
            return True
    return False


def deadlock(machine: Machine) -> tuple[Fault, Task]:
    """Why nothing can go on: a fault, and the task to blame it on."""
    waiting = _by_depth(machine)
    roots = [task for task in waiting if task.wait is not None and task.wait.kind in ("get", "put", "hazard")]
    shown = roots or waiting
    lines: list[str] = []
    for task in shown[:SHOWN]:
        assert task.wait is not None, "only waiting tasks are here"
        op = task.code.ops[task.pc]
        place = machine.place(op) if op is not None else None
        line = f" (line {place.line})" if place is not None else ""
        name = op.name if op is not None else "its end"
        lines.append(f"{task.label} stands at {name}{line} and waits for {task.wait.detail()}")
    if len(shown) > SHOWN:
        lines.append(f"{len(shown) - SHOWN} more wait")
    return (
        Fault(
            "deadlock",
            "deadlock: nothing can go on. " + "; ".join(lines) + _elsewhere(machine, shown),
            _remedy(machine, shown),
        ),
        shown[0],
    )


def _elsewhere(machine: Machine, tasks: list[Task]) -> str:
    """Elements that lie untaken in the channels that are waited for."""
    names = {stream.channel for task in tasks if task.wait is not None for stream in task.wait.streams}
    found = [
        f"@{name}{list(stream.index)} holds {stream.available} elements nobody takes"
        for name in sorted(names)
        for stream in machine.channels[name].streams.values()
        if stream.available
    ]
    return ". " + "; ".join(found[:SHOWN]) if found else ""


def _remedy(machine: Machine, tasks: list[Task]) -> str:
    first = tasks[0]
    wait = first.wait
    if wait is None or not wait.streams:
        return "follow the waits in the message: one of them needs an op that never runs"
    stream = wait.streams[0]
    channel = machine.channels[stream.channel]
    if wait.kind == "get":
        if not any(each.puts for each in channel.streams.values()):
            return f"add an air.channel.put on @{stream.channel}, or remove this get"
        missing = wait.needed - stream.available
        return (
            f"put {missing} more elements on @{stream.channel}{list(stream.index)}: compare how often the puts and gets "
            "run (loop bounds, ids in indices) and how many elements each moves"
        )
    return (
        f"take from @{stream.channel}{list(stream.index)} as often as it is filled: {stream.puts} puts meet "
        f"{stream.gets} gets"
    )
