"""The other end of `children/runner.py`: starts it, asks it, and kills it when it does not answer in time.

    with Session(toolchain, Patience()) as session:
        session.open("k", artefact)            # None, or the finding that stands against it
        session.run("b", [Order(…), …])

A session is one process with one pyxrt. ELF and xclbin contexts in one process slow each other down (Xilinx/mlir-air
programming_examples/llms/smolvla/docs/profile.md), so a backend has one session a format.
"""

from __future__ import annotations

import json
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from npu_tools.backends.xrt.compiling import DeviceArtefact
from npu_tools.backends.xrt.lock import holders, lock_paths
from npu_tools.backends.xrt.outcomes import first_error, outcome, read_log
from npu_tools.backends.xrt.toolchain import Toolchain
from npu_tools.findings import Finding
from npu_tools.jobs.records import tail
from npu_tools.process import kill_family

_BY_SIGNAL = {9: "child-killed", 11: "child-segfault"}
_POLL_S = 0.02
_TEXT = 600


@dataclass(frozen=True, slots=True)
class Patience:
    """How long what may take, in seconds. The driver's watchdog ends a dispatch that makes no progress for 2 s
    (tdr_timeout_ms, amd/xdna-driver aie2_ctx.c); `dispatch_s` is far over it, `grace_s` is for everything around."""

    start_s: float = 30.0
    load_s: float = 60.0
    lock_s: float = 120.0
    dispatch_s: float = 10.0
    grace_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command gave: its fields, or the finding that stands against it."""

    said: dict[str, Any] = field(default_factory=dict[str, Any])
    finding: Finding | None = None
    text: str = ""
    events: tuple[dict[str, Any], ...] = ()
    """One for each run of a batch that ended."""

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.finding is None


@dataclass(frozen=True, slots=True)
class Order:
    """One run: bytes of inputs, the byte that fills an argument before it, and sizes in bytes of what is read after it."""

    inputs: Mapping[int, bytes]
    poison: Mapping[int, int]
    outputs: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Done:
    """One run that ended: `us`, `write_us` and `read_us`, and the outputs' bytes."""

    said: Mapping[str, Any]
    outputs: Mapping[int, bytes]


