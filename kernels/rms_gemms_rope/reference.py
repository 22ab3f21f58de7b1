"""RMSNorm, projections and RoPE in FP32, one after the other; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]
THETA = 500000.0

_rms = sibling(__file__, "rmsnorm", "reference")
_rope = sibling(__file__, "rope", "reference")


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Tables for the first positions, a norm weight near one."""
    return {
        "norm_weight": 1 + 0.1 * rng.standard_normal(shape["emb"], np.float32),
        **tables(shape.get("seq", 1), settings),
    }


def tables(seq: int, settings: Mapping[str, Any], first: int = 0) -> dict[str, Array]:
    """{"table_q", "table_k"}: the cosines and sines of a position, once for each of its heads."""
    half = int(settings["head_dim"]) // 2
    angles = (first + np.arange(seq))[:, None] * THETA ** (-np.arange(half) / half)
    rows = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    sides = (("table_q", "heads"), ("table_k", "kv_heads"))
    return {name: np.repeat(rows, int(settings[heads]), axis=0).reshape(-1) for name, heads in sides}


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Every output, as float32."""
    del shape
    normed = normalised(tensors, settings)
    made = {name: normed @ tensors[f"w{name}"].astype(np.float32) for name in ("q", "k", "v")}
    return {"normed": normed, **made, **turned(made, tensors, settings)}


def normalised(tensors: Mapping[str, Array], settings: Mapping[str, Any]) -> Array:
    """The input over its root mean square, times the weight."""
    return _rms.normalised(tensors["x"], tensors["norm_weight"], float(settings["eps"])).astype(np.float32)


def turned(made: Mapping[str, Array], tensors: Mapping[str, Array], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"q_rope", "k_rope"} of "q" and "k", in their shapes."""
    width = {"head_dim": int(settings["head_dim"])}
    return {
        f"{name}_rope": _rope.reference({"x": made[name], "table": tensors[f"table_{name}"]}, width, {})["y"]
        .astype(np.float32)
        .reshape(made[name].shape)
        for name in ("q", "k")
    }
