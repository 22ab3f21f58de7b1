"""The process that talks to the NPU: takes commands as JSON lines, answers with JSON lines, moves bytes through files.

Started by `npu_tools.backends.xrt.session` in the toolchain's own Python. Standard library, filelock and pyxrt only.
pyxrt's waits hold the interpreter (XRT src/python/pybind11/src/pyxrt.cpp), so nothing in this process can end a wait
that hangs: whoever started it kills it, and the lock is free again because this process held it.

Every command answers {"ok": true, …} or {"ok": false, "error": text, "state": name or ""}. {"event": "locked"} comes
before the answer once the NPU is ours, {"event": "ran", "us": …} after each run of a batch.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Generator
from typing import Any

COMPLETED = "ERT_CMD_STATE_COMPLETED"
OPCODE = 3
"""What mlir-air's xclbin path passes first: run the transaction in the instruction buffer."""


class Failure(Exception):
    """Something XRT refused, with the command's state where there is one."""

    def __init__(self, text: str, state: str = "") -> None:
        super().__init__(text)
        self.state = state


class Loaded:
    """One artefact: its context and kernel. Released in this order, or Windows' XRT faults (xrt.py `unload`)."""

    def __init__(self, xrt: Any, device: Any, binary: str, insts: str | None, kernel: str, form: str) -> None:
        self.xrt, self.device, self.form = xrt, device, form
        self.instructions: Any = None
        self.words = 0
        self.kernel: Any = None
        self.context: Any = None
        self.file: Any = None
        if form == "elf":
            self.file = xrt.elf(binary)
            self.context = xrt.hw_context(device, self.file)
            self.kernel = xrt.ext.kernel(self.context, kernel)
            return
        self.file = xrt.xclbin(binary)
        device.register_xclbin(self.file)
        self.context = xrt.hw_context(device, self.file.get_uuid())
        names = [str(one.get_name()) for one in self.file.get_kernels()]
        found = [name for name in names if kernel in name]
        if not found:
            raise Failure(f"Kernel '{kernel}' not found in '{binary}' (it has {', '.join(names) or 'none'})")
        self.kernel = xrt.kernel(self.context, found[0])
        with open(str(insts), "rb") as file:
            content = file.read()
        self.words = len(content) // 4
        self.instructions = xrt.bo(device, len(content), xrt.bo.cacheable, self.kernel.group_id(1))
        self.instructions.map()[: len(content)] = content
        self.instructions.sync(xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)

    def buffer(self, position: int, size: int) -> Any:
        """A buffer object for one argument."""
        if self.form == "elf":
            return self.xrt.ext.bo(self.device, size)
        return self.xrt.bo(self.device, size, self.xrt.bo.host_only, self.kernel.group_id(position + 3))

    def run(self, buffers: list[Any]) -> Any:
        """A run with every argument set. Set one by one: kernel(...) skips what it cannot cast without a word."""
        run = self.xrt.run(self.kernel)
        first = 0
        if self.form == "xclbin":
            run.set_arg(0, OPCODE)
            run.set_arg(1, self.instructions)
            run.set_arg(2, self.words)
            first = 3
        for position, buffer in enumerate(buffers):
            run.set_arg(first + position, buffer)
        return run

    def release(self) -> None:
        self.instructions = None
        self.kernel = None
        self.context = None
        self.file = None
        self.device = None


class Bound:
    """Buffers of one set of arguments, mapped once; statics are written when it is made and never again."""

    def __init__(self, loaded: Loaded, sizes: list[int], static: dict[str, str]) -> None:
        self.loaded, self.sizes = loaded, sizes
        self.buffers = [loaded.buffer(position, size) for position, size in enumerate(sizes)]
        self.maps = [buffer.map() for buffer in self.buffers]
        for position, path in static.items():
            self.write(int(position), path)
        self.started: Any = loaded.run(self.buffers)

    def write(self, position: int, path: str) -> None:
        """A file's bytes into one buffer, and to the device."""
        with open(path, "rb") as file:
            content = file.read()
        if len(content) != self.sizes[position]:
            raise Failure(f"argument {position} takes {self.sizes[position]} bytes, {len(content)} were given")
        self.maps[position][: len(content)] = content
        self.to_device(position)

    def fill(self, position: int, byte: int) -> None:
        """One byte all over a buffer, so that what the kernel leaves untouched can be told."""
        self.maps[position][: self.sizes[position]] = bytes([byte]) * self.sizes[position]
        self.to_device(position)

    def to_device(self, position: int) -> None:
        self.buffers[position].sync(self.loaded.xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_TO_DEVICE)

    def read(self, position: int, path: str) -> None:
        """One buffer's bytes into a file: a copy, since the next run overwrites the buffer."""
        self.buffers[position].sync(self.loaded.xrt.xclBOSyncDirection.XCL_BO_SYNC_BO_FROM_DEVICE)
        with open(path, "wb") as file:
            file.write(bytes(self.maps[position][: self.sizes[position]]))

    def dispatch(self, timeout_ms: int) -> float:
        """Start and wait; microseconds of both. Raises for an exception of XRT's and for a state that is not COMPLETED."""
        run = self.started if self.loaded.form == "elf" else self.loaded.run(self.buffers)
        begin = time.perf_counter()
        run.start()
        state = wait(run, timeout_ms)
        took = (time.perf_counter() - begin) * 1e6
        name = state_name(state)
        if name != COMPLETED:
            raise Failure(f"NPU kernel run did not complete: {name}", name)
        return took

    def release(self) -> None:
        self.started = None
        self.maps = []
        self.buffers = []


