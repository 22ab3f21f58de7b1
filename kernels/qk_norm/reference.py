"""QK-norm in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

_rms = sibling(__file__, "rmsnorm", "reference")


def reference(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"y": each row over its root mean square, times the weight} as float64 [rows, head_dim]."""
    del shape
    return {"y": _rms.normalised(tensors["x"], tensors["weight"], float(settings["eps"]))}
