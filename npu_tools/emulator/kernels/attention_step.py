"""Attention's inner loop over blocks of keys, for the query tiles of a herd: seven calls of attn_npu2.o as one.

`zero_fill_g_bf16`, `matmul_a_b_bf16`, `fused_softmax`, `mul_r_gp`, `matmul_g_b_bf16`, `accum_sp_r_s` and a copy of the
sums, in this order, as flash_attention.py has them and with the same bits, without what lies between. From one block to
the next the maxima, sums and outputs stay as columns: [lanes y, …, queries of all lanes x]. Scores are [lanes y, keys,
queries], keys in the order in which the matrix unit's blocks of weights want them, so that every reduction runs across
long rows.

Why the bits are the same:

- A float32 is rounded to bf16 by Veltkamp's splitting, x*c - (x*c - x) with c = 2**16 + 1. For 24 and 8 bits it also
  takes ties to even (tested for every mantissa). It gives NaN above 2**110, and a block with NaN goes through the seven
  kernels. It keeps more bits of what is below 2**-126: that shows in no weight, and of outputs bounds are kept, so that
  they are rounded in the slower way when they may be that small or that large.
- Products are made tile by tile, with the sizes and the order of rows that flash_attention.py has; whether BLAS then
  takes sums in the same order although tiles lie side by side is tried once.
- The core's exp2 is a line between powers of two, so its bf16 result is the number x + 127 in steps of 2**-7, rounded to
  an integer, as the upper half of a float32 (tested for every bf16 difference).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from npu_tools.emulator.kernels.flash_attention import LOG2_E, LOWEST, Kernels, taken_in
from npu_tools.emulator.kernels.gemm import tile_dims
from npu_tools.emulator.kernels.kernel import Array, ExternalKernel
from npu_tools.emulator.kernels.lanes import flat, lane_scalar, shaped
from npu_tools.emulator.numerics import Numerics

CALLS = (
    "zero_fill",
    "matmul_a_b_bf16",
    "fused_softmax",
    "mul_r_gp",
    "matmul_g_b_bf16",
    "accum_sp_r_s",
    "vector_copy_elems",
)
"""The families of the seven calls."""
MASK = "apply_causal_mask"
"""The family of a call that may stand between the second and the third."""

_SPLIT = np.float32(65537)
_STEPS = 128
# 1.5 * 2**23, where a float32 counts whole numbers, plus 127 in steps: the sum's low half is the bf16.
_COUNTS = np.float32(1.5 * 2**23 + 127 * _STEPS)
_SMALLEST = np.float32(-126 * _STEPS)
_NOTHING = np.float32(-127 * _STEPS)
# No weight is left of a difference this large, and the splitting can take it.
_FAR = np.float32(-(2.0**100))
_EXPONENT = np.uint32(0x7F800000)
_HIGH, _SIGN, _QUIET_NAN = np.uint32(0xFFFF0000), np.uint32(0x80000000), np.uint32(0x7FC00000)
_ONE, _HALF_LESS, _SIXTEEN = np.uint32(1), np.uint32(0x7FFF), np.uint32(16)
_MAGIC, _TOP = np.float32(1.5 * 2**17), np.float32(127 / 64)
_LARGE = np.float32(2.0**100)
_TINY = 2.0**-110
_AT_ONCE = 64 * 1024
"""Scores worked on at once, so that they and what is made of them stay in the second-level cache."""


@dataclass(frozen=True, slots=True)
class Stage:
    """What the calls of one object have in common."""

    kernels: Kernels
    bfp16: bool


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """A causal mask: its kernel, and the blocks of queries and keys [lanes x|1, lanes y|1] that it compares."""

    kernel: ExternalKernel
    query: Array | int
    key: Array | int


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """The arrays of one block's calls, [lanes x|1, lanes y, …]."""

    queries: Array
    keys: Array
    scores: Array
    top: Array
    total: Array
    ratio: Array
    values: Array
    output: Array
    denominator: Array
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Lanes, rows, depth, keys and width of a block."""

    gx: int
    gy: int
    rows: int
    depth: int
    keys: int
    width: int

    @property
    def columns(self) -> int:
        return self.gx * self.rows


@dataclass(slots=True)
class _Bounds:
    """What nonzero outputs lie between in magnitude."""

    low: float = np.inf
    high: float = 0.0


class Loop:
    """Blocks of keys one after the other, for the same queries, maxima, sums and outputs; `arrays` are to work in."""

    __slots__ = ("_arrays", "_bounds", "_calls", "_first", "_kernels", "_numerics", "_sizes", "_state")

    def __init__(
        self,
        numerics: Numerics,
        kernels: Kernels,
        calls: list[ExternalKernel],
        first: Operands,
        arrays: dict[tuple[str, tuple[int, ...]], Array],
    ) -> None:
        sizes = _sizes(first)
        assert sizes is not None, "fits() has said so"
        self._numerics, self._kernels, self._calls, self._first, self._sizes = numerics, kernels, calls, first, sizes
        self._arrays = arrays
        self._state = _State(sizes)
        self._bounds = _Bounds()

    def begin(self) -> None:
        """Take in what the loop starts from."""
        self._state.load(self._first)
        self._state.queries, _ = self._taken_in(*self._queries())
        self._bounds = _measured(self._state.output)

    def end(self) -> None:
        """Write what the loop has come to."""
        self._state.store(self._first)

    def block(self, operands: Operands, *, keep: bool) -> None:
        """One block of keys; `keep` where its sums and factors are looked at afterwards."""
        s, state, numerics, kernels = self._sizes, self._state, self._numerics, self._kernels
        keys, _ = self._taken_in(*self._keys(operands))
        values, scales = self._taken_in(*self._values(operands))
        top, sums = np.empty_like(state.top), self._array("sums", (s.gy, 8, s.columns))
        product = self._array("product", (s.gy, s.width, s.columns))
        least, parts = 0.0, self._parts()
        hidden = None if operands.mask is None else self._hidden(operands.mask)
        for lanes in parts:
            weights = self._weights(keys[lanes], lanes, top[lanes], None if hidden is None else hidden[lanes])
            if weights is None:
                self._by_kernels(operands)
                return
            least = min(least, weights[1])
            blocks = weights[0].reshape(-1, 8, s.keys // 8, s.columns)
            np.add.reduce(blocks, axis=2, out=sums[lanes])
            _quantise(blocks)
            self._product(values[lanes], weights[0], product[lanes])
        ratio = np.maximum(state.top - top, _FAR)
        to_bf16(ratio, np.empty_like(ratio))
        least_ratio = weights_of(ratio, numerics, kernels)
        if least_ratio is None:
            self._by_kernels(operands)
            return
        total = state.denominator * ratio
        total += kernels.narrow(numerics, _halves(sums))
        state.top, state.denominator = top, kernels.narrow(numerics, total)
        if keep:
            _from_columns(operands.ratio, ratio)
            _from_columns(operands.total, state.denominator)
        # The least a nonzero product can be: a step of the smallest weight times one of the smallest value.
        smallest = float(scales.min()) or float(np.min(scales, where=scales > 0, initial=1.0))
        added = _Bounds(_power(least) * smallest / 4096, 2.1 * s.keys * float(scales.max()))
        self._accumulate(ratio, _power(least_ratio), product, added)

    def _parts(self) -> list[slice]:
        """The rows of the herd, some at a time."""
        s = self._sizes
        at_once = max(1, _AT_ONCE // (s.columns * s.keys))
        return [slice(start, min(s.gy, start + at_once)) for start in range(0, s.gy, at_once)]

    def _product(self, still: Array, moving: Array, target: Array) -> None:
        """Target [lanes, across, columns] = still [lanes, depth, across] by moving [lanes, depth, columns].

        A tile is multiplied by itself: BLAS may take sums in another order where more columns come along.
        """
        s = self._sizes
        tiles, out = (each.reshape(*each.shape[:2], s.gx, s.rows).swapaxes(1, 2) for each in (moving, target))
        np.matmul(still.swapaxes(1, 2)[:, None], tiles, out=out)

    def _hidden(self, mask: Mask) -> Array:
        """Which scores the mask hides: [lanes y, keys, columns]."""
        s = self._sizes
        query, key = (np.broadcast_to(lane_scalar(each), (s.gx, s.gy)) for each in (mask.query, mask.key))
        # Keys in the order of the blocks, against the rows of a query tile.
        later = np.arange(s.keys).reshape(-1, 8).T.reshape(-1, 1) > np.arange(s.rows)
        lanes = (slice(None), None, slice(None), None)
        hidden = (key > query).T[lanes] | ((key == query).T[lanes] & later[:, None])
        return hidden.reshape(s.gy, s.keys, s.columns)

    def _weights(self, keys: Array, lanes: slice, top: Array, hidden: Array | None) -> tuple[Array, float] | None:
        """Weights [lanes, keys, columns] and their least exponent in steps, and the maxima in `top`; None where there are
        values this cannot take."""
        s, state = self._sizes, self._state
        shape = (len(keys), s.keys, s.columns)
        scores, spare = self._array("scores", shape), self._array("spare", shape)
        self._product(keys, state.queries[lanes], scores)
        to_bf16(scores, spare)
        if hidden is not None:
            np.copyto(scores, LOWEST, where=hidden)
        np.maximum.reduce(scores, axis=1, out=top)
        np.maximum(top, LOWEST, out=top)
        np.maximum(top, state.top[lanes], out=top)
        np.subtract(scores, top[:, None], out=scores)
        if hidden is not None:
            np.copyto(scores, _FAR, where=hidden)
        to_bf16(scores, spare)
        least = weights_of(scores, self._numerics, self._kernels)
        return None if least is None else (scores, least)

    def _accumulate(self, ratio: Array, least_ratio: float, product: Array, added: _Bounds) -> None:
        """output = bf16(bf16(output * ratio) + product), as columns."""
        bounds = self._bounds
        low, high = bounds.low * least_ratio, bounds.high * 1.02 + added.high
        usual = low > _TINY and added.low > _TINY and high < _LARGE
        for lanes in self._parts():
            output = self._state.output[lanes]
            spare = self._array("spare output", output.shape)
            np.multiply(output, ratio[lanes, None], out=output)
            if usual:
                to_bf16(output, spare)
                np.add(output, product[lanes], out=output)
                to_bf16(output, spare)
                continue
            words, scratch = output.view(np.uint32), spare.view(np.uint32)
            _nearest_even(words, scratch)
            np.add(output, product[lanes], out=output)
            _nearest_even(words, scratch)
            nan = np.isnan(output)
            words[nan] = (words[nan] & _SIGN) | _QUIET_NAN
        # A sum is a multiple of the smallest step of what is added; a bf16 has steps of 2**-8 of itself.
        self._bounds = _Bounds(min(low / 512, added.low), high) if usual else _measured(self._state.output)

    def _by_kernels(self, o: Operands) -> None:
        """The calls themselves."""
        self._state.store(self._first)
        arguments = (
            (o.scores,),
            (o.queries, o.keys, o.scores),
            (o.scores, o.top, o.total, o.ratio),
            (o.ratio, o.output),
            (o.scores, o.values, o.output),
            (o.denominator, o.ratio, o.total),
            (0, o.total, o.denominator),
        )
        for call, given in zip(self._calls, arguments, strict=True):
            if call.family == CALLS[2] and o.mask is not None:
                o.mask.kernel.run(self._numerics, o.scores, o.mask.query, o.mask.key)
            call.run(self._numerics, *given)
        self._state.load(self._first)
        self._bounds = _measured(self._state.output)

    def _queries(self) -> tuple[Array, int, int]:
        """Queries in blocks along the depth, the blocks of all lanes x side by side; depth and columns."""
        s = self._sizes
        blocks = shaped(self._first.queries, s.depth // 8, s.rows // 8, 8, 8).transpose(1, 5, 2, 0, 3, 4)
        return blocks, s.depth, s.columns

    def _keys(self, operands: Operands) -> tuple[Array, int, int]:
        """Keys in blocks along the depth; depth and keys."""
        s = self._sizes
        blocks = shaped(operands.keys, s.depth // 8, s.keys // 8, 8, 8)[0].transpose(0, 4, 1, 3, 2)
        return blocks, s.depth, s.keys

    def _values(self, operands: Operands) -> tuple[Array, int, int]:
        """Values in blocks along the keys; keys and width."""
        s = self._sizes
        blocks = shaped(operands.values, s.width // 8, s.keys // 8, 8, 8)[0].transpose(0, 3, 2, 1, 4)
        return blocks, s.keys, s.width

    def _taken_in(self, blocks: Array, depth: int, across: int) -> tuple[Array, Array]:
        """Blocks [lanes y, 8, …] along the second axis as the unit multiplies them, [lanes y, depth, across], and their
        scales."""
        gy = blocks.shape[0]
        whole = np.array(blocks, np.float32, order="C").reshape(gy, 8, -1)
        scale = _exponents(np.maximum.reduce(np.abs(whole), axis=1))[:, None]
        if not scale.max() <= _LARGE:
            four = whole.reshape(1, gy, 8, depth // 8, across)
            return taken_in(self._numerics, True, four).reshape(gy, depth, across), scale
        _on_steps(whole, scale)
        return whole.reshape(gy, depth, across), scale

    def _array(self, name: str, shape: tuple[int, ...]) -> Array:
        """An array of that shape with any contents; the same for the same name."""
        found = self._arrays.get((name, shape))
        if found is None:
            found = self._arrays[name, shape] = np.empty(shape, np.float32)
        return found


class _State:
    """What goes from block to block, as columns."""

    __slots__ = ("denominator", "output", "queries", "sizes", "top")

    def __init__(self, sizes: _Sizes) -> None:
        self.sizes = sizes
        self.top, self.denominator = np.empty((2, sizes.gy, sizes.columns), np.float32)
        self.output = np.empty((sizes.gy, sizes.width, sizes.columns), np.float32)
        self.queries = self.output

    def load(self, operands: Operands) -> None:
        """From the tiles."""
        s = self.sizes
        self.top, self.denominator = _as_columns(operands.top), _as_columns(operands.denominator)
        blocks = shaped(operands.output, s.width // 8, s.rows, 8).transpose(1, 2, 4, 0, 3)
        self.output.reshape(blocks.shape)[...] = blocks

    def store(self, operands: Operands) -> None:
        """To the tiles."""
        s = self.sizes
        _from_columns(operands.top, self.top)
        _from_columns(operands.denominator, self.denominator)
        columns = self.output.reshape(s.gy, s.width // 8, 8, s.gx, s.rows).transpose(3, 0, 1, 4, 2)
        operands.output[...] = columns.reshape(operands.output.shape)


def fits(numerics: Numerics, calls: list[ExternalKernel], operands: Operands) -> Kernels | None:
    """What the calls have in common where a `Loop` can do them; None where they are not what it knows."""
    stages = [call.detail for call in calls[1:]]
    stage = stages[0]
    if not isinstance(stage, Stage) or any(other != stage for other in stages[1:]):
        return None
    if stage.kernels.build.name != "npu2" or not stage.bfp16 or numerics.exact or numerics.report is not None:
        return None
    sizes = _sizes(operands)
    if sizes is None or not _sums_alike(sizes.gx, sizes.rows, sizes.keys, sizes.depth):
        return None
    return stage.kernels if _sums_alike(sizes.gx, sizes.rows, sizes.width, sizes.keys) else None


@cache
def _sums_alike(tiles: int, rows: int, across: int, depth: int) -> bool:
    """Whether BLAS takes the sums over the depth in the same order for tiles that lie side by side as for tiles apart."""
    rng = np.random.default_rng(0)
    still = rng.standard_normal((depth, across)).astype(np.float32)
    moving = rng.standard_normal((tiles, depth, rows)).astype(np.float32)
    beside = np.ascontiguousarray(moving.swapaxes(0, 1)).swapaxes(0, 1)
    out = np.empty((across, tiles, rows), np.float32).swapaxes(0, 1)
    np.matmul(still.T, beside, out=out)
    return np.array_equal(out, np.matmul(still.T, moving))


def _sizes(operands: Operands) -> _Sizes | None:
    lines = (operands.top, operands.total, operands.ratio, operands.denominator)
    gx, gy = operands.scores.shape[:2]
    if any(
        array.shape[:2] != (gx, gy) or not array.flags.c_contiguous
        for array in (operands.scores, operands.output, *lines)
    ):
        return None
    shared = (operands.keys.shape[:2], operands.values.shape[:2])
    if shared != ((1, gy), (1, gy)) or operands.queries.shape[:2] != (gx, gy):
        return None
    q, k, g, v, o = (
        flat(array).shape[-1]
        for array in (operands.queries, operands.keys, operands.scores, operands.values, operands.output)
    )
    rows, depth, keys = tile_dims("matmul_a_b_bf16", q, k, g)
    again, deep, width = tile_dims("matmul_g_b_bf16", g, v, o)
    if (again, deep) != (rows, keys) or any(size % 8 for size in (rows, depth, keys, width)):
        return None
    if any(flat(line).shape[-1] != rows for line in lines):
        return None
    return _Sizes(gx, gy, rows, depth, keys, width)


def weights_of(differences: Array, numerics: Numerics, kernels: Kernels) -> float | None:
    """bf16 differences, none positive, made weights in place; the least exponent in steps, None where one is NaN."""
    factor = np.float32(numerics.round_to(np.float32(LOG2_E * kernels.scale), "bf16"))
    np.multiply(differences, factor * np.float32(_STEPS), out=differences)
    low = differences.min()
    if not low >= _SMALLEST:
        if np.isnan(low):
            return None
        np.copyto(differences, _NOTHING, where=differences < _SMALLEST)
    np.add(differences, _COUNTS, out=differences)
    words = differences.view(np.uint32)
    np.left_shift(words, _SIXTEEN, out=words)
    return float(low)


def to_bf16(values: Array, spare: Array) -> None:
    """Rounded in place, see the module's text."""
    np.multiply(values, _SPLIT, out=spare)
    np.subtract(spare, values, out=values)
    np.subtract(spare, values, out=values)


