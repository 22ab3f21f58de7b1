"""Older record formats lifted to today's, one small function a version.

`lift` works on the plain fields of a record, before validation, so a corpus, an export or a
database row of any earlier version is read without being rewritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _from_0(data: dict[str, Any]) -> dict[str, Any]:
    """Version 0 had a single `component`, `device` and `phase`, and `source` for provenance."""
    for old, new in (("component", "components"), ("device", "devices"), ("phase", "phases")):
        if old in data and new not in data:
            value = data.pop(old)
            data[new] = value if isinstance(value, list) else [value]
    if "source" in data and "provenance" not in data:
        value = data.pop("source")
        data["provenance"] = value if isinstance(value, list) else [value]
    data["schema_version"] = 1
    return data


STEPS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {0: _from_0}


def lift(data: dict[str, Any]) -> dict[str, Any]:
    """`data` in today's format; unknown (newer) versions are left for validation to refuse."""
    data = dict(data)
    version = data.get("schema_version", 1)
    while type(version) is int and version in STEPS:
        data = STEPS[version](data)
        version = data["schema_version"]
    return data
