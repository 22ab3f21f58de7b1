"""Prefill before attention in one ELF: RMSNorm, the Q, K and V projections with their biases, RoPE on Q and on K.

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
    "bias q": ("q", "q_bias", "q_biased"),
    "bias k": ("k", "k_bias", "k_biased"),
    "bias v": ("v", "v_bias", "v_biased"),
    "rope q": ("q_biased", "table_q", "q_rope"),
    "rope k": ("k_biased", "table_k", "k_rope"),
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @rms_qkv_bias_rope, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, WIRING)