def wait(run: Any, timeout_ms: int) -> Any:
    """Wait in whichever way this pyxrt has: with a limit (returns a state), else wait2 (raises), else wait."""
    try:
        state = run.wait(timeout_ms)
    except TypeError:
        state = run.wait2() if hasattr(run, "wait2") else run.wait()
        # wait2 gives None, and has raised for every other state than completed; older ones return a state.
        if state is None:
            return COMPLETED
    if state is None and hasattr(run, "state"):
        state = run.state()
    return COMPLETED if state is None else state


def state_name(state: Any) -> str:
    """The enumerator's name of a state, whatever the binding returns."""
    name = getattr(state, "name", None)
    text = str(name if name is not None else state)
    return text.rpartition(".")[2]


class Server:
    """Everything this process holds."""

    def __init__(self) -> None:
        self.answers = claim_output()
        self.locks: list[Any] = []
        self.lock_s = 0.0
        self.xrt: Any = None
        self.device: Any = None
        self.loaded: dict[str, Loaded] = {}
        self.bound: dict[str, Bound] = {}

    def say(self, answer: dict[str, Any]) -> None:
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def serve(self) -> None:
        """Answer until the input ends."""
        for line in sys.stdin:
            command: dict[str, Any] = json.loads(line)
            if command["do"] == "end":
                break
            try:
                self.say({"ok": True, **getattr(self, f"do_{command.pop('do')}")(**command)})
            except Failure as failure:
                self.say({"ok": False, "error": str(failure), "state": failure.state})
            except BaseException as error:
                self.say({"ok": False, "error": f"{type(error).__name__}: {error}", "state": ""})
        self.close()

    def do_hello(self, locks: list[str], lock_s: float) -> dict[str, Any]:
        """Get pyxrt, and the locks ready."""
        self.lock_s = lock_s
        try:
            filelock: Any = importlib.import_module("filelock")
        except ImportError as error:
            raise Failure(f"lock: {error}") from None
        self.locks = [filelock.FileLock(path) for path in locks]
        self.xrt = importlib.import_module("pyxrt")
        return {"pid": os.getpid(), "file": str(getattr(self.xrt, "__file__", ""))}

    def do_open(self, id: str, binary: str, insts: str | None, kernel: str, form: str) -> dict[str, Any]:
        """Load an artefact: a hardware context."""
        with self.npu():
            if self.device is None:
                self.device = self.xrt.device(0)
            if form == "elf" and not (hasattr(self.xrt, "elf") and hasattr(self.xrt, "ext")):
                raise Failure("module 'pyxrt' has no attribute 'elf' or 'ext'")
            self.loaded[id] = Loaded(self.xrt, self.device, binary, insts, kernel, form)
        return {}

    def do_bind(self, id: str, kernel: str, sizes: list[int], static: dict[str, str]) -> dict[str, Any]:
        """Buffers for one set of weights."""
        with self.npu():
            self.bound[id] = Bound(self.loaded[kernel], sizes, static)
        return {}

    def do_run(self, bound: str, batch: list[dict[str, Any]], timeout_ms: int) -> dict[str, Any]:
        """Runs one after another, each told when it is done: outputs filled first, inputs written, started, awaited, read."""
        one = self.bound[bound]
        with self.npu():
            for item in batch:
                began = time.perf_counter()
                for position, byte in item["poison"].items():
                    one.fill(int(position), byte)
                for position, path in item["inputs"].items():
                    one.write(int(position), path)
                written = time.perf_counter()
                took = one.dispatch(timeout_ms)
                ran = time.perf_counter()
                for position, path in item["outputs"].items():
                    one.read(int(position), path)
                read = (time.perf_counter() - ran) * 1e6
                self.say({"event": "ran", "us": took, "write_us": (written - began) * 1e6, "read_us": read})
        return {}

    def do_time(
        self, bounds: list[str], inputs: dict[str, dict[str, str]], warm_up: int, iterations: int, timeout_ms: int
    ) -> dict[str, Any]:
        """Repeated runs of one or several kernels in turn; the microseconds of each. Nothing but start and wait is timed."""
        taken: list[list[float]] = [[] for _ in bounds]
        with self.npu():
            for name in bounds:
                for position, path in inputs.get(name, {}).items():
                    self.bound[name].write(int(position), path)
            for count in range(warm_up + iterations):
                for at, name in enumerate(bounds):
                    took = self.bound[name].dispatch(timeout_ms)
                    if count >= warm_up:
                        taken[at].append(took)
        return {"us": taken}

    def do_drop(self, bound: str) -> dict[str, Any]:
        """Free one set of buffers."""
        one = self.bound.pop(bound, None)
        if one is not None:
            one.release()
        return {}

    def do_close(self, id: str) -> dict[str, Any]:
        """Free a context and what was bound to it."""
        one = self.loaded.pop(id, None)
        for name in [name for name, bound in self.bound.items() if bound.loaded is one]:
            self.do_drop(name)
        if one is not None:
            one.release()
        return {}

    def close(self) -> None:
        """Free everything, buffers before contexts before the device."""
        for name in list(self.bound):
            self.do_drop(name)
        for name in list(self.loaded):
            self.do_close(name)
        self.device = None

    @contextlib.contextmanager
    def npu(self) -> Generator[None]:
        """The NPU to ourselves, among all who take upstream's locks."""
        held: list[Any] = []
        try:
            for lock in self.locks:
                try:
                    lock.acquire(timeout=self.lock_s)
                except BaseException as error:
                    raise Failure(f"lock: {type(error).__name__}: {lock.lock_file}: {error}") from None
                held.append(lock)
            self.say({"event": "locked"})
            yield
        finally:
            for lock in reversed(held):
                lock.release()


def claim_output() -> Any:
    """The answers' stream: standard output as it was. Whatever else prints there goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    Server().serve()


if __name__ == "__main__":
    main()
