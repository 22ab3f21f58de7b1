"""Attention in FP32: softmax of scaled scores over the keys a query sees, nothing rounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"out"} as float32 [lq, heads * head_dim]; query heads share KV heads in groups of neighbours."""
    lq, heads, width = shape["lq"], shape["heads"], shape["head_dim"]
    group = heads // shape["kv_heads"]
    q, k, v = (tensors[name].astype(np.float32) for name in ("q", "k", "v"))
    hidden = np.arange(shape["lk"])[None, :] > np.arange(lq)[:, None] if settings["causal"] else None
    out = np.empty((lq, heads * width), np.float32)
    for head in range(heads):
        own, shared = (slice(one * width, (one + 1) * width) for one in (head, head // group))
        scores = (q[:, own] @ k[:, shared].T) * np.float32(width**-0.5)
        if hidden is not None:
            scores[hidden] = -np.inf
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        out[:, own] = (scores @ v[:, shared]) / scores.sum(axis=1, keepdims=True)
    return {"out": out}
