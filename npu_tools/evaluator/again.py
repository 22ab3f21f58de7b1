"""The deployed model run again: prompts of its gates, prompts it never saw, twice the same, against FP32.

The runs are in a worker process with the recipes laid together anew; what they give is judged here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.world import RealWorld
from npu_tools.evaluator.claims import Claims, line, prompts_of, subject
from npu_tools.evaluator.coverage import last_gates
from npu_tools.evaluator.reasons import Reason
from npu_tools.evaluator.rederive import Checked, work_apart
from npu_tools.evaluator.results import COPIED, Array, Made, cosine, logits_of, relative_error
from npu_tools.evaluator.times import plan_request

SAME_RUN, SHARE = 0.02, 0.5
"""Two runs are one within this relative error (2-norms), or this share of the path's own error against FP32: thread
counts move last bits, and a deep model amplifies them, to no more than roundings do."""
DEVICE_SHARE = 2.0
"""The same for a deployment that ran on a device: the emulator is not it to the last bit."""
LOGITS_COSINE, LAYER_COSINE = 0.95, 0.85
"""Against FP32 (deployment/phases.toml, phase 3)."""
BROKEN = 0.8
"""A cosine under this is no drift."""
RUNS = 6
"""Prompts run when time allows: two of one gate, one of the other, three of our own."""
STEPS = 6
"""Steps done again of a gated prompt; the first is a prefill, the others decode."""


def audit_model(
    claims: Claims, together: Path, made: Made, place: Path, timeout_s: float, checked: Checked
) -> Iterator[Reason]:
    """The last gates of prefill and decode done again, then prompts of our own."""
    gates = last_gates(claims)
    if not gates:
        return
    cheap = prompt_s(gates[-1]) * RUNS <= made.budget_s * 2
    if not cheap:
        gates = gates[-1:]
    jobs: list[dict[str, Any]] = []
    chosen: list[tuple[Entry, int]] = []
    for at, entry in enumerate(gates):
        prompts = prompts_of(entry)
        number = int(made.rng.integers(len(prompts)))
        chosen.append((entry, number))
        asked = [prompts[number], prompts[number]] if at == 0 and cheap else [prompts[number]]
        jobs.append(_job(claims, entry, together, place / f"model_{at}", asked, STEPS, []))
    own = unseen(claims, made, prompts_of(gates[-1]))[0 if cheap else -1 :]
    layer = int(made.rng.integers(claims.dims.layers))
    jobs.append(_job(claims, gates[-1], together, place / "own", own, 1, [layer]))
    request = plan_request(claims, subject(gates[-1]), together)
    apart = RealWorld(together).processes(request, len(jobs)) > 1
    answers = work_apart([jobs[:1], jobs[1:]] if apart else [jobs], place / "model", timeout_s)
    for at, (entry, number) in enumerate(chosen):
        yield from _reproduced(claims, entry, number, answers[at], place / f"model_{at}", made, twice=at == 0 and cheap)
    yield from _own(answers[-1], own, layer, place / "own", made)
    checked.notes.append(
        f"{len(chosen)} gates of the model done again, {STEPS} steps of a prompt each; "
        f"{len(own)} prompts it had not seen, layer {layer} against FP32"
    )


def prompt_s(entry: Entry) -> float:
    """Seconds a prompt of a gate took, as far as the ledger can be asked."""
    took, prompts = entry.body.get("wall_s"), len(prompts_of(entry))
    return float(took) / max(1, prompts) if isinstance(took, int | float) else 0.0


def unseen(claims: Claims, made: Made, gated: list[list[int]]) -> list[list[int]]:
    """Random tokens of the longest length the deployment takes, one token alone, and the gated prompts' own tokens in
    another order.

    No token again and again: with trained weights every row is then the massive activation of a first token, adds that
    round down lose much of it, and an honest path's cosine fell to 0.78 with one pair of tokens and stayed at 0.99 with
    ten others (SmolLM2-135M). Shuffled prompts stay at 0.99.
    """
    longest = claims.seq_len
    if claims.dims.max_positions:
        longest = min(longest, claims.dims.max_positions - 1)
    words = [token for prompt in gated for token in prompt]
    return [
        [int(each) for each in made.rng.integers(0, claims.dims.vocab, longest)],
        [int(made.rng.integers(0, claims.dims.vocab))],
        [int(each) for each in made.rng.permutation(words)[: min(longest, 40)]],
    ]


def _job(
    claims: Claims, entry: Entry, together: Path, folder: Path, prompts: list[list[int]], steps: int, layers: list[int]
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    about = subject(entry)
    return {
        "kind": "model", "config": dict(claims.config), "weights": claims.weights, "kernels": str(together),
        "seq_len": claims.seq_len, "fused": about.get("fused"), "settings": about.get("settings") or {},
        "static": about.get("static") or {}, "prompts": prompts, "steps": steps, "layers": layers,
        "folder": str(folder),
    }  # fmt: skip


def _reproduced(
    claims: Claims, entry: Entry, number: int, answer: Mapping[str, Any], folder: Path, made: Made, *, twice: bool
) -> Iterator[Reason]:
    if not answer["ok"]:
        code = "not_checked" if answer.get("lost") else "not_reproduced"
        yield Reason(code, f"prompt {number} cannot be run again: {answer['reason']}", line(entry))
        return
    if answer["layers"] != claims.dims.layers:
        text = f"the deployment runs {answer['layers']} layers of {claims.dims.layers}"
        yield Reason("layers_skipped", text, line(entry))
    now, then = np.load(folder / "prompt_00.npy"), logits_of(claims, entry, number)
    if twice:
        again = np.load(folder / "prompt_01.npy")
        if not np.array_equal(now.view(np.uint8), again.view(np.uint8)):
            yield Reason("nondeterministic", f"prompt {number} run twice gives other logits", line(entry))
    if then is None:
        return
    prompt = prompts_of(entry)[number]
    *_, (_, _, exact) = made.decomposition.stages(prompt)
    share = SHARE if claims.opened.get("backend") == "emulator" else DEVICE_SHARE
    allowed = max(SAME_RUN, share * relative_error(now[0], exact[0]))
    for step in range(min(len(now), len(then))):
        error = relative_error(then[step], now[step])
        if error > allowed:
            text = f"prompt {number}, step {step}: the kept logits are {error:.3g} away from those of a new run"
            yield Reason("not_reproduced", text, line(entry))
            return
        if int(then[step].argmax()) != int(now[step].argmax()):
            return  # a tie within rounding: what follows has another context


def _own(answer: Mapping[str, Any], prompts: list[list[int]], layer: int, folder: Path, made: Made) -> Iterator[Reason]:
    """Prompts nobody gated, against FP32."""
    if not answer["ok"]:
        yield Reason("model_fails", f"prompts of our own do not run: {answer['reason']}", "unseen prompts")
        return
    for number, prompt in enumerate(prompts):
        expected: dict[tuple[int | None, str], Array] = {}
        for at, stage, array in made.decomposition.stages(prompt):
            if (stage == "output" and at == layer) or stage == "logits":
                expected[at, stage] = array
        got, wanted = np.load(folder / f"prompt_{number:02d}.npy")[0], expected[None, "logits"][0]
        title = f"{len(prompt)} tokens, {len(set(prompt))} different"
        if not np.isfinite(got).all():
            yield Reason("model_fails", f"{title}: logits that are no numbers", f"prompt {prompt[:8]}")
            continue
        near = cosine(got, wanted)
        if near < LOGITS_COSINE:
            text = f"{title}: logits have cosine {near:.4f} against FP32, {LOGITS_COSINE:g} is asked"
            yield Reason("model_fails" if near < BROKEN else "model_drifts", text, f"prompt {prompt[:8]}")
        if relative_error(got, wanted) < COPIED:
            text = f"{title}: logits are those of FP32, which no bf16 path gives"
            yield Reason("not_aie_numerics", text, f"prompt {prompt[:8]}")
        tapped = folder / f"layer_{layer:02d}_output.npy"
        if number == 0 and tapped.is_file():
            block, reference = np.load(tapped)[: len(prompt)], expected[layer, "output"]
            if cosine(block, reference) < LAYER_COSINE:
                text = f"{title}: layer {layer} has cosine {cosine(block, reference):.4f} against FP32"
                code = "model_fails" if cosine(block, reference) < BROKEN - 0.2 else "model_drifts"
                yield Reason(code, text, f"layer {layer}")
            if relative_error(block, reference) < COPIED:
                yield Reason(
                    "not_aie_numerics", f"layer {layer} computes FP32, which no device here does", f"layer {layer}"
                )
