"""What the host does around the cascade form: gate and up rows packed into one weight, tile by tile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from npu_tools.recipes import sibling

Array = NDArray[Any]

TILE = 32
"""Rows of a step of gemv_swiglu in this ELF: a word of the cascade."""

_swiglu = sibling(__file__, "gemv_swiglu", "host")


def arrange(tensors: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors, in the cascade form with "w_gate_up" for "w_gate" and "w_up"."""
    del shape
    made = dict(tensors)
    if settings["form"] == "cascade" and "w_gate" in made:
        made["w_gate_up"] = _swiglu.packed(made.pop("w_gate"), made.pop("w_up"), TILE)
    return made


def collect(arguments: Mapping[str, Array], shape: Mapping[str, int], settings: Mapping[str, Any]) -> dict[str, Array]:
    """The same."""
    del shape, settings
    return dict(arguments)
