"""The machine: opens a workspace, runs phases, takes the agent's moves. What it knows it reads from the ledger.

>>> machine = Machine(Workspace(folder), world, shipped)
>>> machine.open(Model("tiny", config, "random:7"), seq_len=64)
>>> machine.run().state
'finished'

A run goes from the next phase on until one fails, a person is asked something, or all have passed. Killed at any point,
the next run goes on from what the ledger has.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from npu_tools.architectures import read_config
from npu_tools.deployment.criteria import phase, phases
from npu_tools.deployment.diagnosis import Advise, Diagnosis, no_advice, of_error
from npu_tools.deployment.documents import write_documents
from npu_tools.deployment.ledger import Entry, Ledger, plain
from npu_tools.deployment.phases import PHASES
from npu_tools.deployment.site import BUFFERS, Ended, Quiet, Site, Teller, config_digest, positions
from npu_tools.deployment.state import Question, State, tools_version
from npu_tools.deployment.workspace import (
    MAX_RECIPE_BYTES,
    RECIPE_FILES,
    Workspace,
    file_digest,
    make_folder,
    read_json,
    write_json,
    write_text,
)
from npu_tools.deployment.world import RunnerRequest, World
from npu_tools.errors import NpuToolsError, RunStopped, UnusableInput
from npu_tools.findings import Finding
from npu_tools.recipes import recipe

Ask = Callable[[Question], str | None]
"""Asks a person; None where nobody is there to answer now."""
RunState = Literal["passed", "failed", "asked", "finished"]
Register = Callable[[Path], str | None]
"""Takes the kernel rows of a workspace into a registry of rows, each once; what went wrong, if anything did."""
CHECKPOINT_OPTIONS = ("go on", "run the phase again", "stop")


@dataclass(frozen=True, slots=True)
class Model:
    """What is deployed: a name, its config, and where the weights are."""

    name: str
    config: Mapping[str, Any]
    weights: str


@dataclass(frozen=True, slots=True)
class OpenOptions:
    """How it is deployed. `layers` cuts the model; `prompts` and `steps` make the gate smaller than upstream's 8 and 32,
    which the ledger says and the evaluator sees."""

    seq_len: int = 256
    backend: Literal["emulator", "xrt"] = "emulator"
    device: str = "npu2"
    convention: Literal["head", "paper"] = "head"
    layers: int | None = None
    prompts: int = 8
    steps: int = 32
    checkpoints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended: the phases that passed in it, and where it stopped."""

    state: RunState
    phase: int | None
    summary: str
    passed: tuple[int, ...]
    failures: tuple[Entry, ...] = ()
    question: Question | None = None
    warnings: tuple[str, ...] = field(default=())


