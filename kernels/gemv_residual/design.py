"""GEMV with a residual, d[M] = A[M, K] @ b[K] + r[M] in bf16, printed for two cores a column joined by the cascade.

The upper core sums A @ b over K, k_tile at a time, and passes the sums down the cascade; the lower one adds its part of r
and sends the rows out. Each column has a stretch of rows of its own and streams them through its own memtile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, L2, Text, Value, Window, memref

CASCADE = 32
"""bf16 values of one cascade word (512 bits): the sums travel in a buffer this wide, whatever tile_m is."""
OBJECT = "mv_bf16"
UPPER, LOWER = "3 : i64", "2 : i64"
"""Rows of the array, from the bottom: the cascade runs from north to south."""


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @gemv_residual(A, b, r, d)."""
    m, k = shape["M"], shape["K"]
    text = Text()
    matrix, vector, rows = memref([m, k], "bf16"), memref([k], "bf16"), memref([m], "bf16")
    with text.function("gemv_residual", [matrix, vector, rows, rows]) as (a, b, r, d):
        gemv_residual(text, shape, settings, a, b, r, d)
    return str(text)


def gemv_residual(
    text: Text,
    shape: Mapping[str, int],
    settings: Mapping[str, Any],
    a: Value,
    b: Value,
    r: Value,
    d: Value,
    suffix: str = "",
) -> None:
    """The launch. `suffix` keeps its channels and its object file apart from those of another launch."""
    _Residual(text, shape, settings, suffix).launch(a, b, r, d)


class _Residual:
    """One launch being printed."""

    def __init__(self, text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], suffix: str) -> None:
        self.text, self.suffix = text, suffix
        self.m, self.k = shape["M"], shape["K"]
        self.width, self.tile_m, self.k_tile = (int(settings[name]) for name in ("herd_m", "tile_m", "k_tile"))
        self.share = self.m // self.width
        self.rounds, self.trips = self.share // self.tile_m, self.k // self.k_tile
        self.a_l1 = memref([self.tile_m * self.k_tile], "bf16", L1)
        self.b_l1 = memref([self.k_tile], "bf16", L1)
        self.c_l1 = memref([self.tile_m], "bf16", L1)
        self.d_l1 = memref([self.tile_m], "bf16", L1, strides=[1])
        self.word = memref([CASCADE], "bf16", L1)
        self.object = f"{OBJECT}{suffix}.o"

    def launch(self, a: Value, b: Value, r: Value, d: Value) -> None:
        text = self.text
        self._declare()
        with text.launch([1, 1], [a, b, r, d]) as (_, (a, b, r, d)):
            for column in range(self.width):
                text.put(
                    self._name("rows"),
                    [column],
                    Window(a, [column * self.share, 0], [self.share, self.k], [self.k, 1]),
                )
            again = Window(b, [0, 0, 0], [self.rounds, self.trips, self.k_tile], [0, self.k_tile, 1])
            text.put(self._name("vector"), [0, 0], again)
            text.put(self._name("residual"), [0, 0], Window(r, [0], [self.m], [1]))
            with text.segment(f"gemv_residual{self.suffix}_segment", []):
                self._relay()
                self._sum()
                self._add()
            for column in range(self.width):
                text.get(self._name("out"), [column], Window(d, [column * self.share], [self.share], [1]))

    def _name(self, channel: str) -> str:
        return f"gemv_residual_{channel}{self.suffix}"

    def _symbol(self, stem: str) -> str:
        return f"{stem}{self.suffix}"

    def _declare(self) -> None:
        text, columns = self.text, [self.width]
        text.channel(self._name("rows"), columns)
        text.channel(self._name("tiles"), columns)
        for shared in ("vector", "residual"):
            text.channel(self._name(shared), [1, 1], broadcast=[self.width, 1])
        text.channel(self._name("sums"), columns, kind="npu_cascade")
        text.channel(self._name("out"), columns)
        full = memref([self.m], "bf16", L1)
        text.external(self._symbol("zero_vectorized_bf16"), [self.c_l1], self.object)
        text.external(self._symbol("matvec_vectorized_bf16"), [self.a_l1, self.b_l1, self.c_l1], self.object)
        text.external(self._symbol("partial_plus_r_bf16"), [self.c_l1, full, "i32", self.d_l1], self.object)

    def _relay(self) -> None:
        """Each column's memtile takes whole rows of A and passes them on in steps of k_tile."""
        text = self.text
        with text.loop(0, self.rounds):
            buffers = [text.alloc(memref([self.tile_m, self.k], "bf16", L2)) for _ in range(self.width)]
            for column, rows in enumerate(buffers):
                text.get(self._name("rows"), [column], rows)
            for column, rows in enumerate(buffers):
                steps = Window(rows, [0, 0, 0], [self.trips, self.tile_m, self.k_tile], [self.k_tile, self.k, 1])
                text.put(self._name("tiles"), [column], steps)
            text.dealloc(*buffers)

    def _sum(self) -> None:
        """The upper cores."""
        text = self.text
        place = {"x_loc": "0 : i64", "y_loc": UPPER}
        herd = text.herd(
            f"gemv_residual{self.suffix}_sum", (self.width, 1), [], link_with=self.object, attributes=place
        )
        with herd as (x, y, _), text.loop(0, self.rounds):
            word = text.alloc(self.word, "{air.shrinkage = false}")
            sums = text.subview(word, [0], [self.tile_m], self.c_l1)
            text.call(self._symbol("zero_vectorized_bf16"), [sums])
            with text.loop(0, self.trips):
                vector, tile = text.alloc(self.b_l1), text.alloc(self.a_l1)
                text.get(self._name("vector"), [x, y], vector)
                text.get(self._name("tiles"), [x], tile)
                text.call(self._symbol("matvec_vectorized_bf16"), [tile, vector, sums])
                text.dealloc(tile, vector)
            text.put(self._name("sums"), [x], word)
            text.dealloc(word)

    def _add(self) -> None:
        """The lower cores: each holds all of r, adds at its own rows and sends them when it has them all."""
        text = self.text
        place = {"x_loc": "0 : i64", "y_loc": LOWER}
        herd = text.herd(
            f"gemv_residual{self.suffix}_add", (self.width, 1), [], link_with=self.object, attributes=place
        )
        with herd as (x, y, _):
            residual = text.alloc(memref([self.m], "bf16", L1))
            rows = text.alloc(memref([self.share], "bf16", L1), "{air.shrinkage = false}")
            text.get(self._name("residual"), [x, y], residual)
            with text.loop(0, self.rounds) as step:
                word = text.alloc(self.word, "{air.shrinkage = false}")
                text.get(self._name("sums"), [x], word)
                sums = text.subview(word, [0], [self.tile_m], self.c_l1)
                row = text.apply(f"s0 * {self.tile_m}", [step])
                part = text.subview(rows, [row], [self.tile_m], self.d_l1)
                first = text.apply(f"s0 * {self.share} + s1", [x, row])
                start = text.op(f"arith.index_cast {first} : index to i32", "i32", "start")
                text.call(self._symbol("partial_plus_r_bf16"), [sums, residual, start, part])
                text.dealloc(word)
            text.put(self._name("out"), [x], rows)
            text.dealloc(residual, rows)
