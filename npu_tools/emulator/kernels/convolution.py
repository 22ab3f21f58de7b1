"""Integer convolution kernels on channel-blocked lines.

Read in mlir-air programming_examples/bottleneck/conv2dk1.cc, conv2dk3.cc, conv2dk1_skip.cc (vector paths, zero border)
and mlir-aie aie_kernels/aie2p/conv2dk14.cc (vector path, uint8 activations). mlir-air's bottleneck passes the second
input of the skip kernel, and the output of the 3x3, as an offset into one buffer; mlir-aie passes pointers. Both forms
are taken.

Memory is what the C++ walks, whatever the memref's shape says: a line of activations is [C/8, W, 8], weights of the 1x1
are [O/8, I/8, 8 in, 8 out] and of the 3x3 [O/8, I/8, 3, 3, 8 in, 8 out]. conv2dk14 takes 16 patches of 14x14 RGBA pixels as
[2, 98, 8 patches, 2 pixels, 4] and gives [O/8, 2, 8 patches, 8].

Rounds once, at the shift: half up (positive_inf) in the first three, half away from zero (symmetric_inf) in conv2dk14;
results saturate to the output's range. Rows outside the picture and columns left and right of it count as zero. The
vector code of the 3x3 is written for lines of 32 pixels; other widths are computed as the scalar path would.

mlir-air's bottleneck tells each of its two 3x3 cores to make all 64 channels, the second from channel 32 on: the C++ then
reads past the weights and writes past the output. Here channels without weights or room are left out.
"""

from __future__ import annotations

import numpy as np

from npu_tools.emulator.kernels.gemm import integer_product
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, uniform, write_part
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput

_TOP, _BOTTOM = 0, 2


def shift_half_up(values: Array, shift: int, low: int, high: int) -> Array:
    """values / 2**shift, halves towards plus infinity, clipped."""
    half = (1 << (shift - 1)) if shift > 0 else 0
    return np.clip((values + half) >> shift, low, high)


def shift_half_away(values: Array, shift: int, low: int, high: int) -> Array:
    """values / 2**shift, halves away from zero, clipped."""
    half = (1 << (shift - 1)) if shift > 0 else 0
    return np.clip(np.sign(values) * ((np.abs(values) + half) >> shift), low, high)


