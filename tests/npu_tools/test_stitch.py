"""Several programs in one function: names kept apart, object files shared or renamed, clashing arguments refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npu_tools.air import parse_program
from npu_tools.check import check_program
from npu_tools.device import device
from npu_tools.emulator.run import run_program
from npu_tools.errors import UnusableInput
from npu_tools.recipes import Slice, misuses, recipe, stitch

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


def printed(name: str, shape: str, settings: dict[str, object] | None = None) -> str:
    each = recipe(KERNELS, name)
    return each.program(each.resolve(shape, settings))


ADD = printed("eltwise_add", "1024")
NORM = printed("rmsnorm", "16x64")
FLAT, ROWS, LINE = "memref<1024xbf16>", "memref<16x64xbf16>", "memref<64xbf16>"


def test_one_program_after_another_gives_the_same_bits_as_both_alone() -> None:
    text = stitch(
        "add_norm",
        {"a": FLAT, "b": FLAT, "sum": FLAT, "weight": LINE, "y": ROWS},
        [Slice("add", ADD, ("a", "b", "sum")), Slice("norm", NORM, ("sum", "weight", "y"))],
    )
    rng = np.random.default_rng(0)
    a, b, weight = (rng.standard_normal(size, np.float32) for size in (1024, 1024, 64))
    program = parse_program(text, "add_norm.mlir")
    assert all(finding.severity == "note" for finding in check_program(program, device("npu2")))
    fused = run_program(program, {"arg0": a, "arg1": b, "arg3": weight})
    alone = run_program(parse_program(ADD, "add.mlir"), {"arg0": a, "arg1": b}).outputs["arg2"]
    norm = parse_program(NORM, "norm.mlir")
    after = run_program(norm, {"arg0": alone.reshape(16, 64), "arg1": weight}).outputs["arg2"]
    assert np.array_equal(fused.outputs["arg2"], alone)
    assert np.array_equal(fused.outputs["arg4"], after)


def test_one_object_serves_slices_that_agree_and_is_built_again_where_they_do_not() -> None:
    wide = printed("gemm", "64x64x64", {"method": "drain", "tile_m": 16, "tile_n": 16, "tile_k_l2": 64, "herd_m": 4})
    tall = printed(
        "gemm", "64x64x64", {"method": "drain", "tile_m": 16, "tile_n": 32, "tile_k_l2": 64, "herd_m": 4, "herd_n": 2}
    )
    square = "memref<64x64xbf16>"
    text = stitch(
        "three",
        {name: square for name in "abcde"},
        [Slice("one", wide, "abc"), Slice("two", wide, "cbd"), Slice("other", tall, "dbe")],
    )
    objects = {
        line.split('link_with = "')[1].split('"')[0] for line in text.splitlines() if "func.func private" in line
    }
    assert objects == {"mm.o", "other_mm.o"}
    assert text.count("func.func private @zero_f32_mn(") == 1
    assert text.count("func.func private @other_zero_f32_mn(") == 1
    values = np.random.default_rng(0).standard_normal((64, 64), np.float32) / 8
    result = run_program(parse_program(text, "three.mlir"), {"arg0": values, "arg1": values})
    assert result.ok, result.findings
    expected = values @ values @ values @ values
    assert np.abs(result.outputs["arg4"].astype(np.float32) - expected).max() < 0.1


def test_channels_of_the_same_name_stay_apart() -> None:
    each = printed("gemv_residual", "64x512", {"tile_m": 4})
    types = {"w": "memref<64x512xbf16>", "x": "memref<512xbf16>", **{name: LINE for name in ("r", "y", "z")}}
    text = stitch("twice", types, [Slice("one", each, ("w", "x", "r", "y")), Slice("two", each, ("w", "x", "y", "z"))])
    assert "@one_gemv_residual_rows" in text
    assert "@two_gemv_residual_rows" in text
    rng = np.random.default_rng(0)
    inputs = {"arg0": rng.standard_normal((64, 512), np.float32) / 20, "arg1": rng.standard_normal(512, np.float32)}
    inputs["arg2"] = rng.standard_normal(64, np.float32)
    result = run_program(parse_program(text, "twice.mlir"), inputs)
    expected = inputs["arg2"] + 2 * inputs["arg0"] @ inputs["arg1"]
    assert np.allclose(result.outputs["arg4"].astype(np.float32), expected, atol=0.1)


def test_aliases_attributes_of_functions_and_comments_survive() -> None:
    odd = """// a comment with { and %x
