"""Phases 4 and 5: optimisations one at a time; what passes the gate and is faster stays, the rest is taken back.

A step is tried on top of what was kept before it. It is gated with the first prompt, and on a device timed then, in runs
of their own; all prompts are gated again at the end with everything that was kept. A phase that was killed goes on behind
the steps already in the ledger.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from npu_tools.deployment import oracle_runs, token_gate
from npu_tools.deployment.diagnosis import Diagnosis, brief, of_error
from npu_tools.deployment.kernel_gate import gate_kernel, passed_before
from npu_tools.deployment.ledger import Entry
from npu_tools.deployment.site import BUFFERS, Ended, Judging, Site
from npu_tools.deployment.state import STEPS
from npu_tools.deployment.steps import BASELINE, Deployed, Times, Ways, combined, kept
from npu_tools.errors import NotMeasured, NpuToolsError, RunStopped

What = Literal["prefill", "decode"]


def optimise(site: Site, number: int, what: What) -> Ended:
    """Try every step of a phase, then gate what was kept."""
    baseline, gate = _timed(site, number, what, BASELINE)
    if gate is not None and not gate.body["passed"]:
        return Ended(False, brief(gate.body))
    done = [entry for entry in site.state.steps if entry.phase == number and entry.seq >= site.state.since(number)]
    ways = kept(site.state, number) if done else BASELINE
    tried = {str(entry.body["name"]) for entry in done}
    now, gate = (baseline, gate) if ways == BASELINE else _timed(site, number, what, ways)
    if gate is not None and not gate.body["passed"]:
        return Ended(False, brief(gate.body))
    before = _of(now, what)
    for at, name in enumerate(STEPS):
        if name in tried:
            continue
        site.pause()
        site.teller.progress(at, len(STEPS) + 1, f"{what}: {name}")
        entry = _try(site, number, what, name, ways, before)
        if entry.body["kept"]:
            ways, before = ways.with_step(name), float(entry.body["after_us"])
    return _whole(site, number, what, ways, baseline)


def _measures(site: Site) -> bool:
    """Whether times of this backend are measured: a modelled one says nothing beside them."""
    return site.backend().name != "emulator"


def _timed(site: Site, number: int, what: What, ways: Ways) -> tuple[Times, Entry | None]:
    """What a way takes; on a device it is gated for that, with the first prompt, which is an attempt like any other."""
    deployed = _way(site, ways, what)
    if not _measures(site):
        return deployed.time(site), None
    site.teller.progress(0, len(STEPS) + 1, f"{what}: what it takes now")
    entry, times = _gate(site, number, what, deployed, "none")
    return times, entry


def _try(site: Site, number: int, what: What, name: str, ways: Ways, before: float) -> Entry:
    """One step: not applicable, refused, missed, not faster, or kept."""
    wanted = ways.with_step(name)

    before_is = "measured" if _measures(site) else "modelled"

    def ended(
        keep: bool, why: str, after: float | None = None, gate: Entry | None = None, times: Times | None = None
    ) -> Entry:
        body = {
            "name": name, "before_us": round(before, 3), "after_us": None if after is None else round(after, 3),
            "timing": before_is, "gate_seq": None if gate is None else gate.seq, "kept": keep, "why": why,
            **({"measurement": times.how} if times is not None and times.how else {}),
        }  # fmt: skip
        entry = site.ledger.append("step", number, body)
        _decide(site, number, name, keep, why)
        return entry

    try:
        now, then = _way(site, ways, what), _way(site, wanted, what)
        why_not = _pointless(site, what, name, now, then)
        if why_not:
            return ended(False, why_not)
        refused = _gate_kernels(site, number, now, then)
        if refused is not None:
            return ended(False, f"a kernel of it does not pass: {brief(refused.body)}", gate=refused)
        times = then.time(site)
        if not _measures(site) and _of(times, what) >= before:
            return ended(False, f"not faster: {before:.1f} → {_of(times, what):.1f} µs modelled", _of(times, what))
        gate, times = _gate(site, number, what, then, name)
    except RunStopped:
        raise
    except NotMeasured as error:
        return ended(False, f"it cannot be timed: {of_error(error).message}")
    except NpuToolsError as error:
        return ended(False, f"it cannot be built: {of_error(error).message}")
    after = _of(times, what) if times.timing == before_is else None
    if not gate.body["passed"]:
        return ended(False, f"the token gate fails with it: {brief(gate.body)}", after, gate)
    if after is None or after >= before:
        return ended(False, f"not faster: {before:.1f} → {_of(times, what):.1f} µs {times.timing}", after, gate, times)
    return ended(True, f"{before / after:.2f} times as fast", after, gate, times)


def _gate(site: Site, number: int, what: What, deployed: Deployed, name: str) -> tuple[Entry, Times]:
    """The token gate with the first prompt."""
    started = time.monotonic()
    dims = site.dims()
    prompts, steps = oracle_runs.prompts(site, dims)[:1], oracle_runs.steps_of(site)
    place = site.place(number, what)
    lens = token_gate.LayerLens(len(prompts[0]))
    gated = token_gate.run_gate(site, deployed.request, deployed.meter, prompts, steps, place, lens)
    judging = site.judging(number, dims.head_dim)
    judging.measure("token_sets", gated.passed, gated.reason)
    times = deployed.time(site, gated)
    subject = {**deployed.subject(site, prompts, steps, what), "step": name}
    why = None if gated.passed else token_gate.diagnosis(gated, lens.medians(site, prompts[0]))
    trial = gated.passed or name != "none"
    return _record(site, number, what, judging, subject, started, why, gated, times, deployed, trial=trial), times


def _whole(site: Site, number: int, what: What, ways: Ways, baseline: Times) -> Ended:
    """All prompts with everything that was kept; decode on top of what prefill kept, which is what will be deployed."""
    started = time.monotonic()
    dims = site.dims()
    deployed = combined(site, ways) if what == "decode" else _way(site, ways, what)
    prompts, steps = oracle_runs.prompts(site, dims), oracle_runs.steps_of(site)
    place = site.place(number, what)
    lens = token_gate.LayerLens(len(prompts[0]))
    gated = token_gate.run_gate(site, deployed.request, deployed.meter, prompts, steps, place, lens)
    times = deployed.time(site, gated)
    judging = site.judging(number, dims.head_dim)
    judging.measure("token_sets", gated.passed, gated.reason)
    before, after = _of(baseline, what), _of(times, what)
    comparable = before > 0 and times.timing == baseline.timing
    judging.measure("faster", after / before if comparable else None, f"{before:.1f} → {after:.1f} µs {times.timing}")
    state = site.state
    recorded = [entry for entry in state.steps if entry.phase == number and entry.seq >= state.since(number)]
    names = {str(entry.body["name"]) for entry in recorded}
    judging.measure("steps_recorded", names >= set(STEPS))
    own = _broken_by_us(site, recorded)
    judging.measure("steps_sound", not own, "" if own is None else own[1])
    why = None if gated.passed else token_gate.diagnosis(gated, lens.medians(site, prompts[0]))
    if why is None and own is not None:
        why = own[0]
    if why is None and judging.missed:
        why = _nothing_kept(recorded, judging.missed[0].said)
    subject = deployed.subject(site, prompts, steps, what)
    entry = _record(site, number, what, judging, subject, started, why, gated, times, deployed, trial=False)
    if not entry.body["passed"]:
        return Ended(False, brief(entry.body))
    held = ", ".join(name for name, on in ways.as_dict().items() if on)
    return Ended(True, f"{what} {before / 1e3:.2f} → {after / 1e3:.2f} ms ({times.timing}) with {held}")


def _record(
    site: Site, number: int, what: What, judging: Judging, subject: Mapping[str, Any], started: float,
    why: Diagnosis | None, gated: token_gate.GateRun, times: Times, deployed: Deployed, *, trial: bool,
) -> Entry:  # fmt: skip
    measured = times.timing == "measured"
    return site.attempt(
        number, what, judging, subject, started=started, diagnosis=why, results=[gated.folder], trial=trial,
        metrics={**gated.metrics(), "time": times.as_dict()},
        digests={"recipe": site.recipe_digests(deployed.used), "programs": deployed.meter.digests},
        modelled_us=None if measured else _of(times, what), measured_us=_of(times, what) if measured else None,
    )  # fmt: skip


def _gate_kernels(site: Site, number: int, now: Deployed, then: Deployed) -> Entry | None:
    """Gate the kernels a step brings in; the first that does not pass."""
    known = {use.key() for use in now.kernels}
    fresh = [use for use in then.kernels if use.key() not in known]
    if not fresh:
        return None
    backend = site.backend()
    before = passed_before(site)
    seen: set[str] = set()
    for use in fresh:
        if use.key() in seen:
            continue
        seen.add(use.key())
        site.pause()
        entry = gate_kernel(site, use, (use.name,), backend, before, phase=number, trial=True)
        if not entry.body["passed"]:
            return entry
    return None


def _pointless(site: Site, what: What, name: str, now: Deployed, then: Deployed) -> str:
    """Why a step would change nothing here."""
    if name == "merge" and [use.key() for use in now.kernels] == [use.key() for use in then.kernels]:
        return "there is nothing to merge: the plan has no merged form of these kernels"
    if name == "layout":
        if what == "decode":
            return "decode attention runs on the host: there is no transpose between its kernels"
        if site.dims().head_dim > 64:
            return "head_dim over 64 takes head-first attention only: the host's transposes stay"
    return ""


def _broken_by_us(site: Site, steps: list[Entry]) -> tuple[Diagnosis, str] | None:
    """A step whose gate failed although the deployment itself changed settings or recipes of what it brings in."""
    state = site.state
    ours = {key.removeprefix(BUFFERS).split(" ")[0] for key in state.settings} | set(state.recipes)
    seen = {entry.seq: entry for entry in state.attempts}
    for step in steps:
        gate = seen.get(step.body.get("gate_seq") or 0)
        if step.body["kept"] or gate is None or gate.body["passed"]:
            continue
        subject = gate.body["subject"]
        used = {str(subject["kernel"])} if "kernel" in subject else set(subject.get("recipes") or ())
        changed = sorted(ours & used)
        if changed:
            told: Mapping[str, Any] = gate.body["diagnosis"] or {}
            said = f"{step.body['name']} was taken back, and {', '.join(changed)} has settings or a recipe of this deployment"
            known: dict[str, Any] = {
                name: told.get(name)
                for name in ("text", "looks_like", "stage", "layer", "kernel", "remedy")
                if told.get(name) is not None
            }
            message = f"{said}: {told.get('message', '')}"
            return Diagnosis(code=str(told.get("code", "step")), message=message, **known), said
    return None


def _nothing_kept(steps: list[Entry], said: str) -> Diagnosis:
    tried = "; ".join(f"{entry.body['name']}: {entry.body['why']}" for entry in steps)
    text = next((str(entry.body["why"]) for entry in steps if "fails" in str(entry.body["why"])), tried)
    return Diagnosis("not-faster", f"nothing was kept ({said}): {tried}", text, "", None, None, None)


def _decide(site: Site, number: int, name: str, keep: bool, why: str) -> None:
    what = "prefill" if number == 4 else "decode"
    site.ledger.append(
        "decision", number,
        {"subject": "option", "key": f"{what}.{name}", "before": False, "after": keep, "why": why, "by": "machine"},
    )  # fmt: skip


def _of(times: Times, what: What) -> float:
    return times.prefill_us if what == "prefill" else times.decode_us


def _way(site: Site, ways: Ways, what: What) -> Deployed:
    return Deployed.of(site, ways, what if ways.merge else False)
