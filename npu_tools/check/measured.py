"""Configurations upstream's kernel registry measured as best, by shape: used as defaults, never as rules.

The rows are data (`measured.json`) taken from Xilinx/mlir-air programming_examples/kernel_registry/details/*.json
@ e972f2942 (MIT). A shape that is not there has no measured row; nothing is interpolated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class GemmRow:
    """One measured GEMM: how it was built and how it did."""

    m: int
    k: int
    n: int
    output: str
    precision: str
    method: str
    tiles: tuple[int, int, int, int]
    """tile_m, tile_k_l2, tile_k_l1, tile_n"""
    herd: tuple[int, int]
    gflops: float | None
    mean_rel_l1: float | None
    best: bool
    """Whether the registry picks it for its shape and precision."""


def gemm_row(m: int, k: int, n: int, output: str, precision: str) -> GemmRow | None:
    """The row the registry picks for this shape, output and precision."""
    for row in gemm_rows():
        if row.best and (row.m, row.k, row.n, row.output, row.precision) == (m, k, n, output, precision):
            return row
    return None


@cache
def gemm_rows() -> tuple[GemmRow, ...]:
    """Every measured GEMM row."""
    table = cast("dict[str, Any]", json.loads(files("npu_tools").joinpath("check/measured.json").read_text("utf-8")))
    return tuple(_gemm_row(row) for row in table["gemm"])


def _gemm_row(row: dict[str, Any]) -> GemmRow:
    m, k, n = row["shape"]
    tile_m, tile_k_l2, tile_k_l1, tile_n = row["tiles"]
    herd_m, herd_n = row["herd"]
    return GemmRow(
        m, k, n, row["output"], row["precision"], row["method"], (tile_m, tile_k_l2, tile_k_l1, tile_n),
        (herd_m, herd_n), row["gflops"], row["mean_rel_l1"], row["best"],
    )  # fmt: skip
