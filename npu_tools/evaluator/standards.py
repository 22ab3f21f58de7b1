"""What must hold whoever asks: the evaluator's own copy of tolerances and bounds, so that loosening the shipped tables
changes the judged and the judge in two places at once, and a test says so.

>>> tolerance("gemm", "upstream", "high")
(0.016, 0.0015)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

TOKEN_STEPS, TOKEN_PROMPTS = 32, 8
"""mlir-air's GATE_N_TOKENS, and the prompts of its verify-full. A deployment may be opened for fewer, and says so."""


def tolerance(kernel: str, convention: str, tier: str) -> tuple[float, float] | None:
    """(rtol, atol) of a kernel's tier, None where there is none."""
    row = _table()["tolerances"].get(f"{kernel}.{convention}.{tier}")
    return None if row is None else (float(row[0]), float(row[1]))


def tolerances() -> Mapping[str, list[float]]:
    """Every one, by "kernel.convention.tier"."""
    return cast("dict[str, list[float]]", _table()["tolerances"])


def criteria(phase: int) -> Mapping[str, Mapping[str, Any]]:
    """A phase's criteria by name: bound, limits by head_dim, convention, whether it decides."""
    return cast("dict[str, dict[str, Any]]", _table()["phases"].get(str(phase), {}))


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(files("npu_tools.evaluator").joinpath("standards.toml").read_text(encoding="utf-8"))


def as_toml() -> str:
    """The table as the shipped gates have it now; written by `python -m npu_tools.evaluator.standards`."""
    from npu_tools.deployment.criteria import phases
    from npu_tools.gate.tolerance import kernel_names, tolerance_for

    lines = ["# The evaluator's own copy of what gates ask (npu_tools/gate/tolerances.toml, npu_tools/deployment/phases.toml).",
             "# Written by `python -m npu_tools.evaluator.standards`; a change belongs into the same commit as the table's.", "",
             "[tolerances]"]  # fmt: skip
    for kernel in kernel_names():
        for convention in ("upstream", "paper"):
            for tier in ("default", "high", "low", "f32"):
                try:
                    found = tolerance_for(kernel, convention, tier)
                except Exception:  # noqa: S112 - most combinations do not exist
                    continue
                lines.append(f'"{kernel}.{convention}.{tier}" = [{found.rtol!r}, {found.atol!r}]')
    for phase in phases():
        lines += ["", f"[phases.{phase.number}]"]
        for one in phase.criteria:
            limits = ", ".join(f"{top} = {limit!r}" for top, limit in sorted(one.limits.items()))
            decides = "true" if one.decides else "false"
            lines.append(
                f'{one.name} = {{ bound = "{one.bound}", limits = {{ {limits} }}, convention = "{one.convention}", '
                f"decides = {decides} }}"
            )
    return "\n".join(lines).replace("{  }", "{}") + "\n"


if __name__ == "__main__":
    print(as_toml(), end="")
