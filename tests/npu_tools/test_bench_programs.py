"""The programs' bench: agreement, differences, faults and broken files each end as what they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npu_tools.bench.program import ProgramResult, Trying, judge_program
from npu_tools.bench.programs import ProgramsMeasured, measure_programs, program_files
from npu_tools.bench.programs_text import GemmTiles, gemm, gemv
from npu_tools.bench.speed import NoPeer, SpeedRow, measure_speed
from npu_tools.errors import UnusableInput
from npu_tools.recipes import recipe

KERNELS = Path(__file__).resolve().parents[2] / "kernels"
ATTENTION = recipe(KERNELS, "flash_attention")
SMALL = GemmTiles(m=16, k_l2=32, k_l1=16, n=16, herd_m=2, herd_n=2)


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.mlir"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gemm", gemm(64, 96, 32, SMALL)),
        ("gemv", gemv(32, 128, rows=4, at_once=2, cores=4)),
        ("attention", ATTENTION.program(ATTENTION.resolve("256x256x4x2x64", {"causal": False}))),
    ],
)
def test_a_printed_program_agrees_with_the_mathematics(tmp_path: Path, name: str, text: str) -> None:
    result = judge_program(written(tmp_path, name, text), Trying())
    assert (result.verdict, result.reason, result.faults) == ("agrees", "", ())
    assert result.parses
    assert result.runs
    assert all(one.worst_share is not None and one.worst_share <= 1 for one in result.outputs)


def test_a_program_that_leaves_out_part_of_the_sum_differs(tmp_path: Path) -> None:
    text = gemm(64, 96, 32, SMALL).replace("%trips = arith.constant 3", "%trips = arith.constant 2")
    result = judge_program(written(tmp_path, "short", text), Trying())
    assert result.verdict == "differs"
    assert "beyond atol" in result.reason


def test_a_program_without_reference_is_run_on_plain_inputs(tmp_path: Path) -> None:
    text = gemv(32, 128, rows=4, at_once=2, cores=4).replace("@matvec_bf16", "@something")
    result = judge_program(written(tmp_path, "other", text), Trying())
    assert (result.verdict, result.runs) == ("no reference", True)
    assert "@something" in result.reason


def test_workers_report_a_broken_file_and_go_on(tmp_path: Path) -> None:
    paths = [
        written(tmp_path, "a_broken", "module { func.func @f( "),
        written(tmp_path, "b_gemv", gemv(32, 128, rows=4, at_once=2, cores=4)),
    ]
    told: list[str] = []
    measured = measure_programs(tmp_path, Trying(timeout_s=60), workers=1, each=lambda one: told.append(one.name))
    assert [one.name for one in measured.results] == [path.stem for path in paths] == told
    assert (measured.parsed, measured.ran, measured.agreeing, measured.ok) == (1, 1, 1, False)
    assert measured.results[0].reason.startswith("not read: a_broken.mlir:1:")
    assert ProgramResult.from_dict(json.loads(json.dumps(measured.results[1].as_dict()))) == measured.results[1]


def test_enough_programs_must_agree_and_none_may_differ() -> None:
    good = [ProgramResult(f"p{i}", True, True, True, "agrees", "") for i in range(60)]
    more = [ProgramResult(f"q{i}", True, True, True, "no reference", "") for i in range(42)]
    assert ProgramsMeasured((*good, *more)).ok
    assert not ProgramsMeasured((*good[1:], *more)).ok
    assert not ProgramsMeasured((*good, ProgramResult("r", True, True, True, "differs", "x"))).ok


def test_a_folder_without_such_programs_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableInput, match="no folder"):
        program_files(tmp_path / "none")
    with pytest.raises(UnusableInput, match=r"like 'x\*'"):
        program_files(tmp_path, "x*")


def test_a_speed_ratio_is_best_over_best() -> None:
    row = SpeedRow("gemm", "1x1x1", 3.5, "torch", ((3.0, 1.5), (4.0, 1.0)))
    assert (row.emulator_s, row.peer_s, row.ratio, row.ok) == (3.0, 1.0, 3.0, True)
    assert row.processor_ratio is None
    busy = SpeedRow("gemm", "1x1x1", 3.5, "torch", ((9.0, 1.5),), 0.1, ((2.0, 1.5), (4.0, 1.0)))
    assert (busy.ok, busy.processor_ratio) == (False, 2.0)


def test_without_torch_nothing_is_measured_and_the_way_on_is_told(tmp_path: Path) -> None:
    missing = measure_speed(tmp_path / "python", KERNELS, small=True)
    assert isinstance(missing, NoPeer)
    assert "cannot be started" in missing.message
    assert isinstance(unknown := measure_speed(None, KERNELS, only="x"), NoPeer)
    assert "gemm, gemv, attention" in unknown.message


def test_bench_forms_prints_its_targets_as_data(tmp_path: Path) -> None:
    written(tmp_path, "gemv", gemv(32, 128, rows=4, at_once=2, cores=4))
    written(tmp_path, "split", 'module {\n}\n// -----\n"air.herd"(\n')
    code = "from mcp_server.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "bench", "forms", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    answer = json.loads(done.stdout)
    assert (answer["files"], answer["files_whole"], answer["programs"], answer["programs_round_trip"]) == (2, 1, 3, 2)
    assert [one["ok"] for one in answer["targets"]] == [False, False]
    assert done.returncode == 1


QUICK = (
    "cascade_reduction__cascade_reduction",
    "channel_examples__worker_to_worker__worker_to_worker",
    "flash_attention__kernel_fusion_based__attn_npu1",
    "matrix_multiplication__i8__run",
    "matrix_multiplication__int4_awq__matmul_int4_packed",
    "matrix_multiplication__bf16_x_bfp16__matmul_bf16_x_bfp16",
    "rope_lut__rope_lut",
    "segment_alloc__segment_alloc",
    "vector_matrix_multiplication__block_quantized_i8__single_core__single_core",
)


@pytest.mark.parametrize("name", QUICK)
def test_upstreams_program_agrees(air_ir: Path, name: str) -> None:
    result = judge_program(air_ir / f"{name}.mlir", Trying())
    assert (result.verdict, result.reason) == ("agrees", "")
