"""The model-level gate: greedy tokens of two runs must stay in each other's top five until they first part.

The rule is mlir-air's (llms/verify/comparators.py, compute_topk_set_check): walk the steps; while both choose
the same token go on; at the first divergence the device's token must be among the reference's k best and the
reference's among the device's. After it the contexts differ, so nothing later is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.errors import UnusableInput

GATE_TOKENS = 32
GATE_K = 5
"""mlir-air llms/verify: GATE_N_TOKENS, GATE_K."""


@dataclass(frozen=True, slots=True)
class TokenVerdict:
    """Outcome of the token-set gate; `step` is the first divergence, None when there was none."""

    passed: bool
    convention: str
    reason: str
    steps: int
    step: int | None
    actual_token: int | None
    reference_token: int | None


def top_k(logits: NDArray[Any], k: int = GATE_K) -> list[int]:
    """The ids of the k largest logits [vocab], largest first; ties go to the smaller id."""
    values = np.asarray(logits, np.float64).reshape(-1)
    best = np.arange(values.size)
    if 0 < k < values.size and not np.isnan(values.max()):  # NaN comes last, and partition would put it first
        best = np.flatnonzero(values >= np.partition(values, -k)[-k])
    return [int(i) for i in best[np.lexsort((best, -values[best]))[:k]]]


def judge_tokens(
    actual: NDArray[Any], reference: NDArray[Any], *, k: int = GATE_K, steps: int = GATE_TOKENS
) -> TokenVerdict:
    """The token-set gate over logits [steps, vocab] of two greedy runs from one prompt.

    Raises:
        UnusableInput: shapes that do not fit, fewer steps than asked, or logits that are not numbers.
    """
    if actual.ndim != 2 or reference.ndim != 2 or actual.shape[1] != reference.shape[1]:
        raise UnusableInput(
            f"logits of shape {list(actual.shape)} and {list(reference.shape)}: give [steps, vocabulary] twice, "
            "over one vocabulary"
        )
    if actual.shape[1] < k or min(len(actual), len(reference)) < steps:
        raise UnusableInput(
            f"the gate compares {steps} steps of at least {k} logits; got {len(actual)} and {len(reference)} steps "
            f"of {actual.shape[1]}"
        )
    convention = f"upstream token set: bidirectional top-{k} over {steps} greedy tokens"
    for step in range(steps):
        for row, whose in ((actual[step], "the output"), (reference[step], "the reference")):
            if not np.isfinite(np.asarray(row, np.float64)).all():
                if whose == "the reference":
                    raise UnusableInput(f"the reference's logits at step {step} are not finite")
                return TokenVerdict(False, convention, f"NaN or Inf logits at step {step}", step, step, None, None)
        ours, theirs = top_k(actual[step], k), top_k(reference[step], k)
        if ours[0] == theirs[0]:
            continue
        passed = ours[0] in theirs and theirs[0] in ours
        words = "each in the other's" if passed else "not each in the other's"
        reason = f"first divergence at step {step}: {ours[0]} against {theirs[0]}, {words} top {k}"
        return TokenVerdict(passed, convention, reason, step + 1, step, ours[0], theirs[0])
    return TokenVerdict(True, convention, f"{steps} identical greedy tokens", steps, None, None, None)
