"""The scheduler: runs tasks until all are through, or until nothing can go on.

Tasks are taken in turn. One that has to wait is put aside and looked at again when what it waits for has changed.
When every task waits, `stall.py` decides what gives way; if nothing does, that is a deadlock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from npu_tools.emulator.code import ARRIVED, END
from npu_tools.emulator.lanes import Lanes
from npu_tools.emulator.outside import UnwrittenRead
from npu_tools.emulator.tasks import Fork, Pending, Task, Wait, meet, part
from npu_tools.emulator.types import Fault, LanesDiffer

SLICE = 4096
"""Instructions a task executes before others have their turn and the limits are looked at."""


class Stopped(Exception):
    """The run was cancelled or went over a limit; `code` says which."""

    def __init__(self, code: str, message: str, remedy: str) -> None:
        self.code, self.remedy = code, remedy
        super().__init__(message)


@dataclass(slots=True)
class Limits:
    """When a run has to stop."""

    deadline: float | None = None
    timeout_s: float | None = None
    instructions: int | None = None
    cancelled: Callable[[], bool] | None = None
    progress: Callable[[int], None] | None = None


@dataclass(slots=True)
class Scheduler:
    """All tasks of a run. `on_fault` hears of faults with the task they happened in."""

    limits: Limits
    on_fault: Callable[[Fault, Task], None]
    on_unwritten: Callable[[UnwrittenRead, Task], None]
    ready: deque[Task] = field(default_factory=deque[Task])
    waiting: dict[int, Task] = field(default_factory=dict[int, Task])
    executed: int = 0
    started: int = 0
    current: Task | None = None

    def renew(self, limits: Limits) -> None:
        """Forget every task, for another run."""
        self.limits = limits
        self.ready.clear()
        self.waiting.clear()
        self.executed = self.started = 0
        self.current = None

    def start(self, task: Task) -> None:
        """Make a new task ready."""
        self.started += 1
        task.order = self.started
        self.ready.append(task)

    def wake(self, waiters: list[Any]) -> None:
        """What these tasks wait for may have changed."""
        for task in waiters:
            if task.wait is not None:
                self.resume(task)
        waiters.clear()

    def resume(self, task: Task) -> None:
        """Let a waiting task try again."""
        task.wait = None
        self.waiting.pop(id(task), None)
        self.ready.append(task)

    def run(self, stalled: Callable[[], bool]) -> None:
        """Run until nothing is left to do; `stalled` is asked whenever every task waits.

        Raises:
            Stopped: cancelled or over a limit.
            Fault: a task went wrong; `on_fault` has heard of it.
        """
        while True:
            while self.ready:
                self._turn(self.ready.popleft())
            if all(task.relay for task in self.waiting.values()):
                return
            self.check()
            if not stalled():
                return

    def check(self) -> None:
        """Look at the limits.

        Raises:
            Stopped: cancelled or over one.
        """
        limits = self.limits
        if limits.progress is not None:
            limits.progress(self.executed)
        if limits.cancelled is not None and limits.cancelled():
            raise Stopped("cancelled", f"the run was cancelled after {self.executed:,} instructions", "run it again")
        if limits.deadline is not None and time.monotonic() > limits.deadline:
            raise Stopped(
                "time-limit",
                f"the run took longer than its {limits.timeout_s:g} s; {self.executed:,} instructions were executed",
                "look for a loop that does not end, run a smaller shape, or allow more time (--timeout on the command line, timeout_s over MCP)",
            )
        if limits.instructions is not None and self.executed > limits.instructions:
            raise Stopped(
                "instruction-limit",
                f"the run executed {self.executed:,} instructions, over its limit of {limits.instructions:,}",
                "look for a loop that does not end, run a smaller shape, or raise max_instructions",
            )

    def _turn(self, task: Task) -> None:
        self.current = task
        code = task.code.instructions
        pc = task.pc
        step = pc
        done = 0
        result: Any = None
        try:
            if task.pending:
                result, pc = self._carefully(task)
            else:
                for done in range(SLICE):  # noqa: B007 - read behind the loop
                    step = pc
                    result = code[pc](task)
                    if result is None:
                        pc += 1
                    elif result.__class__ is int:
                        pc = result
                        result = None
                    else:
                        break
        except LanesDiffer:
            task.pc = step if not task.pending else task.pc
            self._single_lanes(task)
            return
        except UnwrittenRead as read:
            task.pc = step if not task.pending else task.pc
            self.on_unwritten(read, task)
            self.ready.appendleft(task)
            return
        except Fault as fault:
            task.pc = step if not task.pending else task.pc
            self.on_fault(fault, task)
            raise
        except Exception as error:
            task.pc = step if not task.pending else task.pc
            fault = Fault(
                "op-failed",
                f"the emulator could not execute this with the values at hand: {type(error).__name__}: {error}",
                "check shapes and element types of the operands; if they are right, this is a bug of the emulator",
            )
            self.on_fault(fault, task)
            raise fault from error
        self.executed += done + 1
        task.pc = pc
        if result is None:
            self.ready.append(task)
            self.check()
        else:
            self._signal(task, result)

    def _carefully(self, task: Task) -> tuple[Any, int]:
        """Execute while operations passed over are still under way: what touches their buffers has to wait."""
        code = task.code
        for _ in range(SLICE):
            pc = task.pc
            blocker = self._blocker(task, pc)
            if blocker is not None:
                return blocker, pc
            result = code.instructions[pc](task)
            if result is None:
                task.pc = pc + 1
            elif result.__class__ is int:
                task.pc = result
            else:
                return result, pc
            if not task.pending:
                break
        return None, task.pc

    def _blocker(self, task: Task, pc: int) -> Wait | None:
        task.pending = [pending for pending in task.pending if not pending.done]
        if task.unsafe_pc == pc:
            return None
        for slot, writes in task.code.touches[pc]:
            ref = task.regs[slot]
            if ref is None or not hasattr(ref, "buffer"):
                continue
            for pending in task.pending:
                for buffer, pending_writes in pending.touches:
                    if buffer is ref.buffer and (writes or pending_writes):
                        text = f"{pending.what}, which is still using {buffer.name}"
                        return Wait("hazard", [pending.waiters], text.__str__)
        return None

    def _signal(self, task: Task, signal: Any) -> None:
        if isinstance(signal, Wait):
            task.wait = signal
            self.waiting[id(task)] = task
            for queue in signal.queues:
                queue.append(task)
        elif signal is ARRIVED:
            self._arrive(task)
        elif signal is END:
            self._end(task)

    def _arrive(self, task: Task) -> None:
        fork = task.fork
        assert fork is not None, "a task without a fork has nowhere to meet"
        fork.running.remove(task)
        fork.arrived.append(task)
        if not fork.running:
            meet(fork)
            self.ready.append(fork.parent)

    def _end(self, task: Task) -> None:
        unfinished = [child for child in (*task.children, *task.pending) if not child.done]
        if unfinished:
            names = ", ".join(child.what for child in unfinished)
            self._signal(task, Wait("children", [child.waiters for child in unfinished], lambda: f"the end of {names}"))
            return
        instance = task.instance
        instance.left -= task.gx * task.gy
        instance.clock = max(instance.clock, task.clock)
        if instance.left <= 0:
            self.finish(instance)

    def finish(self, pending: Pending) -> None:
        """An instance is through: free what it made, and wake who waits for it."""
        pending.done = True
        for buffer in pending.buffers:
            if not buffer.freed:
                buffer.release()
        pending.buffers.clear()
        for buffer, _ in pending.touches:
            buffer.users -= 1
        for buffer in pending.to_free:
            if buffer.users <= 0 and not buffer.freed:
                buffer.release()
        for action in pending.on_done:
            action()
        self.wake(pending.waiters)

    def _single_lanes(self, task: Task) -> None:
        if task.gx * task.gy == 1:
            fault = Fault(
                "unsupported-op",
                "a single tile gives this op a value it cannot take",
                "give it values of the types the op names",
            )
            self.on_fault(fault, task)
            raise fault
        lanes = [Lanes(x, 1, y, 1) for x in range(task.gx) for y in range(task.gy)]
        self.split(task, lanes)

    def split(self, task: Task, lanes: list[Lanes]) -> None:
        """Let lanes go on separately from where the task stands, to meet at the end of the region."""
        code = task.code
        region = code.region_of[task.pc]
        fork = Fork(task, region, code.regions[region].end)
        for rectangle in lanes:
            child = part(task, rectangle, region)
            child.fork, child.join = fork, fork.meet_at
            fork.running.append(child)
            self.ready.append(child)

    def branch(
        self,
        task: Task,
        lanes: tuple[tuple[Lanes, ...], tuple[Lanes, ...]],
        ways: tuple[tuple[int, int], tuple[int, int]],
        meet_at: int,
    ) -> None:
        """Send lanes down two ways; a way is its first pc and its region, or (meet_at, -1) for none."""
        yes, no = ways
        fork = Fork(task, yes[1] if yes[1] >= 0 else no[1], meet_at)
        for rectangles_of, (pc, region) in zip(lanes, ways, strict=True):
            if region < 0:
                fork.idle.extend(rectangles_of)
                continue
            for rectangle in rectangles_of:
                child = part(task, rectangle, region)
                child.pc, child.fork, child.join = pc, fork, meet_at
                fork.running.append(child)
        # In front of others, so that what belongs together stays together.
        self.ready.extendleft(reversed(fork.running))
