"""Elementwise and row-reducing examples: primitives, activations, pooling, softmax, the layers around an MNIST net."""

from __future__ import annotations

from typing import Any

import numpy as np

from npu_tools.bench.references.case import EXACT, Array, Build, Case, Float, Trial, example, units
from npu_tools.gate import Tolerance, tolerance_for

ONE_ROUNDING = units(1, 0.0, "one rounding to bf16, floor at worst")
F32 = Tolerance(None, "given", "f32", 2.0**-22, 0.0, None, "one operation in f32")


def _pair(case: Case, values: Any, tolerance: Tolerance, a: Any, b: Any) -> Trial:
    return case.trial({0: a, 1: b}, {2: (values, tolerance)})


def add(case: Case) -> Trial:
    """a + b."""
    a, b = case.normal(0), case.normal(1)
    return _pair(case, a + b, _narrow(case, 2), a, b)


def subtract(case: Case) -> Trial:
    """a - b."""
    a, b = case.normal(0), case.normal(1)
    return _pair(case, a - b, _narrow(case, 2), a, b)


def multiply(case: Case) -> Trial:
    """a * b."""
    a, b = case.normal(0), case.normal(1)
    return _pair(case, a * b, _narrow(case, 2), a, b)


def scaled_add(case: Case) -> Trial:
    """alpha * a + b; alpha is the program's one constant that is not zero."""
    a, b = case.normal(0), case.normal(1)
    ops = ("vector.fma", "arith.mulf")
    alphas = [float(value) for op in ops for value in case.constants(op) if value]
    alpha = alphas[0] if alphas else 1.0
    # The product may be rounded before the sum: its unit stays where the two cancel.
    atol = 2.0**-7 * float(np.abs(alpha * a).max())
    return _pair(case, alpha * a + b, units(1, atol, "a rounded product and a rounded sum"), a, b)


def larger(case: Case) -> Trial:
    """max(a, b), exact: no arithmetic."""
    a, b = case.normal(0, 50), case.normal(1, 50)
    return _pair(case, np.maximum(a, b), EXACT, a, b)


def divide(case: Case) -> Trial:
    """a / b."""
    a, b = case.uniform(0, 0.1, 10), case.uniform(1, 1, 10)
    return _pair(case, a / b, example("primitives/vector_examples/vector_div/vector_div.py", 1e-2), a, b)


def bitwise(operation: np.ufunc) -> Build:
    """and, or, xor over all integers."""

    def build(case: Case) -> Trial:
        a, b = case.whole(0), case.whole(1)
        return _pair(case, operation(a, b), EXACT, a, b)

    return build


def exponential(case: Case) -> Trial:
    """e ** a. The hardware's exp2 overshoots by up to 6 %."""
    a = case.uniform(0, -5, 5)
    tolerance = example("primitives/vector_examples/vector_exp/vector_exp.py", 1e-1)
    return case.trial({0: a}, {1: (np.exp(a), tolerance)})


def hyperbolic_tangent(case: Case) -> Trial:
    """tanh(a); the hardware's returns a itself up to 0.5."""
    a = case.uniform(0, -4, 4)
    tolerance = example("primitives/vector_examples/vector_tanh/vector_tanh.py", 1e-1, 5e-2)
    return case.trial({0: a}, {1: (np.tanh(a), tolerance)})


def inverse_root(case: Case) -> Trial:
    """1 / sqrt(a)."""
    a = case.uniform(0, 0.1, 10)
    tolerance = example("primitives/scalar_examples/scalar_invsqrt/scalar_invsqrt.py", 1e-1)
    return case.trial({0: a}, {1: (1 / np.sqrt(a), tolerance)})


def reciprocal(case: Case) -> Trial:
    """1 / a."""
    a = case.uniform(0, 1, 10)
    tolerance = example("primitives/scalar_examples/scalar_reciprocal/scalar_reciprocal.py", 1e-5)
    return case.trial({0: a}, {1: (1 / a, tolerance)})


