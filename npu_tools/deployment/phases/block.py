"""Phase 2: layer 0 on the device against the FP32 reference, stage by stage, for the first prompt."""

from __future__ import annotations

import time

import numpy as np

from npu_tools.deployment import oracle_runs
from npu_tools.deployment.closeness import compare, device_failure
from npu_tools.deployment.diagnosis import Diagnosis
from npu_tools.deployment.site import Ended, Site, save, with_layers
from npu_tools.deployment.world import Array
from npu_tools.errors import NpuToolsError

STAGE_COSINE, STAGE_ERROR = 0.99, 0.1
"""From where on a stage is called the first wrong one; a gate is only the layer's output."""


def run(site: Site) -> Ended:
    """One layer, its output gated, the first bad stage named."""
    started = time.monotonic()
    dims = site.dims()
    judging = site.judging(2, dims.head_dim)
    tokens = oracle_runs.prompts(site, dims)[0]
    plan = site.world.plan(site.request(dims, fused=False))
    used = [use.kernel for use in plan.prefill]
    subject = {
        "layer": 0, "seq_len": site.seq_len, "length": len(tokens), "tokens": tokens,
        "recipes": site.recipe_digests(used), "settings": site.settings(), "static": site.static(), "fused": False,
    }  # fmt: skip
    answer = oracle_runs.block(site, tokens)
    if not answer.ok:
        judging.measure("finite", False, answer.reason)
        site.attempt(2, "block", judging, subject, started=started, diagnosis=Diagnosis("oracle", answer.reason))
        return Ended(False, answer.reason)
    site.teller.progress(1, 2, "layer 0")
    meter = site.meter(buffer_reuse=True)
    stages: dict[str, Array] = {}

    def tap(layer: int | None, stage: str, array: Array) -> None:
        if layer == 0:
            stages[stage] = np.asarray(array, np.float32)[: len(tokens)].copy()

    try:
        site.runner(site.request(with_layers(dims, 1), fused=False), meter).prefill(tokens, tap)
    except NpuToolsError as error:
        judging.measure("finite", False, str(error))
        diagnosis = device_failure(meter) or Diagnosis("block", str(error), str(error))
        site.attempt(2, "block", judging, subject, started=started, diagnosis=diagnosis)
        return Ended(False, diagnosis.message)
    compared = compare(stages, answer.folder / "layer_00")
    output = compared.get("output")
    if output is None:
        judging.measure("block_cosine", None, "the layer gave no output")
    else:
        judging.measure("block_cosine", output["cosine"])
        judging.measure("position_cosine_min", output["position_cosine_min"])
        judging.measure("scale", output["mean_rel_l1"])
    judging.measure("finite", all(bool(np.isfinite(array).all()) for array in stages.values()))
    place = site.place(2, "block")
    for stage, array in stages.items():
        save(place / "layer_00" / f"{stage}.npy", array)
    diagnosis = first_wrong(compared) if judging.missed else None
    site.attempt(
        2, "block", judging, subject, started=started, diagnosis=diagnosis, metrics={"stages": compared},
        digests={"recipe": subject["recipes"], "programs": meter.digests}, results=[place],
    )  # fmt: skip
    if judging.missed:
        return Ended(False, diagnosis.message if diagnosis else "the block's output misses its gate")
    assert output is not None
    return Ended(True, f"layer 0: cosine {output['cosine']:.6f}, {len(compared)} stages compared")


def first_wrong(compared: dict[str, dict[str, float]], layer: int = 0) -> Diagnosis:
    """The first stage that parts from the reference, and how."""
    for stage, figures in compared.items():
        if figures["cosine"] >= STAGE_COSINE and figures["mean_rel_l1"] <= STAGE_ERROR:
            continue
        scaled = figures["cosine"] >= STAGE_COSINE
        looks = (
            f"uniform factor {figures['scale']:.3g}: cosine {figures['cosine']:.4f} and yet the wrong size"
            if scaled
            else f"cosine {figures['cosine']:.4f}"
        )
        cause = (
            "a constant scale factor: a missing scale, a wrong RMSNorm epsilon, or a missing bias or norm weight"
            if scaled
            else "wrong values: rotation convention, mask, stale or swapped buffer, or a wrong weight"
        )
        message = f"layer {layer}: {stage} is the first stage to part from the reference ({looks}); look for {cause}"
        return Diagnosis(
            "stage-scale" if scaled else "stage-values", message, _text(stage, scaled), looks, stage, layer
        )
    return Diagnosis(
        "stage-drift", f"layer {layer}: no stage parts alone; the error builds up over the layer", "", "", None, layer
    )


def _text(stage: str, scaled: bool) -> str:
    """What a memory is asked: the symptom in the words people use."""
    if stage in ("q_rope", "k_rope"):
        return f"{stage} differs from the reference after RoPE: interleaved against half-split rotation convention"
    if scaled and stage.endswith("norm"):
        return f"RMSNorm epsilon wrong: {stage} is the reference times a constant factor; rms_norm_eps is 1e-5 or 1e-6 by model"
    if scaled:
        return f"{stage}: output is the reference times a constant factor, cosine near 1 but values wrong"
    return f"{stage} is wrong in one transformer block while every kernel passes by itself; output stale from an earlier call"
