"""Projection, norm, activation and rotary kernels of the fused Q4NX decode.

Read in mlir-air programming_examples/fused_decode/kernels: proj_qmm.cc and q4_k.h, rms_residual.cc, glu.cc, rope.cc,
lut_based_ops.h, model_spec.h; and models/*.h for what a model compiles in.

A weight block is 32 rows x 256 columns in 2560 bf16 words, raw bytes: 256 scales and 256 minima ([8 groups of 32 columns,
32 rows], bf16), then 4-bit weights [2 halves of 16 rows, 256 columns, 16 rows], low nibble first. A group's sum over its
32 columns is float32, rounded to bf16, scaled and added to the float32 accumulator; the minima times the bf16 sum of the
inputs follow. Q4_0 builds have signed weights and no minima: option `Q4_0`, or taken from the module when it declares
rms_copy_aie, as only the Qwen2.5 builder does.

rms_norm_* take 1/sqrt from the bit guess and two Newton steps, multiply x by the weight in float32, by the factor, and
round once; epsilon is 1e-6. residual_add_aie writes its sum back into its second operand too. glu_aie halves its input
into [up | gate] and reads SiLU (option A_FUNC="A_GELU": GELU) off a table of 64 chords: 1/4 apart from -8 (1/8 from -4).
The SiLU chords are the table's to its last digit; upstream's GELU table differs from the chords by up to 1e-3.
rope_compute rotates halves; head size, head counts, q/k norm and q/k/v bias follow from the operands' sizes, padded query
heads are zeroed, and a table shorter than the head rotates that much only.

No kernel sets a rounding mode: everything that becomes bf16 is rounded down (floor). The `_arm` operands do nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npu_tools.emulator.kernels.decode import dot
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, uniform, write_part
from npu_tools.emulator.kernels.rope import rotate_halves
from npu_tools.emulator.kernels.sums import running_sum, tree_sum
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput

_ROWS, _COLUMNS, _GROUP = 32, 256, 32
_GROUPS = _COLUMNS // _GROUP
_SCALES = _GROUPS * _ROWS
_BLOCK_WORDS = 2 * _SCALES + _ROWS * _COLUMNS // 4


def raw_bytes(words: Array) -> Array:
    """The bytes behind bf16 words held as float32, `[gx, gy, n]` to `[gx, gy, 2n]`."""
    high = (np.ascontiguousarray(words, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return high.view(np.uint8)


def unpack_block(words: Array, signed: bool) -> tuple[Array, Array, Array]:
    """Weights `[gx, gy, rows, groups, 32]`, scales and minima `[gx, gy, groups, rows]` of a block, float32."""
    lead = words.shape[:2]
    scales = words[..., :_SCALES].reshape(*lead, _GROUPS, _ROWS)
    minima = words[..., _SCALES : 2 * _SCALES].reshape(*lead, _GROUPS, _ROWS)
    nibbles = raw_bytes(words[..., 2 * _SCALES : _BLOCK_WORDS])
    q = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(*lead, 2, _GROUPS, _GROUP, 16).astype(np.float32)
    if signed:
        q = np.where(q > 7, q - 16, q)
    return q.transpose(0, 1, 2, 5, 3, 4).reshape(*lead, _ROWS, _GROUPS, _GROUP), scales, minima


def _q4_0(call: Call) -> bool:
    return bool(call.surroundings.options.get("Q4_0", "rms_copy_aie" in call.surroundings.declared))


def _project(call: Call) -> Built | None:
    cached = call.match[0].endswith("_c")
    expected = (0, 1, 2, 3) if cached else (0, 1, 2)
    if memrefs(call) != expected or len(call.operands) != (6 if cached else 3):
        return None
    if call.operands[1].size != _BLOCK_WORDS or call.operands[0].size != _COLUMNS or call.operands[2].size != _ROWS:
        raise UnusableInput(
            f"@{call.symbol} takes {_COLUMNS} inputs, a weight block of {_BLOCK_WORDS} bf16 words and {_ROWS} float32 "
            f"sums; it is given {', '.join(str(operand.size) for operand in call.operands[:3])}."
        )
    signed = _q4_0(call)

    def run(numerics: Numerics, x: Array, block: Array, total: Array, *cache: Array) -> None:
        narrow = numerics.rounder("bf16", kind="q4nx", rounding="floor")
        b = flat(x).reshape(*x.shape[:2], _GROUPS, _GROUP)
        weights, scales, minima = unpack_block(flat(block), signed)
        sums = narrow(running_sum(weights * b[:, :, None], 4))
        result = np.array(flat(total))
        inputs = None if signed else _input_sums(narrow, b, cache)
        for group in range(_GROUPS):
            result = result + sums[..., group] * scales[:, :, group]
            if inputs is not None:
                result = result + minima[:, :, group] * inputs[..., group, None]
        write_part(total, result, 0)

    reads = tuple(range(len(call.operands)))
    rounding = "a group's sum bf16 (floor), accumulator float32"
    writes = (2, 3) if cached and not signed else (2,)
    return Built(run, reads, writes, rounding, accumulators=(2,), macs=_ROWS * _COLUMNS)


def _input_sums(narrow: Callable[[Array], Array], inputs: Array, cache: tuple[Array, ...]) -> Array:
    """Sums of the inputs by group as bf16; taken from, or put into, the cache when there is one."""
    if not cache:
        return narrow(tree_sum(inputs, -1))
    store, index, fill = cache
    start = uniform(index) * _GROUPS
    if uniform(fill):
        write_part(store, narrow(tree_sum(inputs, -1)), start)
    return flat(store)[..., start : start + _GROUPS]


def _clear(call: Call) -> Built | None:
    if memrefs(call) != (0,) or len(call.operands) != 2:
        return None

    def run(numerics: Numerics, total: Array, arm: Array | int) -> None:
        total[...] = 0

    return Built(run, (), (0,), "none")


def _nothing(call: Call) -> Built | None:
    if memrefs(call) != (0,) or len(call.operands) != 2:
        return None

    def run(numerics: Numerics, cache: Array, arm: Array | int) -> None:
        return

    return Built(run, (), (), "none")


def _flush(call: Call) -> Built | None:
    row = call.match["row"] is not None
    if memrefs(call) != (0, 1) or len(call.operands) != (3 if row else 2):
        return None

    def run(numerics: Numerics, total: Array, out: Array, index: Array | int = 0) -> None:
        values = numerics.round_to(flat(total), "bf16", kind="q4nx.flush", rounding="floor")
        # Sixteen words in front are the packet's header.
        write_part(out, values, 16 + uniform(index) * _ROWS if row else 0)

    return Built(run, (0, 2) if row else (0,), (1,), "float32 to bf16 (floor)")


def two_step_rsqrt(values: Array) -> Array:
    """1/sqrt(x) by the bit guess and two Newton steps, float32."""
    x = np.ascontiguousarray(values, np.float32)
    half = x * np.float32(0.5)
    guess = (np.uint32(0x5F3759DF) - (x.view(np.uint32) >> np.uint32(1))).view(np.float32)
    for _ in range(2):
        guess = guess * (np.float32(1.5) - half * guess * guess)
    return guess


def rms_normalised(numerics: Numerics, x: Array, weight: Array) -> Array:
    """x * weight / rms(x) along the last axis, rounded once; epsilon 1e-6."""
    mean = dot(x, x, 16) * np.float32(1.0 / x.shape[-1]) + np.float32(1e-6)
    factor = numerics.rsqrt(mean) if numerics.mode == "f32" else two_step_rsqrt(mean)
    return numerics.round_to(x * weight * factor[..., None], "bf16", kind="rms_norm", rounding="floor")


def _rms_norm(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 4:
        return None
    upper = "_hi" in call.match[0]

    def run(numerics: Numerics, y: Array, x: Array, weight: Array, arm: Array | int) -> None:
        n = flat(y).shape[-1]
        w = flat(weight)[..., n : 2 * n] if upper else flat(weight)[..., :n]
        write_part(y, rms_normalised(numerics, flat(x)[..., :n], w), 0)

    return Built(run, (1, 2), (0,), "float32 throughout, one rounding (floor)")


def _residual(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None

    def run(numerics: Numerics, y: Array, kept: Array, x: Array) -> None:
        total = numerics.round_to(flat(x) + flat(kept), "bf16", kind="residual_add", rounding="floor")
        write_part(y, total, 0)
        write_part(kept, total, 0)

    return Built(run, (1, 2), (0, 1), "bf16 (floor)")


def _copy(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 2:
        return None

    def run(numerics: Numerics, target: Array, source: Array) -> None:
        write_part(target, flat(source)[..., : flat(target).shape[-1]], 0)

    return Built(run, (1,), (0,), "none")


def chord_activation(values: Array, gelu: bool) -> Array:
    """SiLU or GELU by chords: 64 pieces around zero, zero below the first, the identity from the last on."""
    step = 0.125 if gelu else 0.25
    edges = (np.arange(65) - 32) * step
    normal = np.array([0.5 * (1 + math.erf(edge / 2**0.5)) for edge in edges])
    exact = edges * normal if gelu else edges / (1 + np.exp(-edges))
    slope = np.diff(exact) / step
    offset = exact[:-1] - slope * edges[:-1]
    slope[0] = offset[0] = offset[-1] = 0.0
    slope[-1] = 1.0
    piece = np.clip(np.floor(np.nan_to_num(values) / step) + 32, 0, 63).astype(np.int64)
    return values * slope.astype(np.float32)[piece] + offset.astype(np.float32)[piece]


def _glu(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) not in (2, 3):
        return None
    gelu = call.surroundings.options.get("A_FUNC") == "A_GELU"

    def run(numerics: Numerics, y: Array, x: Array, arm: Array | int = 0) -> None:
        half = flat(x).shape[-1] // 2
        narrow = numerics.rounder("bf16", kind="glu", rounding="floor")
        active = narrow(chord_activation(flat(x)[..., half:], gelu))
        write_part(y, narrow(active * flat(x)[..., :half]), 0)

    return Built(run, (1,), (0,), "activation and product bf16 (floor)")


@dataclass(frozen=True, slots=True)
class Heads:
    """How rope_compute's operands divide: sizes in elements, heads in number."""

    size: int
    rotary: int
    kv: int
    group: int
    padded_group: int
    norm: bool
    bias: bool


