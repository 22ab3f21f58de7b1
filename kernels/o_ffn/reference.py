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
    wide = {name: values.astype(np.float32) for name, values in tensors.items()}
    o = wide["attention"] @ wide["wo"]
    summed = wide["residual"] + o
    normed = _rms.normalised(summed, tensors["norm_weight"], float(settings["eps"])).astype(np.float32)
    gate, up = normed @ wide["w_gate"], normed @ wide["w_up"]
    swiglu = _silu.reference({"gate": gate, "up": up}, {}, {})["y"].astype(np.float32)
    down = swiglu @ wide["w_down"]
    return {
        "o": o, "summed": summed, "normed": normed, "gate": gate, "up": up, "swiglu": swiglu, "down": down,
        "out": summed + down,
    }  # fmt: skip
