"""The core's own functions: exp2, exp, tanh, inverse, inverse square root, as float32 arrays before any narrowing.

Each is judged against an error the vendor publishes for a kernel that is built on it (measured on NPU2):

    function   model                                           kernel           published   this model   true function
    exp2       2**floor(x) * (1 + x - floor(x)), no table      FlashAttention   3.9e-2      3.6 .. 4.0e-2      1.6e-2
    tanh       x up to 0.5, then tanh of |x| cut to 6 bits,    SiLU * up        1.02e-2     0.98e-2            4.5e-3
               to the nearest bf16                             GELU             8.41e-3     8.36e-3            5.4e-3

Sources: mlir-aie skills/aie-kernel-opt-hw/references/measurement.md ("aie::exp2 is a linear interpolant that
overshoots by up to 6.15 %", "vtanh returns x for |x| <= 0.5"); mlir-air kernel_registry/details. The linear form is
stated and confirmed; the table of tanh is inferred from the two published errors (about forty forms were tried:
steps and secants of many widths, rounded and floored), no more. AIE2 has no such
instructions: its kernels use tables accurate to bf16, so there `exact=True` is right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npu_tools.emulator.rounding import F32, round_bf16

LOG2_E = np.float32(1.4426950408889634)
# Sign, exponent and the first five bits of the mantissa.
_SIX_BITS = np.uint32(0xFFFC0000)


def exp2(values: Any, *, exact: bool = False) -> F32:
    """2 to the values. Underflows to 0 and overflows to infinity as float32 does; NaN stays."""
    x = np.asarray(values, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if exact:
            return np.exp2(x)
        # Past these ends the result is 0 or infinite anyway, and floor stays an integer that ldexp takes.
        bounded = np.clip(x, np.float32(-300), np.float32(300))
        whole = np.floor(bounded)
        exponent = np.where(np.isnan(whole), np.float32(0), whole).astype(np.int32)
        result = np.ldexp(np.float32(1) + (bounded - whole), exponent)
    return np.asarray(result, np.float32)


def exp(values: Any, *, exact: bool = False) -> F32:
    """e to the values: exp2 of x * log2(e) in float32."""
    x = np.asarray(values, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        return np.exp(x) if exact else exp2(x * LOG2_E)


def tanh(values: Any, *, exact: bool = False) -> F32:
    """tanh as the core's instruction gives it: a bf16 number already."""
    x = np.asarray(values, dtype=np.float32)
    if exact:
        return np.tanh(x)
    magnitude = np.ascontiguousarray(np.abs(x)).reshape(x.shape)
    table = round_bf16(np.tanh((magnitude.view(np.uint32) & _SIX_BITS).view(np.float32)))
    small = round_bf16(magnitude)
    return np.copysign(np.where(magnitude <= 0.5, small, table), x)


def rsqrt(values: Any) -> F32:
    """1 / sqrt(x) in float32: infinite at 0, NaN below."""
    x = np.asarray(values, dtype=np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.float32(1) / np.sqrt(x), np.float32)


def inv(values: Any) -> F32:
    """1 / x in float32."""
    with np.errstate(divide="ignore"):
        return np.float32(1) / np.asarray(values, dtype=np.float32)
