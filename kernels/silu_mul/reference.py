"""SiLU times up in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"y": gate / (1 + exp(-gate)) * up} as float64 [n]."""
    del shape, settings
    gate = tensors["gate"].astype(np.float64)
    return {"y": gate / (1 + np.exp(-gate)) * tensors["up"].astype(np.float64)}
