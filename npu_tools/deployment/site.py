"""What a phase works with: the workspace, its state, the world, and a way to write an attempt down.

A phase is a function `run(site) -> Ended`. It judges what it measured by the criteria of phases.toml and records every
gate as an attempt; nothing it keeps in memory outlives it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np

from npu_tools.architectures import Dimensions, read_config
from npu_tools.backends.protocol import Backend
from npu_tools.deployment.criteria import Convention, Outcome, Phase, Value, phase
from npu_tools.deployment.diagnosis import Advise, Diagnosis, Symptom
from npu_tools.deployment.ledger import Entry, Ledger, plain
from npu_tools.deployment.metering import Meter, Options
from npu_tools.deployment.state import State
from npu_tools.deployment.workspace import Workspace, file_digest, make_folder, not_written, read_json, recipe_digest
from npu_tools.deployment.world import Array, Merged, RunnerLike, RunnerRequest, Settings, WeightsLike, World
from npu_tools.errors import NotWritten, RunStopped, UnusableInput
from npu_tools.findings import Finding
from npu_tools.recipes import Recipe, recipe

BUFFERS = "buffers/"
"""Prefix of settings about a kernel's buffers: static = positions written once."""


class Teller(Protocol):
    """Who hears of progress and may ask to stop."""

    def cancelled(self) -> bool:
        """Whether to stop."""
        ...

    def progress(self, done: float, total: float, note: str = "") -> None:
        """How far the work is."""
        ...


class Quiet:
    """Nobody listens."""

    def cancelled(self) -> bool:
        """Never."""
        return False

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Say nothing."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a phase ended."""

    passed: bool
    summary: str


@dataclass(slots=True)
class Judging:
    """Criteria of one attempt as they are measured."""

    phase: Phase
    convention: Convention
    head_dim: int
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    def measure(self, name: str, value: Value, said: str = "") -> Outcome:
        """Hold a value against a criterion."""
        made = self.phase.criterion(name).judge(value, head_dim=self.head_dim, convention=self.convention, said=said)
        self.outcomes.append(made)
        return made

    @property
    def missed(self) -> list[Outcome]:
        """Criteria that decide and do not hold."""
        return [outcome for outcome in self.outcomes if outcome.decides and not outcome.ok]


