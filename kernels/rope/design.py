"""RoPE half-split, y[r] = x[r] rotated by the angles of row r, printed for a herd of columns by rows.

A core takes a row and its row of the table at a time, [cos half, sin half], and calls `rope` of `rope.o`: element i
turns with element i + head_dim / 2. No L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, Text, Value, Window, memref

SYMBOL, OBJECT = "rope", "rope.o"


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @rope_halfsplit(x, table, y)."""
    text, flat = Text(), memref([shape["rows"] * shape["head_dim"]], "bf16")
    with text.function("rope_halfsplit", [flat, flat, flat]) as (x, table, y):
        rope(text, shape, settings, x, table, y)
    return str(text)


def rope(
    text: Text,
    shape: Mapping[str, int],
    settings: Mapping[str, Any],
    x: Value,
    table: Value,
    y: Value,
    suffix: str = "",
) -> None:
    """The launch, however x, table and y are shaped: [seq, heads * head_dim] is seq * heads rows. The object takes
    head_dim as an argument, so one serves all launches of an ELF. `suffix` tells segments and herds apart."""
    rows, head_dim = shape["rows"], shape["head_dim"]
    width, height = int(settings["herd_x"]), int(settings["herd_y"])
    row, tiles = memref([head_dim], "bf16", L1), width * height
    text.external(SYMBOL, [row, row, row, "i32"], OBJECT)
    with text.launch([1, 1], [x, table, y]) as (_, args):
        with text.segment(f"rope_segment{suffix}", [text.flat(value) for value in args]) as held:
            with text.herd(f"rope_herd{suffix}", (width, height), held, link_with=OBJECT) as (
                i,
                j,
                (source, angles, target),
            ):
                before, turns, after = text.alloc(row), text.alloc(row), text.alloc(row)
                count = text.constant(head_dim, "i32")
                with text.trips(rows // tiles) as trip:
                    # Neighbouring cores take neighbouring rows, as upstream's builder has it.
                    at = text.apply(f"(s0 * {tiles} + s1 * {height} + s2) * {head_dim}", [trip, i, j])
                    text.dma(before, Window(source, [at], [head_dim], [1]))
                    text.dma(turns, Window(angles, [at], [head_dim], [1]))
                    text.call(SYMBOL, [before, turns, after, count])
                    text.dma(Window(target, [at], [head_dim], [1]), after)
                text.dealloc(before, turns, after)
