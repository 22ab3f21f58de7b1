"""One kernel at one shape through print, check, run and gate, recorded as an attempt; on a device, timed then.

A kernel whose attempt passed before with the same recipe, shape, settings and backend is not run again.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from npu_tools.backends.protocol import Backend, Refused
from npu_tools.deployment.criteria import Value
from npu_tools.deployment.diagnosis import Diagnosis, of_error, of_finding, of_verdict
from npu_tools.deployment.ledger import Entry, plain
from npu_tools.deployment.measuring import SEED, prepare
from npu_tools.deployment.site import Judging, Site, save
from npu_tools.deployment.workspace import recipe_digest
from npu_tools.deployment.world import KernelUse
from npu_tools.errors import NotWritten, NpuToolsError
from npu_tools.estimate import estimate_kernel
from npu_tools.findings import Finding
from npu_tools.gate import Verdict, judge
from npu_tools.gate.looks_like import wrong_heads
from npu_tools.recipes import Recipe, Resolved

WHOLE_BYTES = 4_000_000
"""Outputs under this are kept whole beside their reference; of larger ones every so many-th element."""


def passed_before(site: Site) -> dict[str, Entry]:
    """Kernel attempts that passed in any phase, by what they were about."""
    return {
        _key(entry): entry for entry in site.state.attempts if entry.body["gate"] == "kernel" and entry.body["passed"]
    }


def gate_kernel(
    site: Site, use: KernelUse, serves: tuple[str, ...], backend: Backend, known: dict[str, Entry], *,
    phase: int = 1, trial: bool = False,
) -> Entry:  # fmt: skip
    """One kernel at one shape, gated and recorded; taken from the ledger where it passed before."""
    started = time.monotonic()
    judging = site.judging(1)
    judging.convention = site.convention
    subject: dict[str, Any] = {
        "kernel": use.kernel, "shape": dict(use.shape), "asked": dict(use.settings), "settings": dict(use.settings),
        "serves": list(serves), "seed": SEED,
    }  # fmt: skip
    try:
        recipe = site.recipe(use.kernel)
        subject["recipe_digest"] = recipe_digest(recipe.folder)
        resolved = recipe.resolve(use.extents, dict(use.settings))
        subject["settings"], subject["chosen"] = dict(resolved.settings), resolved.chosen
        before = known.get(_key_of(subject, site.backend_name))
        if before is not None:
            return before
        if not resolved.ok:
            first = next(finding for finding in resolved.findings if finding.severity == "error")
            judging.measure("legal", False, first.message)
            diagnosis = of_finding(first, kernel=use.kernel)
            return site.attempt(phase, "kernel", judging, subject, started=started, diagnosis=diagnosis, trial=trial)
        return _run(site, recipe, resolved, backend, judging, subject, started, phase, trial)
    except NotWritten:
        raise  # no room is no kernel's failure
    except NpuToolsError as error:
        judging.measure("legal", False, str(error))
        diagnosis = of_error(error, "recipe")
        return site.attempt(phase, "kernel", judging, subject, started=started, diagnosis=diagnosis, trial=trial)
    except Exception as error:  # a recipe's own code: whatever it does is told
        judging.measure("legal", False, f"{type(error).__name__}: {error}")
        diagnosis = Diagnosis("recipe", f"the recipe {use.kernel} failed: {type(error).__name__}: {error}", str(error))
        return site.attempt(phase, "kernel", judging, subject, started=started, diagnosis=diagnosis, trial=trial)


def _run(
    site: Site, recipe: Recipe, resolved: Resolved, backend: Backend, judging: Judging, subject: dict[str, Any],
    started: float, phase: int, trial: bool,
) -> Entry:  # fmt: skip
    digests: dict[str, Any] = {"recipe": subject["recipe_digest"]}
    prepared = prepare(recipe, resolved, backend)
    if isinstance(prepared, Refused):
        judging.measure("legal", False, prepared.first.message)
        diagnosis = of_finding(prepared.first, kernel=recipe.name)
        return site.attempt(
            phase, "kernel", judging, subject, started=started, diagnosis=diagnosis, digests=digests, trial=trial
        )
    judging.measure("legal", True)
    digests["program"] = prepared.bound.kernel.digest

    def broken(failure: Finding | None, said: str) -> Entry:
        judging.measure("signal", False, f"{said}: {failure.message}" if failure else said)
        diagnosis = of_finding(failure, kernel=recipe.name, refused=False) if failure else None
        return site.attempt(
            phase, "kernel", judging, subject, started=started, diagnosis=diagnosis, digests=digests, trial=trial
        )

    ran = prepared.bound.run(prepared.inputs)
    if not ran.ok or ran.failure is not None:
        return broken(ran.failure, "the run failed")
    tensors = prepared.tensors
    got = recipe.collect({prepared.arguments[at].name: array for at, array in ran.outputs.items()}, resolved)
    wanted = recipe.reference(tensors, resolved)
    tolerance = recipe.tolerance(resolved, "upstream")
    verdicts = {name: judge(got[name], reference, tolerance) for name, reference in wanted.items()}
    missed = {name: verdict for name, verdict in verdicts.items() if not verdict.passed}
    measured = None if missed else backend.measure([prepared.call])
    if isinstance(measured, Finding):
        return broken(measured, "it ran once, and not again and again")
    judging.measure("signal", all(bool(np.any(np.asarray(got[name], np.float32))) for name in wanted))
    judging.measure("within_tolerance", not missed, "; ".join(f"{n}: {v.reason}" for n, v in missed.items()))
    judging.measure("correlation", _smallest(verdicts))
    judging.measure("tiles_used", _tiles(resolved))
    diagnosis = None
    if missed:
        name, verdict = next(iter(missed.items()))
        heads = wrong_heads(np.asarray(got[name]), np.asarray(wanted[name]), int(subject["shape"].get("heads", 0)))
        if heads is not None:  # told by heads, not by which columns they fill: that is another pattern for every model
            verdict = replace(verdict, looks_like=(heads, *verdict.looks_like))
        diagnosis = of_verdict(verdict, kernel=recipe.name, output=name)
    place = site.place(phase, "kernel")
    for name, reference in wanted.items():
        save(place / f"{name}.npy", _kept(np.asarray(got[name], np.float32)))
        save(place / f"{name}_reference.npy", _kept(np.asarray(reference, np.float32)))
    errors = [v.metrics.mean_rel_l1 for v in verdicts.values() if v.metrics is not None]
    metrics = {
        "mean_rel_l1": max(errors, default=None), "outputs": {name: v.as_dict()["metrics"] for name, v in verdicts.items()},
        "findings": len(resolved.findings), **({"measured": measured.as_dict()} if measured else {}),
    }  # fmt: skip
    return site.attempt(
        phase, "kernel", judging, subject, started=started, diagnosis=diagnosis, tolerance=plain(asdict(tolerance)),
        metrics=metrics, digests=digests, results=[place], modelled_us=modelled(recipe, resolved, ran.modelled_us),
        measured_us=measured.medians_us[0] if measured else ran.measured_us, trial=trial,
    )  # fmt: skip


def modelled(recipe: Recipe, resolved: Resolved, counted: float | None) -> float | None:
    """The cost model's µs for a kernel; from what a run counted where nobody measured it."""
    listed = recipe.manifest.settings
    asked = {n: v for n, v in resolved.settings.items() if n not in listed or listed[n].source != "recipe"}
    try:
        return estimate_kernel(recipe.checked_as, resolved.extents, asked).modelled_us
    except NpuToolsError:
        return counted


