"""Where the NPU tools read and write: paths given by a client, the jobs folder, the artefact cache.

On stdio a client is the person's own agent and may name any file. Over HTTP it may be anybody with the token: then
every path must lie under the workspace, or be a job's own result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npu_tools.errors import UnusableInput

MAX_PROGRAM_BYTES = 64 * 1024 * 1024
"""Longest program read; upstream's largest printed program is under 1 MB."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one server or command."""

    home: Path
    workspace: Path
    confined: bool = False
    toolchain: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Where the real tools are, as the requests of the xrt backend take it."""

    @property
    def jobs(self) -> Path:
        """One folder a job."""
        return self.home / "jobs"

    @property
    def artefacts(self) -> Path:
        """Compiled programs by content."""
        return self.home / "artefacts"

    def path(self, given: str) -> Path:
        """A path as a client wrote it; relative ones are in the workspace.

        Raises:
            UnusableInput: outside the workspace where that is not allowed.
        """
        path = Path(given).expanduser()
        path = path if path.is_absolute() else self.workspace / path
        roots = (self.workspace, self.jobs, self.artefacts)
        if self.confined and not any(path.resolve().is_relative_to(root.resolve()) for root in roots):
            raise UnusableInput(f"{given[:200]} is outside the workspace; over HTTP only files under it can be used")
        return path

    def output(self, given: str) -> Path:
        """A path to write to: under the workspace, whoever asks.

        Raises:
            UnusableInput: outside it.
        """
        path = self.path(given)
        if not any(path.resolve().is_relative_to(root.resolve()) for root in (self.workspace, self.jobs)):
            raise UnusableInput(
                f"{given[:200]} is outside the workspace {self.workspace}; outputs go to files under it "
                "(HERDBOOK_WORKSPACE names another)"
            )
        return path

    def program(self, given: str) -> tuple[str, str]:
        """Text and name of a program file.

        Raises:
            UnusableInput: it cannot be read, is too long, or is not text.
        """
        path = self.path(given)
        return read_program(path), path.name


def read_program(path: Path) -> str:
    """The text of a program file.

    Raises:
        UnusableInput: it cannot be read, is too long, or is not text.
    """
    try:
        if path.stat().st_size > MAX_PROGRAM_BYTES:
            raise UnusableInput(
                f"{path} has {path.stat().st_size} bytes, over {MAX_PROGRAM_BYTES}; give one program a file"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UnusableInput(
            f"{path} is not UTF-8 text (byte {error.start}); MLIR bytecode is printed by mlir-opt"
        ) from None
    except ValueError as error:
        raise UnusableInput(f"cannot read {str(path)[:200]!r}: {error}") from None
