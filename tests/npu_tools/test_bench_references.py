"""The references behind the programs' bench: right by properties of the mathematics, and without the emulator."""

from __future__ import annotations

import ast
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import npu_tools.bench.references as references
from npu_tools.air import parse_program
from npu_tools.bench.programs_text import gemm, gemv
from npu_tools.bench.references import Case, reference_for
from npu_tools.bench.references.attention import attention, head_width
from npu_tools.bench.references.packed import Quantised, block_float, packed_rows
from npu_tools.bench.references.rotary import rotate_halves, rotate_pairs
from npu_tools.errors import UnusableInput
from npu_tools.recipes import recipe

RNG = np.random.default_rng(0)


def case_of(text: str, name: str) -> Case:
    program = parse_program(text, name)
    return Case.of(program, program.functions()[0], name)


def test_no_reference_knows_the_emulator() -> None:
    folder = Path(references.__file__).parent
    imported = {
        node.module
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert any(name.startswith("npu_tools.bench") for name in imported)
    assert not any("emulator" in name for name in imported)


def test_a_program_is_found_by_its_name_and_else_by_its_function() -> None:
    assert reference_for("rms_norm__rms_norm", "f") is reference_for("other", "rms_norm")
    assert reference_for("other", "f") is None
    by_width = {name: reference_for(f"rope_{name}__x", "") for name in ("lut", "halfsplit", "sincos")}
    assert len(set(by_width.values())) == 3


def test_the_same_name_and_seed_give_the_same_inputs() -> None:
    build = reference_for("x", "matvec_bf16")
    assert build is not None
    first, again, other = (build(case_of(gemv(64, 128), name)).inputs["arg0"] for name in ("one", "one", "two"))
    assert (first == again).all()
    assert (first != other).any()


def test_int4_tiles_hold_codes_low_half_first_then_scales_and_zero_points_by_group() -> None:
    matrix = Quantised.random(RNG, 4, 512)
    tile = packed_rows(matrix, 2, 256)[3]  # rows 2 and 3, columns 256 to 511
    codes = np.stack([tile[:256] & 15, tile[:256] >> 4], axis=-1).reshape(2, 256)
    scales = tile[256:264].view(ml_dtypes.bfloat16).reshape(2, 2).astype(float)
    zeros = tile[264:268].reshape(2, 2)
    weights = (codes - np.repeat(zeros.T, 128, axis=1).astype(float)) * np.repeat(scales.T, 128, axis=1)
    assert tile.size == 268
    assert (weights == matrix.weights()[2:, 256:]).all()


def test_block_float_records_decode_to_the_nearest_they_can_hold() -> None:
    values = RNG.standard_normal((50, 8))
    records, held = block_float(values)
    exponents = records[:, :1].astype(float) - 127
    assert (records[:, 1:].view(np.int8) * 2.0 ** (exponents - 6) == held).all()
    clipped = np.abs(values) >= 127 / 64 * 2.0**exponents
    assert (clipped | (np.abs(held - values) <= 2.0 ** (exponents - 7))).all()


def test_rotations_keep_length_and_undo_themselves() -> None:
    x, turn = RNG.standard_normal((3, 8)), RNG.standard_normal((3, 4))
    for rotate in (rotate_halves, rotate_pairs):
        there = rotate(x, np.cos(turn), np.sin(turn))
        assert np.allclose(np.linalg.norm(there, axis=1), np.linalg.norm(x, axis=1))
        assert np.allclose(rotate(there, np.cos(turn), -np.sin(turn)), x)


def test_attention_with_equal_keys_averages_the_visible_values() -> None:
    q, v = RNG.standard_normal((4, 5, 8)), RNG.standard_normal((2, 5, 8))
    visible = np.tri(5, dtype=bool)
    out = attention(q, np.zeros((2, 5, 8)), v, visible)
    means = np.cumsum(v, axis=1) / np.arange(1, 6)[:, None]
    assert np.allclose(out, np.repeat(means, 2, axis=0))


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 4), (4, 2)])
def test_the_width_of_a_head_is_read_from_the_program(heads: int, key_heads: int) -> None:
    flash = recipe(Path(__file__).resolve().parents[2] / "kernels", "flash_attention")
    case = case_of(flash.program(flash.resolve((256, 256, heads, key_heads, 64))), "attention")
    assert head_width(case, 0) == 64


def test_programs_of_sizes_that_no_launch_covers_are_refused() -> None:
    for make in (lambda: gemm(500, 512, 512), lambda: gemv(100, 128)):
        with pytest.raises(UnusableInput, match="multiple"):
            make()
