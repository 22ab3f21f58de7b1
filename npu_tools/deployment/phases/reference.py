"""Phase 0: the config can run, the weights are the config's, every shape tiles, the FP32 reference is Hugging Face's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.architectures import Dimensions, read_config
from npu_tools.deployment import oracle_runs
from npu_tools.deployment.diagnosis import Diagnosis, of_error, of_finding
from npu_tools.deployment.site import Ended, Judging, Site
from npu_tools.errors import NpuToolsError, UnusableInput
from npu_tools.findings import Finding

STAGES_MAX_BYTES = 400_000_000
"""Every stage of a layer is kept under this; of longer prompts only what later phases compare."""


def run(site: Site) -> Ended:
    """Config, weights, tiling, oracle, in this order: the first that fails is told."""
    started = time.monotonic()
    judging = site.judging(0)
    subject = _subject(site)
    try:
        found = read_config(site.config(), name=str(site.head["model"]))
    except UnusableInput as error:
        found = Finding("error", "config", str(error))
    if isinstance(found, Finding):
        judging.measure("architecture_supported", False, found.message)
        site.attempt(0, "reference", judging, subject, started=started, diagnosis=of_finding(found))
        return Ended(False, found.message)
    judging.measure("architecture_supported", True, found.architecture)
    judging.head_dim = found.head_dim
    try:
        subject["weights_digest"] = site.weights().digest()
        _probe(site, found)
    except NpuToolsError as error:
        judging.measure("weights_match_config", False, str(error))
        site.attempt(0, "reference", judging, subject, started=started, diagnosis=of_error(error, "weights"))
        return Ended(False, str(error))
    judging.measure("weights_match_config", True)
    refused = _tiling(site, found)
    judging.measure("shapes_can_be_tiled", not refused, "; ".join(each.message for each in refused[:3]))
    if refused:
        site.attempt(0, "reference", judging, subject, started=started, diagnosis=refused[0])
        return Ended(False, refused[0].message)
    return _oracle(site, found, judging, subject, started)


def _oracle(site: Site, dims: Dimensions, judging: Judging, subject: dict[str, Any], started: float) -> Ended:
    prompts = oracle_runs.prompts(site, dims)
    tokens = prompts[0]
    subject["tokens"], subject["length"] = tokens, len(tokens)
    site.teller.progress(1, 4, "the FP32 reference beside Hugging Face")
    answer = oracle_runs.stages(site, dims, tokens, compare=True)
    if not answer.ok:
        judging.measure("layer_cosine_vs_hf", None, answer.reason)
        judging.measure("reference_finite", False, answer.reason)
        diagnosis = Diagnosis("oracle", f"the oracle did not finish: {answer.reason}", text=answer.reason)
        site.attempt(0, "reference", judging, subject, started=started, diagnosis=diagnosis)
        return Ended(False, diagnosis.message)
    layers: list[dict[str, Any]] = list(answer.answer.get("layers", []))
    logits: dict[str, Any] = dict(answer.answer.get("logits", {}))
    judging.measure("layer_cosine_vs_hf", min((each["cosine"] for each in layers), default=None))
    judging.measure("logits_cosine_vs_hf", logits.get("cosine"))
    judging.measure("same_top1_as_hf", logits.get("same_token"))
    finite = all(np.isfinite(np.load(path)).all() for path in sorted(answer.folder.rglob("*.npy")))
    judging.measure("reference_finite", finite)
    metrics = {
        "layers": layers, "logits": logits, "versions": answer.answer.get("versions"),
        "relative_error": max((each.get("error", 0.0) for each in layers), default=None),
    }  # fmt: skip
    passed = not judging.missed
    site.attempt(
        0, "reference", judging, subject, started=started, metrics=metrics, results=[answer.folder],
        digests={"weights": subject["weights_digest"]},
    )  # fmt: skip
    worst = min((each["cosine"] for each in layers), default=float("nan"))
    return Ended(passed, f"{len(layers)} layers agree with Hugging Face, smallest cosine {worst:.6f}")


def _subject(site: Site) -> dict[str, Any]:
    names = ("model", "config_digest", "weights", "seq_len", "layers")
    return {name: site.head.get(name) for name in names}


def _probe(site: Site, dims: Dimensions) -> None:
    """One tensor of each kind read through, so that a truncated file is found now and not in phase 3."""
    weights = site.weights()
    last = dims.layers - 1
    names = {
        "model.embed_tokens.weight": (dims.vocab, dims.emb),
        f"model.layers.{last}.self_attn.q_proj.weight": (dims.q_dim, dims.emb),
        f"model.layers.{last}.self_attn.k_proj.weight": (dims.kv_dim, dims.emb),
        f"model.layers.{last}.mlp.down_proj.weight": (dims.emb, dims.hidden),
        "model.norm.weight": (dims.emb,),
    }
    if not dims.tied:
        names["lm_head.weight"] = (dims.vocab, dims.emb)
    if dims.qkv_bias:
        names[f"model.layers.{last}.self_attn.q_proj.bias"] = (dims.q_dim,)
    if dims.qk_norm:
        names[f"model.layers.{last}.self_attn.q_norm.weight"] = (dims.head_dim,)
    for name, shape in names.items():
        try:
            tensor = weights.tensor(name)
        except KeyError:
            raise UnusableInput(f"the weights have no tensor {name}; the config asks for it") from None
        if tuple(tensor.shape) != shape:
            raise UnusableInput(
                f"the weights contradict the config: {name} is {list(tensor.shape)}, the config says {list(shape)}"
            )
        if not np.isfinite(np.asarray(tensor, np.float32)).all():
            raise UnusableInput(f"{name} holds NaN or infinity: the file is damaged")


def _tiling(site: Site, dims: Dimensions) -> list[Diagnosis]:
    """What cannot be tiled at all, with the settings chosen so far."""
    try:
        plan = site.world.plan(site.request(dims, fused=False))
    except NpuToolsError as error:
        return [of_error(error, "tiling")]
    found: list[Diagnosis] = []
    for use, serves in plan.distinct():
        try:
            resolved = site.recipe(use.kernel).resolve(use.extents, dict(use.settings))
        except NpuToolsError as error:
            found.append(Diagnosis("tiling", f"{use.kernel} {use.extents} ({', '.join(serves)}): {error}", str(error)))
            continue
        if not resolved.ok and not site.settings():
            first = next(finding for finding in resolved.findings if finding.severity == "error")
            found.append(of_finding(first, kernel=f"{use.kernel} {use.extents}"))
    return found


def folder_of(site: Site) -> Path:
    """Where the reference's arrays of the first prompt are, as phase 0 recorded them."""
    return oracle_runs.folder(site, "stages")
