"""Inputs bound once give every run the bits that binding in the run gives."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import Program, parse_program
from npu_tools.emulator import bind_inputs, run_program
from npu_tools.errors import UnusableInput

DATA = Path(__file__).parents[1] / "data" / "air"


def program(name: str) -> Program:
    path = DATA / f"emu_{name}.mlir"
    return parse_program(path.read_text(), name=path.name)


def gemv_inputs(dtype: type) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"arg0": rng.standard_normal((80, 64)).astype(dtype), "arg1": rng.standard_normal(64).astype(dtype)}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("grouping", ["lifted", "per-tile"])
def test_bound_inputs_give_the_same_bits_run_after_run(dtype: type, grouping: str) -> None:
    text, inputs = program("gemv"), gemv_inputs(dtype)
    bound = bind_inputs(text, inputs)
    plain = run_program(text, inputs, grouping=grouping)
    for _ in range(2):
        again = run_program(text, bound, grouping=grouping)
        assert again.ok
        for name, values in plain.outputs.items():
            assert again.outputs[name].tobytes() == values.tobytes()


def test_what_a_program_writes_starts_afresh_in_every_run() -> None:
    text = program("herd_copy")
    a, b = (np.arange(512, dtype=np.int32).reshape(16, 32) for _ in range(2))
    bound = bind_inputs(text, [a, b])
    a[...] = 0
    for _ in range(2):
        assert (run_program(text, bound).outputs["arg1"] == 2 * b).all()
    assert (b == np.arange(512).reshape(16, 32)).all()


def test_bound_inputs_belong_to_one_function_and_one_kind_of_numerics() -> None:
    text = program("gemv")
    bound = bind_inputs(text, gemv_inputs(ml_dtypes.bfloat16))
    with pytest.raises(UnusableInput, match="Bind them to the program that runs"):
        run_program(program("gemv"), bound)
    with pytest.raises(UnusableInput, match="Bind again"):
        run_program(text, bound, numerics="f32")
    with pytest.raises(UnusableInput, match="shape"):
        bind_inputs(text, {"arg0": np.zeros(3, np.float32)})
