"""Starting the oracle in a process of its own, with a time and a memory limit, and a way to stop it.

Requests and answers are JSON files; the child writes how far it is beside them. Memory is watched from here, by what
the process really holds: limits of the operating system exist on POSIX only and count address space.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import psutil

from npu_tools.oracle.requests import Request
from npu_tools.process import run_child

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
    with tempfile.TemporaryDirectory(prefix="oracle-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        asked, answered, log = folder / "request.json", folder / "answer.json", folder / "log"
        asked.write_text(request.model_dump_json(), encoding="utf-8")
        command = [str(python or sys.executable), "-P", "-m", "npu_tools.oracle", str(asked), str(answered)]
        look = _Look(folder / "progress.json", memory_mb, progress)
        ended = run_child(command, timeout_s=timeout_s, log=log, cancelled=cancelled, watch=look)
        wall, peak_mb = round(ended.wall_s, 3), round(look.peak / 1e6, 1)
        answer = _read(answered)
        state: Literal["timeout", "memory", "cancelled"] | None = None
        if ended.state == "timeout":
            state = "timeout"
        elif ended.state == "cancelled":
            state = "memory" if look.over else "cancelled"
        if state is not None:
            told = {
                "timeout": f"the oracle took over {timeout_s:.0f} s and was ended",
                "memory": f"the oracle held over {memory_mb:.0f} MB and was ended",
                "cancelled": "the oracle was stopped as asked",
            }[state]
            return OracleResult(state, False, told, {}, wall, peak_mb)
        if ended.ok and answer:
            return OracleResult("done", bool(answer.get("ok")), _why(answer), answer, wall, peak_mb)
        if answer.get("findings"):
            return OracleResult("refused", False, answer["findings"][0]["message"], answer, wall, peak_mb)
        unstarted = f"cannot be started: {ended.err}" if ended.state == "missing" else ""
        said = answer.get("error") or unstarted or ended.text.strip()[-TAIL:] or f"its process ended with {ended.code}"
        return OracleResult("failed", False, str(said), answer, wall, peak_mb)


class _Look:
    """Looks after the oracle while it runs: what it holds, and how far it says it is. True once it holds too much."""

    def __init__(
        self, told: Path, memory_mb: float, progress: Callable[[float, float, str], None] | None
    ) -> None:  # fmt: skip
        self._told, self._limit, self._progress = told, memory_mb * 1e6, progress
        self._last, self._next = "", 0.0
        self.peak, self.over = 0, False

    def __call__(self, pid: int) -> bool:
        if time.monotonic() < self._next:
            return False
        self.peak = max(self.peak, _held(pid))
        self.over = self.peak > self._limit
        seen = _read(self._told) if self._progress is not None else {}
        if self._progress is not None and seen and seen.get("note") != self._last:
            self._last = str(seen.get("note"))
            self._progress(float(seen["done"]), float(seen["total"]), self._last)
        self._next = time.monotonic() + LOOK_EVERY_S
        return self.over


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
