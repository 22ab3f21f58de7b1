"""Down projection and residual of prefill in one ELF, where down must be the first launch.

Each launch is a leaf recipe's own; this is their wiring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import fused_program

WIRING = {
    "down": ("swiglu", "w_down", "down"),
    "add": ("residual", "down", "out"),
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @down_add, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, WIRING)
