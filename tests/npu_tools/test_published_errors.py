"""The emulator's numerics against errors published for NPU2 (npu_tools/emulator/published.toml)."""

import pytest

from npu_tools.emulator.gemm_error import measure_gemm_error, measure_gemv_error, tried
from npu_tools.emulator.kernel_error import measure_kernel_error
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.numerics_table import Compared
from npu_tools.emulator.published import published

TOLERANCE = {"f32": 0.03, "drain": 0.03, "fused-cast": 0.03, "direct": 0.05}
FIRST_OF = {(row.path, row.k): row for row in published().gemm}


@pytest.mark.parametrize("row", FIRST_OF.values(), ids=lambda row: f"{row.path}-{row.m}x{row.k}x{row.n}")
def test_gemm_errors_are_the_published_ones(row):
    modelled = measure_gemm_error(row.m, row.k, row.n, path=row.path, tile_k_l1=row.tile_k_l1 or 32)
    assert modelled == pytest.approx(row.error, rel=TOLERANCE[row.path])


@pytest.mark.parametrize("row", published().gemv, ids=lambda row: f"{row.m}x{row.k}")
def test_gemv_is_as_exact_as_published(row):
    assert measure_gemv_error(row.m, row.k, rows=256) <= row.at_most


@pytest.mark.parametrize("row", published().kernels, ids=lambda row: f"{row.name}-{row.rows}x{row.columns}")
def test_elementwise_and_normalising_kernels_have_the_published_error_on_a_flooring_core(row):
    floored, to_even = measure_kernel_error(row), measure_kernel_error(row, "conv_even")
    assert floored == pytest.approx(row.error, rel=0.05)
    assert abs(to_even - row.error) > 2 * abs(floored - row.error)


def test_of_the_forms_of_the_direct_path_only_rounding_per_l1_tile_fits():
    best, *others = tried(rows=64, columns=96)
    assert best.mean < 0.03
    assert all(other.mean > 5 * best.mean for other in others)


def test_in_f32_mode_nothing_is_lost():
    assert measure_gemm_error(64, 256, 64, path="f32", numerics=Numerics("f32")) == 0.0
    assert Compared("x", 2.0e-6, 1.0e-6, bound=True).deviation == 0.0
