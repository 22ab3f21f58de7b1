"""`herdbook doctor --first-run`: the first hour on silicon, step by step, ending in a report that can be sent back.

1. the machine: every line of the doctor's that is in the way      2. a vector addition, gated
3. one GEMM, gated, and beside the emulator                         4. that GEMM timed, beside the published row
5. a report, with names, paths, hosts and secrets taken out

A step that fails ends the walk: what comes after it would say nothing. The report is written all the same; a failed first
hour is what we most want to see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from npu_tools.backends import Backend, EmulatorBackend, KernelRun, Refused
from npu_tools.backends.xrt import Machine, Patience, Toolchain, XrtBackend, lesson_of, probe
from npu_tools.backends.xrt.checklist import Line, checklist
from npu_tools.backends.xrt.environment import record
from npu_tools.backends.xrt.profile import ITERATIONS, WARM_UP, judge_run, profile_recipe
from npu_tools.backends.xrt.recovery import look_after
from npu_tools.check.measured import gemm_row
from npu_tools.errors import NpuToolsError
from npu_tools.findings import Finding
from npu_tools.recipes import Recipe, Resolved, recipe

ADD, GEMM = "65536", "512x512x512"
"""Shapes that run in well under a millisecond; the GEMM is one of upstream's measured ones."""
FAR = 2.0
"""A time that differs by more than this factor from the published one is worth a look."""

State = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the walk. `details` goes into the report."""

    name: str
    state: State
    text: str
    fix: str = ""
    lesson: str = ""
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Walk:
    """What the walk needs: recipes, tools, a place for artefacts, and how patient it is."""

    kernels: Path
    toolchain: Toolchain
    cache: Path
    device: str = "npu2"
    patience: Patience = field(default_factory=Patience)
    add: str = ADD
    gemm: str = GEMM
    warm_up: int = WARM_UP
    iterations: int = ITERATIONS


def walk_through(walk: Walk, tell: Callable[[Step], None]) -> dict[str, Any]:
    """Do the steps in order, telling each as it ends; the whole walk as a report (not redacted)."""
    done: list[Step] = []

    def ended(step: Step) -> bool:
        done.append(step)
        tell(step)
        return step.state != "fail"

    machine = probe(walk.toolchain)
    lines = checklist(walk.toolchain, machine=machine, wanted=True, cache=walk.cache)
    if ended(_machine(lines, machine, walk)):
        with XrtBackend(
            walk.toolchain, cache=walk.cache, device=walk.device, patience=walk.patience, machine=machine
        ) as backend:
            for step in (_addition, _gemm, _timed):
                if not ended(_guarded(step, backend, walk)):
                    break
    environment = record(walk.toolchain, machine=machine).as_dict()
    return {
        "ok": all(step.state != "fail" for step in done) and len(done) == 4,
        "steps": [asdict(step) for step in done],
        "environment": environment,
        "checklist": [asdict(line) for line in lines],
        "machine": machine.as_dict(),
        "kernel_log": list(look_after(walk.toolchain).kernel_log) if done[-1].state == "fail" else [],
    }


def write_report(report: Mapping[str, Any], path: Path, version: str) -> dict[str, int]:
    """The report as JSON, redacted whole; how often what was taken out."""
    from kb.redact import redact_value

    removed: dict[str, int] = {}
    content = redact_value({"herdbook": version, **_plain(report)}, removed)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return removed


def _machine(lines: Sequence[Line], machine: Machine, walk: Walk) -> Step:
    bad = [line for line in lines if line.state == "fail"]
    if bad:
        text = "; ".join(f"{line.name}: {line.text}" for line in bad[:4])
        return Step("machine", "fail", text, bad[0].fix, bad[0].lesson)
    if machine.target != walk.device:
        text = f"this machine has {machine.target}, the walk is for {walk.device}"
        return Step("machine", "fail", text, f"herdbook doctor --first-run --device {machine.target}")
    minded = [line.name for line in lines if line.state == "warn"]
    npu = machine.npu
    text = f"{npu.name or npu.product} ({machine.target})" if npu is not None else ""
    return Step("machine", "warn" if minded else "pass", text + (f"; mind: {', '.join(minded)}" if minded else ""))


def _addition(backend: XrtBackend, walk: Walk) -> Step:
    kernel = recipe(walk.kernels, "eltwise_add")
    resolved = kernel.resolve(walk.add, device=walk.device)
    run, verdict = _run(backend, kernel, resolved)
    return _judged("vector addition", f"{walk.add} elements", run, verdict)


def _gemm(backend: XrtBackend, walk: Walk) -> Step:
    kernel = recipe(walk.kernels, "gemm")
    resolved = kernel.resolve(walk.gemm, device=walk.device)
    run, verdict = _run(backend, kernel, resolved)
    step = _judged("GEMM", walk.gemm, run, verdict)
    if step.state == "fail" or not isinstance(run, KernelRun):
        return step
    emulated, _ = _run(EmulatorBackend(device=walk.device), kernel, resolved)
    if not isinstance(emulated, KernelRun) or not emulated.ok:
        return Step(step.name, "warn", step.text + "; the emulator did not run it", details=step.details)
    theirs = next(iter(emulated.outputs.values())).astype(np.float64)
    ours = next(iter(run.outputs.values())).astype(np.float64)
    scale = float(np.abs(theirs).mean()) or 1.0
    apart = float(np.abs(ours - theirs).mean()) / scale
    same = float((ours == theirs).mean())
    text = f"{step.text}; {same:.1%} of the elements equal the emulator's bit for bit, mean difference {apart:.1e}"
    details = {**step.details, "equal_to_emulator": same, "mean_rel_l1_to_emulator": apart}
    return Step(step.name, step.state, text, details=details)


def _timed(backend: XrtBackend, walk: Walk) -> Step:
    kernel = recipe(walk.kernels, "gemm")
    timed = profile_recipe(backend, kernel, walk.gemm, warm_up=walk.warm_up, iterations=walk.iterations)
    details = timed.as_dict()
    if not timed.passed or timed.median_us is None or timed.resolved is None:
        failed = next((one for one in timed.findings if one.severity == "error"), None)
        return Step("timing", "fail", timed.reason, *_help(failed), details=details)
    m, k, n = timed.resolved.shape.values()
    reached = 2 * m * k * n / timed.median_us / 1000
    settings = timed.resolved.settings
    row = gemm_row(m, k, n, str(settings.get("output")), str(settings.get("precision")))
    text = f"{timed.median_us:.0f} µs = {reached:.0f} GFLOP/s (median of {len(timed.times_us)}, after {timed.warm_up})"
    if row is None or row.gflops is None:
        return Step("timing", "pass", f"{text}; nobody published this shape", details=details)
    ratio = reached / row.gflops
    text += f"; published {row.gflops:.0f} GFLOP/s for {row.method}, here {ratio:.2f} of it"
    details |= {"gflops": reached, "published_gflops": row.gflops, "ratio": ratio}
    if timed.noisy or not 1 / FAR <= ratio <= FAR:
        fix = "set the power mode to turbo and the ACPI profile to performance, close other programs, and run it again"
        return Step("timing", "warn", text, fix, "turbo-pmode-decode-speed" if ratio < 1 else "", details)
    return Step("timing", "pass", text, details=details)


def _run(backend: Backend, kernel: Recipe, resolved: Resolved) -> tuple[KernelRun | Refused, dict[str, Any]]:
    """One run of a recipe and its verdicts by output; no verdicts where it did not run."""
    arguments = kernel.arguments(resolved)
    at = {one.name: position for position, one in enumerate(arguments)}
    outputs = tuple(at[one.name] for one in arguments if one.role == "output")
    loaded = backend.load(
        kernel.program(resolved), name=kernel.name, options=kernel.compile_options(resolved), outputs=outputs
    )
    if isinstance(loaded, Refused):
        return loaded, {}
    tensors = kernel.inputs(resolved)
    arranged = kernel.arrange(tensors, resolved)
    given = {
        role: {at[one.name]: arranged[one.name] for one in arguments if one.role == role}
        for role in ("static", "input")
    }
    run = loaded.bind(given["static"]).run(given["input"])
    return run, dict(judge_run(kernel, resolved, tensors, run)) if run.ok else {}


def _judged(name: str, what: str, run: KernelRun | Refused, verdicts: Mapping[str, Any]) -> Step:
    if isinstance(run, Refused):
        return Step(name, "fail", str(run), *_help(run.first), details={"findings": _findings(run.findings)})
    details: dict[str, Any] = {
        "findings": _findings(run.findings),
        "measured_us": run.measured_us,
        "verdicts": {output: verdict.as_dict() for output, verdict in verdicts.items()},
    }
    if not run.ok:
        failed = run.failure
        text = f"{failed.code}: {failed.message}" if failed is not None else "the run failed"
        return Step(name, "fail", text, *_help(failed), details=details)
    missed = [f"{output}: {verdict.reason}" for output, verdict in verdicts.items() if not verdict.passed]
    if missed:
        warned = next((one for one in run.findings if lesson_of(one.code)), None)
        fix = "look at the Peano release and the linked objects first; the report has where and how it differs"
        return Step(name, "fail", "; ".join(missed), fix, (warned and lesson_of(warned.code)) or "", details)
    return Step(name, "pass", f"{what}: every element within tolerance", details=details)


def _guarded(step: Callable[[XrtBackend, Walk], Step], backend: XrtBackend, walk: Walk) -> Step:
    """A step whose request itself is unusable is a failed step, not the end of the report."""
    try:
        return step(backend, walk)
    except NpuToolsError as error:
        return Step(step.__name__.strip("_"), "fail", str(error))


def _help(finding: Finding | None) -> tuple[str, str]:
    """Fix and lesson of a finding."""
    if finding is None:
        return "", ""
    return finding.remedy or "", lesson_of(finding.code) or ""


def _findings(found: Sequence[Finding]) -> list[dict[str, Any]]:
    return [one.as_dict() for one in found]


def _plain(report: Mapping[str, Any]) -> dict[str, Any]:
    """JSON's own kinds, whatever numpy left in it."""
    return json.loads(json.dumps(report, default=lambda value: value.item() if hasattr(value, "item") else str(value)))
