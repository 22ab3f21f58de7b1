"""Deployments for the command line, the tool and jobs: which model is meant, who is asked for lessons, what is answered.

The machine itself is npu_tools.deployment; here are the places and the memory it must not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from kb import Memory
    from mcp_server.config import Config
    from npu_tools.deployment.diagnosis import Advise, Lesson, Symptom
    from npu_tools.deployment.machine import Machine, Model, Ran, Register
    from npu_tools.deployment.site import Teller
    from npu_tools.deployment.state import State

SEEDED = "random:1"
"""Weights of a published config nobody gave weights for."""
SURE = 0.2
"""Least confidence of a lesson beside a failed gate. A gate's words are ours, so the match is by meaning; each lesson is
shown with its confidence, and the agent is told to read it before it acts."""
LESSONS = 3
_KEPT = ("seq_len", "backend", "device", "convention", "prompts", "steps")
"""Options that hold from the opening on."""
FAILURES, TEXT_CHARS = 3, 500


class DeployRequest(BaseModel):
    """A run of the machine, as a job has it."""

    model_config = ConfigDict(extra="forbid")
    workspace: str
    kernels: str
    backend: Literal["emulator", "xrt"] = "emulator"
    first: int | None = Field(default=None, ge=0, le=7)
    last: int = Field(default=7, ge=0, le=7)
    home: str | None = None
    """The data directory of whoever started it, where its environment does not say."""
    dense: bool = True


def model_of(given: str | Mapping[str, Any], weights: str | None, path: Callable[[str], Path]) -> Model:
    """The model meant by a config.json, a folder, a .gguf file, a published name, or the config itself.

    Raises:
        UnusableInput: it is none of these.
    """
    from npu_tools.architectures import published
    from npu_tools.deployment.machine import Model
    from npu_tools.errors import UnusableInput
    from npu_tools.models.weights import find_config

    source = _weights(weights, path)
    if isinstance(given, Mapping):
        return Model(str(given.get("_name_or_path") or "model"), given, source or SEEDED)
    known = next((m for m in published() if given.casefold() in (m.name.casefold(), m.repo.casefold())), None)
    if known is not None:
        return Model(known.name, known.config, source or SEEDED)
    place = path(given)
    if not place.exists():
        names = ", ".join(m.name for m in published())
        raise UnusableInput(
            f"there is no {given[:200]}; give a config.json, a folder, a .gguf file, or one of: {names}"
        )
    config = find_config(place)
    beside = place.parent if place.suffix == ".json" else place
    has = beside.is_file() or any(beside.glob("*.safetensors")) or any(beside.glob("*.gguf"))
    name = str(config.get("_name_or_path") or (beside.stem if beside.is_file() else beside.name))
    return Model(name, config, source or (str(beside) if has else SEEDED))


def open_model(
    machine: Machine,
    given: str | Mapping[str, Any],
    weights: str | None,
    path: Callable[[str], Path],
    asked: Mapping[str, Any],
) -> None:
    """Open a workspace for a model. `asked` are the options somebody chose; the others are as the workspace was opened
    before, else OpenOptions' own.

    Raises:
        UnusableInput: it is opened otherwise and a phase has passed, or the model or an option is none.
    """
    from npu_tools.deployment.machine import OpenOptions
    from npu_tools.deployment.site import config_digest

    model, state = model_of(given, weights, path), opened_state(machine)
    if state is None:
        machine.open(model, OpenOptions(**asked))
        return
    head = state.head
    if weights is None and model.weights == SEEDED:
        model = replace(model, weights=str(head["weights"]))
    known: dict[str, Any] = {name: head[name] for name in _KEPT if name in head} | {
        "checkpoints": tuple(head.get("checkpoints") or ())
    }
    if head.get("layers") != head.get("layers_of_model"):
        known["layers"] = head.get("layers")
    elif config_digest(model.config) == head.get("config_digest"):
        model = replace(model, name=str(head["model"]))
    machine.open(model, OpenOptions(**{**known, **asked}))


def agree(
    machine: Machine, given: str | None, weights: str | None, path: Callable[[str], Path], asked: Mapping[str, Any]
) -> None:
    """See that a model and options somebody chose are those of the deployment that is there.

    Raises:
        UnusableInput: they contradict it, or nothing is deployed.
    """
    from npu_tools.deployment.site import config_digest
    from npu_tools.errors import UnusableInput

    state = machine.state()
    chosen = dict(asked) | ({} if weights is None else {"weights": _weights(weights, path)})
    if given is not None and state.head.get("layers") == state.head.get("layers_of_model"):
        chosen["config_digest"] = config_digest(model_of(given, weights, path).config)
    told = state.contradicted(chosen)
    if told:
        raise UnusableInput(
            f"{machine.workspace.folder}: {told}; leave that out to go on with it, or start in a new workspace with a model"
        )


def opened_state(machine: Machine) -> State | None:
    """What is deployed in a workspace; None where nothing is."""
    if not machine.workspace.ledger.is_file():
        return None
    from npu_tools.deployment.ledger import Ledger
    from npu_tools.deployment.state import State

    state = State.of(Ledger.open(machine.workspace.ledger).entries())
    return state if state.opened is not None else None


def machine_of(
    config: Config, workspace: Path, *, advise: Advise | None = None, teller: Teller | None = None,
    kernels: Path | None = None, ask: Any = None, register: Register | None = None,
) -> Machine:  # fmt: skip
    """The machine over a workspace, with the product's own world."""
    from mcp_server.config import kernels_folder
    from npu_tools.deployment.diagnosis import no_advice
    from npu_tools.deployment.machine import Machine
    from npu_tools.deployment.site import Quiet
    from npu_tools.deployment.workspace import Workspace
    from npu_tools.deployment.world import RealWorld

    told = teller or Quiet()
    shipped = kernels or kernels_folder()
    world = RealWorld(shipped, cancelled=told.cancelled, progress=told.progress, xrt=_device(config, told.cancelled))
    machine = Machine(Workspace(workspace), world, shipped, advise or no_advice, teller=told)
    if ask is not None:
        machine.ask = ask
    if register is not None:
        machine.register = register
    return machine


