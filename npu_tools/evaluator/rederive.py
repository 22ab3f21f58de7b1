"""Doing it again: kernels on fresh inputs, in worker processes, judged here by the shipped references.

Inputs and references are made in this process from shipped recipes alone; what a deployment changed runs elsewhere and
hands back files.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npu_tools.arrays import read_arrays, write_arrays
from npu_tools.errors import NpuToolsError
from npu_tools.evaluator.reasons import Reason
from npu_tools.gate import judge
from npu_tools.process import run_child
from npu_tools.recipes import Recipe, Resolved, recipe

Array = NDArray[Any]
TAIL = 600
AT_ONCE = 8
"""Kernels of shipped recipes a worker process does before the time is looked at."""
BLOCK_FLOAT = ("gemm", "flash_attention")
"""Kernels whose products go through the matrix unit's block floats: their error against FP32 cannot be small."""
LEAST_BLOCK_ERROR = 1e-3
"""mean_rel_L1 under which no BFP16 product stays: published errors are 9e-3 and more."""
MOST_CONSTANTS = 256
"""Numbers in one dense constant of a program; shipped designs print none over a few dozen."""


@dataclass(frozen=True, slots=True)
class KernelClaim:
    """A kernel as the deployment runs it."""

    kernel: str
    shape: Mapping[str, int]
    settings: Mapping[str, Any]
    evidence: str

    @property
    def title(self) -> str:
        """How the report names it."""
        return f"{self.kernel} {'x'.join(str(size) for size in self.shape.values())}"


@dataclass(slots=True)
class Checked:
    """What was done again, for the report."""

    kernels: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])
    errors: dict[str, float] = field(default_factory=dict[str, float])
    notes: list[str] = field(default_factory=list[str])


def work_apart(groups: Sequence[Sequence[Mapping[str, Any]]], place: Path, timeout_s: float) -> list[dict[str, Any]]:
    """The answers of several worker processes at once, a group of jobs each, in the order of the jobs."""
    stop = threading.Event()
    with ThreadPoolExecutor(len(groups)) as pool:
        try:
            waiting = [
                pool.submit(work, group, place / f"group_{at}", timeout_s, cancelled=stop.is_set)
                for at, group in enumerate(groups)
            ]
            return [answer for one in waiting for answer in one.result()]
        finally:
            stop.set()  # an interrupt ends them all


def work(
    jobs: Sequence[Mapping[str, Any]], place: Path, timeout_s: float, *, cancelled: Callable[[], bool] | None = None
) -> list[dict[str, Any]]:
    """The answers of a worker process, one a job; a job it never came to says why."""
    place.mkdir(parents=True, exist_ok=True)
    asked, answered, log = place / "asked.json", place / "answered.json", place / "log"
    asked.write_text(json.dumps({"jobs": list(jobs)}), encoding="utf-8")
    answered.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "npu_tools.evaluator.worker", str(asked), str(answered)]
    done = run_child(command, timeout_s=timeout_s, log=log, cancelled=cancelled)
    ended = f"it took over {timeout_s:.0f} s" if done.state == "timeout" else ""
    if done.state not in ("done", "timeout"):
        ended = f"its process ended with {done.code}"
    try:
        answers: list[dict[str, Any]] = json.loads(answered.read_text(encoding="utf-8"))["answers"]
    except (OSError, ValueError, KeyError):
        answers = []
    lost = {"ok": False, "lost": True, "reason": f"{ended or 'no answer'}; {done.text.strip()[-TAIL:]}".rstrip("; ")}
    return [*answers, *[lost] * (len(jobs) - len(answers))]


def audit_kernels(
    claims: Sequence[KernelClaim],
    shipped: Path,
    together: Path,
    changed: Sequence[str],
    place: Path,
    *,
    seed: int,
    budget_s: float,
    checked: Checked,
) -> Iterator[Reason]:
    """Kernels on fresh inputs: every recipe once, then as many of the rest as the time allows, changed ones first."""
    started = time.monotonic()
    order = sorted(claims, key=lambda one: (one.kernel not in changed, _size(one)))
    first: dict[str, KernelClaim] = {}
    for one in order:
        first.setdefault(one.kernel, one)
    waiting = [*first.values(), *[one for one in order if first[one.kernel] is not one]]
    plain: list[tuple[KernelClaim, Prepared]] = []
    for number, one in enumerate(waiting):
        try:
            prepared = _prepared(one, shipped, together, place / f"kernel_{number}", seed, changed)
        except NpuToolsError as error:
            text = f"{one.title} cannot be set up from the shipped recipe: {error}"
            yield Reason("kernel_fails", text, one.evidence)
            continue
        if prepared.changed:
            jobs = [prepared.job, {**prepared.job, "kind": "host", "seed": seed}]
            answers = work(jobs, prepared.place, 900)
            yield from _kernel(one, prepared, answers, True, checked)
        else:
            plain.append((one, prepared))
    for at in range(0, len(plain), AT_ONCE):
        piece = plain[at : at + AT_ONCE]
        late = time.monotonic() - started > budget_s
        needed = [pair for pair in piece if first[pair[0].kernel] is pair[0]] if late else piece
        checked.left += [pair[0].title for pair in piece if pair not in needed]
        answers = work([prepared.job for _, prepared in needed], place / f"together_{at}", 1800) if needed else []
        for (one, prepared), answer in zip(needed, answers, strict=True):
            yield from _kernel(one, prepared, [answer], False, checked)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A kernel's inputs on disk, and the job that runs it on them."""

    found: Recipe
    resolved: Resolved
    runs: list[tuple[str, str]]
    seeds: list[int]
    job: dict[str, Any]
    place: Path
    changed: bool
    """Whether it, or a kernel it is built from, is not the shipped one."""


