"""Down projection and residual of prefill in FP32; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"down", "out"} as float32."""
    del shape, settings
    down = tensors["swiglu"].astype(np.float32) @ tensors["w_down"].astype(np.float32)
    return {"down": down, "out": tensors["residual"].astype(np.float32) + down}
