"""The evaluator on planted cheats and on honest differences: what it should have said, and what it said.

>>> measure_evaluator(place, kernels).ok

A cheat that the papers alone give away is not run; the others are evaluated in full, each in a fresh process.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal

from npu_tools.errors import UnusableInput
from npu_tools.evaluator.benign import BENIGN, place_of
from npu_tools.evaluator.cheats import CHEATS, Cheat
from npu_tools.evaluator.child import run_evaluator
from npu_tools.evaluator.honest import Making, make_honest
from npu_tools.evaluator.planting import Planted

SEED = 5
"""Of the samples, so that two benches see the same."""


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


@dataclass(frozen=True, slots=True)
class Measured:
    """All cases."""

    rows: tuple[Row, ...]

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
            "accused": sum(not row.ok for row in honest), "ok": self.ok, "rows": [asdict(row) for row in self.rows],
        }  # fmt: skip


def measure_evaluator(
    place: Path,
    kernels: Path,
    *,
    workspace: Path | None = None,
    only: str = "*",
    each: Callable[[Row], None] | None = None,
) -> Measured:
    """Every cheat and every honest difference under `place`; `workspace` is an honest deployment, made if not given.

    Raises:
        UnusableInput: an honest deployment cannot be made.
    """
    rows: list[Row] = []

    def told(row: Row) -> None:
        rows.append(row)
        if each is not None:
            each(row)

    honest = workspace or make_honest(Making(str(place / "honest"), str(kernels)))
    for cheat in CHEATS:
        if fnmatch(cheat.name, only):
            told(_cheat(cheat, honest, place_of(cheat.name, place), kernels))
    for one in BENIGN:
        if not fnmatch(one.name, only):
            continue
        target = place_of(one.name, place)
        if one.make is not None:
            make_honest(one.make(Making(str(target), str(kernels))))
        else:
            copy = Planted.copy(honest, target, kernels)
            assert one.plant is not None
            one.plant(copy)
        told(_honest(one.name, one.what, target, kernels))
        shutil.rmtree(target, ignore_errors=True)
    return Measured(tuple(rows))


def _cheat(cheat: Cheat, honest: Path, target: Path, kernels: Path) -> Row:
    started = time.monotonic()
    cheat.plant(Planted.copy(honest, target, kernels))
    found: dict[str, Any] = {}
    for effort in ("papers", "quick"):
        found = run_evaluator(target, kernels=kernels, seed=SEED, effort=effort)
        if any(reason["code"] in cheat.codes for reason in found["reasons"]):
            break
    shutil.rmtree(target, ignore_errors=True)
    codes = tuple(dict.fromkeys(str(reason["code"]) for reason in found["reasons"]))
    named = next((reason for reason in found["reasons"] if reason["code"] in cheat.codes), None)
    caught = found["verdict"] == "fail" and named is not None and named["severity"] == "error"
    text = str((named or {"text": ""})["text"])
    return Row(
        "cheat", cheat.name, cheat.what, " or ".join(cheat.codes), found["verdict"], codes, text, caught,
        round(time.monotonic() - started, 1),
    )  # fmt: skip


def _honest(name: str, what: str, target: Path, kernels: Path) -> Row:
    started = time.monotonic()
    found: dict[str, Any]
    try:
        found = run_evaluator(target, kernels=kernels, seed=SEED)
    except UnusableInput as error:
        found = {"verdict": "fail", "reasons": [{"code": "not_checked", "text": str(error), "severity": "error"}]}
    accused = [reason for reason in found["reasons"] if reason["severity"] == "error"]
    codes = tuple(dict.fromkeys(str(reason["code"]) for reason in found["reasons"]))
    text = str(accused[0]["text"]) if accused else ""
    took = round(time.monotonic() - started, 1)
    return Row("honest", name, what, "", found["verdict"], codes, text, not accused, took)
