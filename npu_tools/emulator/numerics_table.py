"""Modelled errors beside published ones, as a table: the evidence for the emulator's numerics.

python -m npu_tools.emulator.numerics_table
"""

from __future__ import annotations

from dataclasses import dataclass

from npu_tools.emulator.gemm_error import measure_gemm_error, measure_gemv_error, tried
from npu_tools.emulator.kernel_error import measure_kernel_error
from npu_tools.emulator.published import published


@dataclass(frozen=True, slots=True)
class Compared:
    """One published error and the modelled one; `bound` where only an upper bound is published."""

    what: str
    published: float
    modelled: float
    bound: bool = False

    @property
    def deviation(self) -> float:
        """Relative deviation of the model; 0 under a bound that holds."""
        if self.bound:
            return max(0.0, self.modelled / self.published - 1)
        return self.modelled / self.published - 1


def compared() -> list[Compared]:
    """Every published row beside the model's figure."""
    data = published()
    known: dict[tuple[str, int, int], float] = {}
    rows: list[Compared] = []
    for row in data.gemm:
        key = (row.path, row.k, row.tile_k_l1)
        if key not in known:
            known[key] = measure_gemm_error(row.m, row.k, row.n, path=row.path, tile_k_l1=row.tile_k_l1 or 32)
        rows.append(Compared(f"GEMM {row.path} {row.m}x{row.k}x{row.n}", row.error, known[key]))
    rows += [
        Compared(f"GEMV {row.m}x{row.k}", row.at_most, measure_gemv_error(row.m, row.k), bound=True)
        for row in data.gemv
    ]
    rows += [
        Compared(f"{row.name} {row.rows}x{row.columns}", row.error, measure_kernel_error(row)) for row in data.kernels
    ]
    return rows


def lines() -> list[str]:
    """The table, and what was tried for the direct path."""
    found = [f"{'mean_rel_L1':34}{'published':>11}{'modelled':>11}{'off by':>9}"]
    for row in compared():
        sign = "<=" if row.bound else ""
        found.append(f"{row.what:34}{sign + format(row.published, '.3e'):>11}{row.modelled:11.3e}{row.deviation:9.1%}")
    found += ["", f"{'forms tried for the direct path (16 rows)':52}{'mean off':>9}{'worst':>9}"]
    found += [f"{form.name:52}{form.mean:9.1%}{form.worst:9.1%}" for form in tried()]
    return found


if __name__ == "__main__":
    print("\n".join(lines()))
