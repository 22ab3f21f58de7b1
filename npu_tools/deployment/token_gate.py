"""The token gate: greedy tokens of the device against Hugging Face bf16, prompt by prompt, and what it took.

>>> run = run_gate(site, request, meter, prompts, steps)
>>> run.passed, run.prefill.total_us, run.decode_us
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.deployment import oracle_runs
from npu_tools.deployment.closeness import closeness, device_failure
from npu_tools.deployment.diagnosis import Diagnosis
from npu_tools.deployment.metering import Meter, Reading
from npu_tools.deployment.site import Site, save
from npu_tools.deployment.workspace import write_json
from npu_tools.deployment.world import Array, RunnerRequest, Tap
from npu_tools.errors import NpuToolsError, UnusableInput
from npu_tools.gate.tokens import GATE_K, judge_tokens, top_k

SURE = 0.5
"""Probability from which the paper's convention wants the same token (full-model-validation)."""


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """One prompt: whether the sets agree, where they first part, and how many leading tokens are the same."""

    passed: bool
    reason: str
    step: int | None
    same: int
    decisive: bool
    finite: bool
    tokens: tuple[int, ...]
    reference: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "passed": self.passed, "reason": self.reason, "step": self.step, "same": self.same,
            "decisive": self.decisive, "finite": self.finite,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateRun:
    """All prompts, and the time of one prefill and one decoded token (of the first prompt)."""

    prompts: tuple[PromptOutcome, ...]
    prefill: Reading
    decode: Reading
    decoded: int
    folder: Path
    wall_s: float
    failure: Diagnosis | None = None

    @property
    def passed(self) -> bool:
        """Whether every prompt agrees."""
        return self.failure is None and bool(self.prompts) and all(each.passed for each in self.prompts)

    @property
    def finite(self) -> bool:
        """Whether no logit is NaN or infinite."""
        return self.failure is None and all(each.finite for each in self.prompts)

    @property
    def reason(self) -> str:
        """The first failure, or that there is none."""
        if self.failure is not None:
            return self.failure.message
        bad = next(((n, each) for n, each in enumerate(self.prompts) if not each.passed), None)
        return f"prompt {bad[0]}: {bad[1].reason}" if bad else f"{len(self.prompts)} prompts agree"

    @property
    def decode_us(self) -> float:
        """One token."""
        return self.decode.total_us / max(1, self.decoded)

    def metrics(self) -> dict[str, Any]:
        """As an attempt has them."""
        return {
            "prompts": [each.as_dict() for each in self.prompts],
            "prefill": self.prefill.as_dict(),
            "decode": {**self.decode.as_dict(), "tokens": self.decoded},
        }


def run_gate(
    site: Site,
    request: RunnerRequest,
    meter: Meter,
    prompts: Sequence[Sequence[int]],
    steps: int,
    folder: Path,
    tap: Tap | None = None,
    *,
    only: int | None = None,
) -> GateRun:
    """Greedy decoding of every prompt on the backend, held against the reference. `tap` sees the first prefill; `only`
    so many of the reference's `steps` tokens are generated."""
    started = time.monotonic()
    answer = oracle_runs.greedy(site, prompts, steps)
    if not answer.ok:
        raise UnusableInput(f"the reference tokens could not be made: {answer.reason}")
    references = [np.load(answer.folder / each["logits"]) for each in answer.answer["prompts"]]
    steps = min(steps, only or steps)
    meter.reset()
    empty = meter.reading()
    outcomes: list[PromptOutcome] = []
    chosen: list[dict[str, Any]] = []
    first: tuple[Reading, Reading, int] = (empty, empty, 0)
    try:
        runner = site.runner(request, meter)
        for number, prompt in enumerate(prompts):
            meter.reset()
            logits = [np.asarray(runner.prefill(list(prompt), tap if number == 0 else None).logits, np.float32)]
            prefill = meter.reading()
            meter.reset()
            while len(logits) < steps:
                site.pause()
                site.teller.progress(number * steps + len(logits), len(prompts) * steps, f"prompt {number}")
                logits.append(np.asarray(runner.decode(top_k(logits[-1], 1)[0]), np.float32))
            if number == 0:
                first = (prefill, meter.reading(), steps - 1)
            rows = np.stack([row.reshape(-1) for row in logits])
            outcomes.append(compare(rows, references[number][:steps], steps))
            save(folder / f"prompt_{number:02d}_logits.npy", rows)
            chosen.append(
                {
                    "prompt": list(prompt), "tokens": list(outcomes[-1].tokens), "best": [top_k(row) for row in rows],
                    "reference_tokens": list(outcomes[-1].reference),
                    "reference_best": [top_k(row) for row in references[number][:steps]],
                }
            )  # fmt: skip
    except NpuToolsError as error:
        if site.teller.cancelled():
            raise
        found = device_failure(meter) or Diagnosis("model", str(error), str(error))
        return GateRun(tuple(outcomes), *first, folder, time.monotonic() - started, found)
    write_json(folder / "tokens.json", {"prompts": chosen, "steps": steps})
    return GateRun(tuple(outcomes), *first, folder, time.monotonic() - started)


