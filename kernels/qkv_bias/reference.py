"""Bias in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"y": x + bias} as float64 [seq, cols]; columns of x past the bias are dropped."""
    del settings
    return {"y": tensors["x"][:, : shape["cols"]].astype(np.float64) + tensors["bias"].astype(np.float64)}
