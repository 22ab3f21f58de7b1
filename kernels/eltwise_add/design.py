"""Addition, c = a + b element by element, printed for a herd of columns by rows.

A core owns a stretch of the arrays and works through it, `tile` elements at a time, in vectors of 16. No L2, no object
file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, Text, Value, Window, memref

LANES = 16


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @eltwise_add(a, b, c)."""
    text, flat = Text(), memref([shape["n"]], "bf16")
    with text.function("eltwise_add", [flat, flat, flat]) as (a, b, c):
        eltwise_add(text, shape, settings, a, b, c)
    return str(text)


def eltwise_add(
    text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], a: Value, b: Value, c: Value, suffix: str = ""
) -> None:
    """The launch over n elements, however a, b and c are shaped. `suffix` tells segments and herds apart."""
    width, height, tile = (int(settings[key]) for key in ("columns", "rows", "tile"))
    share, piece = shape["n"] // (width * height), memref([tile], "bf16", L1)
    vector = f"vector<{LANES}xbf16>"
    with text.launch([1, 1], [a, b, c]) as (_, args):
        with text.segment(f"add_segment{suffix}", [text.flat(value) for value in args]) as held:
            with text.herd(f"add_herd{suffix}", (width, height), held) as (x, y, (left, right, target)):
                one, other, total = text.alloc(piece), text.alloc(piece), text.alloc(piece)
                with text.trips(share // tile) as trip:
                    at = text.apply(f"(s0 * {height} + s1) * {share} + s2 * {tile}", [x, y, trip])
                    text.dma(one, Window(left, [at], [tile], [1]))
                    text.dma(other, Window(right, [at], [tile], [1]))
                    with text.loop(0, tile, LANES) as i:
                        pair = text.read(one, i, LANES), text.read(other, i, LANES)
                        text.write(text.op(f"arith.addf {pair[0]}, {pair[1]} : {vector}", vector), total, i)
                    text.dma(Window(target, [at], [tile], [1]), total)
                text.dealloc(one, other, total)
