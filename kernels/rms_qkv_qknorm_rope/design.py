"""Prefill before attention in one ELF: RMSNorm, the Q, K and V projections, QK-norm, RoPE on Q and on K.

Each launch is a leaf recipe's own; this is their wiring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import fused_program

WIRING = {
    "norm": ("x", "norm_weight", "normed"),
    "q": ("normed", "wq", "q"),
    "k": ("normed", "wk", "k"),
    "v": ("normed", "wv", "v"),
    "norm q": ("q", "q_norm_weight", "q_normed"),
    "norm k": ("k", "k_norm_weight", "k_normed"),
    "rope q": ("q_normed", "table_q", "q_rope"),
    "rope k": ("k_normed", "table_k", "k_rope"),
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @rms_qkv_qknorm_rope, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, WIRING)
