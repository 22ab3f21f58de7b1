"""Phase 6: what runs is what was gated, the documents say so, what was learnt is written down."""

from __future__ import annotations

import time

import numpy as np

from npu_tools.deployment import oracle_runs, token_gate
from npu_tools.deployment.diagnosis import Diagnosis, brief
from npu_tools.deployment.documents import write_documents
from npu_tools.deployment.site import Ended, Site
from npu_tools.deployment.state import State
from npu_tools.deployment.steps import Deployed, combined, kept
from npu_tools.errors import UnusableInput
from npu_tools.gate.tokens import top_k

GREEDY = 5


def run(site: Site) -> Ended:
    """The first tokens of every prompt in the deployed form (phase 5 gated it whole), twice the same; documents; what is open."""
    started = time.monotonic()
    dims = site.dims()
    judging = site.judging(6, dims.head_dim)
    form = combined(site, kept(site.state, 5))
    prompts, steps = oracle_runs.prompts(site, dims), oracle_runs.steps_of(site)
    place = site.place(6, "finalize")
    gated = token_gate.run_gate(
        site, form.request, form.meter, prompts, steps, place, only=GREEDY, take_over=False
    )  # fmt: skip
    same = max((each.same for each in gated.prompts), default=0)
    judging.measure("greedy_match", float(same), f"{same} leading tokens of the best of {len(prompts)} prompts")
    first = list(gated.prompts[0].tokens[:GREEDY]) if gated.prompts else []
    repeats = gated.failure is None and bool(first) and _again(site, form, prompts[0], len(first)) == first
    judging.measure("generate_works", repeats, "" if repeats else "a second run gave other tokens, or none")
    try:
        written = write_documents(site.workspace, site.ledger.entries())
        judging.measure("documents_written", True, ", ".join(path.name for path in written))
    except UnusableInput as error:
        judging.measure("documents_written", False, str(error))
    state = site.state
    open_failures = state.unexplained()
    judging.measure("lessons_written", not open_failures, _failures(state))
    asked = state.open_questions()
    judging.measure("nothing_open", not asked, "; ".join(f"line {q.seq}: {q.question}" for q in asked))
    why = None
    if judging.missed:
        why = token_gate.diagnosis(gated) or _why(judging.missed[0].name, judging.missed[0].said)
    times = form.time(site, gated)
    site.attempt(
        6, "finalize", judging, form.subject(site, prompts, min(steps, GREEDY)), started=started, diagnosis=why, results=[place],
        metrics={**gated.metrics(), "time": times.as_dict()},
        digests={"recipe": site.recipe_digests(form.used), "programs": form.meter.digests},
    )  # fmt: skip
    if judging.missed:
        return Ended(False, why.message if why else "phase 6 is not complete")
    return Ended(True, f"{same} greedy tokens equal Hugging Face's; documents written; ready for harvest")


def _again(site: Site, form: Deployed, prompt: list[int], count: int) -> list[int]:
    runner = site.runner(form.request, form.meter)
    logits = np.asarray(runner.prefill(prompt).logits, np.float32).reshape(-1)
    tokens = [top_k(logits, 1)[0]]
    while len(tokens) < count:
        tokens.append(top_k(np.asarray(runner.decode(tokens[-1]), np.float32).reshape(-1), 1)[0])
    return tokens


def _failures(state: State) -> str:
    return "; ".join(f"line {entry.seq}: {brief(entry.body)[:120]}" for entry in state.unexplained()[:5])


def _why(name: str, said: str) -> Diagnosis:
    texts = {
        "lessons_written": "failures were fixed and nobody wrote down what fixed them: write a note about each",
        "nothing_open": "a checkpoint is unanswered",
        "greedy_match": "the first greedy tokens differ from Hugging Face although the top-5 sets agree: prompts without a clear margin",
        "generate_works": "the same prompt generated twice gives different tokens: a buffer keeps something from the first run",
    }
    text = texts.get(name, name)
    asked = (
        text if name in ("greedy_match", "generate_works") else ""
    )  # the others are about conduct, not about the device
    return Diagnosis(name.replace("_", "-"), f"{text} ({said})" if said else text, asked)
