"""Changing a copy of a deployment, and writing its ledger anew so that the chain holds: how a cheat, or an honest
difference, is planted.

>>> copy = Planted.copy(honest, target)
>>> copy.rewrite(lambda lines: lines[:-1])
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from npu_tools.deployment.ledger import FIRST, canonical, digest
from npu_tools.deployment.workspace import Workspace, file_digest

Line = dict[str, Any]
NAMING = {"step": "gate_seq", "answer": "checkpoint", "note": "about"}
"""By which key a kind of line names another one."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """One way to cheat: what is done, the codes of which one must be given, and how to plant it. With `head`, the hash
    of the honest ledger's last line was kept elsewhere."""

    name: str
    what: str
    codes: tuple[str, ...]
    plant: Callable[[Planted], None]
    head: bool = False


@dataclass(frozen=True, slots=True)
class Planted:
    """A copy of a workspace that may be changed."""

    workspace: Workspace
    shipped: Path

    @classmethod
    def copy(cls, honest: Path, target: Path, shipped: Path) -> Planted:
        """A copy without locks and earlier verdicts."""
        ignored = shutil.ignore_patterns("*.lock", "evaluation_report.md", "verdict.json")
        shutil.copytree(honest, target, ignore=ignored)
        return cls(Workspace(target), shipped)

    @property
    def folder(self) -> Path:
        """The copy's folder."""
        return self.workspace.folder

    def lines(self) -> list[Line]:
        """The ledger's lines."""
        text = self.workspace.ledger.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def rewrite(self, change: Callable[[list[Line]], list[Line] | None]) -> None:
        """The ledger changed, numbered and chained anew with fresh hashes, and its head with it."""
        lines = self.lines()
        changed = change(lines)
        previous = FIRST
        kept = lines if changed is None else changed
        for number, line in enumerate(kept, 1):
            line["seq"], line["prev"] = number, previous
            line["hash"] = previous = digest(line)
        self.workspace.ledger.write_text("".join(canonical(line) + "\n" for line in kept), encoding="utf-8")
        head = self.workspace.ledger.with_name(f"{self.workspace.ledger.stem}.head.json")
        head.write_text(json.dumps({"seq": len(kept), "hash": previous}), encoding="utf-8")

    def remove(self, gone: set[int]) -> None:
        """Lines taken out, with notes about them, and every line that names another by its number made to fit."""

        def change(lines: list[Line]) -> list[Line]:
            gone.update(line["seq"] for line in lines if line["kind"] == "note" and line["body"].get("about") in gone)
            kept = [line for line in lines if line["seq"] not in gone]
            for line in kept:
                named = [(line["body"], NAMING.get(line["kind"], ""))]
                named += [(one, "taken_from") for one in part(line, "metrics").get("prompts", [])]
                for holder, key in named:
                    if isinstance(holder.get(key), int):
                        holder[key] -= sum(each < holder[key] for each in gone)
            return kept

        self.rewrite(change)

    def array(self, path: Path | str, change: Callable[[Any], Any]) -> None:
        """An array of the results replaced, its digest in the ledger with it."""
        target = self.folder / path
        np.save(target, np.asarray(change(np.load(target)), np.float32))
        self.resign()

    def resign(self) -> None:
        """Digests of result files in the ledger made those of the files as they are; files gone are left out."""

        def change(lines: list[Line]) -> None:
            for line in lines:
                named = part(line, "digests", "results")
                for path in list(named):
                    if (self.folder / path).is_file():
                        named[path] = file_digest(self.folder / path)
                    else:
                        del named[path]

        self.rewrite(change)

    def gates(self, gate: str, *, trial: bool | None = False) -> Iterator[Line]:
        """Attempts of a gate as they stand in the ledger."""
        for line in self.lines():
            body = line["body"]
            if (
                line["kind"] == "attempt"
                and body.get("gate") == gate
                and (trial is None or bool(body.get("trial")) == trial)
            ):
                yield line

    def results_of(self, gate: str, ending: str) -> Path:
        """The first file of results of a gate whose path ends so."""
        for line in self.gates(gate, trial=None):
            for path in line["body"]["digests"]["results"]:
                if path.endswith(ending):
                    return Path(path)
        raise LookupError(f"no result of {gate} ends with {ending}")

    def override(self, kernel: str, name: str, change: Callable[[str], str]) -> None:
        """A file of a shipped recipe changed for this deployment."""
        target = self.workspace.recipes / kernel / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(change((self.shipped / kernel / name).read_text(encoding="utf-8")), encoding="utf-8")

    def sign_recipe(self, kernel: str) -> None:
        """The recipe's digest in every line made that of the recipe as it is now: as if it had been gated."""
        from npu_tools.deployment.workspace import recipe_digest

        whole = self.workspace.kernels(self.shipped)
        now = recipe_digest(whole / kernel)
        shutil.rmtree(whole) if whole != self.shipped else None

        def change(lines: list[Line]) -> None:
            for line in lines:
                about = part(line, "subject")
                if about.get("kernel") == kernel and "recipe_digest" in about:
                    about["recipe_digest"] = now
                if kernel in part(line, "subject", "recipes"):
                    about["recipes"][kernel] = now

        self.rewrite(change)


def part(line: Line, *keys: str) -> dict[str, Any]:
    """An object inside a line's body; an empty one where there is none."""
    found: Any = line["body"]
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def attempts(lines: list[Line], gate: str) -> list[Line]:
    """The attempts of a gate among lines."""
    return [line for line in lines if line["kind"] == "attempt" and line["body"].get("gate") == gate]
