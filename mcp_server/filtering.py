"""The filters `explain` and `search` take, told alike by the command line and the MCP tools.

Imports nothing heavy: both surfaces read their help from here before anything is opened.

    memory.search(query, filters_of(device="strix", kernel="gemm"))
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kb import Filters

DEVICE = "npu1, npu2, or a name: Phoenix, Strix, Strix Halo, Krackan …"
COMPONENT = "mlir-air, mlir-aie, peano, xrt, driver, iron …"
PHASE = "setup, or deployment phase 0-7"
KERNEL = "gemm, gemv, rmsnorm, rope, flash_attention …"
MODEL = "llama32_1b, qwen3_4b …"


def filters_of(
    device: str | None = None,
    component: str | None = None,
    phase: str | None = None,
    kernel: str | None = None,
    model: str | None = None,
    versions: Mapping[str, str] | None = None,
    status: str | None = None,
    kind: str | None = None,
) -> Filters:
    """The filters a caller chose; what was left out admits everything."""
    from kb import Filters

    return Filters(device, component, phase, kernel, model, status, (kind,) if kind else (), versions or {})
