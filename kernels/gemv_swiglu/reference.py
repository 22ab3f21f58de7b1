"""RMSNorm, gate and up, SwiGLU of one token in FP32; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

_rms = sibling(__file__, "rmsnorm", "reference")
_silu = sibling(__file__, "silu_mul", "reference")


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """A norm weight near one."""
    del settings
    return {"weight": 1 + 0.1 * rng.standard_normal(shape["K"], np.float32)}


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"d": silu(gate) * up} as float32 [M / 2]."""
    del shape
    normed = _rms.normalised(tensors["x"], tensors["weight"], float(settings["eps"])).astype(np.float32)
    gate, up = (tensors[name].astype(np.float32) @ normed for name in ("w_gate", "w_up"))
    return {"d": _silu.reference({"gate": gate, "up": up}, {}, {})["y"].astype(np.float32)}
