"""How far the modelled GEMM and GEMV are from float32, in upstream's metric, beside what upstream publishes.

mean_rel_L1 = mean|out - ref| / mean|ref| with A, B = randn / sqrt(K) in bf16, ref = A B in float32 (in bf16 where the
output is). Errors are averages over outputs that differ little, so a part of the rows and columns is measured; K is
always whole.

    measure_gemm_error(2048, 8192, 2048, path="direct", tile_k_l1=32)   # 1.94e-2; published 1.9e-2

The low-precision direct path. Upstream's page says that partial sums are cut to bf16 once per L2 tile. Its own figures
say otherwise: rows with tile_k_l2 of 128, 256 and 512 and the same K have the same error. What fits all of them is a
bf16 accumulator rounded to nearest even once per **L1** K tile (32 in all rows): the transform script hoists the casts
out of the innermost loop alone, which runs over one L1 tile. `tried()` gives the forms that were compared, printed by
`npu_tools.emulator.numerics_table`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npu_tools.emulator.blockfloat import quantise
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.published import GemmPath, published
from npu_tools.emulator.rounding import F32, Rounding, round_bf16

ROWS, COLUMNS = 256, 256
"""How many rows and columns of C are measured at most."""


def mean_rel_l1(out: F32, reference: F32) -> float:
    """mean|out - reference| / mean|reference|."""
    return float(np.abs(out - reference).mean(dtype=np.float64) / np.abs(reference).mean(dtype=np.float64))


def operands(m: int, k: int, n: int, *, rows: int = ROWS, columns: int = COLUMNS, seed: int = 42) -> tuple[F32, F32]:
    """A and B as upstream's runners draw them, rounded to bf16, at most `rows` by `columns`."""
    draw = np.random.default_rng(seed)
    scale = np.float32(1 / np.sqrt(k))
    a = draw.standard_normal((min(m, rows), k), dtype=np.float32) * scale
    b = draw.standard_normal((k, min(n, columns)), dtype=np.float32) * scale
    return round_bf16(a), round_bf16(b)


def direct(a: F32, b: F32, numerics: Numerics, tile_k: int) -> F32:
    """C with a bf16 accumulator that is rounded once per K tile of `tile_k`."""
    qa, qb = numerics.quantise(a, -1), numerics.quantise(b, -2)
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], tile_k):
        step = slice(start, start + tile_k)
        total = numerics.round_to(total + qa[:, step] @ qb[step], "bf16", kind="gemm direct")
    return total


def measure_gemm_error(
    m: int,
    k: int,
    n: int,
    *,
    path: GemmPath = "f32",
    tile_k_l1: int = 32,
    numerics: Numerics | None = None,
    rows: int = ROWS,
    columns: int = COLUMNS,
    seed: int = 42,
) -> float:
    """mean_rel_L1 of one GEMM on one of upstream's paths."""
    numerics = numerics or Numerics()
    a, b = operands(m, k, n, rows=rows, columns=columns, seed=seed)
    reference = np.matmul(a, b)
    match path:
        case "f32":
            return mean_rel_l1(numerics.matmul(a, b), reference)
        case "drain":
            out = numerics.round_to(numerics.matmul(a, b), "bf16")
        case "fused-cast":
            # The cast launch has cores of its own, whose rounding register nothing has set.
            out = numerics.with_rounding("floor").round_to(numerics.matmul(a, b), "bf16")
        case "direct":
            out = direct(a, b, numerics, tile_k_l1)
    return mean_rel_l1(out, round_bf16(reference))


def measure_gemv_error(m: int, k: int, *, rows: int = 1024, seed: int = 42) -> float:
    """mean_rel_L1 of y = A x: bf16 products, float32 sums in 32 lanes, one rounding a row; inputs randn * 4."""
    draw = np.random.default_rng(seed)
    a = round_bf16(draw.standard_normal((min(m, rows), k), dtype=np.float32) * 4)
    x = round_bf16(draw.standard_normal(k, dtype=np.float32) * 4)
    lanes = (a * x).reshape(a.shape[0], -1, 32).sum(axis=1, dtype=np.float32)
    return mean_rel_l1(round_bf16(lanes.sum(axis=1, dtype=np.float32)), round_bf16(a @ x))