def heads_of(call: Call) -> Heads:
    """Head layout of rope_compute(q, k, v, qkv, table) from its operands' sizes.

    Raises:
        UnusableInput: they fit no head size.
    """
    q, k, _, qkv, table = (operand.size for operand in call.operands[:5])
    bias = table > qkv
    norm = not bias and table in (192, 384, 768)
    rotary = table - qkv if bias else table // 3 if norm else table
    size = 1 << (rotary - 1).bit_length()
    queries = qkv - 2 * k
    if k % size or queries % k or q % k:
        raise UnusableInput(
            f"@{call.symbol}: q {q}, k {k}, qkv {qkv} and table {table} elements make no whole heads of {size}."
        )
    return Heads(size, rotary, k // size, queries // k, q // k, norm, bias)


def _rope_compute(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2, 3, 4) or len(call.operands) != 6:
        return None
    heads = heads_of(call)

    def run(numerics: Numerics, q: Array, k: Array, v: Array, qkv: Array, table: Array, arm: Array | int) -> None:
        lut, values = flat(table), np.array(flat(qkv))
        if heads.bias:
            biased = values + lut[..., heads.rotary : heads.rotary + values.shape[-1]]
            values = numerics.round_to(biased, "bf16", kind="rope.bias", rounding="floor")
        rows = values.reshape(*values.shape[:2], -1, heads.size)
        queries, half = heads.kv * heads.group, heads.rotary // 2
        weights = [lut[..., heads.size * n : heads.size * (n + 1)][:, :, None] for n in (1, 2)] if heads.norm else []
        turned: list[Array] = []
        for part, rows_of in enumerate((rows[:, :, :queries], rows[:, :, queries : queries + heads.kv])):
            x = rms_normalised(numerics, rows_of, weights[part]) if heads.norm else rows_of
            rotated = rotate_halves(
                numerics,
                x[..., : heads.rotary],
                lut[..., :half][:, :, None],
                lut[..., half : heads.rotary][:, :, None],
            )
            turned.append(np.concatenate([*rotated, x[..., heads.rotary :]], axis=-1))
        grouped = turned[0].reshape(*values.shape[:2], heads.kv, heads.group, heads.size)
        padded = np.zeros((*values.shape[:2], heads.kv, heads.padded_group, heads.size), np.float32)
        padded[:, :, :, : heads.group] = grouped
        write_part(q, padded.reshape(*values.shape[:2], -1), 0)
        write_part(k, turned[1].reshape(*values.shape[:2], -1), 0)
        write_part(v, rows[:, :, queries + heads.kv :].reshape(*values.shape[:2], -1), 0)

    return Built(run, (3, 4), (0, 1, 2), "q/k norm, bias and rotation each bf16 (floor)")


_AIR = "mlir-air programming_examples/fused_decode/kernels/"

FAMILIES: tuple[Family, ...] = (
    Family(
        "q4nx_project",
        r"proj_qmm_acc256(?:_c)?",
        ("proj_qmm_acc256", "proj_qmm_acc256_c"),
        _AIR + "proj_qmm.cc, q4_k.h",
        "x [256], weight block [2560 words], sums [32] f32 (and for _c a cache, its slot, whether to fill it)",
        _project,
    ),
    Family("q4nx_clear", r"proj_qmm_zero", ("proj_qmm_zero",), _AIR + "proj_qmm.cc", "sums, arm", _clear),
    Family("q4nx_arm", r"proj_qmm_rc_arm", ("proj_qmm_rc_arm",), _AIR + "proj_qmm.cc", "cache, arm", _nothing),
    Family(
        "q4nx_flush",
        r"proj_qmm_flush(?P<row>_row)?",
        ("proj_qmm_flush", "proj_qmm_flush_row"),
        _AIR + "proj_qmm.cc",
        "sums [32], out (and for _row the row)",
        _flush,
    ),
    Family(
        "q4nx_rms_norm",
        r"rms_norm(?:_lo|_hi)?_aie",
        ("rms_norm_aie", "rms_norm_lo_aie", "rms_norm_hi_aie"),
        _AIR + "rms_residual.cc",
        "y, x, weight, arm",
        _rms_norm,
    ),
    Family(
        "q4nx_residual",
        r"residual_add_aie",
        ("residual_add_aie",),
        _AIR + "rms_residual.cc",
        "y, kept, x",
        _residual,
    ),
    Family("q4nx_copy", r"rms_copy_aie", ("rms_copy_aie",), _AIR + "rms_residual.cc", "target, source", _copy),
    Family("q4nx_glu", r"glu_aie\d*", ("glu_aie",), _AIR + "glu.cc, lut_based_ops.h", "y, x as [up | gate], arm", _glu),
    Family(
        "q4nx_rope",
        r"rope_compute",
        ("rope_compute",),
        _AIR + "rope.cc",
        "q, k, v, qkv, table, arm",
        _rope_compute,
    ),
)
