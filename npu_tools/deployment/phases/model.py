"""Phase 3: the whole model, token sets over 32 greedy tokens against Hugging Face bf16; each layer's median cosine as a lens."""

from __future__ import annotations

import itertools
import time

import numpy as np

from npu_tools.deployment import oracle_runs, token_gate
from npu_tools.deployment.closeness import closeness
from npu_tools.deployment.site import Ended, Site, save
from npu_tools.deployment.steps import BASELINE, Deployed


def run(site: Site) -> Ended:
    """Every prompt gated, the time taken down as the baseline of phases 4 and 5."""
    started = time.monotonic()
    dims = site.dims()
    judging = site.judging(3, dims.head_dim)
    prompts, steps = oracle_runs.prompts(site, dims), oracle_runs.steps_of(site)
    deployed = Deployed.of(site, BASELINE)
    seen = token_gate.LayerLens(len(prompts[0]))
    place = site.place(3, "model")
    gated = token_gate.run_gate(site, deployed.request, deployed.meter, prompts, steps, place, seen)
    layers = seen.layers(site, prompts[0])
    lens = [layer.median for layer in layers]
    judging.measure("token_sets", gated.passed, gated.reason)
    judging.measure("finite", gated.finite)
    falls = [a - b for a, b in itertools.pairwise(lens)]
    reference = oracle_runs.stages(site, dims, prompts[0], compare=True)
    logits = place / "prompt_00_logits.npy"
    if reference.ok and logits.is_file():
        theirs = np.load(reference.folder / "logits.npy")
        judging.measure("logits_cosine", closeness(np.load(logits)[:1], theirs.reshape(1, -1))["cosine"])
    else:
        judging.measure("logits_cosine", None)
    judging.measure("layer_cosine_min", min(lens, default=None))
    judging.measure("layer_cosine_cliff", max(falls, default=0.0))
    judging.measure("decisive_top1", all(each.decisive for each in gated.prompts) and bool(gated.prompts))
    for layer, array in seen.outputs.items():
        save(place / f"layer_{layer:02d}" / "output.npy", array)
    why = token_gate.diagnosis(gated, lens) if judging.missed else None
    timed = deployed.time(site, gated)
    site.attempt(
        3, "model", judging, deployed.subject(site, prompts, steps), started=started, diagnosis=why,
        metrics={**gated.metrics(), "layer_cosine": lens, "layer_tokens": [layer.as_dict() for layer in layers],
                 "time": timed.as_dict()}, results=[place],
        digests={"recipe": site.recipe_digests(deployed.used), "programs": deployed.meter.digests},
        modelled_us=timed.prefill_us if timed.timing == "modelled" else None,
        measured_us=timed.prefill_us if timed.timing == "measured" else None,
    )  # fmt: skip
    if judging.missed:
        return Ended(False, why.message if why else "the token gate fails")
    same = [each.same for each in gated.prompts]
    return Ended(
        True,
        f"{len(prompts)} prompts over {steps} tokens agree with Hugging Face bf16 ({min(same)} to {max(same)} identical); "
        f"prefill {timed.prefill_us / 1e3:.2f} ms, token {timed.decode_us / 1e3:.2f} ms ({timed.timing})",
    )
