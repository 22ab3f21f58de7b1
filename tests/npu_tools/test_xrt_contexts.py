"""Contexts and buffers on the device: few contexts for many kernels, weights kept apart, what was not written told."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu_tools.backends import Refused
from npu_tools.backends.xrt import XrtBackend
from npu_tools.backends.xrt.backend import XrtKernel, left_over
from tests.npu_tools.xrt_support import gemv, inputs, loaded, opened
from tests.stand_in.machine import PHOENIX, QUICK, StandIn


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


def test_two_kernels_of_one_program_share_a_context_and_no_buffers(tmp_path: Path) -> None:
    _, backend = opened(tmp_path, {"pyxrt": {"contexts": 1}})
    with backend:
        weight, vector = inputs()
        bounds = []
        for name, scale in (("a", 1), ("b", 2)):
            kernel = backend.load(gemv()[0], name=name, outputs=(2,))
            assert isinstance(kernel, XrtKernel)
            bounds.append(kernel.bind({0: (weight.astype(np.float32) * scale).astype(ml_dtypes.bfloat16)}))
        first, second = (bound.run({1: vector}) for bound in bounds)
        assert first.ok
        assert second.ok
        np.testing.assert_array_equal(second.outputs[2].astype(np.float32), 2 * first.outputs[2].astype(np.float32))


def test_a_batch_is_one_request_and_ends_with_the_run_that_fails(tmp_path: Path) -> None:
    _, backend = opened(tmp_path, {"pyxrt": {"compute": "half", "from_run": 3}})
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        runs = bound.run_all([{1: vector}] * 5)
        assert [run.ok for run in runs] == [True, True, False]
        assert runs[-1].failure is not None
        assert runs[-1].failure.code == "output-partly-written"


def test_a_run_that_hangs_within_a_batch_costs_those_behind_it_and_no_more(tmp_path: Path) -> None:
    machine, backend = opened(tmp_path, {"pyxrt": {"wait": "hang", "from_run": 3}})
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        runs = bound.run_all([{1: vector}] * 5)
        assert [run.ok for run in runs] == [True, True, False]
        assert runs[-1].failure is not None
        assert runs[-1].failure.code == "run-hung"
        np.testing.assert_array_equal(runs[0].outputs[2], runs[1].outputs[2])
        machine.change(pyxrt={})
        assert [run.ok for run in bound.run_all([{1: vector}] * 2)] == [True, True]


def test_a_batch_larger_than_its_files_may_be_goes_in_several_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})
        monkeypatch.setattr("npu_tools.backends.xrt.backend._BATCH", 2 * sum(bound.kernel.sizes))
        assert [run.ok for run in bound.run_all([{1: vector}] * 5)] == [True] * 5


def test_buffers_of_what_nobody_holds_are_freed(tmp_path: Path) -> None:
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        kernel = loaded(backend)
        for _ in range(3):
            assert kernel.bind({0: weight}).run({1: vector}).ok
        assert backend._dropped  # pyright: ignore[reportPrivateUsage]
        assert kernel.bind({0: weight}).run({1: vector}).ok
        assert len(backend._dropped) <= 1  # pyright: ignore[reportPrivateUsage]


def test_elf_and_xclbin_are_loaded_in_different_processes(tmp_path: Path) -> None:
    """In one process both got 1.4 to 2.5 times slower (mlir-air llms/smolvla/docs/profile.md)."""
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        for options in ({"output_format": "elf"}, {"output_format": "xclbin"}):
            assert loaded(backend, **options).bind({0: weight}).run({1: vector}).ok
        pids = {session.said_pid for session in backend._sessions.values()}  # pyright: ignore[reportPrivateUsage]
        assert len(pids) == 2


def test_an_artefact_of_another_generation_is_not_loaded(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, npu=PHOENIX)
    with XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=QUICK, device="npu2") as backend:
        refused = backend.load(gemv()[0], name="gemv", outputs=(2,))
    assert isinstance(refused, Refused)
    assert refused.first.code == "wrong-generation"


def test_a_generation_nobody_could_tell_is_compiled_as_named_and_caught_by_its_output(tmp_path: Path) -> None:
    """A binary of the other generation loads without an error and computes nothing (mlir-air xrt.py)."""
    machine = StandIn(tmp_path, {"missing": ["xrt-smi"]}, npu=PHOENIX)
    for name in ("device", "vendor", "vbnv"):
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


def test_a_full_scratch_folder_is_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, backend = opened(tmp_path)
    with backend:
        weight, vector = inputs()
        bound = loaded(backend).bind({0: weight})

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("npu_tools.backends.xrt.session.Session._files", full)
        run = bound.run({1: vector})
    assert run.failure is not None
    assert run.failure.code == "disk-full"
