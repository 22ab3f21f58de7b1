"""Measured sweeps of one shape over several configurations, and how far a ranking agrees with them."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations

from npu_tools.cost.rows import MeasuredRow

NOISE = 0.05
"""Pairs measured closer than this are within run-to-run spread; counted apart."""
_FIGURES = ("us", "gflops", "gbps")


@dataclass(frozen=True, slots=True)
class Sweep:
    """One shape in one session: settings and a cost that orders them (µs, or the inverse of a rate)."""

    id: str
    kernel: str
    shape: Mapping[str, int]
    points: tuple[tuple[Mapping[str, int | str], float], ...]
    source: str


@cache
def sweeps() -> tuple[Sweep, ...]:
    """The sweeps of sweeps.toml."""
    table = tomllib.loads(files("npu_tools.cost").joinpath("sweeps.toml").read_text(encoding="utf-8"))
    found: list[Sweep] = []
    for entry in table["sweep"]:
        points: list[tuple[Mapping[str, int | str], float]] = []
        for point in entry["points"]:
            cost = float(point["us"]) if "us" in point else 1e6 / float(point.get("gflops") or point["gbps"])
            settings = {name: value for name, value in point.items() if name not in _FIGURES}
            points.append(({**entry["common"], **settings}, cost))
        found.append(Sweep(entry["id"], entry["kernel"], entry["shape"], tuple(points), entry["source"]))
    return tuple(found)


def sweeps_of(rows: Sequence[MeasuredRow]) -> list[Sweep]:
    """Rows of one kernel, shape and output type that were measured with several settings, as sweeps."""
    groups: dict[tuple[str, str], list[MeasuredRow]] = {}
    for row in rows:
        if row.suspicious is None:
            shape = "x".join(str(size) for size in row.shape.values())
            groups.setdefault((row.kernel, f"{shape} {row.dtype}"), []).append(row)
    return [
        Sweep(
            id=f"{kernel} {name}",
            kernel=kernel,
            shape=group[0].shape,
            points=tuple((row.settings, row.latency_us) for row in group),
            source="corpus rows",
        )
        for (kernel, name), group in sorted(groups.items())
        if len({tuple(sorted(row.settings.items(), key=str)) for row in group}) > 1
    ]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Pairs ranked alike and unlike; `clear_*` count pairs measured more than NOISE apart."""

    alike: int
    unlike: int
    tied: int
    clear_alike: int
    clear_unlike: int
    clear_tied: int

    @property
    def tau(self) -> float:
        """Kendall's tau: (alike − unlike) / all pairs; a tie in the prediction counts as neither."""
        pairs = self.alike + self.unlike + self.tied
        return (self.alike - self.unlike) / pairs if pairs else 0.0

    @property
    def clear_tau(self) -> float:
        """The same over pairs that the measurement tells apart."""
        pairs = self.clear_alike + self.clear_unlike + self.clear_tied
        return (self.clear_alike - self.clear_unlike) / pairs if pairs else 0.0

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.alike + other.alike,
            self.unlike + other.unlike,
            self.tied + other.tied,
            self.clear_alike + other.clear_alike,
            self.clear_unlike + other.clear_unlike,
            self.clear_tied + other.clear_tied,
        )


NONE = Agreement(0, 0, 0, 0, 0, 0)


def agreement(predicted: Sequence[float], measured: Sequence[float]) -> Agreement:
    """How the order of `predicted` agrees with that of `measured`; pairs measured equal are left out."""
    total = NONE
    for (p1, m1), (p2, m2) in combinations(zip(predicted, measured, strict=True), 2):
        if m1 == m2:
            continue
        clear = int(abs(m1 - m2) / min(m1, m2) > NOISE)
        tied = abs(p1 - p2) < 1e-6 * min(abs(p1), abs(p2))
        alike = int(not tied and (p1 < p2) == (m1 < m2))
        unlike = int(not tied and not alike)
        total += Agreement(alike, unlike, int(tied), clear * alike, clear * unlike, clear * int(tied))
    return total
