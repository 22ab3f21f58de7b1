"""How long full programs take on the emulator, beside torch's f32 on one thread, measured in one run.

>>> measured = measure_speed(None, kernels_folder, repeats=3)
>>> [(row.name, row.ratio) for row in measured.rows]

Both sides live in child processes with one BLAS thread and take turns, so that a busy machine slows both; the best of
each counts, and either side repeats a call of under 0.2 s within its turn.

What is timed is one call on arguments that are there. For torch these are f32 tensors. For the emulator they are inputs
bound beforehand (`bind_inputs`: bf16 widened to the float32 that holds it), as buffers stay on a device between calls
of a kernel; in the timed region are all of `run_program` on them, with faithful numerics: lowering, the run, and the
outputs as new arrays. Not in it: reading the text, and the binding, which is reported by itself as `binding_s`; add it
for a first call on arrays of the caller.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any, cast

from npu_tools.bench.references.case import Array, Case
from npu_tools.process import blas_threads

_ENOUGH_S = 600.0
"""A call that takes longer ends the bench."""
_TURN_S = 0.2
"""A call that takes less is repeated within its turn, and its best counts, as timers and caches want."""


TIMED = "lowering, run and outputs, on inputs bound beforehand; torch on tensors that are there"
"""What the seconds of both sides are of."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One program against one torch call; `target` is the ratio asked for at the full shape."""

    name: str
    shape: tuple[int, ...]
    small: tuple[int, ...]
    target: float
    peer: str


CONTESTS = (
    Contest("gemm", (2048, 2048, 2048), (512, 512, 512), 3.5, "torch.matmul, f32"),
    Contest("gemv", (8192, 2048), (512, 512), 5.0, "torch.mv, f32"),
    Contest("attention", (2048, 2048, 32), (256, 256, 4), 8.0, "scaled_dot_product_attention, f32, heads of 64"),
)
"""gemm m, k, n; gemv m, k; attention queries, keys, heads."""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One contest's outcome; rounds are (emulator, peer) seconds in the order measured.

    `processor` are the processor seconds of the same calls: on a busy machine `rounds` also hold what a call waited for
    its turn, which falls on long calls rather than on short ones. `binding_s` is what binding the inputs took, which no
    round contains.
    """

    name: str
    shape: str
    target: float
    peer: str
    rounds: tuple[tuple[float, float], ...]
    binding_s: float = 0.0
    processor: tuple[tuple[float, float], ...] = ()

    @property
    def emulator_s(self) -> float:
        return min(ours for ours, _ in self.rounds)

    @property
    def peer_s(self) -> float:
        return min(theirs for _, theirs in self.rounds)

    @property
    def ratio(self) -> float:
        """The best of the emulator over the best of the peer."""
        return self.emulator_s / self.peer_s

    @property
    def processor_ratio(self) -> float | None:
        """The same of processor seconds; None where they are not known."""
        if not self.processor:
            return None
        return min(ours for ours, _ in self.processor) / min(theirs for _, theirs in self.processor)

    @property
    def ok(self) -> bool:
        return self.ratio <= self.target


@dataclass(frozen=True, slots=True)
class SpeedMeasured:
    """All contests and the conditions they ran under."""

    rows: tuple[SpeedRow, ...]
    conditions: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        rows = [
            asdict(row)
            | {
                "emulator_s": row.emulator_s,
                "peer_s": row.peer_s,
                "ratio": row.ratio,
                "processor_ratio": row.processor_ratio,
                "ok": row.ok,
            }
            for row in self.rows
        ]
        return {"rows": rows, "conditions": self.conditions}


@dataclass(frozen=True, slots=True)
class NoPeer:
    """Nothing was measured; why, and what to do."""

    message: str


def measure_speed(
    peer_python: Path | None,
    kernels: Path,
    *,
    only: str = "*",
    repeats: int = 3,
    small: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SpeedMeasured | NoPeer:
    """Every contest whose name fits `only`, attention by the recipe in `kernels`; NoPeer where torch is not to be had or
    a side fails."""
    chosen = [contest for contest in CONTESTS if fnmatchcase(contest.name, only)]
    if not chosen:
        return NoPeer(f"no contest is named like {only!r}; there are {', '.join(one.name for one in CONTESTS)}")
    python = str(peer_python) if peer_python is not None else sys.executable
    try:
        with Side(python, _PEER) as peer, Side(sys.executable, _OURS) as ours:
            conditions = _conditions(peer.ask({}), ours.ask({}), repeats)
            rows: list[SpeedRow] = []
            for place, contest in enumerate(chosen):
                shape = contest.small if small else contest.shape
                request = {"prepare": contest.name, "shape": shape, "kernels": str(kernels)}
                binding = float(ours.ask(request)["binding_s"])
                peer.ask({"prepare": contest.name, "shape": shape})
                rounds: list[tuple[float, float]] = []
                processor: list[tuple[float, float]] = []
                for turn in range(repeats):
                    mine, theirs = ours.ask({"run": True}), peer.ask({"run": True})
                    rounds.append((float(mine["seconds"]), float(theirs["seconds"])))
                    processor.append((float(mine["processor"]), float(theirs["processor"])))
                    if progress is not None:
                        progress(place * repeats + turn + 1, len(chosen) * repeats)
                told = "x".join(str(size) for size in shape)
                seconds = (tuple(rounds), binding, tuple(processor))
                rows.append(SpeedRow(contest.name, told, contest.target, contest.peer, *seconds))
    except SideFailed as failed:
        return failed.no_peer(python)
    return SpeedMeasured(tuple(rows), conditions)


def _conditions(peer: dict[str, Any], ours: dict[str, Any], repeats: int) -> dict[str, Any]:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "peer": peer,
        "emulator": ours,
        "processors": os.cpu_count(),
        "machine": platform.machine(),
        "load_before": load,
        "blas_threads": 1,
        "best_of": repeats,
        "timed": TIMED,
    }


class SideFailed(Exception):
    def __init__(self, kind: str, message: str) -> None:
        self.kind = kind
        super().__init__(message)

    def no_peer(self, python: str) -> NoPeer:
        """Why nothing was measured, where `python` is the peer's interpreter."""
        if self.kind == "torch":
            return NoPeer(
                f"{python} has no torch ({self}); give an interpreter that has it with --peer-python, "
                "or install the extra: pip install 'herdbook[models]'"
            )
        return NoPeer(f"nothing measured: {self}")


