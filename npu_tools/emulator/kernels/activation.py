"""Gated activations and softmax.

Read in mlir-air programming_examples: silu_and_mul/silu_and_mul.cc, gelu_and_mul/gelu_and_mul.cc,
ffn_swiglu/*/ffn_kernels.cc (swiglu_bf16, the same as SiLU), softmax/softmax.cc, llama2_mha/mha.cc.

SiLU and GELU are built on the core's tanh, and every intermediate is a bf16 vector; none sets a rounding mode, so each
is rounded down (floor) as a core does after reset. softmax_bf16 uses the AIE2 exponential tables and an inverse from a
table of 128 mantissas; it works in whole vectors of 16, so up to 15 elements past the count take part, and everything
past them is zero. softmax.o counts `pos + 1` elements, mha.o takes the count itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from npu_tools.emulator.kernels.flash_attention import table_exp
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, uniform, write_part
from npu_tools.emulator.kernels.sums import running_sum, tree_sum
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.rounding import round_bf16

Narrow = Callable[[Array], Array]
Activation = Callable[[Numerics, Narrow, Array], Array]
_EVERY: Array = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
"""Every bf16 number, by its bits."""

_HALF, _ONE = np.float32(0.5), np.float32(1)
_ROOT_2_OVER_PI, _CUBE = np.float32(0.7978845608), np.float32(0.044715)


def silu_stages(numerics: Numerics, narrow: Narrow, gate: Array) -> Array:
    """gate * sigmoid(gate), each stage narrowed."""
    tanh = narrow(numerics.tanh(narrow(gate * _HALF)))
    return narrow(gate * narrow(_HALF * narrow(_ONE + tanh)))


def gelu_stages(numerics: Numerics, narrow: Narrow, gate: Array) -> Array:
    """The tanh form of GELU, each stage narrowed; its two constants are bf16."""
    root = numerics.round_to(_ROOT_2_OVER_PI, "bf16", rounding="conv_even")
    cube = numerics.round_to(_CUBE, "bf16", rounding="conv_even")
    cubed = narrow(narrow(gate * gate) * gate)
    inner = narrow(root * narrow(gate + narrow(cube * cubed)))
    one_plus = narrow(_ONE + narrow(numerics.tanh(inner)))
    return narrow(narrow(_HALF * gate) * one_plus)


_TABLES: dict[tuple[Activation, str], Array] = {}


def _looked_up(activation: Activation, numerics: Numerics, gate: Array) -> Array | None:
    """The activation of bf16 numbers from a table of all there are; None where they are others, or are counted."""
    if numerics.mode == "f32" or numerics.report is not None or gate.size < len(_EVERY) // 64:
        return None
    if gate.dtype != np.float32 or gate.strides[-1] != 4 or sys.byteorder != "little":
        return None
    halves = gate.view(np.uint16)
    if halves[..., ::2].any():
        return None
    table = _TABLES.get((activation, numerics.generation))
    if table is None:
        narrow = numerics.rounder("bf16", rounding="floor")
        with np.errstate(all="ignore"):
            table = _TABLES[activation, numerics.generation] = activation(numerics, narrow, _EVERY)
    return table.take(halves[..., 1::2])


def _gated(activation: Activation, kind: str) -> Callable[[Call], Built | None]:
    def build(call: Call) -> Built | None:
        if memrefs(call) != (0, 1, 2) or len(call.operands) not in (3, 4):
            return None

        def run(numerics: Numerics, gate: Array, up: Array, out: Array, count: Array | int | None = None) -> None:
            n = flat(out).shape[-1] if count is None else uniform(count)
            narrow = numerics.rounder("bf16", kind=kind, rounding="floor")
            given = flat(gate)[..., :n]
            active = _looked_up(activation, numerics, given)
            if active is None:
                active = activation(numerics, narrow, given)
            write_part(out, narrow(active * flat(up)[..., :n]), 0)

        reads = (0, 1, 3) if len(call.operands) == 4 else (0, 1)
        return Built(run, reads, (2,), "every stage bf16 (floor), tanh of the core")

    return build


def table_inverse(values: Array) -> Array:
    """1/x as the softmax kernels take it: x rounded half up to bf16, then the nearest bf16 mantissa of its inverse."""
    bits = values.astype(np.float32).view(np.uint32) + np.uint32(0x8000)
    rounded = (bits & np.uint32(0xFFFF0000)).view(np.float32)
    with np.errstate(divide="ignore"):
        return round_bf16(np.float32(1) / rounded)


def _softmax(call: Call) -> Built | None:
    if memrefs(call) != (0, 2) or len(call.operands) != 3:
        return None
    extra = 0 if "mha" in call.link_with else 1

    def run(numerics: Numerics, source: Array, count: Array | int, out: Array) -> None:
        given = flat(source)
        n = min(-(-(uniform(count) + extra) // 16) * 16, given.shape[-1])
        narrow = numerics.rounder("bf16", kind="softmax", rounding="floor")
        top = given[..., :n].max(axis=-1, keepdims=True)
        difference = narrow(given[..., :n] - top)
        exact = numerics.mode == "f32"
        weights = np.exp(difference, dtype=np.float32) if exact else table_exp(difference)
        lanes = weights.reshape(*weights.shape[:2], -1, 16)
        total = tree_sum(running_sum(lanes, 2), -1)[..., None]
        inverse = np.float32(1) / total if exact else table_inverse(total)
        result = np.zeros((*weights.shape[:2], flat(out).shape[-1]), np.float32)
        result[..., :n] = narrow(narrow(weights) * inverse)
        write_part(out, result, 0)

    return Built(run, (0, 1), (2,), "exp by bf16 tables, float32 sum, inverse by table, weights bf16 (floor)")


_AIR = "mlir-air programming_examples/"

FAMILIES: tuple[Family, ...] = (
    Family(
        "silu_and_mul",
        r"silu_and_mul_bf16|swiglu_bf16",
        ("silu_and_mul_bf16", "swiglu_bf16"),
        _AIR + "silu_and_mul/silu_and_mul.cc, ffn_swiglu/*/ffn_kernels.cc",
        "gate [n], up [n], out [n], n",
        _gated(silu_stages, "silu_and_mul"),
    ),
    Family(
        "gelu_and_mul",
        r"gelu_and_mul_bf16",
        ("gelu_and_mul_bf16",),
        _AIR + "gelu_and_mul/gelu_and_mul.cc",
        "gate [n], up [n], out [n], n",
        _gated(gelu_stages, "gelu_and_mul"),
    ),
    Family(
        "softmax",
        r"softmax_bf16",
        ("softmax_bf16",),
        _AIR + "softmax/softmax.cc, llama2_mha/mha.cc",
        "scores [n], position or count, weights [n]",
        _softmax,
    ),
)