def line_of(activations: Array, channels: int, width: int, unsigned: bool) -> Array:
    """A line in memory order as `[gx, gy, W, C]` integers."""
    part = np.ascontiguousarray(flat(activations)[..., : channels * width])
    blocks = (part.view(np.uint8) if unsigned else part.view(np.int8)).reshape(*part.shape[:2], channels // 8, width, 8)
    return blocks.transpose(0, 1, 3, 2, 4).reshape(*part.shape[:2], width, channels)


def weights_of(kernels: Array, first: int, outputs: int, inputs: int, taps: int) -> Array:
    """Weights of `outputs` channels from channel `first` on as `[gx, gy, taps, I, O]`."""
    size = inputs * taps * 64 // 8
    part = np.ascontiguousarray(flat(kernels)[..., first // 8 * size : (first + outputs) // 8 * size])
    blocks = part.reshape(*part.shape[:2], outputs // 8, inputs // 8, taps, 8, 8)
    return blocks.transpose(0, 1, 4, 3, 5, 2, 6).reshape(*part.shape[:2], taps, inputs, outputs)


def blocked_line(values: Array) -> Array:
    """`[gx, gy, W, C]` as the line's memory order, flat."""
    gx, gy, width, channels = values.shape
    return values.reshape(gx, gy, width, channels // 8, 8).transpose(0, 1, 3, 2, 4).reshape(gx, gy, -1)


def store_bytes(target: Array, values: Array, start: int = 0) -> None:
    """Write integers as bytes, in the target's own signedness, from element `start` on."""
    write_part(target, values.astype(np.uint8).view(np.int8).astype(target.dtype), start)


def _conv1x1(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 7:
        return None
    unsigned = call.match["kind"] == "ui8"

    def run(numerics: Numerics, source: Array, kernels: Array, out: Array, *sizes: Array | int) -> None:
        width, inputs, outputs, scale = (uniform(size) for size in sizes)
        line = line_of(source, inputs, width, unsigned)
        total = integer_product(line, weights_of(kernels, 0, outputs, inputs, 1)[:, :, 0])
        store_bytes(out, blocked_line(shift_half_up(total, scale, 0, 255)))

    return Built(run, (0, 1, 3, 4, 5, 6), (2,), "half up at the shift, clipped to 0..255")


def _conv3x3(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2, 3, 4) or len(call.operands) not in (13, 14):
        return None
    unsigned = call.match["kind"] == "ui8"

    def run(
        numerics: Numerics, above: Array, at: Array, below: Array, kernels: Array, out: Array, *sizes: Array | int
    ) -> None:
        width, inputs, outputs, _, _, check, scale, first = (uniform(size) for size in sizes[:8])
        start = uniform(sizes[8]) if len(sizes) > 8 else 0
        stored = flat(kernels).shape[-1] // (inputs * 9) - first
        room = (flat(out).shape[-1] - start) // width
        outputs = min(outputs, stored, room)
        if outputs <= 0 or outputs % 8:
            raise UnusableInput(
                f"@{call.symbol} starts at channel {first} and output element {start}, but the weights hold "
                f"{stored + first} channels and the output {flat(out).shape[-1]} elements."
            )
        weights = weights_of(kernels, first, outputs, inputs, 9)
        total: Array | int = 0
        for row, source in enumerate((above, at, below)):
            if (row == 0 and check == _TOP) or (row == 2 and check == _BOTTOM):
                continue
            line = np.pad(line_of(source, inputs, width, unsigned), [(0, 0), (0, 0), (1, 1), (0, 0)])
            for column in range(3):
                part = integer_product(line[:, :, column : column + width], weights[:, :, row * 3 + column])
                total = total + part
        store_bytes(out, blocked_line(shift_half_up(np.asarray(total), scale, 0, 255)), start)

    reads = (0, 1, 2, 3, *range(5, len(call.operands)))
    return Built(run, reads, (4,), "half up at the shift, clipped to 0..255")


def _conv1x1_skip(call: Call) -> Built | None:
    offset = call.operands[1].shape is None
    if memrefs(call) != ((0, 2, 3, 4) if offset else (0, 1, 2, 3, 4)) or len(call.operands) != 10:
        return None
    unsigned_skip = call.match["kind"] == "ui8"

    def run(
        numerics: Numerics,
        base: Array,
        second: Array | int,
        kernels: Array,
        out: Array,
        skip: Array,
        *sizes: Array | int,
    ) -> None:
        width, inputs, outputs, scale, skip_scale = (uniform(size) for size in sizes)
        other = flat(base)[..., uniform(second) :] if offset else second
        halves = [line_of(source, inputs // 2, width, True) for source in (base, np.asarray(other))]
        line = np.concatenate(np.broadcast_arrays(*halves), axis=-1)
        total = integer_product(line, weights_of(kernels, 0, outputs, inputs, 1)[:, :, 0])
        residual = line_of(skip, outputs, width, unsigned_skip).astype(np.int64)
        summed = shift_half_up(total, scale, -128, 127) + residual
        store_bytes(out, blocked_line(shift_half_up(summed, skip_scale, 0, 255)))

    return Built(run, (0, 1, 2, 4, 5, 6, 7, 8, 9), (3,), "half up at both shifts; int8 between, 0..255 at the end")


def _conv14(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 8:
        return None

    def run(numerics: Numerics, source: Array, kernels: Array, out: Array, *sizes: Array | int) -> None:
        width, channels, outputs, side, scale = (uniform(size) for size in sizes)
        patches, steps = width // side, side * side // 2
        taps = 2 * channels
        raw = np.ascontiguousarray(flat(source)[..., : patches * steps * taps]).view(np.uint8)
        pixels = raw.reshape(*raw.shape[:2], patches // 8, steps, 8, taps).transpose(0, 1, 2, 4, 3, 5)
        weights = np.ascontiguousarray(flat(kernels)[..., : outputs * steps * taps])
        matrix = weights.reshape(*weights.shape[:2], outputs // 8, steps * taps, 8).transpose(0, 1, 3, 2, 4)
        total = integer_product(
            pixels.reshape(*raw.shape[:2], patches, steps * taps),
            matrix.reshape(*weights.shape[:2], steps * taps, outputs),
        )
        rounded = shift_half_away(total, scale, -128, 127)
        ordered = rounded.reshape(*rounded.shape[:2], patches, outputs // 8, 8).swapaxes(2, 3)
        write_part(out, ordered.reshape(*ordered.shape[:2], -1).astype(out.dtype), 0)

    return Built(run, (0, 1, 3, 4, 5, 6, 7), (2,), "half away from zero at the shift, clipped to int8")


_AIR = "mlir-air programming_examples/bottleneck/"

FAMILIES: tuple[Family, ...] = (
    Family(
        "conv2dk1",
        r"conv2dk1_(?P<kind>i8|ui8)",
        ("conv2dk1_i8", "conv2dk1_ui8"),
        _AIR + "conv2dk1.cc",
        "line [I/8, W, 8], weights, out, width, input channels, output channels, shift",
        _conv1x1,
    ),
    Family(
        "conv2dk3",
        r"conv2dk3_(?P<kind>i8|ui8)",
        ("conv2dk3_i8", "conv2dk3_ui8"),
        _AIR + "conv2dk3.cc",
        "three lines, weights, out, width, channels in and out, 3, 3, row position, shift, channel offset[, out offset]",
        _conv3x3,
    ),
    Family(
        "conv2dk1_skip",
        r"conv2dk1_skip_(?P<kind>i8|ui8)",
        ("conv2dk1_skip_i8", "conv2dk1_skip_ui8"),
        _AIR + "conv2dk1_skip.cc",
        "two half lines (or one and an offset), weights, out, skip line, width, channels in and out, two shifts",
        _conv1x1_skip,
    ),
    Family(
        "conv2dk14",
        r"conv2dk14_i8",
        ("conv2dk14_i8",),
        "mlir-aie aie_kernels/aie2p/conv2dk14.cc",
        "16 patches, weights, out, width, channels in and out, 14, shift",
        _conv14,
    ),
)
