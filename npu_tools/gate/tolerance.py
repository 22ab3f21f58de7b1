"""How close is close enough: tolerances per kernel, convention and tier, read from tolerances.toml.

>>> tolerance_for("silu_and_mul").atol
0.08
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

from npu_tools.errors import UnknownKernel, UnusableInput

Convention = Literal["upstream", "paper", "given"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|actual - reference| <= atol + rtol * |reference|, and where a convention asks it, a Pearson floor."""

    kernel: str | None
    convention: Convention
    tier: str
    rtol: float
    atol: float
    correlation_min: float | None
    source: str
    inputs: str | None = None
    typical_mean_rel_l1: tuple[float, float] | None = None


def given(rtol: float, atol: float) -> Tolerance:
    """The caller's own tolerance.

    Raises:
        UnusableInput: a negative or non-finite value.
    """
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not 0 <= value < float("inf"):
            raise UnusableInput(f"{name} is {value}; give a finite number of at least 0")
    return Tolerance(None, "given", "given", rtol, atol, None, "given by the caller")


def kernel_names() -> list[str]:
    """The kernels with a tolerance, by their names here."""
    return sorted(_table()["kernels"])


def tolerance_for(kernel: str, convention: str = "upstream", tier: str | None = None) -> Tolerance:
    """The tolerance of a kernel under a convention; `tier` is the GEMM's high, low or f32.

    Raises:
        UnknownKernel: no such kernel, or it has no figure under that convention.
        UnusableInput: no such convention or tier.
    """
    table = _table()
    if convention not in table["conventions"]:
        raise UnusableInput(f"no convention {convention!r}; there are {', '.join(sorted(table['conventions']))}")
    name = _name_of(kernel)
    entry = table["kernels"][name]
    if convention not in entry:
        having = [c for c in table["conventions"] if c in entry]
        raise UnknownKernel(f"{name} has no tolerance under the {convention} convention; use {', '.join(having)}")
    tiers: dict[str, Any] = entry[convention]
    rows = {key: cast("dict[str, Any]", value) for key, value in tiers.items() if isinstance(value, dict)}
    wanted = tier or (tiers["default"] if isinstance(tiers.get("default"), str) else "default")
    if wanted not in rows:
        raise UnusableInput(f"{name} has no tier {wanted!r} under {convention}; there are {', '.join(sorted(rows))}")
    row = rows[wanted]
    typical = tiers.get("typical_mean_rel_l1")
    return Tolerance(
        name,
        cast("Convention", convention),
        wanted,
        float(row["rtol"]),
        float(row["atol"]),
        row.get("correlation"),
        row["source"],
        row.get("inputs"),
        (float(typical[0]), float(typical[1])) if typical else None,
    )


def _name_of(kernel: str) -> str:
    kernels: dict[str, Any] = _table()["kernels"]
    wanted = kernel.strip().lower()
    for name, entry in kernels.items():
        if wanted in {name, *(alias.lower() for alias in entry.get("aliases", []))}:
            return name
    raise UnknownKernel(
        f"no tolerance for kernel {kernel!r}; known: {', '.join(kernel_names())}; or give rtol and atol"
    )


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("npu_tools.gate").joinpath("tolerances.toml").read_text(encoding="utf-8"))
