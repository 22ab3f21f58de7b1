"""What a workspace claims, read without believing it: the ledger's lines sorted by what they vouch for.

>>> claims = read_claims(workspace, shipped)
>>> claims.vouching(1)                     # the passed attempts that phase 1 rests on
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from npu_tools.architectures import Dimensions, read_config
from npu_tools.deployment.ledger import Entry, verify
from npu_tools.deployment.ledger import read as read_ledger
from npu_tools.deployment.state import State, tools_version
from npu_tools.deployment.workspace import Workspace
from npu_tools.errors import LedgerBroken, NpuToolsError, UnusableInput
from npu_tools.evaluator.reasons import Reason
from npu_tools.findings import Finding

LAST_PHASE = 6
"""The evaluation is phase 7; what it rests on are the phases before."""


@dataclass(frozen=True, slots=True)
class Claims:
    """A workspace whose ledger and config can be read. `broken` is the ledger's first fault, `config` as deployed."""

    workspace: Workspace
    shipped: Path
    entries: tuple[Entry, ...]
    state: State
    config: Mapping[str, Any]
    dims: Dimensions
    broken: Reason | None = None

    @property
    def folder(self) -> Path:
        """The workspace's folder."""
        return self.workspace.folder

    @property
    def opened(self) -> Mapping[str, Any]:
        """What the deployment was opened with."""
        return self.state.head

    @property
    def seq_len(self) -> int:
        """Tokens the deployment is built for."""
        return int(self.opened.get("seq_len") or 0)

    @property
    def convention(self) -> str:
        """By which gates are decided."""
        return str(self.opened.get("convention") or "head")

    @property
    def weights(self) -> str:
        """Where the weights come from."""
        return str(self.opened.get("weights") or "")

    @property
    def same_version(self) -> bool:
        """Whether it was deployed by the tools that look at it now."""
        return self.opened.get("version") == tools_version()

    def attempts(self, phase: int) -> list[Entry]:
        """All attempts of a phase, whenever made."""
        return [entry for entry in self.state.attempts if entry.phase == phase]

    def vouching(self, phase: int) -> list[Entry]:
        """For every gate and subject of a phase its last attempt, where that passed; of kernels also those of earlier
        runs, which are not repeated. Trials the machine took back vouch for nothing."""
        last: dict[str, Entry] = {}
        for entry in self.state.attempts_of(phase, since=0 if phase == 1 else None):
            if not (entry.body.get("trial") and not entry.body.get("passed")):
                last[_about(entry)] = entry
        return [entry for entry in last.values() if entry.body.get("passed") is True]

    def model_gates(self) -> list[Entry]:
        """Every passed gate over the whole model (token sets), of phases 3 to 5, in order."""
        return [
            entry
            for entry in self.state.attempts
            if entry.phase in (3, 4, 5)
            and entry.body.get("passed") is True
            and any(one.get("name") == "token_sets" for one in rows(entry.body.get("criteria")))
        ]

    def kernel_gates(self) -> list[Entry]:
        """Every passed gate of a kernel, of whatever phase."""
        return [
            entry
            for entry in self.state.attempts
            if entry.body.get("gate") == "kernel" and entry.body.get("passed") is True
        ]

    def results(self) -> dict[str, tuple[str, Entry]]:
        """Every file of results an attempt names: path → (sha256, the last attempt that names it)."""
        found: dict[str, tuple[str, Entry]] = {}
        for entry in self.state.attempts:
            for path, digest in mapping(mapping(entry.body.get("digests")).get("results")).items():
                found[str(path)] = (str(digest), entry)
        return found


def read_claims(folder: Path, shipped: Path) -> Claims:
    """The claims of a workspace; a broken ledger is a claim too, read as far as its lines can be.

    Raises:
        UnusableInput: there is no deployment in the folder, or its config cannot be read at all.
    """
    workspace = Workspace(folder)
    if not workspace.ledger.is_file():
        raise UnusableInput(f"{folder} is no deployment's workspace: it has no {workspace.ledger.name}")
    broken, entries = _entries(workspace.ledger)
    state = State.of(entries)
    try:
        config: Any = json.loads(workspace.config.read_text(encoding="utf-8"))
        dims = read_config(config)
    except OSError as error:
        raise UnusableInput(f"cannot read {workspace.config}: {error.strerror or error}") from None
    except ValueError as error:
        raise UnusableInput(f"{workspace.config} is no JSON: {error}") from None
    if isinstance(dims, Finding):
        raise UnusableInput(f"{workspace.config}: {dims.message}; {dims.remedy}")
    if not entries or not state.head:
        raise UnusableInput(f"{workspace.ledger} holds no deployment: no line opens one")
    return Claims(workspace, shipped, entries, state, cast("dict[str, Any]", config), dims, broken)


def mapping(value: Any) -> Mapping[str, Any]:
    """`value` if it is an object, else an empty one: claims may have any form."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def content(path: Path) -> Mapping[str, Any]:
    """The object of a JSON file; an empty one where there is none."""
    try:
        return mapping(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return {}


def rows(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list, if it is one."""
    return [mapping(one) for one in cast("list[Any]", value)] if isinstance(value, list | tuple) else []


def whole(value: Any) -> list[int]:
    """The whole numbers of a list, if it is one."""
    return [int(one) for one in cast("list[Any]", value) if isinstance(one, int)] if isinstance(value, list) else []


def prompts_of(entry: Entry) -> list[list[int]]:
    """The prompts of a model gate, as token ids."""
    return [whole(row.get("tokens")) for row in rows(subject(entry).get("prompts"))]


def subject(entry: Entry) -> Mapping[str, Any]:
    """What an attempt is about."""
    return mapping(entry.body.get("subject"))


def line(entry: Entry) -> str:
    """How evidence names a ledger line."""
    return f"ledger line {entry.seq}"


def _about(entry: Entry) -> str:
    about = subject(entry)
    kept = {key: about.get(key) for key in ("kernel", "shape", "layer", "step", "name", "settings") if key in about}
    return json.dumps([entry.body.get("gate"), kept], sort_keys=True, default=str)


def _entries(path: Path) -> tuple[Reason | None, tuple[Entry, ...]]:
    found = verify(path)
    if found is None:
        try:
            return None, read_ledger(path)
        except LedgerBroken as error:
            return Reason("chain_broken", str(error), path.name), ()
    lines: list[Entry] = []
    for raw in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(Entry(**json.loads(raw)))
        except (ValueError, TypeError, NpuToolsError):
            continue
    return Reason("chain_broken", f"{path.name}: {found.reason}", f"ledger line {found.line}"), tuple(lines)
