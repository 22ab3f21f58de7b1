"""Decode attention of one token, and the vector kernels beside it.

Read in mlir-air programming_examples: llama2_mha/mha.cc (attn_1, attn_2, vector_copy, roundI32ToBf16) and
attention_decode/attn_decode_npu2.cc (attn_1_group, attn_2_group, copy_scale_q_bf16, xrms_demux_bf16, simple_rms_bf16).

attn_1 writes one score, q k / sqrt(48), at a position; attn_1_group one for each query head of a group, unscaled, since
copy_scale_q_bf16 has scaled the queries by 0.125. attn_2 and attn_2_group add weight[pos] * v to their accumulator. Sums
are float32; scores, accumulators and scaled queries are bf16, rounded down (floor): neither object sets a mode.
simple_rms_bf16 takes its inverse square root from one Newton step on the well-known bit guess, as the C++ does, and
multiplies by it in bf16. Group size and head size are read off the operands.
"""

from __future__ import annotations

import numpy as np

from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, shaped, uniform, write_part
from npu_tools.emulator.kernels.sums import running_sum, tree_sum
from npu_tools.emulator.numerics import Numerics

_SCORE_SCALE = np.float32(float.fromhex("0x1.279a74p-3"))
"""1 / sqrt(48), as mha.cc writes it."""


def dot(a: Array, b: Array, lanes: int) -> Array:
    """Dot products along the last axis in float32, `lanes` at a time as a vector register sums them."""
    product = a * b
    parts = product.reshape(*product.shape[:-1], -1, lanes)
    return tree_sum(running_sum(parts, -2), -1)


def _score(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 3) or len(call.operands) != 4:
        return None
    group = call.match["group"] is not None

    def run(numerics: Numerics, queries: Array, key: Array, position: Array | int, out: Array) -> None:
        k, place = flat(key), uniform(position)
        size = k.shape[-1]
        heads = flat(queries).shape[-1] // size if group else 1
        q = flat(queries)[..., : heads * size].reshape(*queries.shape[:2], heads, size)
        total = dot(q, k[:, :, None], 32 if group else 16)
        if not group:
            total = total * _SCORE_SCALE
        scores = numerics.round_to(total, "bf16", kind="attn_1", rounding="floor")
        span = flat(out).shape[-1] // heads
        for head in range(heads):
            write_part(out, scores[..., head, None], head * span + place)

    return Built(run, (0, 1, 2), (3,), "float32 sum, score bf16 (floor)")


def _weighted(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 3) or len(call.operands) != 4:
        return None
    group = call.match["group"] is not None

    def run(numerics: Numerics, weights: Array, value: Array, position: Array | int, out: Array) -> None:
        v, place = flat(value), uniform(position)
        size = v.shape[-1]
        heads = flat(out).shape[-1] // size if group else 1
        chosen = shaped(weights, heads, flat(weights).shape[-1] // heads)[..., place]
        total = flat(out)[..., : heads * size].reshape(*out.shape[:2], heads, size) + chosen[..., None] * v[:, :, None]
        rounded = numerics.round_to(total, "bf16", kind="attn_2", rounding="floor")
        write_part(out, rounded.reshape(*rounded.shape[:2], -1), 0)

    return Built(run, (0, 1, 2, 3), (3,), "float32 product and sum, accumulator bf16 (floor)", accumulators=(3,))


def _copy_at(call: Call) -> Built | None:
    if memrefs(call) != (1, 2) or len(call.operands) != 3:
        return None

    def run(numerics: Numerics, offset: Array | int, source: Array, target: Array) -> None:
        write_part(target, flat(source), uniform(offset))

    return Built(run, (0, 1, 2), (2,), "none")


def _from_integers(call: Call) -> Built | None:
    if memrefs(call) != (0, 2) or len(call.operands) != 3:
        return None

    def run(numerics: Numerics, source: Array, offset: Array | int, target: Array) -> None:
        values = flat(source)[..., :48].astype(np.float32)
        write_part(target, numerics.round_to(values, "bf16", kind="to_float", rounding="floor"), uniform(offset))

    return Built(run, (0, 1, 2), (2,), "int32 to bf16 (floor)")


def _scale_queries(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 3:
        return None

    def run(numerics: Numerics, source: Array, target: Array, count: Array | int) -> None:
        values = flat(source)[..., : uniform(count)] * np.float32(0.125)
        write_part(target, numerics.round_to(values, "bf16", kind="copy_scale_q", rounding="floor"), 0)

    return Built(run, (0, 2), (1,), "bf16 (floor), exact for a power of two")


def _demux(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 4:
        return None

    def run(numerics: Numerics, packed: Array, x: Array, weight: Array, count: Array | int) -> None:
        n = uniform(count)
        write_part(x, flat(packed)[..., :n], 0)
        write_part(weight, flat(packed)[..., n : 2 * n], 0)

    return Built(run, (0, 3), (1, 2), "none")


def newton_rsqrt(values: Array) -> Array:
    """1/sqrt(x) by the bit guess and one Newton step, float32: within 0.18 %."""
    x = np.ascontiguousarray(values, np.float32)
    guess = (np.int32(0x5F3759DF) - (x.view(np.int32) >> 1)).view(np.float32)
    return guess * (np.float32(1.5) - np.float32(0.5) * x * guess * guess)


def _simple_rms(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 4:
        return None

    def run(numerics: Numerics, x: Array, weight: Array, out: Array, count: Array | int) -> None:
        n = uniform(count)
        values = flat(x)[..., :n]
        mean = dot(values, values, 16) * np.float32(1.0 / n) + np.float32(1e-5)
        exact = numerics.mode == "f32"
        narrow = numerics.rounder("bf16", kind="simple_rms", rounding="floor")
        factor = narrow(numerics.rsqrt(mean) if exact else newton_rsqrt(mean))[..., None]
        write_part(out, narrow(narrow(values * factor) * flat(weight)[..., :n]), 0)

    return Built(run, (0, 1, 3), (2,), "float32 sum of squares, factor and both products bf16 (floor)")


_MHA = "mlir-air programming_examples/llama2_mha/mha.cc"
_DECODE = "mlir-air programming_examples/attention_decode/attn_decode_npu2.cc"

FAMILIES: tuple[Family, ...] = (
    Family(
        "decode_scores",
        r"attn_1(?P<group>_group)?",
        ("attn_1", "attn_1_group"),
        f"{_MHA}, {_DECODE}",
        "queries, key [d], position, scores",
        _score,
    ),
    Family(
        "decode_output",
        r"attn_2(?P<group>_group)?",
        ("attn_2", "attn_2_group"),
        f"{_MHA}, {_DECODE}",
        "weights, value [d], position, output",
        _weighted,
    ),
    Family("vector_copy", r"vector_copy", ("vector_copy",), _MHA, "offset, source, target", _copy_at),
    Family("round_i32", r"roundI32ToBf16", ("roundI32ToBf16",), _MHA, "source i32, offset, target", _from_integers),
    Family(
        "copy_scale_q", r"copy_scale_q_bf16", ("copy_scale_q_bf16",), _DECODE, "source, target, count", _scale_queries
    ),
    Family("xrms_demux", r"xrms_demux_bf16", ("xrms_demux_bf16",), _DECODE, "packed, x, weight, count", _demux),
    Family("simple_rms", r"simple_rms_bf16", ("simple_rms_bf16",), _DECODE, "x, weight, y, count", _simple_rms),
)
