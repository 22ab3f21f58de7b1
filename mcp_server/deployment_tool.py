"""The MCP tool `deployment`: a model taken through eight gated phases, by calls alone.

A run is a job; everything else answers at once. Answers are bounded: of many failures the first few are shown, the
ledger has them all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mcp_server.deployments import FAILURES, TEXT_CHARS

if TYPE_CHECKING:
    from mcp_server.config import Config
    from mcp_server.places import Places
    from npu_tools.deployment.machine import Machine
    from npu_tools.jobs import Jobs, JobView

MAX_WAIT_S = 25.0
_MAX_TEXT = 24_000
"""Longest recipe file in an answer."""
_STEPS, _SETTINGS = 12, 20
_WORK = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)

Action = Literal["start", "run", "status", "set", "recipe", "note", "answer", "evaluate"]
T = TypeVar("T")


class StartOptions(BaseModel):
    """Weights: a folder, .gguf, hub id or random:SEED. prompts × steps is the token gate. A person is asked after checkpoints."""

    model_config = ConfigDict(extra="forbid")
    weights: str | None = None
    seq_len: int = 256
    layers: int | None = None
    prompts: int = Field(default=8, le=8)
    steps: int = Field(default=32, le=32)
    convention: Literal["head", "paper"] = "head"
    checkpoints: list[int] = []
    backend: Literal["emulator", "xrt"] = "emulator"


class LessonSeen(BaseModel):
    """A lesson for a failed gate; get(id) shows it whole."""

    id: str
    title: str
    confidence: float


class FailureSeen(BaseModel):
    """One failed gate: what, why, what would count as fixed, and where to read on."""

    line: int = Field(description="its line in the ledger; about=… of a note")
    gate: str
    what: str
    code: str
    message: str
    looks_like: str = ""
    stage: str | None = None
    layer: int | None = None
    remedy: str = ""
    missed: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    fixed_when: list[str] = Field(default_factory=list[str])
    lessons: list[LessonSeen] = Field(default_factory=list[LessonSeen])
    skills: list[str] = Field(default_factory=list[str], description="get(skill name) shows how to debug it")


class PhaseSeen(BaseModel):
    """One phase."""

    number: int
    name: str
    status: Literal["waiting", "ready", "interrupted", "failed", "passed"]
    summary: str = ""


class DeploymentReply(BaseModel):
    """Where a deployment stands."""

    workspace: str
    model: str
    state: Literal["running", "passed", "failed", "asked", "finished", "open"]
    phases: list[PhaseSeen]
    next_phase: int | None
    next_skill: str | None = None
    job: str | None = Field(default=None, description="the run's job, while it runs")
    progress: str = ""
    failures: list[FailureSeen] = Field(default_factory=list[FailureSeen])
    more_failures: int = 0
    question: dict[str, Any] | None = Field(default=None, description="what a person is asked at a checkpoint")
    settings: dict[str, Any] = Field(default_factory=dict[str, Any])
    recipes: dict[str, list[str]] = Field(default_factory=dict[str, list[str]], description="files changed")
    steps: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]], description="optimisation steps, µs")
    unexplained: list[int] = Field(
        default_factory=list[int], description="lines of fixed failures without a note: phase 6 asks for one each"
    )
    ledger_lines: int = 0
    text: str | None = Field(default=None, description="the recipe file asked for")
    warnings: list[str] = Field(default_factory=list[str])
    next_step: str


def add_deployment(server: MCPServer[Any], places: Places, own: Config) -> None:
    """Add the tool to `server`."""

    @server.tool(title="Deploy a model", annotations=_WORK)
    async def deployment(
        ctx: Context,
        action: Action,
        workspace: str,
        model: Annotated[str, Field(description="start: path or published name")] = "",
        config: dict[str, Any] | None = None,
        options: Annotated[
            dict[str, Any] | None,
            Field(
                description="start: weights (path, hub id, random:SEED), seq_len, layers, prompts, steps, convention …"
            ),
        ] = None,
        phase: Annotated[int, Field(description="run only this, again")] = -1,
        until: int = 7,
        key: Annotated[
            str, Field(description="set: 'gemm', 'gemm 64x128x128', 'prefill/q', 'buffers/rope' (static)")
        ] = "",
        settings: Annotated[dict[str, Any] | None, Field(description="null: as before")] = None,
        kernel: str = "",
        file: Annotated[str, Field(description="recipe: design.py, host.py, kernel.toml")] = "",
        text: Annotated[
            str | None, Field(description="note; recipe: new text (of find), '' as shipped, none: read")
        ] = None,
        find: str = "",
        why: str = "",
        about: Annotated[int, Field(description="line of a note or answer")] = 0,
        answer: str = "",
        wait_s: float = 20,
    ) -> DeploymentReply:
        """Take an LLM through gated phases 0–7: reference, kernels, block, model, prefill, decode, finalise, evaluator. start, run;
        a failed gate says why, what counts as fixed, which lessons and skills fit. set, recipe: change it; note: what you learnt."""
        folder = await _aside(lambda: places.output(workspace))
        machine = await _aside(lambda: _machine(own, folder))
        if action in ("run", "evaluate"):
            if phase > 7 or not 0 <= until <= 7:
                raise ToolError("phases are 0 to 7")
            only = 7 if action == "evaluate" else phase if phase >= 0 else None
            first, last = only, until if only is None else only
            return await _run(ctx, places, own, machine, folder, first, last, min(max(wait_s, 0.0), MAX_WAIT_S))
        said: str | None = None
        match action:
            case "start":
                await _aside(lambda: _start(machine, places, model or None, config, options or {}))
            case "set":
                if not key or not settings:
                    raise ToolError("set takes key and settings, as in key='gemm', settings={'tile_m': 32}")
                await _aside(lambda: machine.set(key, settings, why=why))
            case "recipe":
                if not kernel or not file:
                    raise ToolError("recipe takes kernel and file; with text, or find and text, it changes the file")
                said = await _aside(lambda: _recipe(machine, kernel, file, text, find or None, why))
            case "note":
                if not text:
                    raise ToolError("note takes text, and about=LINE for what fixed a failure")
                await _aside(lambda: machine.note(text, about=about or None, kernel=kernel or None))
            case "answer":
                if not answer:
                    raise ToolError("answer takes one of the question's options")
                await _aside(lambda: machine.answer(answer, checkpoint=about or None))
            case "status":
                pass
        return await _aside(lambda: _reply(machine, places, folder, said))


def _machine(config: Config, folder: Path) -> Machine:
    from mcp_server.deployments import machine_of

    return machine_of(config, folder)


def _start(
    machine: Machine, places: Places, model: str | None, given: dict[str, Any] | None, asked: dict[str, Any]
) -> None:
    from mcp_server.deployments import open_model
    from npu_tools.errors import UnusableInput

    if (model is None) == (given is None):
        raise UnusableInput(
            "start takes exactly one of: model (a path or a published name), config (the config.json itself)"
        )
    meant: str | dict[str, Any] = model if model is not None else (given or {})
    try:
        options = StartOptions.model_validate(asked)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(StartOptions.model_fields)
        raise UnusableInput(f"options: {where}: {first['msg']}; there are {known}") from None
    chosen = options.model_dump(exclude={"weights"}, exclude_unset=True)
    if "checkpoints" in chosen:
        chosen["checkpoints"] = tuple(options.checkpoints)
    open_model(machine, meant, options.weights, places.path, chosen)


def _recipe(machine: Machine, kernel: str, file: str, text: str | None, find: str | None, why: str) -> str | None:
    from npu_tools.errors import UnusableInput

    if text == "" and find is None:
        machine.write_recipe(kernel, file, None, why=why)
        return None
    if text is None:
        found = machine.read_recipe(kernel, file)
        return found if len(found) <= _MAX_TEXT else found[:_MAX_TEXT] + f"\n… {len(found) - _MAX_TEXT} characters more"
    if find is not None:
        now = machine.read_recipe(kernel, file)
        if now.count(find) != 1:
            raise UnusableInput(f"find is {now.count(find)} times in {kernel}/{file}; give text that is there once")
        text = now.replace(find, text)
    machine.write_recipe(kernel, file, text, why=why)
    return None


async def _run(
    ctx: Context,
    places: Places,
    config: Config,
    machine: Machine,
    folder: Path,
    first: int | None,
    last: int,
    wait_s: float,
) -> DeploymentReply:
    from mcp_server.work import WORKER
    from npu_tools.jobs import Jobs

    jobs = Jobs(places.jobs, WORKER)

    def started() -> str:
        from mcp_server.config import kernels_folder

        state = machine.state()
        at_work = _at_work(jobs, folder)
        if at_work is not None:
            return at_work
        request = {
            "workspace": str(folder), "kernels": str(kernels_folder()), "backend": state.head.get("backend", "emulator"),
            "first": first, "last": last, "home": str(config.home), "dense": config.dense,
        }  # fmt: skip
        return jobs.start("deploy", request)

    job = await _aside(started)
    until = anyio.current_time() + wait_s
    told = ""
    while True:
        left = until - anyio.current_time()
        view = await _aside(lambda: jobs.wait(job, max(0.0, min(0.5, left))))  # noqa: B023
        if view.state not in ("queued", "running") or left <= 0:
            break
        if view.progress.note != told:
            told = view.progress.note
            await ctx.report_progress(view.progress.done, view.progress.total or None, told or None)
    return await _aside(lambda: _reply(machine, places, folder, None, view))


def _reply(
    machine: Machine, places: Places, folder: Path, text: str | None, view: JobView | None = None
) -> DeploymentReply:
    from mcp_server.deployments import status_answer
    from mcp_server.work import WORKER
    from npu_tools.jobs import Jobs

    status = status_answer(machine)
    jobs = Jobs(places.jobs, WORKER)
    if view is None:
        at_work = _at_work(jobs, folder)
        view = jobs.view(at_work) if at_work else None
    running = view is not None and view.state in ("queued", "running")
    warnings: list[str] = []
    if view is not None and view.state in ("failed", "cancelled"):
        warnings.append(f"the run {view.state}: {view.reason}")
    result: dict[str, Any] = (view.result or {}) if view is not None else {}
    told: list[str] = result.get("warnings") or []
    warnings += told
    failures = status["failures"]
    question = status["questions"][0] if status["questions"] else None
    upcoming = status["next_phase"]
    state: Any = "open"
    if running:
        state = "running"
    elif question is not None:
        state = "asked"
    elif failures:
        state = "failed"
    elif upcoming is None:
        state = "finished"
    elif view is not None and view.state == "done":
        state = "passed"
    return DeploymentReply(
        workspace=str(folder),
        model=str(status["model"]),
        state=state,
        phases=[PhaseSeen(**{**each, "summary": each["summary"][:TEXT_CHARS]}) for each in status["phases"]],
        next_phase=upcoming,
        next_skill=status["next_skill"],
        job=view.id if view is not None and running else None,
        progress=view.progress.note if view is not None and running else "",
        failures=[_failure(each) for each in failures[:FAILURES]],
        more_failures=max(0, len(failures) - FAILURES),
        question=question,
        settings=dict(list(status["settings"].items())[:_SETTINGS]),
        recipes=status["recipes"],
        steps=status["steps"][-_STEPS:],
        unexplained=status["unexplained"][:20],
        ledger_lines=status["ledger_lines"],
        text=text,
        warnings=[each[:TEXT_CHARS] for each in warnings[:5]],
        next_step=_next(state, upcoming, failures, question, status),
    )


def _failure(found: dict[str, Any]) -> FailureSeen:
    diagnosis: dict[str, Any] = found["diagnosis"] or {}
    subject: dict[str, Any] = found["subject"] or {}
    what = str(subject.get("kernel") or subject.get("step") or found["gate"])
    if isinstance(subject.get("shape"), dict):
        what += " " + "x".join(str(extent) for extent in subject["shape"].values())
    return FailureSeen(
        line=found["line"],
        gate=found["gate"],
        what=what,
        code=str(diagnosis.get("code", "")),
        message=str(diagnosis.get("message", ""))[:TEXT_CHARS],
        looks_like=str(diagnosis.get("looks_like") or "")[:TEXT_CHARS],
        stage=diagnosis.get("stage"),
        layer=diagnosis.get("layer"),
        remedy=str(diagnosis.get("remedy") or "")[:TEXT_CHARS],
        missed=[{k: one.get(k) for k in ("name", "value", "bound", "decides")} for one in found["criteria"][:6]],
        fixed_when=[each[:TEXT_CHARS] for each in found["fixed_when"][:3]],
        lessons=[LessonSeen(**each) for each in found["lessons"][:3]],
        skills=found["skills"],
    )


def _next(
    state: str,
    upcoming: int | None,
    failures: list[dict[str, Any]],
    question: dict[str, Any] | None,
    status: dict[str, Any],
) -> str:
    match state:
        case "running":
            return "Call run again to wait for it, or job(action='wait'); it goes on by itself."
        case "asked" if question is not None:
            return f"Ask a person: {question['question']} Then action='answer', about={question['line']}."
        case "failed":
            lessons = failures[0]["lessons"]
            look = (
                f"get(id={lessons[0]['id']!r})"
                if lessons
                else f"explain_error with the message, or get({failures[0]['skills'][0]!r})"
            )
            return f"{look} first; then set or recipe, note(about={failures[0]['line']}) what fixed it, and run again."
        case "finished":
            head = status["ledger_head"]
            return (
                "All phases passed: read evaluation_report.md, then harvest the workspace. Give a person the ledger's head "
                f"{head} to keep elsewhere: herdbook evaluate DIR --head {head[:16]} tells if the record is written anew."
            )
        case _:
            unexplained: list[int] = status["unexplained"]
            notes = f" Write notes about lines {unexplained[:5]}: phase 6 asks for them." if unexplained else ""
            return f"Call run: phase {upcoming} is next.{notes}"


def _at_work(jobs: Jobs, folder: Path) -> str | None:
    """The job that runs this deployment now, whoever started it."""
    from npu_tools.jobs.records import read_json

    for view in jobs.listed(20):
        if view.kind == "deploy" and view.state in ("queued", "running"):
            request = (read_json(Path(view.folder) / "request.json") or {}).get("request", {})
            if request.get("workspace") == str(folder):
                return view.id
    return None


async def _aside(action: Callable[[], T]) -> T:
    """`action` in a thread, with our own errors shown to the model."""

    def guarded() -> T:
        from npu_tools.errors import NpuToolsError

        try:
            return action()
        except NpuToolsError as error:
            raise ToolError(str(error)) from None

    return await anyio.to_thread.run_sync(guarded)