class LayerLens:
    """Each layer's output of the first prefill, and its cosine against the FP32 reference: looked at, never a gate."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.outputs: dict[int, Array] = {}

    def tap(self, layer: int | None, stage: str, array: Array) -> None:
        """Hear of a stage."""
        if layer is not None and stage == "output":
            self.outputs[layer] = np.asarray(array, np.float32)[: self.length].copy()

    def cosines(self, site: Site, tokens: list[int]) -> list[float]:
        """By layer, as far as there is a reference."""
        answer = oracle_runs.stages(site, site.dims(), tokens, compare=True)
        found: list[float] = []
        for layer in sorted(self.outputs):
            path = answer.folder / f"layer_{layer:02d}" / "output.npy"
            if answer.ok and path.is_file():
                found.append(closeness(self.outputs[layer], np.load(path))["cosine"])
        return found


def compare(actual: Array, reference: Array, steps: int) -> PromptOutcome:
    """One prompt by the set rule, with what the paper's rule says beside."""
    verdict = judge_tokens(actual, reference, k=min(GATE_K, actual.shape[1]), steps=steps)
    finite = bool(np.isfinite(actual).all())
    ours = [top_k(row, 1)[0] for row in actual] if finite else []
    theirs = [top_k(row, 1)[0] for row in reference]
    same = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    decisive = verdict.passed
    if verdict.step is not None and finite:
        row = np.asarray(reference[verdict.step], np.float64)
        best = float(1 / np.exp(row - row.max()).sum())
        decisive = verdict.passed and best <= SURE
    return PromptOutcome(
        verdict.passed, verdict.reason, verdict.step, same, decisive, finite, tuple(ours), tuple(theirs)
    )


def diagnosis(run: GateRun, layers: Sequence[float] = ()) -> Diagnosis | None:
    """Why the token gate failed: a failed kernel, a layer where the lens falls, or drift."""
    if run.failure is not None:
        return run.failure
    if run.passed:
        return None
    fall = first_fall(layers)
    if fall is not None:
        layer, before, after = fall
        message = (
            f"{run.reason}; the layer lens falls from {before:.3f} to {after:.3f} at layer {layer}: earlier layers are "
            "right, so a buffer or weight of this call is stale, shared or swapped"
        )
        text = (
            f"first call right, later calls stale from layer {layer} on: an activation marked static is written once, "
            "or a buffer object or weight is shared between layers"
        )
        return Diagnosis("layer-cliff", message, text, f"stale: right until layer {layer - 1}", "output", layer)
    bad = next(each for each in run.prompts if not each.passed)
    if bad.step is not None and bad.step > 0:
        message = f"{run.reason}; prefill and {bad.step} tokens are right, then decode parts: KV cache, position or a stale input"
        text = (
            "first call right, later calls stale: an activation marked static is written once, so decode reuses what "
            "prefill wrote; KV cache or position wrong"
        )
        return Diagnosis("decode-divergence", message, text, "stale or shifted KV cache")
    number = next(n for n, each in enumerate(run.prompts) if not each.passed)
    if number > 0:
        message = f"{run.reason}; the prompts before it are right: something keeps what the first one wrote"
        text = "first call right, later calls stale: an activation marked static is written once, so later prompts see the first"
        return Diagnosis("stale-prompt", message, text, "stale: right for the first prompt only")
    message = f"{run.reason}; already the first token is outside the top 5"
    return Diagnosis("token-sets", message, "first generated token wrong, top-5 token set gate fails after prefill")


def first_fall(layers: Sequence[float]) -> tuple[int, float, float] | None:
    """The first layer whose cosine falls by 0.05 or more, with both values."""
    for layer in range(1, len(layers)):
        if layers[layer - 1] - layers[layer] >= 0.05 or not np.isfinite(layers[layer]):
            return layer, layers[layer - 1], layers[layer]
    return None
