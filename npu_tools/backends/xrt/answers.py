"""compile and run on the device, as the commands and jobs answer them: the emulator's fields, with the device's content.

A compile's `plan` says format, entry and linked objects; a run's `counters` what writing, running and reading took, its
time measured. `ran_on` is "npu", and null for a program that never reached the device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from npu_tools.air import parse_program
from npu_tools.arrays import fitted, non_finite, read_arrays, seeded, signature, write_arrays
from npu_tools.backends.protocol import Refused
from npu_tools.backends.xrt.backend import XrtBackend, XrtKernel
from npu_tools.backends.xrt.compiling import compile_for_device
from npu_tools.backends.xrt.toolchain import Toolchain, identify
from npu_tools.device import device as find_device
from npu_tools.emulator.run import choose_function
from npu_tools.errors import ProgramSyntaxError, RunStopped, UnusableInput

if TYPE_CHECKING:
    from npu_tools.requests import CompileRequest, RunRequest


class Teller(Protocol):
    """Who may ask to stop; `folder` is where files go that nobody named."""

    @property
    def folder(self) -> Path:
        """Where outputs go that were given no place."""
        ...

    def cancelled(self) -> bool:
        """Whether to stop."""
        ...


def compile_answer(request: CompileRequest, teller: Teller | None = None) -> dict[str, Any]:
    """Check, then compile for the device: the fields of the emulator's compile.

    Raises:
        UnusableInput: no toolchain in the request, an unknown option, or a cache that cannot be written.
    """
    from npu_tools.check import check_program_text

    started = time.monotonic()
    toolchain = _toolchain(request)
    target = find_device(request.device)
    answer: dict[str, Any] = {
        "ok": False, "artefact": None, "key": "", "cached": False, "compiled_for": f"{target.name} by mlir-air",
        "function": None, "arguments": [], "findings": [],
    }  # fmt: skip
    report = check_program_text(request.program.text, request.program.name, target)
    answer["findings"] = [one.as_dict() for one in report.findings]
    if report.ok:
        program = parse_program(request.program.text, request.program.name)
        function = choose_function(program, request.function)
        compiled = compile_for_device(
            program, function, request.options, target, toolchain, Path(request.cache),
            cancelled=teller.cancelled if teller is not None else None,
        )  # fmt: skip
        answer |= {
            "ok": compiled.ok,
            "artefact": str(compiled.artefact.folder) if compiled.artefact else None,
            "key": compiled.key,
            "cached": compiled.cached,
            "function": function.sym_name.data,
            "arguments": [
                {"name": a.name, "shape": list(a.shape) if a.shape is not None else None, "type": a.element}
                for a in signature(function)
            ],
            "plan": {
                "format": compiled.plan.format if compiled.plan else None,
                "why": compiled.plan.why if compiled.plan else None,
                "kernel": compiled.plan.kernel if compiled.plan else None,
                "objects": dict(compiled.objects),
                "log": compiled.log,
                "toolchain": identify(toolchain).as_dict(),
            },
        }
        answer["findings"] += [one.as_dict() for one in compiled.findings]
    answer["wall_s"] = round(time.monotonic() - started, 3)
    return answer


def run_answer(request: RunRequest, teller: Teller) -> dict[str, Any]:
    """Check, compile, run on the device: the fields of the emulator's run.

    Raises:
        UnusableInput: no toolchain in the request, inputs that do not fit, or something only the emulator does.
        RunStopped: a cancel request came.
    """
    started = time.monotonic()
    for asked, name in (
        (request.timeline, "timeline"), (request.tile_map, "tile_map"), (request.rounding, "rounding"),
        (request.numerics == "f32", "numerics f32"),
    ):  # fmt: skip
        if asked:
            raise UnusableInput(f"{name} is the emulator's: leave it out, or run with backend emulator")
    toolchain = _toolchain(request)
    inputs, note = _inputs(request)
    patience = _patience(request.timeout_s)
    cache = Path(request.cache) if request.cache else teller.folder / "artefacts"
    with XrtBackend(
        toolchain, cache=cache, device=request.device, patience=patience, cancelled=teller.cancelled
    ) as backend:
        name = Path(request.program.name).stem or "program"
        kernel = backend.load(request.program.text, name=name, options=request.options)
        if isinstance(kernel, Refused):
            if teller.cancelled():
                raise RunStopped("stopped by a cancel request")
            return _ran(False, started, kernel.findings, None, None, reached=False)
        remarks = non_finite({f"arg{position}": array for position, array in inputs.items()})
        run = kernel.bind({}).run(inputs)
        if teller.cancelled():
            raise RunStopped("stopped by a cancel request")
        outputs = None
        if run.outputs:
            outputs = request.outputs or str(teller.folder / "out.npz")
            write_arrays(Path(outputs), {f"arg{position}": array for position, array in run.outputs.items()})
        timed = None
        if request.profile and run.ok:
            from npu_tools.backends.xrt.profile import profile_program

            timed = profile_program(backend, kernel, inputs)
        answer = _ran(
            run.ok, started, (*remarks, *kernel.findings, *run.findings), outputs, run.measured_us, run.counters
        )
    if timed is not None:
        answer["profile"] = timed.as_dict()
    return answer | ({"inputs": note} if note else {})


def _inputs(request: RunRequest) -> tuple[dict[int, Any], str]:
    """Inputs by position, and what they are where nobody gave any."""
    try:
        program = parse_program(request.program.text, request.program.name)
    except ProgramSyntaxError:
        return {}, ""  # loading says it, with its place
    arguments = signature(choose_function(program, request.function))
    if request.inputs is not None:
        named, note = fitted(read_arrays(Path(request.inputs)), arguments), ""
    else:
        seed = request.seed or 0
        named = seeded(arguments, seed)
        note = f"from seed {seed}: floats standard normal over the root of the last extent, integers 0 to 7"
    return {int(name.removeprefix("arg")): array for name, array in named.items()}, note


def _ran(
    ok: bool,
    started: float,
    findings: Any,
    outputs: str | None,
    measured_us: float | None,
    counters: Mapping[str, Any] | None = None,
    *,
    reached: bool = True,
) -> dict[str, Any]:
    return {
        "ok": ok,
        "ran_on": "npu" if reached else None,
        "modelled_us": None,
        "measured_us": measured_us,
        "wall_s": round(time.monotonic() - started, 3),
        "counters": dict(counters or {}),
        "diagnostics": [one.as_dict() for one in findings],
        "outputs": outputs,
    }


def _patience(timeout_s: float) -> Any:
    """A run's limit bounds the wait for one dispatch; the usual one where the caller's is longer than any dispatch is."""
    from dataclasses import replace

    from npu_tools.backends.xrt.session import Patience

    usual = Patience()
    return replace(usual, dispatch_s=min(usual.dispatch_s, timeout_s), lock_s=min(usual.lock_s, timeout_s))


def _toolchain(request: CompileRequest | RunRequest) -> Toolchain:
    if request.toolchain is None:
        raise UnusableInput(
            "the xrt backend needs to be told where mlir-air and XRT are; 'herdbook doctor' says what is missing"
        )
    return request.toolchain


def kernel_facts(kernel: XrtKernel) -> Mapping[str, Any]:
    """What a loaded kernel is on the device, for records."""
    return {"format": kernel.artefact.format, "artefact": kernel.artefact.folder.name, "kernel": kernel.artefact.kernel}
