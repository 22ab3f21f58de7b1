"""Hugging Face asked again: the greedy reference a deployment kept beside a fresh one, for one of its prompts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from npu_tools.evaluator.claims import Claims, line, prompts_of
from npu_tools.evaluator.coverage import last_gates
from npu_tools.evaluator.reasons import Reason
from npu_tools.evaluator.rederive import Checked
from npu_tools.evaluator.results import Made, greedy_references, logits_of, relative_error
from npu_tools.oracle import GreedyRequest, run_oracle

STEPS = 2
SAME = 0.02
"""Relative error (2-norms) of bf16 logits between libraries and thread counts; on one machine it is zero."""
NEARER = 0.4
"""A kept reference whose distance to the device is under this share of a fresh one's was moved towards it."""
MOST_WEIGHTS = 2_000_000_000
"""A larger model is asked again in a full evaluation only: it takes minutes and twice its weights in bytes."""


def audit_greedy(claims: Claims, made: Made, place: Path, *, whole: bool, checked: Checked) -> Iterator[Reason]:
    """What speaks against the kept reference of the token gate."""
    gates, kept = last_gates(claims), greedy_references(claims)
    prompts = prompts_of(gates[-1]) if gates else []
    if not prompts or (claims.dims.weights > MOST_WEIGHTS and not whole):
        return
    number = int(made.rng.integers(len(prompts)))
    then, device = kept.get(tuple(prompts[number])), logits_of(claims, gates[-1], number)
    if then is None:
        return  # audit_tokens tells
    request = GreedyRequest(
        config=dict(claims.config), weights=claims.weights, folder=str(place), prompts=[prompts[number]], steps=STEPS
    )
    result = run_oracle(request, timeout_s=1800)
    if result.state != "done":
        yield Reason("not_checked", f"Hugging Face could not be asked again: {result.reason}", line(gates[-1]))
        return
    now = np.load(place / result.answer["prompts"][0]["logits"])
    checked.notes.append(f"Hugging Face bf16 asked again for prompt {number}")
    error = relative_error(then[:1], now[:1])
    near = None if device is None else relative_error(then[:1], device[:1])
    honest = None if device is None else relative_error(now[:1], device[:1])
    moved = near is not None and honest is not None and near < NEARER * honest
    if error > SAME or moved:
        text = f"prompt {number}: the kept logits are {error:.3g} away from Hugging Face's"
        text += ", and nearer to the device's than those are" if moved else ""
        yield Reason("reference_edited", text, line(gates[-1]))
