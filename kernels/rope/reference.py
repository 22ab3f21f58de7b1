"""RoPE half-split in float64, as Hugging Face's rotate_half computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
THETA = 500000.0


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """A table for positions from 0 on, one a row."""
    del rng, settings
    half = shape["head_dim"] // 2
    angles = np.arange(shape["rows"])[:, None] * THETA ** (-np.arange(half) / half)
    return {"table": np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32).reshape(-1)}


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"y": rotated rows} as float64 [rows * head_dim]."""
    del settings
    half = shape["head_dim"] // 2
    x, table = (tensors[name].astype(np.float64).reshape(-1, 2 * half) for name in ("x", "table"))
    low, high, cos, sin = x[:, :half], x[:, half:], table[:, :half], table[:, half:]
    return {"y": np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=1).reshape(-1)}
