"""arith's conversions: between integer widths, index, floats, and bits read as another type."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Attribute, Operation

from npu_tools.emulator.ops.arith import apply_unary, as_unsigned, plain, signed_wide
from npu_tools.emulator.ops.core import core_numerics
from npu_tools.emulator.ops.signature import attribute, dtype, is_bf16, is_float, is_index, refuse, width_of
from npu_tools.emulator.rounding import to_integer, wrap_integer
from npu_tools.emulator.types import Instruction, Lower, Lowering


def index_cast(*, signed: bool) -> Lower:
    """Lowering of index_cast and index_castui, both ways."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        source, target = op.operands[0].type, op.results[0].type
        bits_in, bits_out = width_of(source), width_of(target)

        def to_index(value: Any) -> Any:
            wide = signed_wide(value) if signed else as_unsigned(value, bits_in).astype(np.int64)
            return int(wide) if wide.ndim == 0 else wide

        if is_index(target):
            return apply_unary(op, low, to_index)
        return apply_unary(op, low, lambda value: plain(wrap_integer(value, bits_out)))

    return lower


def extend_integer(*, signed: bool) -> Lower:
    """Lowering of extsi and extui; i1 true becomes -1 or 1."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        bits, kind = width_of(op.operands[0].type), dtype(op.results[0].type)

        def run(value: Any) -> Any:
            wide = signed_wide(value) if signed else as_unsigned(value, bits)
            return plain(wide.astype(kind))

        return apply_unary(op, low, run)

    return lower


def trunci(op: Operation, low: Lowering) -> Instruction:
    """The low bits."""
    bits = width_of(op.results[0].type)
    return apply_unary(op, low, lambda value: plain(wrap_integer(value, bits)))


def int_to_float(*, signed: bool) -> Lower:
    """Lowering of sitofp and uitofp: through float32 to bf16, as the core converts."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        bits, target = width_of(op.operands[0].type), op.results[0].type
        rounded = core_numerics(op, low).rounder(target, kind=op.name)
        kind = dtype(target)

        def run(value: Any) -> Any:
            wide = signed_wide(value) if signed else as_unsigned(value, bits)
            return rounded(plain(wide.astype(kind)))

        return apply_unary(op, low, run)

    return lower


def float_to_int(*, signed: bool) -> Lower:
    """Lowering of fptosi and fptoui."""

    def lower(op: Operation, low: Lowering) -> Instruction:
        bits, kind = width_of(op.results[0].type), dtype(op.results[0].type)
        return apply_unary(op, low, lambda v: plain(to_integer(v, bits, signed=signed).astype(kind)))

    return lower


def extf(op: Operation, low: Lowering) -> Instruction:
    """Exact; bf16 is in float32 already."""
    kind = dtype(op.results[0].type)

    def run(value: Any) -> Any:
        return value if value.dtype == kind else value.astype(kind)

    return apply_unary(op, low, run)


def truncf(op: Operation, low: Lowering) -> Instruction:
    """Rounds once, to bf16 in the core's mode (or as the op's own rounding mode says), to others to nearest even."""
    target = op.results[0].type
    numerics = core_numerics(op, low)
    kind = dtype(target)
    mode = attribute(op, "roundingmode")
    if mode is not None and "to_nearest_even" not in str(mode) and str(mode) != "0 : i32":
        refuse(
            op, f"the rounding mode {mode} is not modelled", "leave the rounding mode out: the core's register decides"
        )
    forced = "conv_even" if mode is not None else None

    def run(value: Any) -> Any:
        narrow = value if value.dtype == kind else value.astype(kind)
        return numerics.round_to(narrow, target, kind=op.name, rounding=forced)

    return apply_unary(op, low, run)


def bitcast(op: Operation, low: Lowering) -> Instruction:
    """The same bits as another type of the same width."""
    source, target = op.operands[0].type, op.results[0].type
    return apply_unary(op, low, lambda value: plain(from_bits(to_bits(value, source), target)))


def to_bits(value: Any, kind: Attribute) -> NDArray[Any]:
    """The stored bits of a value as unsigned integers of its width."""
    array = np.ascontiguousarray(value).reshape(np.shape(value))
    if is_bf16(kind):
        return np.right_shift(array.astype(np.float32).view(np.uint32), np.uint32(16)).astype(np.uint16)
    if is_float(kind):
        return array.view(f"u{array.dtype.itemsize}")
    return np.asarray(as_unsigned(array, width_of(kind)))


def from_bits(bits: NDArray[Any], kind: Attribute) -> NDArray[Any]:
    """Values of a type from their stored bits."""
    if is_bf16(kind):
        return np.left_shift(bits.astype(np.uint32), np.uint32(16)).view(np.float32)
    if is_float(kind):
        return bits.astype(f"u{dtype(kind).itemsize}").view(dtype(kind))
    return np.asarray(wrap_integer(bits, width_of(kind)))


LOWERINGS: dict[str, Lower] = {
    "arith.index_cast": index_cast(signed=True),
    "arith.index_castui": index_cast(signed=False),
    "arith.extsi": extend_integer(signed=True),
    "arith.extui": extend_integer(signed=False),
    "arith.trunci": trunci,
    "arith.sitofp": int_to_float(signed=True),
    "arith.uitofp": int_to_float(signed=False),
    "arith.fptosi": float_to_int(signed=True),
    "arith.fptoui": float_to_int(signed=False),
    "arith.extf": extf,
    "arith.truncf": truncf,
    "arith.bitcast": bitcast,
}
"""What this module lowers, by op name."""