def _smallest(verdicts: dict[str, Verdict]) -> Value:
    found = [v.metrics.cosine for v in verdicts.values() if v.metrics is not None and not np.isnan(v.metrics.cosine)]
    return float(min(found)) if found else None


def _tiles(resolved: Resolved) -> float:
    """Compute tiles, as far as the settings tell."""
    said = resolved.settings
    pairs = (("herd_m", "herd_n"), ("herd_x", "herd_y"), ("num_q_tiles", "num_cascade_stages"), ("columns", "rows"))
    for one, other in pairs:
        if one in said:
            tiles = int(said[one]) * int(said.get(other) or 1)
            return float(tiles * int(said.get("heads_per_unroll") or 1))
    return 1.0


def _kept(array: Any) -> Any:
    step = max(1, -(-array.nbytes // WHOLE_BYTES))
    return array if step == 1 else array.reshape(-1)[::step]


def _key(entry: Entry) -> str:
    return _key_of(entry.body["subject"], str(entry.body.get("backend")))


def _key_of(subject: dict[str, Any], backend: str) -> str:
    names = ("kernel", "shape", "settings", "recipe_digest", "seed")
    return repr(
        [
            *(
                sorted(plain(subject.get(n)).items()) if isinstance(subject.get(n), dict) else subject.get(n)
                for n in names
            ),
            backend,
        ]
    )