def advisor(recall: Callable[[], Memory], device: str = "npu2") -> Advise:
    """Asks the memory about a failed gate."""

    def advise(symptom: Symptom) -> Sequence[Lesson]:
        from kb import Filters, KbError
        from mcp_server.device_lessons import lesson_of_code
        from npu_tools.deployment.diagnosis import Lesson

        try:
            memory = recall()
            answer = memory.explain(symptom.text[:4000], Filters(device), LESSONS)
            hits = () if answer.no_match else tuple(hit for hit in answer.hits if hit.confidence >= SURE)
            behind = lesson_of_code(symptom.code)
            if not hits and behind is not None:  # no text to go by, but the device adapter knows which failure this is
                return [Lesson(behind, memory.get(behind).record.title, SURE)]
        except KbError:
            return ()  # a memory that cannot be opened must not cost a gate its record
        return [Lesson(hit.record.id, hit.record.title, hit.confidence) for hit in hits]

    return advise


def registrar(recall: Callable[[], Memory]) -> Register:
    """Takes the rows of a workspace's kernels into the user's memory as a harvest does, and nothing else of it: a later
    harvest knows them."""

    def register(workspace: Path) -> str | None:
        from harvest import apply_plan, plan_harvest
        from kb import KbError

        try:
            memory = recall()
            plan = plan_harvest(memory, workspace)
            rows = [item.id for item in plan.of("new") if item.kind == "kernel_row"]
            if rows:
                apply_plan(memory, plan, only=rows)
        except KbError as error:
            return f"the kernel rows were not taken into the registry: {error}; 'herdbook harvest' does it later"
        return None

    return register


