"""Figures in the ledger against the files they were taken from: closeness of kernels and stages, lenses, tokens, rows.

Nothing is computed but the figures themselves; whether the files are what they claim is results.py's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from npu_tools.deployment.closeness import closeness, row_cosines
from npu_tools.deployment.ledger import Entry, plain
from npu_tools.deployment.token_gate import compare
from npu_tools.evaluator.claims import LAST_PHASE, Claims, content, line, mapping, prompts_of, rows, subject, whole
from npu_tools.evaluator.history import registry
from npu_tools.evaluator.reasons import Reason
from npu_tools.evaluator.results import Array, greedy_references, load, place_of, references, stored

WITHIN, COSINE_WITHIN = 0.02, 1e-4
"""A figure may differ from the same made of the files by this share, a cosine by so much: sums in another order."""
ROW = ("settings", "passed", "mean_rel_l1", "modelled_us", "measured_us", "ran_on")


def audit_figures(claims: Claims) -> Iterator[Reason]:
    """What does not follow from the files."""
    for phase in range(1, LAST_PHASE + 1):
        for entry in claims.vouching(phase):
            match entry.body.get("gate"):
                case "kernel":
                    yield from _kernel(claims, entry)
                case "block":
                    yield from _block(claims, entry)
                case "model" | "prefill" | "decode" | "finalize":
                    yield from _tokens(claims, entry)
                    if phase == 3:
                        yield from _lenses(claims, entry)
                case _:
                    pass
    yield from _registry(claims)


def _kernel(claims: Claims, entry: Entry) -> Iterator[Reason]:
    noted, kept = mapping(entry.body.get("metrics")), stored(claims, entry)
    errors: list[float] = []
    cosines: list[float] = []
    for name, said in mapping(noted.get("outputs")).items():
        ours, theirs = kept.get(str(name)), kept.get(f"{name}_reference")
        if ours is None or theirs is None or ours.shape != theirs.shape or mapping(said).get("elements") != ours.size:
            return  # every so many-th element of a large one says nothing exact
        found = closeness(ours.reshape(1, -1), theirs.reshape(1, -1))
        errors.append(found["mean_rel_l1"])
        cosines.append(found["cosine"])
        yield from _said(entry, f"mean_rel_l1 of {name}", mapping(said).get("mean_rel_l1"), found["mean_rel_l1"])
        yield from _said(entry, f"cosine of {name}", mapping(said).get("cosine"), found["cosine"])
    if errors:
        yield from _said(entry, "mean_rel_l1", noted.get("mean_rel_l1"), max(errors))
        yield from _said(entry, "correlation", _criterion(entry, "correlation"), min(cosines))


def _block(claims: Claims, entry: Entry) -> Iterator[Reason]:
    tokens = whole(subject(entry).get("tokens"))
    place = next((folder for asked, folder in references(claims, ("block",)) if asked.get("tokens") == tokens), None)
    if place is None:
        return
    for stage, array in stored(claims, entry).items():
        reference = load(place / "layer_00" / f"{stage}.npy")
        if reference is None or reference.shape != array.shape or array.ndim != 2:
            continue
        found = closeness(array, reference)
        said = mapping(mapping(mapping(entry.body.get("metrics")).get("stages")).get(stage))
        for name in ("cosine", "position_cosine_min", "mean_rel_l1"):
            yield from _said(entry, f"{name} of {stage}", said.get(name), found[name])
        if stage == "output":
            for criterion, name in (("block_cosine", "cosine"), ("position_cosine_min",) * 2, ("scale", "mean_rel_l1")):
                yield from _said(entry, criterion, _criterion(entry, criterion), found[name])


def _tokens(claims: Claims, entry: Entry) -> Iterator[Reason]:
    """What the gate says of each prompt, and the tokens it wrote down, from the logits."""
    folder, given = place_of(claims, entry), greedy_references(claims)
    if folder is None:
        return
    noted = rows(mapping(entry.body.get("metrics")).get("prompts"))
    written = rows(content(folder / "tokens.json").get("prompts"))
    for number, prompt in enumerate(prompts_of(entry)):
        ours, theirs = load(folder / f"prompt_{number:02d}_logits.npy"), given.get(tuple(prompt))
        if ours is None or theirs is None or ours.ndim != 2 or ours.shape[1:] != theirs.shape[1:]:
            continue  # results.py tells
        steps = min(len(ours), len(theirs), int(subject(entry).get("steps") or len(ours)))
        tokens = [int(row.argmax()) for row in ours[:steps]]
        same = next((n for n in range(steps) if tokens[n] != int(theirs[n].argmax())), steps)
        made = {"same": same, "passed": True, "decisive": True}
        if same < steps:  # only where they part is there anything to judge
            judged = compare(ours[:steps], theirs[:steps], steps)
            made |= {"passed": judged.passed, "decisive": judged.decisive}
        said = mapping(noted[number] if number < len(noted) else None)
        for name, value in made.items():
            if said.get(name) != value:
                text = f"prompt {number}: {name} is said to be {said.get(name)}; the kept logits give {value}"
                yield Reason("results_contradict", text, line(entry))
        yield from _taken(claims, entry, number, said.get("taken_from"), ours)
        if number >= len(written) or whole(written[number].get("tokens")) != tokens:
            text = f"prompt {number}: tokens.json does not hold the tokens the kept logits give"
            yield Reason("results_contradict", text, line(entry))


def _taken(claims: Claims, entry: Entry, number: int, seq: Any, ours: Array) -> Iterator[Reason]:
    """A decode that was taken over is, row by row, that of the line it names."""
    if not isinstance(seq, int):
        return
    source = next((one for one in claims.state.attempts if one.seq == seq and seq < entry.seq), None)
    prompt = prompts_of(entry)[number]
    place = None if source is None else place_of(claims, source)
    at = prompts_of(source).index(prompt) if source is not None and prompt in prompts_of(source) else None
    theirs = None if place is None or at is None else load(place / f"prompt_{at:02d}_logits.npy")
    if theirs is None:
        text = f"prompt {number}: its decode was taken over from line {seq}, which has none of this prompt"
        yield Reason("history_removed", text, line(entry))
    elif not np.array_equal(ours[1:], theirs[1 : len(ours)]):
        text = f"prompt {number}: its decode is not that of line {seq}, from which it was taken over"
        yield Reason("results_contradict", text, line(entry))


def _lenses(claims: Claims, entry: Entry) -> Iterator[Reason]:
    """Median cosines a layer and of the logits of the first prompt: no gate, and what a person looks at."""
    folder, prompts = place_of(claims, entry), prompts_of(entry)
    place = next(
        (each for asked, each in references(claims, ("stages",)) if prompts and asked.get("tokens") == prompts[0]), None
    )
    if folder is None or place is None:
        return
    medians: list[float] = []
    for layer in range(claims.dims.layers):
        name = f"layer_{layer:02d}/output.npy"
        kept, reference = load(folder / name), load(place / name)
        if kept is None or reference is None or kept.shape != reference.shape or kept.ndim != 2:
            break
        medians.append(float(np.median(row_cosines(kept, reference))))
    if len(medians) == claims.dims.layers:
        noted: Any = mapping(entry.body.get("metrics")).get("layer_cosine")
        listed: list[Any] = list(noted) if isinstance(noted, list) else []  # pyright: ignore[reportUnknownArgumentType]
        if len(listed) != len(medians):
            text = f"the layer lens has {len(listed)} cosines for {len(medians)} layers"
            yield Reason("results_contradict", text, line(entry))
        for layer, (said, value) in enumerate(zip(listed, medians, strict=False)):
            yield from _said(entry, f"the cosine of layer {layer}", said, value)
        yield from _said(entry, "layer_cosine_min", _criterion(entry, "layer_cosine_min"), min(medians))
        fall = max((a - b for a, b in itertools.pairwise(medians)), default=0.0)
        yield from _said(entry, "layer_cosine_cliff", _criterion(entry, "layer_cosine_cliff"), fall, COSINE_WITHIN)
    ours, theirs = load(folder / "prompt_00_logits.npy"), load(place / "logits.npy")
    if ours is not None and theirs is not None and ours.ndim == 2 and ours.shape[1] == theirs.size:
        value = closeness(ours[:1], theirs.reshape(1, -1))["cosine"]
        yield from _said(entry, "logits_cosine", _criterion(entry, "logits_cosine"), value)


def _registry(claims: Claims) -> Iterator[Reason]:
    """Rows for the registry beside the attempts they are of: a harvest would take them for measured."""
    by_seq = {entry.seq: entry for entry in claims.state.attempts}
    for row in rows(content(registry(claims)).get("rows")):
        seq = row.get("attempt")
        entry = by_seq.get(seq) if isinstance(seq, int) else None
        if entry is None or subject(entry).get("kernel") != row.get("kernel"):
            continue  # history.py tells
        body = entry.body
        wanted = {
            "settings": subject(entry).get("settings"), "passed": body.get("passed"), "ran_on": body.get("backend"),
            "mean_rel_l1": mapping(body.get("metrics")).get("mean_rel_l1"), "modelled_us": body.get("modelled_us"),
            "measured_us": body.get("measured_us"),
        }  # fmt: skip
        for name in ROW:
            if plain(row.get(name)) != plain(wanted[name]):
                text = f"registry.json has {name} {row.get(name)} for {row.get('kernel')}; its gate has {wanted[name]}"
                yield Reason("results_contradict", text, line(entry))


def _criterion(entry: Entry, name: str) -> Any:
    return next((one.get("value") for one in rows(entry.body.get("criteria")) if one.get("name") == name), None)


def _said(entry: Entry, what: str, said: Any, found: float, least: float = 0.0) -> Iterator[Reason]:
    """A figure that is noted and is another one in the files."""
    if not isinstance(said, int | float) or isinstance(said, bool) or not np.isfinite(found):
        return
    allowed = max(
        COSINE_WITHIN if "cosine" in what or what == "correlation" else 1e-6, WITHIN * _size(what, found), least
    )
    if abs(float(said) - found) > allowed:
        text = f"{what} is noted as {said:.4g}; the kept files give {found:.4g}"
        yield Reason("results_contradict", text, line(entry))


def _size(what: str, found: float) -> float:
    """Cosines near 1 are compared by how far they are from it."""
    return abs(1 - found) if "cosine" in what or what == "correlation" else abs(found)
