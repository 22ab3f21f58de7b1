"""Which files of a folder are worth harvesting, read within bounds. Says what was left out; knows nothing of lessons.

>>> reading = read_sources(Path("workspace"))
>>> reading.sources[0].label, reading.sources[0].kind

Every file is untrusted: links that point outside, binaries, files too large and files that are no text are left out and
named. Nothing is run, nothing followed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harvest.errors import SourceUnusable

Kind = Literal["ledger", "job", "document", "registry", "log", "transcript"]

MAX_TEXT_BYTES = 2 * 1024 * 1024
"""Largest note or log read: the longest hand-written progress file seen upstream is 20 kB."""
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""Largest ledger or transcript read."""
MAX_LINE_CHARS = 4_000
"""What of a line of a note is looked at."""
MAX_FILES = 20_000
MAX_TOTAL_BYTES = 512 * 1024 * 1024
_SKIPPED_FOLDERS = frozenset(
    {".git", "node_modules", "__pycache__", ".venv", "venv", "build", "build_peano", "air_project", "site-packages",
     ".pytest_cache", ".ruff_cache", "prefill_kernel_cache", "decode_kernel_cache", "kernel_cache"}
)  # fmt: skip
_NOTES = re.compile(
    r"(?i)^(?:issues?|lessons?(?:[_-]learn(?:ed|t))?|debug[_-]?log|progress|plan|perf[\w-]*|kernels?|notes?|todo"
    r"|phase[\w-]*|known[_-]issues|troubleshooting|gotchas|skill|[\w.-]*(?:investigation|findings|limits?|bug|blockers?|root_cause)"
    r"|decode_[\w-]+|profile)\.md$"
)
_NOTE_FOLDERS = frozenset({"development_progress", "notes", "kernels", "compiler_issues", "kernel_registry", "lessons"})
_NOT_NOTES = re.compile(r"(?i)^(?:readme|license|changelog|contributing|evaluation_report[\w-]*|verdict)\.md$")
_GENERATED = re.compile(
    r"<!-- herdbook: written from the ledger[^>]*-->.*?(?:<!-- herdbook: end[^>]*-->|\Z)", re.DOTALL
)
"""What the machine writes into a workspace's documents: the ledger tells it, and better."""
_LOGS = frozenset({".log", ".err", ".out"})


@dataclass(frozen=True, slots=True)
class Source:
    """One file as text. `label`: its place from the deployment's folder on; `stem`: the part after that folder's name."""

    kind: Kind
    label: str
    path: Path
    text: str

    @property
    def deployment(self) -> str:
        """The name of the folder the deployment lives in."""
        return self.label.split("/", 1)[0]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file that was not read, and why."""

    label: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What a folder holds for a harvest."""

    root: Path
    sources: tuple[Source, ...]
    left_out: tuple[LeftOut, ...]


def read_sources(root: Path) -> Reading:
    """The ledgers, jobs, notes, registries, logs and transcripts below `root` (or the one file `root`).

    Raises:
        SourceUnusable: `root` is no folder or file, or cannot be read.
    """
    if not root.exists():
        raise SourceUnusable(f"{root} does not exist; give a deployment's workspace, a checkout or a file")
    base = root.resolve()
    found: list[Source] = []
    left: list[LeftOut] = []
    total = 0
    try:
        for number, path in enumerate(_files(base)):
            if number >= MAX_FILES or total > MAX_TOTAL_BYTES:
                left.append(
                    LeftOut("…", f"over {MAX_FILES} files or {MAX_TOTAL_BYTES >> 20} MB: harvest a smaller folder")
                )
                break
            kind = _kind_of(path, base)
            if kind is None or (kind == "registry" and _has_ledger(path)):
                continue
            label = _label(path, base)
            text = _text_of(path, base, kind)
            if isinstance(text, LeftOut):
                left.append(LeftOut(label, text.reason))
                continue
            total += len(text)
            if kind in ("document", "log"):
                text = "\n".join(line[:MAX_LINE_CHARS] for line in _GENERATED.sub("", text).split("\n"))
            kind = _by_content(kind, text)
            if kind is not None and text.strip():
                found.append(Source(kind, label, path, text))
    except OSError as error:
        raise SourceUnusable(f"{error.filename or root} cannot be read: {error.strerror}") from None
    return Reading(base, tuple(found), tuple(left))


