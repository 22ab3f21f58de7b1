"""Which buffers of a launch are only views, and that running more iterations side by side changes no bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from npu_tools.air import Program, parse_program
from npu_tools.air.dialect import LaunchOp
from npu_tools.bench.programs_text import gemv
from npu_tools.emulator.effects import Effects
from npu_tools.emulator.run import run_program
from npu_tools.emulator.views import copied_bytes

ROWS, DEPTH = 640, 4096
"""Ten iterations whose L2 tiles take 1 MiB each on the host: four of them would be the most if they were copied."""
MATVEC = "matvec_vectorized_bf16_bf16"


def bytes_of(text: str) -> int:
    program = parse_program(text, name="gemv.mlir")
    kernels = {MATVEC: ((0, 1, 2, 3, 4), (5,)), "linalg_fill_bf16": ((), (0,))}
    functions = {each.sym_name.data: each for each in program.functions()}
    effects = Effects(lambda op: kernels.get(op.callee.string_value()), functions)
    (launch,) = (op for op in program.module.walk() if isinstance(op, LaunchOp))
    return copied_bytes(launch, effects)


def inputs() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((ROWS, DEPTH), (DEPTH,))]


def agreed(program: Program) -> int:
    """Instructions of the lifted run, after comparing it bit for bit with the run tile by tile."""
    lifted = run_program(program, inputs())
    alone = run_program(program, inputs(), grouping="per-tile")
    assert lifted.ok, lifted.findings
    assert alone.ok, alone.findings
    for key, values in lifted.outputs.items():
        assert values.tobytes() == alone.outputs[key].tobytes()
    return lifted.counters.instructions


def test_tiles_of_what_is_only_read_are_views() -> None:
    results = 4 * 64 + 4 * 8 * 8
    assert bytes_of(gemv(ROWS, DEPTH)) == results


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(%a2[] [] []", f"(%a2[0, 0] [64, {DEPTH}] [{DEPTH}, 1]"),
        (
            f"%sa[%first, 0] [64, {DEPTH}] [{DEPTH}, 1]",
            f"%sa[0, %first, 0] [2, 32, {DEPTH}] [{32 * DEPTH}, {DEPTH}, 1]",
        ),
    ],
)
def test_tiles_that_a_dma_fills_otherwise_are_copies(old: str, new: str) -> None:
    text = gemv(ROWS, DEPTH)
    assert old in text
    assert bytes_of(text.replace(old, new)) >= 4 * 64 * DEPTH


def test_views_let_all_iterations_go_side_by_side_with_the_same_bits() -> None:
    text = gemv(ROWS, DEPTH)
    views = agreed(parse_program(text, name="gemv.mlir"))
    copies = agreed(
        parse_program(text.replace("(%a2[] [] []", f"(%a2[0, 0] [64, {DEPTH}] [{DEPTH}, 1]"), name="copied")
    )
    assert views < copies
