"""Several programs at a time, each in a process that can be ended: a program that hangs or eats memory costs only itself.

Workers read one request a line and answer one result a line. BLAS gets one thread in each, so that they do not fight.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, cast

from npu_tools.bench.program import ProgramResult, Trying, judge_program
from npu_tools.process import blas_threads

SPARE_S = 120.0
"""What reading, checking, making inputs and comparing may take on top of the run's own limit before a worker is ended."""


def judge_all(
    paths: Sequence[Path], trying: Trying, workers: int, each: Callable[[ProgramResult], None] | None = None
) -> list[ProgramResult]:
    """All programs, in the order given; `each` is told every result as it comes, from one thread at a time."""
    waiting: queue.SimpleQueue[tuple[int, Path]] = queue.SimpleQueue()
    for item in enumerate(paths):
        waiting.put(item)
    found: dict[int, ProgramResult] = {}
    lock = threading.Lock()

    def work() -> None:
        with _Worker(trying) as worker:
            while True:
                try:
                    position, path = waiting.get_nowait()
                except queue.Empty:
                    return
                result = worker.judge(path)
                with lock:
                    found[position] = result
                    if each is not None:
                        each(result)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(workers, len(paths))))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[position] for position in sorted(found)]


class _Worker:
    """A process that judges; started anew when it had to be ended."""

    def __init__(self, trying: Trying) -> None:
        self._trying = trying
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def judge(self, path: Path) -> ProgramResult:
        """One program's result, also when the process dies over it."""
        process = self._process or self._start()
        limit = self._trying.timeout_s + SPARE_S
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            cast("IO[str]", process.stdin).write(json.dumps({"path": str(path), "trying": asdict(self._trying)}) + "\n")
            cast("IO[str]", process.stdin).flush()
            answer = cast("IO[str]", process.stdout).readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if answer:
            return ProgramResult.from_dict(json.loads(answer))
        code = process.wait()
        self._end()
        reason = f"its process ended with {code}: over {limit:.0f} s, out of memory, or a crash"
        return ProgramResult(path.stem, False, False, False, "not run", reason)

    def _start(self) -> subprocess.Popen[str]:
        code = f"import os;{blas_threads(1)}from npu_tools.bench.workers import serve; serve()"
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serve() -> None:
    """The worker's side: requests from standard input until it closes."""
    out = sys.stdout
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        path = Path(request["path"])
        try:
            result = judge_program(path, Trying(**request["trying"]))
        except Exception as error:  # the bench names what broke and goes on with the next program
            told = f"{type(error).__name__}: {error}"
            result = ProgramResult(path.stem, True, False, False, "not run", f"our own error, {told}")
        out.write(json.dumps(result.as_dict()) + "\n")
        out.flush()
