"""How far the modelled elementwise and normalising kernels are from float32, beside what upstream publishes.

Each function computes one kernel step by step as its program or C++ does, on a core in a given rounding mode. They exist
to tell rounding models apart; runs of whole programs go through the ops and kernels proper.

    measure_kernel_error(row, "floor")       # eltwise_add: 1.88e-3; published 1.9e-3
    measure_kernel_error(row, "conv_even")   # eltwise_add: 0
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npu_tools.emulator.gemm_error import mean_rel_l1
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.published import KernelRow
from npu_tools.emulator.rounding import F32, Rounding, round_bf16

_VALUES = 1 << 22
"""At most this many values are measured."""
_EPS = np.float32(1e-5)
_SQRT_2_OVER_PI = np.float32(0.7978845608028654)
_BETA = np.float32(0.044715)


def measure_kernel_error(row: KernelRow, rounding: Rounding = "floor", *, seed: int = 0) -> float:
    """mean_rel_L1 of the kernel against a float32 reference in bf16, on randn inputs."""
    rows = max(1, min(row.rows, _VALUES // row.columns))
    # The legacy generator with this seed draws what upstream's runners feed the device.
    draw = np.random.RandomState(seed)
    out, reference = KERNELS[row.name](draw, rows, row.columns, Numerics(rounding=rounding))
    return mean_rel_l1(out, round_bf16(reference))


def _randn(draw: np.random.RandomState, *shape: int) -> F32:
    return round_bf16(draw.standard_normal(shape))


def _add(draw: np.random.RandomState, rows: int, columns: int, core: Numerics) -> tuple[F32, F32]:
    a, b = _randn(draw, rows, columns), _randn(draw, rows, columns)
    return core.round_to(a + b, "bf16"), a + b


def _rope(draw: np.random.RandomState, rows: int, columns: int, core: Numerics) -> tuple[F32, F32]:
    x1, x2 = _randn(draw, rows, columns // 2), _randn(draw, rows, columns // 2)
    angle = draw.uniform(0, 2 * np.pi, (rows, columns // 2))
    cos, sin = round_bf16(np.cos(angle)), round_bf16(np.sin(angle))
    exact = np.asarray(np.concatenate([x1 * cos - x2 * sin, x1 * sin + x2 * cos], axis=1), np.float32)
    return core.round_to(exact, "bf16"), exact


def _rms_norm(draw: np.random.RandomState, rows: int, columns: int, core: Numerics) -> tuple[F32, F32]:
    x, weight = _randn(draw, rows, columns), _randn(draw, columns)
    mean = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32)
    rstd = core.rsqrt(mean + _EPS)
    normed = core.round_to(x * core.round_to(rstd, "bf16"), "bf16")
    exact = np.asarray(x * rstd * weight, np.float32)
    return core.round_to(normed * weight, "bf16"), exact


def _layer_norm(draw: np.random.RandomState, rows: int, columns: int, core: Numerics) -> tuple[F32, F32]:
    x, weight, bias = _randn(draw, rows, columns), _randn(draw, columns), _randn(draw, columns)
    mean = np.mean(x, axis=1, keepdims=True, dtype=np.float32)
    centred = core.round_to(x - core.round_to(mean, "bf16"), "bf16")
    rstd = core.rsqrt(np.mean(centred * centred, axis=1, keepdims=True, dtype=np.float32) + _EPS)
    normed = core.round_to(centred * core.round_to(rstd, "bf16"), "bf16")
    away = x - mean
    exact = away * core.rsqrt(np.mean(away * away, axis=1, keepdims=True, dtype=np.float32) + _EPS) * weight + bias
    return core.round_to(normed * weight + bias, "bf16"), exact


def _silu_and_mul(draw: np.random.RandomState, rows: int, columns: int, core: Numerics) -> tuple[F32, F32]:
    gate, up = _randn(draw, rows, columns), _randn(draw, rows, columns)
    exact = np.asarray(gate / (1 + np.exp(-gate)) * up, np.float32)
    return core.round_to(core.silu(gate) * up, "bf16"), exact


def _gelu(draw: np.random.RandomState, rows: int, columns: int, core: Numerics) -> tuple[F32, F32]:
    x = _randn(draw, rows, columns)
    scale, beta = (round_bf16(np.array([value])) for value in (_SQRT_2_OVER_PI, _BETA))
    cube = core.round_to(core.round_to(x * x, "bf16") * x, "bf16")
    inner = core.round_to(scale * core.round_to(x + beta * cube, "bf16"), "bf16")
    plus = core.round_to(core.tanh(inner) + np.float32(1), "bf16")
    tanh = np.tanh(_SQRT_2_OVER_PI * (x + _BETA * x * x * x))
    exact = np.asarray(np.float32(0.5) * x * (1 + tanh), np.float32)
    return core.round_to(np.float32(0.5) * x * plus, "bf16"), exact


KERNELS: dict[str, Callable[[np.random.RandomState, int, int, Numerics], tuple[F32, F32]]] = {
    "eltwise_add": _add,
    "rope_halfsplit": _rope,
    "weighted_rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "silu_and_mul": _silu_and_mul,
    "gelu": _gelu,
}
"""Output and float32 reference by kernel name."""