@dataclass(frozen=True, slots=True)
class Form:
    """One form of the direct path that was compared with the published rows."""

    name: str
    compute: Callable[[F32, F32, int, int], F32]
    """From A, B, tile_k_l2 and tile_k_l1 to C."""


def _accumulate(quantised: tuple[F32, F32], tile: int, how: Rounding) -> F32:
    a, b = quantised
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for start in range(0, a.shape[1], tile):
        step = slice(start, start + tile)
        total = round_bf16(total + a[:, step] @ b[step], how)
    return total


def _bfp(a: F32, b: F32, how: Rounding = "conv_even") -> tuple[F32, F32]:
    return quantise(a, -1, how), quantise(b, -2, how)


FORMS: tuple[Form, ...] = (
    Form("bf16 accumulator, nearest even per L1 K tile", lambda a, b, l2, l1: _accumulate(_bfp(a, b), l1, "conv_even")),
    Form("bf16 accumulator, nearest even per L2 K tile", lambda a, b, l2, l1: _accumulate(_bfp(a, b), l2, "conv_even")),
    Form("bf16 accumulator, floor per L2 K tile", lambda a, b, l2, l1: _accumulate(_bfp(a, b), l2, "floor")),
    Form(
        "bf16 accumulator, towards zero per L2 K tile", lambda a, b, l2, l1: _accumulate(_bfp(a, b), l2, "toward_zero")
    ),
    Form("bf16 accumulator, floor per L1 K tile", lambda a, b, l2, l1: _accumulate(_bfp(a, b), l1, "floor")),
    Form(
        "bf16 accumulator, towards zero per L1 K tile", lambda a, b, l2, l1: _accumulate(_bfp(a, b), l1, "toward_zero")
    ),
    Form("bf16 accumulator, nearest even per 8 of K", lambda a, b, l2, l1: _accumulate(_bfp(a, b), 8, "conv_even")),
    Form(
        "float32 accumulator, one floor at the end", lambda a, b, l2, l1: _accumulate(_bfp(a, b), a.shape[1], "floor")
    ),
    Form(
        "BFP16 floored, float32 accumulator, one rounding",
        lambda a, b, l2, l1: _accumulate(_bfp(a, b, "floor"), a.shape[1], "conv_even"),
    ),
    Form(
        "BFP16 floored, nearest even per L2 K tile",
        lambda a, b, l2, l1: _accumulate(_bfp(a, b, "floor"), l2, "conv_even"),
    ),
    Form("no BFP16, nearest even per L1 K tile", lambda a, b, l2, l1: _accumulate((a, b), l1, "conv_even")),
)
"""The first is what the emulator does."""


@dataclass(frozen=True, slots=True)
class Tried:
    """How one form fares: relative deviation from the published error, by row and over all."""

    name: str
    deviations: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean of the absolute deviations."""
        return float(np.mean(np.abs(self.deviations)))

    @property
    def worst(self) -> float:
        """The largest absolute deviation."""
        return float(np.max(np.abs(self.deviations)))


def tried(*, rows: int = 128, columns: int = 128) -> list[Tried]:
    """Every form against every published row of the direct path."""
    found: dict[str, list[float]] = {form.name: [] for form in FORMS}
    done: dict[tuple[int, int, int], dict[str, float]] = {}
    for row in published().gemm:
        if row.path != "direct":
            continue
        key = (row.k, row.tile_k_l2, row.tile_k_l1)
        if key not in done:
            a, b = operands(row.m, row.k, row.n, rows=rows, columns=columns)
            reference = round_bf16(a @ b)
            done[key] = {
                form.name: mean_rel_l1(form.compute(a, b, row.tile_k_l2, row.tile_k_l1), reference) for form in FORMS
            }
        for name, error in done[key].items():
            found[name].append(error / row.error - 1)
    return [Tried(name, tuple(deviations)) for name, deviations in found.items()]
