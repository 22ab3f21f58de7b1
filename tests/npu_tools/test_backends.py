"""The emulator as a backend: load once, bind weights once, run often."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu_tools.backends import EmulatorBackend, Refused
from npu_tools.errors import UnusableInput
from npu_tools.recipes import recipe

KERNELS = Path(__file__).parents[2] / "kernels"
BF16 = ml_dtypes.bfloat16


def gemv_text(shape: str = "64x64") -> str:
    gemv = recipe(KERNELS, "gemv")
    return gemv.program(gemv.resolve(shape))


def test_a_bound_weight_serves_many_runs_and_each_says_where_it_ran():
    kernel = EmulatorBackend().load(gemv_text(), name="gemv", outputs=(2,))
    assert not isinstance(kernel, Refused)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64), np.float32).astype(BF16)
    bound = kernel.bind({0: weight})
    for _ in range(2):
        vector = rng.standard_normal(64, np.float32).astype(BF16)
        run = bound.run({1: vector})
        assert run.ok
        assert run.ran_on == "emulator"
        assert run.measured_us is None
        assert run.modelled_us is not None
        assert list(run.outputs) == [2]
        expected = weight.astype(np.float32) @ vector.astype(np.float32)
        np.testing.assert_allclose(run.outputs[2].astype(np.float32), expected, rtol=1e-2, atol=1e-2)


def test_the_same_text_is_loaded_once():
    backend = EmulatorBackend()
    first, second = (backend.load(gemv_text(), name="gemv", outputs=(2,)) for _ in range(2))
    assert first is second


def test_a_program_the_check_refuses_is_not_loaded():
    refused = EmulatorBackend().load(gemv_text().replace("memref<8x64xbf16, 2", "memref<80000x64xbf16, 2"), name="big")
    assert isinstance(refused, Refused)
    assert refused.first.severity == "error"


def test_text_that_is_no_program_is_refused_with_its_line():
    refused = EmulatorBackend().load("module { func.func @f( }", name="broken")
    assert isinstance(refused, Refused)
    assert refused.first.code == "syntax"
    assert refused.first.line == 1


def test_arrays_that_do_not_fit_are_said_by_position():
    kernel = EmulatorBackend().load(gemv_text(), name="gemv")
    assert not isinstance(kernel, Refused)
    with pytest.raises(UnusableInput, match="arg0"):
        kernel.bind({0: np.zeros((64, 65), np.float32)})
    bound = kernel.bind({0: np.zeros((64, 64), np.float32)})
    with pytest.raises(UnusableInput, match="bound already"):
        bound.run({0: np.zeros((64, 64), np.float32), 1: np.zeros(64, np.float32)})
    with pytest.raises(UnusableInput, match="no number 9"):
        bound.run({9: np.zeros(64, np.float32)})


def test_outputs_must_be_memrefs_of_the_function():
    with pytest.raises(UnusableInput, match="not all memrefs"):
        EmulatorBackend().load(gemv_text(), name="gemv", outputs=(7,))
