"""Kernels on AWQ int4 weights.

Read in mlir-air programming_examples: matrix_vector_multiplication/int4_awq/mv_int4_bf16.cc, dequant_awq/dequant.cc,
matrix_multiplication/int4_awq/Makefile (the GEMM is built with BFP16 emulation).

A packed tile of rows x k weights in groups of G along k is one byte array, back to back: rows*k/2 bytes of weights (two
a byte, low nibble first, row-major), k/G*rows bf16 scales (group-major), k/G*rows zero points of one byte (the same
order). A weight is (q - zero) * scale with q and zero from 0 to 15. `dequant_int4_bf16` packs one row.

Rounds (all set conv_even). GEMV keeps 32 lanes: a lane's sum over a group is rounded to bf16, scaled and added in
float32; the row's sum is rounded to bf16 once. The GEMM's sum over a group, taken through BFP16, is rounded to bf16,
scaled and added to the float32 C. The group size is the one that makes the packed size right; option `DIM_GS` sets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs, shape_of
from npu_tools.emulator.kernels.lanes import flat, shaped, uniform, write_part
from npu_tools.emulator.kernels.sums import running_sum, tree_sum
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput

_LANES = 32
_PADDING = 8


@dataclass(frozen=True, slots=True)
class Packing:
    """Sizes of a packed tile: `rows` outputs, depth `k`, groups of `group` along it."""

    rows: int
    k: int
    group: int

    @property
    def groups(self) -> int:
        """Groups along k."""
        return self.k // self.group

    @property
    def size(self) -> int:
        """Bytes of the packed tile."""
        return self.rows * self.k // 2 + 3 * self.rows * self.groups

    def unpack(self, packed: Array) -> tuple[Array, Array]:
        """Weights less zero points `[gx, gy, rows, groups, group]` and scales `[gx, gy, groups, rows]`, float32."""
        given = np.ascontiguousarray(flat(packed)).view(np.uint8)
        weights, scales = self.rows * self.k // 2, self.groups * self.rows * 2
        nibbles = given[..., :weights]
        q = np.stack([nibbles & 15, nibbles >> 4], axis=-1).reshape(*given.shape[:2], self.rows, self.groups, -1)
        zeros = given[..., weights + scales : self.size].reshape(*given.shape[:2], self.groups, self.rows)
        centred = q.astype(np.float32) - zeros.swapaxes(2, 3)[..., None].astype(np.float32)
        return centred, bf16_from_bytes(given[..., weights : weights + scales]).reshape(zeros.shape)


def bf16_from_bytes(raw: Array) -> Array:
    """Little-endian bf16 values `[..., 2n]` bytes as float32 `[..., n]`."""
    words = np.ascontiguousarray(raw).view(np.uint8)
    low, high = words[..., 0::2].astype(np.uint32), words[..., 1::2].astype(np.uint32)
    return np.ascontiguousarray((low | (high << np.uint32(8))) << np.uint32(16)).view(np.float32)


def packing_of(call: Call, packed: int, rows: int, k: int | None) -> Packing:
    """The packing of `packed` bytes for `rows` outputs; k is solved for when it is not known.

    Raises:
        UnusableInput: no group size fits.
    """
    option = call.surroundings.options.get("DIM_GS")
    groups = [int(option)] if option is not None else [128, 64, 32, 256, 512, 1024]
    fitting: list[tuple[int, Packing]] = []
    for group in groups:
        depth = k if k is not None else 2 * packed * group // (rows * (group + 6))
        packing = Packing(rows, depth, group)
        # Builders pad the tile to whole words for the DMA.
        if depth and depth % group == 0 and 0 <= packed - packing.size < _PADDING:
            fitting.append((packed - packing.size, packing))
    if fitting:
        return min(fitting, key=lambda found: found[0])[1]
    raise UnusableInput(
        f"@{call.symbol}: {packed} packed bytes do not hold {rows} rows of int4 weights"
        + (f" of depth {k}" if k is not None else "")
        + f" with scales and zero points in groups of {' or '.join(map(str, groups))}."
    )


def _matvec(store: bool, offset: bool) -> Callable[[Call], Built | None]:
    def build(call: Call) -> Built | None:
        expected = (0, 1, 3) if offset else (0, 1, 2)
        if memrefs(call) != expected or len(call.operands) != len(expected) + offset:
            return None
        out = call.operands[-1]
        known = None if offset else call.operands[1].size
        packing = packing_of(call, call.operands[0].size, out.size, known)

        def run(numerics: Numerics, packed: Array, vector: Array, *rest: Array) -> None:
            target = rest[-1]
            start = uniform(rest[0]) if offset else 0
            b = flat(vector)[..., start : start + packing.k]
            if b.shape[-1] < packing.k:
                raise UnusableInput(f"@{call.symbol} reads b[{start}:{start + packing.k}] of {flat(vector).shape[-1]}.")
            total = int4_rows(numerics, packing, packed, b)
            if not store:
                total = total + flat(target)
            write_part(target, numerics.round_to(total, "bf16", kind="gemv_int4", rounding="conv_even"), 0)

        last = len(call.operands) - 1
        reads = tuple(range(last)) if store else tuple(range(last + 1))
        return Built(
            run,
            reads,
            (last,),
            "a lane's group sum bf16, groups summed in float32, one rounding a row; nearest even",
            accumulators=() if store else (last,),
            macs=packing.rows * packing.k,
        )

    return build


def int4_rows(numerics: Numerics, packing: Packing, packed: Array, vector: Array) -> Array:
    """Dequantised rows times the vector `[gx, gy, k]` as the GEMV kernels sum it, float32 `[gx, gy, rows]`."""
    weights, scales = packing.unpack(packed)
    parts = shaped(vector, 1, packing.groups, packing.group // _LANES, _LANES)
    lanes = weights.reshape(*weights.shape[:4], packing.group // _LANES, _LANES) * parts
    narrow = numerics.rounder("bf16", kind="gemv_int4.group", rounding="conv_even")
    sums = narrow(running_sum(lanes, 4))
    return tree_sum(running_sum(sums * scales.swapaxes(2, 3)[..., None], 3), -1)


def _matmul(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None
    packed, a, c = call.operands
    if len(shape_of(a)) != 2 or len(shape_of(c)) != 2:
        return None
    (m, k), (rows, n) = shape_of(a), shape_of(c)
    if m != rows:
        raise UnusableInput(f"@{call.symbol} takes A [m, k] and C [m, n]; they are {a.shape} and {c.shape}.")
    packing = packing_of(call, packed.size, n, k)

    def run(numerics: Numerics, packed: Array, a: Array, c: Array) -> None:
        weights, scales = packing.unpack(packed)
        narrow = numerics.rounder("bf16", kind="gemm_int4.group", rounding="conv_even")
        total = np.array(c)
        for index in range(packing.groups):
            depth = slice(index * packing.group, (index + 1) * packing.group)
            right = np.ascontiguousarray(weights[:, :, :, index].swapaxes(2, 3))
            part = narrow(numerics.matmul(np.ascontiguousarray(a[..., depth]), right, kind="gemm_int4.bfp16"))
            total = total + part * scales[:, :, index, None]
        c[...] = total

    rounding = "BFP16 inputs, a group's sum bf16, C in float32; nearest even"
    return Built(run, (0, 1, 2), (2,), rounding, accumulators=(2,), macs=m * k * n)


def _dequant(call: Call) -> Built | None:
    if memrefs(call) != (0, 1) or len(call.operands) != 2:
        return None
    packing = packing_of(call, call.operands[0].size, 1, call.operands[1].size)

    def run(numerics: Numerics, packed: Array, out: Array) -> None:
        weights, scales = packing.unpack(packed)
        values = weights[:, :, 0] * scales[..., 0, None]
        rounded = numerics.round_to(values, "bf16", kind="dequant_int4", rounding="conv_even")
        write_part(out, rounded.reshape(*rounded.shape[:2], -1), 0)

    return Built(run, (0,), (1,), "one rounding to nearest even")


_SOURCE = "mlir-air programming_examples/matrix_vector_multiplication/int4_awq/mv_int4_bf16.cc"

FAMILIES: tuple[Family, ...] = (
    Family(
        "gemv_int4",
        r"matvec_int4_bf16_packed",
        ("matvec_int4_bf16_packed",),
        _SOURCE,
        "packed weights, b [k], c [m]",
        _matvec(store=False, offset=False),
    ),
    Family(
        "gemv_int4_store",
        r"matvec_int4_bf16_packed_store",
        ("matvec_int4_bf16_packed_store",),
        _SOURCE,
        "packed weights, b [k], c [m]",
        _matvec(store=True, offset=False),
    ),
    Family(
        "gemv_int4_offset",
        r"matvec_int4_bf16_packed_b_offset",
        ("matvec_int4_bf16_packed_b_offset",),
        _SOURCE,
        "packed weights, b, offset into b, c [m]",
        _matvec(store=False, offset=True),
    ),
    Family(
        "gemm_int4",
        r"matmul_int4_bf16_packed_f32",
        ("matmul_int4_bf16_packed_f32",),
        _SOURCE,
        "packed weights of n rows, A [m, k], C [m, n] f32",
        _matmul,
    ),
    Family(
        "dequant_int4",
        r"dequant_int4_bf16",
        ("dequant_int4_bf16",),
        "mlir-air programming_examples/dequant_awq/dequant.cc",
        "packed weights, values bf16 [n]",
        _dequant,
    ),
)
