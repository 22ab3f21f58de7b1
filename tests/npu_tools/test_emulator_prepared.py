"""A program lowered once and run often gives what single runs give."""

from pathlib import Path

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.emulator.prepared import PreparedProgram
from npu_tools.emulator.run import bind_inputs, run_program
from npu_tools.recipes import recipe

KERNELS = Path(__file__).parents[2] / "kernels"


def prepared_case(name: str, shape: str, settings: dict[str, object]):
    kernel = recipe(KERNELS, name)
    resolved = kernel.resolve(shape, settings)
    program = parse_program(kernel.program(resolved), name)
    arguments = kernel.arguments(resolved)

    def inputs(seed: int):
        arranged = kernel.arrange(kernel.inputs(resolved, seed), resolved)
        return {f"arg{at}": arranged[one.name] for at, one in enumerate(arguments) if one.name in arranged}

    return program, inputs


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("gemv", "192x576", {}),
        ("gemv_residual", "128x1024", {}),
        ("gemm", "512x512x512", {"method": "drain"}),
        ("gemm", "512x512x512", {"method": "fused-cast", "tile_m": 32, "cast": "vector"}),
    ],
)
def test_runs_of_a_prepared_program_are_those_of_fresh_machines(name: str, shape: str, settings: dict[str, object]):
    program, inputs = prepared_case(name, shape, settings)
    prepared = PreparedProgram(program)
    for seed in (0, 1, 0):
        once = run_program(program, bind_inputs(program, inputs(seed)))
        again = prepared.run(prepared.bind(inputs(seed)))
        assert again.ok
        assert [finding.as_dict() for finding in again.findings] == [finding.as_dict() for finding in once.findings]
        assert again.counters == once.counters
        assert again.outputs.keys() == once.outputs.keys()
        for key, values in once.outputs.items():
            np.testing.assert_array_equal(again.outputs[key], values)


def test_a_run_keeps_its_counts_when_the_next_begins():
    program, inputs = prepared_case("gemv", "64x64", {})
    prepared = PreparedProgram(program, outputs=(2,))
    first = prepared.run(prepared.bind(inputs(0)))
    counted = first.counters.as_dict()
    prepared.run(prepared.bind(inputs(1)))
    assert first.counters.as_dict() == counted
    assert list(first.outputs) == ["arg2"]


def test_a_run_that_failed_leaves_nothing_behind():
    program, inputs = prepared_case("gemv", "64x64", {})
    prepared = PreparedProgram(program)
    bound = prepared.bind(inputs(0))
    stopped = prepared.run(bound, cancelled=lambda: True)
    whole = prepared.run(bound)
    assert whole.ok
    fresh = run_program(program, inputs(0))
    np.testing.assert_array_equal(whole.outputs["arg2"], fresh.outputs["arg2"])
    assert stopped.ok or stopped.findings


def test_a_program_that_cannot_be_lowered_says_so_each_time():
    text = 'module { func.func @f(%a: memref<4xbf16>) { "made.up"(%a) : (memref<4xbf16>) -> ()\n return } }'
    prepared = PreparedProgram(parse_program(text, "odd.mlir"))
    for _ in range(2):
        result = prepared.run(prepared.bind({"arg0": np.zeros(4, np.float32)}))
        assert not result.ok
        assert result.findings[0].code == "unsupported-op"
