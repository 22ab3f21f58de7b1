"""RMSNorm, projections, biases and RoPE in FP32, one after the other; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

_plain = sibling(__file__, "rms_gemms_rope", "reference")


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Tables for the first positions, a norm weight near one."""
    return dict(_plain.inputs(rng, shape, settings))


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
    made |= {f"{name}_biased": made[name] + tensors[f"{name}_bias"].astype(np.float32) for name in ("q", "k", "v")}
    turned = _plain.turned({name: made[f"{name}_biased"] for name in ("q", "k")}, tensors, settings)
    return {**made, **turned}
