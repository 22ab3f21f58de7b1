"""Narrowing of arrays to bf16 and to fixed widths, as fast as numpy allows.

bf16 is held as float32 arrays whose low 16 bits are zero. Three ways of getting there matter on AIE2 and AIE2P, and a
core's control register says which one is in force: `conv_even` (nearest, ties to even), `floor` (towards minus
infinity; what a core does until something sets the register) and `toward_zero`.

NaN stays NaN and keeps its sign; infinities stay; a finite value past the largest bf16 becomes infinity under
`conv_even`, as in IEEE 754.

    round_bf16(np.float32([1.00390625]))                 # -> 1.0 (a tie, to even)
    round_bf16(np.float32([-1.001]), "floor")            # -> -1.0078125
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Rounding = Literal["conv_even", "floor", "toward_zero"]
F32 = NDArray[np.float32]

# Work in pieces that stay in the first-level cache: four passes over 32 Ki words cost about as much as one over DRAM.
_PIECE = 32 * 1024
_HIGH = np.uint32(0xFFFF0000)
_LOW = np.uint32(0xFFFF)
_SIGN = np.uint32(0x80000000)
_QUIET_NAN = np.uint32(0x7FC00000)
_HALF_LESS = np.uint32(0x7FFF)
_ONE, _SIXTEEN, _THIRTY_ONE = np.uint32(1), np.uint32(16), np.uint32(31)


def round_bf16(values: Any, how: Rounding = "conv_even", *, out: F32 | None = None) -> F32:
    """`values` (any shape, converted to float32) rounded to bf16, in a new array or in `out` (which may be `values`)."""
    source = np.asarray(values, dtype=np.float32)
    if out is None:
        out = np.empty(source.shape, np.float32)
    elif out.shape != source.shape:
        raise ValueError(f"out has shape {out.shape}, the values {source.shape}")
    if source.flags.c_contiguous and out.flags.c_contiguous:
        flat_in, flat_out = source.reshape(-1).view(np.uint32), out.reshape(-1).view(np.uint32)
        if flat_in.size <= _PIECE:
            _round_words(flat_in, flat_out, how)
            return out
        for start in range(0, flat_in.size, _PIECE):
            piece = slice(start, start + _PIECE)
            _round_words(flat_in[piece], flat_out[piece], how)
        return out
    words = np.ascontiguousarray(source).reshape(-1).view(np.uint32)
    rounded = np.empty_like(words)
    for start in range(0, words.size, _PIECE):
        piece = slice(start, start + _PIECE)
        _round_words(words[piece], rounded[piece], how)
    out[...] = rounded.view(np.float32).reshape(source.shape)
    return out


def _round_words(words: NDArray[np.uint32], out: NDArray[np.uint32], how: Rounding) -> None:
    nan: NDArray[np.bool_] | None = None
    kept_nan: NDArray[np.uint32] | None = None
    if words.size and np.isnan(np.maximum.reduce(words.view(np.float32))):
        nan = np.isnan(words.view(np.float32))
        kept_nan = (words[nan] & _SIGN) | _QUIET_NAN
    if how == "conv_even":
        bias = words >> _SIXTEEN
        bias &= _ONE
        bias += _HALF_LESS
        np.add(words, bias, out=out)
    elif how == "floor":
        # Negative values move away from zero unless exact; infinities have no low bits and stay.
        bias = words >> _THIRTY_ONE
        bias *= _LOW
        np.add(words, bias, out=out)
    elif out is not words:
        np.copyto(out, words)
    out &= _HIGH
    if nan is not None and kept_nan is not None:
        out[nan] = kept_nan


def is_bf16(values: Any) -> bool:
    """Whether every float32 in `values` is exactly a bf16 value."""
    words = np.ascontiguousarray(np.asarray(values, dtype=np.float32)).view(np.uint32)
    return not bool((words & np.uint32(0xFFFF)).any())


def to_integer(values: Any, bits: int, *, signed: bool = True) -> NDArray[Any]:
    """Floats cut towards zero to `bits` wide integers; past the range they saturate and NaN becomes 0.

    MLIR leaves both cases undefined (poison); saturation is what the core's float-to-fixed conversion does.
    """
    kind = integer_dtype(bits, signed=signed)
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
    wide = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    cut = np.trunc(wide)
    # float(2**63 - 1) rounds up, so the ends are set apart instead of clipped to.
    inside = np.where((cut > low) & (cut < high), cut, 0.0).astype(kind)
    result = np.where(cut >= high, kind(high), np.where(cut <= low, kind(low), inside))
    return result.astype(kind)


def shift_round_saturate(
    values: Any, shift: int, bits: int, *, how: Rounding = "conv_even", saturate: bool = True, signed: bool = True
) -> NDArray[Any]:
    """The core's SRS: an accumulator divided by 2**shift, rounded, then saturated (or cut) to `bits`."""
    wide = np.asarray(values, dtype=np.int64)
    if shift > 0:
        floor = wide >> shift
        rest = wide - (floor << shift)
        half = np.int64(1) << (shift - 1)
        match how:
            case "conv_even":
                wide = floor + ((rest > half) | ((rest == half) & ((floor & 1) == 1)))
            case "floor":
                wide = floor
            case "toward_zero":
                wide = floor + ((floor < 0) & (rest != 0))
    if saturate:
        low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
        wide = np.clip(wide, low, high)
    return wrap_integer(wide, bits, signed=signed)


def wrap_integer(values: Any, bits: int, *, signed: bool = True) -> NDArray[Any]:
    """Integers cut to `bits` (two's complement); widths numpy lacks live in the next wider type, i1 in bool."""
    kind = integer_dtype(bits, signed=signed)
    array = np.asarray(values)
    if bits == 1:
        return (array.astype(np.int64) & 1).astype(np.bool_)
    if bits in (8, 16, 32, 64):
        return array.astype(kind)
    cut = array.astype(np.int64) & ((1 << bits) - 1)
    if signed:
        cut = np.where(cut >= (1 << (bits - 1)), cut - (1 << bits), cut)
    return cut.astype(kind)


def integer_dtype(bits: int, *, signed: bool = True) -> type[np.generic]:
    """The numpy type that holds an integer of `bits`.

    Raises:
        ValueError: wider than 64 bits.
    """
    if bits == 1:
        return np.bool_
    for width, kind, unsigned in (
        (8, np.int8, np.uint8),
        (16, np.int16, np.uint16),
        (32, np.int32, np.uint32),
        (64, np.int64, np.uint64),
    ):
        if bits <= width:
            return kind if signed else unsigned
    raise ValueError(f"no numpy integer holds {bits} bits")
