"""The NPU as a backend: the same protocol as the emulator's, on mlir-air and XRT.

    backend = XrtBackend(toolchain, cache=folder)
    kernel = backend.load(text, name="gemv", outputs=(2,))
    kernel.bind({0: weight}).run({1: vector})

A program is checked as for the emulator, compiled (once for its content and the toolchain), and loaded when it is first
run. Contexts are few (16 on npu2, 6 on npu1, for all processes), so those used least recently are let go and come back
when they are wanted. After a failure that needs it, the process that talks to the device is replaced.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet, finalize

import numpy as np

from npu_tools.air import Program
from npu_tools.arrays import Argument, fitted, signature
from npu_tools.backends.programs import chosen_outputs, kernel_key, parsed, program_digest
from npu_tools.backends.protocol import (
    ITERATIONS,
    NO_OPTIONS,
    WARM_UP,
    Array,
    BackendName,
    Call,
    KernelRun,
    Measured,
    Refused,
)
from npu_tools.backends.xrt.compiling import Compiled, DeviceArtefact, compile_for_device
from npu_tools.backends.xrt.environment import record
from npu_tools.backends.xrt.machine import Machine, probe
from npu_tools.backends.xrt.options import OURS
from npu_tools.backends.xrt.outcomes import fatal_of, outcome
from npu_tools.backends.xrt.session import Answer, Done, Order, Patience, Session
from npu_tools.backends.xrt.toolchain import Toolchain
from npu_tools.check import CheckOptions, check_program
from npu_tools.device import device as find_device
from npu_tools.emulator.run import choose_function
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

MARGIN = 7
"""Contexts of the driver's limit that are left to others: upstream's processes failed from the 9th loaded ELF on."""
NAN_BYTE, ODD_BYTE = 0xFF, 0xA5
"""What arguments hold before a run that nobody gave a value: NaN for floats, an odd pattern for integers."""
TIMED = "start() and the wait of one run; buffers are on the device, nothing is written, read or set up inside"
_BATCH = 256 << 20
"""Bytes of arguments that runs of one request may move through files."""
_RUN = 64
"""Bytes in a row that must still hold the pattern before integers count as untouched."""


class XrtBackend:
    """Runs kernels on the NPU. `cache` holds artefacts; `machine` is probed when first needed."""

    def __init__(
        self,
        toolchain: Toolchain,
        *,
        cache: Path,
        device: str = "npu2",
        patience: Patience | None = None,
        timeout_s: float | None = None,
        cancelled: Callable[[], bool] | None = None,
        machine: Machine | None = None,
    ) -> None:
        self.toolchain, self.cache = toolchain, cache
        self.device = find_device(device)
        self.patience = patience or Patience()
        self.timeout_s, self.cancelled = timeout_s, cancelled
        self._machine = machine
        self._loaded: dict[str, XrtKernel | Refused] = {}
        self._sessions: dict[str, Session] = {}
        self._contexts: OrderedDict[str, XrtKernel] = OrderedDict()
        self._bounds: dict[str, WeakSet[XrtBound]] = {}
        self._dropped: list[tuple[str, str]] = []
        self._numbers = count()

    @property
    def name(self) -> BackendName:
        """Which backend this is."""
        return "xrt"

    @property
    def machine(self) -> Machine:
        """What this machine has; asked once."""
        if self._machine is None:
            self._machine = probe(self.toolchain, load_pyxrt=False, ask_contexts=False)
        return self._machine

    @property
    def max_contexts(self) -> int:
        """How many artefacts stay loaded at once."""
        limit = self.device.value("driver.contexts")
        return max(2, limit - MARGIN if limit > 2 * MARGIN else limit // 2)

    def load(
        self,
        program: str,
        *,
        name: str,
        options: Mapping[str, Any] = NO_OPTIONS,
        outputs: Sequence[int] | None = None,
    ) -> XrtKernel | Refused:
        """Check, compile, keep. The same text and options give the same kernel; nothing is loaded before the first run.

        Raises:
            UnusableInput: an option nobody has, an output position that is none, or no function to start from.
        """
        digest = program_digest(program, {k: v for k, v in options.items() if k not in OURS})
        key = kernel_key(digest, name, outputs)
        found = self._loaded.get(key)
        if found is None:
            found = self._load(program, name, options, outputs, digest)
            if isinstance(found, XrtKernel):  # a refusal may pass: a disk that was full, a tool that was missing
                self._loaded[key] = found
        return found

    def measure(
        self, calls: Sequence[Call], *, warm_up: int = WARM_UP, iterations: int = ITERATIONS,
        context_length: int | None = None,
    ) -> Measured | Finding:  # fmt: skip
        """What each call takes, with the machine it was taken on; see Backend."""
        own = {session.said_pid for session in self._sessions.values() if session.said_pid is not None}
        environment = record(self.toolchain, context_length=context_length, own=own).as_dict()
        taken = self.time(calls, warm_up, iterations)
        if isinstance(taken, Finding):
            return taken
        return Measured(tuple(tuple(times) for times in taken), warm_up, TIMED, environment)

    def time(self, calls: Sequence[Call], warm_up: int, iterations: int) -> list[list[float]] | Finding:
        """Microseconds of every timed run, a list a call. All are bound before the first run and take turns, so that
        each begins as in a model, after another one; as many in one go as there are contexts.

        Raises:
            UnusableInput: another backend's kernel, no iterations, or an array that does not fit.
        """
        if iterations < 1 or warm_up < 0:
            raise UnusableInput("give at least one iteration, and no negative warm-up")
        taken: list[list[float]] = []
        for together in self._together([_ours(call) for call in calls]):
            times = self._time(together, warm_up, iterations)
            if isinstance(times, Finding):
                return times
            taken += times
        return taken

    def close(self) -> None:
        """End the processes that talk to the device."""
        for session in self._sessions.values():
            session.end()
        self._sessions.clear()
        for here in list(self._contexts):
            self._forget(here)

    def __enter__(self) -> XrtBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what kernels use --------------------------------------------------------------------------------------------

    def ready(self, kernel: XrtKernel) -> tuple[Session, Finding | None]:
        """The session of a kernel's format with the kernel loaded in it, or what stands against that."""
        session = self._session(kernel.artefact.format)
        if session.dead is not None:
            return session, session.dead
        here = kernel.here
        self._free(session, kernel.artefact.format)
        if here in self._contexts:
            self._contexts.move_to_end(here)
            return session, None
        while len(self._contexts) >= self.max_contexts:
            self._evict()
        answer = session.open(kernel.id, kernel.artefact)
        if answer.finding is not None and answer.finding.code == "contexts-exhausted" and self._contexts:
            while self._contexts:  # other processes hold the rest: give all of ours back, and try once
                self._evict()
            answer = session.open(kernel.id, kernel.artefact)
        if answer.finding is not None:
            return session, answer.finding
        self._contexts[here] = kernel
        return session, None

    def failed(self, kernel: XrtKernel, finding: Finding) -> None:
        """After a failure: a new context or a new process for the next run, as the failure asks for."""
        fatal = fatal_of(finding.code)
        form = kernel.artefact.format
        session = self._sessions.get(form)
        if session is not None and (fatal == "device" or session.dead is not None):
            session.end()
            del self._sessions[form]
            self._forget_all(form)
        elif fatal == "context" and session is not None and kernel.here in self._contexts:
            session.close(kernel.id)
            self._forget(kernel.here)

    def held(self, bound: XrtBound) -> str:
        """Take note of a set of buffers, and of its end; the name it has on the device."""
        name, here = f"{bound.kernel.id}#{next(self._numbers)}", bound.kernel.here
        self._bounds.setdefault(here, WeakSet()).add(bound)
        finalize(bound, self._dropped.append, (here, name)).atexit = False
        return name

    def _together(self, calls: Sequence[_OurCall]) -> list[list[_OurCall]]:
        """Calls that fit on the device at once: of one format, in no more contexts than are kept."""
        found: list[list[_OurCall]] = []
        for call in calls:
            form = call[0].kernel.artefact.format
            last = found[-1] if found else []
            contexts = {one.kernel.here for one, _ in last} | {call[0].kernel.here}
            if last and last[0][0].kernel.artefact.format == form and len(contexts) <= self.max_contexts:
                last.append(call)
            else:
                found.append([call])
        return found

    def _time(self, calls: Sequence[_OurCall], warm_up: int, iterations: int) -> list[list[float]] | Finding:
        session = None
        for bound, _ in calls:
            session, finding = bound.prepare()
            if finding is not None:
                return finding
        assert session is not None
        if not all(bound.there for bound, _ in calls):  # others hold contexts too: half of them at a time
            half = len(calls) // 2
            first = self._time(calls[:half], warm_up, iterations)
            rest = first if isinstance(first, Finding) else self._time(calls[half:], warm_up, iterations)
            return rest if isinstance(first, Finding) or isinstance(rest, Finding) else [*first, *rest]
        inputs = {bound.id: {position: raw(array) for position, array in given.items()} for bound, given in calls}
        answer = session.time([bound.id for bound, _ in calls], inputs, warm_up, iterations)
        if answer.finding is not None:
            self.failed(calls[0][0].kernel, answer.finding)
            return answer.finding
        return [[float(us) for us in times] for times in answer.said["us"]]

    def _session(self, form: str) -> Session:
        session = self._sessions.get(form)
        if session is None or session.dead is not None:
            if session is not None:
                session.end()
                self._forget_all(form)
            session = Session(self.toolchain, self.patience, self.cancelled)
            self._sessions[form] = session
        return session

    def _evict(self) -> None:
        here, kernel = next(iter(self._contexts.items()))
        self._forget(here)
        session = self._sessions.get(kernel.artefact.format)
        if session is not None:
            session.close(kernel.id)

    def _free(self, session: Session, form: str) -> None:
        """Free the buffers of what nobody holds any more."""
        for here, name in [one for one in self._dropped if one[0].startswith(f"{form}/")]:
            self._dropped.remove((here, name))
            if here in self._contexts:
                session.drop(name)

    def _forget(self, here: str) -> None:
        """A context is gone: whatever was bound in it is bound again when it is used."""
        self._contexts.pop(here, None)
        for bound in self._bounds.get(here, ()):
            bound.there = False

    def _forget_all(self, form: str) -> None:
        for here in [here for here in self._contexts if here.startswith(f"{form}/")]:
            self._forget(here)

    def _load(
        self, text: str, name: str, options: Mapping[str, Any], outputs: Sequence[int] | None, digest: str
    ) -> XrtKernel | Refused:
        program = parsed(text, name)
        if isinstance(program, Refused):
            return program
        function = choose_function(program, None)
        arguments = tuple(signature(function))
        wanted = chosen_outputs(name, arguments, outputs)
        findings = list(check_program(program, self.device, CheckOptions.of(options)))
        findings += argument_findings(arguments, self.device.value("buffer_object.offset_bytes"))
        trace = options.get("trace_size", 0)
        if isinstance(trace, int) and not isinstance(trace, bool) and trace > 0:
            findings.append(outcome("trace-not-read", size=trace))
        if any(one.severity == "error" for one in findings):
            return Refused(name, tuple(findings))
        here = self.machine.target
        if here is not None and here != self.device.compile_target:
            findings.append(outcome("wrong-generation", compiled=self.device.compile_target, device=here))
            return Refused(name, tuple(findings))
        compiled = self._compile(program, options)
        findings += compiled.findings
        if compiled.artefact is None:
            return Refused(name, tuple(findings))
        explicit = outputs is not None
        return XrtKernel(self, name, digest, arguments, wanted, tuple(findings), compiled.artefact, explicit)

    def _compile(self, program: Program, options: Mapping[str, Any]) -> Compiled:
        return compile_for_device(
            program, choose_function(program, None), options, self.device, self.toolchain, self.cache,
            timeout_s=self.timeout_s, cancelled=self.cancelled,
        )  # fmt: skip


