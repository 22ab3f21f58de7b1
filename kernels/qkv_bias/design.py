"""Bias, y[r] = x[r] + bias over rows, printed for one row of cores.

A core owns seq / herd_x rows that follow one another and holds the bias throughout; a row goes L3 to L1 and back. The
rows of x may be wider than the bias, where a GEMM had to be padded: y is not. No L2, no object file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, Text, Value, Window, memref


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @qkv_bias(x, bias, y)."""
    seq, cols = shape["seq"], shape["cols"]
    text = Text()
    types = [memref([seq, int(settings["in_cols"])], "bf16"), memref([cols], "bf16"), memref([seq, cols], "bf16")]
    with text.function("qkv_bias", types) as (x, bias, y):
        qkv_bias(text, shape, settings, x, bias, y)
    return str(text)


def qkv_bias(
    text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], x: Value, bias: Value, y: Value, suffix: str = ""
) -> None:
    """The launch over seq rows, however x and y are shaped; rows of x have `in_cols` elements, `cols` without that
    setting. `suffix` tells segments and herds apart."""
    rows, length = shape["seq"], shape["cols"]
    width, lanes, pitch = int(settings["herd_x"]), int(settings["vector_size"]), int(settings.get("in_cols", length))
    row, share, vector = memref([length], "bf16", L1), rows // width, f"vector<{lanes}xbf16>"
    with text.launch([1, 1], [x, bias, y]) as (_, (x, bias, y)):
        with text.segment(f"bias_segment{suffix}", [text.flat(x), bias, text.flat(y)]) as held:
            with text.herd(f"bias_herd{suffix}", (width, 1), held) as (tile, _, (source, offsets, target)):
                before, after, offset = text.alloc(row), text.alloc(row), text.alloc(row)
                text.dma(offset, Window(offsets, [0], [length], [1]))
                with text.trips(share) as trip:
                    at = text.apply(f"(s0 * {share} + s1) * {pitch}", [tile, trip])
                    text.dma(before, Window(source, [at], [length], [1]))
                    with text.loop(0, length, lanes) as i:
                        pair = text.read(before, i, lanes), text.read(offset, i, lanes)
                        text.write(text.op(f"arith.addf {pair[0]}, {pair[1]} : {vector}", vector), after, i)
                    to = text.apply(f"(s0 * {share} + s1) * {length}", [tile, trip])
                    text.dma(Window(target, [to], [length], [1]), after)
                text.dealloc(before, after, offset)
