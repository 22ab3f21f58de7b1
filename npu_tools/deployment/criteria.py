"""The phases and their criteria, read from phases.toml; and how a measured value is held against one.

>>> phase(3).criterion("token_sets").judge(True).ok
True
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from npu_tools.errors import UnusableInput

Convention = Literal["head", "paper"]
Bound = Literal["is", ">=", "<=", "<", "=="]
Value = bool | float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One criterion measured. `value` is None where it could not be measured, which is never `ok`."""

    name: str
    value: Value
    bound: str
    ok: bool
    decides: bool
    convention: str
    fixed: str
    said: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As the ledger has it."""
        return {
            "name": self.name, "value": self.value, "bound": self.bound, "ok": self.ok, "decides": self.decides,
            "convention": self.convention, "said": self.said,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing a phase must show. `limits` by head_dim: the first whose key is not smaller holds."""

    name: str
    bound: Bound
    limits: Mapping[int, float]
    convention: str
    decides: bool
    help: str
    fixed: str
    source: str

    def judge(self, value: Value, *, head_dim: int = 64, convention: str = "head", said: str = "") -> Outcome:
        """The value held against this criterion; under another convention it is a lens."""
        limit = next((limit for top, limit in sorted(self.limits.items()) if head_dim <= top), None)
        text = "is so" if self.bound == "is" else f"{self.bound} {limit:g}"
        decides = self.decides and self.convention in (convention, "both", "ours")
        fixed = self.fixed.format(value="" if limit is None else f"{limit:g}", bound=self.bound)
        ok = value is not None and self._holds(value, limit)
        return Outcome(self.name, value, text, ok, decides, self.convention, fixed, said)

    def _holds(self, value: bool | float, limit: float | None) -> bool:
        if self.bound == "is":
            return value is True
        assert limit is not None
        match self.bound:
            case ">=":
                return value >= limit
            case "<=":
                return value <= limit
            case "<":
                return value < limit
            case "==":
                return value == limit


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase: what it is for, which phases come first, what it must show, and the skill that tells an agent how."""

    number: int
    name: str
    title: str
    aim: str
    skill: str
    old_skill: str
    needs: tuple[int, ...]
    criteria: tuple[Criterion, ...]

    def criterion(self, name: str) -> Criterion:
        """A criterion by name."""
        return next(each for each in self.criteria if each.name == name)


@cache
def phases() -> tuple[Phase, ...]:
    """The eight phases in order."""
    table = tomllib.loads(files("npu_tools.deployment").joinpath("phases.toml").read_text(encoding="utf-8"))
    sources = cast("dict[str, str]", table["sources"])
    return tuple(_phase(row, sources) for row in cast("list[dict[str, Any]]", table["phase"]))


def phase(wanted: int | str) -> Phase:
    """A phase by its number or name.

    Raises:
        UnusableInput: there is none; the text lists them.
    """
    for each in phases():
        if str(wanted) in (str(each.number), each.name, each.skill, each.old_skill):
            return each
    known = ", ".join(f"{each.number} {each.name}" for each in phases())
    raise UnusableInput(f"no phase {str(wanted)[:40]!r}; there are {known}")


def _phase(row: Mapping[str, Any], sources: Mapping[str, str]) -> Phase:
    skills = {"head": row["skill"], "paper": row["old_skill"]}

    def source(convention: str) -> str:
        names = ["head", "paper"] if convention == "both" else [convention]
        return "; ".join(sources[name].format(skill=skills[name]) for name in names if name in skills) or "Herdbook"

    criteria = tuple(
        Criterion(
            each["name"],
            each["bound"],
            _limits(each.get("value")),
            each["convention"],
            each.get("decides", True),
            each["help"],
            each["fixed"],
            each.get("source") or source(each["convention"]),
        )
        for each in row["criteria"]
    )
    return Phase(
        row["number"], row["name"], row["title"], row["aim"], row["skill"], row["old_skill"], tuple(row["needs"]), criteria
    )  # fmt: skip


def _limits(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {int(top): float(limit) for top, limit in cast("Mapping[str, Any]", value).items()}
    return {1 << 30: float(value)}
