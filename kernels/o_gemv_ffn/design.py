"""Decode after attention in one ELF: O projection, residual, RMSNorm, gate and up, SwiGLU, down, residual.

Each launch is a leaf recipe's own; this is their wiring, in eight plain launches or in three over cascades.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import fused_program

WIRING = {
    "o": ("wo", "attention", "o"),
    "add": ("residual", "o", "summed"),
    "norm": ("summed", "norm_weight", "normed"),
    "gate": ("w_gate", "normed", "gate"),
    "up": ("w_up", "normed", "up"),
    "swiglu": ("gate", "up", "swiglu"),
    "down": ("w_down", "swiglu", "down"),
    "add down": ("summed", "down", "out"),
}
CASCADE = {
    "o": ("wo", "attention", "residual", "summed"),
    "gate and up": ("w_gate_up", "summed", "norm_weight", "swiglu"),
    "down": ("w_down", "swiglu", "summed", "out"),
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @o_gemv_ffn, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, CASCADE if settings["form"] == "cascade" else WIRING)
