"""The token gate: greedy tokens of the device against Hugging Face bf16, prompt by prompt, and what it took.

>>> run = run_gate(site, request, meter, prompts, steps, folder)
>>> run.passed, run.prefill.total_us, run.decode_us
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.deployment import oracle_runs
from npu_tools.deployment.closeness import device_failure, row_cosines
from npu_tools.deployment.diagnosis import Diagnosis
from npu_tools.deployment.metering import Meter, Reading
from npu_tools.deployment.prompt_crew import Crew, Job
from npu_tools.deployment.prompt_runs import PromptRun, decode_inputs, earlier_decodes, run_prompt
from npu_tools.deployment.site import Site, save
from npu_tools.deployment.workspace import write_json
from npu_tools.deployment.world import Array, RunnerRequest
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
    follows: str | None = None
    """What decode followed from: programs, weights, caches and the first token, as one digest."""
    taken_from: int | None = None
    """The line of the ledger whose decode was taken over, after its first token was run again and was the same."""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "passed": self.passed, "reason": self.reason, "step": self.step, "same": self.same,
            "decisive": self.decisive, "finite": self.finite, "follows": self.follows, "taken_from": self.taken_from,
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
        if bad:
            return f"prompt {bad[0]}: {bad[1].reason}"
        taken = [each.taken_from for each in self.prompts if each.taken_from is not None]
        lines = ", ".join(str(seq) for seq in sorted(set(taken)))
        again = (
            f"; decode of {len(taken)} taken over from line {lines}: same programs, weights, caches, token"
            if taken
            else ""
        )
        return f"{len(self.prompts)} prompts agree{again}"

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
    lens: LayerLens | None = None,
    *,
    only: int | None = None,
    take_over: bool = True,
) -> GateRun:
    """Greedy decoding of every prompt on the backend, held against the reference. `lens` sees the first prefill; `only`
    so many of the reference's `steps` tokens are generated; `take_over` lets an earlier decode stand for the same one."""
    started = time.monotonic()
    wanted = min(steps, only or steps)
    meter.reset()
    empty = meter.reading()
    inputs = decode_inputs(site, request, meter) if take_over else None
    ran = _run_all(site, request, meter, prompts, steps, wanted, lens, inputs)
    outcomes: list[PromptOutcome] = []
    chosen: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        run = ran.runs.get(number)
        if run is None:
            break
        reference = ran.references[number][:wanted]
        made = compare(run.rows, reference, wanted)
        outcomes.append(replace(made, follows=run.follows, taken_from=run.taken_from))
        save(folder / f"prompt_{number:02d}_logits.npy", run.rows)
        chosen.append(
            {
                "prompt": list(prompt), "tokens": list(made.tokens), "best": [top_k(row) for row in run.rows],
                "reference_tokens": list(made.reference), "reference_best": [top_k(row) for row in reference],
            }
        )  # fmt: skip
    zero = ran.runs.get(0)
    first = (empty, empty, 0) if zero is None else (zero.prefill, zero.decode, zero.decoded)
    if ran.failure is None:
        write_json(folder / "tokens.json", {"prompts": chosen, "steps": wanted})
    return GateRun(tuple(outcomes), *first, folder, time.monotonic() - started, ran.failure)


@dataclass(slots=True)
class _Ran:
    """Prompts that were run, up to the first that failed, beside the reference's logits [steps, vocab]."""

    references: list[Array]
    runs: dict[int, PromptRun]
    failure: Diagnosis | None = None


