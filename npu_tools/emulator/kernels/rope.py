"""Rotary position embedding: rotations, angles, and the sine and cosine kernels they use.

Read in mlir-air programming_examples: rope_halfsplit/rope_halfsplit.cc, rope_lut/rope.cc, rope_sincos/rope.cc,
sine_cosine/sine_cosine.cc, llama2_mha/mha.cc, attention_decode/attn_decode_npu2.cc.

`rope(x, lut, out, dims)` means two things upstream, on the same operands and the same object name. rope_halfsplit.cc
pairs x[i] with x[i + dims/2] and takes the LUT as [cos | sin]; every model in llms/ links that one, so it is the
default. rope_lut/rope.cc pairs x[2i] with x[2i + 1] and takes cos, sin interleaved; it is meant where the enclosing
function is called rope_lut or interleaved, or with the option rope="interleaved" (or "halfsplit"). The interleaved one
rounds every product and then the sum; the half-split one keeps products in float32 and rounds the sum. No kernel here
sets a rounding mode: all round down (floor), which gives RoPE's published error of 2.8e-3.

`shuffle_apply_rope_bf16_N(offset, cos, sin, x)` rotates x[offset:offset+N] in place: half-split in attn_decode_npu2.o
(and where N is 64 and nothing says otherwise), interleaved in rope.o and mha.o.

`sinf_bf16`, `cosf_bf16` (any suffix) reduce the angle by multiples of pi/2 and evaluate two quartic pairs in bf16. The
builds differ in the rounding of the multiple (to_fixed floors, the scalar cast cuts towards zero) and in where the
reduced angle stays float32; rope.o and attn_decode_npu2.o narrow it, sine_cosine.o and mha.o do not. On float32 angles
(attn_decode_npu2) the reduction is float32 with the same two-term pi/2.

`freq_pos_*` multiplies the position by a table of frequencies: theta 10000 and 24 entries (padded with zeros to 32 in
rope.o), or theta 500000 and 32 entries given to six decimals (attn_decode_npu2). Option rope_theta replaces the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, lane_scalar, uniform, write_part
from npu_tools.emulator.numerics import Numerics

_SIN = (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880)
_COS = (1 / 24, -1 / 720, 1 / 40320, -2.75573e-7)
_TWO_OVER_PI, _HALF_PI = 0.6366197723675814, 1.5707963


def _interleaved(call: Call) -> bool:
    chosen = call.surroundings.options.get("rope")
    if chosen is not None:
        return chosen == "interleaved"
    name = call.surroundings.function.lower()
    return "rope_lut" in name or "interleaved" in name


def rotate_halves(numerics: Numerics, x: Array, cos: Array, sin: Array) -> tuple[Array, Array]:
    """Rotation of pairs (x[i], x[i + half]), products in float32, sums rounded down."""
    narrow = numerics.rounder("bf16", kind="rope", rounding="floor")
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return narrow(first * cos - second * sin), narrow(first * sin + second * cos)


def _rope(call: Call) -> Built | None:
    partial = "partial" in call.match[0]
    if memrefs(call) != (0, 1, 2) or len(call.operands) != (5 if partial else 4):
        return None
    interleaved = not partial and _interleaved(call)

    def run(
        numerics: Numerics, source: Array, lut: Array, out: Array, dims: Array | int, rotary: Array | int | None = None
    ) -> None:
        whole = uniform(dims)
        n = whole if rotary is None else uniform(rotary)
        x, table = flat(source), flat(lut)
        if interleaved:
            write_part(out, _rotate_pairs_rounding(numerics, x[..., :n], table[..., :n]), 0)
            return
        half = n // 2
        low, high = rotate_halves(numerics, x[..., :n], table[..., :half], table[..., half:n])
        write_part(out, low, 0)
        write_part(out, high, half)
        if n < whole:
            write_part(out, x[..., n:whole], n)

    source = "rope_lut/rope.cc" if interleaved else "rope_halfsplit/rope_halfsplit.cc"
    products = "products and sums" if interleaved else "sums"
    return Built(
        run,
        (0, 1, 3, 4) if partial else (0, 1, 3),
        (2,),
        f"{products} bf16 (floor)",
        source=f"mlir-air programming_examples/{source}",
    )


def _rotate_pairs_rounding(numerics: Numerics, x: Array, table: Array) -> Array:
    narrow = numerics.rounder("bf16", kind="rope", rounding="floor")
    even, odd, cos, sin = x[..., 0::2], x[..., 1::2], table[..., 0::2], table[..., 1::2]
    low = narrow(narrow(even * cos) - narrow(odd * sin))
    high = narrow(narrow(even * sin) + narrow(odd * cos))
    return np.stack([low, high], axis=-1).reshape(*low.shape[:-1], -1)


def _shuffle_apply(call: Call) -> Built | None:
    if memrefs(call) != (1, 2, 3) or len(call.operands) != 4:
        return None
    size = int(call.match["size"])
    told = "mha" in call.link_with or "rope.o" in call.link_with
    halves = "attn_decode" in call.link_with or (size == 64 and not told)

    def run(numerics: Numerics, offset: Array | int, cos: Array, sin: Array, data: Array) -> None:
        start = uniform(offset)
        x = np.array(flat(data)[..., start : start + size])
        c, s = flat(cos)[..., : size // 2], flat(sin)[..., : size // 2]
        if halves:
            result = np.concatenate(rotate_halves(numerics, x, c, s), axis=-1)
        else:
            paired = np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
            low, high = rotate_halves(numerics, paired, c, s)
            result = np.stack([low, high], axis=-1).reshape(*low.shape[:-1], -1)
        write_part(data, result, start)

    return Built(run, (0, 1, 2, 3), (3,), "products in float32, sums bf16 (floor)")


def frequencies(call: Call, count: int) -> tuple[Array, bool]:
    """The float32 frequency table of a freq_pos kernel, and whether it is multiplied in float32 (else in bf16)."""
    theta, suffix = call.surroundings.options.get("rope_theta"), call.match["suffix"]
    steps = np.arange(count)
    in_float = call.operands[1].element == "f32" or (suffix is not None and count == 32)
    if theta is not None:
        return (float(theta) ** (-steps / count)).astype(np.float32), in_float
    if in_float:
        # attn_decode_npu2.cc writes its table with six decimals.
        return np.round(500000.0 ** (-steps / count), 6).astype(np.float32), True
    if suffix is not None:
        return (10000.0 ** (-steps / count)).astype(np.float32), False
    return np.where(steps < 24, 10000.0 ** (-steps / 24), 0.0).astype(np.float32), False


def _freq_pos(call: Call) -> Built | None:
    if memrefs(call) != (1,) or len(call.operands) != 2:
        return None
    table, in_float = frequencies(call, call.operands[1].size)
    element = call.operands[1].element

    def run(numerics: Numerics, position: Array | int, out: Array) -> None:
        narrow = numerics.rounder(element, kind="freq_pos", rounding="floor")
        place = np.array(lane_scalar(position), np.float32)[..., None]
        if in_float:
            write_part(out, narrow(place * table), 0)
            return
        write_part(out, narrow(narrow(place) * numerics.round_to(table, "bf16", rounding="conv_even")), 0)

    rounding = "position, table and product bf16 (floor)" if not in_float else f"float32 product, stored to {element}"
    return Built(run, (0,), (1,), rounding)


def _sine(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 2:
        return None
    sine = "sinf" in call.match[0]
    single = call.operands[0].element == "f32"
    narrow_angle = single or "rope" in call.link_with or "attn_decode" in call.link_with
    cut = narrow_angle

    def run(numerics: Numerics, angles: Array, out: Array) -> None:
        write_part(out, sine_cosine(numerics, flat(angles), sine, single, narrow_angle, cut), 0)

    return Built(run, (0,), (1,), "reduced angle, its powers and both polynomials bf16 (floor)")


def sine_cosine(numerics: Numerics, angles: Array, sine: bool, single: bool, narrow_angle: bool, cut: bool) -> Array:
    """Sine or cosine of angles as the kernels' quartics give it, bf16.

    `single`: the angles are float32 and so is their reduction. `narrow_angle`: the reduced angle and the cosine's
    leading terms are narrowed before use. `cut`: the multiple of pi/2 is cut towards zero instead of floored.
    """
    narrow = numerics.rounder("bf16", kind="sine_cosine", rounding="floor")

    def constant(value: float) -> np.float32:
        return np.float32(numerics.round_to(np.float32(value), "bf16", rounding="conv_even"))

    half_pi = np.float32(_HALF_PI) if single else constant(_HALF_PI)
    turns = angles * (np.float32(_TWO_OVER_PI) if single else constant(_TWO_OVER_PI)) + np.float32(0.5)
    if not single:
        turns = narrow(turns)
    whole = np.trunc(turns) if cut else np.floor(turns)
    quadrant = np.nan_to_num(whole).astype(np.int64)
    accumulated = angles - half_pi * whole
    x = narrow(np.array(accumulated))
    square = narrow(x * x)
    leading = np.float32(1) - np.float32(0.5) * square
    base = x if narrow_angle else accumulated
    if narrow_angle:
        leading = narrow(leading)
    fourth = narrow(square * square)
    odd = _polynomial(narrow, [constant(value) for value in _SIN], square, fourth)
    even = _polynomial(narrow, [constant(value) for value in _COS], square, fourth)
    sines: Array = narrow(base + narrow(square * x) * odd)
    cosines: Array = narrow(leading + fourth * even)
    odd_quadrant: Array = np.equal(quadrant & 1, 1)
    negative: Array = np.equal(quadrant & 2, 2) if sine else np.equal(((quadrant >> 1) ^ quadrant) & 1, 1)
    result: Array = np.where(np.equal(odd_quadrant, sine), cosines, sines)
    return np.where(negative, -result, result)


def _polynomial(narrow: Callable[[Array], Array], c: Sequence[np.float32], square: Array, fourth: Array) -> Array:
    return narrow((c[0] + c[1] * square) + fourth * narrow(c[2] + c[3] * square))


_AIR = "mlir-air programming_examples/"

FAMILIES: tuple[Family, ...] = (
    Family(
        "rope",
        r"rope(?:_partial)?",
        ("rope", "rope_partial"),
        _AIR + "rope_halfsplit/rope_halfsplit.cc, rope_lut/rope.cc",
        "x [dims], LUT [dims], out [dims], dims (and for rope_partial the rotary dims)",
        _rope,
    ),
    Family(
        "shuffle_apply_rope",
        r"shuffle_apply_rope_bf16_(?P<size>\d+)",
        ("shuffle_apply_rope_bf16_48", "shuffle_apply_rope_bf16_64"),
        _AIR + "rope_sincos/rope.cc, llama2_mha/mha.cc, attention_decode/attn_decode_npu2.cc",
        "offset, cos, sin, x",
        _shuffle_apply,
    ),
    Family(
        "freq_pos",
        r"freq_pos_(?:bf16|f32)(?P<suffix>_\d+_\d+)?",
        ("freq_pos_bf16", "freq_pos_bf16_24_8", "freq_pos_f32_32_16"),
        _AIR + "rope_sincos/rope.cc, llama2_mha/mha.cc, attention_decode/attn_decode_npu2.cc",
        "position, angles",
        _freq_pos,
    ),
    Family(
        "sine_cosine",
        r"(?:sinf|cosf)_bf16(?:_\d+_\d+)?",
        ("sinf_bf16", "cosf_bf16", "sinf_bf16_24_8", "cosf_bf16_24_8", "sinf_bf16_32_16"),
        _AIR + "sine_cosine/sine_cosine.cc, rope_sincos/rope.cc, attention_decode/attn_decode_npu2.cc",
        "angles [n], values [n]",
        _sine,
    ),
)
