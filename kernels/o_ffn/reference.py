"""O projection, residual, RMSNorm, SwiGLU FFN and residual in FP32; nothing is rounded in between."""

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
    return {"norm_weight": 1 + 0.1 * rng.standard_normal(shape["emb"], np.float32)}


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Every output, as float32."""
    del shape
    made = head(tensors, settings)
    made |= activated(made["normed"], tensors)
    down = made["swiglu"] @ tensors["w_down"].astype(np.float32)
    return {**made, "down": down, "out": made["summed"] + down}


def head(tensors: Mapping[str, Array], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"o", "summed", "normed"}: projection, residual, norm."""
    o = tensors["attention"].astype(np.float32) @ tensors["wo"].astype(np.float32)
    summed = tensors["residual"].astype(np.float32) + o
    normed = _rms.normalised(summed, tensors["norm_weight"], float(settings["eps"])).astype(np.float32)
    return {"o": o, "summed": summed, "normed": normed}


def activated(normed: Array, tensors: Mapping[str, Array]) -> dict[str, Array]:
    """{"gate", "up", "swiglu"} of the normed input."""
    gate, up = (normed @ tensors[name].astype(np.float32) for name in ("w_gate", "w_up"))
    return {"gate": gate, "up": up, "swiglu": _silu.reference({"gate": gate, "up": up}, {}, {})["y"].astype(np.float32)}
