"""Compile for the device: private folder, external kernels, aircc in a child, artefact by content and toolchain.

    answer = compile_for_device(program, function, options, device, toolchain, cache)
    answer.ok, answer.artefact, answer.findings

An artefact's folder is named by the digest of everything that decides it: program, device, options, external kernels'
sources, and who the tools are. It is filled under another name and moved into place whole, so that nobody ever sees half
of one. aircc's output is kept, also of a compile that succeeded; of one that failed it is all that is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from xdsl.dialects.func import FuncOp

from npu_tools.air import Program
from npu_tools.backends.xrt.external import Wanted, build_object, source_digest, wanted_objects
from npu_tools.backends.xrt.machine import free_mb
from npu_tools.backends.xrt.options import INPUT, CompilePlan, plan_compile
from npu_tools.backends.xrt.outcomes import first_error, outcome, read_log, warnings_in
from npu_tools.backends.xrt.toolchain import Toolchain, identify, known_releases, peano_folder, pinned
from npu_tools.device import Device
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.jobs.records import file_digest, read_json, write_json
from npu_tools.process import Ended, run_child

PROGRAM_FILE, MANIFEST_FILE = "program.mlir", "manifest.json"
TIMEOUT_S = 1800.0
"""Longest a compile may take unless said otherwise: upstream's budget for an LLM's verify (nightlyPerfBenchmark.yml)."""
NEED_MB = 300
"""Free space a compile starts with: core ELFs, temporaries and clones of the module."""
PROJECT = "air_project"


@dataclass(frozen=True, slots=True)
class DeviceArtefact:
    """A compiled program on disk."""

    folder: Path
    binary: Path
    insts: Path | None
    kernel: str
    format: str
    device: str
    function: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """How a compile went. `log` is where aircc's output is."""

    key: str
    artefact: DeviceArtefact | None
    findings: tuple[Finding, ...]
    cached: bool
    wall_s: float
    plan: CompilePlan | None = None
    objects: Mapping[str, str] = field(default_factory=dict[str, str])
    log: str | None = None

    @property
    def ok(self) -> bool:
        """Whether there is an artefact."""
        return self.artefact is not None


def compile_for_device(
    program: Program,
    function: FuncOp,
    options: Mapping[str, Any],
    device: Device,
    toolchain: Toolchain,
    cache: Path,
    *,
    timeout_s: float | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Compiled:
    """Compile, or find the artefact of an earlier compile.

    Raises:
        UnusableInput: an unknown option, or the cache cannot be written.
    """
    started = time.monotonic()
    plan = plan_compile(function, options, device)
    if isinstance(plan, list):
        return _ended("", None, plan, started)
    wanted, findings = wanted_objects(program, plan.objects)
    aircc, peano = toolchain.find("aircc"), peano_folder(toolchain)
    findings += _tools_missing(toolchain, aircc, peano)
    if aircc is None or peano is None or any(one.severity == "error" for one in findings):
        return _ended("", plan, findings, started)
    key = artefact_key(program, plan, wanted, toolchain)
    folder = cache / key
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{key}.lock", timeout=timeout_s or plan.timeout_s or TIMEOUT_S):
            found = read_artefact(folder)
            if found is not None:
                kept: dict[str, Any] = read_json(folder / MANIFEST_FILE) or {}
                findings += [Finding(**one) for one in kept.get("findings", [])]
                return _ended(key, plan, findings, started, found, cached=True, log=str(folder / "aircc"))
            return _compile(
                program, plan, wanted, toolchain, cache, key, aircc, peano, findings, started, timeout_s, cancelled
            )
    except Timeout:
        findings.append(outcome("compile-timeout", seconds=time.monotonic() - started))
        return _ended(key, plan, findings, started)
    except OSError as error:
        if error.errno == 28:
            findings.append(outcome("disk-full", place=cache, need_mb=NEED_MB, diagnostic=str(error)))
            return _ended(key, plan, findings, started)
        raise UnusableInput(f"cannot write the artefact cache {cache}: {error.strerror or error}") from None


def artefact_key(program: Program, plan: CompilePlan, wanted: list[Wanted], toolchain: Toolchain) -> str:
    """Digest of all that decides the artefact."""
    sources = {one.name: [one.source, dict(one.defines), source_digest(one, toolchain)] for one in wanted}
    decides = {
        "program": hashlib.sha256(program.text.encode("utf-8", "surrogatepass")).hexdigest(),
        "device": plan.device,
        "format": plan.format,
        "function": plan.function,
        "options": dict(plan.options),
        "objects": sources,
        "toolchain": identify(toolchain).as_dict(),
    }
    return "xrt-" + hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:32]


