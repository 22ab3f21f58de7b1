"""GEMV with a residual in float64: the bf16 inputs widened, nothing rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"d": A @ b + r} as float64 [M]."""
    del shape, settings
    product = tensors["A"].astype(np.float64) @ tensors["b"].astype(np.float64)
    return {"d": product + tensors["r"].astype(np.float64)}
