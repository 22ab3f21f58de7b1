"""What holds for every backend, run on the emulator and on the device adapter over the stand-in toolchain."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu_tools.backends import Backend, EmulatorBackend, Kernel, KernelRun, Measured, Refused
from npu_tools.backends.xrt import XrtBackend
from npu_tools.errors import UnusableInput
from npu_tools.recipes import recipe
from tests.stand_in.machine import QUICK, StandIn

KERNELS = Path(__file__).parents[2] / "kernels"
BF16 = ml_dtypes.bfloat16


@pytest.fixture(scope="module", params=["emulator", "stand-in"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    if request.param == "emulator":
        yield EmulatorBackend()
        return
    folder = tmp_path_factory.mktemp("contract")
    with XrtBackend(StandIn(folder).toolchain, cache=folder / "cache", patience=QUICK) as made:
        yield made


def gemv() -> tuple[str, dict[str, object]]:
    kernel = recipe(KERNELS, "gemv")
    resolved = kernel.resolve("64x64")
    return kernel.program(resolved), kernel.compile_options(resolved)


def loaded(backend: Backend, outputs: tuple[int, ...] | None = (2,)) -> Kernel:
    text, options = gemv()
    kernel = backend.load(text, name="gemv", options=options, outputs=outputs)
    assert not isinstance(kernel, Refused), kernel
    return kernel


def arrays(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((64, 64), np.float32).astype(BF16), rng.standard_normal(64, np.float32).astype(BF16)


def test_outputs_have_positions_shapes_and_dtypes_of_the_arguments(backend: Backend) -> None:
    weight, vector = arrays()
    run = loaded(backend).bind({0: weight}).run({1: vector})
    assert isinstance(run, KernelRun)
    assert run.ok, run.findings
    assert list(run.outputs) == [2]
    assert run.outputs[2].shape == (64,)
    assert run.outputs[2].dtype == BF16
    expected = weight.astype(np.float32) @ vector.astype(np.float32)
    np.testing.assert_allclose(run.outputs[2].astype(np.float32), expected, rtol=1e-2, atol=1e-2)


def test_a_time_is_modelled_or_measured_and_says_where_it_ran(backend: Backend) -> None:
    weight, vector = arrays()
    run = loaded(backend).bind({0: weight}).run({1: vector})
    assert run.ran_on == ("emulator" if backend.name == "emulator" else "npu")
    assert (run.modelled_us is None) == (backend.name == "xrt")
    assert (run.measured_us is None) == (backend.name == "emulator")


def test_a_device_measures_calls_in_turn_and_an_emulator_measures_none(backend: Backend) -> None:
    weight, vector = arrays()
    bound = loaded(backend).bind({0: weight})
    measured = backend.measure([(bound, {1: vector}), (bound, {1: vector})], warm_up=1, iterations=3)
    if backend.name == "emulator":
        assert measured is None
        return
    assert isinstance(measured, Measured), measured
    assert [len(times) for times in measured.times_us] == [3, 3]
    said = measured.as_dict()
    assert (said["warm_up"], said["iterations"]) == (1, 3)
    assert said["environment"]["device"] == "NPU Strix"
    for low, middle, high in zip(said["min_us"], said["median_us"], said["max_us"], strict=True):
        assert low <= middle <= high
    again = bound.run({1: vector})
    assert again.ok, "a run after timing is a run like any other"


def test_weights_are_bound_once_and_each_run_sees_its_own_inputs(backend: Backend) -> None:
    weight, first = arrays()
    _, second = arrays(1)
    bound = loaded(backend).bind({0: weight})
    a, b, again = (bound.run({1: vector}).outputs[2].copy() for vector in (first, second, first))
    assert not np.array_equal(a, b)
    np.testing.assert_array_equal(a, again)


def test_two_sets_of_weights_do_not_mix(backend: Backend) -> None:
    weight, vector = arrays()
    other, _ = arrays(1)
    kernel = loaded(backend)
    one, two = kernel.bind({0: weight}), kernel.bind({0: other})
    first, second = one.run({1: vector}).outputs[2], two.run({1: vector}).outputs[2]
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(one.run({1: vector}).outputs[2], first)


def test_a_batch_gives_what_its_runs_give_one_by_one(backend: Backend) -> None:
    weight, _ = arrays()
    bound = loaded(backend).bind({0: weight})
    batch = [{1: arrays(seed)[1]} for seed in range(5)]
    runs = bound.run_all(batch)
    assert [run.ok for run in runs] == [True] * 5
    for run, given in zip(runs, batch, strict=True):
        alone = bound.run(given)
        assert run.ran_on == alone.ran_on
        assert (run.measured_us is None) == (alone.measured_us is None)
        np.testing.assert_array_equal(run.outputs[2], alone.outputs[2])
    assert bound.run_all([]) == []


def test_a_batch_with_an_array_that_does_not_fit_runs_nothing(backend: Backend) -> None:
    weight, vector = arrays()
    with pytest.raises(UnusableInput, match="arg1 "):
        loaded(backend).bind({0: weight}).run_all([{1: vector}, {1: vector[:3]}])


def test_an_output_handed_out_is_not_overwritten_by_the_next_run(backend: Backend) -> None:
    weight, vector = arrays()
    bound = loaded(backend).bind({0: weight})
    kept = bound.run({1: vector}).outputs[2]
    before = kept.copy()
    bound.run({1: (-vector.astype(np.float32)).astype(BF16)})
    np.testing.assert_array_equal(kept, before)


def test_the_same_text_is_loaded_once(backend: Backend) -> None:
    assert loaded(backend) is loaded(backend)


def test_a_program_the_check_refuses_is_not_loaded(backend: Backend) -> None:
    text, options = gemv()
    wide = text.replace("memref<8x64xbf16, 2", "memref<80000x64xbf16, 2")
    refused = backend.load(wide, name="big", options=options)
    assert isinstance(refused, Refused)
    assert refused.first.severity == "error"


def test_text_that_is_no_program_is_refused_with_its_line(backend: Backend) -> None:
    refused = backend.load("module { func.func @f( }", name="broken")
    assert isinstance(refused, Refused)
    assert (refused.first.code, refused.first.line) == ("syntax", 1)


def test_arrays_that_do_not_fit_are_said_by_position(backend: Backend) -> None:
    weight, vector = arrays()
    kernel = loaded(backend)
    with pytest.raises(UnusableInput, match="arg1 "):
        kernel.bind({0: weight}).run({1: vector[:3]})
    with pytest.raises(UnusableInput, match="no number 7"):
        kernel.bind({7: vector})


def test_all_memrefs_come_back_where_nobody_says_which(backend: Backend) -> None:
    weight, vector = arrays()
    run = loaded(backend, outputs=None).bind({0: weight}).run({1: vector})
    assert sorted(run.outputs) == [0, 1, 2]
    np.testing.assert_array_equal(run.outputs[1], vector)


def test_results_are_traced_to_the_same_digest_on_every_backend(tmp_path: Path) -> None:
    text, options = gemv()
    emulated = EmulatorBackend().load(text, name="gemv", options=options)
    with XrtBackend(StandIn(tmp_path).toolchain, cache=tmp_path / "cache", patience=QUICK) as xrt:
        real = xrt.load(text, name="gemv", options=options)
    assert not isinstance(emulated, Refused)
    assert not isinstance(real, Refused)
    assert emulated.digest == real.digest
