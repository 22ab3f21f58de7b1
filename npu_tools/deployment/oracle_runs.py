"""Asking the oracle, and keeping what it said: one folder a request under results/reference, made once.

A folder whose request.json is the same request and whose arrays still have the digests it noted is taken as it is;
any other is asked for anew. The evaluator asks the oracle itself and looks at none of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_tools.architectures import Dimensions
from npu_tools.deployment.site import Site
from npu_tools.deployment.workspace import file_digest, make_folder, read_json, write_json
from npu_tools.deployment.world import OracleAnswer
from npu_tools.errors import UnusableInput

PROMPTS = 8
STEPS = 32
"""Greedy tokens of the gate (mlir-air llms/verify)."""
KEEP_ALL_BYTES = 200_000_000
"""All stages of all layers are kept under this; else those of layer 0's outputs that the phases compare."""


def prompts(site: Site, dims: Dimensions) -> list[list[int]]:
    """The deployment's prompts, the first one also the one compared stage by stage."""
    count = int(site.head.get("prompts") or PROMPTS)
    steps = steps_of(site)
    room = site.seq_len
    if dims.max_positions:
        room = min(room, dims.max_positions - steps)
    if room < 1:
        raise UnusableInput(
            f"{steps} tokens cannot be generated within the {dims.max_positions} positions the config allows"
        )
    found = site.prompts(count, room)
    for prompt in found:
        if not prompt or max(prompt) >= dims.vocab:
            raise UnusableInput(f"a prompt has a token outside the vocabulary of {dims.vocab}: is this its tokenizer?")
    return found


def steps_of(site: Site) -> int:
    """Tokens the gate generates for each prompt."""
    return int(site.head.get("steps") or STEPS)


def stages(site: Site, dims: Dimensions, tokens: Sequence[int], *, compare: bool) -> OracleAnswer:
    """FP32 stages of a prompt over the whole model, with Hugging Face's beside."""
    widest = len(tokens) * 4 * (6 * dims.emb + 4 * dims.q_dim + 4 * dims.kv_dim + 3 * dims.hidden)
    keep = None if widest * dims.layers <= KEEP_ALL_BYTES else ["embedding", "output", "final_norm", "logits"]
    request = {"kind": "stages", "tokens": list(tokens), "keep": keep, "compare": compare}

    def ask(folder: Path) -> OracleAnswer:
        return site.world.stages(site.config(), site.source, folder, tokens, depth=None, keep=keep, compare=compare)

    return _kept(site, request, ask)


def block(site: Site, tokens: Sequence[int]) -> OracleAnswer:
    """FP32 stages of layer 0 alone, every one."""
    request = {"kind": "block", "tokens": list(tokens)}

    def ask(folder: Path) -> OracleAnswer:
        return site.world.stages(site.config(), site.source, folder, tokens, depth=1, keep=None, compare=False)

    return _kept(site, request, ask)


def greedy(site: Site, given: Sequence[Sequence[int]], steps: int) -> OracleAnswer:
    """Greedy tokens and logits of Hugging Face bf16 for these prompts, out of an answer that has them among others."""
    request = {"kind": "greedy", "prompts": [list(each) for each in given], "steps": steps}
    among = _among(site, request)
    if among is not None:
        return among

    def ask(folder: Path) -> OracleAnswer:
        return site.world.greedy(site.config(), site.source, folder, given, steps)

    return _kept(site, request, ask)


def folder(site: Site, kind: str) -> Path:
    """The latest folder of a kind of request.

    Raises:
        UnusableInput: there is none.
    """
    found = [path.parent for path in site.workspace.reference.glob(f"{kind}-*/request.json")]
    if not found:
        raise UnusableInput(f"there is no {kind} reference in this workspace; run phase 0 again")
    return max(found, key=lambda path: (path / "request.json").stat().st_mtime)


def _among(site: Site, request: Mapping[str, Any]) -> OracleAnswer | None:
    """A kept answer to the same question about more prompts, cut to these."""
    wanted = _whole(site, request)
    for place in sorted(site.workspace.reference.glob(f"{request['kind']}-*")):
        try:
            asked: dict[str, Any] = read_json(place / "request.json")["request"]
        except (UnusableInput, KeyError):
            continue
        prompts: list[list[int]] = asked.get("prompts") or []
        if {**asked, "prompts": wanted["prompts"]} != wanted or any(one not in prompts for one in wanted["prompts"]):
            continue
        kept = _intact(place)
        if kept is not None:
            chosen = [kept["prompts"][prompts.index(one)] for one in wanted["prompts"]]
            return OracleAnswer(True, "", place, {**kept, "prompts": chosen})
    return None


def _whole(site: Site, request: Mapping[str, Any]) -> dict[str, Any]:
    """A request with the model it is about."""
    return {**request, "config": site.head["config_digest"], "weights": site.source, "digest": site.weights().digest()}


def _kept(site: Site, request: Mapping[str, Any], ask: Callable[[Path], OracleAnswer]) -> OracleAnswer:
    whole = _whole(site, request)
    name = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]
    place = site.workspace.reference / f"{request['kind']}-{name}"
    kept = _intact(place)
    if kept is not None:
        return OracleAnswer(True, "", place, kept)
    if place.exists():  # damaged or cut off: put aside, asked anew
        aside = place.with_name(place.name + ".old")
        shutil.rmtree(aside, ignore_errors=True)
        place.rename(aside)
    make_folder(place)
    site.pause()
    answer = ask(place)
    if answer.ok:
        arrays = {p.relative_to(place).as_posix(): file_digest(p) for p in sorted(place.rglob("*.npy"))}
        write_json(place / "request.json", {"request": whole, "answer": answer.answer, "arrays": arrays})
    return answer


def _intact(place: Path) -> dict[str, Any] | None:
    try:
        noted = read_json(place / "request.json")
    except UnusableInput:
        return None
    for path, digest in noted.get("arrays", {}).items():
        if not (place / path).is_file() or file_digest(place / path) != digest:
            return None
    answer = noted.get("answer")
    return dict(answer) if isinstance(answer, dict) else None  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
