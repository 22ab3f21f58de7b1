"""Compile for the emulator: parse, verify, check against the device, lower to a plan; cached by content. For the device,
`backends.xrt` does it and answers with the same fields.

An artefact is a folder named by the digest of everything that decides it: the program, the device, the options and
the identity of the tools. It holds the program in generic form and a manifest. A failed compile is an answer with
findings, and is not cached.
"""

from __future__ import annotations

import hashlib
import json
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from npu_tools.air import Program, parse_program
from npu_tools.arrays import signature
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.jobs.records import file_digest, read_json, write_json
from npu_tools.requests import CompileRequest

if TYPE_CHECKING:
    from npu_tools.backends.xrt.answers import Teller

PROGRAM_FILE = "program.mlir"
MANIFEST_FILE = "manifest.json"


def compile_program(request: CompileRequest, teller: Teller | None = None) -> dict[str, Any]:
    """Compile: {"ok", "artefact", "key", "cached", "compiled_for", "function", "arguments", "findings", "wall_s"}.

    Raises:
        UnusableInput: the device is unknown, the function cannot be chosen, or the cache cannot be written.
    """
    from npu_tools.check import check_program_text
    from npu_tools.device import device

    if request.backend == "xrt":
        from npu_tools.backends.xrt.answers import compile_answer

        return compile_answer(request, teller)
    started = time.monotonic()
    target = device(request.device)
    key = artefact_key(request, target.name)
    folder = Path(request.cache) / key
    manifest = read_json(folder / MANIFEST_FILE)
    if manifest is not None and file_digest(folder / PROGRAM_FILE) == manifest.get("program_digest"):
        return {**manifest["answer"], "cached": True, "wall_s": round(time.monotonic() - started, 3)}
    report = check_program_text(request.program.text, request.program.name, target)
    answer: dict[str, Any] = {
        "ok": False,
        "artefact": None,
        "key": key,
        "cached": False,
        "compiled_for": f"emulator of {target.name}",
        "function": None,
        "arguments": [],
        "findings": [finding.as_dict() for finding in report.findings],
    }
    if report.ok:
        lowered, plan = _lower(parse_program(request.program.text, request.program.name), request)
        answer["findings"] += [finding.as_dict() for finding in lowered]
        answer |= plan
        answer["ok"] = not any(finding.severity == "error" for finding in lowered)
        if answer["ok"]:
            _keep(folder, request.program.text, key, answer)
            answer["artefact"] = str(folder)
    answer["wall_s"] = round(time.monotonic() - started, 3)
    return answer


def read_artefact(folder: Path) -> str:
    """The program text of an artefact.

    Raises:
        UnusableInput: no artefact, or one whose program was changed.
    """
    manifest = read_json(folder / MANIFEST_FILE)
    if manifest is None:
        raise UnusableInput(f"{folder} is no artefact of 'compile': it has no readable {MANIFEST_FILE}")
    if file_digest(folder / PROGRAM_FILE) != manifest.get("program_digest"):
        raise UnusableInput(f"{folder / PROGRAM_FILE} is not what was compiled; compile it again")
    return (folder / PROGRAM_FILE).read_text(encoding="utf-8")


def artefact_key(request: CompileRequest, target: str) -> str:
    """Digest of all that decides the artefact."""
    decides = {
        "program": hashlib.sha256(request.program.text.encode("utf-8", "surrogatepass")).hexdigest(),
        "device": target,
        "backend": request.backend,
        "function": request.function,
        "numerics": request.numerics,
        "toolchain": toolchain_identity(),
    }
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


@cache
def toolchain_identity() -> dict[str, str]:
    """Versions and the digest of our own source: a changed rule or op makes a new artefact."""
    source = hashlib.sha256()
    root = files("npu_tools")
    for path in sorted(Path(str(root)).rglob("*")):
        if path.suffix in (".py", ".toml", ".json") and path.is_file():
            source.update(path.name.encode() + path.read_bytes())
    names = ("herdbook", "xdsl", "numpy", "ml_dtypes")
    return {"npu_tools": source.hexdigest()[:16], **{name: _version(name) for name in names}}


def _lower(program: Program, request: CompileRequest) -> tuple[list[Finding], dict[str, Any]]:
    from npu_tools.emulator.plan import plan_program
    from npu_tools.emulator.run import choose_function

    function = choose_function(program, request.function)
    arguments = signature(function)
    findings, summary = plan_program(program, function.sym_name.data, numerics=request.numerics)
    described = [
        {"name": a.name, "shape": list(a.shape) if a.shape is not None else None, "type": a.element} for a in arguments
    ]
    return findings, {"function": function.sym_name.data, "arguments": described, "plan": summary}


def _keep(folder: Path, text: str, key: str, answer: dict[str, Any]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{key}.lock", timeout=60):
            program = folder / PROGRAM_FILE
            program.write_text(text, encoding="utf-8", errors="surrogatepass")
            stored = {**answer, "artefact": str(folder)}
            write_json(
                folder / MANIFEST_FILE,
                {
                    "key": key,
                    "program_digest": file_digest(program),
                    "toolchain": toolchain_identity(),
                    "answer": stored,
                },
            )
    except OSError as error:
        raise UnusableInput(f"cannot write the artefact cache {folder.parent}: {error.strerror or error}") from None


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
