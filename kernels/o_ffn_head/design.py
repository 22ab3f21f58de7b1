"""Prefill after attention as far as SwiGLU in one ELF, for hidden sizes whose FFN does not fuse whole.

Each launch is a leaf recipe's own; this is their wiring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import fused_program

WIRING = {
    "o": ("attention", "wo", "o"),
    "add": ("residual", "o", "summed"),
    "norm": ("summed", "norm_weight", "normed"),
    "gate": ("normed", "w_gate", "gate"),
    "up": ("normed", "w_up", "up"),
    "swiglu": ("gate", "up", "swiglu"),
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @o_ffn_head, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, WIRING)
