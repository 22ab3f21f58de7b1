"""The device's commands over the stand-in: the first run's walk, its report, measured rows, and what the doctor prints."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kb import open_memory
from mcp_server import Config
from mcp_server.config import kernels_folder, toolchain
from mcp_server.deployments import advisor
from mcp_server.device_lessons import lesson_behind
from mcp_server.doctor import examine, npu_lines
from mcp_server.first_run import Step, Walk, walk_through, write_report
from mcp_server.measured_row import keep, measured_row
from mcp_server.npu_replies import lessons_for
from npu_tools.backends.xrt import XrtBackend
from npu_tools.backends.xrt.outcomes import outcome
from npu_tools.backends.xrt.profile import profile_recipe
from npu_tools.deployment.diagnosis import Symptom
from npu_tools.recipes import recipe
from tests.mcp_server.test_npu_tools import ADD, answer, call, said
from tests.stand_in.machine import PHOENIX, QUICK, StandIn


def walk(machine: StandIn, tmp_path: Path, **more: object) -> tuple[list[Step], dict[str, object]]:
    told: list[Step] = []
    asked = Walk(
        kernels_folder(), machine.toolchain, tmp_path / "cache", patience=replace(QUICK, dispatch_s=8),
        add="4096", gemm="64x64x64", warm_up=1, iterations=3, **more,  # type: ignore[arg-type]
    )  # fmt: skip
    report = walk_through(asked, told.append)
    return told, report


def test_the_first_run_walks_from_the_device_to_a_report(tmp_path: Path) -> None:
    told, report = walk(StandIn(tmp_path), tmp_path)
    assert [step.name for step in told] == ["machine", "vector addition", "GEMM", "timing"]
    assert not [step for step in told if step.state == "fail"], told
    assert report["ok"]
    assert "100.0% of the elements equal the emulator's" in told[2].text
    assert "GFLOP/s" in told[3].text
    out = tmp_path / "first-run.json"
    write_report(report, out, "0.1.0")
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["environment"]["device"] == "NPU Strix"
    assert written["steps"][3]["details"]["iterations"] == 3


def test_the_walk_ends_at_the_step_that_fails_and_the_report_is_written(tmp_path: Path) -> None:
    machine = StandIn(
        tmp_path, {"pyxrt": {"wait": "ERT_CMD_STATE_ABORT"}, "journal": {"lines": ["kernel: amdxdna: bad firmware"]}}
    )
    told, report = walk(machine, tmp_path)
    assert [step.name for step in told] == ["machine", "vector addition"]
    assert told[-1].state == "fail"
    assert told[-1].lesson == "xdna1448-stale-firmware-abort"
    assert told[-1].fix
    assert not report["ok"]
    assert report["kernel_log"] == ["kernel: amdxdna: bad firmware"]


def test_wrong_numbers_end_the_walk_too(tmp_path: Path) -> None:
    told, _ = walk(StandIn(tmp_path, {"pyxrt": {"compute": "nan"}}), tmp_path)
    assert told[-1].state == "fail"
    assert told[-1].lesson == "air1980-llvm22-stack-frame"


def test_a_machine_that_lacks_something_is_told_all_of_it_at_once(tmp_path: Path) -> None:
    told, report = walk(StandIn(tmp_path, {"missing": ["pyxrt", "peano"]}), tmp_path)
    assert len(told) == 1
    assert {"pyxrt", "Peano"} <= {line["name"] for line in report["checklist"] if line["state"] == "fail"}  # type: ignore[index]


def test_another_generation_than_the_walk_is_for_is_told_with_the_command(tmp_path: Path) -> None:
    told, _ = walk(StandIn(tmp_path, npu=PHOENIX), tmp_path)
    assert told[-1].state == "fail"
    assert "--device npu1" in told[-1].fix


def test_a_report_keeps_no_names_paths_or_secrets(tmp_path: Path) -> None:
    report = {
        "steps": [{"text": "/home/ann/models failed; token ghp_" + "a1B2" * 9 + " at ann@example.com"}], "ok": False,
    }  # fmt: skip
    out = tmp_path / "r.json"
    removed = write_report(report, out, "0.1.0")
    text = out.read_text(encoding="utf-8")
    assert "ann" not in text
    assert "ghp_" not in text
    assert sum(removed.values()) >= 2


def test_a_measurement_becomes_a_row_that_says_it_was_measured_where_and_how(
    tmp_path: Path, lexical_config: Config
) -> None:
    machine = StandIn(tmp_path)
    found = recipe(kernels_folder(), "gemv")
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=replace(QUICK, dispatch_s=8)) as backend:
        timed = profile_recipe(backend, found, "64x64", warm_up=1, iterations=3, context_length=64)
    row = measured_row(timed, found, "herdbook kernel profile gemv 64x64")
    assert row is not None
    assert (row.kernel, row.shape, row.power_mode) == ("gemv", {"M": 64, "K": 64}, "Turbo")
    assert row.status == "observed"
    assert [figure.metric for figure in row.figures] == ["latency", "throughput", "mean_rel_L1"]
    assert "Context length 64" in row.notes
    assert "start() and the wait" in row.notes
    memory = open_memory(lexical_config.memory())
    stored = keep(row, memory)
    assert memory.get(stored).record.id == stored
    memory.close()


def test_nothing_is_kept_of_what_was_not_measured(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"pyxrt": {"compute": "zeros"}})
    found = recipe(kernels_folder(), "gemv")
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=replace(QUICK, dispatch_s=8)) as backend:
        timed = profile_recipe(backend, found, "64x64", iterations=1)
    assert measured_row(timed, found, "x") is None


def test_lessons_of_the_device_come_from_its_own_table(memory: object) -> None:
    found = [
        outcome("run-hung", seconds=3, stuck="", advice="wait").as_dict(),
        outcome("output-nan", argument="arg0", count=1, size=2).as_dict(),
    ]
    assert [lesson_behind(one) for one in found] == ["airtc-xrt-wait-holds-gil", "air1980-llvm22-stack-frame"]
    told = lessons_for(found, memory, None)  # type: ignore[arg-type]
    assert [one.id for one in told] == ["airtc-xrt-wait-holds-gil", "air1980-llvm22-stack-frame"]
    other = {**found[0], "source": "somebody else"}
    assert lesson_behind(other) is None


@pytest.mark.parametrize(
    ("code", "lesson"),
    [
        ("compiler-crashed", "airtc-compiler-crash-peano-first"), ("kernel-build", "airtc-kernel-build-flags"),
        ("child-died", "xrt9773-coredump-file-aborts-process"), ("child-killed", "airtc-verify-oom"),
        ("child-segfault", "aie2809-host-tensor-smaller-than-transfer"),
    ],
)  # fmt: skip
def test_a_crash_has_its_lesson_in_an_answer_and_in_a_deployment(memory: object, code: str, lesson: str) -> None:
    found = outcome(code, how="signal 6", object="mm.o", why="no", log="x", tail="nothing").as_dict()
    assert [one.id for one in lessons_for([found], memory, None)] == [lesson]  # type: ignore[arg-type]
    advise = advisor(lambda: memory)  # type: ignore[arg-type, return-value]
    speechless = Symptom("zzz", code, 1, "gemm", "tiny")
    assert [one.id for one in advise(speechless)] == [lesson]


def test_the_toolchain_is_found_by_upstreams_variables_and_children_get_places_only() -> None:
    env = {
        "PATH": "/a:/b", "PYTHONPATH": "/opt/xilinx/xrt/python", "XILINX_XRT": "/opt/xilinx/xrt",
        "PEANO_INSTALL_DIR": "/p", "HERDBOOK_NPU_PYTHON": "/venv/bin/python", "HERDBOOK_MLIR_AIR": "/src/mlir-air",
        "HF_TOKEN": "secret", "HERDBOOK_TOKEN": "secret",
    }  # fmt: skip
    found = toolchain(env)
    assert found["python"] == "/venv/bin/python"
    assert found["search"] == ["/a", "/b"]
    assert (found["peano"], found["examples"]) == ("/p", "/src/mlir-air")
    assert found["environment"]["XILINX_XRT"] == "/opt/xilinx/xrt"
    assert "secret" not in json.dumps(found)


def test_the_doctor_has_one_npu_line_where_there_is_none_of_it(config: Config, tmp_path: Path) -> None:
    bare = replace(config, toolchain=toolchain({"PATH": str(tmp_path)}) | {"root": str(tmp_path)})
    assert [(line.name, line.state) for line in npu_lines(bare, False)] == [("NPU", "pass")]
    assert all(line.fix for line in npu_lines(bare, True) if line.state == "fail")


def test_the_doctor_tells_a_machines_lines_with_fix_and_lesson(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    machine = StandIn(tmp_path, {"packages": {"llvm_aie": "22.0.0.2026081201+046b11f9"}})
    told = replace(config, toolchain=machine.toolchain.model_dump())
    monkeypatch.setattr(Config, "from_environment", classmethod(lambda *_: told))
    peano = next(line for line in examine() if line.name == "Peano")
    assert peano.state == "fail"
    assert "llvm-aie==21" in peano.fix
    assert peano.lesson == "air1980-llvm22-stack-frame"


# -- over MCP ----------------------------------------------------------------------------------------------------------


def _server(lexical_config: Config, tmp_path: Path, machine: StandIn) -> Config:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "add.mlir").write_text(ADD, encoding="utf-8")
    # The machine's temporary folder holds its lock; jobs read the toolchain from their request.
    return replace(lexical_config, workspace=folder, toolchain=machine.toolchain.model_dump())


def test_an_agent_compiles_and_runs_on_the_device_with_one_argument_more(
    lexical_config: Config, tmp_path: Path
) -> None:
    config = _server(lexical_config, tmp_path, StandIn(tmp_path))
    compiled = answer(config, "compile", {"program": "add.mlir", "backend": "xrt", "wait_s": 25})
    assert compiled["ok"], compiled
    assert compiled["artefact"]
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, 64).astype(np.int32) for _ in range(2))
    np.savez(config.workspace / "in.npz", arg0=a, arg1=b)
    ran = answer(
        config, "run",
        {"program": "add.mlir", "backend": "xrt", "inputs": "in.npz", "outputs": "out.npz", "wait_s": 25},
    )  # fmt: skip
    assert ran["ok"], ran
    assert ran["ran_on"] == "npu"
    assert ran["measured_us"] > 0
    assert ran["modelled_us"] is None
    np.testing.assert_array_equal(np.load(config.workspace / "out.npz")["arg2"], a + b)


def test_a_failure_on_the_device_reaches_the_agent_with_its_lesson(lexical_config: Config, tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"aircc": {"stderr": "Error: could not find aiecc in PATH\n", "exit": 1}})
    config = _server(lexical_config, tmp_path, machine)
    compiled = answer(config, "compile", {"program": "add.mlir", "backend": "xrt", "wait_s": 25})
    assert not compiled["ok"]
    assert [one["code"] for one in compiled["findings"]] == ["aiecc-missing"]
    assert [one["id"] for one in compiled["lessons"]] == ["airtc-aiecc-not-in-path"]


def test_files_of_the_machine_are_not_named_over_http(lexical_config: Config, tmp_path: Path) -> None:
    config = _server(lexical_config, tmp_path, StandIn(tmp_path))
    arguments = {"program": "add.mlir", "backend": "xrt", "options": {"xclbin_input": "/etc/passwd"}}
    assert call(config, "compile", arguments, confined=True).is_error


def test_options_of_a_compiler_without_one_are_refused_with_why(lexical_config: Config, tmp_path: Path) -> None:
    config = _server(lexical_config, tmp_path, StandIn(tmp_path))
    for tool in ("compile", "run"):
        refused = call(config, tool, {"program": "add.mlir", "options": {"output_format": "elf"}})
        assert refused.is_error
        assert "backend xrt" in said(refused)
