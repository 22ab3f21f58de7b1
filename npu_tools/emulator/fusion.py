"""Steps of a journal made fewer: calls of kernels that one routine can do at once, with the same bits.

The calls of a pattern need not stand one behind the other. All are done where the last one stands, which is right where
no step between touches what the earlier ones touch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu_tools.emulator.journal import Call, Copy, Load, Save, Step
from npu_tools.emulator.kernels.attention_step import CALLS, MASK, Loop, Mask, Operands, fits
from npu_tools.emulator.types import Array


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Several calls as one."""

    run: Callable[[], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """The calls on one block of keys: where they stand, and on what."""

    places: list[int]
    calls: list[Call]
    operands: Operands

    @property
    def carried(self) -> tuple[Array, Array, Array]:
        """What goes from block to block."""
        return self.operands.top, self.operands.denominator, self.operands.output


def fused(steps: Sequence[Step]) -> list[Step | Fused]:
    """The steps with attention's calls on blocks of keys made one a block."""
    arrays: dict[tuple[str, tuple[int, ...]], Array] = {}
    found: list[Step | Fused] = list(steps)
    dropped: set[int] = set()
    uses = _Uses(steps)
    for loop in _loops(steps, uses):
        first = loop[0]
        kernels = [call.kernel for call in first.calls if call.kernel.family in CALLS]
        common = fits(first.calls[0].numerics, kernels, first.operands)
        if common is None:
            continue
        body = Loop(first.calls[0].numerics, common, kernels, first.operands, arrays)
        for block in loop:
            dropped.update(block.places[:-1])
            found[block.places[-1]] = _one(body, block, uses, begins=block is first, ends=block is loop[-1])
    return [step for at, step in enumerate(found) if at not in dropped]


def _one(body: Loop, block: _Block, uses: _Uses, *, begins: bool, ends: bool) -> Fused:
    operands, behind = block.operands, block.places[-1]
    keep = not all(uses.forgotten(array, behind) for array in (operands.total, operands.ratio))

    def run() -> None:
        if begins:
            body.begin()
        body.block(operands, keep=keep)
        if ends:
            body.end()

    return Fused(run)


def _loops(steps: Sequence[Step], uses: _Uses) -> list[list[_Block]]:
    """Blocks that follow each other on the same queries, maxima, sums and outputs, untouched in between."""
    loops: list[list[_Block]] = []
    latest: dict[int, list[_Block]] = {}
    for start, step in enumerate(steps):
        if not (isinstance(step, Call) and step.kernel.family == CALLS[0]):
            continue
        places = _pattern(steps, start)
        if places is None:
            continue
        calls = [call for call in (steps[at] for at in places) if isinstance(call, Call)]
        operands = _operands(calls)
        if operands is None or _in_the_way(steps, places) or not uses.forgotten(operands.scores, places[-1]):
            continue
        block = _Block(places, calls, operands)
        key = operands.output.ctypes.data
        before = latest.get(key)
        if before is not None and _follows(steps, before[-1], block):
            before.append(block)
        else:
            latest[key] = [block]
            loops.append(latest[key])
    return loops


def _follows(steps: Sequence[Step], last: _Block, block: _Block) -> bool:
    """Whether a block goes on with what the last one came to."""
    same = [*zip(last.carried, block.carried, strict=True), (last.operands.queries, block.operands.queries)]
    if not all(_same(one, other) for one, other in same):
        return False
    if last.calls[1].kernel.detail != block.calls[1].kernel.detail:
        return False
    carried, queries = list(block.carried), [block.operands.queries]
    for at in range(last.places[-1] + 1, block.places[-1]):
        if at in block.places:
            continue
        written = list(_written(steps[at]))
        if _overlap([*_read(steps[at]), *written], carried) or _overlap(written, queries):
            return False
    return True


_APART = {"mul_r_gp": 3, "accum_sp_r_s": 3, "vector_copy_elems": 2}
"""The calls that do not touch the scores, and which operand of the softmax they do touch."""


def _pattern(steps: Sequence[Step], start: int) -> list[int] | None:
    """Where the calls of the pattern stand that begins at `start`: the next ones on the same scores."""
    (scores,) = _written(steps[start])
    softmax: tuple[Any, ...] = ()
    places, wanted_at = [start], 1
    for at in range(start + 1, len(steps)):
        step = steps[at]
        wanted = CALLS[wanted_at]
        touched = softmax[_APART[wanted]] if wanted in _APART else scores
        if isinstance(step, Call) and step.kernel.family == wanted and _uses(step, touched):
            places.append(at)
            softmax = step.arguments if wanted == "fused_softmax" else softmax
            wanted_at += 1
            if wanted_at == len(CALLS):
                return places
        elif isinstance(step, Call) and (step.kernel.family, wanted, len(places)) == (MASK, CALLS[2], 2):
            if not _same(step.arguments[0], scores):
                return None
            places.append(at)
        elif _uses(step, scores):
            return None
    return None


def _uses(step: Step, array: Array) -> bool:
    return any(np.may_share_memory(one, array) for one in (*_read(step), *_written(step)))


def _same(one: Array, other: Array) -> bool:
    return one.ctypes.data == other.ctypes.data and one.shape[:2] == other.shape[:2] and one.size == other.size


def _operands(calls: list[Call]) -> Operands | None:
    """The arrays of the calls, where they belong together."""
    masks = [call for call in calls if call.kernel.family == MASK]
    calls = [call for call in calls if call.kernel.family in CALLS]
    if [len(call.arguments) for call in calls] != [1, 3, 4, 2, 3, 3, 3] or np.any(calls[-1].arguments[0]):
        return None
    zero, product, softmax, scale, output, sums = (call.arguments for call in calls[:-1])
    copied = calls[-1].arguments[1:]
    arrays = (*zero, *product, *softmax, *scale, *output, *sums, *copied)
    if any(array.dtype != np.float32 for array in arrays):
        return None
    pairs = (
        *((zero[0], array) for array in (product[2], softmax[0], output[0])),
        *((softmax[3], array) for array in (scale[0], sums[1])),
        *((softmax[2], array) for array in (sums[2], copied[0])),
        (scale[1], output[2]),
        (sums[0], copied[1]),
    )
    if not all(_same(one, other) for one, other in pairs):
        return None
    (queries, keys, scores), (_, top, total, ratio), (_, values, out) = product, softmax, output
    mask = Mask(masks[0].kernel, *masks[0].arguments[1:]) if masks else None
    return Operands(queries, keys, scores, top, total, ratio, values, out, sums[0], mask)


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


class _Uses:
    """Where the steps read and write, by the array that owns the storage."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._by_owner: dict[int, list[tuple[int, Array, bool]]] = {}
        for at, step in enumerate(steps):
            for array in _read(step):
                self._by_owner.setdefault(_owner(array), []).append((at, array, False))
            for array in _written(step):
                self._by_owner.setdefault(_owner(array), []).append((at, array, True))

    def forgotten(self, array: Array, behind: int) -> bool:
        """Whether nobody reads an array after a step before it is written anew."""
        later = [use for use in self._by_owner.get(_owner(array), ()) if use[0] > behind]
        next_uses = [use for use in later if np.may_share_memory(use[1], array)]
        first = [use for use in next_uses if use[0] == next_uses[0][0]]
        return not first or (all(writes for _, _, writes in first) and any(_same(one, array) for _, one, _ in first))


def _owner(array: Array) -> int:
    """What tells apart the storage of arrays."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array)


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
