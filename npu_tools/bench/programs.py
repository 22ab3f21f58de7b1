"""A folder of programs judged, and the counts beside what is asked of them.

>>> measure_programs(Path("air_ir")).agreeing
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from npu_tools.bench.program import ProgramResult, Trying
from npu_tools.bench.workers import judge_all
from npu_tools.errors import UnusableInput

WITH_REFERENCE = 60
"""Of the 102 programs upstream's builders print by default, so many at least must agree with a reference."""


@dataclass(frozen=True, slots=True)
class ProgramsMeasured:
    """All results."""

    results: tuple[ProgramResult, ...]

    @property
    def parsed(self) -> int:
        return sum(one.parses for one in self.results)

    @property
    def checked(self) -> int:
        return sum(one.checks for one in self.results)

    @property
    def ran(self) -> int:
        return sum(one.runs for one in self.results)

    def count(self, verdict: str) -> int:
        """Results of one verdict."""
        return sum(one.verdict == verdict for one in self.results)

    @property
    def agreeing(self) -> int:
        return self.count("agrees")

    @property
    def wanted(self) -> int:
        """How many must agree: of a small folder all that are not wrong themselves."""
        return min(WITH_REFERENCE, len(self.results) - self.count("faulty program"))

    @property
    def ok(self) -> bool:
        """Everything is read, passes the check and runs, nothing differs, and enough agrees."""
        total = len(self.results)
        every = self.parsed == self.checked == self.ran == total
        return every and not self.count("differs") and self.agreeing >= self.wanted

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ok": self.ok,
            "programs": len(self.results),
            "parsed": self.parsed,
            "checked": self.checked,
            "ran": self.ran,
            "agreeing": self.agreeing,
            "wanted": self.wanted,
            "differing": self.count("differs"),
            "without_reference": self.count("no reference"),
            "faulty_programs": self.count("faulty program"),
            "results": [one.as_dict() for one in self.results],
        }


def measure_programs(
    directory: Path,
    trying: Trying | None = None,
    *,
    only: str = "*",
    workers: int = 2,
    each: Callable[[ProgramResult], None] | None = None,
) -> ProgramsMeasured:
    """Every .mlir file of a folder whose stem fits `only`.

    Raises:
        UnusableInput: the folder is not there, or nothing in it fits.
    """
    return ProgramsMeasured(tuple(judge_all(program_files(directory, only), trying or Trying(), workers, each)))


def program_files(directory: Path, only: str = "*") -> list[Path]:
    """The .mlir files of a folder, or one file, whose stem fits.

    Raises:
        UnusableInput: there are none.
    """
    if directory.is_file():
        return [directory]
    if not directory.is_dir():
        raise UnusableInput(f"{directory} is no folder; give one with .mlir programs")
    found = sorted(path for path in directory.glob("*.mlir") if fnmatchcase(path.stem, only))
    if not found:
        raise UnusableInput(f"no .mlir file in {directory} has a name like {only!r}")
    return found
