"""What an iteration of a launch does to memory, step by step: what `repeats.py` does again for the other iterations.

While a journal is kept, data movement and calls of external kernels note the arrays they work on. The arrays stay alive
with the journal, so that the same steps can be taken again on the same storage. Windows on function arguments are noted
by the op that moves them, since they lie elsewhere in every iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.ir import Operation

from npu_tools.emulator.types import Array

if TYPE_CHECKING:
    from npu_tools.emulator.kernels import ExternalKernel
    from npu_tools.emulator.numerics import Numerics

MAX_BYTES = 256 << 20
"""Bytes moved in one iteration beyond which no journal is kept: its storage stays alive."""


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Elements of one array to another of a shape it broadcasts to."""

    target: Array
    source: Array


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What the window of an op on an argument holds, to an array of its shape."""

    op: Operation
    target: Array


@dataclass(frozen=True, slots=True, eq=False)
class Save:
    """An array to the window of an op on an argument."""

    op: Operation
    source: Array


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A kernel on arrays and numbers."""

    kernel: ExternalKernel
    numerics: Numerics
    arguments: tuple[Any, ...]


Step = Copy | Load | Save | Call


@dataclass(slots=True)
class Journal:
    """The steps so far; `spoiled` says that something happened which is no step."""

    steps: list[Step] = field(default_factory=list[Step])
    spoiled: bool = False
    size: int = 0

    def note(self, step: Step, count: int = 0) -> None:
        """Add a step that moves `count` bytes."""
        if self.spoiled:
            return
        self.size += count
        if self.size > MAX_BYTES:
            self.spoil()
            return
        self.steps.append(step)

    def copied(self, target: Array, source: Array | np.generic | float) -> None:
        """Elements were copied."""
        self.note(Copy(target, np.asarray(source)), target.nbytes)

    def spoil(self) -> None:
        """Something happened that cannot be done again by steps."""
        self.spoiled = True
        self.steps.clear()
