"""How a time in a ledger was measured, in words: without it no figure can be compared with another.

>>> told({"iterations": 20, "warm_up": 5, "timed": "start() and the wait", "environment": {"device": "NPU Strix"}})
'Median of 20 runs after 5 warm-ups; timed: start() and the wait. device NPU Strix.'

It reads what `Measured.as_dict` wrote, and what somebody else may have: nothing is taken for granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

NAMES = ("device", "power_mode", "platform_profile", "firmware", "driver", "xrt", "kernel", "context_length")
MOST = 12
"""Packages told."""


def told(how: Mapping[str, Any]) -> str:
    """One sentence on the runs, one on the machine."""
    environment = _mapping(how.get("environment"))
    parts = [f"{name.replace('_', ' ')} {_short(environment[name])}" for name in NAMES if environment.get(name)]
    packages = list(_mapping(environment.get("packages")).items())[:MOST]
    parts += [f"{_short(name)} {_short(version)}" for name, version in packages]
    runs = (
        f"Median of {_short(how.get('iterations'))} runs after {_short(how.get('warm_up'))} warm-ups; "
        f"timed: {_short(how.get('timed'), 160)}."
    )
    return f"{runs} {', '.join(parts)}." if parts else runs


def _short(value: Any, length: int = 60) -> str:
    return " ".join(str(value).split())[:length]


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