#half = affine_map<()[s0] -> (s0 floordiv 2)>
#upper = affine_set<()[s0, s1] : (s0 >= 0, s1 - 1 >= 0)>
module attributes {note = "a } brace"} {
  air.channel @c [1]
  func.func @f(%arg0: memref<64xbf16>, %arg1: memref<64xbf16>) attributes {llvm.emit_c_interface} {
    air.launch () in () args(%a=%arg0, %b=%arg1) : memref<64xbf16>, memref<64xbf16> attributes {name = "l{"} {
      // moves %a
      air.channel.put @c[] (%a[] [] []) : (memref<64xbf16>)
      air.channel.get @c[] (%b[] [] []) : (memref<64xbf16>)
    }
    return
  }
}
"""
    text = stitch(
        "both",
        {"a": "memref<8x8xbf16>", "b": "memref<64xbf16>"},
        [Slice("one", odd, ("a", "b")), Slice("two", odd, ("b", "a"))],
    )
    assert '"a } brace"' not in text
    assert "#two_half = affine_map<()[s0] -> (s0 floordiv 2)>" in text
    program = parse_program(text, "both.mlir")
    assert sorted(op.sym_name.data for op in program.functions()) == ["both"]


@pytest.mark.parametrize(
    ("arguments", "slices", "said"),
    [
        ({"a": FLAT}, [], "nothing to stitch"),
        ({"a": FLAT, "b": FLAT, "c": FLAT}, [Slice("Add it", ADD, "abc")], "labels"),
        ({"a": FLAT, "b": FLAT, "c": FLAT}, [Slice("x", ADD, "abc"), Slice("x", ADD, "abc")], "labels"),
        ({"a": FLAT, "b": FLAT, "c": FLAT}, [Slice("add", ADD, "ab")], "takes 3 arguments, not 2"),
        ({"a": FLAT, "b": FLAT, "c": FLAT}, [Slice("add", ADD, "abd")], "'d'; the arguments are a, b, c"),
        ({"a": FLAT, "b": FLAT, "c": LINE}, [Slice("add", ADD, "abc")], r"takes c as .*1024.* and it is .*64"),
        ({"a": FLAT, "b": FLAT, "c": "memref<1024xf32>"}, [Slice("add", ADD, "abc")], "takes c as"),
        ({"a": FLAT, "b": FLAT, "c": FLAT, "d": FLAT}, [Slice("add", ADD, "abc")], "no slice takes d"),
        ({"a": FLAT}, [Slice("add", "nothing at all", "a")], "no module"),
        ({"a": FLAT}, [Slice("add", "module {\n  func.func @f() {\n", "a")], "never closed"),
        ({"a": FLAT}, [Slice("add", "module {\n}\n", "a")], "say which function"),
        ({"a": FLAT}, [Slice("add", f"module {{\n  func.func @f(%a: {FLAT}) -> i32 {{\n  }}\n}}", "a")], "results"),
        ({"a": FLAT}, [Slice("add", f"module {{\n  func.func @f(%a: {FLAT}) {{\n  }}\n}}", "a")], "return"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(arguments: dict[str, str], slices: list[Slice], said: str) -> None:
    with pytest.raises(UnusableInput, match=said):
        stitch("whole", arguments, slices)


def test_launches_that_took_each_others_arguments_are_found_without_a_run() -> None:
    types = {"a": FLAT, "b": FLAT, "sum": FLAT, "weight": LINE, "y": ROWS}
    roles = ["input", "input", "scratch", "static", "output"]

    def found(*slices: Slice) -> list[str]:
        return misuses(parse_program(stitch("f", types, slices), "f.mlir"), roles)

    assert not found(Slice("add", ADD, ("a", "b", "sum")), Slice("norm", NORM, ("sum", "weight", "y")))
    assert found(Slice("norm", NORM, ("sum", "weight", "y")), Slice("add", ADD, ("a", "b", "sum"))) == [
        "launch 0 reads argument 2, which no launch has written yet"
    ]
    assert found(Slice("add", ADD, ("a", "sum", "b")), Slice("norm", NORM, ("a", "weight", "y"))) == [
        "launch 0 reads argument 2, which no launch has written yet",
        "launch 0 writes argument 1, which is given",
    ]