@dataclass(slots=True)
class Machine:
    """One deployment. `advise` looks failures up in a memory, `ask` puts a checkpoint's question to a person, `register`
    is told of the workspace once phase 1 has ended."""

    workspace: Workspace
    world: World
    shipped: Path
    advise: Advise = no_advice
    ask: Ask = lambda _: None
    register: Register = lambda _: None
    teller: Teller = field(default_factory=Quiet)

    def open(self, model: Model, options: OpenOptions | None = None) -> Entry:
        """Open the workspace for a model; opening the same one again changes nothing.

        Raises:
            UnusableInput: another deployment is in it, or an option is none.
            WorkspaceBusy: a run is at work in it.
            LedgerBroken: its ledger was tampered with.
        """
        chosen = options or OpenOptions()
        config = _cut(dict(model.config), chosen.layers)
        if not self.workspace.ledger.exists():
            self.workspace.fresh(config)
        with self.workspace.working():
            ledger = Ledger.open(self.workspace.ledger)
            state = State.of(ledger.entries())
            body = _opening(model, config, chosen) | {"layers_of_model": model.config.get("num_hidden_layers")}
            if state.opened is not None:
                asked = {name: value for name, value in body.items() if name != "version"}
                if not state.contradicted(asked):  # the tools may be newer: the line says which opened it
                    return state.opened
                self._only_fresh(state, asked)
            write_json(self.workspace.config, config)
            make_folder(self.workspace.notes)
            entry = ledger.append("opened", None, body)
            self._write(ledger)
            return entry

    def run(self, *, first: int | None = None, last: int = 7) -> Ran:
        """Run phases from the next one (or `first`, even if it passed before) up to `last`.

        Raises:
            RunStopped: it was cancelled; the next run goes on from here.
            UnusableInput, LedgerBroken, WorkspaceBusy: the workspace cannot be worked in.
        """
        with self.workspace.working():
            ledger = self._opened()
            self.workspace.room()
            warnings = self._adopt(ledger)
            site = Site(self.workspace, ledger, self.world, self.shipped, self.advise, self.teller)
            site.config()  # edited by hand, it is told before anything is run or called finished
            if first is not None:
                self._needs(State.of(ledger.entries()), first)
                self._reopen(ledger, first, "asked to run it again")
            passed: list[int] = []
            registered = False
            while True:
                stop = self._checkpoint(ledger)
                if stop is not None:
                    return Ran("asked", stop.phase, stop.question, tuple(passed), question=stop, warnings=warnings)
                state = State.of(ledger.entries())
                number = state.next_phase() if first is None else first
                if number is None or number > last:
                    done = number is None
                    self._write(ledger)
                    said = "all phases have passed" if done else f"phases up to {last} have passed"
                    return Ran("finished" if done else "passed", number, said, tuple(passed), warnings=warnings)
                self._needs(state, number)
                ended = self._phase(site, number)
                warnings = (*warnings, *self._write(ledger))
                if number >= 1 and not registered:  # in the next run, if this one is killed right before
                    registered = True
                    said = self.register(self.workspace.folder)
                    warnings = (*warnings, said) if said else warnings
                if not ended.passed:
                    failures = [
                        e for e in site.state.attempts_of(number) if not e.body["passed"] and not e.body["trial"]
                    ]
                    return Ran("failed", number, ended.summary, tuple(passed), tuple(failures), warnings=warnings)
                passed.append(number)
                first = None
                if number in (state.head.get("checkpoints") or ()):
                    self._question(ledger, number, ended.summary)

    def set(self, key: str, values: Mapping[str, Any], *, why: str = "", by: str = "agent") -> list[Entry]:
        """Choose settings: key "gemm", "gemm 64x128x128", "prefill/q", or "buffers/rope" (static = positions). A value
        of None takes a setting back. Phases it may change are open again.

        Raises:
            UnusableInput: no such kernel or setting.
            WorkspaceBusy: a run is at work: its gates would vouch for settings they did not see.
        """
        self._opened()
        with self.workspace.working():
            return self._set(" ".join(key.split()), values, why, by)

    def _set(self, key: str, values: Mapping[str, Any], why: str, by: str) -> list[Entry]:
        ledger = self._opened()
        state = State.of(ledger.entries())
        self._known(key, values)
        made: list[Entry] = []
        for name, value in values.items():
            before = state.settings.get(key, {}).get(name)
            if before == value:
                continue
            body = {
                "subject": "setting",
                "key": f"{key}.{name}",
                "before": before,
                "after": value,
                "why": why,
                "by": by,
            }
            made.append(ledger.append("decision", state.next_phase(), body))
        if made:
            self._reopen(ledger, 2 if key.startswith(BUFFERS) else 1, f"{key} was set")
            self._write(ledger)
        return made

    def write_recipe(self, kernel: str, file: str, text: str | None, *, why: str = "", by: str = "agent") -> Entry:
        """Change a recipe's file for this deployment; None takes the change back.

        Raises:
            UnusableInput: no such recipe or file, reference.py, or text too long.
            WorkspaceBusy: a run is at work.
        """
        self._opened()
        with self.workspace.working():
            return self._write_recipe(kernel, file, text, why, by)

    def _write_recipe(self, kernel: str, file: str, text: str | None, why: str, by: str) -> Entry:
        ledger = self._opened()
        shipped = self._shipped(kernel)
        if file == "reference.py" or file not in RECIPE_FILES:
            why_not = "is what a kernel is judged by" if file == "reference.py" else "is no file of a recipe"
            raise UnusableInput(f"{file[:60]} {why_not}; change {', '.join(RECIPE_FILES)}")
        path = self.workspace.recipes / shipped / file
        before = file_digest(path) if path.is_file() else None
        if text is None:
            if before is None:
                raise UnusableInput(f"{shipped}/{file} is the shipped one: there is nothing to take back")
            path.unlink()
        else:
            if len(text.encode()) > MAX_RECIPE_BYTES:
                raise UnusableInput(f"{file} has over {MAX_RECIPE_BYTES} bytes")
            if file == "kernel.toml":
                _same_contract(shipped, self.shipped / shipped / file, text)
            write_text(path, text)
        after = file_digest(path) if text is not None else None
        body = {"subject": "recipe", "key": f"{shipped}/{file}", "before": before, "after": after, "why": why, "by": by}
        entry = ledger.append("decision", State.of(ledger.entries()).next_phase(), body)
        self._reopen(ledger, 1, f"the recipe {shipped} was changed")
        self._write(ledger)
        return entry

    def read_recipe(self, kernel: str, file: str) -> str:
        """A recipe's file as this deployment has it.

        Raises:
            UnusableInput: no such file.
        """
        name = self._shipped(kernel)
        for folder in (self.workspace.recipes, self.shipped):
            path = folder / name / file
            if path.parent == folder / name and path.is_file():
                return path.read_text(encoding="utf-8")
        files = ", ".join(sorted(path.name for path in (self.shipped / name).iterdir() if path.is_file()))
        raise UnusableInput(f"the recipe {name} has no file {file[:60]!r}; it has {files}")

    def note(self, text: str, *, about: int | None = None, kernel: str | None = None, by: str = "agent") -> Entry:
        """Write a note into the ledger and the documents; `about` names the failed attempt's line it explains.

        Raises:
            UnusableInput: an empty note, or a line there is not.
        """
        ledger = self._opened()
        if not text.strip():
            raise UnusableInput("a note needs a text")
        if len(text) > 20_000:
            raise UnusableInput(f"the note has {len(text)} characters, over 20000; write a file under notes/")
        if about is not None and not 1 <= about <= len(ledger.entries()):
            raise UnusableInput(f"the ledger has no line {about}; it has {len(ledger.entries())}")
        body: dict[str, Any] = {"text": text.strip(), "by": by}
        body |= {name: value for name, value in (("about", about), ("kernel", kernel)) if value is not None}
        entry = ledger.append("note", State.of(ledger.entries()).next_phase(), body)
        self._write(ledger)
        return entry

    def answer(self, answer: str, *, checkpoint: int | None = None, by: str = "person") -> Entry:
        """Answer an open question: the first one, or that of a line.

        Raises:
            UnusableInput: nothing is asked, or the answer is none of the options.
        """
        ledger = self._opened()
        asked = State.of(ledger.entries()).open_questions()
        question = next((q for q in asked if checkpoint in (None, q.seq)), None)
        if question is None:
            known = ", ".join(str(q.seq) for q in asked) or "none"
            raise UnusableInput(f"there is no open question {checkpoint or ''}; open are: {known}".replace("  ", " "))
        if question.options and answer not in question.options:
            raise UnusableInput(f"answer one of: {', '.join(question.options)}")
        entry = ledger.append(
            "answer",
            question.phase,
            {"checkpoint": question.seq, "question": question.question, "answer": answer, "by": by},
        )
        if answer == CHECKPOINT_OPTIONS[1]:
            self._reopen(ledger, question.phase, "asked at the checkpoint to run it again")
        self._write(ledger)
        return entry

    def state(self) -> State:
        """What the ledger tells.

        Raises:
            UnusableInput: nothing is deployed here.
            LedgerBroken: the ledger was tampered with.
        """
        return State.of(self._opened().entries())

    def _opened(self) -> Ledger:
        if not self.workspace.ledger.is_file():
            raise UnusableInput(f"there is no deployment in {self.workspace.folder}; start one with a model")
        ledger = Ledger.open(self.workspace.ledger)
        if State.of(ledger.entries()).opened is None:
            raise UnusableInput(f"the deployment in {self.workspace.folder} was never opened; start it with a model")
        return ledger

    def _phase(self, site: Site, number: int) -> Ended:
        site.ledger.append("phase", number, {"state": "started", "summary": ""})
        try:
            ended = PHASES[number](site)
        except RunStopped:
            raise
        except NpuToolsError as error:
            ended = self._broke(site, number, of_error(error))
        except MemoryError:
            ended = self._broke(
                site, number, Diagnosis("memory", "out of memory: take fewer layers or a shorter sequence")
            )
        except OSError as error:
            said = f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
            ended = self._broke(site, number, Diagnosis("files", said, said))
        except Exception as error:  # the ledger must tell how a phase ended, whatever happened
            last = traceback.format_exception_only(error)[-1].strip()
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{last} ({Path(where.filename).name}:{where.lineno})"
            ended = self._broke(site, number, Diagnosis("internal", f"the phase broke off: {said}", said))
        state = "passed" if ended.passed else "failed"
        last = site.ledger.append("phase", number, {"state": state, "summary": ended.summary})
        site.teller.progress(1, 1, f"phase {number} {state}; head of the ledger {last.hash}")
        return ended

    def _broke(self, site: Site, number: int, why: Diagnosis) -> Ended:
        import time

        judging = site.judging(number)
        judging.measure(judging.phase.criteria[0].name, None, why.message)
        judging.outcomes = [_deciding(outcome) for outcome in judging.outcomes]
        site.attempt(number, judging.phase.name, judging, {"phase": number}, started=time.monotonic(), diagnosis=why)
        return Ended(False, why.message)

    def _needs(self, state: State, number: int) -> None:
        missing = [each for each in phase(number).needs if state.status(each) != "passed"]
        if missing:
            raise UnusableInput(
                f"phase {number} needs phase {', '.join(map(str, missing))} first; run without a phase to go on in order"
            )

    def _reopen(self, ledger: Ledger, first: int, why: str) -> None:
        """Phases from `first` on that passed, or failed, begin anew."""
        state = State.of(ledger.entries())
        for each in phases():
            depends = each.number >= first
            if depends and state.status(each.number) in ("passed", "failed", "interrupted"):
                ledger.append("phase", each.number, {"state": "reopened", "summary": why})

    def _checkpoint(self, ledger: Ledger) -> Question | None:
        """The first open question, once a person had the chance to answer it."""
        asked = State.of(ledger.entries()).open_questions()
        for question in asked:
            said = self.ask(question)
            if said is None:
                return question
            self.answer(said, checkpoint=question.seq)
        state = State.of(ledger.entries())
        stopped = [q for q in state.questions if q.answer == CHECKPOINT_OPTIONS[2]]
        if stopped and asked and asked[-1].seq == stopped[-1].seq:
            return stopped[-1]
        return None

    def _question(self, ledger: Ledger, number: int, summary: str) -> None:
        text = f"Phase {number} passed: {summary}. Go on?"
        ledger.append("checkpoint", number, {"question": text, "options": list(CHECKPOINT_OPTIONS), "answer": None})

    def _only_fresh(self, state: State, body: Mapping[str, Any]) -> None:
        if any(state.status(each.number) == "passed" for each in phases()):
            raise UnusableInput(
                f"{self.workspace.folder}: {state.contradicted(body)}; leave that out to go on with it, or take a new workspace"
            )

    def _adopt(self, ledger: Ledger) -> tuple[str, ...]:
        """Take over what was changed in the workspace by hand: recipe files become decisions, settings are put back."""
        state = State.of(ledger.entries())
        found = self.workspace.overrides()
        warnings: list[str] = []
        changed = False
        for kernel in sorted({*found, *state.recipes}):
            now, known = found.get(kernel, {}), state.recipes.get(kernel, {})
            for file in sorted({*now, *known}):
                if now.get(file) == known.get(file):
                    continue
                if file == "reference.py" and (self.shipped / kernel / file).is_file():
                    raise UnusableInput(
                        f"{self.workspace.recipes / kernel / file} replaces the reference {kernel} is judged by; remove it"
                    )
                body = {
                    "subject": "recipe", "key": f"{kernel}/{file}", "before": known.get(file), "after": now.get(file),
                    "why": "found changed in the workspace", "by": "agent",
                }  # fmt: skip
                ledger.append("decision", state.next_phase(), body)
                warnings.append(
                    f"recipes/{kernel}/{file} was changed in the workspace; recorded, phases 1 on are open again"
                )
                changed = True
        if changed:
            self._reopen(ledger, 1, "recipe files were changed in the workspace")
        if self.workspace.settings.is_file():
            try:
                same = read_json(self.workspace.settings) == plain(state.settings)
            except UnusableInput:
                same = False
            if not same:
                said = "settings.json was changed by hand and is written anew from the ledger; choose settings with the tool"
                ledger.append("note", None, {"text": said, "by": "machine"})
                warnings.append(said)
        return tuple(warnings)

    def _write(self, ledger: Ledger) -> tuple[str, ...]:
        """Documents and settings.json from the ledger; what cannot be written is said and stops nothing."""
        entries = ledger.entries()
        try:
            write_json(self.workspace.settings, State.of(entries).settings)
            write_documents(self.workspace, entries)
        except UnusableInput as error:
            return (str(error),)
        return ()

    def _known(self, key: str, values: Mapping[str, Any]) -> None:
        """Refuse keys that would change nothing."""
        if not values:
            raise UnusableInput("give at least one setting")
        if key.startswith(BUFFERS):
            self._shipped(key.removeprefix(BUFFERS))
            if set(values) != {"static"}:
                raise UnusableInput("a buffer has one setting: static, the positions of arguments written once")
            if values["static"] is not None:
                positions(values["static"])
            return
        if "/" in key:
            steps = self._steps()
            if key not in steps:
                raise UnusableInput(
                    f"there is no step {key[:80]!r}; write KERNEL, 'KERNEL SHAPE', buffers/KERNEL, or one of: "
                    + ", ".join(sorted(steps))
                )
            return
        kernel, _, extents = key.partition(" ")
        name = self._shipped(kernel)
        found = recipe(self.workspace.kernels(self.shipped), name)
        if name != kernel:
            raise UnusableInput(f"the recipe is called {name}: use that name")
        if extents:
            found.extents(extents)
        known = set(found.manifest.settings)
        if found.manifest.settings and not known >= set(values):
            raise UnusableInput(
                f"{name} has no setting {', '.join(sorted(set(values) - known))}; it has {', '.join(sorted(known))}"
            )

    def _steps(self) -> set[str]:
        """The plan's steps by phase, merged and not."""
        head = self.state().head
        dims = read_config(read_json(self.workspace.config))
        if isinstance(dims, Finding):
            raise UnusableInput(f"{dims.message}: it has no plan to set a step of")
        found: set[str] = set()
        for merged in (False, True):
            plan = self.world.plan(RunnerRequest(dims, int(head["seq_len"]), merged, {}, self.shipped))
            found |= {f"{use.phase}/{use.name}" for use in (*plan.prefill, *plan.decode, *plan.head)}
        return found

    def _shipped(self, kernel: str) -> str:
        return recipe(self.shipped, kernel).name


