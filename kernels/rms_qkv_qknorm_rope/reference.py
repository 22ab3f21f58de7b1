"""RMSNorm, projections, QK-norm and RoPE in FP32, one after the other; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

_plain = sibling(__file__, "rms_gemms_rope", "reference")
_rms = sibling(__file__, "rmsnorm", "reference")


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Tables for the first positions, norm weights near one."""
    made: dict[str, Array] = dict(_plain.inputs(rng, shape, settings))
    for name in ("q_norm_weight", "k_norm_weight"):
        made[name] = 1 + 0.1 * rng.standard_normal(int(settings["head_dim"]), np.float32)
    return made


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Every output, as float32."""
    del shape
    normed = _plain.normalised(tensors, settings)
    projected = {name: normed @ tensors[f"w{name}"].astype(np.float32) for name in ("q", "k", "v")}
    return {"normed": normed, **composed(projected, tensors, settings)}


def composed(
    projected: Mapping[str, Array], tensors: Mapping[str, Array], settings: Mapping[str, Any]
) -> dict[str, Array]:
    """The projections "q", "k", "v" with what follows them."""
    made = dict(projected)
    width, eps = int(settings["head_dim"]), float(settings["eps"])
    for name in ("q", "k"):
        heads = made[name].reshape(-1, width)
        scaled = _rms.normalised(heads, tensors[f"{name}_norm_weight"], eps).astype(np.float32)
        made[f"{name}_normed"] = scaled.reshape(made[name].shape)
    turned = _plain.turned({name: made[f"{name}_normed"] for name in ("q", "k")}, tensors, settings)
    return {**made, **turned}
