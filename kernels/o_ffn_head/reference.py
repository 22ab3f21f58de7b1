"""Prefill after attention as far as SwiGLU in FP32; nothing is rounded in between."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

_whole = sibling(__file__, "o_ffn", "reference")


def inputs(rng: np.random.Generator, shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """A norm weight near one."""
    return dict(_whole.inputs(rng, shape, settings))


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """Every output, as float32."""
    del shape
    made = dict(_whole.head(tensors, settings))
    return {**made, **_whole.activated(made["normed"], tensors)}
