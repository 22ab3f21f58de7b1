"""The GEMM program end to end: against numpy, and the herd in lockstep against tile by tile, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator import blockfloat
from npu_tools.emulator.prepared import PreparedProgram
from npu_tools.emulator.run import RunResult, run_program
from tests.npu_tools.gemm_program import Tiling, gemm_text

SMALL = Tiling(columns=2, rows=2, m=16, n=24, k_l2=64, k_l1=16)


def operands(m: int, k: int, n: int) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    a = rng.standard_normal((m, k)) / np.sqrt(k)
    return [a.astype(ml_dtypes.bfloat16), rng.standard_normal((k, n)).astype(ml_dtypes.bfloat16)]


def run(grouping: Literal["lifted", "per-tile"], mode: Literal["faithful", "f32"] = "faithful") -> RunResult:
    program = parse_program(gemm_text(64, 512, 96, SMALL), name="gemm.mlir")
    return run_program(program, operands(64, 512, 96), grouping=grouping, numerics=mode)


def test_the_gemm_agrees_with_numpy_as_far_as_bfp16_lets_it() -> None:
    result = run("lifted")
    assert result.ok, result.findings
    a, b = (x.astype(np.float32) for x in operands(64, 512, 96))
    error = np.abs(result.outputs["arg2"].astype(np.float32) - a @ b)
    assert 4e-3 < error.mean() / np.abs(a @ b).mean() < 1.2e-2


def test_the_gemm_without_rounding_is_exact_to_float32() -> None:
    result = run("lifted", "f32")
    a, b = (x.astype(np.float32) for x in operands(64, 512, 96))
    np.testing.assert_allclose(result.outputs["arg2"], a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["faithful", "f32"])
def test_lockstep_and_tile_by_tile_agree_bit_for_bit(mode: Literal["faithful", "f32"]) -> None:
    assert run("lifted", mode).outputs["arg2"].tobytes() == run("per-tile", mode).outputs["arg2"].tobytes()


def test_kernel_calls_and_bytes_are_counted_over_all_tiles() -> None:
    counters = run("lifted").counters
    assert counters.kernels["op_has_no_registered_library_name"].calls == 4 * 4 * (512 // 16)
    assert counters.kernels["zero_f32_mn"].calls == 4 * 4
    assert counters.as_dict()["dma_bytes"]["L2->L3"] == 64 * 96 * 2


def test_upstreams_printed_gemm_agrees_with_numpy(air_ir: Path) -> None:
    path = air_ir / "matrix_multiplication__bf16_in_bf16_out__run.mlir"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {air_ir}")
    a, b = operands(512, 512, 512)
    result = run_program(parse_program(path.read_text(), name=path.name), [a, b])
    assert result.ok, result.findings
    exact = a.astype(np.float32) @ b.astype(np.float32)
    assert np.abs(result.outputs["arg2"].astype(np.float32) - exact).mean() / np.abs(exact).mean() < 1.2e-2


def test_an_operand_is_taken_in_once_for_all_launches_that_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two row blocks by two column blocks: each is in two launches."""
    taken: list[tuple[int, ...]] = []
    quantise = blockfloat.quantise

    def counted(values: np.ndarray, axis: int) -> np.ndarray:
        taken.append(values.shape)
        return quantise(values, axis)

    monkeypatch.setattr(blockfloat, "quantise", counted)
    program = parse_program(gemm_text(64, 128, 96, SMALL), name="gemm.mlir")
    given = operands(64, 128, 96)
    lifted = run_program(program, given)
    assert lifted.counters.launch_iterations == 4
    assert len(taken) == 2 + 2
    single = run_program(program, given, grouping="per-tile")
    assert np.array_equal(lifted.outputs["arg2"].view(np.uint16), single.outputs["arg2"].view(np.uint16))


def test_what_is_kept_of_one_run_is_not_seen_by_the_next() -> None:
    program = PreparedProgram(parse_program(gemm_text(64, 128, 96, SMALL), name="gemm.mlir"), outputs=(2,))
    first = operands(64, 128, 96)
    second = [first[0] * first[0], first[1]]
    for given in (first, second):
        result = program.run(program.bind({"arg0": given[0], "arg1": given[1]}))
        assert np.array_equal(result.outputs["arg2"], run_program(program.program, given).outputs["arg2"])


def test_nothing_is_kept_where_memory_is_short() -> None:
    program = parse_program(gemm_text(64, 128, 96, SMALL), name="gemm.mlir")
    given = operands(64, 128, 96)
    low = run_program(program, given, max_bytes=1 << 20)
    assert low.ok, low.findings
    assert np.array_equal(low.outputs["arg2"], run_program(program, given).outputs["arg2"])
