"""Where the real tools are, and which ones they are.

A `Toolchain` holds places and the children's environment; whoever reads the environment (mcp_server/config.py) makes it,
so nothing here depends on the process it runs in. A place that may not be looked into is not there: os.path's answers,
where pathlib's raise. `identify` asks the tools who they are: the answer is part of every
artefact's key, for a Peano of another day compiles the same program to other numbers.

    toolchain.find("aircc")            # the wheel's own first, then the search folders
    identify(toolchain).digest
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tomllib
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from npu_tools.process import Ended, run_child

PROBE_S = 15.0
"""Longest a probe of one tool may take; mlir-air gives xrt-smi 10 s (python/air/backend/xrt.py)."""
TOOLS = ("aircc", "aiecc", "aie-opt", "air-opt", "llvm-link", "xrt-smi")
_PACKAGES = ("mlir_air", "mlir_aie", "llvm-aie")
_VERSION = re.compile(r"version\s+v?(\d+[\w.+-]*)", re.IGNORECASE)


class Toolchain(BaseModel):
    """Places of the tools of one machine. `root` is where sys, dev and proc are; tests give a tree of their own."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    python: str = sys.executable
    """The interpreter that has mlir-air, mlir-aie and pyxrt; it need not have Herdbook."""
    search: tuple[str, ...] = ()
    """Folders in which tools are looked for, in order."""
    environment: dict[str, str] = Field(default_factory=dict)
    """What children get as their whole environment."""
    peano: str | None = None
    """llvm-aie's folder (the one with bin/clang++), where given."""
    aie: str | None = None
    """mlir-aie's folder, where given."""
    examples: str | None = None
    """mlir-air's programming_examples: the sources of the external kernels."""
    root: str = "/"
    temp: str = "/tmp"  # noqa: S108  (the folder of upstream's lock, not a file of ours)
    """The folder for temporary files, where upstream's NPU lock is."""

    def find(self, tool: str) -> Path | None:
        """The executable of this name: mlir-air's wheel first, as its own resolve_tool does, then the search folders."""
        if tool in ("aircc", "air-opt"):
            bundled = self._bundled(tool)
            if bundled is not None:
                return bundled
        folders = self.folders()
        found = shutil.which(tool, path=os.pathsep.join(folders)) if folders else None
        if found is None and tool == "xrt-smi":
            for place in ("opt/xilinx/xrt/bin/xrt-smi", "Windows/System32/AMD/xrt-smi.exe"):
                if os.path.isfile(Path(self.root) / place):
                    return Path(self.root) / place
        return Path(found) if found else None

    def folders(self) -> list[str]:
        """Where tools are looked for: the search folders, and behind them what the toolchain's own Python brings along."""
        interior = inspect(self)
        own = [str(Path(self.python).parent)] if os.path.isabs(self.python) and "air" in interior.modules else []
        for name in ("mlir_aie", "mlir_air"):
            if name in interior.folders:
                own.append(str(Path(interior.folders[name]) / "bin"))
        if self.aie:
            own.append(str(Path(self.aie) / "bin"))
        return [*self.search, *(each for each in dict.fromkeys(own) if each not in self.search)]

    def for_tools(self) -> dict[str, str]:
        """The environment of compilers: the children's, with those folders on PATH; aircc looks aiecc up there."""
        return {**self.environment, "PATH": os.pathsep.join(self.folders())}

    def at(self, *parts: str) -> Path:
        """A place under the root of sys, dev and proc."""
        return Path(self.root).joinpath(*parts)

    def _bundled(self, tool: str) -> Path | None:
        """The wheel's own: mlir_air/bin. Asked of the distribution first, for another package may be named air."""
        interior = inspect(self)
        places = [Path(interior.folders["mlir_air"])] if "mlir_air" in interior.folders else []
        origin = Path(interior.modules.get("air", ""))
        if len(origin.parents) > 2:  # mlir_air/python/air/__init__.py
            places.append(origin.parents[2])
        name = f"{tool}.exe" if os.name == "nt" else tool
        return next((place / "bin" / name for place in places if os.path.isfile(place / "bin" / name)), None)


@dataclass(frozen=True, slots=True)
class Interior:
    """What the toolchain's Python has, found without importing any of it. `modules`: name → file it would load."""

    ok: bool
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict[str, str])
    folders: dict[str, str] = field(default_factory=dict[str, str])
    modules: dict[str, str] = field(default_factory=dict[str, str])
    pyxrt_files: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the tools are. `tools`: name → what tells one build from another; absent ones are "none"."""

    packages: dict[str, str]
    tools: dict[str, str]
    python: str

    @property
    def digest(self) -> str:
        """One word for all of it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "digest": self.digest}


