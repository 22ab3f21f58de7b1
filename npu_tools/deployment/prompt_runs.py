"""Prompts of a token gate through the model: one after another here, or spread over child processes.

Both give the same, bit for bit: a prompt begins with empty caches, so none can notice the others. What could notice,
inputs marked as written once, keeps a gate in one process; so does a device, of which there is one.

A decode that would repeat one in the ledger is not run to its end again. On the emulator a token follows from the
programs of decode and head, the weights, the caches and the token before it, and from nothing else: where all of these
are those of an earlier run, its first decoded token is run and held against the one kept, and the rest is taken over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from npu_tools.deployment.metering import Meter, Reading
from npu_tools.deployment.site import Site
from npu_tools.deployment.state import tools_version
from npu_tools.deployment.workspace import file_digest, recipe_digest
from npu_tools.deployment.world import Array, RunnerLike, RunnerRequest, Tap
from npu_tools.gate.tokens import top_k

PROVED = 2
"""Rows of an earlier decode that are run again before the rest is taken over: prefill's, and one decoded token's."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A decode in the ledger: what it followed from, and where its logits are."""

    seq: int
    follows: str
    logits: str


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt: logits by step [steps, vocab], what prefill and `decoded` tokens took, what decode followed from,
    and the line of the ledger whose decode was taken over."""

    rows: Array
    prefill: Reading
    decode: Reading
    decoded: int
    follows: str | None
    taken_from: int | None

    def figures(self) -> dict[str, Any]:
        """All but the rows, JSON-ready and exact."""
        return {
            "prefill": asdict(self.prefill), "decode": asdict(self.decode), "decoded": self.decoded,
            "follows": self.follows, "taken_from": self.taken_from,
        }  # fmt: skip

    @classmethod
    def of(cls, rows: Array, figures: dict[str, Any]) -> PromptRun:
        """From `figures` and the rows."""
        prefill, decode = Reading(**figures["prefill"]), Reading(**figures["decode"])
        return cls(rows, prefill, decode, figures["decoded"], figures["follows"], figures["taken_from"])


def run_prompt(
    runner: RunnerLike,
    meter: Meter,
    prompt: Sequence[int],
    steps: int,
    *,
    tap: Tap | None = None,
    inputs: str | None = None,
    earlier: Sequence[Earlier] = (),
    each: Callable[[int], None] = lambda _: None,
) -> PromptRun:
    """Prefill and greedy decode. `inputs` identifies everything but programs and caches, None where decodes are not to
    be taken over; `each` hears of every step before it is run."""
    meter.reset()
    rows = [_row(runner.prefill(list(prompt), tap).logits)]
    prefill = meter.reading()
    meter.reset()
    follows = None if inputs is None or steps < PROVED else _follows(runner, rows[0], inputs)
    kept = next((one for one in earlier if one.follows == follows), None)
    while len(rows) < steps:
        each(len(rows))
        rows.append(_row(runner.decode(top_k(rows[-1], 1)[0])))
        if kept is not None and len(rows) == PROVED:
            before: Array = np.load(kept.logits)
            if len(before) >= steps and before[:PROVED].tobytes() == np.stack(rows).tobytes():
                return PromptRun(before[:steps], prefill, meter.reading(), len(rows) - 1, follows, kept.seq)
    return PromptRun(np.stack(rows), prefill, meter.reading(), steps - 1, follows, None)


def _row(logits: Array) -> Array:
    return np.asarray(logits, np.float32).reshape(-1)


def _follows(runner: RunnerLike, logits: Array, inputs: str) -> str:
    return hashlib.sha256(f"{inputs} {runner.decode_digest()} ".encode() + logits.tobytes()).hexdigest()


def decode_inputs(site: Site, request: RunnerRequest, meter: Meter) -> str | None:
    """What a decode follows from besides programs and caches: weights, config, the recipes' code, this product. None
    where no decode may stand for another: on a device, or with inputs written once and kept from call to call."""
    if site.backend_name != "emulator" or meter.options.static:
        return None
    recipes = {path.parent.name: recipe_digest(path.parent) for path in sorted(request.kernels.glob("*/kernel.toml"))}
    whole = [site.weights().digest(), site.head["config_digest"], request.dims.layers, recipes, tools_version()]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()


def earlier_decodes(site: Site, prompt: Sequence[int]) -> list[Earlier]:
    """Decodes of this prompt that were run to their end and whose logits are still what the ledger says."""
    found: list[Earlier] = []
    for entry in site.state.attempts:
        asked: list[dict[str, Any]] = entry.body["subject"].get("prompts") or []
        told: list[dict[str, Any]] = entry.body["metrics"].get("prompts") or []
        kept: dict[str, str] = entry.body["digests"]["results"]
        for number, (one, outcome) in enumerate(zip(asked, told, strict=False)):
            if one.get("tokens") != list(prompt) or not outcome.get("follows") or outcome.get("taken_from"):
                continue
            path = next((path for path in kept if path.endswith(f"/prompt_{number:02d}_logits.npy")), None)
            place = site.workspace.folder / (path or "")
            if path is not None and place.is_file() and file_digest(place) == kept[path]:
                found.append(Earlier(entry.seq, str(outcome["follows"]), str(place)))
    return found
