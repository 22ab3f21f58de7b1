"""A job's state as kept on disk: one folder a job, every file replaced whole.

<jobs>/<id>/request.json    what was asked, written before the process starts
<jobs>/<id>/state.json      queued, running, done, failed, cancelled; the process and when
<jobs>/<id>/progress.json   how far it is
<jobs>/<id>/result.json     the answer, once there is one
<jobs>/<id>/cancel          its presence asks the job to stop
<jobs>/<id>/output.log      everything the process printed
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

State = Literal["queued", "running", "done", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled"})


class Progress(BaseModel):
    """How far a job is: `done` of `total` units (0 where the total is not known)."""

    model_config = ConfigDict(extra="ignore")
    done: float = 0
    total: float = 0
    note: str = ""


class Stored(BaseModel):
    """state.json. Times are seconds since the epoch; `started_as` is the process's own start time, against reused ids."""

    model_config = ConfigDict(extra="ignore")
    state: State
    pid: int | None = None
    started_as: float | None = None
    queued_at: float
    started_at: float | None = None
    ended_at: float | None = None
    reason: str = ""


class JobView(BaseModel):
    """A job as a caller sees it."""

    id: str
    kind: str
    state: State
    reason: str = ""
    progress: Progress = Field(default_factory=Progress)
    wall_s: float = 0
    result: dict[str, Any] | None = None
    output_tail: str = ""
    folder: str


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace `path` whole, so that a reader sees the old or the new content and never half of one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file)
        for attempt in range(50):  # Windows refuses to replace a file somebody is reading just now
            try:
                os.replace(name, path)
                return
            except PermissionError:
                if attempt == 49:
                    raise
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def file_digest(path: Path) -> str | None:
    """SHA-256 of a file; None where it cannot be read."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def tail(path: Path, limit_bytes: int) -> str:
    """The end of a text file, whatever its bytes; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - limit_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, Any] | None:
    """The content of `path`; None where there is none or it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
