"""Robust relative-error fit of positive parameters: Levenberg–Marquardt on their logarithms, plain numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ROBUST = 0.08
"""Relative error from which a residual counts linearly instead of squared (pseudo-Huber)."""
PULL = 0.02
"""Weight of staying near the starting values, so that parameters the rows cannot tell keep them."""
_STEP = 1e-5


def fit_positive(predict: Callable[[Array], Array], measured: Array, start: Array, *, rounds: int = 60) -> Array:
    """Positive parameters [p] whose `predict` [n] is nearest `measured` [n] by relative error.

    `predict` maps parameters [p] to times [n]; `start` [p] is where the search begins.
    """
    wanted, origin = np.log(measured), np.log(start)

    def residuals(x: Array) -> Array:
        off = np.log(np.maximum(predict(np.exp(x)), 1e-9)) - wanted
        robust = np.sign(off) * ROBUST * np.sqrt(2 * (np.sqrt(1 + (off / ROBUST) ** 2) - 1))
        return np.concatenate([robust, PULL * (x - origin)])

    x: Array = origin.copy()
    damping = 1e-2
    now = residuals(x)
    for _ in range(rounds):
        slope = np.stack([(residuals(x + _STEP * unit) - now) / _STEP for unit in np.eye(len(x))], axis=1)
        gradient, curvature = slope.T @ now, slope.T @ slope
        gain = 0.0
        for _ in range(12):
            step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature) + 1e-9), -gradient)
            tried: Array = np.asarray(x + np.clip(step, -2.0, 2.0), dtype=np.float64)
            after = residuals(tried)
            gain = float(now @ now - after @ after)
            if gain > 0:
                x, now, damping = tried, after, max(damping / 5, 1e-9)
                break
            damping *= 3
        if gain <= 1e-10 * float(now @ now):
            break
    return np.exp(x)
