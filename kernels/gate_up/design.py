"""Gate and up projections of prefill in one ELF.

Each launch is a leaf recipe's own; this is their wiring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import fused_program

WIRING = {
    "gate": ("normed", "w_gate", "gate"),
    "up": ("normed", "w_up", "up"),
}


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @gate_up, of the manifest's arguments."""
    return fused_program(__file__, shape, settings, WIRING)