def read_artefact(folder: Path) -> DeviceArtefact | None:
    """The artefact of a folder, if it is whole: every file there with the digest it was kept with."""
    manifest = read_json(folder / MANIFEST_FILE)
    kept = (manifest or {}).get("device_artefact")
    if not kept or any(file_digest(folder / name) != said for name, said in kept["files"].items()):
        return None
    insts = folder / kept["insts"] if kept["insts"] else None
    return DeviceArtefact(
        folder, folder / kept["binary"], insts, kept["kernel"], kept["format"], kept["device"], kept["function"]
    )


def toolchain_findings(toolchain: Toolchain) -> list[Finding]:
    """What is known of the installed Peano: an error for a release that miscompiles, a warning for a doubtful line."""
    version = identify(toolchain).packages["llvm-aie"]
    good = pinned("llvm-aie")
    for known in known_releases("llvm-aie", version):
        if known.code:
            return [outcome(known.code, version=version, why=known.why, pinned=good.version if good else "")]
    return []


def _compile(
    program: Program,
    plan: CompilePlan,
    wanted: list[Wanted],
    toolchain: Toolchain,
    cache: Path,
    key: str,
    aircc: Path,
    peano: Path,
    findings: list[Finding],
    started: float,
    timeout_s: float | None,
    cancelled: Callable[[], bool] | None,
) -> Compiled:
    if free_mb(cache) < NEED_MB:
        findings.append(outcome("disk-full", place=cache, need_mb=NEED_MB))
        return _ended(key, plan, findings, started)
    work = Path(tempfile.mkdtemp(dir=cache, prefix=f"{key}.part-"))
    logs = cache / "logs"
    logs.mkdir(exist_ok=True)
    log = logs / f"{key}.{os.getpid()}"
    try:
        objects = _stage(wanted, toolchain, plan, cache, work)
        if isinstance(objects, Finding):
            return _ended(key, plan, [*findings, objects], started)
        (work / INPUT).write_text(program.text, encoding="utf-8", errors="surrogatepass")
        limit = timeout_s or plan.timeout_s or TIMEOUT_S
        ended = run_child(
            [str(aircc), *plan.arguments(peano)],
            timeout_s=limit, folder=work, environment=toolchain.for_tools(), log=log, cancelled=cancelled,
        )  # fmt: skip
        findings += _findings(ended, plan, work, limit, str(log))
        if any(one.severity == "error" for one in findings):
            return _ended(key, plan, findings, started, objects=objects, log=str(log))
        artefact = _keep(program, plan, work, cache / key, key, toolchain, findings, log, objects)
        return _ended(key, plan, findings, started, artefact, objects=objects, log=str(cache / key / "aircc"))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _stage(
    wanted: list[Wanted], toolchain: Toolchain, plan: CompilePlan, cache: Path, work: Path
) -> dict[str, str] | Finding:
    """Every object the program links, in the working folder and in air_project: aiecc looks in both."""
    project = work / PROJECT
    project.mkdir()
    staged: dict[str, str] = {}
    for one in wanted:
        built = build_object(one, toolchain, plan.device, cache / "objects")
        if isinstance(built, Finding):
            return built
        for place in (work, project):
            shutil.copy2(built, place / one.name)
        staged[one.name] = f"{one.source}: {one.said}"
    return staged


def _findings(ended: Ended, plan: CompilePlan, work: Path, limit: float, log: str) -> list[Finding]:
    """What the compile's end means; errors even of a compile that ended with 0."""
    if ended.state == "timeout":
        return [outcome("compile-timeout", seconds=limit)]
    if ended.state == "cancelled":
        return [outcome("stopped")]
    if ended.state == "missing":
        return [outcome("toolchain-missing", tool=ended.err)]
    context = {"place": str(work), "need_mb": NEED_MB, "how": _how(ended), "function": f"@{plan.function}"}
    known = read_log(ended.text, "compile", **context)
    if ended.state == "signal":
        killed = ended.code in (-9, -signal.SIGKILL.value if hasattr(signal, "SIGKILL") else -9)
        found = [
            outcome(
                "compiler-killed" if killed else "compiler-crashed", how=_how(ended), diagnostic=first_error(ended.text)
            )
        ]
        return found + [one for one in known if one.code not in ("compiler-killed", "compiler-crashed")]
    if ended.state == "failed":
        first = first_error(ended.text)
        return known or [outcome("compile-failed", how=_how(ended), first=first, log=f"{log}.err", diagnostic=first)]
    # It says it succeeded. A guessed device or a missing Peano is an error all the same; other texts are warnings.
    serious = [one for one in known if one.code in ("device-fallback", "peano-missing", "peano-folder", "entry-name")]
    broken = _damage(work / plan.binary) or (_damage(work / plan.insts) if plan.insts else None)
    return [*serious, *([broken] if broken else []), *warnings_in(ended.text, serious)]