def to_float(case: Case) -> Trial:
    """Integers to f32, exact in this range."""
    a = case.integers(0, -(1 << 20), 1 << 20)
    return case.trial({0: a}, {1: (a.astype(np.float64), EXACT)})


def to_integer(case: Case) -> Trial:
    """Towards zero."""
    a = case.uniform(0, -(1 << 20), 1 << 20)
    return case.trial({0: a}, {1: (np.trunc(a).astype(np.int64), EXACT)})


def shift_and_saturate(case: Case) -> Trial:
    """a >> n, clipped to a byte.

    The operation written in the program drops the bits. AIE's shift-round-saturate, which the compiler may choose for
    it, adds half a step first; upstream's test expects that. One step apart is accepted, and no more.
    """
    shift = next(int(value) for value in case.constants("arith.shrsi"))
    top = 129 << shift
    a = case.integers(0, -top, top)
    one = Tolerance(None, "given", "one step", 0.0, 1.0, None, "floor as written, or half up as AIE's SRS")
    return case.trial({0: a}, {1: (np.clip(a >> shift, -128, 127), one)})


def broadcast_scalar(case: Case) -> Trial:
    """Each number over a row."""
    a = case.normal(0)
    return case.trial({0: a}, {1: (np.repeat(a.reshape(-1, 1), case.shape(1)[1], axis=1), EXACT)})


def row_sum(case: Case) -> Trial:
    """The sum of each row; partial sums may be bf16."""
    a = case.normal(0)
    length = case.shape(0)[1]
    atol = np.log2(length) * 2.0**-7 * float(np.abs(a).sum(axis=1).max()) / 2
    return case.trial({0: a}, {1: (a.sum(axis=1), units(1, atol, "a tree of bf16 sums"))})


def row_maximum(case: Case) -> Trial:
    """The largest of each row."""
    a = case.normal(0)
    return case.trial({0: a}, {1: (a.max(axis=1), EXACT)})


def row_mean(case: Case) -> Trial:
    """The mean of each row: numbers times a bf16 1/n, summed."""
    a = case.uniform(0, 0.5, 2)
    tolerance = example("average_pool/average_pool.py", 1e-1)
    return case.trial({0: a}, {1: (a.mean(axis=1), tolerance)})


def _sigmoid(x: Float) -> Float:
    return 1 / (1 + np.exp(-x))


def silu_mul(case: Case) -> Trial:
    """silu(gate) * up."""
    gate, up = case.normal(0), case.normal(1)
    return _pair(case, gate * _sigmoid(gate) * up, tolerance_for("silu_mul"), gate, up)


def gelu_mul(case: Case) -> Trial:
    """gelu(gate) * up, GELU by tanh. Upstream's test: as silu_and_mul."""
    gate, up = case.normal(0), case.normal(1)
    inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    return _pair(
        case, 0.5 * gate * (1 + np.tanh(inner)) * up, example("gelu_and_mul/gelu_and_mul.py", 1.6e-2, 8e-2), gate, up
    )


def swiglu(case: Case) -> Trial:
    """silu(x * gate) * (x * up), gate and up packed as two rows."""
    x, packed = case.uniform(0, -2, 2), case.uniform(1, -2, 2)
    gate, up = x * packed[0], x * packed[1]
    return case.trial({0: x, 1: packed}, {2: (gate * _sigmoid(gate) * up, example("swiglu/swiglu.py", 1e-1, 5e-2))})


def sine_or_cosine(case: Case) -> Trial:
    """sin or cos, whichever the program calls. The kernel approximates by a short series in bf16."""
    x = case.normal(0)
    tolerance = units(2, 2.0**-5, "a polynomial in bf16; upstream's own test allows rtol 1")
    return case.trial({0: x}, {1: (np.cos(x) if case.calls("cos") else np.sin(x), tolerance)})


def softmax(case: Case) -> Trial:
    """Softmax of each tile on its own."""
    declared = case.declared("softmax")
    tile = declared[0][0] if declared else case.shape(0)[-1]
    x = case.normal(0).reshape(-1, tile)
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return case.trial({0: x}, {1: (powers / powers.sum(axis=1, keepdims=True), example("softmax/softmax.py", 1e-1))})


