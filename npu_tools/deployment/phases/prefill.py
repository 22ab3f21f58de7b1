"""Phase 4: prefill gets faster, one optimisation at a time, and the token gate still passes."""

from __future__ import annotations

from npu_tools.deployment.optimise import optimise
from npu_tools.deployment.site import Ended, Site


def run(site: Site) -> Ended:
    """Try merging, buffer reuse and layout on prefill."""
    return optimise(site, 4, "prefill")
