"""SiLU times up, y = gate * sigmoid(gate) * up element by element, printed for a herd of columns by rows.

Neighbouring cores take neighbouring pieces of `tile` elements and call `silu_and_mul_bf16` of `silu_and_mul.o`. No L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, Text, Value, Window, memref

SYMBOL = "silu_and_mul_bf16"


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @silu_mul(gate, up, y)."""
    text, flat = Text(), memref([shape["n"]], "bf16")
    with text.function("silu_mul", [flat, flat, flat]) as (gate, up, y):
        silu_mul(text, shape, settings, gate, up, y)
    return str(text)


def silu_mul(
    text: Text,
    shape: Mapping[str, int],
    settings: Mapping[str, Any],
    gate: Value,
    up: Value,
    y: Value,
    suffix: str = "",
) -> None:
    """The launch over n elements, however gate, up and y are shaped. The object takes the count as an argument, so one
    serves all launches of an ELF whose tiles are alike; `suffix` names another build otherwise."""
    width, height, tile = (int(settings[key]) for key in ("columns", "rows", "tile"))
    piece, tiles = memref([tile], "bf16", L1), width * height
    symbol, linked = f"{SYMBOL}{suffix}", f"silu_and_mul{suffix}.o"
    text.external(symbol, [piece, piece, piece, "i32"], linked)
    with text.launch([1, 1], [gate, up, y]) as (_, args):
        with text.segment(f"silu_mul_segment{suffix}", [text.flat(value) for value in args]) as held:
            with text.herd(f"silu_mul_herd{suffix}", (width, height), held, link_with=linked) as (
                i,
                j,
                (gates, ups, target),
            ):
                one, other, after = text.alloc(piece), text.alloc(piece), text.alloc(piece)
                count = text.constant(tile, "i32")
                with text.trips(shape["n"] // (tile * tiles)) as trip:
                    at = text.apply(f"(s0 * {tiles} + s1 * {height} + s2) * {tile}", [trip, i, j])
                    text.dma(one, Window(gates, [at], [tile], [1]))
                    text.dma(other, Window(ups, [at], [tile], [1]))
                    text.call(symbol, [one, other, after, count])
                    text.dma(Window(target, [at], [tile], [1]), after)
                text.dealloc(one, other, after)
