"""RMSNorm in float64: the bf16 inputs widened, nothing rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"y": x / sqrt(mean(x^2) + eps) * weight} as float64 [M, N]."""
    del shape
    return {"y": normalised(tensors["x"], tensors["weight"], float(settings["eps"]))}


def normalised(x: Array, weight: Array, eps: float) -> Array:
    """Rows of x divided by their root mean square, times the weight."""
    rows = x.astype(np.float64)
    return rows / np.sqrt((rows**2).mean(axis=-1, keepdims=True) + eps) * weight.astype(np.float64)
