"""Gate and up projections of prefill in FP32; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"gate", "up"} as float32."""
    del shape, settings
    normed = tensors["normed"].astype(np.float32)
    return {name: normed @ tensors[f"w_{name}"].astype(np.float32) for name in ("gate", "up")}
