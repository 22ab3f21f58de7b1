"""GEMM in FP32: the bf16 inputs widened, one matrix product, nothing rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"C": A @ B} as float32 [M, N]."""
    del shape, settings
    return {"C": tensors["A"].astype(np.float32) @ tensors["B"].astype(np.float32)}
