"""Gate and up rows packed as the tiles take them: half a tile of gate rows, the up rows of the same outputs, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def arrange(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """{"A", "x", "weight"}, of those given."""
    del shape
    made = {name: tensors[name] for name in ("x", "weight") if name in tensors}
    if "w_gate" in tensors:
        made["A"] = packed(tensors["w_gate"], tensors["w_up"], int(settings["tile_m"]))
    return made


def packed(gate: Array, up: Array, tile_m: int) -> Array:
    """[2 * hidden, emb] of two [hidden, emb]."""
    halves = [rows.reshape(-1, tile_m // 2, rows.shape[1]) for rows in (gate, up)]
    return np.stack(halves, axis=1).reshape(2 * len(gate), -1)


def collect(arguments: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """The same."""
    del shape, settings
    return dict(arguments)
