"""What an error looks like: known kinds of wrong output, each recognised by a test on the numbers.

A likeness is a hint with its evidence, never a verdict. The most telling comes first. Detectors work on float64
copies; a pattern must explain the output to within the tolerance's order, not merely correlate with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LIMIT = 3
_BLOCKS = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Likeness:
    """One known kind of error the output resembles, why, and what to look at first."""

    kind: str
    evidence: str
    look_at: str


@dataclass(frozen=True, slots=True)
class _Case:
    got: Array  # float64, the reference's shape
    want: Array
    previous: Array | None
    slack: Array  # allowed error per element

    @property
    def bad(self) -> Array:
        return np.abs(self.got - self.want) > self.slack

    def explains(self, candidate: Array, share: float = 0.995) -> bool:
        """Whether `candidate` is what came out, but for a few elements: of all, and of those that are wrong."""
        close = np.abs(self.got - candidate) <= self.slack
        bad = self.bad
        return float(close.mean()) >= share and (not bad.any() or float(close[bad].mean()) >= 0.9)


def likenesses(
    got: Array, want: Array, *, previous: Array | None = None, allowed: Array | None = None
) -> tuple[Likeness, ...]:
    """Up to three known kinds the wrong output `got` resembles; both of one shape."""
    with np.errstate(all="ignore"):
        return tuple(_found(got, want, previous, allowed))


def wrong_heads(got: Array, want: Array, heads: int) -> Likeness | None:
    """Whether some heads of [rows, heads * width] are wrong throughout and all others right, however many there are."""
    if heads < 2 or got.shape != want.shape or got.ndim != 2 or got.shape[1] % heads:
        return None
    parts = [one.astype(np.float64).reshape(len(one), heads, -1) for one in (got, want)]
    error = np.abs(parts[0] - parts[1]).mean(axis=2) / np.maximum(np.abs(parts[1]).mean(axis=2), 1e-12)
    wrong, right = (error > 0.1).mean(axis=0) > 0.9, (error < 0.05).mean(axis=0) > 0.9
    if not wrong.any() or not right.any() or not (wrong | right).all():
        return None
    return Likeness(
        "wrong heads",
        f"whole heads are wrong, the other heads are right ({int(wrong.sum())} of {heads} wrong)",
        "which key and value head a query head reads: grouping, order and padding of heads",
    )


def _found(got: Array, want: Array, previous: Array | None, allowed: Array | None) -> Iterator[Likeness]:
    a, r = got.astype(np.float64), want.astype(np.float64)
    scale = float(np.abs(r).mean()) or 1.0
    slack = allowed if allowed is not None else 0.02 * np.abs(r) + 0.02 * scale
    old = previous.astype(np.float64) if previous is not None and previous.shape == got.shape else None
    finite = np.isfinite(a)
    if not finite.all():
        yield from _not_finite(a, finite)
        return
    case = _Case(a, r, old, np.asarray(slack, np.float64))
    lone = _lone(case)
    if lone is not None:
        yield lone
        return
    count = 0
    for detector in _DETECTORS:
        likeness = detector(case)
        if likeness is not None:
            yield likeness
            count += 1
            if count == _LIMIT:
                return


def _not_finite(a: Array, finite: Array) -> Iterator[Likeness]:
    nan = int(np.isnan(a).sum())
    flat = finite.reshape(-1)
    first = int(np.argmin(flat))
    if not flat[first:].any() and first:
        yield Likeness(
            "truncated output",
            f"everything from flat element {first} on is NaN or Inf, everything before is finite",
            "whether the last transfers or launches ran, and 4 GiB buffer offsets",
        )
    elif nan == a.size:
        yield Likeness("all NaN", "every element is NaN", "the toolchain (a miscompiling Peano), uninitialised input")
    else:
        rows = ~finite.reshape(-1, a.shape[-1]).all(axis=1) if a.ndim > 1 else ~finite
        yield Likeness(
            "NaN or Inf in places",
            f"{nan} NaN and {int((~finite).sum()) - nan} Inf in {int(rows.sum())} of {rows.size} rows",
            "overflow in exp or a zero denominator, an uninitialised accumulator",
        )


def _all_one_value(case: _Case) -> Likeness | None:
    first = case.got.flat[0]
    if case.got.size > 1 and (case.got == first).all() and (case.want != case.want.flat[0]).any():
        if first == 0:
            return Likeness(
                "all zeros",
                "every element is 0",
                "the device generation the binary was built for, scratch arguments that were not set, a bare herd",
            )
        return Likeness("one value everywhere", f"every element is {first:g}", "a buffer nobody wrote (poison or fill)")
    return None


def _stale(case: _Case) -> Likeness | None:
    if case.previous is None:
        return None
    bad = case.bad
    same = case.got == case.previous
    if bool(same[bad].all()) and bad.any():
        share = "whole output equals" if same.all() else f"all {int(bad.sum())} wrong elements equal"
        return Likeness(
            "stale buffer",
            f"the {share} the previous call's",
            "an input or output marked static, a missing sync, a reused buffer handle, a view overwritten later",
        )
    return None


def _scaled(case: _Case) -> Likeness | None:
    a, r = case.got, case.want
    weight = float((r * r).sum())
    factor = float((a * r).sum()) / weight if weight else 0.0
    if not math.isfinite(factor) or abs(factor - 1) < 0.02 or abs(factor) < 1e-6:
        return None
    if float(np.abs(a - factor * r).mean()) < 0.02 * float(np.abs(factor * r).mean()):
        root = 1 / factor**2 if factor else 0.0
        named = ""
        if abs(factor + 1) < 0.01:
            named = " (the sign)"
        elif abs(root - round(root)) < 0.02 * max(root, 1) and round(root) in {16, 32, 64, 80, 96, 128, 256}:
            named = f" (1/sqrt({round(root)}))"
        elif abs(factor**2 - round(factor**2)) < 0.02 * factor**2 and round(factor**2) in {
            16,
            32,
            64,
            80,
            96,
            128,
            256,
        }:
            named = f" (sqrt({round(factor**2)}))"
        return Likeness(
            "constant factor",
            f"the output is {factor:.4g} times the reference{named}",
            "a missing or doubled scale; a correlation or cosine gate cannot see this",
        )
    return None


def _offset(case: _Case) -> Likeness | None:
    difference = case.got - case.want
    mean = float(difference.mean())
    if abs(mean) > 4 * float(np.median(np.abs(difference - mean))) and case.explains(case.want + mean):
        return Likeness("constant offset", f"the output is the reference plus {mean:.4g}", "a missing or doubled bias")
    if case.want.ndim < 2:
        return None
    for axis, name, cause in ((0, "column", "a per-column bias or residual"), (-1, "row", "a per-row term")):
        shift = np.median(difference, axis=axis, keepdims=True)
        if float(np.abs(shift).mean()) > 0 and case.explains(case.want + shift):
            return Likeness(f"one offset a {name}", f"the difference is constant along each {name}", cause)
    return None


def _scaled_by_axis(case: _Case) -> Likeness | None:
    if case.want.ndim < 2:
        return None
    rows = case.want.reshape(-1, case.want.shape[-1])
    got = case.got.reshape(rows.shape)
    slack = case.slack.reshape(rows.shape) if case.slack.shape == case.want.shape else case.slack
    for axis, name, cause in (
        (0, "column", "a weight vector (norm gamma) left out or applied twice"),
        (1, "row", "a row statistic: rsqrt of the mean square, a softmax denominator"),
    ):
        if rows.shape[axis] < 4:
            continue
        energy = (rows * rows).sum(axis=axis, keepdims=True)
        factor = np.divide(
            (got * rows).sum(axis=axis, keepdims=True), energy, out=np.ones_like(energy), where=energy > 0
        )
        close = np.abs(got - factor * rows) <= np.maximum(slack, 0.01 * np.abs(factor * rows))
        if float(close.mean()) >= 0.99 and float(np.abs(factor - 1).mean()) > 0.02:
            return Likeness(
                f"one factor a {name}",
                f"each {name} is the reference's times its own factor, {factor.min():.3g} to {factor.max():.3g}",
                cause,
            )
    return None


def _lone(case: _Case) -> Likeness | None:
    """A handful of elements out of many: nothing systematic."""
    bad = case.bad
    count = int(bad.sum())
    if count == 0 or count > max(1, bad.size // 1000):
        return None
    size = np.abs(case.want[bad])
    typical = float(np.abs(case.want).mean())
    relative = float(np.abs(case.got - case.want).mean()) / (typical or 1.0)
    if float(np.median(size)) < 0.25 * typical:
        return Likeness(
            "near-zero elements",
            f"{count} of {bad.size} elements, their references near zero (median {np.median(size):.2g} where the mean is "
            f"{typical:.2g}); mean_rel_L1 {relative:.2e}",
            "the scale of the inputs: atol is set for randn/sqrt(K) inputs; upstream notes the same for thin GEMMs",
        )
    return Likeness(
        "lone elements",
        f"{count} of {bad.size} elements, all others are right; mean_rel_L1 {relative:.2e}",
        "an overwritten element, a stray store, an edge of a window",
    )


def _part(case: _Case) -> Likeness | None:
    """Some rows right, the rest wrong: halves, alternate rows, one tile."""
    if case.want.ndim < 2:
        bad = case.bad.reshape(-1)
        return _span(bad) if bad.size >= 8 else None
    rows = case.bad.reshape(-1, case.want.shape[-1])
    by_row: Array = np.asarray(rows.any(axis=1))
    by_column: Array = np.asarray(rows.any(axis=0))
    half = len(by_row) // 2
    zeros = "zero" if (case.got[case.bad] == 0).all() else "wrong"
    if half and by_row[half:].mean() > 0.9 and not by_row[:half].any():
        return Likeness(
            "half the rows", f"rows from {half} on are {zeros}, those before are right",
            "the launch count, herd rows, or a repeat count that fell short",
        )  # fmt: skip
    if half and by_row[:half].mean() > 0.9 and not by_row[half:].any():
        return Likeness("half the rows", f"the first {half} rows are {zeros}", "the first launch or the ping buffer")
    if half > 1:
        for phase in (0, 1):
            if by_row[phase::2].mean() > 0.9 and not by_row[1 - phase :: 2].any():
                return Likeness(
                    "every second row", f"only rows {phase}, {phase + 2}, … are {zeros}",
                    "one of two ping-pong buffers, an interleaved layout, a stride of two",
                )  # fmt: skip
    if by_row.any() and (not by_row.all() or not by_column.all()):
        r0, r1 = int(np.argmax(by_row)), len(by_row) - int(np.argmax(by_row[::-1]))
        c0, c1 = int(np.argmax(by_column)), len(by_column) - int(np.argmax(by_column[::-1]))
        filled = float(rows[r0:r1, c0:c1].mean())
        if filled > 0.5 and (r1 - r0) * (c1 - c0) <= 0.5 * rows.size:
            return Likeness(
                "one tile",
                f"the wrong elements fill rows {r0}–{r1 - 1} and columns {c0}–{c1 - 1} ({filled:.0%} of that block)",
                "the herd tile that writes this block: its transfer, its lock, its program",
            )
    return None


def _span(bad: Array) -> Likeness | None:
    if not bad.any() or bad.all():
        return None
    first, last = int(np.argmax(bad)), len(bad) - 1 - int(np.argmax(bad[::-1]))
    if float(bad[first : last + 1].mean()) > 0.5 and last - first + 1 <= 0.75 * len(bad):
        end = " to the end" if last == len(bad) - 1 else ""
        return Likeness(
            "one stretch", f"the wrong elements lie in {first}–{last}{end}",
            "the tile, launch or partition that writes this stretch",
        )  # fmt: skip
    return None


def _rotated(case: _Case) -> Likeness | None:
    width = case.want.shape[-1] if case.want.ndim else 0
    if width < 4 or width % 2:
        return None
    rows, got = case.want.reshape(-1, width), case.got.reshape(-1, width)
    half = width // 2
    interleaved = np.stack([rows[:, :half], rows[:, half:]], axis=2).reshape(rows.shape)
    halves = np.concatenate([rows[:, 0::2], rows[:, 1::2]], axis=1)
    for candidate, how in ((interleaved, "interleaved"), (halves, "half-split")):
        if case.explains(candidate.reshape(case.want.shape)):
            return Likeness(
                "wrong rotation layout", f"the output is the reference in {how} order along the last axis",
                "half-split (Hugging Face) against interleaved RoPE",
            )  # fmt: skip
    for pairing, (x, y), (u, v) in (
        ("half-split", (got[:, :half], got[:, half:]), (rows[:, :half], rows[:, half:])),
        ("interleaved", (got[:, 0::2], got[:, 1::2]), (rows[:, 0::2], rows[:, 1::2])),
    ):
        ours, theirs = np.hypot(x, y), np.hypot(u, v)
        turned = float(case.bad.mean()) > 0.2
        if turned and float(np.abs(ours - theirs).mean()) < 0.01 * float(theirs.mean() or 1):
            return Likeness(
                "wrong rotation",
                f"every {pairing} pair has the reference's length but another angle",
                "the position or table row used, the sign of sin, the theta base",
            )
    return None


def _permuted(case: _Case) -> Likeness | None:
    a, r = case.got, case.want
    if a.size < 4 or float(np.abs(a - r).mean()) < 0.3 * float(np.abs(r).mean()):
        return None
    spread = np.sort(np.abs(r), axis=None)
    if float(np.abs(np.sort(a, axis=None) - np.sort(r, axis=None)).mean()) > 0.02 * float(spread.mean() or 1):
        return None
    if r.ndim >= 2:
        rows = r.reshape(-1, r.shape[-1])
        m, n = rows.shape
        if case.explains(np.ascontiguousarray(rows.T).reshape(r.shape)):
            return Likeness(
                "transposed", "the output read as the transposed matrix is the reference", "the DMA strides"
            )
        for shift in (-1, 1):
            if case.explains(np.roll(rows, shift, axis=0).reshape(r.shape), 0.9):
                return Likeness(
                    "shifted by a row", f"row i holds the reference's row i{-shift:+d}", "an offset or a late lock"
                )
        for block in _BLOCKS:
            if m % block or n % block or (m == block and n == block):
                continue
            tiled = rows.reshape(m // block, block, n // block, block).transpose(0, 2, 1, 3).reshape(r.shape)
            columns = rows.reshape(m // block, block, n // block, block).transpose(2, 0, 1, 3).reshape(r.shape)
            if case.explains(tiled) or case.explains(columns):
                return Likeness(
                    "blocked layout", f"the output is the reference in {block}×{block} blocks",
                    "the un-blocking on the way out (transfer dims and strides)",
                )  # fmt: skip
    return Likeness(
        "permuted", "the output holds the reference's values in another order", "window offsets, sizes and strides"
    )


def _repeated(case: _Case) -> Likeness | None:
    if case.want.ndim < 2:
        return None
    rows = case.got.reshape(-1, case.got.shape[-1])
    want = case.want.reshape(rows.shape)
    for parts in (2, 4, 8):
        if len(rows) % parts or len(rows) == 1:
            continue
        blocks, expected = rows.reshape(parts, -1), want.reshape(parts, -1)
        if (blocks == blocks[0]).all() and not (expected == expected[0]).all():
            return Likeness(
                "one part repeated", f"all {parts} parts of the rows are the same",
                "an index that does not move: a static argument, the same buffer for every layer, a broadcast",
            )  # fmt: skip
    return None


def _clipped(case: _Case) -> Likeness | None:
    top, low = float(case.got.max()), float(case.got.min())
    if case.explains(np.clip(case.want, low, top), 0.999) and case.bad.any():
        wrong = case.got[case.bad]
        if wrong.size > 3 and ((wrong == top) | (wrong == low)).all():
            return Likeness(
                "clipped", f"wrong elements sit at {low:g} or {top:g}", "saturation in a narrow integer type"
            )
    return None


def _coarse(case: _Case) -> Likeness | None:
    """Right but for precision: small unbiased error (a lower tier), or one towards zero (truncation)."""
    a, r = case.got, case.want
    error = a - r
    relative = float(np.abs(error).mean()) / (float(np.abs(r).mean()) or 1.0)
    if relative > 0.1 or float(case.bad.mean()) < 0.01:
        return None
    inward = float((error * np.sign(r)).mean()) / (float(np.abs(error).mean()) or 1.0)
    if inward < -0.8:
        return Likeness(
            "truncated rounding", f"mean_rel_L1 {relative:.2e}, nearly all of it towards zero",
            "rounding mode: floor or truncation where conv_even was meant",
        )  # fmt: skip
    return Likeness(
        "low precision", f"mean_rel_L1 {relative:.2e} spread over the whole output",
        "a bf16 accumulator (low tier) or BFP16 where f32 was expected; inputs scaled differently from the tolerance's",
    )  # fmt: skip


_DETECTORS: tuple[Callable[[_Case], Likeness | None], ...] = (
    _all_one_value, _stale, _part, _repeated, _scaled, _offset, _permuted, _rotated, _scaled_by_axis, _clipped, _coarse,
)  # fmt: skip
