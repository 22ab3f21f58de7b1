"""Every external function that upstream's programs declare has a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest
from xdsl.dialects.builtin import StringAttr
from xdsl.dialects.func import CallOp

from npu_tools.air import parse_program
from npu_tools.emulator.kernels import Surroundings, lookup, surroundings_of

ROPE = """
module {
  func.func private @rope(memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, i32)
  func.func @NAME(%x: memref<64xbf16, 2 : i32>, %lut: memref<64xbf16, 2 : i32>, %out: memref<64xbf16, 2 : i32>) {
    %n = arith.constant 64 : i32
    func.call @rope(%x, %lut, %out, %n)
      : (memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, memref<64xbf16, 2 : i32>, i32) -> ()
    return
  }
}
"""


def calls(text: str) -> list[CallOp]:
    return [op for op in parse_program(text, name="x.mlir").module.walk() if isinstance(op, CallOp)]


@pytest.mark.parametrize(("function", "source"), [("rope_lut", "rope_lut/rope.cc"), ("layer", "rope_halfsplit")])
def test_the_enclosing_function_decides_which_rope_is_meant(function, source) -> None:
    (call,) = calls(ROPE.replace("NAME", function))
    around = surroundings_of(call)
    assert around.function == function
    assert set(around.declared) == {"rope"}
    kernel = lookup("rope", [value.type for value in call.arguments], "rope.o", around)
    assert kernel is not None
    assert source in kernel.source


def test_options_win_over_what_the_program_tells() -> None:
    (call,) = calls(ROPE.replace("NAME", "rope_lut"))
    around = surroundings_of(call, {"rope": "halfsplit"})
    kernel = lookup("rope", [value.type for value in call.arguments], "rope.o", around)
    assert kernel is not None
    assert "rope_halfsplit" in kernel.source


def test_all_external_functions_of_upstream_s_programs_have_a_kernel(air_ir: Path) -> None:
    symbols: set[str] = set()
    for path in sorted(air_ir.glob("*.mlir")):
        text = path.read_text(encoding="utf-8")
        if "func.func private" not in text:
            continue
        program = parse_program(text, name=path.name)
        calls = {op.callee.string_value(): op for op in program.module.walk() if isinstance(op, CallOp)}
        for symbol, declaration in program.declarations().items():
            link = declaration.attributes.get("link_with")
            types = list(declaration.function_type.inputs)
            around = surroundings_of(calls.get(symbol, declaration))
            kernel = lookup(symbol, types, link.data if isinstance(link, StringAttr) else None, around)
            assert kernel is not None, f"{path.name}: {symbol}"
            symbols.add(symbol)
    assert len(symbols) == 68


def test_surroundings_are_empty_where_nothing_is_known() -> None:
    assert Surroundings().options == {}
