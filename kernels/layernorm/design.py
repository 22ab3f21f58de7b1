"""LayerNorm, y[r] = (x[r] - mean) / sqrt(var + eps) * weight + bias over rows, printed for one row of cores.

A core owns M / herd_x rows that follow one another and holds weight and bias, which come in one buffer, throughout. Both
sums are f32, sixteen lanes at a time; everything else is bf16. No L2, no object file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, Text, Value, Window, memref


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @layernorm(x, weight and bias, y)."""
    m, n = shape["M"], shape["N"]
    text, rows = Text(), memref([m, n], "bf16")
    with text.function("layernorm", [rows, memref([2 * n], "bf16"), rows]) as (x, affine, y):
        layernorm(text, shape, settings, x, affine, y)
    return str(text)


def layernorm(
    text: Text,
    shape: Mapping[str, int],
    settings: Mapping[str, Any],
    x: Value,
    affine: Value,
    y: Value,
    suffix: str = "",
) -> None:
    """The launch over M rows of N elements, however x and y are shaped. `suffix` tells segments and herds apart."""
    rows, length = shape["M"], shape["N"]
    width, lanes = int(settings["herd_x"]), int(settings["vector_size"])
    row, share = memref([length], "bf16", L1), rows // width
    with text.launch([1, 1], [x, affine, y]) as (_, (x, affine, y)):
        with text.segment(f"layernorm_segment{suffix}", [text.flat(x), affine, text.flat(y)]) as held:
            with text.herd(f"layernorm_herd{suffix}", (width, 1), held) as (tile, _, (source, given, target)):
                norm = _Norm(text, length, lanes, float(settings["eps"]))
                before, after, both = text.alloc(row), text.alloc(row), text.alloc(memref([2 * length], "bf16", L1))
                text.dma(both, Window(given, [0], [2 * length], [1]))
                with text.trips(share) as trip:
                    at = text.apply(f"(s0 * {share} + s1) * {length}", [tile, trip])
                    text.dma(before, Window(source, [at], [length], [1]))
                    norm.row(before, both, after)
                    text.dma(Window(target, [at], [length], [1]), after)
                text.dealloc(before, after, both, norm.sums, norm.scratch)


class _Norm:
    """The arithmetic of one row. Products go through a buffer before they are added: `aievec` refuses them otherwise."""

    def __init__(self, text: Text, length: int, lanes: int, eps: float) -> None:
        self.text, self.length, self.lanes, self.eps = text, length, lanes, eps
        self.narrow, self.wide = f"vector<{lanes}xbf16>", f"vector<{lanes}xf32>"
        self.sums, self.scratch = text.alloc(memref([lanes], "f32", L1)), text.alloc(memref([lanes], "bf16", L1))

    def row(self, before: Value, both: Value, after: Value) -> None:
        text, lanes, first = self.text, self.lanes, self.text.constant(0)
        mean = self._everywhere(self._mean(before, None))
        spread = text.op(f"arith.addf {self._mean(before, mean)}, {text.constant(self.eps, 'f32')} : f32", "f32")
        factor = self._everywhere(text.op(f"math.rsqrt {spread} : f32", "f32"))
        with text.loop(0, self.length, lanes) as i:
            scaled = self._op("mulf", self._op("subf", text.read(before, i, lanes), mean), factor)
            text.write(self._op("mulf", scaled, text.read(both, i, lanes)), self.scratch, first)
            bias = text.read(both, text.apply(f"s0 + {self.length}", [i]), lanes)
            text.write(self._op("addf", text.read(self.scratch, first, lanes), bias), after, i)

    def _mean(self, row: Value, centre: Value | None) -> Value:
        """The f32 mean of a row, or of its squared distances from `centre`."""
        text, lanes, first = self.text, self.lanes, self.text.constant(0)
        nothing = text.op(f"vector.broadcast {text.constant(0.0, 'f32')} : f32 to {self.wide}", self.wide)
        text.write(nothing, self.sums, first)
        with text.loop(0, self.length, lanes) as i:
            values = text.read(row, i, lanes)
            if centre is not None:
                values = self._op("subf", values, centre)
                text.write(self._op("mulf", values, values), self.scratch, first)
                values = text.read(self.scratch, first, lanes)
            wide = text.op(f"arith.extf {values} : {self.narrow} to {self.wide}", self.wide)
            sums = text.read(self.sums, first, lanes)
            text.write(text.op(f"arith.addf {sums}, {wide} : {self.wide}", self.wide), self.sums, first)
        total = text.op(f"vector.reduction <add>, {text.read(self.sums, first, lanes)} : {self.wide} into f32", "f32")
        return text.op(f"arith.divf {total}, {text.constant(float(self.length), 'f32')} : f32", "f32")

    def _everywhere(self, scalar: Value) -> Value:
        """An f32 scalar in all lanes, bf16."""
        half = self.text.op(f"arith.truncf {scalar} : f32 to bf16", "bf16")
        return self.text.op(f"vector.broadcast {half} : bf16 to {self.narrow}", self.narrow)

    def _op(self, name: str, left: Value, right: Value) -> Value:
        return self.text.op(f"arith.{name} {left}, {right} : {self.narrow}", self.narrow)
