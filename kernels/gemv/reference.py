"""GEMV in float64: the bf16 inputs widened, one matrix-vector product, nothing rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROWS = 4096
"""Rows widened at a time: an LM head in float64 would be gigabytes."""


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"c": A @ b} as float64 [M]."""
    del shape, settings
    return {"c": product(tensors["A"], tensors["b"])}


def product(matrix: Array, vector: Array) -> Array:
    """The product in float64, a block of rows at a time."""
    wide = vector.astype(np.float64)
    blocks = [matrix[row : row + ROWS].astype(np.float64) @ wide for row in range(0, len(matrix), ROWS)]
    return np.concatenate(blocks)
