"""Head-first builds take [heads, length, head_dim]: the model's [length, heads * head_dim] transposed, both ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def arrange(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"Q", "K", "V"} as the function takes them; sequence-first ones are handed on as they are."""
    if settings["variant"] != "head-first":
        return {name.upper(): tensors[name] for name in ("q", "k", "v") if name in tensors}
    width = shape["head_dim"]
    return {
        name.upper(): np.ascontiguousarray(tensors[name].reshape(len(tensors[name]), -1, width).swapaxes(0, 1))
        for name in ("q", "k", "v")
        if name in tensors
    }


def collect(arguments: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"out"} as [lq, heads * head_dim]."""
    out = arguments["O"]
    if settings["variant"] == "head-first":
        out = np.ascontiguousarray(out.swapaxes(0, 1)).reshape(shape["lq"], -1)
    return {"out": out}