class Session:
    """One child that talks to the NPU. Not for several threads at once."""

    def __init__(self, toolchain: Toolchain, patience: Patience, cancelled: Callable[[], bool] | None = None) -> None:
        self.toolchain, self.patience, self.cancelled = toolchain, patience, cancelled
        self.scratch = tempfile.TemporaryDirectory(prefix="herdbook-npu-")
        self.folder = Path(self.scratch.name)
        self.dead: Finding | None = None
        self.stuck = False
        self.said_pid: int | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        script = files("npu_tools.backends.xrt") / "children" / "runner.py"
        self._err = (self.folder / "stderr").open("wb")
        try:
            self._process: subprocess.Popen[str] | None = subprocess.Popen(  # noqa: S603  (the toolchain's own Python)
                [toolchain.python, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._err,
                env=toolchain.environment,
                cwd=self.folder,
                text=True,
                encoding="utf-8",
            )
        except OSError as error:
            self._process = None
            self.dead = outcome("toolchain-missing", tool=f"{toolchain.python} ({error.strerror or error})")
            return
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        hello = self._ask(
            "load", patience.start_s, waits=False, do="hello", locks=lock_paths(toolchain), lock_s=patience.lock_s
        )
        self.said_pid = hello.said.get("pid")
        if hello.finding is not None:
            self.end()
            self.dead = hello.finding

    def open(self, id: str, artefact: DeviceArtefact) -> Answer:
        """Load an artefact."""
        return self._ask(
            "load",
            self.patience.load_s,
            context={"kernel": artefact.kernel},
            do="open",
            id=id,
            binary=str(artefact.binary),
            insts=str(artefact.insts) if artefact.insts else None,
            kernel=artefact.kernel,
            form=artefact.format,
        )

    def bind(self, id: str, kernel: str, sizes: list[int], static: Mapping[int, bytes]) -> Answer:
        """Buffers for one set of arguments, the static ones written."""
        try:
            given = self._files(static, "static")
        except OSError as error:
            return self._no_room(error)
        answer = self._ask("load", self.patience.load_s, do="bind", id=id, kernel=kernel, sizes=sizes, static=given)
        self._forget(given)
        return answer

    def run(self, bound: str, batch: Sequence[Order]) -> tuple[Answer, list[Done]]:
        """Runs one after another in one request. What came back of those that ended, also where a later one failed."""
        items: list[dict[str, Any]] = []
        try:
            for at, order in enumerate(batch):
                wanted = {str(position): str(self.folder / f"out{at}-{position}") for position in order.outputs}
                poison = {str(position): byte for position, byte in order.poison.items()}
                items.append({"inputs": self._files(order.inputs, f"in{at}-"), "poison": poison, "outputs": wanted})
        except OSError as error:
            return self._no_room(error), []
        answer = self._ask(
            "run", self.patience.dispatch_s + self.patience.grace_s,
            do="run", bound=bound, batch=items, timeout_ms=int(self.patience.dispatch_s * 1000),
        )  # fmt: skip
        done: list[Done] = []
        for order, item, event in zip(batch, items, answer.events, strict=False):
            found = {position: Path(item["outputs"][str(position)]).read_bytes() for position in order.outputs}
            short = next((at for at, size in order.outputs.items() if len(found[at]) != size), None)
            if short is not None:
                text = f"argument {short} came back with {len(found[short])} of {order.outputs[short]} bytes"
                answer = Answer(finding=outcome("run-failed", first=text, diagnostic=text))
                break
            done.append(Done(event, found))
        for item in items:
            self._forget(item["inputs"])
            self._forget(item["outputs"])
        return answer, done

    def time(
        self, bounds: list[str], inputs: Mapping[str, Mapping[int, bytes]], warm_up: int, iterations: int
    ) -> Answer:
        """Repeated runs, several kernels in turn; `said["us"]` has a list a kernel."""
        try:
            given = {name: self._files(arrays, f"in{at}-") for at, (name, arrays) in enumerate(inputs.items())}
        except OSError as error:
            return self._no_room(error)
        total = (warm_up + iterations) * len(bounds) * self.patience.dispatch_s + self.patience.grace_s
        answer = self._ask(
            "run", total, do="time", bounds=bounds, inputs=given, warm_up=warm_up, iterations=iterations,
            timeout_ms=int(self.patience.dispatch_s * 1000),
        )  # fmt: skip
        for one in given.values():
            self._forget(one)
        return answer

    def drop(self, bound: str) -> None:
        """Free buffers."""
        self._ask("run", self.patience.grace_s, waits=False, do="drop", bound=bound)

    def close(self, id: str) -> None:
        """Free a context."""
        self._ask("run", self.patience.grace_s, waits=False, do="close", id=id)

    def end(self) -> None:
        """End the child: asked first, then killed."""
        process = self._process
        if process is not None and process.poll() is None:
            try:
                assert process.stdin is not None
                process.stdin.write('{"do": "end"}\n')
                process.stdin.flush()
                process.stdin.close()
                process.wait(timeout=min(5.0, self.patience.grace_s))
            except (OSError, ValueError, subprocess.TimeoutExpired):
                self._kill()
        if self.dead is None:
            self.dead = outcome("stopped")
        self._tidy()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _ask(
        self,
        stage: str,
        limit_s: float,
        *,
        context: Mapping[str, Any] | None = None,
        waits: bool = True,
        **command: Any,
    ) -> Answer:
        """Send a command and wait for its answer; where it `waits` for the NPU's lock, the limit counts from then, and
        from each run of a batch that ended."""
        events: list[dict[str, Any]] = []
        answer = self._answer(stage, limit_s, context or {}, waits, command, events)
        return replace(answer, events=tuple(events))

    def _answer(
        self, stage: str, limit_s: float, context: Mapping[str, Any], waits: bool, command: Mapping[str, Any],
        events: list[dict[str, Any]],
    ) -> Answer:  # fmt: skip
        if self.dead is not None or self._process is None:
            return Answer(finding=self.dead or outcome("stopped"))
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            return self._died()
        until = time.monotonic() + limit_s + (self.patience.lock_s if waits else 0)
        while True:
            try:
                line = self._lines.get(timeout=_POLL_S)
            except queue.Empty:
                if self.cancelled is not None and self.cancelled():
                    self._kill()
                    self.dead = outcome("stopped")
                    return Answer(finding=self.dead)
                if time.monotonic() >= until:
                    return self._hung(limit_s)
                continue
            if line is None:
                return self._died()
            try:
                said: Any = json.loads(line)
            except ValueError:
                continue
            if not isinstance(said, dict):
                continue
            answer = cast("dict[str, Any]", said)
            if "event" in answer:
                until = time.monotonic() + limit_s
                if answer["event"] == "ran":
                    events.append(answer)
                continue
            if answer.get("ok"):
                return Answer(answer)
            return Answer(finding=self._refused(stage, answer, context), text=str(answer.get("error", "")))

    def _refused(self, stage: str, answer: Mapping[str, Any], context: Mapping[str, Any]) -> Finding:
        text, state = str(answer.get("error", "")), str(answer.get("state", ""))
        if text.startswith("lock:"):
            return self._lock_refused(text)
        values = {"python": self.toolchain.python, "version": "of the toolchain", "state": state or "another state",
                  "tdr": self._tdr(), "loaded": "several", "limit": "16 on npu2, 6 on npu1", **context}  # fmt: skip
        known = read_log(f"{text} {state}", "run" if stage == "run" else "load", **values)
        if not known:
            known = read_log(f"{text} {state}", "run", **values)
        if known:
            return known[0]
        return outcome("run-failed", first=first_error(text), diagnostic=first_error(text))

    def _lock_refused(self, text: str) -> Finding:
        if "Timeout" not in text:
            return outcome("lock-unavailable", why=text.removeprefix("lock:").strip(), diagnostic=text[:_TEXT])
        for path in lock_paths(self.toolchain):
            if path not in text:
                continue
            held = (
                ", ".join(f"{one.name} ({one.pid})" for one in holders(Path(path), self.toolchain)) or "nobody visible"
            )
            return outcome("npu-busy", path=path, seconds=self.patience.lock_s, who=held)
        return outcome("npu-busy", path="npu.lock", seconds=self.patience.lock_s, who="nobody visible")

    def _tdr(self) -> str:
        path = self.toolchain.at("sys", "module", "amdxdna", "parameters", "tdr_timeout_ms")
        try:
            return path.read_text(encoding="utf-8").strip()
        except OSError:
            return "2000"

    def _hung(self, limit_s: float) -> Answer:
        self._kill()
        from npu_tools.backends.xrt.recovery import after_hang

        advice = after_hang(self.toolchain)
        stuck = "; it cannot be killed: it waits inside the driver" if self.stuck else ""
        self.dead = outcome("run-hung", seconds=limit_s, stuck=stuck, advice=advice)
        return Answer(finding=self.dead)

    def _died(self) -> Answer:
        process = self._process
        code = None
        if process is not None:
            try:
                code = process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                self._kill()
        said = tail(self.folder / "stderr", 4000).strip()
        known = read_log(said, "run", tdr=self._tdr(), state="an error", python=self.toolchain.python)
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        what = _BY_SIGNAL.get(-code if code is not None else 0, "child-died")
        self.dead = (
            known[0] if known else outcome(what, how=how, tail=said[-_TEXT:] or "nothing", diagnostic=said[-_TEXT:])
        )
        return Answer(finding=self.dead, text=said)

    def _no_room(self, error: OSError) -> Answer:
        """The scratch folder through which arrays travel is full."""
        return Answer(finding=outcome("disk-full", place=self.folder, need_mb=1000, diagnostic=str(error)))

    def _kill(self) -> None:
        if self._process is not None:
            self.stuck = not kill_family(self._process.pid)
            if not self.stuck:
                self._process.wait()

    def _tidy(self) -> None:
        self._err.close()
        for stream in (self._process.stdin, self._process.stdout) if self._process is not None else ():
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    continue
        self.scratch.cleanup()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                self._lines.put(line)
        except (OSError, ValueError):
            pass  # the stream was closed while it was read: the end
        self._lines.put(None)

    def _files(self, arrays: Mapping[int, bytes], prefix: str) -> dict[str, str]:
        made: dict[str, str] = {}
        for position, content in arrays.items():
            path = self.folder / f"{prefix}{position}"
            path.write_bytes(content)
            made[str(position)] = str(path)
        return made

    def _forget(self, paths: Mapping[str, str]) -> None:
        for path in paths.values():
            Path(path).unlink(missing_ok=True)
