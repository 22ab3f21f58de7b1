"""GELU in its tanh form, y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), printed for a herd of columns by rows.

Neighbouring cores take neighbouring pieces of `tile` elements, in vectors of 16; `math.tanh` is the core's own. No L2, no
object file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, Text, Value, Window, memref

LANES = 16
VECTOR = f"vector<{LANES}xbf16>"
ROOT, CUBE = 0.7978845608028654, 0.044715


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @gelu(x, y)."""
    text, flat = Text(), memref([shape["n"]], "bf16")
    with text.function("gelu", [flat, flat]) as (x, y):
        gelu(text, shape, settings, x, y)
    return str(text)


def gelu(
    text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], x: Value, y: Value, suffix: str = ""
) -> None:
    """The launch over n elements, however x and y are shaped. `suffix` tells segments and herds apart."""
    width, height, tile = (int(settings[key]) for key in ("columns", "rows", "tile"))
    piece, tiles = memref([tile], "bf16", L1), width * height
    with text.launch([1, 1], [x, y]) as (_, args):
        with text.segment(f"gelu_segment{suffix}", [text.flat(value) for value in args]) as held:
            with text.herd(f"gelu_herd{suffix}", (width, height), held) as (i, j, (source, target)):
                before, after = text.alloc(piece), text.alloc(piece)
                root, cube, half, one = (_everywhere(text, value) for value in (ROOT, CUBE, 0.5, 1.0))
                with text.trips(shape["n"] // (tile * tiles)) as trip:
                    at = text.apply(f"(s0 * {tiles} + s1 * {height} + s2) * {tile}", [trip, i, j])
                    text.dma(before, Window(source, [at], [tile], [1]))
                    with text.loop(0, tile, LANES) as k:
                        value = text.read(before, k, LANES)
                        cubed = _op(text, "mulf", _op(text, "mulf", value, value), value)
                        inner = _op(text, "mulf", root, _op(text, "addf", value, _op(text, "mulf", cube, cubed)))
                        grown = _op(text, "addf", text.op(f"math.tanh {inner} : {VECTOR}", VECTOR), one)
                        text.write(_op(text, "mulf", _op(text, "mulf", half, value), grown), after, k)
                    text.dma(Window(target, [at], [tile], [1]), after)
                text.dealloc(before, after)


def _everywhere(text: Text, value: float) -> Value:
    return text.op(f"vector.broadcast {text.constant(value, 'bf16')} : bf16 to {VECTOR}", VECTOR)


def _op(text: Text, name: str, left: Value, right: Value) -> Value:
    return text.op(f"arith.{name} {left}, {right} : {VECTOR}", VECTOR)
