"""Everything npu_tools raises.

    NpuToolsError
    ├── ProgramSyntaxError   the program text cannot be read; carries line, column and the line itself
    ├── UnknownDevice        no such device in devices.toml
    ├── UnknownKernel        no such kernel, or a shape it does not take
    ├── UnusableInput        arrays, configs or options that do not fit what they are for
    ├── RunStopped           a run was cancelled or hit its time or memory limit
    │   └── NotWritten       a file could not be written: no room, no permission
    └── NotMeasured          a timed run failed on the device; carries the finding

What an agent must act on (a refused design, a missed gate, a deadlock) is a value, not an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npu_tools.findings import Finding


class NpuToolsError(Exception):
    """Something about the request itself is wrong; the text says what, where and what to do next."""


class ProgramSyntaxError(NpuToolsError):
    """The program text cannot be read."""

    def __init__(self, message: str, *, name: str, line: int | None, column: int | None, snippet: str = "") -> None:
        self.message, self.name, self.line, self.column, self.snippet = message, name, line, column, snippet
        place = name if line is None else f"{name}:{line}:{column}"
        super().__init__(f"{place}: {message}" + (f"\n{snippet}" if snippet else ""))


class UnknownDevice(NpuToolsError):
    """No such device; the text lists those there are."""


class UnknownKernel(NpuToolsError):
    """No such kernel, or a shape it does not take; the text says what it takes."""


class UnusableInput(NpuToolsError):
    """Arrays, configs or options that do not fit what they are for."""


class RunStopped(NpuToolsError):
    """A run was cancelled, or hit its time or memory limit."""


class NotWritten(RunStopped, UnusableInput):
    """A file could not be written for want of room or permission: nobody's failure, and the run goes on once it can be."""


class NotMeasured(NpuToolsError):
    """A time could not be taken on the device; the finding says why."""

    def __init__(self, message: str, finding: Finding) -> None:
        self.finding = finding
        super().__init__(message)


class LedgerBroken(NpuToolsError):
    """A deployment's ledger is not what was written; the text says at which line."""


class WorkspaceBusy(NpuToolsError):
    """Another process is at work in this workspace."""
