"""RMS and layer normalisation of rows."""

from __future__ import annotations

import numpy as np

from npu_tools.bench.references.case import Build, Case, Float, Trial
from npu_tools.gate import tolerance_for

EPSILON = 1e-5


def root_mean_square(x: Float) -> Float:
    """Rows over the root of their mean square."""
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON)


def rms_norm(case: Case) -> Trial:
    """Without weights."""
    x = case.normal(0)
    return case.trial({0: x}, {1: (root_mean_square(x), tolerance_for("rmsnorm"))})


def weighted_rms_norm(case: Case) -> Trial:
    """With one weight a column."""
    x, weight = case.normal(0), case.normal(1)
    return case.trial({0: x, 1: weight}, {2: (root_mean_square(x) * weight, tolerance_for("rmsnorm"))})


def layer_norm(case: Case) -> Trial:
    """(x - mean) / deviation * weight + bias; weight and bias packed one after the other."""
    x, packed = case.normal(0), case.normal(1)
    weight, bias = packed.reshape(2, -1)
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + EPSILON)
    return case.trial({0: x, 1: packed}, {2: (scaled * weight + bias, tolerance_for("layernorm"))})


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("rms_norm*", rms_norm),
    ("@rms_norm", rms_norm),
    ("weighted_rms_norm*", weighted_rms_norm),
    ("@weighted_rms_norm", weighted_rms_norm),
    ("layer_norm*", layer_norm),
    ("@layer_norm", layer_norm),
)