def _size(one: KernelClaim) -> int:
    return int(np.prod([float(size) for size in one.shape.values()]))


def _prepared(
    one: KernelClaim, shipped: Path, together: Path, place: Path, seed: int, changed: Sequence[str]
) -> Prepared:
    found = recipe(shipped, one.kernel)
    resolved = found.resolve(one.shape, one.settings)
    touched = one.kernel in changed or any(part.kernel in changed for part in resolved.parts)
    runs, seeds = _inputs(found, resolved, place, seed, 2 if touched else 1)
    runs.append((runs[0][0], str(place / "again.npz")))
    job = {
        "kind": "kernel", "kernels": str(together), "kernel": one.kernel, "shape": dict(one.shape),
        "settings": dict(one.settings), "runs": runs, "timeout_s": 600.0,
    }  # fmt: skip
    return Prepared(found, resolved, runs, seeds, job, place, touched)


def _kernel(
    one: KernelClaim, prepared: Prepared, answers: Sequence[Mapping[str, Any]], changed: bool, checked: Checked
) -> Iterator[Reason]:
    answer = answers[0]
    checked.kernels.append(one.title)
    if not answer["ok"]:
        code = "verify_only" if changed else "kernel_fails"
        yield Reason(code, f"{one.title} does not run on fresh inputs: {answer['reason']}", one.evidence)
        return
    if answer["numbers"] > MOST_CONSTANTS:
        text = f"the program of {one.title} carries a constant of {answer['numbers']} numbers"
        yield Reason("recipe_embeds_data", text, f"recipes/{one.kernel}/design.py")
    yield from _judged(one, prepared.found, prepared.resolved, prepared.runs, prepared.seeds, changed, checked)
    if changed and answers[1]["ok"]:
        told = "" if answers[1]["zero"] else "makes something of outputs that are all zero"
        told = told or ("" if answers[1]["steady"] else "makes other things of the same outputs after other inputs")
        if told:
            yield Reason("host_computes", f"the host's part of {one.kernel} {told}", f"recipes/{one.kernel}/host.py")


def _inputs(
    found: Recipe, resolved: Resolved, place: Path, seed: int, count: int
) -> tuple[list[tuple[str, str]], list[int]]:
    place.mkdir(parents=True, exist_ok=True)
    runs: list[tuple[str, str]] = []
    seeds = [seed + 7919 * at for at in range(count)]
    for at, each in enumerate(seeds):
        write_arrays(place / f"in{at}.npz", found.inputs(resolved, each))
        runs.append((str(place / f"in{at}.npz"), str(place / f"out{at}.npz")))
    return runs, seeds


def _judged(
    one: KernelClaim,
    found: Recipe,
    resolved: Resolved,
    runs: Sequence[tuple[str, str]],
    seeds: Sequence[int],
    changed: bool,
    checked: Checked,
) -> Iterator[Reason]:
    dtypes = {tensor.name: tensor.dtype for tensor in found.tensors(resolved)}
    rule = found.tolerance(resolved)
    code = "verify_only" if changed else "kernel_fails"
    first: dict[str, Array] = {}
    for at, each in enumerate(seeds):
        expected = found.reference(found.inputs(resolved, each), resolved)
        outputs = read_arrays(Path(runs[at][1]))
        first = first or outputs
        for name, wanted in expected.items():
            if name not in outputs:
                yield Reason(code, f"{one.title} gives no {name}", one.evidence)
                continue
            verdict = judge(outputs[name], wanted, rule)
            if not verdict.passed:
                text = f"{one.title} misses its gate on fresh inputs (seed {each}): {name}: {verdict.reason}"
                yield Reason(code, text, one.evidence)
                return
            error = verdict.metrics.mean_rel_l1 if verdict.metrics else float("nan")
            checked.errors[one.title] = max(checked.errors.get(one.title, 0.0), error)
            told = unlike_the_device(one.kernel, outputs[name], wanted, dtypes[name])
            if told:
                yield Reason("not_aie_numerics", f"{one.title}: {name} {told}", one.evidence)
                return
    again = read_arrays(Path(runs[-1][1]))
    if any(not np.array_equal(_bytes(first[name]), _bytes(again[name])) for name in first):
        yield Reason("nondeterministic", f"{one.title}: two runs on the same inputs differ", one.evidence)


def unlike_the_device(kernel: str, output: Array, reference: Array, dtype: np.dtype[Any]) -> str:
    """How an output shows that no such device computed it, or nothing."""
    got, wanted = np.asarray(output).astype(np.float32), np.asarray(reference).astype(np.float32)
    if dtype.name == "bfloat16" and not np.array_equal(got.astype(dtype).astype(np.float32), got):
        return "holds values that are no bf16"
    if kernel.split("/")[0] in BLOCK_FLOAT:
        error = float(np.abs(got - wanted).mean() / max(float(np.abs(wanted).mean()), 1e-30))
        if error < LEAST_BLOCK_ERROR:
            return f"is within {error:.1e} of FP32; products of block floats leave {LEAST_BLOCK_ERROR:g} and more"
    return ""


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).view(np.uint8)
