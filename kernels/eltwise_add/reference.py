"""Addition in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"c": a + b} as float64 [n]."""
    del shape, settings
    return {"c": tensors["a"].astype(np.float64) + tensors["b"].astype(np.float64)}
