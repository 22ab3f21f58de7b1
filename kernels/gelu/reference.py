"""GELU's tanh form in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"y": 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))} as float64 [n]."""
    del shape, settings
    x = tensors["x"].astype(np.float64)
    return {"y": 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))}