def _valid(case: Case) -> tuple[slice, slice]:
    """The part of a padded matrix that counts (air.actual_sizes of the launch)."""
    for op in case.program.module.walk():
        sizes: Any = op.attributes.get("air.actual_sizes") or op.properties.get("air.actual_sizes")
        if sizes is not None:
            rows, columns = sizes.get_values()[:2]
            return slice(rows), slice(columns)
    return slice(None), slice(None)


def _padded(values: Array, valid: tuple[slice, slice]) -> Float:
    padded = np.zeros_like(values)
    padded[valid] = values[valid]
    return padded


def relu(case: Case) -> Trial:
    """max(a, 0), by way of bf16; the padding is zero and stays so."""
    a = _padded(case.normal(0, 4), _valid(case))
    return case.trial({0: a}, {1: (np.maximum(a, 0), example("mnist_fc/relu/run.py", 1e-2))})


def bias_add(case: Case) -> Trial:
    """a + bias, one bias a column."""
    valid = _valid(case)
    a = _padded(case.normal(0, 4), valid)
    bias = case.normal(1, 2)
    if valid[1].stop is not None:
        bias[valid[1].stop :] = 0
    # In the padded rows the sum is just the bias: they are computed like any other.
    return _pair(case, a + bias, example("mnist_fc/broadcast_bias_add/run.py", 1e-6, 1e-7), a, bias)


def argmax(case: Case) -> Trial:
    """The place of the largest of the first n columns; n is the bound of the inner loop."""
    columns = case.shape(0)[1]
    bounds = [int(value) for value in case.constants("scf.for") if 1 < value <= columns]
    classes = min(bounds, default=columns)
    a = case.normal(0, 4)
    return case.trial({0: a}, {1: (np.argmax(a[:, :classes], axis=1), EXACT)})


def _narrow(case: Case, position: int) -> Tolerance:
    return F32 if case.arguments[position].dtype == np.float32 else ONE_ROUNDING


_BY_NAME: tuple[tuple[str, Build], ...] = (
    ("vector_add", add),
    ("eltwise_add", add),
    ("vector_sub", subtract),
    ("vector_mul", multiply),
    ("vector_muladd", scaled_add),
    ("vector_fma", scaled_add),
    ("vector_max", larger),
    ("vector_select", larger),
    ("vector_div", divide),
    ("vector_andi", bitwise(np.bitwise_and)),
    ("vector_ori", bitwise(np.bitwise_or)),
    ("vector_xori", bitwise(np.bitwise_xor)),
    ("vector_exp", exponential),
    ("vector_tanh", hyperbolic_tangent),
    ("vector_rsqrt", inverse_root),
    ("scalar_invsqrt", inverse_root),
    ("vector_reciprocal", reciprocal),
    ("scalar_reciprocal", reciprocal),
    ("vector_sitofp", to_float),
    ("vector_fptosi", to_integer),
    ("scalar_shift_saturate", shift_and_saturate),
    ("vector_broadcast_scalar", broadcast_scalar),
    ("vector_reduce_add", row_sum),
    ("vector_reduce_max", row_maximum),
    ("average_pool", row_mean),
    ("silu_and_mul", silu_mul),
    ("gelu_and_mul", gelu_mul),
    ("swiglu", swiglu),
    ("sine_cosine", sine_or_cosine),
    ("softmax", softmax),
    ("relu", relu),
    ("broadcast_bias_add", bias_add),
    ("argmax", argmax),
)
"""Upstream names the example's file and its function alike; the MNIST layers' files are all run.py."""

REFERENCES: tuple[tuple[str, Build], ...] = (
    *((f"*__{name}", build) for name, build in _BY_NAME),
    ("*__vector_rsqrt_v*", inverse_root),
    *((f"mnist_fc__{name}__run", build) for name, build in _BY_NAME[-3:]),
    *((f"@{name}", build) for name, build in _BY_NAME),
)
