"""The element-wise gate: every element of the whole output within rtol and atol of an FP32 reference.

NaN, shape and dtype come first. mean_rel_L1, Pearson and cosine stand beside the verdict and never decide it
(a uniform factor of two has cosine 1), except that the paper's convention adds its Pearson floor.

>>> judge(actual, reference, tolerance_for("gemv")).passed
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from npu_tools.errors import UnusableInput
from npu_tools.gate.looks_like import Likeness, likenesses
from npu_tools.gate.tolerance import Tolerance

Array = NDArray[Any]
_REL_FLOOR = 1e-6
"""Denominator floor of max_rel, as in mlir-air's llms/verify/comparators.py error_metrics."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """Error of `actual` against `reference`; NaN where a figure does not exist (a constant array has no Pearson)."""

    elements: int
    mismatched: int
    mean_rel_l1: float
    max_abs: float
    max_rel: float
    pearson: float
    cosine: float
    position_cosine_min: float
    position_cosine_p5: float
    position_cosine_mean: float
    position_cosine_argmin: int


@dataclass(frozen=True, slots=True)
class Worst:
    """The element furthest beyond what it is allowed."""

    index: tuple[int, ...]
    actual: float
    expected: float
    error: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one comparison, with the convention it was judged by."""

    passed: bool
    convention: str
    reason: str
    tolerance: Tolerance
    metrics: Metrics | None = None
    worst: Worst | None = None
    looks_like: tuple[Likeness, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; figures that do not exist are null."""
        return _plain(asdict(self))


def judge(actual: Array, reference: Array, tolerance: Tolerance, *, previous: Array | None = None) -> Verdict:
    """Whether every element of `actual` is within `tolerance` of `reference`; both of one shape.

    `previous` is the output of an earlier call, to recognise a stale buffer. bf16 may come as ml_dtypes.bfloat16,
    as float32, or as the two-byte records numpy makes of it on loading.

    Raises:
        UnusableInput: the reference itself cannot be used (empty, not numeric, not finite).
    """
    expected = numbers(reference, "the reference")
    got = numbers(actual, "the actual output")
    if expected.size == 0:
        raise UnusableInput(f"the reference is empty, shape {expected.shape}: there is nothing to compare")
    if not np.isfinite(expected).all():
        where = _first(~np.isfinite(expected))
        raise UnusableInput(
            f"the reference holds {expected[where]} at {list(where)}: a reference must be finite; "
            "check how it was computed (overflow in a narrow dtype?)"
        )
    convention = tolerance.convention

    def missed(reason: str) -> Verdict:
        return Verdict(False, convention, reason, tolerance)

    if got.shape != expected.shape:
        return missed(f"shape {list(got.shape)}, expected {list(expected.shape)}{_shape_hint(got, expected)}")
    if (got.dtype.kind in "iub") != (expected.dtype.kind in "iub"):
        return missed(f"dtype {got.dtype}, expected {expected.dtype}: integers and floats are not compared")
    finite = np.isfinite(got)
    if not finite.all():
        where = _first(~finite)
        count = int(got.size - finite.sum())
        alike = likenesses(got, expected, previous=previous)
        reason = f"{count} of {got.size} elements are NaN or Inf, the first at {list(where)}"
        return Verdict(False, convention, reason, tolerance, looks_like=alike)
    return _elementwise(got, expected, tolerance, previous)


def _elementwise(got: Array, expected: Array, tolerance: Tolerance, previous: Array | None) -> Verdict:
    a, r = got.astype(np.float64), expected.astype(np.float64)
    error = np.abs(a - r)
    allowed = tolerance.atol + tolerance.rtol * np.abs(r)
    beyond = error - allowed
    mismatched = int((beyond > 0).sum())
    metrics = _metrics(a, r, error, mismatched)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(beyond)), beyond.shape))
    worst = Worst(at, float(a[at]), float(r[at]), float(error[at]), float(allowed[at]))
    floor = tolerance.correlation_min
    reasons: list[str] = []
    if mismatched:
        reasons.append(
            f"{mismatched} of {error.size} elements are beyond atol {tolerance.atol:g} + rtol {tolerance.rtol:g}; "
            f"the worst at {list(at)}: {worst.actual:g}, expected {worst.expected:g}"
        )
    if floor is not None and not metrics.pearson >= floor:
        reasons.append(f"Pearson {metrics.pearson:.6f} is under {floor}")
    if not reasons:
        return Verdict(True, tolerance.convention, "every element is within tolerance", tolerance, metrics, worst)
    alike = likenesses(got, expected, previous=previous, allowed=allowed)
    return Verdict(False, tolerance.convention, "; ".join(reasons), tolerance, metrics, worst, alike)


def _metrics(a: Array, r: Array, error: Array, mismatched: int) -> Metrics:
    rows_a, rows_r = (x.reshape(-1, x.shape[-1]) if x.ndim > 1 else x.reshape(1, -1) for x in (a, r))
    norms = np.linalg.norm(rows_a, axis=1) * np.linalg.norm(rows_r, axis=1)
    dots = np.einsum("ij,ij->i", rows_a, rows_r)
    cosines = np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
    both_zero = (np.abs(rows_a).max(axis=1) == 0) & (np.abs(rows_r).max(axis=1) == 0)
    cosines[both_zero] = 1.0
    mean_ref = float(np.abs(r).mean())
    whole = float(np.linalg.norm(a) * np.linalg.norm(r))
    spread = float(a.std() * r.std())
    centred = float(((a - a.mean()) * (r - r.mean())).mean())
    return Metrics(
        elements=a.size,
        mismatched=mismatched,
        mean_rel_l1=float(error.mean()) / mean_ref if mean_ref else (0.0 if not error.any() else float("inf")),
        max_abs=float(error.max()),
        max_rel=float((error / np.maximum(np.abs(r), _REL_FLOOR)).max()),
        pearson=centred / spread if spread else float("nan"),
        cosine=float((a * r).sum()) / whole if whole else float("nan"),
        position_cosine_min=float(cosines.min()),
        position_cosine_p5=float(np.percentile(cosines, 5)),
        position_cosine_mean=float(cosines.mean()),
        position_cosine_argmin=int(np.argmin(cosines)),
    )


def numbers(array: Array, what: str) -> Array:
    """The array with a dtype numpy computes in; two-byte records are bf16.

    Raises:
        UnusableInput: it holds no real numbers.
    """
    array = np.asarray(array)
    if array.dtype.kind == "V" and array.dtype.itemsize == 2 and array.dtype.names is None:
        array = array.view(ml_dtypes.bfloat16)
    if array.dtype == ml_dtypes.bfloat16 or array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype.kind not in "iufb":
        raise UnusableInput(f"{what} holds {array.dtype}, not real numbers; save it as a float or integer array")
    return array


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))


def _shape_hint(got: Array, expected: Array) -> str:
    if got.size == expected.size:
        if got.ndim == expected.ndim == 2 and got.shape == expected.shape[::-1]:
            return ": transposed"
        return ": as many elements, so reshape it (pyxrt returns flat arrays)"
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
