"""Measured times: gated first, timed apart, kept with the machine they were taken on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu_tools.arrays import Argument
from npu_tools.backends.xrt.backend import argument_findings
from npu_tools.backends.xrt.environment import record
from npu_tools.backends.xrt.profile import profile_recipe, profile_recipes
from npu_tools.device import device as find_device
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding
from npu_tools.recipes import recipe
from tests.npu_tools.xrt_support import ROOT, inputs, loaded, opened
from tests.stand_in.machine import StandIn


def test_a_profile_is_gated_first_and_timed_in_another_process(tmp_path: Path) -> None:
    _, backend = opened(tmp_path)
    with backend:
        timed = profile_recipe(
            backend, recipe(ROOT / "kernels", "gemv"), "64x64", warm_up=2, iterations=4, context_length=2048
        )
    said = timed.as_dict()
    assert timed.passed, timed.reason
    assert said["label"] == "measured"
    assert (said["warm_up"], said["iterations"], len(said["times_us"])) == (2, 4, 4)
    assert said["min_us"] <= said["median_us"] <= said["max_us"]
    assert "start() and the wait" in said["timed"]
    assert said["verdicts"]["c"]["passed"]
    environment = said["environment"]
    assert environment["complete"], environment
    assert (environment["power_mode"], environment["platform_profile"]) == ("Turbo", "performance")
    assert environment["context_length"] == 2048
    assert environment["packages"]["llvm-aie"].startswith("21.")


def test_writing_running_and_reading_are_told_apart(tmp_path: Path) -> None:
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        run = loaded(backend).bind({0: weight}).run({1: vector})
    assert run.counters is not None
    assert set(run.counters) == {"write_us", "run_us", "read_us"}
    assert run.counters["run_us"] == run.measured_us


def test_twenty_runs_are_timed_after_five_unless_asked_otherwise() -> None:
    import inspect

    said = inspect.signature(profile_recipe).parameters
    assert (said["warm_up"].default, said["iterations"].default) == (5, 20)


def test_a_kernel_that_misses_its_gate_is_not_timed(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path, {"pyxrt": {"compute": "zeros"}})
    with backend:
        timed = profile_recipe(backend, recipe(ROOT / "kernels", "gemv"), "64x64", iterations=2)
    assert not timed.passed
    assert timed.median_us is None
    assert timed.as_dict()["label"] == "not measured"
    assert machine.calls("aircc")


def test_a_kernel_that_runs_once_and_not_again_has_no_time_and_says_why(tmp_path: Path) -> None:
    _, backend = opened(tmp_path, {"pyxrt": {"wait": "ERT_CMD_STATE_TIMEOUT", "from_run": 4}})
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        assert bound.run({1: vector}).ok
        failed = backend.measure([(bound, {1: vector})], warm_up=1, iterations=4)
    assert isinstance(failed, Finding)
    assert failed.code == "run-timeout"


def test_several_configurations_are_timed_in_turn(tmp_path: Path) -> None:
    _, backend = opened(tmp_path)
    with backend:
        kernel = recipe(ROOT / "kernels", "gemv")
        timed = profile_recipes(
            backend, kernel, "64x64", [{"tile_m": 8}, {"tile_m": 4, "m_input": 4}], warm_up=1, iterations=2
        )
    assert [one.passed for one in timed] == [True, True]
    assert [len(one.times_us) for one in timed] == [2, 2]


def test_modes_that_make_a_time_incomparable_are_noted_with_it(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"smi": {"power_mode": "Balanced", "contexts": [[1, "other"]]}})
    machine.write("sys/firmware/acpi/platform_profile", "balanced\n")
    said = record(machine.toolchain)
    assert len(said.notes) == 3
    assert said.contexts_of_others == 1
    assert record(machine.toolchain, own=[1]).contexts_of_others == 0


def test_two_formats_are_not_timed_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, backend = opened(tmp_path)
    kernel = recipe(ROOT / "kernels", "gemv")
    forms = iter(("elf", "xclbin"))
    monkeypatch.setattr(type(kernel), "compile_options", lambda *_: {"output_format": next(forms)})
    with backend, pytest.raises(UnusableInput, match="ELF and xclbin"):
        profile_recipes(backend, kernel, "64x64", [{"tile_m": 8}, {"tile_m": 4, "m_input": 4}], iterations=1)


def test_an_argument_over_four_gib_is_refused() -> None:
    """Past 2^32 bytes of one buffer the shim's offsets wrap and logits are NaN (mlir-air PR 1840)."""
    huge = Argument("arg0", (1 << 31, 2), np.dtype(np.float32), "f32")
    scalar = Argument("arg1", None, np.dtype(np.int32), "i32")
    found = argument_findings([huge, scalar], find_device("npu2").value("buffer_object.offset_bytes"))
    assert [one.code for one in found] == ["buffer-too-large", "scalar-argument"]
