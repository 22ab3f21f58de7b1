"""The MCP tools over npu_tools: check, compile, run, gate, job.

Programs are parsed, checked, compiled and run in job processes, never in the server: a hostile or endless program
costs its job. A call waits at most `MAX_WAIT_S`; longer work is asked for again through `job`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from mcp_server.npu_replies import (
    CheckReply,
    GateReply,
    JobAnswer,
    JobReply,
    check_reply,
    findings_in,
    gate_reply,
    job_brief,
    job_reply,
    lessons_for,
)  # fmt: skip

if TYPE_CHECKING:
    from kb import Memory
    from mcp_server.places import Places
    from npu_tools.jobs import Jobs, JobView

MAX_WAIT_S = 25.0
"""Longest wait in one call: clients give up after 60 s."""

_READ = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_WORK = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

_Program = Annotated[str | None, Field(description="path of a .mlir file", max_length=4096)]
_Text = Annotated[str | None, Field(description="the program itself, instead of a path", max_length=8_000_000)]
_Name = Annotated[str | None, Field(max_length=200)]
_Device = Annotated[str, Field(description="npu2 (Strix, Krackan …) or npu1 (Phoenix)", max_length=40)]
_Wait = Annotated[float, Field(ge=0, le=MAX_WAIT_S, description="seconds to wait for the result")]
_Backend = Literal["emulator", "xrt"]
_Options = Annotated[
    dict[str, Any] | None, Field(description="backend xrt: options of mlir-air's XRTBackend, e.g. output_format")
]
_JobId = Annotated[str | None, Field(description="job id from run, compile or check", max_length=80)]
_Settings = Annotated[
    dict[str, str | int | float | bool] | None,
    Field(description='tile configuration, e.g. {"tile_m": 64, "method": "drain"}'),
]

T = TypeVar("T")


def add_npu_tools(server: MCPServer[Any], places: Places, recall: Callable[[], Memory]) -> None:
    """Add the five tools to `server`."""
    _add_check(server, places, recall)
    _add_work(server, places, recall)
    _add_gate(server, places)


def _add_check(server: MCPServer[Any], places: Places, recall: Callable[[], Memory]) -> None:
    @server.tool(title="Check against the device", annotations=_WORK)
    async def check(
        ctx: Context,
        program: _Program = None,
        program_text: _Text = None,
        kernel: Annotated[str | None, Field(description="gemm, gemv, rope, flash_attention …", max_length=60)] = None,
        shape: Annotated[str | None, Field(description="with kernel: MxKxN, MxK …", max_length=80)] = None,
        settings: _Settings = None,
        model: Annotated[str | None, Field(description="path of a Hugging Face config.json", max_length=4096)] = None,
        seq_len: Annotated[int, Field(description="with model: prompt length", ge=1, le=1_000_000)] = 2048,
        device: _Device = "npu2",
        detail: Annotated[
            Literal["concise", "full"], Field(description="full: with every launch of a model's plan")
        ] = "concise",
    ) -> CheckReply:
        """What the device or its compiler would refuse, before compiling: a program, a kernel with its shape and tiles, or a whole
        model. Findings carry the limit, its source and a remedy with numbers that pass."""
        chosen = [
            name
            for name, value in (("program", program or program_text), ("kernel", kernel), ("model", model))
            if value
        ]
        if len(chosen) != 1:
            raise ToolError("give exactly one of: program (or program_text), kernel with shape, model")
        if kernel:
            if not shape:
                raise ToolError("check of a kernel needs its shape, as in shape='2048x2048x8192' (MxKxN)")
            answer = await _aside(lambda: kernel_answer(kernel, shape, dict(settings or {}), device))
        elif model:
            answer = await _aside(lambda: model_answer(places, model, seq_len, device))
        else:
            source = await _aside(lambda: source_of(places, program, program_text, None))
            view = await _start(ctx, places, "check", {"program": source, "device": device}, MAX_WAIT_S)
            if view.state != "done" or view.result is None:
                raise ToolError(f"check {view.state}: {view.reason or 'not done yet'}; job {view.id}")
            answer = view.result
        lessons = await _aside(lambda: lessons_for(answer["findings"], recall(), device))
        return check_reply(answer, lessons, full=detail == "full")


def _add_work(server: MCPServer[Any], places: Places, recall: Callable[[], Memory]) -> None:
    @server.tool(title="Compile a program", annotations=_WORK)
    async def compile(
        ctx: Context,
        program: _Program = None,
        program_text: _Text = None,
        function: _Name = None,
        device: _Device = "npu2",
        backend: _Backend = "emulator",
        options: _Options = None,
        wait_s: _Wait = 20,
    ) -> JobReply:
        """Parse, verify, check and lower an AIR program; an artefact is cached by content. A refused program is an answer with
        findings and lessons, not an error."""
        source = await _aside(lambda: source_of(places, program, program_text, None))
        request = {"program": source, "cache": str(places.artefacts), "device": device, "function": function}
        request |= await _aside(lambda: _device_request(places, backend, options))
        return await _reply(await _start(ctx, places, "compile", request, wait_s), recall, device)

    @server.tool(title="Run a program", annotations=_WORK)
    async def run(
        ctx: Context,
        program: _Program = None,
        program_text: _Text = None,
        artefact: Annotated[str | None, Field(description="folder from compile", max_length=4096)] = None,
        function: _Name = None,
        inputs: Annotated[
            str | None, Field(description=".npz or .safetensors with arg0 … argN", max_length=4096)
        ] = None,
        seed: Annotated[int, Field(description="without inputs: seeded random ones", ge=0)] = 0,
        outputs: Annotated[
            str | None, Field(description="file for the results; default in the job's folder", max_length=4096)
        ] = None,
        numerics: Annotated[
            Literal["faithful", "f32"], Field(description="the device's rounding, or plain f32")
        ] = "faithful",
        timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 600,
        memory_mb: Annotated[float, Field(gt=0, le=1_000_000)] = 8000,
        timeline: Annotated[
            str | None, Field(description="draw a timeline to this .svg or .png", max_length=4096)
        ] = None,
        tile_map: Annotated[
            str | None, Field(description="draw L1/L2 use by tile to this .svg or .png", max_length=4096)
        ] = None,
        device: _Device = "npu2",
        backend: _Backend = "emulator",
        options: _Options = None,
        wait_s: _Wait = 20,
    ) -> JobReply:
        """Run an AIR program with the device's numerics. Deadlocks, uninitialised reads, out-of-bounds windows are found and
        explained. Times are modelled. Arrays go to files."""
        source = await _aside(lambda: source_of(places, program, program_text, artefact))

        def named(path: str | None) -> str | None:
            return str(places.path(path)) if path else None

        def written(path: str | None) -> str | None:
            return str(places.output(path)) if path else None

        def asked() -> dict[str, Any]:
            return {
                "program": source, "outputs": written(outputs) or "", "function": function, "inputs": named(inputs), "seed": seed,
                "numerics": numerics, "timeout_s": timeout_s, "memory_mb": memory_mb, "timeline": written(timeline),
                "tile_map": written(tile_map), "device": device, "cache": str(places.artefacts),
                **_device_request(places, backend, options),
            }  # fmt: skip

        request = await _aside(asked)
        return await _reply(await _start(ctx, places, "run", request, wait_s), recall, None)

    @server.tool(title="Poll, wait for or cancel a job", annotations=_WORK)
    async def job(
        ctx: Context,
        id: _JobId = None,
        action: Literal["status", "wait", "cancel", "list"] = "wait",
        wait_s: _Wait = 20,
    ) -> JobAnswer:
        """A job's state, result or end. Jobs live on disk in their own processes: they outlast this server."""
        from npu_tools.jobs import Jobs

        jobs = Jobs(places.jobs)
        if action == "list" or id is None:
            if action == "cancel":
                raise ToolError("cancel needs the id of a job; action='list' shows them")
            views = await _aside(lambda: jobs.listed(10))
            return JobAnswer(latest=[job_brief(view) for view in views])
        if action == "cancel":
            return JobAnswer(job=job_reply(await _aside(lambda: jobs.cancel(id)), []))
        return JobAnswer(job=await _reply(await _watch(ctx, jobs, id, wait_s if action == "wait" else 0), recall, None))


