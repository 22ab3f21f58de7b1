"""What a deployment kept: files against the digests of their gates, arrays against what they must be.

References are made again here: FP32 stages by the decomposition from config and weights, kernels' references by the
shipped recipes from the seeds the gates name. Device outputs are held against those.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.workspace import file_digest
from npu_tools.errors import NpuToolsError, UnusableInput
from npu_tools.evaluator.claims import Claims, line, mapping, prompts_of, subject, whole
from npu_tools.evaluator.reasons import Reason
from npu_tools.gate import judge, judge_tokens
from npu_tools.gate.tokens import GATE_K
from npu_tools.oracle import Decomposition, WeightsSource, stage_names
from npu_tools.recipes import recipe

Array = NDArray[Any]
COPIED = 2e-4
"""Relative error (2-norms) under which a device output is the reference: one rounding to bf16 leaves 1.6e-3."""
SAME_REFERENCE = 1e-3
"""Within which two FP32 computations of one thing agree, whatever the order of their sums."""
NOTED_WITHIN = 0.02
"""A figure of the ledger may differ from the same made of the files by this share, of rounding and thread counts."""
OWN_FILES = ("evaluation_report.md", "verdict.json")
"""What evaluations write themselves; phase 7 names those of its own."""
WHOLE_BYTES = 4_000_000
"""Outputs of kernels under this are kept whole (deployment/phases/kernels.py), of others every so many-th element."""


@dataclass(frozen=True, slots=True)
class Made:
    """What this evaluation makes itself of the model."""

    decomposition: Decomposition
    weights: WeightsSource
    rng: np.random.Generator
    budget_s: float


def audit_files(claims: Claims) -> Iterator[Reason]:
    """Files of results against the digests in the ledger."""
    named = {path: said for path, said in claims.results().items() if path not in OWN_FILES}
    for path, (digest, entry) in named.items():
        target = claims.folder / path
        if ".." in Path(path).parts or not target.is_file():
            yield Reason("results_missing", f"{path} is not there", line(entry))
        elif file_digest(target) != digest:
            yield Reason("results_changed", f"{path} is not the file its gate saw", line(entry))
    known = {Path(path).parent for path in named}
    extra = [
        path
        for path in sorted(claims.folder.glob("results/**/*.npy"))
        if path.relative_to(claims.folder).as_posix() not in named and path.relative_to(claims.folder).parent in known
    ]
    if extra:
        first = extra[0].relative_to(claims.folder).as_posix()
        yield Reason("results_unknown", f"{len(extra)} arrays beside those of gates, first {first}", first)


def audit_kernel_results(claims: Claims, made: Made) -> Iterator[Reason]:
    """Stored outputs and references of kernel gates, each made again from its seed."""
    started = time.monotonic()
    gates = [entry for entry in claims.kernel_gates() if mapping(entry.body.get("digests")).get("results")]
    made.rng.shuffle(gates)  # pyright: ignore[reportArgumentType]
    for entry in gates:
        if time.monotonic() - started > made.budget_s:
            return
        yield from _kernel(claims, entry)


def _kernel(claims: Claims, entry: Entry) -> Iterator[Reason]:
    about = subject(entry)
    name, seed = str(about.get("kernel")), about.get("seed")
    kept = stored(claims, entry)
    if not isinstance(seed, int) or not kept:
        return
    try:
        found = recipe(claims.shipped, name)
        resolved = found.resolve(about.get("shape") or {}, mapping(about.get("settings")))
        wanted = found.reference(found.inputs(resolved, seed), resolved)
        rule = found.tolerance(resolved)
    except NpuToolsError:
        return  # audit_kernels says what cannot be set up
    for output, reference in wanted.items():
        expected = _thinned(np.asarray(reference, np.float32))
        theirs, ours = kept.get(f"{output}_reference"), kept.get(output)
        title = f"{name} {'x'.join(str(size) for size in mapping(about.get('shape')).values())}: {output}"
        if theirs is not None and _error(theirs, expected) > SAME_REFERENCE:
            text = f"{title}: the stored reference is not what the shipped recipe gives for seed {seed}"
            yield Reason("reference_edited", text, line(entry))
        if ours is None:
            continue
        if ours.shape == expected.shape and _error(ours, expected) < 1e-6 and not _few_bits(expected):
            yield Reason("copied_reference", f"{title} is its FP32 reference to the last digit", line(entry))
            continue
        verdict = judge(ours, expected, rule)
        if not verdict.passed:
            yield Reason(
                "results_contradict", f"{title}: passed, and the stored output misses: {verdict.reason}", line(entry)
            )


def _few_bits(reference: Array) -> bool:
    """Whether the reference itself holds bf16 values only, as copies and sums of small integers do."""
    cut = np.asarray(reference, np.float32).view(np.uint32) & 0xFFFF
    return not bool(cut.any())


def audit_reference(claims: Claims, made: Made) -> Iterator[Reason]:
    """Stored FP32 stages against stages made again, layer by layer from the stored layer before."""
    for request, place in references(claims, ("stages", "block")):
        tokens = whole(request.get("tokens"))
        embedding = load(place / "embedding.npy")
        if not tokens or embedding is None:
            continue
        evidence = place.relative_to(claims.folder).as_posix()
        own = made.decomposition.embedding(tokens)
        if embedding.shape != own.shape or _error(embedding, own) > 1e-6:
            text = "the stored embedding is not that of the weights the deployment names"
            yield Reason("wrong_weights", text, f"{evidence}/embedding.npy")
            continue
        yield from _layers(claims, made, place, embedding, evidence)


def _layers(claims: Claims, made: Made, place: Path, embedding: Array, evidence: str) -> Iterator[Reason]:
    there = [layer for layer in range(claims.dims.layers) if (place / f"layer_{layer:02d}/output.npy").is_file()]
    if len(there) > 1 and len(there) < claims.dims.layers:
        text = f"the reference holds {len(there)} layers of {claims.dims.layers}"
        yield Reason("layers_skipped", text, evidence)
    chosen = {0, *(int(each) for each in made.rng.permutation(there)[:2])} if there else set[int]()
    names = stage_names(claims.dims)
    for layer in sorted(chosen):
        before = embedding if layer == 0 else load(place / f"layer_{layer - 1:02d}/output.npy")
        if before is None:
            continue
        for stage, array in made.decomposition.block(layer, before):
            assert stage in names
            kept = load(place / f"layer_{layer:02d}/{stage}.npy")
            if kept is not None and _error(kept, array) > SAME_REFERENCE:
                text = f"the stored reference of layer {layer}, {stage} is not what config and weights give"
                yield Reason("reference_edited", text, f"{evidence}/layer_{layer:02d}/{stage}.npy")
                return
    last, normed = load(place / f"layer_{claims.dims.layers - 1:02d}/output.npy"), load(place / "final_norm.npy")
    if last is not None and normed is not None and claims.dims.layers == len(there):
        again = made.decomposition.final_norm(last)
        if _error(normed, again) > SAME_REFERENCE:
            yield Reason("reference_edited", "the stored final norm does not follow", f"{evidence}/final_norm.npy")
        logits = load(place / "logits.npy")
        if (
            logits is not None
            and _error(logits.reshape(1, -1), made.decomposition.logits(normed[-1:])) > SAME_REFERENCE
        ):
            yield Reason("reference_edited", "the stored logits do not follow", f"{evidence}/logits.npy")


def audit_block(claims: Claims, made: Made) -> Iterator[Reason]:
    """The stored block of phase 2 beside the block made again, and the figures its gate noted."""
    for entry in claims.vouching(2):
        about, kept = subject(entry), stored(claims, entry)
        tokens = whole(about.get("tokens"))
        output = kept.get("output")
        if not tokens or output is None:
            continue
        if len(output) != len(tokens):
            text = f"the stored block has {len(output)} rows, the prompt {len(tokens)} tokens"
            yield Reason("sequence_shortened", text, line(entry))
            continue
        if isinstance(about.get("length"), int) and about["length"] != len(tokens):
            yield Reason("sequence_shortened", f"length {about['length']} of {len(tokens)} tokens", line(entry))
        expected = dict(made.decomposition.block(0, made.decomposition.embedding(tokens)))
        yield from _copied(kept, expected, entry)
        noted = mapping(mapping(mapping(entry.body.get("metrics")).get("stages")).get("output"))
        error = float(np.abs(output - expected["output"]).mean() / np.abs(expected["output"]).mean())
        said = noted.get("mean_rel_l1")
        if isinstance(said, int | float) and abs(said - error) > NOTED_WITHIN * error + 1e-4:
            text = f"the gate notes mean_rel_L1 {said:.3g} for layer 0; the stored output has {error:.3g}"
            yield Reason("results_contradict", text, line(entry))


def _copied(kept: Mapping[str, Array], expected: Mapping[str, Array], entry: Entry) -> Iterator[Reason]:
    for stage, array in kept.items():
        if stage in expected and array.shape == expected[stage].shape and _error(array, expected[stage]) < COPIED:
            text = f"layer 0, {stage}: the device's output is within {COPIED:g} of FP32, nearer than one bf16 rounding"
            yield Reason("copied_reference", text, line(entry))
            return


def audit_tokens(claims: Claims, made: Made) -> Iterator[Reason]:
    """Logits kept by the model gates beside the references they were judged by, and the verdict made again."""
    given = greedy_references(claims)
    for entry in claims.model_gates():
        about, folder = subject(entry), place_of(claims, entry)
        prompts = prompts_of(entry)
        if folder is None:
            if mapping(entry.body.get("digests")).get("results") is not None:
                yield Reason("results_missing", "the gate kept no logits", line(entry))
            continue
        steps = int(about.get("steps") or 0)
        for number, prompt in enumerate(prompts):
            ours = load(folder / f"prompt_{number:02d}_logits.npy")
            if ours is None:
                yield Reason("gate_shrunk", f"prompt {number} has no logits in {folder.name}", line(entry))
                continue
            yield from _logits(claims, entry, number, ours, given.get(tuple(prompt)), steps)
        if entry.phase == 3 and prompts:
            yield from _depths(claims, made, entry, folder, prompts[0])


def _logits(
    claims: Claims, entry: Entry, number: int, ours: Array, theirs: Array | None, steps: int
) -> Iterator[Reason]:
    if ours.ndim != 2 or ours.shape[1] != claims.dims.vocab or len(ours) < steps:
        text = f"prompt {number}: logits of shape {list(ours.shape)}, for {steps} steps over {claims.dims.vocab} tokens"
        yield Reason("gate_shrunk", text, line(entry))
        return
    if theirs is None:
        yield Reason("results_missing", f"prompt {number}: there is no reference for these tokens", line(entry))
        return
    for step in range(min(len(ours), len(theirs))):
        if _error(ours[step], theirs[step]) < COPIED:
            text = f"prompt {number}, step {step}: the device's logits are the reference's"
            yield Reason("copied_reference", text, line(entry))
            break
    verdict = judge_tokens(ours, theirs, k=min(GATE_K, ours.shape[1]), steps=steps)
    if not verdict.passed:
        text = f"prompt {number}: passed, and the stored logits do not: {verdict.reason}"
        yield Reason("results_contradict", text, line(entry))


def _depths(claims: Claims, made: Made, entry: Entry, folder: Path, prompt: list[int]) -> Iterator[Reason]:
    """Whether the first logits are those of all layers, and not of fewer."""
    ours = load(folder / "prompt_00_logits.npy")
    if ours is None or len(prompt) * claims.dims.layer_weights * claims.dims.layers > 4e12:
        return
    hidden = made.decomposition.embedding(prompt)
    last: list[Array] = []
    for layer in range(claims.dims.layers):
        for stage, array in made.decomposition.block(layer, hidden):
            if stage == "output":
                hidden = array
        last.append(hidden[-1])
    after = made.decomposition.logits(made.decomposition.final_norm(np.stack(last)))  # the head is read once
    found = [_cosine(ours[0], row) for row in after]
    best = int(np.argmax(found))
    if best + 1 < claims.dims.layers and found[best] > max(found[-1], 0.9) + 0.005:
        text = f"the logits are those of {best + 1} layers (cosine {found[best]:.4f}), not of {claims.dims.layers} ({found[-1]:.4f})"
        yield Reason("layers_skipped", text, line(entry))


def greedy_references(claims: Claims) -> dict[tuple[int, ...], Array]:
    """Stored Hugging Face logits [steps, vocab] by prompt."""
    found: dict[tuple[int, ...], Array] = {}
    for request, place in references(claims, ("greedy",)):
        for number, prompt in enumerate(request.get("prompts") or []):
            logits = load(place / f"prompt_{number:02d}_logits.npy")
            if logits is not None:
                found.setdefault(tuple(whole(prompt)), logits)
    return found


def references(claims: Claims, kinds: tuple[str, ...]) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """The oracle's answers that were kept, with what was asked."""
    for path in sorted(claims.workspace.reference.glob("*/request.json")):
        try:
            asked = mapping(mapping(json.loads(path.read_text(encoding="utf-8"))).get("request"))
        except (OSError, ValueError):
            continue
        if asked.get("kind") in kinds and path.parent.suffix != ".old":
            yield asked, path.parent


