"""Loading and running on the device: contexts, locks, buffers, recovery, and times; over the stand-in."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from filelock import FileLock

from npu_tools.arrays import Argument
from npu_tools.backends import Refused
from npu_tools.backends.xrt import Toolchain, XrtBackend
from npu_tools.backends.xrt.backend import XrtKernel, argument_findings, left_over
from npu_tools.backends.xrt.environment import record
from npu_tools.backends.xrt.lock import lock_paths
from npu_tools.backends.xrt.profile import profile_recipe, profile_recipes
from npu_tools.compile import compile_program, read_artefact
from npu_tools.device import device as find_device
from npu_tools.errors import UnusableInput
from npu_tools.jobs.work import run as run_work
from npu_tools.recipes import recipe
from npu_tools.requests import CompileRequest, RunRequest
from tests.npu_tools.xrt_support import ROOT, gemv, inputs
from tests.stand_in.machine import PHOENIX, QUICK, StandIn


def opened(tmp_path: Path, scenario: dict[str, object] | None = None) -> tuple[StandIn, XrtBackend]:
    machine = StandIn(tmp_path, scenario)
    return machine, XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=QUICK)


def loaded(backend: XrtBackend, text: str | None = None, **options: object) -> XrtKernel:
    kernel = backend.load(text or gemv()[0], name="gemv", options=options, outputs=(2,))
    assert isinstance(kernel, XrtKernel), kernel
    return kernel


def test_more_kernels_than_contexts_take_turns_and_keep_their_weights(tmp_path: Path) -> None:
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        limit = backend.max_contexts
        assert limit < 16, "some are left to other processes"
        bounds = [loaded(backend, gemv()[0] + f"\n// {n}\n").bind({0: weight}) for n in range(limit + 2)]
        first = bounds[0].run({1: vector}).outputs[2]
        for bound in bounds[1:]:
            assert bound.run({1: vector}).ok
        again = bounds[0].run({1: vector})
        assert again.ok, again.findings
        np.testing.assert_array_equal(again.outputs[2], first)


def test_contexts_of_other_processes_make_ours_take_turns(tmp_path: Path) -> None:
    _, backend = opened(tmp_path, {"pyxrt": {"contexts": 1}})
    with backend:
        weight, vector = inputs()
        one, two = (loaded(backend, gemv()[0] + f"\n// {n}\n").bind({0: weight}) for n in range(2))
        for bound in (one, two, one):
            run = bound.run({1: vector})
            assert run.ok, run.findings


def test_elf_and_xclbin_are_loaded_in_different_processes(tmp_path: Path) -> None:
    """In one process both got 1.4 to 2.5 times slower (mlir-air llms/smolvla/docs/profile.md)."""
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        for options in ({"output_format": "elf"}, {"output_format": "xclbin"}):
            assert loaded(backend, **options).bind({0: weight}).run({1: vector}).ok
        pids = {session.said_pid for session in backend._sessions.values()}  # pyright: ignore[reportPrivateUsage]
        assert len(pids) == 2


def test_after_a_hang_the_process_is_another_and_the_next_run_succeeds(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path, {"pyxrt": {"wait": "hang"}})
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        hung = bound.run({1: vector})
        assert hung.failure is not None
        assert hung.failure.code == "run-hung"
        assert "60 s" in (hung.failure.remedy or "")
        machine.change(pyxrt={})
        run = bound.run({1: vector})
        assert run.ok, run.findings


def test_a_killed_process_leaves_the_lock_free(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path, {"pyxrt": {"wait": "hang"}})
    with backend:
        weight, vector = inputs()
        loaded(backend).bind({0: weight}).run({1: vector})
        with FileLock(lock_paths(machine.toolchain)[0], timeout=0):
            pass


def test_a_run_waits_for_the_lock_of_upstreams_tools_and_says_who_holds_it(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        with FileLock(Path(machine.toolchain.temp) / "npu.lock"):
            busy = bound.run({1: vector})
        assert busy.failure is not None
        assert busy.failure.code == "npu-busy"
        assert "npu.lock" in busy.failure.message
        assert bound.run({1: vector}).ok


def test_a_run_goes_on_when_the_lock_comes_free_in_time(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    patience = replace(QUICK, lock_s=20)
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=patience) as backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        lock = FileLock(Path(machine.toolchain.temp) / "npu.lock", thread_local=False)
        lock.acquire()
        timer = threading.Timer(0.3, lock.release)
        timer.start()
        run = bound.run({1: vector})
        timer.join()
        assert run.ok, run.findings


def test_the_lock_is_held_for_a_run_and_not_between_runs(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        assert loaded(backend).bind({0: weight}).run({1: vector}).ok
        with FileLock(lock_paths(machine.toolchain)[0], timeout=0):
            pass


def test_both_of_upstreams_lock_files_are_taken_and_the_shells_never() -> None:
    """KernelCache locks /tmp/npu.lock whatever TMPDIR is; a flock around make would wait for itself (mlir-air cache.py)."""
    paths = lock_paths(Toolchain(temp="/var/tmp"))
    assert [Path(path).name for path in paths] == ["npu.lock", "npu.lock"]
    assert len(lock_paths(Toolchain(temp="/tmp"))) == 1


def test_an_artefact_of_another_generation_is_not_loaded(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, npu=PHOENIX)
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=QUICK, device="npu2") as backend:
        refused = backend.load(gemv()[0], name="gemv", outputs=(2,))
    assert isinstance(refused, Refused)
    assert refused.first.code == "wrong-generation"


def test_a_generation_nobody_could_tell_is_compiled_as_named_and_caught_by_its_output(tmp_path: Path) -> None:
    """A binary of the other generation loads without an error and computes nothing (mlir-air xrt.py)."""
    machine = StandIn(tmp_path, {"missing": ["xrt-smi"]}, npu=PHOENIX)
    for name in ("device", "vendor"):
        machine.write(f"sys/bus/pci/drivers/amdxdna/{PHOENIX['bdf']}/{name}", "\n")
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=QUICK, device="npu2") as backend:
        weight, vector = inputs()
        run = loaded(backend).bind({0: weight}).run({1: vector})
    assert run.failure is not None
    assert run.failure.code == "output-not-written"


def test_the_first_failure_of_a_second_kernel_does_not_lose_the_first(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        good = loaded(backend).bind({0: weight})
        assert good.run({1: vector}).ok
        machine.change(pyxrt={})
        bad = loaded(backend, gemv()[0] + "\n// 2\n")
        bad.artefact.binary.write_bytes(b"xclbin?")
        assert not bad.bind({0: weight}).run({1: vector}).ok
        assert good.run({1: vector}).ok


def test_an_input_that_is_an_output_too_is_not_filled(tmp_path: Path) -> None:
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        kernel = loaded(backend)
        run = kernel.bind({0: weight}).run({1: vector, 2: np.zeros(64, ml_dtypes.bfloat16)})
        assert run.ok, run.findings


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.float32])
def test_what_a_kernel_left_untouched_is_told_from_what_it_computed(dtype: type) -> None:
    byte = 0xFF if dtype is np.float32 else 0xA5
    filled = np.frombuffer(bytes([byte]) * 4096, dtype).copy()
    assert left_over(filled, byte).all()
    filled[: filled.size // 2] = 1
    missing = left_over(filled, byte)
    assert not missing[: filled.size // 2].any()
    assert missing[filled.size // 2 :].all()
    computed = np.arange(filled.size).astype(dtype)
    assert not left_over(computed, byte).any()


# -- the commands' answers ---------------------------------------------------------------------------------------------


class Telling:
    """A teller that never stops."""

    def __init__(self, folder: Path, stop: Callable[[], bool] = lambda: False) -> None:
        self.folder, self._stop = folder, stop

    def cancelled(self) -> bool:
        return self._stop()

    def progress(self, done: float, total: float, note: str = "") -> None:
        pass


def test_compile_answers_with_the_same_fields_on_both_backends(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    request = {"program": {"text": gemv()[0], "name": "gemv.mlir"}, "cache": str(tmp_path / "cache")}
    emulated = compile_program(CompileRequest.model_validate(request))
    real = compile_program(
        CompileRequest.model_validate({**request, "backend": "xrt", "toolchain": machine.toolchain.model_dump()})
    )
    assert set(real) == set(emulated)
    assert real["ok"], real["findings"]
    assert real["arguments"] == emulated["arguments"]
    assert read_artefact(Path(real["artefact"])) == gemv()[0]
    json.dumps(real)


def test_run_answers_with_the_same_fields_and_arrays_on_both_backends(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    weight, vector = inputs()
    given = tmp_path / "in.npz"
    np.savez(given, arg0=weight.astype(np.float32), arg1=vector.astype(np.float32))
    request = {"program": {"text": gemv()[0], "name": "gemv.mlir"}, "inputs": str(given)}
    answers = {}
    for backend in ("emulator", "xrt"):
        more = (
            {"toolchain": machine.toolchain.model_dump(), "cache": str(tmp_path / "cache")} if backend == "xrt" else {}
        )
        asked = RunRequest.model_validate(
            {**request, **more, "backend": backend, "outputs": str(tmp_path / f"{backend}.npz")}
        )
        answers[backend] = run_work(asked, Telling(tmp_path))
    assert set(answers["xrt"]) == set(answers["emulator"])
    assert answers["xrt"]["ok"], answers["xrt"]["diagnostics"]
    assert (answers["xrt"]["ran_on"], answers["emulator"]["ran_on"]) == ("npu", "emulator")
    assert answers["xrt"]["measured_us"] > 0
    assert answers["emulator"]["measured_us"] is None
    ours, theirs = (np.load(tmp_path / f"{name}.npz") for name in ("xrt", "emulator"))
    assert sorted(ours.files) == sorted(theirs.files)
    np.testing.assert_array_equal(ours["arg2"], theirs["arg2"])


def test_what_only_the_emulator_does_is_refused_in_words(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    base = {"program": {"text": gemv()[0]}, "backend": "xrt", "toolchain": machine.toolchain.model_dump()}
    for more in ({"rounding": True}, {"timeline": "t.svg"}, {"numerics": "f32"}):
        with pytest.raises(UnusableInput, match="emulator"):
            run_work(RunRequest.model_validate({**base, **more}), Telling(tmp_path))
    with pytest.raises(UnusableInput, match="herdbook doctor"):
        run_work(RunRequest.model_validate({**base, "toolchain": None}), Telling(tmp_path))


# -- times -------------------------------------------------------------------------------------------------------------


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
