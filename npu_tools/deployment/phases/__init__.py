"""The eight phases, one module each: `run(site) -> Ended`.

>>> PHASES[3](site).passed
"""

from __future__ import annotations

from collections.abc import Callable

from npu_tools.deployment.phases import block, decode, evaluator, finalize, kernels, model, prefill, reference
from npu_tools.deployment.site import Ended, Site

PHASES: dict[int, Callable[[Site], Ended]] = {
    0: reference.run,
    1: kernels.run,
    2: block.run,
    3: model.run,
    4: prefill.run,
    5: decode.run,
    6: finalize.run,
    7: evaluator.run,
}

__all__ = ["PHASES"]