class XrtKernel:
    """A program compiled for the NPU."""

    def __init__(
        self,
        backend: XrtBackend,
        name: str,
        digest: str,
        arguments: tuple[Argument, ...],
        outputs: tuple[int, ...],
        findings: tuple[Finding, ...],
        artefact: DeviceArtefact,
        outputs_named: bool,
    ) -> None:
        self.backend, self.name, self.digest = backend, name, digest
        self.arguments, self.outputs, self.findings, self.artefact = arguments, outputs, findings, artefact
        self.outputs_named = outputs_named
        self.id = artefact.folder.name
        self.here = f"{artefact.format}/{artefact.folder.name}"

    @property
    def sizes(self) -> list[int]:
        """Bytes of each argument."""
        return [_bytes(one) for one in self.arguments]

    def bind(self, static: Mapping[int, Array] = cast("Mapping[int, Array]", NO_OPTIONS)) -> XrtBound:
        """Static arguments converted once; they go to the device with the first run.

        Raises:
            UnusableInput: an array of another shape or type than the argument.
        """
        return XrtBound(self, self.fit(static))

    def fit(self, arrays: Mapping[int, Array]) -> dict[int, Array]:
        """Arrays as the arguments take them."""
        for position in arrays:
            if not 0 <= position < len(self.arguments):
                raise UnusableInput(f"{self.name} takes {len(self.arguments)} arguments; there is no number {position}")
        named = {f"arg{position}": array for position, array in arrays.items()}
        ready = fitted(named, list(self.arguments))
        return {position: ready[f"arg{position}"] for position in arrays}


