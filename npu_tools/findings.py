"""What a check or a run has to say about a program: one finding, one place, one remedy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found, with the place, the limit behind it and what to do.

    `diagnostic` is the core text the real tools print for it, empty where they print nothing (silent traps).
    `certain` is False for a rule of thumb. `line` and `column` count from 1.
    """

    severity: Severity
    code: str
    message: str
    op: str | None = None
    line: int | None = None
    column: int | None = None
    diagnostic: str | None = None
    limit: str | None = None
    source: str | None = None
    remedy: str | None = None
    certain: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The finding as JSON-ready fields."""
        return asdict(self)
