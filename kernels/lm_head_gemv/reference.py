"""Logits in float64: the bf16 weight and vector widened, a block of rows at a time, nothing rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROWS = 4096


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"logits": weight @ x} as float64 [vocab]."""
    del settings
    weight, x = tensors["weight"], tensors["x"].astype(np.float64)
    blocks = [weight[row : row + ROWS].astype(np.float64) @ x for row in range(0, shape["vocab"], ROWS)]
    return {"logits": np.concatenate(blocks)}