def _files(base: Path) -> Iterator[Path]:
    if base.is_file():
        yield base
        return
    for folder, names, files in os.walk(base):
        names[:] = sorted(n for n in names if n not in _SKIPPED_FOLDERS)
        here = Path(folder)
        if {"request.json", "state.json"} <= set(files):
            yield here / "request.json"
            names[:] = []
            continue
        for name in sorted(files):
            yield here / name


def _kind_of(path: Path, base: Path) -> Kind | None:
    name, suffix = path.name, path.suffix.lower()
    if name == "request.json":
        return "job"
    if name == "ledger.jsonl":
        return "ledger"
    if suffix == ".jsonl":
        return "transcript"
    parts = {part.lower() for part in path.parts[len(base.parts) - 1 :]}
    if suffix == ".md":
        if path == base:
            return "document"
        if _NOT_NOTES.match(name):
            return None
        return "document" if _NOTES.match(name) or parts & _NOTE_FOLDERS or "skills" in parts else None
    if suffix == ".json" and (parts & {"kernel_registry", "registry"} or "registry" in name.lower()):
        return "registry"
    if suffix in _LOGS:
        return "log"
    if suffix == ".txt" and re.search(r"(?i)log|transcript|session|notes?|lessons?|output|stderr", name):
        return "transcript" if re.search(r"(?i)transcript|session", name) else "log"
    return "document" if path == base and suffix in (".txt", "") else None


def _has_ledger(path: Path) -> bool:
    """Whether a result lies in a workspace whose ledger says the same with its evidence."""
    return any((folder / "ledger.jsonl").is_file() for folder in list(path.parents)[:4])


def _by_content(kind: Kind, text: str) -> Kind | None:
    """A log in which commands are seen being typed is a transcript; a .jsonl of other things is neither."""
    if kind == "log" and len(re.findall(r"(?m)^(?:\$|❯|➜) \S", text)) >= 2:
        return "transcript"
    if kind == "transcript" and text.lstrip().startswith("{"):
        try:
            first = json.loads(text.lstrip().split("\n", 1)[0])
        except ValueError:
            return None
        return kind if isinstance(first, dict) and ({"type", "role", "message", "payload"} & set(first)) else None  # pyright: ignore[reportUnknownArgumentType]
    return kind


def _text_of(path: Path, base: Path, kind: Kind) -> str | LeftOut:
    real = path.resolve()
    inside = real == base or real.is_relative_to(base)
    if not inside:
        return LeftOut("", "a link that points outside the folder")
    if not real.is_file():
        return LeftOut("", "not a regular file")
    limit = MAX_RECORD_BYTES if kind in ("ledger", "transcript") else MAX_TEXT_BYTES
    size = real.stat().st_size
    if size > limit:
        return LeftOut("", f"{size} bytes, over {limit}: too large for a {kind}")
    data = real.read_bytes()
    if b"\0" in data:
        return LeftOut("", "binary")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        return LeftOut("", f"not UTF-8 at byte {error.start}")


def _label(path: Path, base: Path) -> str:
    """`path` from the folder of its deployment on: the same whether a checkout or one deployment of it is harvested."""
    top = base if base.is_dir() else base.parent
    for folder in path.parents:
        if not (folder == top or folder.is_relative_to(top)):
            break
        if any((folder / mark).exists() for mark in ("docs/development_progress", "ledger.jsonl", ".claude/skills")):
            return f"{folder.name}/{path.relative_to(folder).as_posix()}"
    return f"{top.name}/{path.relative_to(top).as_posix()}"
