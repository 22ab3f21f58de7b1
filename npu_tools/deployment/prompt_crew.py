"""Child processes that take the prompts of a token gate between them, each with the model loaded.

    with Crew(job, processes) as crew:
        answer = ask_the_oracle()            # beside
        crew.wait(pause, progress)
        crew.runs, crew.failure, crew.left

A prompt's answer is complete on disk before the child goes on. A child that was lost (killed, out of memory) leaves
prompts behind, which `left` names: whoever asked runs them itself. The child's side is `work`; it ends by itself when
its parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from npu_tools.deployment.closeness import device_failure
from npu_tools.deployment.diagnosis import Diagnosis
from npu_tools.deployment.metering import Meter, Options
from npu_tools.deployment.prompt_runs import Earlier, PromptRun, run_prompt
from npu_tools.deployment.world import Array, RealWorld, RunnerRequest
from npu_tools.errors import NpuToolsError
from npu_tools.jobs.records import read_json, write_json
from npu_tools.process import ONE_THREAD, run_child

_THREADS = "".join(f"os.environ.setdefault('{name}', '1');" for name in ONE_THREAD)
START = f"import os, sys;{_THREADS}from npu_tools.deployment.prompt_crew import work; work(sys.argv[1])"
"""The child's first words: processes at once get one BLAS thread each, unless somebody said otherwise; with more they
take each other's cores (twice the time on two)."""
LOOK_EVERY_S = 0.2
TIMEOUT_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Job:
    """What every child is told. `tapped` is the stage whose arrays of the first prompt's prefill are wanted, by layer."""

    config: Mapping[str, Any]
    weights: str
    request: RunnerRequest
    options: Options
    prompts: Sequence[Sequence[int]]
    steps: int
    tapped: str | None
    inputs: str | None
    earlier: Sequence[Sequence[Earlier]]


@dataclass(slots=True)
class Crew:
    """The children of one gate."""

    job: Job
    processes: int
    runs: dict[int, PromptRun] = field(default_factory=dict[int, PromptRun])
    tapped: dict[int, Array] = field(default_factory=dict[int, Array])
    digests: dict[str, str] = field(default_factory=dict[str, str])
    failed: dict[int, Diagnosis] = field(default_factory=dict[int, Diagnosis])
    _place: tempfile.TemporaryDirectory[str] | None = None
    _threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Crew:
        self._place = tempfile.TemporaryDirectory(prefix="herdbook-prompts-", ignore_cleanup_errors=True)
        for number in range(self.processes):
            mine = list(range(len(self.job.prompts)))[number :: self.processes]
            folder = Path(self._place.name) / f"child_{number}"
            folder.mkdir()
            write_json(folder / "job.json", _told(self.job, mine))
            self._threads.append(threading.Thread(target=self._run, args=(folder, mine), daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        if self._place is not None:
            self._place.cleanup()

    @property
    def failure(self) -> Diagnosis | None:
        """Why the first prompt that failed did."""
        return self.failed[min(self.failed)] if self.failed else None

    @property
    def left(self) -> list[int]:
        """Prompts without an answer, up to the first that failed."""
        until = min(self.failed, default=len(self.job.prompts))
        return [number for number in range(until) if number not in self.runs]

    def wait(self, pause: Callable[[], None], progress: Callable[[float, float, str], None]) -> None:
        """Until all have an answer, or all before the first that failed."""
        whole = len(self.job.prompts) * self.job.steps
        while any(thread.is_alive() for thread in self._threads):
            pause()
            steps = [self._steps(folder) for folder in self._folders()]
            progress(sum(steps), whole, f"{len(steps)} processes")
            self._collect()
            if self.failed and not self.left:
                break
            self._threads[0].join(LOOK_EVERY_S)
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._collect()

    def _run(self, folder: Path, mine: Sequence[int]) -> None:
        command = [sys.executable, "-P", "-c", START, str(folder)]
        run_child(command, timeout_s=TIMEOUT_S, log=folder / "log", watch=lambda _: self._ended.is_set())

    def _folders(self) -> list[Path]:
        return [] if self._place is None else sorted(Path(self._place.name).glob("child_*"))

    def _steps(self, folder: Path) -> int:
        return int((read_json(folder / "progress.json") or {}).get("steps", 0))

    def _collect(self) -> None:
        """Take in what children have written since."""
        for folder in self._folders():
            for path in sorted(folder.glob("prompt_*.json")):
                number, told = int(path.stem.split("_")[1]), read_json(path)
                if number in self.runs or number in self.failed or told is None:
                    continue
                self.digests.update(told["digests"])
                if told.get("failed") is not None:
                    self.failed[number] = Diagnosis(**told["failed"])
                    continue
                with np.load(path.with_suffix(".npz")) as arrays:
                    self.runs[number] = PromptRun.of(arrays["rows"], told["run"])
                    layers = [name for name in arrays.files if name != "rows"]
                    self.tapped.update({int(name): arrays[name] for name in layers})


def _told(job: Job, mine: Sequence[int]) -> dict[str, Any]:
    request = job.request
    return {
        "config": dict(job.config), "weights": job.weights, "layers": request.dims.layers, "name": request.dims.name,
        "seq_len": request.seq_len, "fused": request.fused, "settings": request.settings,
        "kernels": str(request.kernels), "buffer_reuse": job.options.buffer_reuse, "steps": job.steps,
        "inputs": job.inputs, "tapped": job.tapped,
        "prompts": [
            {"number": n, "tokens": list(job.prompts[n]), "earlier": [asdict(one) for one in job.earlier[n]]}
            for n in mine
        ],
    }  # fmt: skip


def work(place: str) -> None:
    """The child's side: its prompts in turn, up to the first that fails."""
    from npu_tools.architectures import Dimensions, read_config
    from npu_tools.backends import EmulatorBackend

    folder = Path(place)
    told: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    parent = os.getppid()

    def alone() -> bool:
        return os.getppid() != parent

    dims = read_config(told["config"], name=told["name"])
    assert isinstance(dims, Dimensions)
    request = RunnerRequest(
        replace(dims, layers=told["layers"]), told["seq_len"], told["fused"], told["settings"], Path(told["kernels"])
    )
    world = RealWorld(request.kernels)
    meter = Meter(EmulatorBackend(cancelled=alone), Options(bool(told["buffer_reuse"])))
    done = 0

    def each(_: int) -> None:
        nonlocal done
        done += 1
        write_json(folder / "progress.json", {"steps": done})

    runner = world.runner(request, world.weights(told["weights"], told["config"]), meter)
    for one in told["prompts"]:
        number, seen = int(one["number"]), dict[str, Array]()

        def tap(layer: int | None, stage: str, array: Array, seen: dict[str, Array] = seen) -> None:
            if layer is not None and stage == told["tapped"]:
                seen[str(layer)] = np.asarray(array, np.float32).copy()

        answer: dict[str, Any] = {}
        try:
            run = run_prompt(
                runner, meter, one["tokens"], told["steps"], tap=tap if number == 0 else None, inputs=told["inputs"],
                earlier=[Earlier(**known) for known in one["earlier"]], each=each,
            )  # fmt: skip
        except NpuToolsError as error:
            if alone():
                return
            why = device_failure(meter) or Diagnosis("model", str(error), str(error))
            answer["failed"] = why.as_dict()
        else:
            with (folder / f"prompt_{number:02d}.npz").open("wb") as file:
                np.savez(file, allow_pickle=False, rows=run.rows, **seen)
            answer["run"] = run.figures()
        write_json(folder / f"prompt_{number:02d}.json", {**answer, "digests": meter.digests})
        if "failed" in answer:
            return
