"""RMSNorm, y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight over rows, printed for one row of cores.

A core owns M / herd_x rows that follow one another and holds the weight throughout; a row comes from L3, its squares are
summed in f32, sixteen lanes at a time, and it goes back scaled. No L2, no object file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, Text, Value, Window, memref


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @rmsnorm(x, weight, y)."""
    m, n = shape["M"], shape["N"]
    text, rows = Text(), memref([m, n], "bf16")
    with text.function("rmsnorm", [rows, memref([n], "bf16"), rows]) as (x, weight, y):
        rmsnorm(text, shape, settings, x, weight, y)
    return str(text)


def rmsnorm(
    text: Text,
    shape: Mapping[str, int],
    settings: Mapping[str, Any],
    x: Value,
    weight: Value,
    y: Value,
    suffix: str = "",
) -> None:
    """The launch over M rows of N elements, however x and y are shaped. `suffix` tells segments and herds apart."""
    rows, length = shape["M"], shape["N"]
    width, lanes = int(settings["herd_x"]), int(settings["vector_size"])
    row, share = memref([length], "bf16", L1), rows // width
    with text.launch([1, 1], [x, weight, y]) as (_, (x, weight, y)):
        flat = [text.flat(x), weight, text.flat(y)]
        with text.segment(f"rmsnorm_segment{suffix}", flat) as held:
            with text.herd(f"rmsnorm_herd{suffix}", (width, 1), held) as (tile, _, (source, scales, target)):
                before, after, scale = text.alloc(row), text.alloc(row), text.alloc(row)
                sums, squares = text.alloc(memref([lanes], "f32", L1)), text.alloc(memref([lanes], "bf16", L1))
                text.dma(scale, Window(scales, [0], [length], [1]))
                with text.trips(share) as trip:
                    at = text.apply(f"(s0 * {share} + s1) * {length}", [tile, trip])
                    text.dma(before, Window(source, [at], [length], [1]))
                    factor = inverse(text, before, sums, squares, length, lanes, float(settings["eps"]))
                    with text.loop(0, length, lanes) as i:
                        scaled = times(text, text.read(before, i, lanes), factor)
                        text.write(times(text, scaled, text.read(scale, i, lanes)), after, i)
                    text.dma(Window(target, [at], [length], [1]), after)
                text.dealloc(before, after, scale, sums, squares)


def inverse(text: Text, row: Value, sums: Value, squares: Value, length: int, lanes: int, eps: float) -> Value:
    """1 / sqrt(mean of squares + eps) in all lanes, bf16.

    A square goes through a buffer of its own: `aievec` refuses an addition whose operand is a product.
    """
    wide, first = f"vector<{lanes}xf32>", text.constant(0)
    nothing = text.op(f"vector.broadcast {text.constant(0.0, 'f32')} : f32 to {wide}", wide)
    text.write(nothing, sums, first)
    with text.loop(0, length, lanes) as i:
        values = text.read(row, i, lanes)
        text.write(times(text, values, values), squares, first)
        square = text.op(f"arith.extf {text.read(squares, first, lanes)} : {values.type} to {wide}", wide)
        text.write(text.op(f"arith.addf {text.read(sums, first, lanes)}, {square} : {wide}", wide), sums, first)
    total = text.op(f"vector.reduction <add>, {text.read(sums, first, lanes)} : {wide} into f32", "f32")
    mean = text.op(f"arith.divf {total}, {text.constant(float(length), 'f32')} : f32", "f32")
    safe = text.op(f"arith.addf {mean}, {text.constant(eps, 'f32')} : f32", "f32")
    root = text.op(f"math.rsqrt {safe} : f32", "f32")
    narrow = text.op(f"arith.truncf {root} : f32 to bf16", "bf16")
    return text.op(f"vector.broadcast {narrow} : bf16 to vector<{lanes}xbf16>", f"vector<{lanes}xbf16>")


def times(text: Text, left: Value, right: Value) -> Value:
    return text.op(f"arith.mulf {left}, {right} : {left.type}", left.type)
