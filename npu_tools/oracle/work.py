"""The oracle's two pieces of work, in its child process: stages against Hugging Face, and greedy references."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.architectures import Dimensions, read_config
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.gate.tokens import top_k
from npu_tools.oracle.decompose import ONCE, Decomposition, stage_names, stage_path
from npu_tools.oracle.requests import GreedyRequest, Request, StagesRequest, WeightsSource

Array = NDArray[Any]
Opened = Callable[[str, dict[str, Any]], WeightsSource]
Told = Callable[[float, float, str], None]
LAYER_COSINE, LOGITS_COSINE = 0.99, 0.999
"""The phase-0 gate of the paper's skills (build-cpu-oracle): every layer, and the final logits."""
OWN_ERROR = 1e-4
"""Ours: both sides are FP32, so |ours - theirs| / |theirs| (2-norms) of any layer or of the logits stays far below a
bf16 step (4e-3) and measures some 2e-6. A wrong epsilon, a rotation off by one, or a bias left out lies above it while cosines still pass."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """One of our arrays beside Hugging Face's: worst position's cosine, and the relative error of the whole."""

    cosine: float
    error: float

    @classmethod
    def of(cls, ours: Array, theirs: Array) -> Closeness:
        """Both [rows, width]."""
        a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return cls(float("nan"), float("inf"))
        norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        cosines = np.where(norms > 0, (a * b).sum(-1) / np.where(norms > 0, norms, 1), 0)
        scale = float(np.linalg.norm(b))
        return cls(float(cosines.min()), float(np.linalg.norm(a - b)) / scale if scale else float("inf"))


def perform(request: Request, opened: Opened, told: Told) -> dict[str, Any]:
    """Do it and answer; `opened` opens the weights, `told` hears of progress.

    Raises:
        UnusableInput: weights or tokens that do not fit the config, or libraries that are missing.
    """
    dims = read_config(request.config)
    if isinstance(dims, Finding):
        return {"kind": request.kind, "ok": False, "findings": [dims.as_dict()]}
    started = time.monotonic()
    weights = opened(request.weights, request.config)
    if isinstance(request, StagesRequest):
        answer = _stages(request, dims, weights, told)
    else:
        answer = _greedy(request, dims, weights, told)
    digest: Any = getattr(weights, "digest", None)
    return {
        "kind": request.kind,
        "findings": [],
        "weights_digest": digest() if callable(digest) else None,
        "wall_s": round(time.monotonic() - started, 3),
        **answer,
    }


def _stages(request: StagesRequest, dims: Dimensions, weights: WeightsSource, told: Told) -> dict[str, Any]:
    known = {*stage_names(dims), *ONCE}
    wanted = known if request.keep is None else set(request.keep)
    if wanted - known:
        raise UnusableInput(f"no stages {', '.join(sorted(wanted - known))} in this model; there are {sorted(known)}")
    folder, last = Path(request.folder), (request.length or len(request.tokens)) - 1
    depth = min(request.depth or dims.layers, dims.layers)
    theirs: Iterator[tuple[str, Array]] = iter(())
    versions: dict[str, str] = {}
    if request.compare:
        from npu_tools.oracle.hugging_face import HuggingFace

        other = HuggingFace(request.config, weights, threads=request.threads)
        theirs = other.layers(request.tokens, depth, last)
        versions = {"torch": str(other.torch.__version__)}
    files: dict[str, str] = {}
    layers: list[dict[str, Any]] = []
    logits: dict[str, Any] = {}
    ended: dict[str, Any] = {}
    own = Decomposition(dims, weights)
    for layer, stage, array in own.stages(request.tokens, length=request.length, depth=depth):
        if stage in wanted:
            files[stage_path(layer, stage)] = _save(folder, stage_path(layer, stage), array)
        if stage == "logits":
            ended = {"token": top_k(array[0], 1)[0], "best": top_k(array[0])}
        if stage not in ("output", *ONCE):
            continue
        if stage == "output" and layer is not None:
            told(layer + 1, depth + 1, f"layer {layer}")
        if not request.compare:
            continue
        name, reference = next(theirs)
        assert name == stage, f"{name} against {stage}"
        close = Closeness.of(array, reference)
        if stage == "output":
            layers.append({"layer": layer, "cosine": close.cosine, "error": close.error})
        if stage == "logits":
            same = top_k(array[0], 1) == top_k(reference[0], 1)
            logits = {"cosine": close.cosine, "error": close.error, "same_token": same}
    answer: dict[str, Any] = {
        "seq_len": len(request.tokens), "length": last + 1, "depth": depth, "files": files, **ended,
        "layers": layers, "logits": logits, "versions": versions, "compared": request.compare,
    }  # fmt: skip
    answer["criteria"] = _criteria(layers, logits) if request.compare else []
    answer["ok"] = all(each["ok"] for each in answer["criteria"])
    return answer


def _criteria(layers: list[dict[str, Any]], logits: dict[str, Any]) -> list[dict[str, Any]]:
    cosine = min(one["cosine"] for one in layers)
    error = max(max(one["error"] for one in layers), logits["error"])
    return [
        {"name": "layer_cosine", "value": cosine, "bound": LAYER_COSINE, "ok": bool(cosine >= LAYER_COSINE)},
        {
            "name": "logits_cosine", "value": logits["cosine"], "bound": LOGITS_COSINE,
            "ok": bool(logits["cosine"] >= LOGITS_COSINE),
        },
        {"name": "same_first_token", "value": int(logits["same_token"]), "bound": 1, "ok": bool(logits["same_token"])},
        {"name": "relative_error", "value": error, "bound": OWN_ERROR, "ok": bool(error <= OWN_ERROR)},
    ]  # fmt: skip


def _greedy(request: GreedyRequest, dims: Dimensions, weights: WeightsSource, told: Told) -> dict[str, Any]:
    from npu_tools.oracle.hugging_face import HuggingFace

    for prompt in request.prompts:
        if not prompt or max(prompt) >= dims.vocab:
            raise UnusableInput(f"a prompt is empty, or has a token outside the vocabulary of {dims.vocab}")
        if dims.max_positions and len(prompt) + request.steps > dims.max_positions:
            raise UnusableInput(
                f"{len(prompt)} tokens and {request.steps} steps are more than the {dims.max_positions} positions "
                "the config allows"
            )
    other = HuggingFace(request.config, weights, threads=request.threads)
    folder = Path(request.folder)
    prompts: list[dict[str, Any]] = []
    for at, made in enumerate(other.greedy(request.prompts, request.steps, request.dtype)):
        path = f"prompt_{at:02d}_logits.npy"
        digest = _save(folder, path, made["logits"])
        prompts.append(
            {"tokens": made["tokens"].tolist(), "best": made["best"].tolist(), "logits": path, "digest": digest}
        )
        told(at + 1, len(request.prompts), f"prompt {at}")
    versions = {"torch": str(other.torch.__version__)}
    return {"ok": True, "steps": request.steps, "dtype": request.dtype, "prompts": prompts, "versions": versions}


def _save(folder: Path, path: str, array: Array) -> str:
    """Write one array whole or not at all; its sha256."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        with part.open("wb") as file:
            np.save(file, array)
        os.replace(part, target)
    except OSError as error:
        raise UnusableInput(f"{target} cannot be written: {error.strerror or error}") from None
    with target.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