def _add_gate(server: MCPServer[Any], places: Places) -> None:
    @server.tool(title="Gate an output", annotations=_READ)
    async def gate(
        actual: Annotated[str, Field(description=".npy, or .npz#arg2", max_length=4096)],
        reference: Annotated[str, Field(description="FP32 reference, the same shape", max_length=4096)],
        kernel: Annotated[str | None, Field(description="whose tolerance to use", max_length=60)] = None,
        tier: Annotated[str | None, Field(description="gemm: high, low, f32", max_length=20)] = None,
        convention: Literal["upstream", "paper", "tokens"] = "upstream",
        rtol: Annotated[float | None, Field(ge=0)] = None,
        atol: Annotated[float | None, Field(ge=0)] = None,
        previous: Annotated[
            str | None, Field(description="an earlier call's output, to spot stale buffers", max_length=4096)
        ] = None,
    ) -> GateReply:
        """Whether every element is within the kernel's tolerance of the reference; where the worst is and what the error looks
        like. 'tokens': two [steps, vocab] logits by the top-5 token-set rule."""
        verdict = await _aside(
            lambda: gate_answer(places, actual, reference, kernel, tier, convention, rtol, atol, previous)
        )
        return gate_reply(verdict)


def _device_request(places: Places, backend: str, options: dict[str, Any] | None) -> dict[str, Any]:
    """What a request for the real stack has besides."""
    from npu_tools.errors import UnusableInput

    if backend == "emulator":
        if options:
            raise UnusableInput("options are for backend xrt; the emulator takes none")
        return {}
    named = sorted(set(options or {}) & {"objects", "xclbin_input"})
    if places.confined and named:
        raise UnusableInput(f"{named[0]} names files of this machine, which is not taken over HTTP")
    return {"backend": backend, "options": options or {}, "toolchain": dict(places.toolchain)}