def _nearest_even(words: Array, scratch: Array) -> None:
    """float32 words rounded to bf16 in place; NaN stays NaN."""
    np.right_shift(words, _SIXTEEN, out=scratch)
    np.bitwise_and(scratch, _ONE, out=scratch)
    np.add(scratch, _HALF_LESS, out=scratch)
    np.add(words, scratch, out=words)
    np.bitwise_and(words, _HIGH, out=words)


def _quantise(blocks: Array) -> None:
    """Weights [lanes, 8, blocks, columns], none negative, as the unit takes them in; in place."""
    largest = np.maximum.reduce(blocks, axis=1)
    _on_steps(blocks, _exponents(largest)[:, None])


def _on_steps(blocks: Array, scale: Array) -> None:
    """Values put on the steps of their blocks' scales, in place."""
    magic = scale * _MAGIC
    np.add(blocks, magic, out=blocks)
    np.subtract(blocks, magic, out=blocks)
    np.minimum(blocks, scale * _TOP, out=blocks)


def _exponents(magnitudes: Array) -> Array:
    """The powers of two at or below positive values; 0 below 2**-126, infinity of what is no number."""
    return (magnitudes.view(np.uint32) & _EXPONENT).view(np.float32)


def _power(steps: float) -> float:
    """A power of two at or below every nonzero weight whose exponent is `steps` or more."""
    return 2.0 ** (max(steps / _STEPS, -126.0) - 1)


def _measured(values: Array) -> _Bounds:
    """What the nonzero values lie between; NaN and infinity are large."""
    magnitude = np.abs(values)
    high = float(magnitude.max())
    low = float(np.min(magnitude, where=magnitude > 0, initial=np.inf))
    return _Bounds(low, high if high < np.inf else np.inf)


def _halves(parts: Array) -> Array:
    """[lanes, 8, columns] summed over the second axis, upper half onto lower half."""
    while parts.shape[1] > 1:
        half = parts.shape[1] // 2
        parts = parts[:, :half] + parts[:, half:]
    return parts[:, 0]


def _as_columns(vector: Array) -> Array:
    """A row vector [gx, lanes, rows…] as [lanes, gx * rows]."""
    return flat(vector).swapaxes(0, 1).reshape(vector.shape[1], -1)


def _from_columns(vector: Array, values: Array) -> None:
    """Write [lanes, gx * rows] into a row vector [gx, lanes, rows…]."""
    lanes = vector.shape[1]
    vector[...] = values.reshape(lanes, vector.shape[0], -1).swapaxes(0, 1).reshape(vector.shape)
