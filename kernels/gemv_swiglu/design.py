"""RMSNorm, gate and up projections and SwiGLU of one token, printed for columns of cores joined by the cascade.

d[M/2] = silu(gate) * up with [gate, up] = A @ (x / rms(x) * weight): A's rows come in tiles, the first half of a tile's rows
gate, the other half the up rows of the same outputs. Each core norms all of x once and keeps its part; a column streams its
rows of A through its memtile, each core taking its part of K. Sums go down the cascade, every core adding its own; row 0
has gate and up side by side, and sends the products out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, L2, Text, Value, Window, memref, sibling

LANES = 16
OBJECT = "mv_bf16"

_rms = sibling(__file__, "rmsnorm")


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @gemv_swiglu(A, x, weight, d)."""
    m, k = shape["M"], shape["K"]
    text, vector = Text(), memref([k], "bf16")
    with text.function("gemv_swiglu", [memref([m, k], "bf16"), vector, vector, memref([m // 2], "bf16")]) as (
        a,
        x,
        weight,
        d,
    ):
        gemv_swiglu(text, shape, settings, a, x, weight, d)
    return str(text)


def gemv_swiglu(
    text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], a: Value, x: Value, weight: Value, d: Value
) -> None:
    """The launch."""
    _Swiglu(text, shape, settings).launch(a, x, weight, d)


class _Swiglu:
    """One launch being printed."""

    def __init__(self, text: Text, shape: Mapping[str, int], settings: Mapping[str, Any]) -> None:
        self.text = text
        self.m, self.k, self.eps = shape["M"], shape["K"], float(settings["eps"])
        self.width, self.rows, self.tile_m = (int(settings[name]) for name in ("herd_m", "n_cascade", "tile_m"))
        self.share = self.m // self.width
        self.rounds, self.part = self.share // self.tile_m, self.k // self.rows
        self.vector = memref([self.k], "bf16", L1)
        self.a_l1 = memref([self.tile_m * self.part], "bf16", L1)
        self.part_l1 = memref([self.part], "bf16", L1, strides=[1])
        self.sums = memref([self.tile_m], "bf16", L1)
        self.object = f"{OBJECT}.o"

    def launch(self, a: Value, x: Value, weight: Value, d: Value) -> None:
        text = self.text
        self._declare()
        with text.launch([1, 1], [a, x, weight, d]) as (_, (a, x, weight, d)):
            for column in range(self.width):
                rows = Window(a, [column * self.share, 0], [self.share, self.k], [self.k, 1])
                text.put("swiglu_rows", [column], rows)
            for vector in (x, weight):
                text.put("swiglu_vector", [0, 0], Window(vector, [0], [self.k], [1]))
            with text.segment("swiglu_segment", []):
                self._relay()
                with text.herd("swiglu_herd", (self.width, self.rows), [], link_with=self.object) as (column, row, _):
                    self._core(column, row)
            half = self.share // 2
            for column in range(self.width):
                text.get("swiglu_out", [column], Window(d, [column * half], [half], [1]))

    def _declare(self) -> None:
        text = self.text
        text.channel("swiglu_rows", [self.width])
        text.channel("swiglu_tiles", [self.width, self.rows])
        text.channel("swiglu_vector", [1, 1], broadcast=[self.width, self.rows])
        text.channel("swiglu_sums", [self.width, self.rows - 1], kind="npu_cascade")
        text.channel("swiglu_out", [self.width])
        text.external("zero_vectorized_bf16", [self.sums], self.object)
        text.external("matvec_vectorized_bf16", [self.a_l1, self.part_l1, self.sums], self.object)

    def _relay(self) -> None:
        """Each column's memtile takes whole rows of A and gives each core its part of K."""
        text = self.text
        with text.loop(0, self.rounds):
            buffers = [text.alloc(memref([self.tile_m, self.k], "bf16", L2)) for _ in range(self.width)]
            for column, rows in enumerate(buffers):
                text.get("swiglu_rows", [column], rows)
            for column, rows in enumerate(buffers):
                for row in range(self.rows):
                    part = Window(rows, [0, row * self.part], [self.tile_m, self.part], [self.k, 1])
                    text.put("swiglu_tiles", [column, row], part)
            text.dealloc(*buffers)

    def _core(self, column: Value, row: Value) -> None:
        text, last = self.text, self.rows - 1
        normed = self._norm(column, row)
        own = text.subview(normed, [text.apply(f"s0 * {self.part}", [row])], [self.part], self.part_l1)
        out = text.alloc(memref([self.share // 2], "bf16", L1))
        below = text.op(f"arith.subi {row}, {text.constant(1)} : index", "index", "below")
        with text.loop(0, self.rounds) as step:
            tile, sums = text.alloc(self.a_l1), text.alloc(self.sums)
            text.get("swiglu_tiles", [column, row], tile)
            with text.where(f"s0 >= 0, s1 - {last} == 0", [column, row]):
                text.call("zero_vectorized_bf16", [sums])
            with text.where(f"s0 >= 0, -s1 + {last - 1} >= 0", [column, row]):
                text.get("swiglu_sums", [column, row], sums)
            text.call("matvec_vectorized_bf16", [tile, own, sums])
            with text.where("s0 >= 0, s1 - 1 >= 0", [column, row]):
                text.put("swiglu_sums", [column, below], sums)
            with text.where("s0 >= 0, s1 == 0", [column, row]):
                self._activate(sums, out, text.apply(f"s0 * {self.tile_m // 2}", [step]))
            text.dealloc(tile, sums)
        with text.where("s0 >= 0, s1 == 0", [column, row]):
            text.put("swiglu_out", [column], out)
        text.dealloc(normed, out)

    def _norm(self, column: Value, row: Value) -> Value:
        """x over its root mean square, times the weight: all of it on every core."""
        text = self.text
        x, weight, normed = (text.alloc(self.vector) for _ in range(3))
        squares, sums = text.alloc(memref([LANES], "bf16", L1)), text.alloc(memref([LANES], "f32", L1))
        for vector in (x, weight):
            text.get("swiglu_vector", [column, row], vector)
        factor = _rms.inverse(text, x, sums, squares, self.k, LANES, self.eps)
        with text.loop(0, self.k, LANES) as i:
            scaled = _rms.times(text, text.read(x, i, LANES), factor)
            text.write(_rms.times(text, scaled, text.read(weight, i, LANES)), normed, i)
        text.dealloc(x, weight, squares, sums)
        return normed

    def _activate(self, sums: Value, out: Value, first: Value) -> None:
        """gate * (tanh(gate / 2) + 1) / 2 * up, sixteen lanes at a time."""
        text, half, kind = self.text, self.tile_m // 2, f"vector<{LANES}xbf16>"
        scalars = [text.constant(value, "bf16") for value in (0.5, 1.0)]
        halves, ones = (text.op(f"vector.broadcast {one} : bf16 to {kind}", kind) for one in scalars)
        with text.loop(0, half, LANES) as i:
            gate = text.read(sums, i, LANES)
            up = text.read(sums, text.apply(f"s0 + {half}", [i]), LANES)
            bent = text.op(f"math.tanh {_rms.times(text, gate, halves)} : {kind}", kind)
            raised = text.op(f"arith.addf {bent}, {ones} : {kind}", kind)
            share = _rms.times(text, gate, _rms.times(text, raised, halves))
            text.write(_rms.times(text, share, up), out, text.apply("s0 + s1", [first, i]))
