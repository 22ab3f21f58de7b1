"""What a source says, before anybody has decided whether it is worth keeping.

A `Draft` holds fields as found; what was not found is missing, never made up. `harvest.vet` turns drafts into
candidates or refusals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Literal

Origin = Literal["gate", "job", "log", "note", "transcript"]
"""gate: a deployment's ledger; job: runs of this product; the others are what somebody wrote or printed."""

NOT_STATED = "Not stated in the source."
"""Stands in a record for a cause nobody has written down."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where a draft comes from. `when` is None where the source has no date."""

    id: str
    when: date | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that can be run again: what failed and what passed, by kernel, shape and settings or as program texts."""

    failing: Mapping[str, Any]
    fixed: Mapping[str, Any]
    code: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A lesson, trajectory or kernel row as one source tells it. `fields` are those of the record's class."""

    kind: Literal["lesson", "trajectory", "kernel_row"]
    fields: Mapping[str, Any]
    evidence: Evidence
    origin: Origin
    missing: tuple[str, ...] = ()
    case: Case | None = field(default=None, compare=False)
