"""Which record is behind a failure of the real stack: the device adapter's table knows it, so nobody has to search.

The table is read as a file: npu_tools' backends are heavy to import, and this is asked in the server.
"""

from __future__ import annotations

import tomllib
from functools import cache
from typing import Any

from mcp_server.config import package_folder


def lesson_behind(finding: dict[str, Any]) -> str | None:
    """The id of the record behind a finding of the device adapter; None for findings of anybody else."""
    row = _table().get(str(finding.get("code")))
    return row["lesson"] or None if row is not None and row["source"] == finding.get("source") else None


def lesson_of_code(code: str) -> str | None:
    """The id of the record behind a code of the device adapter."""
    row = _table().get(code)
    return row["lesson"] or None if row is not None else None


@cache
def _table() -> dict[str, dict[str, Any]]:
    path = package_folder("npu_tools") / "backends" / "xrt" / "outcomes.toml"
    return {row["code"]: row for row in tomllib.loads(path.read_text(encoding="utf-8"))["outcome"]}