def perform(config: Config, kind: str, request: dict[str, Any], teller: Any) -> dict[str, Any]:
    """A job's work: a run of the machine, or whatever npu_tools knows to do."""
    from npu_tools.jobs import work

    if kind != "deploy":
        return work.perform(kind, request, teller)
    from kb import open_memory

    asked = DeployRequest.model_validate(request)
    if asked.home is not None:
        config = replace(config, home=Path(asked.home), dense=asked.dense)
    opened: list[Memory] = []

    def recall() -> Memory:
        if not opened:
            opened.append(open_memory(config.memory()))
        return opened[0]

    machine = machine_of(
        config, Path(asked.workspace), advise=advisor(recall), teller=teller, kernels=Path(asked.kernels),
        register=registrar(recall),
    )  # fmt: skip
    return ran_answer(machine.run(first=asked.first, last=asked.last))


def ran_answer(ran: Ran) -> dict[str, Any]:
    """A run as data: {"ok", "state", "phase", "summary", "passed", "failures", "question", "warnings"}."""
    from npu_tools.deployment.machine import failures_of

    question = None
    if ran.question is not None:
        question = {"line": ran.question.seq, "question": ran.question.question, "options": list(ran.question.options)}
    return {
        "ok": ran.state in ("passed", "finished"), "state": ran.state, "phase": ran.phase, "summary": ran.summary,
        "passed": list(ran.passed), "failures": [dict(each) for each in failures_of(ran)], "question": question,
        "warnings": list(ran.warnings),
    }  # fmt: skip


def status_answer(machine: Machine) -> dict[str, Any]:
    """Where a deployment stands, from its ledger."""
    from npu_tools.deployment.criteria import phases

    state = machine.state()
    upcoming = state.next_phase()
    asked = state.open_questions()
    return {
        "workspace": str(machine.workspace.folder),
        "model": state.head.get("model"),
        "opened": {k: v for k, v in state.head.items() if k not in ("config_digest", "model")},
        "phases": [
            {"number": p.number, "name": p.name, "status": state.status(p.number), "summary": state.summary(p.number)}
            for p in phases()
        ],
        "next_phase": upcoming,
        "next_skill": None if upcoming is None else phases()[upcoming].skill,
        "settings": state.settings,
        "recipes": {kernel: sorted(files) for kernel, files in state.recipes.items()},
        "steps": [_step(entry.body) | {"phase": entry.phase} for entry in state.steps],
        "attempts": len(state.attempts),
        "failures": open_failures(state),
        "unexplained": [entry.seq for entry in state.unexplained()],
        "questions": [{"line": q.seq, "question": q.question, "options": list(q.options)} for q in asked],
        "ledger_lines": state.ledger_length,
        "ledger_head": state.ledger_head,
    }


def open_failures(state: State) -> list[dict[str, Any]]:
    """Failed gates of the phase that stands at failed, as an agent reads them."""
    upcoming = state.next_phase()
    if upcoming is None or state.status(upcoming) != "failed":
        return []
    from npu_tools.deployment.machine import failure_of

    attempts = state.attempts_of(upcoming)
    return [failure_of(entry) for entry in attempts if not entry.body["passed"] and not entry.body["trial"]]


def _step(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body.get(name) for name in ("name", "before_us", "after_us", "timing", "kept", "why")}


def _weights(given: str | None, path: Callable[[str], Path]) -> str | None:
    """Weights as npu_tools takes them; a path that is there becomes absolute."""
    if given is None or given.startswith("random:"):
        return given
    place = path(given)
    return str(place) if place.exists() else given


def _device(config: Config, cancelled: Callable[[], bool] | None) -> Callable[[], Any]:
    """Opens the NPU's backend; what a cancelled job was compiling or running ends with it.

    Raises (when opened):
        UnusableInput: there is no compiler for it.
    """

    def opened() -> Any:
        from npu_tools.backends.xrt.backend import XrtBackend
        from npu_tools.backends.xrt.toolchain import Toolchain
        from npu_tools.errors import UnusableInput

        toolchain = Toolchain.model_validate(config.toolchain)
        if toolchain.find("aircc") is None:  # no kernel's fault, and so no attempt of any
            raise UnusableInput(
                "the backend xrt is not there: aircc of mlir-air was not found; 'herdbook doctor' says what is missing, "
                "and without an NPU the backend emulator runs everything"
            )
        return XrtBackend(toolchain, cache=config.home / "artefacts", cancelled=cancelled)

    return opened
