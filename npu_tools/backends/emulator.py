"""The emulator as a backend: programs are parsed, checked and lowered once, then run on bound inputs.

    backend = EmulatorBackend()
    kernel = backend.load(text, name="gemv", outputs=(2,))

Times are modelled, never measured. A program the legality check refuses is not run: neither would a device.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from npu_tools.air import Program
from npu_tools.arrays import Argument, signature
from npu_tools.backends.programs import chosen_outputs, kernel_key, parsed, program_digest
from npu_tools.backends.protocol import (
    ITERATIONS,
    NO_OPTIONS,
    WARM_UP,
    Array,
    BackendName,
    Call,
    KernelRun,
    Refused,
)
from npu_tools.check import CheckOptions, check_program
from npu_tools.device import device as find_device
from npu_tools.emulator.bound import BoundInputs
from npu_tools.emulator.prepared import PreparedProgram
from npu_tools.emulator.run import choose_function
from npu_tools.errors import UnusableInput
from npu_tools.estimate import estimate_run
from npu_tools.findings import Finding

Mode = Literal["faithful", "f32"]
MAX_BYTES = 16 << 30
"""Bound on the live buffers of one run."""


class EmulatorBackend:
    """Runs kernels on the emulator of `device`. `numerics` "f32" rounds nothing and is for comparing with references."""

    def __init__(
        self,
        *,
        numerics: Mode = "faithful",
        device: str = "npu2",
        timeout_s: float | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.numerics: Mode = numerics
        self.device = find_device(device)
        self.timeout_s = timeout_s
        self.cancelled = cancelled
        self._loaded: dict[str, EmulatedKernel | Refused] = {}

    @property
    def name(self) -> BackendName:
        """Which backend this is."""
        return "emulator"

    def load(
        self,
        program: str,
        *,
        name: str,
        options: Mapping[str, Any] = NO_OPTIONS,
        outputs: Sequence[int] | None = None,
    ) -> EmulatedKernel | Refused:
        """Parse, check, keep. The same text and options give the same kernel.

        Raises:
            UnusableInput: no function to start from, or an output position that is none.
        """
        digest = program_digest(program, options)
        key = kernel_key(digest, name, outputs)
        found = self._loaded.get(key)
        if found is None:
            found = self._load(program, name, options, outputs, digest)
            self._loaded[key] = found
        return found

    def measure(
        self, calls: Sequence[Call], *, warm_up: int = WARM_UP, iterations: int = ITERATIONS,
        context_length: int | None = None,
    ) -> None:  # fmt: skip
        """Nothing: an emulator has no time of its own."""

    def _load(
        self, text: str, name: str, options: Mapping[str, Any], outputs: Sequence[int] | None, digest: str
    ) -> EmulatedKernel | Refused:
        program = parsed(text, name)
        if isinstance(program, Refused):
            return program
        findings = tuple(check_program(program, self.device, CheckOptions.of(options)))
        if any(finding.severity == "error" for finding in findings):
            return Refused(name, findings)
        arguments = tuple(signature(choose_function(program, None)))
        wanted = chosen_outputs(name, arguments, outputs)
        return EmulatedKernel(self, program, name, digest, arguments, wanted, findings)


class EmulatedKernel:
    """A program of the emulator, parsed and checked."""

    def __init__(
        self,
        backend: EmulatorBackend,
        program: Program,
        name: str,
        digest: str,
        arguments: tuple[Argument, ...],
        outputs: tuple[int, ...],
        findings: tuple[Finding, ...],
    ) -> None:
        self.backend, self.name, self.digest = backend, name, digest
        self.prepared = PreparedProgram(program, numerics=backend.numerics, outputs=outputs)
        self.arguments, self.outputs, self.findings = arguments, outputs, findings
        self.modelled_us: float | None = None

    def bind(self, static: Mapping[int, Array] = cast("Mapping[int, Array]", NO_OPTIONS)) -> EmulatedBound:
        """Static arguments converted and rounded once.

        Raises:
            UnusableInput: an array of another shape or type than the argument.
        """
        return EmulatedBound(self, self.prepared.bind(_named(self, static)))


class EmulatedBound:
    """A kernel with its static arguments held."""

    def __init__(self, kernel: EmulatedKernel, static: BoundInputs) -> None:
        self._kernel, self._static = kernel, static

    @property
    def kernel(self) -> EmulatedKernel:
        """The kernel this was bound from."""
        return self._kernel

    def run(self, inputs: Mapping[int, Array]) -> KernelRun:
        """Run once.

        Raises:
            UnusableInput: an array of another shape or type than the argument, or one bound already.
        """
        return self._run(self._static.joined(_named(self._kernel, inputs)))

    def run_all(self, inputs: Sequence[Mapping[int, Array]]) -> list[KernelRun]:
        """Runs in turn up to the first that fails; see Bound."""
        ready = [self._static.joined(_named(self._kernel, one)) for one in inputs]
        prepared = self._kernel.prepared
        for one in ready:
            one.for_run(prepared.function, prepared.numerics)  # raises before anything has run
        runs: list[KernelRun] = []
        for one in ready:
            runs.append(self._run(one))
            if not runs[-1].ok:
                break
        return runs

    def _run(self, joined: BoundInputs) -> KernelRun:
        started, kernel = time.monotonic(), self._kernel
        result = kernel.prepared.run(
            joined,
            timeout_s=kernel.backend.timeout_s,
            max_bytes=MAX_BYTES,
            cancelled=kernel.backend.cancelled,
        )
        counters = result.counters.as_dict()
        if kernel.modelled_us is None and result.ok:
            kernel.modelled_us = estimate_run(counters)
        outputs = {at: result.outputs[f"arg{at}"] for at in kernel.outputs if f"arg{at}" in result.outputs}
        return KernelRun(
            result.ok,
            outputs,
            tuple(result.findings),
            "emulator",
            kernel.modelled_us,
            None,
            time.monotonic() - started,
            counters,
        )


def _named(kernel: EmulatedKernel, arrays: Mapping[int, Array]) -> dict[str, Array]:
    for position in arrays:
        if not 0 <= position < len(kernel.arguments):
            raise UnusableInput(f"{kernel.name} takes {len(kernel.arguments)} arguments; there is no number {position}")
    return {f"arg{position}": array for position, array in arrays.items()}
