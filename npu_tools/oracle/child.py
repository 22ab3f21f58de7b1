"""Starting the oracle in a process of its own, with a time and a memory limit, and a way to stop it.

Requests and answers are JSON files; the child writes how far it is beside them. Memory is watched from here, by what
the process really holds: limits of the operating system exist on POSIX only and count address space.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import psutil

from npu_tools.oracle.requests import Request

State = Literal["done", "refused", "failed", "timeout", "memory", "cancelled"]
LOOK_EVERY_S = 0.1
TAIL = 2000
"""Characters of the child's last words kept in a reason."""


@dataclass(frozen=True, slots=True)
class OracleResult:
    """How the oracle ended. `ok` is whether every criterion held; `answer` is what it wrote, empty without."""

    state: State
    ok: bool
    reason: str
    answer: dict[str, Any] = field(default_factory=dict[str, Any])
    wall_s: float = 0.0
    peak_mb: float = 0.0


def run_oracle(
    request: Request,
    *,
    python: str | Path | None = None,
    timeout_s: float = 3600,
    memory_mb: float = 24_000,
    cancelled: Callable[[], bool] | None = None,
    progress: Callable[[float, float, str], None] | None = None,
) -> OracleResult:
    """The oracle's answer from a child process of `python` (this one by default; it needs torch and transformers,
    but for stages without comparison). Refusals, limits and crashes are results, not exceptions."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="oracle-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        asked, answered, log = folder / "request.json", folder / "answer.json", folder / "log.txt"
        asked.write_text(request.model_dump_json(), encoding="utf-8")
        command = [str(python or sys.executable), "-P", "-m", "npu_tools.oracle", str(asked), str(answered)]
        with log.open("wb") as words:
            try:
                process = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT
                )
            except OSError as error:
                return OracleResult("failed", False, f"{command[0]} cannot be started: {error.strerror or error}")
            state, peak = _watch(process, folder / "progress.json", started + timeout_s, memory_mb, cancelled, progress)
        wall = round(time.monotonic() - started, 3)
        peak_mb = round(peak / 1e6, 1)
        answer = _read(answered)
        if state is not None:
            told = {
                "timeout": f"the oracle took over {timeout_s:.0f} s and was ended",
                "memory": f"the oracle held over {memory_mb:.0f} MB and was ended",
                "cancelled": "the oracle was stopped as asked",
            }[state]
            return OracleResult(state, False, told, {}, wall, peak_mb)
        if process.returncode == 0 and answer:
            return OracleResult("done", bool(answer.get("ok")), _why(answer), answer, wall, peak_mb)
        if answer.get("findings"):
            return OracleResult("refused", False, answer["findings"][0]["message"], answer, wall, peak_mb)
        said = answer.get("error") or log.read_text(encoding="utf-8", errors="replace").strip()[-TAIL:]
        ended = f"its process ended with {process.returncode}" if not said else str(said)
        return OracleResult("failed", False, ended, answer, wall, peak_mb)


def _watch(
    process: subprocess.Popen[bytes],
    told: Path,
    until: float,
    memory_mb: float,
    cancelled: Callable[[], bool] | None,
    progress: Callable[[float, float, str], None] | None,
) -> tuple[Literal["timeout", "memory", "cancelled"] | None, int]:
    """Wait for the end, or bring it about; with the most memory seen, in bytes."""
    peak, last = 0, ""
    while True:
        try:
            process.wait(LOOK_EVERY_S)
            return None, peak
        except subprocess.TimeoutExpired:
            pass
        peak = max(peak, _held(process.pid))
        reason: Literal["timeout", "memory", "cancelled"] | None = None
        if cancelled is not None and cancelled():
            reason = "cancelled"
        elif time.monotonic() > until:
            reason = "timeout"
        elif peak > memory_mb * 1e6:
            reason = "memory"
        if reason is not None:
            process.kill()
            process.wait()
            return reason, peak
        if progress is not None:
            seen = _read(told)
            if seen and seen.get("note") != last:
                last = str(seen.get("note"))
                progress(float(seen["done"]), float(seen["total"]), last)


def _held(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return sum(int(one.memory_info().rss) for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _why(answer: dict[str, Any]) -> str:
    missed = [one for one in answer.get("criteria", []) if not one["ok"]]
    return "; ".join(f"{one['name']} is {one['value']:.4g}, the bound is {one['bound']:g}" for one in missed)
