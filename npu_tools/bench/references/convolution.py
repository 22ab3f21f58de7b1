"""Convolutions in whole numbers: plain, 14 x 14 patches, and ResNet's bottleneck block."""

from __future__ import annotations

from math import isqrt

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from xdsl.dialects import func

from npu_tools.bench.references.case import EXACT, Build, Case, Trial, constant

Integers = NDArray[np.int64]


def plain(case: Case) -> Trial:
    """Images [n, rows, columns, in], filters [kr, kc, in, out]."""
    image, filters = case.integers(0, -8, 8), case.integers(1, -8, 8)
    kr, kc, _, _ = filters.shape
    windows = sliding_window_view(image, (kr, kc), axis=(1, 2))  # [n, r, c, in, kr, kc]
    return case.trial({0: image, 1: filters}, {2: (np.einsum("nrcixy,xyio->nrco", windows, filters), EXACT)})


PATCH, CHANNELS, OUT_GROUP = 14, 4, 16
"""The patch convolution's kernel edge, input channels and output channels a call; its shift is 14 bits."""


def patches(case: Case) -> Trial:
    """14 x 14 patches of an image of bytes, stride 14; sums shifted by 14 bits, half away from zero.

    The image is pixels of four channels. Weights are blocks of eight output channels: rows, columns, inputs, outputs.
    The device writes, by column of cores and group of 16 channels: four bands of 16 rows, four blocks of 16 columns,
    and in each the kernel's [2 halves of channels][2][8 columns][8 channels].
    """
    columns = case.shape(1)[0]
    edge = isqrt(int(np.prod(case.shape(0))) // CHANNELS)
    out_edge = edge // PATCH
    outputs = int(np.prod(case.shape(2))) // out_edge**2
    image = case.integers(0, 0, 256, (edge, edge, CHANNELS))
    weights = case.integers(1, 2, 20, (outputs, PATCH, PATCH, CHANNELS))
    cut = image.reshape(out_edge, PATCH, out_edge, PATCH, CHANNELS).transpose(0, 2, 1, 3, 4)
    # Sums stay below 2**24, so float32's product is exact.
    sums = cut.reshape(out_edge**2, -1).astype(np.float32) @ weights.reshape(outputs, -1).T.astype(np.float32)
    # [rows, columns, channels]
    quantised = np.clip((sums.astype(np.int64) + 8192) >> 14, 0, 127).reshape(out_edge, out_edge, outputs)
    groups = outputs // columns // OUT_GROUP
    written = quantised.reshape(4, 16, out_edge // 16, 2, 8, columns, groups, 2, 8)
    # band, row, block, half, column, core column, group, channel half, channel
    written = written.transpose(5, 6, 0, 1, 2, 7, 3, 4, 8)
    packed = weights.reshape(outputs // 8, 8, PATCH, PATCH, CHANNELS).transpose(0, 2, 3, 4, 1)
    return case.trial({0: image, 1: packed}, {2: (written, EXACT)})


def bottleneck(case: Case) -> Trial:
    """1 x 1 to a quarter of the channels, 3 x 3, 1 x 1 back, plus the input; each sum shifted, clipped to a byte.

    The outer shifts are 1, the inner one is the program's constant (11 in upstream's, whose own inputs saturate
    everywhere and cannot tell). Inputs and weights are powers of two times small numbers, so that no shift drops a bit
    and the result does not depend on how halves are rounded. Activations are laid out [rows, channels / 8, columns, 8],
    weights [out / 8, in / 8, rows, columns, 8 in, 8 out].
    """
    total_weights = case.shape(1)[0]
    # in * in/4 + 9 * (in/4)**2 + in/4 * in, with in = 4 q: 17 q**2.
    quarter = isqrt(total_weights // 17)
    width = 4 * quarter
    edge = isqrt(case.shape(0)[0] // width)
    shift = _inner_shift(case)
    image = 32 * case.integers(0, 0, 4, (width, edge, edge))
    # Two inputs at most add up, so that nothing is clipped at 255 and all stays a multiple of 32.
    first = np.zeros((quarter, width, 1, 1), np.int64)
    for each in range(quarter):
        first[each, case.rng.choice(width, 4, replace=False), 0, 0] = 2, 2, -2, -2
    second = max(2, 1 << (shift - 5)) * _signs(case, (quarter, quarter, 3, 3), 0.3)
    third = 2 * _signs(case, (width, quarter, 1, 1), 0.05)
    hidden = np.clip(_convolved(image, first) >> 1, 0, 255)
    sums = _by_flat_shifts(hidden, second) if _without_calls(case) else _padded_3x3(hidden, second)
    hidden = np.clip(sums >> shift, 0, 255)
    restored = np.clip(_convolved(hidden, third) >> 1, -128, 127)
    out = np.clip(restored + image, 0, 255)
    weights = np.concatenate([_weights_packed(each).reshape(-1) for each in (first, second, third)])
    return case.trial({0: _image_packed(image), 1: weights}, {2: (_image_packed(out).astype(np.uint8), EXACT)})


def _padded_3x3(image: Integers, weights: Integers) -> Integers:
    """The convolution as meant: zeros around the image."""
    return _convolved(np.pad(image, ((0, 0), (1, 1), (1, 1))), weights)


def _without_calls(case: Case) -> bool:
    return not any(isinstance(op, func.CallOp) for op in case.program.module.walk())


def _by_flat_shifts(image: Integers, weights: Integers) -> Integers:
    """The convolution as bottleneck_mlir.py writes it, which is not quite what it means.

    Its taps move a line [channels / 8, columns, 8] by 64 numbers, eight columns instead of one, and at the top and the
    bottom it takes the edge row again instead of zeros. Upstream's inputs saturate and show neither.
    """
    lines = _image_packed(image)
    rows = len(lines)
    sums = np.zeros((weights.shape[0], rows, lines.shape[2]), np.int64)
    for down in range(3):
        source = lines[np.clip(np.arange(rows) + down - 1, 0, rows - 1)].reshape(rows, -1)
        padded = np.pad(source, ((0, 0), (64, 64)))
        for right in range(3):
            moved = padded[:, 64 * right : 64 * right + source.shape[1]].reshape(lines.shape)
            sums += np.einsum("rbxc,obc->orx", moved, weights[:, :, down, right].reshape(len(weights), -1, 8))
    return sums


def _inner_shift(case: Case) -> int:
    """The constant the 3 x 3 kernel shifts by: of the call, third from its end, or of the ops that stand for it."""
    for op in case.program.module.walk():
        if isinstance(op, func.CallOp) and op.callee.string_value().startswith("conv2dk3"):
            value = constant(op.operands[-3])
            if value is not None:
                return int(value)
    return int(max(case.constants("arith.shrsi"), default=1))


def _signs(case: Case, shape: tuple[int, ...], share: float) -> Integers:
    """-1 and 1 in the given share of places, zero elsewhere."""
    return np.where(case.rng.random(shape) < share, case.rng.integers(0, 2, shape) * 2 - 1, 0)


def _convolved(image: Integers, weights: Integers) -> Integers:
    """[in, rows, columns] by [out, in, kr, kc], no padding."""
    windows = sliding_window_view(image, weights.shape[2:], axis=(1, 2))
    return np.einsum("ircxy,oixy->orc", windows, weights, optimize=True)


def _image_packed(image: Integers) -> Integers:
    channels, rows, columns = image.shape
    return image.reshape(channels // 8, 8, rows, columns).transpose(2, 0, 3, 1)


def _weights_packed(weights: Integers) -> Integers:
    out, inner, rows, columns = weights.shape
    return weights.reshape(out // 8, 8, inner // 8, 8, rows, columns).transpose(0, 2, 4, 5, 3, 1)


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("conv2d__*", plain),
    ("@conv2d", plain),
    ("conv2d_14x14*", patches),
    ("@conv2dk14_test", patches),
    ("bottleneck*", bottleneck),
    ("@bottleneck_block", bottleneck),
)