def _run_all(
    site: Site,
    request: RunnerRequest,
    meter: Meter,
    prompts: Sequence[Sequence[int]],
    steps: int,
    wanted: int,
    lens: LayerLens | None,
    inputs: str | None,
) -> _Ran:
    """All prompts, in child processes where there is more than one core for them; what those leave undone is run here."""
    earlier = [[] if inputs is None else earlier_decodes(site, prompt) for prompt in prompts]
    processes = 1 if meter.options.static else site.processes(request, len(prompts))
    if processes == 1:
        ran, left = _Ran(_references(site, prompts, steps), {}), list(range(len(prompts)))
    else:
        tapped = None if lens is None else lens.stage
        job = Job(site.config(), site.source, request, meter.options, prompts, wanted, tapped, inputs, earlier)
        with Crew(job, processes) as crew:
            references = _references(site, prompts, steps)  # the oracle works beside them
            crew.wait(site.pause, site.teller.progress)
        ran, left = _Ran(references, crew.runs, crew.failure), crew.left
        meter.digests.update(crew.digests)
        if lens is not None:
            for layer, array in crew.tapped.items():
                lens.tap(layer, lens.stage, array)
    try:
        for number in left:

            def each(step: int, number: int = number) -> None:
                site.pause()
                site.teller.progress(number * wanted + step, len(prompts) * wanted, f"prompt {number}")

            ran.runs[number] = run_prompt(
                site.runner(request, meter), meter, prompts[number], wanted, inputs=inputs, earlier=earlier[number],
                tap=lens.tap if lens is not None and number == 0 else None, each=each,
            )  # fmt: skip
    except NpuToolsError as error:
        if site.teller.cancelled():
            raise
        ran.failure = device_failure(meter) or Diagnosis("model", str(error), str(error))
    return ran


def _references(site: Site, prompts: Sequence[Sequence[int]], steps: int) -> list[Array]:
    """Hugging Face's logits by prompt [steps, vocab].

    Raises:
        UnusableInput: the oracle does not make them.
    """
    answer = oracle_runs.greedy(site, prompts, steps)
    if not answer.ok:
        raise UnusableInput(f"the reference tokens could not be made: {answer.reason}")
    return [np.load(answer.folder / each["logits"]) for each in answer.answer["prompts"]]


@dataclass(frozen=True, slots=True)
class LayerCosine:
    """One layer's output beside FP32, token by token: the median of the cosines, and the smallest with its token."""

    median: float
    smallest: float
    token: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"median": self.median, "smallest": self.smallest, "token": self.token}


class LayerLens:
    """Each layer's output of the first prefill beside the FP32 reference: looked at, never a gate.

    Cosines are taken token by token, as upstream's lens does, and a layer stands for the median of its tokens. One
    cosine over all of them would show the first token alone: many models give it activations hundreds of times as
    large as the others' ("attention sinks"), bf16 holds those to one part in 256, and adds on a core that nobody told
    to round to nearest round them down, one unit an add. SmolLM2-135M: channel 507 of the first token is 22574 behind
    layer 11 and 7899 behind layer 28 in FP32, 19456 and 1912 on the device; its cosine is 0.68 there while the other
    tokens keep 0.992. With adds that round to nearest it keeps 0.9999, with exact products in place of block floats it
    does not (0.64): the adds do it. Nothing reads that channel but through a norm, and all eight prompts' tokens agree.
    """

    stage = "output"

    def __init__(self, length: int) -> None:
        self.length = length
        self.outputs: dict[int, Array] = {}

    def tap(self, layer: int | None, stage: str, array: Array) -> None:
        """Hear of a stage."""
        if layer is not None and stage == self.stage:
            self.outputs[layer] = np.asarray(array, np.float32)[: self.length].copy()

    def layers(self, site: Site, tokens: list[int]) -> list[LayerCosine]:
        """By layer, as far as there is a reference."""
        answer = oracle_runs.stages(site, site.dims(), tokens, compare=True)
        found: list[LayerCosine] = []
        for layer in sorted(self.outputs):
            path = answer.folder / f"layer_{layer:02d}" / "output.npy"
            if answer.ok and path.is_file():
                rows = row_cosines(self.outputs[layer], np.load(path))
                found.append(LayerCosine(float(np.median(rows)), float(rows.min()), int(rows.argmin())))
        return found

    def medians(self, site: Site, tokens: list[int]) -> list[float]:
        """By layer, as far as there is a reference."""
        return [layer.median for layer in self.layers(site, tokens)]


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
    """The first layer whose median cosine falls by 0.05 or more, with both values."""
    for layer in range(1, len(layers)):
        if layers[layer - 1] - layers[layer] >= 0.05 or not np.isfinite(layers[layer]):
            return layer, layers[layer - 1], layers[layer]
    return None
