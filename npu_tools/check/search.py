"""Configurations of a kernel near one that is refused: which single or few settings to change, and to what.

    changed = nearest(case, npu2)     # a legal case, or None

The search changes one setting, then two, then three, smallest steps first, and gives up after a fixed number of trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import log2
from typing import Any, ClassVar, Protocol, TypeVar

from npu_tools.check.settings import Value
from npu_tools.device import Device
from npu_tools.findings import Finding

TRIALS = 3000
"""Cases tried at most; a case takes some 20 µs, so a hopeless search takes a tenth of a second."""


class Case(Protocol):
    """One kernel with its shape and every setting resolved. Implementations are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def shape(self) -> tuple[int, ...]:
        """The extents, in the family's order."""
        ...

    def settings(self) -> dict[str, Value]:
        """Every setting by name."""
        ...

    def figures(self, device: Device) -> dict[str, int]:
        """What it needs of the device: bytes, channels, words, trips."""
        ...

    def findings(self, device: Device) -> list[Finding]:
        """What the device or the builder has to say, without remedies."""
        ...

    def faults(self, device: Device) -> Iterator[Finding | None]:
        """The same one by one, so that a search can stop at the first that refuses; None where a rule is kept."""
        ...

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        """Values worth trying, for the settings that may be changed."""
        ...


C = TypeVar("C", bound=Case)


def legal(case: Case, device: Device) -> bool:
    """Whether nothing refuses this case."""
    return all(finding is None or finding.severity != "error" for finding in case.faults(device))


def nearest(case: C, device: Device) -> C | None:
    """The legal case that differs least from this one, or None where none was found."""
    left = TRIALS
    for changes in _changes(case.settings(), case.choices(device)):
        if left == 0:
            return None
        left -= 1
        candidate = replace(case, **changes)
        if legal(candidate, device):
            return candidate
    return None


def difference(before: Case, after: Case) -> str:
    """What was changed, as "tile_n=64 instead of 128, ..."."""
    was = before.settings()
    return ", ".join(
        f"{name}={_shown(value)} instead of {_shown(was[name])}"
        for name, value in after.settings().items()
        if was.get(name) != value
    )


def _shown(value: Value) -> str:
    return repr(value) if value == "" else str(value)


def _changes(now: Mapping[str, Value], choices: Mapping[str, Sequence[Value]]) -> Iterator[dict[str, Any]]:
    """Changes of one, two and three settings, each lot by growing distance."""
    steps = {
        name: [(value, _distance(now[name], value)) for value in values if value != now[name]]
        for name, values in choices.items()
    }
    for count in (1, 2, 3):
        lot: list[tuple[float, dict[str, Any]]] = []
        for names in combinations(steps, count):
            for picked in product(*(steps[name] for name in names)):
                change = {name: value for name, (value, _) in zip(names, picked, strict=True)}
                lot.append((sum(distance for _, distance in picked), change))
        lot.sort(key=lambda entry: entry[0])
        yield from (change for _, change in lot)


def _distance(old: Value, new: Value) -> float:
    if isinstance(old, bool) or isinstance(new, bool) or not isinstance(old, int) or not isinstance(new, int):
        return 1.5
    return abs(log2(max(new, 1) / max(old, 1))) + 0.1
