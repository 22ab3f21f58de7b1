"""Times a deployment claims, computed again from the cost model for the shapes and settings it claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.timing import ModelTime, TimingOptions, model_time
from npu_tools.deployment.world import Merged, RealWorld, RunnerRequest
from npu_tools.errors import NpuToolsError
from npu_tools.estimate import estimate_kernel
from npu_tools.evaluator.claims import Claims, line, mapping, subject
from npu_tools.evaluator.reasons import Reason
from npu_tools.recipes import recipe

WITHIN = 0.01
"""Relative difference of two computations of one modelled time."""
EXACT_US, FEW = 1e-3, 3
"""As the ledger rounds times; so many kernels equal to that are no chance."""
OTHER_MODEL = 0.5
"""The same between two versions of the cost model: a fit moves, and not so far."""


def audit_times(claims: Claims, together: Path) -> Iterator[Reason]:
    """What speaks against the modelled times of kernels, models and steps."""
    within = WITHIN
    if claims.opened.get("version") is not None and not claims.same_version:
        within = OTHER_MODEL
        text = f"deployed with herdbook {claims.opened.get('version')}: times are of another cost model"
        yield Reason("other_version", text, "the opening line")
    for entry in claims.kernel_gates():
        yield from _kernel(entry, together, within)
    yield from _too_exact(claims, together)
    gates = {entry.seq: entry for entry in claims.state.attempts}
    made: dict[int, tuple[float, float] | None] = {}
    for entry in claims.model_gates():
        made[entry.seq] = _again(claims, entry, together)
        yield from _model(claims, entry, made[entry.seq], within)
    for step in claims.state.steps:
        seq, after = step.body.get("gate_seq"), step.body.get("after_us")
        gate = gates.get(seq) if isinstance(seq, int) else None
        if gate is None or not isinstance(after, int | float) or step.body.get("timing") == "measured":
            continue
        said = gate.body.get("modelled_us")
        if isinstance(said, int | float) and _off(after, said):
            text = f"the step {step.body.get('name')} claims {after:.1f} µs; its gate has {said:.1f}"
            yield Reason("timing_wrong", text, line(step))


def plan_request(claims: Claims, about: Mapping[str, Any], kernels: Path) -> RunnerRequest:
    """The model as an attempt says it was loaded."""
    fused: Any = about.get("fused")
    merged: Merged = fused if fused in ("prefill", "decode") else bool(fused)
    settings = {str(key): dict(mapping(value)) for key, value in mapping(about.get("settings")).items()}
    return RunnerRequest(claims.dims, claims.seq_len, merged, settings, kernels)


def _kernel(entry: Entry, together: Path, within: float) -> Iterator[Reason]:
    said, wanted = entry.body.get("modelled_us"), _estimate(entry, together)
    if isinstance(said, int | float) and wanted is not None and _off(said, wanted, within):
        shape = "x".join(str(size) for size in mapping(subject(entry).get("shape")).values())
        text = f"{subject(entry).get('kernel')} {shape} claims {said:.1f} µs; the cost model gives {wanted:.1f} for this shape"
        yield Reason("timing_wrong", text, line(entry))


def _estimate(entry: Entry, together: Path) -> float | None:
    """The cost model's µs for a kernel attempt; None where nobody measured the like: its time is what a run counted."""
    about = subject(entry)
    try:
        found = recipe(together, str(about.get("kernel")))
        resolved = found.resolve(about.get("shape") or {}, mapping(about.get("settings")))
        listed = found.manifest.settings
        asked = {n: v for n, v in resolved.settings.items() if n not in listed or listed[n].source != "recipe"}
        return estimate_kernel(found.checked_as, resolved.extents, asked).modelled_us
    except NpuToolsError:
        return None


def _too_exact(claims: Claims, together: Path) -> Iterator[Reason]:
    """Times called measured that are the cost model's to the last digit: no device keeps to a formula."""
    measured = [entry for entry in claims.kernel_gates() if isinstance(entry.body.get("measured_us"), int | float)]
    same = [e for e in measured if abs(e.body["measured_us"] - (_estimate(e, together) or 0.0)) <= EXACT_US]
    if len(same) >= FEW and len(same) * 2 >= len(measured):
        text = f"{len(same)} of {len(measured)} times called measured are the cost model's to the last digit"
        yield Reason("measured_on_emulator", text, line(same[0]))


def _again(claims: Claims, entry: Entry, together: Path) -> tuple[float, float] | None:
    about = subject(entry)
    request = plan_request(claims, about, together)
    reuse = bool(mapping(about.get("ways")).get("buffer_reuse"))
    try:
        plan = RealWorld(together).plan(request)
        time: ModelTime = model_time(plan, claims.dims, together, TimingOptions(reuse))
    except (NpuToolsError, ImportError):
        return None
    return time.prefill_us, time.decode_us


def _model(claims: Claims, entry: Entry, again: tuple[float, float] | None, within: float) -> Iterator[Reason]:
    noted = mapping(mapping(entry.body.get("metrics")).get("time"))
    if noted.get("timing") == "measured" or not noted:
        return
    if again is None:
        yield Reason("not_checked", "the modelled time could not be computed again", line(entry))
        return
    for key, wanted in (("prefill_us", again[0]), ("decode_us", again[1])):
        said = noted.get(key)
        if isinstance(said, int | float) and _off(said, wanted, within):
            yield _judged(claims, entry, key, float(said), wanted, noted)
    claimed = entry.body.get("modelled_us")
    meant = again[1] if entry.phase == 5 else again[0]
    if isinstance(claimed, int | float) and _off(claimed, meant, within):
        yield _judged(claims, entry, "modelled_us", float(claimed), meant, noted)


def _judged(claims: Claims, entry: Entry, key: str, said: float, wanted: float, noted: Mapping[str, Any]) -> Reason:
    """Whether the time is of fewer layers or calls, or simply another."""
    calls = noted.get("decode_calls" if "decode" in key else "prefill_calls")
    counts = [int(mapping(call).get("count") or 0) for call in calls] if isinstance(calls, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    most = max(counts, default=claims.dims.layers)
    if said < wanted and (most < claims.dims.layers or _share(said, wanted, claims.dims.layers)):
        text = f"{key} {said:.1f} µs covers part of the model; all {claims.dims.layers} layers take {wanted:.1f}"
        return Reason("timing_subset", text, line(entry))
    text = f"{key} is {said:.1f} µs; the cost model gives {wanted:.1f} for the claimed shapes and settings"
    return Reason("timing_wrong", text, line(entry))


def _share(said: float, wanted: float, layers: int) -> bool:
    """Whether the time is about that of a part of the layers: the head aside, time is proportional to them."""
    return any(abs(said - wanted * part / layers) <= 0.002 * wanted for part in range(1, layers))


def _off(said: float, wanted: float, within: float = WITHIN) -> bool:
    return abs(said - wanted) > within * max(abs(wanted), 1e-9)