def stored(claims: Claims, entry: Entry) -> dict[str, Array]:
    """Arrays an attempt names, by the last part of their path; the same name in several folders is the first one's."""
    found: dict[str, Array] = {}
    for path in mapping(mapping(entry.body.get("digests")).get("results")):
        array = load(claims.folder / path) if path.endswith(".npy") else None
        if array is not None:
            found.setdefault(Path(path).stem, array)
    return found


def place_of(claims: Claims, entry: Entry) -> Path | None:
    """The folder in which a model gate kept its logits."""
    for path in mapping(mapping(entry.body.get("digests")).get("results")):
        if path.endswith("_logits.npy"):
            return (claims.folder / path).parent
    return None


def logits_of(claims: Claims, entry: Entry, number: int) -> Array | None:
    """The logits [steps, vocab] a model gate kept of a prompt."""
    folder = place_of(claims, entry)
    return None if folder is None else load(folder / f"prompt_{number:02d}_logits.npy")


def load(path: Path) -> Array | None:
    """An array of a file as float32; None where there is none."""
    try:
        found: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, UnusableInput):
        return None
    return np.asarray(found, np.float32) if isinstance(found, np.ndarray) else None


def _thinned(array: Array) -> Array:
    step = max(1, -(-array.nbytes // WHOLE_BYTES))
    return array if step == 1 else array.reshape(-1)[::step]


def _error(one: Array, other: Array) -> float:
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if a.shape != b.shape:
        return float("inf")
    scale = float(np.linalg.norm(b))
    if not scale:
        return 0.0 if not a.any() else float("inf")
    error = float(np.linalg.norm(a - b)) / scale
    return error if np.isfinite(error) else float("inf")


def _cosine(one: Array, other: Array) -> float:
    a, b = np.asarray(one, np.float64).ravel(), np.asarray(other, np.float64).ravel()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms else 0.0


def relative_error(one: Array, other: Array) -> float:
    """|one - other| / |other| in 2-norms, infinite for other shapes or numbers that are none."""
    return _error(one, other)


def cosine(one: Array, other: Array) -> float:
    """Cosine of two arrays taken flat."""
    return _cosine(one, other)
