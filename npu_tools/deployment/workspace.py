"""The folder of one deployment: where things are in it, who is at work in it, and recipes changed for it.

WORKSPACE/ledger.jsonl             every event (ledger.py)
WORKSPACE/config.json              the model's config as deployed
WORKSPACE/settings.json            settings chosen for it, a copy of what the ledger decided
WORKSPACE/recipes/<kernel>/        changed recipe files; whatever is not there is the shipped recipe's
WORKSPACE/results/phase_N/         arrays and figures of a phase; results/reference/ the oracle's
WORKSPACE/*.md, notes/             documents (documents.py) and the agent's own notes
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from npu_tools.errors import NotWritten, UnusableInput, WorkspaceBusy

RECIPE_FILES = ("design.py", "host.py", "kernel.toml", "README.md")
"""What may be changed of a recipe that is shipped: never reference.py, which it is judged by."""
MAX_RECIPE_BYTES = 1_000_000
LEAST_FREE_BYTES = 200_000_000
"""Room asked for before a phase starts; arrays of one small layer already take tens of megabytes."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The places of one deployment."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """The record."""
        return self.folder / "ledger.jsonl"

    @property
    def config(self) -> Path:
        """The model's config as deployed."""
        return self.folder / "config.json"

    @property
    def settings(self) -> Path:
        """Settings by kernel and shape, as decided."""
        return self.folder / "settings.json"

    @property
    def recipes(self) -> Path:
        """Recipe files changed for this deployment."""
        return self.folder / "recipes"

    @property
    def notes(self) -> Path:
        """The agent's notes."""
        return self.folder / "notes"

    @property
    def reference(self) -> Path:
        """What the oracle wrote, by request."""
        return self.folder / "results" / "reference"

    def results(self, phase: int) -> Path:
        """The folder of a phase's results, made if need be."""
        place = self.folder / "results" / f"phase_{phase}"
        make_folder(place)
        return place

    def fresh(self, config: Mapping[str, Any]) -> None:
        """See that a deployment opened here writes over nothing: files of the same names, a model's own folder.

        Raises:
            UnusableInput: something is there that is no deployment's.
        """
        found = [path.name for path in sorted(self.folder.glob("*")) if path.suffix in (".md", ".safetensors", ".gguf")]
        if (
            self.config.is_file() and self.config.read_bytes() != _json(config).encode()
        ):  # ours, if it was killed before its first line
            found.append(self.config.name)
        if found:
            raise UnusableInput(
                f"{self.folder} holds {', '.join(found[:3])} and no ledger: it is no fresh workspace; give an empty or new "
                "folder, as in --workspace deployment"
            )

    @contextmanager
    def working(self) -> Generator[None]:
        """Hold the workspace for one run of the machine.

        Raises:
            WorkspaceBusy: another process is at work here; the text says which.
        """
        make_folder(self.folder)
        lock, who = FileLock(self.folder / "deploy.lock"), self.folder / "deploy.lock.json"
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise WorkspaceBusy(
                f"another deployment is at work in {self.folder} ({_who(who)}); wait for it, cancel its job, or use "
                "another workspace"
            ) from None
        try:
            write_json(who, {"pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
            yield
        finally:
            who.unlink(missing_ok=True)
            lock.release()

    def at_work(self) -> str | None:
        """Who runs the deployment now, or None."""
        lock, who = FileLock(self.folder / "deploy.lock"), self.folder / "deploy.lock.json"
        if not who.is_file():
            return None
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return _who(who)
        lock.release()
        return None

    def room(self) -> None:
        """See that there is room to work.

        Raises:
            UnusableInput: the disk is nearly full.
        """
        free = shutil.disk_usage(self.folder).free
        if free < LEAST_FREE_BYTES:
            raise UnusableInput(
                f"{free // 1_000_000} MB are free at {self.folder}, and a phase needs at least "
                f"{LEAST_FREE_BYTES // 1_000_000}: make room, then run the phase again; nothing was lost"
            )

    def overrides(self) -> dict[str, dict[str, str]]:
        """sha256 of every changed recipe file, by kernel and file name."""
        found: dict[str, dict[str, str]] = {}
        for path in sorted(self.recipes.glob("*/*")):
            if path.is_file():
                found.setdefault(path.parent.name, {})[path.name] = file_digest(path)
        return found

    def kernels(self, shipped: Path) -> Path:
        """One folder of recipes as this deployment has them: the shipped ones with the changed files laid over."""
        changed = self.overrides()
        if not changed:
            return shipped
        name = hashlib.sha256(json.dumps([str(shipped), changed], sort_keys=True).encode()).hexdigest()[:12]
        whole = self.folder / "results" / f"recipes_{name}"
        if whole.is_dir():
            return whole
        part = whole.with_name(whole.name + ".part")
        try:
            shutil.rmtree(part, ignore_errors=True)
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(shipped, part, ignore=ignored)
            shutil.copytree(self.recipes, part, dirs_exist_ok=True, ignore=ignored)
            part.rename(whole)
        except OSError as error:
            raise UnusableInput(f"{whole} cannot be written: {error.strerror or error}") from None
        return whole


def not_written(path: Path, error: OSError) -> str:
    """What is told of a file that could not be written."""
    why = error.strerror or error
    return f"{path} cannot be written ({why}): make room or give permission, and run again; what is in the ledger stays"


def write_text(path: Path, text: str) -> None:
    """Replace a file whole.

    Raises:
        NotWritten: it cannot be.
    """
    make_folder(path.parent)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    except OSError as error:
        raise NotWritten(not_written(path, error)) from None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file whole."""
    write_text(path, _json(content))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        UnusableInput: it cannot be read, or is none.
    """
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UnusableInput(f"{path} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnusableInput(f"{path} holds no JSON object")
    return cast("dict[str, Any]", found)


def file_digest(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recipe_digest(folder: Path) -> str:
    """sha256 over what decides a recipe: kernel.toml and its code, by name."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("kernel.toml"), *folder.glob("*.py")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def make_folder(folder: Path) -> None:
    """Make a folder and what is above it.

    Raises:
        NotWritten: it cannot be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritten(not_written(folder, error)) from None


def _who(path: Path) -> str:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"process {found['pid']} since {found['since']}"
    except (OSError, ValueError, KeyError):
        return "it did not say who it is"
