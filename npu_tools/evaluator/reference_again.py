"""The greedy reference a deployment kept: every step of it beside FP32, and one prompt beside Hugging Face asked again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from npu_tools.evaluator.claims import Claims, line, prompts_of
from npu_tools.evaluator.coverage import last_gates
from npu_tools.evaluator.reasons import Reason
from npu_tools.evaluator.rederive import Checked
from npu_tools.evaluator.results import Array, Made, greedy_references, logits_of, relative_error
from npu_tools.oracle import GreedyRequest, run_oracle

STEPS, STEPS_OF_SMALL = 2, 32
"""Tokens Hugging Face is asked for again, and of models under SMALL weights, where they cost seconds."""
SMALL = 300_000_000
SAME = 0.02
"""Relative error (2-norms) of bf16 logits between libraries and thread counts; on one machine it is zero."""
NEARER = 0.4
"""A kept reference whose distance to the device is under this share of a fresh one's was moved towards it."""
OUTLIER = 16
"""A kept logit this many times as far from FP32 as its row is in the mean was set by hand; of honest rows (tiny,
SmolLM2-135M, Qwen2.5-0.5B) the farthest is 7 times."""
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
    steps = min(len(then), STEPS_OF_SMALL if whole or claims.dims.weights < SMALL else STEPS)
    request = GreedyRequest(
        config=dict(claims.config), weights=claims.weights, folder=str(place), prompts=[prompts[number]], steps=steps
    )
    result = run_oracle(request, timeout_s=1800)
    if result.state != "done":
        yield Reason("not_checked", f"Hugging Face could not be asked again: {result.reason}", line(gates[-1]))
        return
    now = np.load(place / result.answer["prompts"][0]["logits"])
    checked.notes.append(f"Hugging Face bf16 asked again for prompt {number}")
    for step in range(min(len(then), len(now))):
        text = _moved(f"prompt {number}, step {step}", then[step], now[step], None if device is None else device[step])
        if text:
            yield Reason("reference_edited", text, line(gates[-1]))
            return
        if then[step].argmax() != now[step].argmax():
            return  # a tie within rounding: what follows has another context


def _moved(where: str, then: Array, now: Array, device: Array | None) -> str:
    """How far kept logits are from fresh ones, where that is too far or towards the device."""
    error = relative_error(then, now)
    near = device is not None and relative_error(then, device) < NEARER * relative_error(now, device)
    if error <= SAME and not near:
        return ""
    text = f"{where}: the kept logits are {error:.3g} away from Hugging Face's"
    return text + (", and nearer to the device's than those are" if near else "")


def audit_steps(claims: Claims, made: Made) -> Iterator[Reason]:
    """Every step of every prompt beside FP32: Hugging Face's bf16 and the device err each in its own way."""
    started, kept = time.monotonic(), greedy_references(claims)
    for gate in last_gates(claims)[-1:]:
        for number, prompt in enumerate(prompts_of(gate)):
            theirs, ours = kept.get(tuple(prompt)), logits_of(claims, gate, number)
            if theirs is None or ours is None or ours.shape[1:] != theirs.shape[1:]:
                continue  # audit_tokens tells
            if time.monotonic() - started > made.budget_s:
                return
            exact = _exact(made, [*prompt, *(int(row.argmax()) for row in theirs[:-1])], len(theirs))
            for step in range(min(len(theirs), len(ours))):
                near, apart = relative_error(theirs[step], ours[step]), relative_error(exact[step], ours[step])
                if near < NEARER * apart:
                    text = (
                        f"prompt {number}, step {step}: the kept reference is {near:.2g} away from the device's logits"
                    )
                    yield Reason("reference_edited", f"{text}, FP32 is {apart:.2g}", line(gate))
                    return
                if ours[step].argmax() != theirs[step].argmax():
                    break  # from here on each has a context of its own
            for step, (row, wanted) in enumerate(zip(theirs, exact, strict=True)):
                apart = np.abs(row - wanted)
                if float(apart.max()) > OUTLIER * float(np.linalg.norm(apart)) / len(apart) ** 0.5:
                    text = (
                        f"prompt {number}, step {step}: token {int(apart.argmax())} of the kept reference stands out by"
                    )
                    yield Reason("reference_edited", f"{text} {float(apart.max()):.2g} against FP32", line(gate))
                    return


def _exact(made: Made, tokens: list[int], steps: int) -> Array:
    """FP32 logits [steps, vocab] after each of the last `steps` tokens."""
    hidden = made.decomposition.embedding(tokens)
    for layer in range(made.decomposition.dims.layers):
        for stage, array in made.decomposition.block(layer, hidden):
            if stage == "output":
                hidden = array
    return made.decomposition.logits(made.decomposition.final_norm(hidden[-steps:]))
