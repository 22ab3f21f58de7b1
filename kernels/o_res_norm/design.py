"""O projection, residual and RMSNorm of prefill in one ELF, for FFNs that are split further.

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
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @o_res_norm, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, WIRING)
