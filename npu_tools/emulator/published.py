"""Errors that upstream publishes for NPU2, as data: published.toml.

for row in published().gemm: row.path, row.m, row.k, row.n, row.error
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast

GemmPath = Literal["f32", "drain", "fused-cast", "direct"]


@dataclass(frozen=True, slots=True)
class GemmRow:
    """mean_rel_L1 of C[m, n] = A[m, k] B[k, n] on one path; tiles in elements, 0 where they do not matter."""

    path: GemmPath
    m: int
    k: int
    n: int
    error: float
    tile_k_l2: int = 0
    tile_k_l1: int = 0


@dataclass(frozen=True, slots=True)
class GemvRow:
    """mean_rel_L1 of y[m] = A[m, k] x[k] is at most this."""

    m: int
    k: int
    at_most: float


@dataclass(frozen=True, slots=True)
class KernelRow:
    """mean_rel_L1 of an elementwise or normalising kernel on a [rows, columns] input."""

    name: str
    rows: int
    columns: int
    error: float


@dataclass(frozen=True, slots=True)
class Published:
    """All rows."""

    gemm: tuple[GemmRow, ...]
    gemv: tuple[GemvRow, ...]
    kernels: tuple[KernelRow, ...]


@cache
def published() -> Published:
    """The rows of published.toml."""
    text = files("npu_tools.emulator").joinpath("published.toml").read_text(encoding="utf-8")
    data = cast("dict[str, list[dict[str, Any]]]", tomllib.loads(text))
    return Published(
        tuple(GemmRow(path=group["path"], **row) for group in data["gemm"] for row in group["rows"]),
        tuple(GemvRow(**row) for row in data["gemv"]),
        tuple(KernelRow(row["name"], row["shape"][0], row["shape"][1], row["error"]) for row in data["kernel"]),
    )