@dataclass(frozen=True, slots=True)
class Known:
    """One release of a package that somebody reported on."""

    package: str
    version: str
    state: str
    why: str
    source: str
    code: str = ""


def inspect(toolchain: Toolchain) -> Interior:
    """What the toolchain's Python has. Asked once a process for one toolchain."""
    return _inspect(toolchain.python, _frozen(toolchain.environment))


def identify(toolchain: Toolchain) -> Identity:
    """Versions of the packages and a mark of each tool: size, time, and the version it says of itself where it is quick."""
    interior = inspect(toolchain)
    peano = peano_folder(toolchain)
    places: dict[str, Path | None] = {name: toolchain.find(name) for name in TOOLS if name != "xrt-smi"}
    places["clang++"] = peano / "bin" / _executable("clang++") if peano else None
    tools = {name: _mark(place) for name, place in places.items()}
    packages = {name: interior.packages.get(name, "none") for name in _PACKAGES}
    return Identity(packages, tools, interior.python or "none")


def peano_folder(toolchain: Toolchain) -> Path | None:
    """llvm-aie's folder: the one given, else the installed wheel's, as XRTBackend looks for it."""
    given = Path(toolchain.peano) if toolchain.peano else None
    if given is not None and os.path.isdir(given):
        return given
    installed = inspect(toolchain).folders.get("llvm-aie")
    return Path(installed) if installed and os.path.isdir(installed) else None


def aie_include(toolchain: Toolchain) -> Path | None:
    """The folder with aie_api/aie.hpp: beside aie-opt, else under the mlir-aie folder that was given or is installed."""
    candidates: list[Path] = []
    aie_opt = toolchain.find("aie-opt")
    if aie_opt is not None:
        candidates.append(aie_opt.resolve().parent.parent)
    if toolchain.aie:
        candidates.append(Path(toolchain.aie))
    installed = inspect(toolchain).folders.get("mlir_aie")
    if installed:
        candidates.append(Path(installed))
    for place in candidates:
        if os.path.isfile(place / "include" / "aie_api" / "aie.hpp"):
            return place / "include"
    return None


def version_of(tool: Path, toolchain: Toolchain) -> str | None:
    """The version a tool prints of itself; None where it does not answer in time."""
    ended = run_child([str(tool), "--version"], timeout_s=PROBE_S, environment=toolchain.environment)
    found = _VERSION.search(ended.text)
    return found.group(1) if ended.ok and found else None


def known_releases(package: str, version: str) -> list[Known]:
    """What is known of this release: `bad`, `good` or `doubtful`."""
    return [one for one in _known() if one.package == package and re.match(_pattern(one.version), version)]


def pinned(package: str) -> Known | None:
    """The release upstream's CI pins."""
    return next((one for one in _known() if one.package == package and one.state == "good"), None)


def ask_python(toolchain: Toolchain, child: str, *arguments: str, timeout_s: float = PROBE_S) -> tuple[Ended, Any]:
    """Run one of `children/` in the toolchain's Python; what it ended like, and the JSON of its last line (or None)."""
    script = Path(str(files("npu_tools.backends.xrt") / "children" / f"{child}.py"))
    ended = run_child(
        [toolchain.python, str(script), *arguments], timeout_s=timeout_s, environment=toolchain.environment
    )
    lines = ended.out.strip().splitlines()
    try:
        return ended, json.loads(lines[-1]) if lines else None
    except ValueError:
        return ended, None


@cache
def _inspect(python: str, environment: tuple[tuple[str, str], ...]) -> Interior:
    ended, said = ask_python(Toolchain(python=python, environment=dict(environment)), "interior")
    if not isinstance(said, dict):
        first = next(iter(ended.err.strip().splitlines()[-1:]), "") or ended.state
        return Interior(False, problem=f"{python} does not answer: {first}")
    answer = cast("dict[str, Any]", said)
    return Interior(
        True,
        python=answer["python"],
        packages=answer["packages"],
        folders=answer["folders"],
        modules=answer["modules"],
        pyxrt_files=tuple(answer["pyxrt_files"]),
    )


@cache
def _known() -> tuple[Known, ...]:
    text = (files("npu_tools.backends.xrt") / "releases.toml").read_text(encoding="utf-8")
    return tuple(Known(**row) for row in tomllib.loads(text)["release"])


def _pattern(version: str) -> str:
    return re.escape(version).replace(r"\*", ".*") + r"\Z"


def _mark(place: Path | None) -> str:
    if place is None:
        return "none"
    try:
        stat = place.stat()
    except OSError:
        return "none"
    return f"{place.name} {stat.st_size} {stat.st_mtime_ns}"


def _executable(name: str) -> str:
    return f"{name}.exe" if os.name == "nt" else name


def _frozen(environment: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(environment.items()))