def _damage(path: Path) -> Finding | None:
    """Why a file aircc left cannot be what it says it is."""
    if not path.is_file():
        return outcome("output-missing", file=path.name)
    content = path.read_bytes()
    how = ""
    if not content:
        how = "it is empty"
    elif path.suffix == ".xclbin":
        how = _xclbin_damage(content)
    elif path.suffix == ".elf":
        how = _elf_damage(content)
    elif len(content) % 4:
        how = f"{len(content)} bytes are no whole number of 4-byte instructions"
    return outcome("output-truncated", file=path.name, how=how) if how else None


def _xclbin_damage(content: bytes) -> str:
    """The header says how long the file is: magic, then m_header.m_length at 0x130 (Xilinx/XRT xclbin.h, struct axlf)."""
    if content[:7] != b"xclbin2":
        return "it does not begin with xclbin2"
    if len(content) < _AXLF_LENGTH_AT + 8:
        return f"{len(content)} bytes are less than its header"
    (length,) = struct.unpack_from("<Q", content, _AXLF_LENGTH_AT)
    return f"it has {len(content)} bytes and says {length}" if length > len(content) else ""


_AXLF_LENGTH_AT = 304


def _elf_damage(content: bytes) -> str:
    """An ELF says where its section headers end."""
    if content[:4] != b"\x7fELF" or len(content) < 52:
        return "it is no ELF file"
    wide, order = content[4] == 2, "<" if content[5] == 1 else ">"
    if wide and len(content) < 64:
        return "its header is cut"
    (start,) = struct.unpack_from(order + ("Q" if wide else "I"), content, 40 if wide else 32)
    size, count = struct.unpack_from(order + "HH", content, 58 if wide else 46)
    return (
        f"it has {len(content)} bytes, its sections end at {start + size * count}"
        if start + size * count > len(content)
        else ""
    )


def _keep(
    program: Program,
    plan: CompilePlan,
    work: Path,
    folder: Path,
    key: str,
    toolchain: Toolchain,
    findings: list[Finding],
    log: Path,
    objects: Mapping[str, str],
) -> DeviceArtefact:
    whole = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{key}.whole-"))
    (whole / PROGRAM_FILE).write_text(program.text, encoding="utf-8", errors="surrogatepass")
    names = [plan.binary, *([plan.insts] if plan.insts else [])]
    for name in names:
        shutil.copy2(work / name, whole / name)
    for ending in (".out", ".err"):
        part = log.with_name(log.name + ending)
        if part.is_file():
            shutil.move(part, whole / f"aircc{ending}")
    kept = {
        "binary": plan.binary, "insts": plan.insts, "kernel": plan.kernel, "format": plan.format, "device": plan.device,
        "function": plan.function, "files": {name: file_digest(whole / name) for name in names},
    }  # fmt: skip
    write_json(
        whole / MANIFEST_FILE,
        {
            "key": key, "program_digest": file_digest(whole / PROGRAM_FILE), "toolchain": identify(toolchain).as_dict(),
            "device_artefact": kept, "objects": dict(objects), "options": dict(plan.options),
            "findings": [one.as_dict() for one in findings if one.code.startswith("compiler-")],
        },
    )  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(whole, folder)
    found = read_artefact(folder)
    assert found is not None
    return found


def _tools_missing(toolchain: Toolchain, aircc: Path | None, peano: Path | None) -> list[Finding]:
    found: list[Finding] = []
    if aircc is None:
        found.append(outcome("toolchain-missing", tool="aircc"))
    elif toolchain.find("aiecc") is None and toolchain.find("aiecc.py") is None:
        found.append(outcome("aiecc-missing"))
    if peano is None:
        found.append(outcome("peano-folder") if toolchain.peano else outcome("peano-missing"))
    return found + toolchain_findings(toolchain)


def _ended(
    key: str,
    plan: CompilePlan | None,
    findings: list[Finding],
    started: float,
    artefact: DeviceArtefact | None = None,
    *,
    cached: bool = False,
    objects: Mapping[str, str] | None = None,
    log: str | None = None,
) -> Compiled:
    wall = time.monotonic() - started
    return Compiled(key, artefact, tuple(findings), cached, wall, plan, dict(objects or {}), log)


def _how(ended: Ended) -> str:
    if ended.code is None:
        return ended.state
    if ended.code < 0:
        try:
            return signal.Signals(-ended.code).name
        except ValueError:
            return f"signal {-ended.code}"
    return f"exit code {ended.code}"
