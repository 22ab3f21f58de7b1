"""Feed-forward layers with SwiGLU, whole or as their fused first half."""

from __future__ import annotations

from math import isqrt

import numpy as np

from npu_tools.bench.references.case import Build, Case, Float, Trial
from npu_tools.bench.references.norms import root_mean_square
from npu_tools.bench.references.packed import gate_up
from npu_tools.gate import Tolerance, tolerance_for

LAYER = Tolerance(
    None,
    "given",
    "chain",
    5e-2,
    1.5e-1,
    None,
    "sums kept in bf16 every 8 terms; upstream's own test allows rtol 1, atol 0.5",
)


def gated(gate: Float, up: Float) -> Float:
    """silu(gate) * up."""
    return gate / (1 + np.exp(-gate)) * up


def decode(case: Case) -> Trial:
    """One token: gate, up, down. Weights by column of cores, its rows read as 32-bit words, columns of words first."""
    declared = case.declared("matvec")
    assert declared is not None
    width, rows = declared[1][0], declared[2][0]
    x = case.normal(0)
    weights = case.normal(1, width**-0.5, (3, width, width))
    gate, up = weights[0] @ x, weights[1] @ x
    inner = gated(gate, up)
    packed = weights.reshape(3, width // rows, rows, width // 2, 2).transpose(0, 1, 3, 2, 4)
    return case.trial(
        {0: x, 1: packed},
        {2: (gate, LAYER), 3: (up, LAYER), 4: (inner, LAYER), 5: (weights[2] @ inner, LAYER)},
    )


def prefill(case: Case) -> Trial:
    """Several tokens [tokens, width]: weights [width, columns of one core] by column of cores."""
    declared = case.declared("matmul")
    assert declared is not None
    left, right, out = (shape[0] for shape in declared)
    width = isqrt(left * right // out)
    columns = right // width
    x = case.normal(0, shape=(left // width, width))
    weights = case.normal(1, width**-0.5, (3, width, width))
    inner = gated(x @ weights[0], x @ weights[1])
    packed = weights.reshape(3, width, width // columns, columns).transpose(0, 2, 1, 3)
    return case.trial({0: x, 1: packed}, {5: (inner @ weights[2], LAYER)})


def first_half(case: Case) -> Trial:
    """silu(gate) * up of an RMS-normed vector in one product: rows of gate and up take turns."""
    a = case.normal(0, 0.02)
    x = case.normal(1)
    x[1] = case.rounded(1, x[1] * 0.1 + 1)
    normed = case.rounded(1, root_mean_square(x[0]) * x[1])
    # A bf16 tanh near -1 leaves few digits of 1 + tanh: the SiLU kernel's own tolerance.
    return case.trial({0: a, 1: x}, {2: (gate_up(a @ normed), tolerance_for("silu_mul"))})


def whole(case: Case) -> Trial:
    """One token or several, by the kernel that is called."""
    return decode(case) if case.calls("matvec") else prefill(case)


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("ffn_swiglu__*", whole),
    ("@ffn_swiglu", whole),
    ("decode_ffn_swiglu__matvec_swiglu_rms", first_half),
    ("@matvec_swiglu_rms", first_half),
)