class XrtBound:
    """A kernel with its static arguments held: here as bytes, and in buffers on the device while it is loaded."""

    def __init__(self, kernel: XrtKernel, static: Mapping[int, Array]) -> None:
        self._kernel = kernel
        self._static = {position: raw(array) for position, array in static.items()}
        self.id = kernel.backend.held(self)
        self.there = False
        self.clean = not any(has_nan(array) for array in static.values())

    @property
    def kernel(self) -> XrtKernel:
        """The kernel this was bound from."""
        return self._kernel

    @property
    def static(self) -> tuple[int, ...]:
        """Positions held."""
        return tuple(self._static)

    def run(self, inputs: Mapping[int, Array]) -> KernelRun:
        """Run once. Arguments nobody gives are filled with a pattern first, so that what the kernel leaves untouched shows.

        Raises:
            UnusableInput: an array of another shape or type than the argument, or one bound already.
        """
        return self._batch([self.given(inputs)])[0]

    def run_all(self, inputs: Sequence[Mapping[int, Array]]) -> list[KernelRun]:
        """Runs in turn, under one hold of the NPU's lock as long as their arrays stay below _BATCH bytes; see Bound."""
        ready = [self.given(one) for one in inputs]
        runs: list[KernelRun] = []
        each = max(1, sum(self._kernel.sizes))
        step = max(1, _BATCH // each)
        for first in range(0, len(ready), step):
            runs += self._batch(ready[first : first + step])
            if not runs[-1].ok:
                break
        return runs

    def _batch(self, batch: Sequence[Mapping[int, Array]]) -> list[KernelRun]:
        """Runs in one request, up to the first that fails."""
        started, kernel = time.monotonic(), self._kernel
        session, finding = self.prepare()
        if finding is not None:
            return [self._ended(started, finding)]
        answer, done = session.run(self.id, [self._order(given) for given in batch])
        wall = (time.monotonic() - started) / max(1, len(done))
        runs: list[KernelRun] = []
        for given, one in zip(batch, done, strict=False):
            runs.append(self._ran(given, one, wall))
            if not runs[-1].ok:
                return runs
        if answer.finding is not None:
            kernel.backend.failed(kernel, answer.finding)
            runs.append(self._ended(started, answer.finding))
        return runs

    def _order(self, given: Mapping[int, Array]) -> Order:
        sizes = self._kernel.sizes
        content = {position: raw(array) for position, array in given.items()}
        return Order(content, self._poison(given), {position: sizes[position] for position in self._kernel.outputs})

    def _poison(self, given: Mapping[int, Array]) -> dict[int, int]:
        arguments = enumerate(self._kernel.arguments)
        return {at: poison_of(one) for at, one in arguments if at not in given and at not in self._static}

    def _ran(self, given: Mapping[int, Array], done: Done, wall_s: float) -> KernelRun:
        kernel = self._kernel
        outputs = {
            position: np.frombuffer(done.outputs[position], kernel.arguments[position].dtype).reshape(
                kernel.arguments[position].shape or ()
            ).copy()
            for position in kernel.outputs
        }  # fmt: skip
        clean = self.clean and not any(has_nan(array) for array in given.values())
        findings = output_findings(kernel, outputs, self._poison(given), given, clean)
        ok = not any(one.severity == "error" for one in findings)
        parts = {name: round(float(done.said[name]), 1) for name in ("write_us", "read_us")}
        measured = round(float(done.said["us"]), 3)
        return KernelRun(ok, outputs, tuple(findings), "npu", None, measured, wall_s, {"run_us": measured, **parts})

    def given(self, inputs: Mapping[int, Array]) -> dict[int, Array]:
        """Inputs as the kernel takes them; none that is bound already."""
        again = sorted(set(inputs) & set(self._static))
        if again:
            raise UnusableInput(f"{self._kernel.name}: argument {again[0]} is bound already")
        return self._kernel.fit(inputs)

    def prepare(self) -> tuple[Session, Finding | None]:
        """The session with this loaded and bound, or what stands against it."""
        kernel = self._kernel
        session, finding = kernel.backend.ready(kernel)
        if finding is None and not self.there:
            answer: Answer = session.bind(self.id, kernel.id, kernel.sizes, self._static)
            finding = answer.finding
            self.there = finding is None
        if finding is not None:
            kernel.backend.failed(kernel, finding)
        return session, finding

    def _ended(self, started: float, finding: Finding) -> KernelRun:
        return KernelRun(False, {}, (finding,), "npu", None, None, time.monotonic() - started)


_OurCall = tuple[XrtBound, dict[int, Array]]


def _ours(call: Call) -> _OurCall:
    """A call with its arrays as the kernel takes them."""
    bound, inputs = call
    if not isinstance(bound, XrtBound):
        raise UnusableInput(f"{bound.kernel.name} was bound by another backend; load it with this one")
    return bound, bound.given(inputs)


def argument_findings(arguments: Sequence[Argument], most_bytes: int) -> list[Finding]:
    """What about the arguments no device run can take."""
    found: list[Finding] = []
    for one in arguments:
        if one.shape is None:
            found.append(outcome("scalar-argument", argument=one.name, element=one.element))
        elif _bytes(one) > most_bytes:
            found.append(outcome("buffer-too-large", argument=one.name, size=_bytes(one)))
    return found


def output_findings(
    kernel: XrtKernel, outputs: Mapping[int, Array], poison: Mapping[int, int], given: Mapping[int, Array], clean: bool
) -> list[Finding]:
    """What outputs tell of themselves: untouched, partly untouched, zero, NaN from inputs without one."""
    found: list[Finding] = []
    untouched: list[int] = []
    for position, array in outputs.items():
        name, size = f"arg{position}", array.size
        if position in given or position not in poison or not size:
            continue
        missing = left_over(array, poison[position])
        count = int(missing.sum())
        if count == size:
            untouched.append(position)
        elif count:
            first = [int(at) for at in np.argwhere(missing)[0]]
            found.append(outcome("output-partly-written", argument=name, missing=count, size=size, first=first))
        elif clean and has_nan(array):
            nans = int(np.isnan(array.astype(np.float32)).sum())
            found.append(outcome("output-nan", argument=name, count=nans, size=size))
        elif not array.any() and any(one.any() for one in given.values()):
            found.append(outcome("output-zero", argument=name))
    # Where nobody said which arguments are outputs, one that stays untouched may just be none; all of them may not.
    every = len(untouched) == sum(position in poison for position in outputs)
    for position in untouched:
        finding = outcome("output-not-written", argument=f"arg{position}")
        sure = kernel.outputs_named or every
        found.append(finding if sure else replace(finding, severity="warning", certain=False))
    return found


def left_over(array: Array, byte: int) -> Any:
    """Which elements still hold the pattern: exactly for floats; integers only in runs no result makes by chance."""
    flat = np.ascontiguousarray(array)
    raw_bytes = flat.view(np.uint8).reshape(flat.size, flat.itemsize)
    same = (raw_bytes == byte).all(axis=1)
    if byte == ODD_BYTE:
        block = max(1, _RUN // flat.itemsize)
        whole = flat.size // block * block
        blocks = np.zeros(flat.size, bool)
        blocks[:whole] = np.repeat(same[:whole].reshape(-1, block).all(axis=1), block)
        blocks[whole:] = same[whole:].all() and (blocks[whole - 1] if whole else True)
        same = blocks
    return same.reshape(flat.shape)


def poison_of(argument: Argument) -> int:
    """The byte an argument is filled with."""
    return NAN_BYTE if _is_float(argument.dtype) else ODD_BYTE


def has_nan(array: Array) -> bool:
    """Whether a float array holds a NaN."""
    return _is_float(array.dtype) and bool(np.isnan(array.astype(np.float32)).any())


def raw(array: Array) -> bytes:
    """An array's bytes as the device has them."""
    return np.ascontiguousarray(array).tobytes()


def _bytes(argument: Argument) -> int:
    return int(np.prod(argument.shape or (1,))) * argument.dtype.itemsize


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"