class Side:
    """A child that prepares one contest and times it when asked: a JSON line in, a JSON line out."""

    def __init__(self, python: str, code: str) -> None:
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [python, "-P", "-c", f"import os;{blas_threads(1)}\n{code}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            raise SideFailed("start", f"{python} cannot be started: {error.strerror or error}") from None

    def __enter__(self) -> Side:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request.

        Raises:
            SideFailed: the side ended, or says that it cannot.
        """
        from threading import Timer

        timer = Timer(_ENOUGH_S, self._process.kill)
        timer.start()
        try:
            cast("IO[str]", self._process.stdin).write(json.dumps(request) + "\n")
            cast("IO[str]", self._process.stdin).flush()
            line = cast("IO[str]", self._process.stdout).readline()
        except OSError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            _, told = self._process.communicate()
            last = told.strip().splitlines()[-1] if told.strip() else f"over {_ENOUGH_S:.0f} s, or killed"
            raise SideFailed("torch" if "torch" in last and "No module" in last else "ended", last)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SideFailed("error", answer["error"])
        return answer


_PEER = """
import json, sys, time
import torch
torch.set_num_threads(1)
call = None
for line in sys.stdin:
    request = json.loads(line)
    if "prepare" in request:
        shape = request["shape"]
        torch.manual_seed(0)
        if request["prepare"] == "gemm":
            m, k, n = shape
            a, b = torch.randn(m, k), torch.randn(k, n)
            call = lambda: torch.matmul(a, b)
        elif request["prepare"] == "gemv":
            a, x = torch.randn(*shape), torch.randn(shape[1])
            call = lambda: torch.mv(a, x)
        else:
            queries, keys, heads = shape
            q, k, v = (torch.randn(1, heads, n, 64) for n in (queries, keys, keys))
            call = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
        with torch.no_grad():
            call()
        answer = {}
    elif "run" in request:
        with torch.no_grad():
            best = least = float("inf")
            spent = 0.0
            while spent < 0.2:
                began, worked = time.perf_counter(), time.process_time()
                call()
                least = min(least, time.process_time() - worked)
                taken = time.perf_counter() - began
                best = min(best, taken)
                spent += taken
        answer = {"seconds": best, "processor": least}
    else:
        answer = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    print(json.dumps(answer), flush=True)
"""
"""The peer's side, with turns of `_TURN_S` as the emulator's."""

_OURS = "from npu_tools.bench.speed import serve; serve()"


def serve() -> None:
    """The emulator's side."""
    import numpy as np

    from npu_tools.air import Program, parse_program
    from npu_tools.bench.programs_text import gemm, gemv
    from npu_tools.emulator import BoundInputs, bind_inputs, run_program
    from npu_tools.recipes import recipe

    def heads_of_64(queries: int, keys: int, heads: int) -> str:
        attention = recipe(kernels, "flash_attention")
        return attention.program(attention.resolve((queries, keys, heads, heads, 64), {"causal": False}))

    kernels = Path()
    printers: dict[str, Callable[..., str]] = {"gemm": gemm, "gemv": gemv, "attention": heads_of_64}
    program: Program | None = None
    bound: BoundInputs | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        if "prepare" in request:
            name, kernels = str(request["prepare"]), Path(request["kernels"])
            program = parse_program(printers[name](*request["shape"]), name)
            entry = program.functions()[0]
            case = Case.of(program, entry, name)
            inputs = {f"arg{i}": _normal(case, i) for i in range(len(case.arguments) - 1)}
            began = time.perf_counter()
            bound = bind_inputs(program, inputs)
            answer = {"binding_s": time.perf_counter() - began}
        elif "run" in request:
            assert program is not None
            best, least, spent = float("inf"), float("inf"), 0.0
            answer = {}
            while spent < _TURN_S and not answer:
                worked = time.process_time()
                result = run_program(program, bound)
                least = min(least, time.process_time() - worked)
                best, spent = min(best, result.wall_s), spent + result.wall_s
                if not result.ok:
                    told = next((one.message for one in result.findings if one.severity == "error"), "no result")
                    answer = {"error": f"{program.name} failed on the emulator: {told}"}
            answer = answer or {"seconds": best, "processor": least}
        else:
            answer = {"python": platform.python_version(), "numpy": np.__version__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _normal(case: Case, position: int) -> Array:
    shape = case.shape(position)
    return case.stored(position, case.rng.standard_normal(shape) * shape[-1] ** -0.5)