@dataclass(slots=True)
class Site:
    """One run of one deployment."""

    workspace: Workspace
    ledger: Ledger
    world: World
    shipped: Path
    advise: Advise
    teller: Teller
    _weights: WeightsLike | None = None
    _backend: Backend | None = None
    _meter: Meter | None = None
    _runner: tuple[str, RunnerLike] | None = None
    _prompts: dict[tuple[int, int], list[list[int]]] = field(default_factory=dict[tuple[int, int], list[list[int]]])

    @property
    def state(self) -> State:
        """What the ledger tells now."""
        return State.of(self.ledger.entries())

    @property
    def head(self) -> Mapping[str, Any]:
        """What the deployment was opened with."""
        return self.state.head

    @property
    def convention(self) -> Convention:
        """By whose criteria gates are decided."""
        return cast("Convention", self.head.get("convention", "head"))

    @property
    def seq_len(self) -> int:
        """Tokens a prompt is padded to."""
        return int(self.head["seq_len"])

    @property
    def source(self) -> str:
        """Where the weights are."""
        return str(self.head["weights"])

    @property
    def backend_name(self) -> str:
        """emulator or xrt."""
        return str(self.head["backend"])

    def config(self) -> dict[str, Any]:
        """The model's config.

        Raises:
            UnusableInput: config.json is not what the deployment was opened with.
        """
        try:
            config = read_json(self.workspace.config)
        except UnusableInput as error:
            raise UnusableInput(f"{error}; put back the config this deployment was opened with") from None
        if config_digest(config) != self.head["config_digest"]:
            raise UnusableInput(
                f"{self.workspace.config} was changed after the deployment was opened: start it again with the new "
                "config (into a new workspace once a phase has passed), or put the old file back"
            )
        return config

    def dims(self) -> Dimensions:
        """The model's dimensions.

        Raises:
            UnusableInput: this config cannot run; phase 0 says why.
        """
        found = read_config(self.config(), name=str(self.head["model"]))
        if isinstance(found, Finding):
            raise UnusableInput(found.message)
        return found

    def kernels(self) -> Path:
        """The recipes as this deployment has them."""
        return self.workspace.kernels(self.shipped)

    def recipe(self, name: str) -> Recipe:
        """A recipe as this deployment has it."""
        return recipe(self.kernels(), name)

    def recipe_digests(self, names: Sequence[str]) -> dict[str, str]:
        """What the recipes in use are identified by."""
        return {name: recipe_digest(self.recipe(name).folder) for name in sorted(set(names))}

    def weights(self) -> WeightsLike:
        """The weights, opened once."""
        if self._weights is None:
            self._weights = self.world.weights(self.source, self.config())
        return self._weights

    def settings(self) -> dict[str, dict[str, Any]]:
        """Settings of kernels, without those about buffers and options."""
        return {name: chosen for name, chosen in self.state.settings.items() if not name.startswith(BUFFERS)}

    def static(self) -> dict[str, tuple[int, ...]]:
        """Input positions marked as written once, by kernel."""
        found: dict[str, tuple[int, ...]] = {}
        for name, chosen in self.state.settings.items():
            if name.startswith(BUFFERS) and "static" in chosen:
                found[name.removeprefix(BUFFERS)] = positions(chosen["static"])
        return found

    def request(self, dims: Dimensions, *, fused: Merged, settings: Settings | None = None) -> RunnerRequest:
        """A model to load, with this deployment's settings."""
        chosen = self.settings() if settings is None else settings
        return RunnerRequest(dims, self.seq_len, fused, chosen, self.kernels())

    def backend(self) -> Backend:
        """The deployment's backend, opened once: it keeps what it compiled."""
        if self._backend is None:
            self._backend = self.world.backend(self.backend_name)
        return self._backend

    def meter(self, *, buffer_reuse: bool) -> Meter:
        """The backend, counted this way. There is one, so that compiled programs are kept."""
        if self._meter is None:
            self._meter = Meter(self.backend())
        self._meter.configure(Options(buffer_reuse, self.static()))
        return self._meter

    def runner(self, request: RunnerRequest, meter: Meter) -> RunnerLike:
        """The model loaded; the last one is kept, since binding weights takes longest."""
        self.pause()
        if self._runner is None or self._runner[0] != repr(request):
            self._runner = None  # free its weights before the next one takes as much
            self._runner = (repr(request), self.world.runner(request, self.weights(), meter))
        return self._runner[1]

    def prompts(self, count: int, longest: int) -> list[list[int]]:
        """Prompts of the token gate, encoded once: reading a tokenizer takes seconds."""
        if (count, longest) not in self._prompts:
            self._prompts[count, longest] = self.world.prompts(self.source, self.dims(), count, longest)
        return [list(prompt) for prompt in self._prompts[count, longest]]

    def processes(self, request: RunnerRequest, prompts: int) -> int:
        """How many processes may take prompts through this model at once; a device is one."""
        return self.world.processes(request, prompts) if self.backend_name == "emulator" else 1

    def pause(self) -> None:
        """A place where the work can be stopped.

        Raises:
            RunStopped: somebody asked for it.
        """
        if self.teller.cancelled():
            raise RunStopped("stopped by a cancel request; what is in the ledger stays, and the next run goes on there")

    def judging(self, number: int, head_dim: int = 64) -> Judging:
        """Criteria of a phase, to be measured."""
        return Judging(phase(number), self.convention, head_dim)

    def place(self, number: int, gate: str) -> Path:
        """A folder for the results of the next attempt of a gate: failed ones stay."""
        count = sum(entry.body.get("gate") == gate for entry in self.state.attempts if entry.phase == number) + 1
        folder = self.workspace.results(number) / f"{gate}_{count:02d}"
        while folder.exists() and any(folder.iterdir()):  # left by a killed run: nothing is overwritten
            count += 1
            folder = self.workspace.results(number) / f"{gate}_{count:02d}"
        make_folder(folder)
        return folder

    def attempt(
        self,
        number: int,
        gate: str,
        judging: Judging,
        subject: Mapping[str, Any],
        *,
        started: float,
        diagnosis: Diagnosis | None = None,
        tolerance: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        digests: Mapping[str, Any] | None = None,
        results: Sequence[Path] = (),
        modelled_us: float | None = None,
        measured_us: float | None = None,
        trial: bool = False,
    ) -> Entry:
        """Write a gate's outcome down, with the lessons and skills that fit a failure.

        `trial` is an attempt the machine makes of itself and takes back when it fails.
        """
        missed = judging.missed
        passed = not missed
        lessons: list[dict[str, Any]] = []
        skills: list[str] = []
        if not passed:
            if diagnosis is None:
                first = missed[0]
                said = f"{first.name} is {_shown(first.value)}, it must be {first.bound}" + (
                    f": {first.said}" if first.said else ""
                )
                diagnosis = Diagnosis(first.name, said, text=f"{judging.phase.title}: {said}")
            symptom = Symptom(
                diagnosis.text, diagnosis.code, number, diagnosis.kernel, str(self.head.get("model"))
            )  # fmt: skip
            lessons = [
                {"id": each.id, "title": each.title, "confidence": round(each.confidence, 3)}
                for each in (self.advise(symptom) if diagnosis.text else ())
            ]
            skills = [*diagnosis.skills, judging.phase.skill]
        previous = [
            e for e in self.state.attempts if e.body.get("gate") == gate and _same(e.body.get("subject"), subject)
        ]
        body: dict[str, Any] = {
            "gate": gate,
            "number": len(previous) + 1,
            "subject": subject,
            "passed": passed,
            "trial": trial,
            "criteria": [outcome.as_dict() for outcome in judging.outcomes],
            "convention": self.convention,
            "tolerance": tolerance,
            "metrics": metrics or {},
            "diagnosis": None if passed or diagnosis is None else diagnosis.as_dict(),
            "fixed_when": [outcome.fixed for outcome in missed],
            "lessons": [each["id"] for each in lessons],
            "lesson_titles": lessons,
            "skills": skills,
            "backend": self.backend_name,
            "digests": {**(digests or {}), "results": self.digests(results)},
            "wall_s": round(time.monotonic() - started, 3),
        }
        if modelled_us is not None:
            body["modelled_us"] = round(modelled_us, 3)
        if measured_us is not None:
            body["measured_us"] = round(measured_us, 3)
        return self.ledger.append("attempt", number, body)

    def digests(self, results: Sequence[Path]) -> dict[str, str]:
        """sha256 of result files by their path in the workspace; folders are walked."""
        found: dict[str, str] = {}
        for given in results:
            for path in sorted(given.rglob("*")) if given.is_dir() else [given]:
                if path.is_file():
                    found[path.relative_to(self.workspace.folder).as_posix()] = file_digest(path)
        return found


def save(path: Path, array: Array) -> Path:
    """Write an array whole or not at all.

    Raises:
        NotWritten: it cannot be.
    """
    make_folder(path.parent)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            np.save(file, np.asarray(array, np.float32))
        part.replace(path)
    except OSError as error:
        raise NotWritten(not_written(path, error)) from None
    return path


def config_digest(config: Mapping[str, Any]) -> str:
    """sha256 of a config, however it is spaced."""
    return hashlib.sha256(json.dumps(plain(config), sort_keys=True).encode()).hexdigest()


def positions(value: Any) -> tuple[int, ...]:
    """Argument positions as a setting has them: a number, or "0,2"."""
    try:
        return tuple(int(each) for each in str(value).replace(" ", "").split(",") if each)
    except ValueError:
        raise UnusableInput(f"static must be argument positions as in '0' or '0,2', not {str(value)[:40]!r}") from None


def with_layers(dims: Dimensions, layers: int) -> Dimensions:
    """The model cut after so many layers."""
    return replace(dims, layers=min(layers, dims.layers))


def _same(one: Any, other: Mapping[str, Any]) -> bool:
    return plain(one) == plain(other)


def _shown(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


Timing = Literal["modelled", "measured"]
