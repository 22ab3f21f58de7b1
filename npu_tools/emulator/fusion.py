"""Steps of a journal made fewer: calls of kernels that one routine can do at once, with the same bits.

The calls of a pattern need not stand one behind the other. All are done where the last one stands, which is right where
no step between touches what the earlier ones touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npu_tools.emulator.journal import Call, Copy, Load, Save, Step
from npu_tools.emulator.kernels.attention_step import CALLS, Operands, Workspace, composed
from npu_tools.emulator.types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Several calls as one."""

    run: Callable[[], None]


def fused(steps: Sequence[Step]) -> list[Step | Fused]:
    """The steps with attention's calls on one block of keys made one."""
    workspace = Workspace()
    found: list[Step | Fused] = list(steps)
    dropped: set[int] = set()
    last: dict[int, int] = {}
    for start, step in enumerate(steps):
        if not (isinstance(step, Call) and step.kernel.family == CALLS[0]):
            continue
        places = _pattern(steps, start)
        if places is None:
            continue
        calls = [call for call in (steps[at] for at in places) if isinstance(call, Call)]
        operands = _operands(calls)
        if operands is None or _in_the_way(steps, places) or not _forgotten(steps, places[-1], operands.scores):
            continue
        key = operands.queries.ctypes.data
        since = last.get(key)
        fresh = since is None or any(
            np.may_share_memory(array, operands.queries)
            for between in steps[since : places[1]]
            for array in _written(between)
        )
        run = composed(calls[0].numerics, [call.kernel for call in calls], operands, workspace, fresh=fresh)
        if run is None:
            continue
        last[key] = places[-1]
        dropped.update(places[:-1])
        found[places[-1]] = Fused(run)
    return [step for at, step in enumerate(found) if at not in dropped]


def _pattern(steps: Sequence[Step], start: int) -> list[int] | None:
    """Where the calls of the pattern stand that begins at `start`: the next ones on the same scores."""
    scores = _array(steps[start], 0)
    places = [start]
    for at in range(start + 1, len(steps)):
        step = steps[at]
        wanted = CALLS[len(places)]
        if isinstance(step, Call) and step.kernel.family == wanted and (wanted == "mul_r_gp" or _uses(step, scores)):
            places.append(at)
            if len(places) == len(CALLS):
                return places
        elif _uses(step, scores):
            return None
    return None


def _array(step: Step, position: int) -> Array:
    assert isinstance(step, Call), "patterns are of calls"
    return step.arguments[position]


def _uses(step: Step, array: Array) -> bool:
    return any(np.may_share_memory(one, array) for one in (*_read(step), *_written(step)))


def _same(one: Array, other: Array) -> bool:
    return one.ctypes.data == other.ctypes.data and one.shape[:2] == other.shape[:2] and one.size == other.size


def _operands(calls: list[Call]) -> Operands | None:
    """The arrays of the calls, where they belong together."""
    zero, product, softmax, scale, output = (call.arguments for call in calls)
    arrays = (*zero, *product, *softmax, *scale, *output)
    if [len(call.arguments) for call in calls] != [1, 3, 4, 2, 3] or any(array.dtype != np.float32 for array in arrays):
        return None
    if not all(_same(zero[0], array) for array in (product[2], softmax[0], output[0])):
        return None
    if not _same(softmax[3], scale[0]) or not _same(scale[1], output[2]):
        return None
    return Operands(product[0], product[1], zero[0], softmax[1], softmax[2], softmax[3], output[1], output[2])


def _in_the_way(steps: Sequence[Step], places: list[int]) -> bool:
    """Whether a step between the calls touches what a call before it touches, unless both only read."""
    for at in range(places[0], places[-1]):
        if at in places:
            continue
        step = steps[at]
        read, written = list(_read(step)), list(_written(step))
        for call in (steps[place] for place in places if place < at):
            touched = [*_read(call), *_written(call)]
            if _overlap(written, touched) or _overlap(read, list(_written(call))):
                return True
    return False


def _overlap(one: list[Array], other: list[Array]) -> bool:
    return any(np.may_share_memory(a, b) for a in one for b in other)


def _forgotten(steps: Sequence[Step], behind: int, scores: Array) -> bool:
    """Whether nobody reads the scores before they are filled anew."""
    for step in steps[behind + 1 :]:
        if _uses(step, scores):
            fills = isinstance(step, Call) and step.kernel.family == CALLS[0]
            return fills and _same(_array(step, 0), scores)
    return True


def _read(step: Step) -> Iterator[Array]:
    match step:
        case Copy(_, source) | Save(_, source):
            yield source
        case Load():
            return
        case Call(kernel, _, arguments):
            yield from (arguments[at] for at in kernel.reads if isinstance(arguments[at], np.ndarray))


def _written(step: Step) -> Iterator[Array]:
    match step:
        case Copy(target, _) | Load(_, target):
            yield target
        case Save():
            return
        case Call(kernel, _, arguments):
            yield from (arguments[at] for at in kernel.writes if isinstance(arguments[at], np.ndarray))
