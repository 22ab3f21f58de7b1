"""GEMV, c[M] = A[M, K] @ b[K] in bf16, printed for one row of cores, one column of the array each.

A launch iteration computes herd_m x tile_m rows. Its memtiles hold those rows of A; a core takes m_input whole rows and
all of b at a time, and the object file's kernel writes m_input sums into the core's c at a row offset.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from npu_tools.recipes import L1, L2, Text, Value, Window, memref

SYMBOL = "matvec_vectorized_bf16_bf16"


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @gemv(A, b, c)."""
    m, k = shape["M"], shape["K"]
    text = Text()
    with text.function("gemv", [memref([m, k], "bf16"), memref([k], "bf16"), memref([m], "bf16")]) as (a, b, c):
        gemv(text, shape, settings, a, b, c)
    return str(text)


def gemv(
    text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], a: Value, b: Value, c: Value, suffix: str = ""
) -> None:
    """The launch. `suffix` names another build of the object file, where one ELF links several tile sizes."""
    m, k = shape["M"], shape["K"]
    width, tile_m, rows = (int(settings[name]) for name in ("herd_m", "tile_m", "m_input"))
    panel = width * tile_m
    a_l1, b_l1, c_l1 = memref([rows, k], "bf16", L1), memref([k], "bf16", L1), memref([tile_m], "bf16", L1)
    symbol, linked = f"{SYMBOL}{suffix}", f"mv{suffix}.o"
    text.external(symbol, ["i32", "i32", "i32", a_l1, b_l1, c_l1], linked)
    with text.launch([m // panel, 1], [a, b, c]) as ((step, _), args):
        with text.segment("gemv_segment", [step, *args]) as (step, a, b, c):
            a_l2, c_l2 = text.alloc(memref([panel, k], "bf16", L2)), text.alloc(memref([panel], "bf16", L2))
            first = text.apply(f"s0 * {panel}", [step])
            text.dma(a_l2, Window(a, [first, 0], [panel, k], [k, 1]))
            with text.herd("gemv_herd", (width, 1), [b, a_l2, c_l2], link_with=linked) as (x, _, (vector, panels, out)):
                part, whole, sums = text.alloc(a_l1), text.alloc(b_l1), text.alloc(c_l1)
                with _rounds(text, tile_m // rows) as trip:
                    text.dma(whole, Window(vector, [0], [k], [1]))
                    row = text.apply(f"s0 * {tile_m} + s1 * {rows}", [x, trip])
                    text.dma(part, Window(panels, [row, 0], [rows, k], [k, 1]))
                    offset = text.apply(f"s0 * {rows}", [trip])
                    start = text.op(f"arith.index_cast {offset} : index to i32", "i32", "start")
                    counts = [text.constant(rows, "i32"), text.constant(k, "i32")]
                    text.call(symbol, [*counts, start, part, whole, sums])
                text.dma(Window(out, [text.apply(f"s0 * {tile_m}", [x])], [tile_m], [1]), sums)
                text.dealloc(part, whole, sums)
            text.dma(Window(c, [first], [panel], [1]), c_l2)
            text.dealloc(a_l2, c_l2)


@contextmanager
def _rounds(text: Text, count: int) -> Generator[Value, None, None]:
    """A loop, or its body alone where it runs once: the compiler doubles what a loop fills."""
    if count == 1:
        yield text.constant(0)
        return
    with text.loop(0, count) as trip:
        yield trip
