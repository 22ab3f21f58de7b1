"""A program that has been read: the module, its text, and where each op stands in it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import StringIO

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation
from xdsl.printer import Printer


@dataclass(frozen=True, slots=True)
class Place:
    """A position in the text; lines and columns count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Program:
    """One parsed program.

    `offsets` says for each op at which character its name starts; ops that the text leaves out (implicit terminators)
    have the place where their region closes.
    """

    module: ModuleOp
    text: str
    name: str
    offsets: Mapping[Operation, int] = field(repr=False, default_factory=dict[Operation, int])
    resources: tuple[str, ...] = ()
    """The text of `{-# … #-}` sections: constants kept outside the ops."""

    @cached_property
    def _line_starts(self) -> list[int]:
        return line_starts(self.text)

    def where(self, op: Operation) -> Place | None:
        """Where the op stands; for an op without a place of its own, that of the op around it."""
        current: Operation | None = op
        while current is not None:
            if (offset := self.offsets.get(current)) is not None:
                return place_at(self._line_starts, offset)
            current = current.parent_op()
        return None

    def functions(self) -> list[FuncOp]:
        """The functions with a body, in the order of the text."""
        return [op for op in self._all_functions() if not op.is_declaration]

    def declarations(self) -> dict[str, FuncOp]:
        """The functions without a body, by name: the external kernels."""
        return {op.sym_name.data: op for op in self._all_functions() if op.is_declaration}

    def _all_functions(self) -> list[FuncOp]:
        return [op for op in self.module.walk() if op.name == FuncOp.name and isinstance(op, FuncOp)]

    def print_generic(self) -> str:
        """The program in MLIR's generic form; parsing it again gives the same text."""
        stream = StringIO()
        Printer(stream, print_generic_format=True).print_op(self.module)
        return "\n".join((stream.getvalue(), *self.resources)) + "\n"


def line_starts(text: str) -> list[int]:
    """The offset at which each line starts."""
    starts = [0]
    position = text.find("\n")
    while position >= 0:
        starts.append(position + 1)
        position = text.find("\n", position + 1)
    return starts


def place_at(starts: list[int], offset: int) -> Place:
    """The line and column of an offset."""
    line = bisect_right(starts, offset)
    return Place(line, offset - starts[line - 1] + 1)
