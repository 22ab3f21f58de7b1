"""The evaluator on planted cheats and on honest differences: what it should have said, and what it said.

>>> measure_evaluator(place, kernels).ok

A cheat that the papers alone give away is not run; the others are evaluated in full, each in a fresh process.
Results may be kept (kept.py), so that the bench can be run in parts.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Literal

from npu_tools.errors import UnusableInput
from npu_tools.evaluator.benign import BENIGN, Benign, place_of
from npu_tools.evaluator.cheats import CHEATS
from npu_tools.evaluator.child import run_evaluator
from npu_tools.evaluator.honest import Making, make_honest
from npu_tools.evaluator.kept import Kept
from npu_tools.evaluator.planting import Cheat, Planted

SEED = 5
"""Of the samples, so that two benches see the same."""


NOT_MADE = "not made"
"""The verdict on a case whose deployment did not come so far that it could be evaluated: nobody was accused."""


@dataclass(frozen=True, slots=True)
class Row:
    """One case: what was wanted (codes, any of which will do; none for honest ones) and the errors and warnings given."""

    kind: Literal["cheat", "honest"]
    name: str
    what: str
    wanted: str
    verdict: str
    codes: tuple[str, ...]
    text: str
    ok: bool
    wall_s: float

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Row:
        """A row from what asdict() made of it."""
        whole: dict[str, Any] = {**kept, "codes": tuple(kept["codes"])}
        return cls(**whole)


@dataclass(frozen=True, slots=True)
class Measured:
    """The cases that have a result, and the names of those that have none."""

    rows: tuple[Row, ...]
    left: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every cheat was caught with its reason and nobody honest accused."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        cheats = [row for row in self.rows if row.kind == "cheat"]
        honest = [row for row in self.rows if row.kind == "honest"]
        return {
            "cheats": len(cheats), "caught": sum(row.ok for row in cheats), "honest": len(honest),
            "accused": sum(row.verdict == "fail" for row in honest),
            "not_made": sum(row.verdict == NOT_MADE for row in honest),
            "ok": self.ok, "left": list(self.left), "rows": [asdict(row) for row in self.rows],
        }  # fmt: skip


def measure_evaluator(
    place: Path,
    kernels: Path,
    *,
    workspace: Path | None = None,
    only: str = "*",
    kept: Kept | None = None,
    each: Callable[[Row], None] | None = None,
) -> Measured:
    """Every cheat and every honest difference under `place`; `workspace` is an honest deployment, made if not given.

    `only` is a glob over names, or over kind and name (`honest:*`). What `kept` has of this code is not run again.

    Raises:
        UnusableInput: an honest deployment cannot be made.
    """
    honest = workspace or make_honest(Making(str(place / "honest"), str(kernels)))
    rows: list[Row] = []
    left: list[str] = []

    def case(kind: Literal["cheat", "honest"], name: str, planted: bool, run: Callable[[], Row]) -> None:
        basis = honest if planted else None
        before = kept.row(kind, name, basis) if kept is not None else None
        if before is not None:
            rows.append(Row.of(before))
            return
        if not fnmatch(name, only) and not fnmatch(f"{kind}:{name}", only):
            left.append(name)
            return
        shutil.rmtree(place_of(name, place), ignore_errors=True)
        row = run()
        shutil.rmtree(place_of(name, place), ignore_errors=True)
        rows.append(row)
        if kept is not None:
            kept.add(asdict(row), basis)
        if each is not None:
            each(row)

    for cheat in CHEATS:
        target = place_of(cheat.name, place)
        case("cheat", cheat.name, True, partial(_cheat, cheat, honest, target, kernels))
    for one in BENIGN:
        target = place_of(one.name, place)
        case("honest", one.name, one.make is None, partial(_benign, one, honest, target, kernels))
    return Measured(tuple(rows), tuple(left))


def _benign(one: Benign, honest: Path, target: Path, kernels: Path) -> Row:
    head: str | None = None
    if one.make is not None:
        try:
            make_honest(one.make(Making(str(target), str(kernels))))
        except UnusableInput as error:
            return Row("honest", one.name, one.what, "", NOT_MADE, (), str(error), ok=False, wall_s=0.0)
    else:
        copy = Planted.copy(honest, target, kernels)
        head = str(copy.lines()[-1]["hash"]) if one.head else None
        assert one.plant is not None
        one.plant(copy)
    return _honest(one.name, one.what, target, kernels, head)


def _cheat(cheat: Cheat, honest: Path, target: Path, kernels: Path) -> Row:
    started = time.monotonic()
    copy = Planted.copy(honest, target, kernels)
    head = str(copy.lines()[-1]["hash"]) if cheat.head else None
    cheat.plant(copy)
    found: dict[str, Any] = {}
    for effort in ("papers", "quick"):
        found = run_evaluator(target, kernels=kernels, seed=SEED, effort=effort, head=head)
        if any(reason["code"] in cheat.codes for reason in found["reasons"]):
            break
    codes = tuple(dict.fromkeys(str(reason["code"]) for reason in found["reasons"]))
    named = next((reason for reason in found["reasons"] if reason["code"] in cheat.codes), None)
    caught = found["verdict"] == "fail" and named is not None and named["severity"] == "error"
    text = str((named or {"text": ""})["text"])
    return Row(
        "cheat", cheat.name, cheat.what, " or ".join(cheat.codes), found["verdict"], codes, text, caught,
        round(time.monotonic() - started, 1),
    )  # fmt: skip


def _honest(name: str, what: str, target: Path, kernels: Path, head: str | None) -> Row:
    started = time.monotonic()
    found: dict[str, Any]
    try:
        found = run_evaluator(target, kernels=kernels, seed=SEED, head=head)
    except UnusableInput as error:
        found = {"verdict": "fail", "reasons": [{"code": "not_checked", "text": str(error), "severity": "error"}]}
    accused = [reason for reason in found["reasons"] if reason["severity"] == "error"]
    codes = tuple(dict.fromkeys(str(reason["code"]) for reason in found["reasons"]))
    text = str(accused[0]["text"]) if accused else ""
    took = round(time.monotonic() - started, 1)
    return Row("honest", name, what, "", found["verdict"], codes, text, not accused, took)