def source_of(places: Places, program: str | None, text: str | None, artefact: str | None) -> dict[str, str]:
    """The program a client named in one of three ways."""
    from npu_tools.compile import read_artefact
    from npu_tools.errors import UnusableInput

    if sum(value is not None for value in (program, text, artefact)) != 1:
        raise UnusableInput("give exactly one of: program (a path), program_text, artefact")
    if text is not None:
        return {"text": text, "name": "program_text"}
    if artefact is not None:
        folder = (
            places.path(artefact) if not artefact.startswith(str(places.artefacts)) else places.artefacts / artefact
        )
        return {"text": read_artefact(folder), "name": folder.name}
    assert program is not None
    content, name = places.program(program)
    return {"text": content, "name": name}


def kernel_answer(kernel: str, shape: str, settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Check of a kernel with its shape and tile configuration."""
    from npu_tools.check.kernel import check_kernel

    return check_kernel(kernel, shape, settings, device).as_dict()


def model_answer(places: Places, config: str, seq_len: int, device: str) -> dict[str, Any]:
    """Check of a whole model from its config.json."""
    from npu_tools.check.model import check_model

    return check_model(read_config(places, config), seq_len, device).as_dict()


def read_config(places: Places, given: str) -> dict[str, Any]:
    """A Hugging Face config.json.

    Raises:
        UnusableInput: it cannot be read or holds no JSON object.
    """
    from npu_tools.errors import UnusableInput

    path = places.path(given)
    if path.is_dir():
        path /= "config.json"
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UnusableInput(f"{path} is no JSON ({error}); give a Hugging Face config.json") from None
    if not isinstance(content, dict):
        raise UnusableInput(f"{path} holds no JSON object; give a Hugging Face config.json")
    return content  # pyright: ignore[reportUnknownVariableType]


def gate_answer(
    places: Places,
    actual: str,
    reference: str,
    kernel: str | None,
    tier: str | None,
    convention: str,
    rtol: float | None,
    atol: float | None,
    previous: str | None = None,
) -> dict[str, Any]:
    """The verdict of a comparison of two files."""
    from dataclasses import asdict

    from npu_tools import gate
    from npu_tools.errors import UnusableInput

    ours, theirs = one_array(places, actual), one_array(places, reference)
    if convention == "tokens":
        return asdict(gate.judge_tokens(ours, theirs))
    if (rtol is None) != (atol is None):
        raise UnusableInput("rtol and atol go together")
    if rtol is not None and atol is not None:
        tolerance = gate.given(rtol, atol)
    elif kernel is not None:
        tolerance = gate.tolerance_for(kernel, convention, tier)
    else:
        raise UnusableInput(f"name the kernel ({', '.join(gate.kernel_names())}) or give rtol and atol")
    old = one_array(places, previous) if previous else None
    return gate.judge(ours, theirs, tolerance, previous=old).as_dict()


def one_array(places: Places, given: str) -> Any:
    """One array of a file; `file.npz#name` picks one of several."""
    from npu_tools.arrays import read_arrays
    from npu_tools.errors import UnusableInput

    name, sign, key = given.rpartition("#")
    path = places.path(name if sign else given)
    arrays = read_arrays(path)
    if sign:
        if key not in arrays:
            raise UnusableInput(f"{path} has no array {key[:60]!r}; it has {', '.join(list(arrays)[:12])}")
        return arrays[key]
    if len(arrays) != 1:
        raise UnusableInput(f"{path} holds {len(arrays)} arrays; pick one as {path.name}#{next(iter(arrays), 'name')}")
    return next(iter(arrays.values()))


async def _start(ctx: Context, places: Places, kind: str, request: dict[str, Any], wait_s: float) -> JobView:
    from npu_tools.jobs import Jobs

    jobs = Jobs(places.jobs)
    started = await _aside(lambda: jobs.start(kind, request))
    return await _watch(ctx, jobs, started, wait_s)


async def _watch(ctx: Context, jobs: Jobs, job: str, wait_s: float) -> JobView:
    """Wait in short steps and pass progress on."""
    until = anyio.current_time() + wait_s
    told = ("", -1.0)
    while True:
        left = until - anyio.current_time()
        view = await _aside(lambda: jobs.wait(job, max(0.0, min(0.5, left))))  # noqa: B023
        if view.state not in ("queued", "running") or left <= 0:
            return view
        now = (view.progress.note, view.progress.done)
        if now != told:
            told = now
            await ctx.report_progress(view.progress.done, view.progress.total or None, view.progress.note or None)


async def _reply(view: JobView, recall: Callable[[], Memory], device: str | None) -> JobReply:
    found = findings_in(view.result)
    return job_reply(view, await _aside(lambda: lessons_for(found, recall(), device)) if found else [])


async def _aside(action: Callable[[], T]) -> T:
    """`action` in a thread, with our own errors shown to the model."""

    def guarded() -> T:
        from kb import KbError
        from npu_tools.errors import NpuToolsError

        try:
            return action()
        except (NpuToolsError, KbError) as error:
            raise ToolError(str(error)) from None

    return await anyio.to_thread.run_sync(guarded)
