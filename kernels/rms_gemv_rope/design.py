"""Decode before attention in one ELF: RMSNorm, the Q, K and V projections, RoPE on Q and on K.

Each launch is a leaf recipe's own; this is their wiring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import fused_program

WIRING = {
    "norm": ("x", "norm_weight", "normed"),
    "q": ("wq", "normed", "q"),
    "k": ("wk", "normed", "k"),
    "v": ("wv", "normed", "v"),
    "rope q": ("q", "table_q", "q_rope"),
    "rope k": ("k", "table_k", "k_rope"),
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @rms_gemv_rope, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, WIRING)
