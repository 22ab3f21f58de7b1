"""LayerNorm in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"y": (x - mean) / sqrt(var + eps) * weight + bias} as float64 [M, N]."""
    del shape
    x, weight, bias = (tensors[name].astype(np.float64) for name in ("x", "weight", "bias"))
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = (centred**2).mean(axis=-1, keepdims=True) + float(settings["eps"])
    return {"y": centred / np.sqrt(spread) * weight + bias}
