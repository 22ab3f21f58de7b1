"""`herdbook doctor`: what this installation has, what is missing, and how to get it.

Looks at the memory's own parts, and at what a Ryzen AI machine needs for its NPU: there every probe runs in a child with
a time limit, so a wedged device is a line and never a hang. It changes nothing and downloads nothing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from typing import Literal

from mcp_server.config import Config
from mcp_server.server import herdbook_version

MIN_FREE_MB = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it is, what to do, and the record behind it (`herdbook get LESSON`)."""

    name: str
    state: Literal["pass", "warn", "fail"]
    text: str
    fix: str = ""
    lesson: str = ""


def examine(wanted: bool = False) -> list[Finding]:
    """Every check, in the order a newcomer should fix them. `wanted`: what the NPU lacks is in the way."""
    found = [
        Finding("herdbook", "pass", f"{herdbook_version()} on Python {platform.python_version()} ({sys.platform})")
    ]
    try:
        config = Config.from_environment()
    except ValueError as error:
        return [*found, Finding("environment", "fail", str(error), "correct or unset the variable")]
    found += [_home(config), _disk(config), *_memory(config), _weights(config), _chroma(config)]
    for extra, module in (("shared", "chromadb"), ("models", "sentence_transformers")):
        found.append(_extra(extra, module))
    found.append(_kernels_trap())
    return [*found, *npu_lines(config, wanted)]


def npu_lines(config: Config, wanted: bool) -> list[Finding]:
    """The NPU, its driver and modes, and the tools that compile for it."""
    from npu_tools.backends.xrt import Toolchain
    from npu_tools.backends.xrt.checklist import checklist

    toolchain = Toolchain.model_validate(dict(config.toolchain))
    lines = checklist(toolchain, wanted=wanted, cache=config.home if wanted else None)
    return [Finding(line.name, line.state, line.text, line.fix, line.lesson) for line in lines]


def _home(config: Config) -> Finding:
    if not os.path.exists(config.home):
        return Finding("data directory", "pass", f"{config.home} (made at the first use)")
    if os.access(config.home, os.W_OK):
        return Finding("data directory", "pass", str(config.home))
    return Finding("data directory", "warn", f"{config.home} is read-only: nothing can be contributed",
                   "make it writable or set HERDBOOK_HOME")  # fmt: skip


def _disk(config: Config) -> Finding:
    place = next((p for p in (config.home, *config.home.parents) if os.path.exists(p)), config.home)
    free = shutil.disk_usage(place).free // 2**20
    if free < MIN_FREE_MB:
        return Finding("disk", "fail", f"{free} MB free at {place}", f"free at least {MIN_FREE_MB} MB")
    return Finding("disk", "pass", f"{free} MB free")


def _memory(config: Config) -> list[Finding]:
    from kb import open_memory

    memory = open_memory(config.memory())
    counts = memory.counts()
    shipped = sum(count for kind, count in counts.items() if kind != "user")
    found = [Finding("records", "pass" if shipped else "fail", f"{shipped} shipped, {counts['user']} of this home",
                     "" if shipped else "reinstall herdbook")]  # fmt: skip
    found += [Finding("memory", "warn", warning) for warning in memory._warnings]  # pyright: ignore[reportPrivateUsage]
    memory.close()
    return found


def _weights(config: Config) -> Finding:
    from kb.embed import find_weights, verify_weights
    from kb.errors import WeightsMissing

    if not config.dense:
        return Finding("search by meaning", "warn", "turned off by HERDBOOK_DENSE=0", "unset it")
    try:
        folder = find_weights(config.weights)
        verify_weights(folder)
    except WeightsMissing as error:
        return Finding("search by meaning", "warn", str(error), "herdbook setup")
    return Finding("search by meaning", "pass", f"MiniLM weights verified in {folder}")


def _chroma(config: Config) -> Finding:
    if config.chroma is None:
        return Finding("vector index", "pass", "built in (exact)")
    from kb.errors import StoreUnavailable
    from kb.vectors import ChromaIndex

    host, port, ssl = config.chroma
    try:
        ChromaIndex(host, port, "herdbook", ssl)
    except StoreUnavailable as error:
        return Finding("vector index", "warn", str(error), "the built-in index is used meanwhile")
    return Finding("vector index", "pass", f"Chroma at {host}:{port}")


def _extra(extra: str, module: str) -> Finding:
    if importlib.util.find_spec(module) is None:
        return Finding(f"extra {extra}", "pass", f"not installed (optional: pip install 'herdbook[{extra}]')")
    distribution = module.replace("_", "-")
    return Finding(f"extra {extra}", "pass", f"{distribution} {importlib.metadata.version(distribution)}")


def _kernels_trap() -> Finding:
    """An importable `kernels` that is not Hugging Face's breaks transformers."""
    spec = importlib.util.find_spec("kernels")
    if spec is not None and spec.origin is None:
        return Finding("import path", "warn", "a folder named kernels is importable here; transformers may fail on it",
                       "run from another folder")  # fmt: skip
    return Finding("import path", "pass", "no stray 'kernels' package")
