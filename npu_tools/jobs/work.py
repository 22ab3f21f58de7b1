"""What a job does: check, compile or run, from a request to a JSON-ready answer.

The command line calls `perform` in its own process, jobs in theirs; both pass something that takes progress and
says whether to stop.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from npu_tools.errors import ProgramSyntaxError, RunStopped, UnusableInput
from npu_tools.requests import CheckRequest, CompileRequest, RunRequest


class Teller(Protocol):
    """Who hears of progress and may ask to stop; `folder` is where files go that nobody named."""

    @property
    def folder(self) -> Path:
        """Where outputs go that were given no place."""
        ...

    def cancelled(self) -> bool:
        """Whether to stop."""
        ...

    def progress(self, done: float, total: float, note: str = "") -> None:
        """How far the work is."""
        ...


def perform(kind: str, request: dict[str, Any], teller: Teller) -> dict[str, Any]:
    """Do a piece of work and return its answer.

    Raises:
        NpuToolsError: the request itself is unusable, or the run was stopped.
    """
    match kind:
        case "check":
            return check(CheckRequest.model_validate(request))
        case "compile":
            from npu_tools.compile import compile_program

            return compile_program(CompileRequest.model_validate(request), teller)
        case "run":
            return run(RunRequest.model_validate(request), teller)
        case _:
            raise UnusableInput(f"no work of kind {kind!r}; there are check, compile, run")


def check(request: CheckRequest) -> dict[str, Any]:
    """Findings about a program: {"parsed", "ok", "device", "findings"}."""
    from npu_tools.check import check_program_text
    from npu_tools.device import device

    target = device(request.device)
    report = check_program_text(request.program.text, request.program.name, target)
    return {
        "parsed": report.parsed,
        "ok": report.ok,
        "device": target.name,
        "findings": [finding.as_dict() for finding in report.findings],
    }


def run(request: RunRequest, teller: Teller) -> dict[str, Any]:
    """Run a program: {"ok", "ran_on", "modelled_us", "measured_us", "wall_s", "counters", "diagnostics", "outputs", …}.

    The emulator has no measured time, the device no modelled one and no counters; both have every field.
    """
    from npu_tools.air import parse_program
    from npu_tools.arrays import fitted, non_finite, read_arrays, seeded, signature, write_arrays
    from npu_tools.emulator.numerics import Numerics
    from npu_tools.emulator.run import choose_function, run_program
    from npu_tools.estimate import estimate_run

    if request.backend == "xrt":
        from npu_tools.backends.xrt.answers import run_answer

        return run_answer(request, teller)
    if request.profile:
        raise UnusableInput("the emulator's times are modelled, never measured; profile needs the backend xrt")
    if request.timeline or request.tile_map:
        from npu_tools.emulator import pictures

        pictures.ready()
    started = time.monotonic()
    try:
        program = parse_program(request.program.text, request.program.name)
    except ProgramSyntaxError as error:
        finding = {
            "severity": "error", "code": "syntax", "message": error.message, "line": error.line, "column": error.column,
            "snippet": error.snippet, "certain": True, "op": None, "remedy": "correct the program text at this place",
        }  # fmt: skip
        return _ran(False, started, {}, [finding], None)
    function = choose_function(program, request.function)
    arguments = signature(function)
    if request.inputs is not None:
        inputs = fitted(read_arrays(Path(request.inputs)), arguments)
    else:
        inputs = seeded(arguments, request.seed or 0)
    remarks = [finding.as_dict() for finding in non_finite(inputs)]
    numerics = Numerics(request.numerics, report=request.rounding)
    result = run_program(
        program,
        inputs,
        function=function.sym_name.data,
        numerics=numerics,
        grouping=request.grouping,
        timeout_s=request.timeout_s,
        max_bytes=int(request.memory_mb * 1e6),
        progress=lambda executed: teller.progress(executed, 0, f"{executed:,} instructions"),
        cancelled=teller.cancelled,
        trace=bool(request.timeline or request.tile_map),
    )
    if teller.cancelled():
        raise RunStopped("stopped by a cancel request")
    outputs = None
    if result.outputs:
        outputs = request.outputs or str(teller.folder / "out.npz")
        write_arrays(Path(outputs), result.outputs)
    answer = _ran(
        result.ok, started, result.counters.as_dict(), [*(f.as_dict() for f in result.findings), *remarks], outputs
    )
    answer["modelled_us"] = estimate_run(answer["counters"]) if result.ok else None
    if request.inputs is None:
        answer["inputs"] = (
            f"from seed {request.seed or 0}: floats standard normal over the root of the last extent, integers 0 to 7"
        )
    if result.trace is not None:
        answer["pictures"] = _pictures(result.trace, request)
    if request.rounding:
        answer["rounding"] = [asdict(row) for row in (numerics.report.sorted() if numerics.report else [])]
    return answer


def _ran(
    ok: bool, started: float, counters: dict[str, Any], diagnostics: list[dict[str, Any]], outputs: str | None
) -> dict[str, Any]:
    return {
        "ok": ok,
        "ran_on": "emulator",
        "modelled_us": None,
        "measured_us": None,
        "wall_s": round(time.monotonic() - started, 3),
        "counters": counters,
        "diagnostics": diagnostics,
        "outputs": outputs,
    }


def _pictures(trace: Any, request: RunRequest) -> dict[str, str]:
    from npu_tools.emulator.pictures import draw_tile_map, draw_timeline

    drawn: dict[str, str] = {}
    if request.timeline:
        draw_timeline(trace, Path(request.timeline))
        drawn["timeline"] = request.timeline
    if request.tile_map:
        draw_tile_map(trace, Path(request.tile_map))
        drawn["tile_map"] = request.tile_map
    return drawn
