"""Results of the bench kept in a folder, so that it can be ended and taken up again, or run in parts.

>>> kept = Kept(folder)
>>> kept.row("cheat", "broken chain", honest)

A result counts for the code that gave it, and, where the case was planted, for the honest deployment it was planted into.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import npu_tools
from npu_tools.deployment.workspace import file_digest

CASES = "cases.jsonl"


class Kept:
    """The lines of `cases.jsonl`; later ones replace earlier ones of the same case."""

    def __init__(self, folder: Path, kernels: Path) -> None:
        self.path = folder / CASES
        self.code = code_digest(Path(npu_tools.__file__).parent, kernels)
        self._bases: dict[Path, str] = {}
        self._rows: dict[tuple[str, str], dict[str, Any]] = {}
        text = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
        for line in text.splitlines():
            try:
                said: Any = json.loads(line)
            except ValueError:  # the line that was being written when the bench was ended
                continue
            self._rows[said["row"]["kind"], said["row"]["name"]] = said

    def row(self, kind: str, name: str, basis: Path | None) -> dict[str, Any] | None:
        """A case's result, if it was had with this code and planted into this deployment."""
        said = self._rows.get((kind, name))
        if said is None or said.get("code") != self.code or said.get("planted_in") != self._basis(basis):
            return None
        return said["row"]

    def add(self, row: dict[str, Any], basis: Path | None) -> None:
        """Keep a result; it is on the disk when this returns."""
        said = {"code": self.code, "planted_in": self._basis(basis), "row": row}
        self._rows[row["kind"], row["name"]] = said
        broken = self.path.is_file() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if broken else "") + json.dumps(said) + "\n")

    def _basis(self, basis: Path | None) -> str | None:
        if basis is None:
            return None
        if basis not in self._bases:
            self._bases[basis] = file_digest(basis / "ledger.jsonl")
        return self._bases[basis]


def code_digest(*folders: Path) -> str:
    """One digest of all Python and TOML files below the folders, by their paths there."""
    told = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".py", ".toml"} and path.is_file():
                told.update(f"{path.relative_to(folder).as_posix()} {file_digest(path)}\n".encode())
    return told.hexdigest()
