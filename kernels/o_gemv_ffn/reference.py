"""O projection, residual, RMSNorm, SwiGLU FFN and residual of one token in FP32; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

_prefill = sibling(__file__, "o_ffn", "reference")


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """A norm weight near one."""
    return dict(_prefill.inputs(rng, shape, settings))


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Every output, as float32: o_ffn's, whose weights are transposed. The cascade form gives fewer."""
    turned = {name: values.T if values.ndim == 2 else values for name, values in tensors.items()}
    made: dict[str, Array] = dict(_prefill.reference(turned, shape, settings))
    kept = ("summed", "swiglu", "out") if settings["form"] == "cascade" else tuple(made)
    return {name: made[name] for name in kept}
