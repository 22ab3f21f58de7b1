"""Rotary position embedding: half-split and interleaved, from a table or from a position."""

from __future__ import annotations

import numpy as np

from npu_tools.bench.references.case import Build, Case, Float, Trial, example
from npu_tools.gate import tolerance_for


def angles(positions: Float, width: int, base: float) -> Float:
    """[positions, width / 2]: position times base ** (-2i / width)."""
    return np.outer(positions, base ** (-2.0 * np.arange(width // 2) / width))


def rotate_halves(x: Float, cosine: Float, sine: Float) -> Float:
    """Column i turned against column i + width / 2, as Hugging Face's Llama does."""
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


def rotate_pairs(x: Float, cosine: Float, sine: Float) -> Float:
    """Column 2i turned against column 2i + 1."""
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.empty_like(x)
    turned[..., 0::2] = even * cosine - odd * sine
    turned[..., 1::2] = even * sine + odd * cosine
    return turned


def _width(case: Case) -> int:
    declared = case.declared("rope")
    return declared[0][0] if declared and declared[0] else case.shape(0)[-1]


def halfsplit(case: Case) -> Trial:
    """Rows of cosines then sines in the table."""
    width = _width(case)
    x = case.normal(0).reshape(-1, width)
    turn = angles(np.arange(len(x), dtype=np.float64), width, 500000.0)
    table = case.rounded(1, np.concatenate([np.cos(turn), np.sin(turn)], axis=1))
    cosine, sine = np.split(table, 2, axis=1)
    return case.trial({0: x, 1: table}, {2: (rotate_halves(x, cosine, sine), tolerance_for("rope"))})


def interleaved(case: Case) -> Trial:
    """Cosine and sine taking turns in the table."""
    width = _width(case)
    x = case.normal(0).reshape(-1, width)
    turn = angles(np.arange(len(x), dtype=np.float64), width, 10000.0)
    table = case.rounded(1, np.stack([np.cos(turn), np.sin(turn)], axis=-1).reshape(len(x), width))
    return case.trial({0: x, 1: table}, {2: (rotate_pairs(x, table[:, 0::2], table[:, 1::2]), tolerance_for("rope"))})


def from_position(case: Case) -> Trial:
    """Query, key and value of each head in one row; query and key are turned for position 1, sine and cosine on the core.

    The kernel's frequencies and series are bf16, hence more than the table variants' tolerance; upstream's own is 100.
    """
    declared = case.declared("shuffle_apply_rope")
    assert declared is not None
    width = declared[-1][1]
    x = case.normal(0).reshape(-1, 3, width)
    turn = angles(np.ones(1), width, 10000.0)
    expected = np.array(x)
    expected[:, :2] = rotate_pairs(x[:, :2], np.cos(turn), np.sin(turn))
    return case.trial({0: x}, {1: (expected, example("rope_lut/rope_lut.py", 5e-2, 5e-2))})


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("rope_halfsplit*", halfsplit),
    ("@rope_halfsplit", halfsplit),
    ("rope_lut*", interleaved),
    ("@rope_lut", interleaved),
    ("rope_sincos*", from_position),
    ("@rope_sincos", from_position),
)