def _opening(model: Model, config: Mapping[str, Any], options: OpenOptions) -> dict[str, Any]:
    if options.seq_len < 1 or options.prompts < 1 or options.steps < 1:
        raise UnusableInput("seq_len, prompts and steps count from 1")
    return {
        "model": model.name, "config_digest": config_digest(config), "weights": model.weights, "seq_len": options.seq_len,
        "layers": config.get("num_hidden_layers"), "backend": options.backend, "device": options.device,
        "convention": options.convention, "prompts": options.prompts, "steps": options.steps,
        "checkpoints": list(options.checkpoints), "version": tools_version(),
    }  # fmt: skip


def _cut(config: dict[str, Any], layers: int | None) -> dict[str, Any]:
    """The config with fewer layers."""
    whole = config.get("num_hidden_layers")
    if layers is None or not isinstance(whole, int):
        return config
    if not 1 <= layers <= whole:
        raise UnusableInput(f"the model has {whole} layers; --layers takes 1 to {whole}, not {layers}")
    config["num_hidden_layers"] = layers
    if isinstance(config.get("layer_types"), list):
        config["layer_types"] = config["layer_types"][:layers]
    return config


def _same_contract(kernel: str, shipped: Path, text: str) -> None:
    """A changed manifest may not change what the kernel is judged by."""
    import tomllib

    try:
        ours, theirs = tomllib.loads(shipped.read_text(encoding="utf-8")), tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UnusableInput(f"kernel.toml of {kernel} is no TOML: {error}") from None
    for part in ("name", "tolerance", "shape", "tensors"):
        if ours.get(part) != theirs.get(part):
            raise UnusableInput(
                f"kernel.toml of {kernel}: {part} is the kernel's contract and is not changed in a deployment"
            )


def _deciding(outcome: Any) -> Any:
    from dataclasses import replace

    return replace(outcome, decides=True)


def failures_of(ran: Ran) -> Sequence[Mapping[str, Any]]:
    """Failed attempts of a run as an agent reads them."""
    return [failure_of(entry) for entry in ran.failures]


def failure_of(entry: Entry) -> dict[str, Any]:
    """A failed attempt as an agent reads it: what, why, what would count as fixed, where to look."""
    body = entry.body
    return {
        "line": entry.seq, "gate": body["gate"], "subject": body["subject"], "diagnosis": body["diagnosis"],
        "criteria": [one for one in body["criteria"] if not one["ok"]], "fixed_when": body["fixed_when"],
        "lessons": body["lesson_titles"], "skills": body["skills"],
    }  # fmt: skip
