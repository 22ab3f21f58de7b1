"""How much of a folder of MLIR text is read: each file and each of its programs, parsed, printed and parsed again.

>>> for row in measure_forms(Path("mlir/test")).files:
...     print(row.name, row.chunks, row.round_trips, row.error)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npu_tools.air.parse import chunks, parse_program
from npu_tools.errors import ProgramSyntaxError

AIR_OPS = ("air.launch", "air.segment", "air.herd", "air.channel", "air.dma_memcpy_nd")
"""A file counts where one of these occurs outside comments."""

_COMMENT = re.compile(r"//[^\n]*")


@dataclass(frozen=True, slots=True)
class FormsOfFile:
    """One file: how many programs it holds, how many were read, how many came back the same, the first error."""

    name: str
    chunks: int
    parsed: int
    round_trips: int
    error: str | None

    @property
    def whole(self) -> bool:
        """Whether every program in it was read and came back the same."""
        return self.round_trips == self.chunks


@dataclass(frozen=True, slots=True)
class FormsMeasured:
    """The files of a folder."""

    files: tuple[FormsOfFile, ...]

    def totals(self) -> dict[str, Any]:
        """Counts by file and by program, ready for JSON."""
        total = sum(row.chunks for row in self.files)
        return {
            "files": len(self.files),
            "files_whole": sum(row.whole for row in self.files),
            "programs": total,
            "programs_parsed": sum(row.parsed for row in self.files),
            "programs_round_trip": sum(row.round_trips for row in self.files),
        }


def measure_forms(directory: Path, *, air_only: bool = True) -> FormsMeasured:
    """Every `.mlir` file below `directory`; with `air_only` those where AIR ops occur."""
    rows: list[FormsOfFile] = []
    for path in sorted(directory.rglob("*.mlir")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if air_only and not any(name in _COMMENT.sub("", text) for name in AIR_OPS):
            continue
        rows.append(measure_text(text, path.relative_to(directory).as_posix()))
    return FormsMeasured(tuple(rows))


def measure_text(text: str, name: str) -> FormsOfFile:
    """One text."""
    outcomes = list(_outcomes(text, name))
    return FormsOfFile(
        name=name,
        chunks=len(outcomes),
        parsed=sum(parsed for parsed, _ in outcomes),
        round_trips=sum(error is None for _, error in outcomes),
        error=next((error for _, error in outcomes if error is not None), None),
    )


def _outcomes(text: str, name: str) -> Iterator[tuple[bool, str | None]]:
    for start, chunk in chunks(text):
        # Blank lines in front keep the line numbers of the file in the errors.
        numbered = "\n" * text.count("\n", 0, start) + chunk
        try:
            printed = parse_program(numbered, name).print_generic()
        except ProgramSyntaxError as error:
            yield False, str(error)
            continue
        try:
            again = parse_program(printed, f"{name} (printed again)").print_generic()
        except ProgramSyntaxError as error:
            yield True, str(error)
            continue
        yield True, None if again == printed else f"{name}: printing, reading and printing again differ"
