"""RMSNorm, projections, biases and RoPE of one token in FP32, one after the other; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

_plain = sibling(__file__, "rms_gemms_rope", "reference")
_prefill = sibling(__file__, "rms_qkv_bias_rope", "reference")


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """As in a prefill, for one position."""
    return dict(_prefill.inputs(rng, shape, settings))


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Every output, as float32."""
    del shape
    normed = _plain.normalised(tensors, settings)
    projected = {name: tensors[f"w{name}"].astype(np.float32) @ normed for name in ("q", "k", "v")}
    return {"normed": normed, **_prefill.composed(projected, tensors, settings)}
