"""GEMM, C[M, N] = A[M, K] @ B[K, N] with bf16 inputs, printed for a herd of columns by rows.

A launch iteration computes herd_m x herd_n tiles of C. Its memtiles hold an A panel a column and a B panel a row of the
herd, both tile_k_l2 deep; a core takes tile_k_l1 of them at a time in blocks of 8 x 8 and accumulates in L1. How the
accumulator leaves the core is the method: external (f32 as it is), drain (cast on the way), fused-cast (f32 to L3, a
second launch casts), direct (a bf16 accumulator and no object file).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import L1, L2, Text, Value, Window, memref

BLOCK = 8
"""Rows, depth and columns of one matrix-unit step on AIE2P."""
CAST_TILES, CAST_VECTOR = 8, 16
CAST_CHUNK = {"kernel": 4096, "vector": 2048}
"""Elements a core of the cast launch takes at a time; doubled, 4096 are 48 KiB of L1 in both types."""


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @gemm(A, B, [f32 scratch,] C)."""
    m, k, n = shape["M"], shape["K"], shape["N"]
    text = Text()
    a, b = memref([m, k], "bf16"), memref([k, n], "bf16")
    out = memref([m, n], str(settings["output"]))
    if settings["method"] == "fused-cast":
        with text.function("gemm", [a, b, memref([m, n], "f32"), out]) as (left, right, scratch, target):
            gemm(text, shape, settings, left, right, scratch)
            cast(text, m * n, scratch, target, str(settings["cast"]))
    else:
        with text.function("gemm", [a, b, out]) as (left, right, target):
            gemm(text, shape, settings, left, right, target)
    return str(text)


def gemm(
    text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], a: Value, b: Value, c: Value, suffix: str = ""
) -> None:
    """The launch. `suffix` names another build of the object file, where one ELF links several tile shapes."""
    _Gemm(text, shape, settings, suffix).launch(a, b, c)


class _Gemm:
    """One GEMM being printed: the sizes every step needs."""

    def __init__(self, text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], suffix: str) -> None:
        self.text = text
        self.m, self.k, self.n = shape["M"], shape["K"], shape["N"]
        self.tile_m, self.tile_n = int(settings["tile_m"]), int(settings["tile_n"])
        self.outer, self.inner = int(settings["tile_k_l2"]), int(settings["tile_k_l1"])
        self.herd = int(settings["herd_m"]), int(settings["herd_n"])
        self.method = str(settings["method"])
        self.chunks = int(settings["drain_chunks"]) if self.method == "drain" else 1
        self.object = None if self.method == "direct" else f"mm{suffix}.o"
        self.suffix = suffix
        self.element = "bf16" if self.method == "direct" and settings["output"] == "bf16" else "f32"
        self.drained = "bf16" if self.method == "drain" else self.element
        rows, columns, depth = self.tile_m // BLOCK, self.tile_n // BLOCK, self.inner // BLOCK
        tile = self.tile_m * self.tile_n
        self.steps = [tile * self.herd[1], tile, self.tile_m * BLOCK, BLOCK * BLOCK, BLOCK, 1]
        self.blocks = [1, 1, columns, rows, BLOCK, BLOCK]
        self.a_l1 = memref([1, 1, depth, rows, BLOCK, BLOCK], "bf16", L1)
        self.b_l1 = memref([1, 1, columns, depth, BLOCK, BLOCK], "bf16", L1)
        self.c_l1 = memref([*self.herd, columns, rows, BLOCK, BLOCK], self.element, L1)

    def launch(self, a: Value, b: Value, c: Value) -> None:
        text, (width, height) = self.text, self.herd
        trips = [self.m // (self.tile_m * width), self.n // (self.tile_n * height)]
        self._declare()
        with text.launch(trips, [a, b, c]) as ((i, j), args):
            with text.segment("gemm_segment", [i, j, *args]) as (i, j, a, b, c):
                a_l2 = text.alloc(memref([width, 1, self.tile_m, self.outer], "bf16", L2))
                b_l2 = text.alloc(memref([1, height, self.outer, self.tile_n], "bf16", L2))
                c_l2 = text.alloc(memref([width, height, self.tile_m, self.tile_n], self.drained, L2))
                # A chunked drain reads the accumulator in pieces; the pass that shrinks buffers to what DMA touches
                # (air-shrink-memref-sizes-by-access) must leave it whole.
                sums = text.alloc(self.c_l1, "{air.shrinkage = false}" if self.chunks > 1 else "")
                row = text.apply(f"s0 * {self.tile_m * width}", [i])
                column = text.apply(f"s0 * {self.tile_n * height}", [j])
                self._clear(sums)
                with text.loop(0, self.k // self.outer) as trip:
                    at = text.apply(f"s0 * {self.outer}", [trip])
                    self._panels(a, b, a_l2, b_l2, row, column, at)
                    self._multiply(sums, a_l2, b_l2)
                self._drain(sums, c_l2)
                text.dma(
                    Window(c, [row, column], [width * self.tile_m, height * self.tile_n], [self.n, 1]),
                    Window(
                        c_l2,
                        [0, 0, 0, 0],
                        [width, self.tile_m, height, self.tile_n],
                        [self.tile_m * height * self.tile_n, self.tile_n, self.tile_m * self.tile_n, 1],
                    ),
                )
                text.dealloc(a_l2, b_l2, c_l2, sums)

    def _declare(self) -> None:
        if self.object is None:
            return
        sums = memref(self.blocks, "f32", L1, strides=self.steps)
        self.text.external(f"zero_f32_mn{self.suffix}", [sums], self.object)
        self.text.external(self._symbol, [self.a_l1, self.b_l1, sums], self.object)
        if self.method == "drain":
            part = memref(self._chunk, "f32", L1, strides=self.steps)
            types = [part, memref(self._chunk, "bf16", L1), *(["i32"] if self.chunks > 1 else [])]
            self.text.external(self._narrow, types, self.object)

    @property
    def _symbol(self) -> str:
        return f"op_has_no_registered_library_name{self.suffix}"

    @property
    def _narrow(self) -> str:
        return f"f32_to_bf16_{'mn' if self.chunks == 1 else 'n'}{self.suffix}"

    @property
    def _chunk(self) -> list[int]:
        """Block counts of what one drain step casts."""
        return [1, 1, self.blocks[2] // self.chunks, *self.blocks[3:]]

    def _own(self, sums: Value, x: Value, y: Value) -> Value:
        """A core's part of the accumulator."""
        kind = memref(self.blocks, self.element, L1, strides=self.steps)
        return self.text.subview(sums, [x, y, 0, 0, 0, 0], self.blocks, kind)

    def _clear(self, sums: Value) -> None:
        with self.text.herd("gemm_herd", self.herd, [sums], link_with=self.object) as (x, y, (held,)):
            own = self._own(held, x, y)
            if self.object is not None:
                self.text.call(f"zero_f32_mn{self.suffix}", [own])
                return
            zero = self.text.op(f"arith.constant 0.0 : {self.element}", self.element, "zero")
            self.text.line(f"linalg.fill ins({zero} : {zero.type}) outs({own} : {own.type})")

    def _panels(self, a: Value, b: Value, a_l2: Value, b_l2: Value, row: Value, column: Value, at: Value) -> None:
        """L3 to L2: rows of A, a tile a column of the herd; columns of B, a tile a row of the herd."""
        width, height = self.herd
        self.text.dma(
            a_l2,
            Window(
                a,
                [0, 0, row, at],
                [width, 1, self.tile_m, self.outer],
                [self.tile_m * self.k, self.outer, self.k, 1],
            ),
        )
        self.text.dma(
            b_l2,
            Window(
                b,
                [0, 0, at, column],
                [1, height, self.outer, self.tile_n],
                [self.outer * self.n, self.tile_n, self.n, 1],
            ),
        )

    def _multiply(self, sums: Value, a_l2: Value, b_l2: Value) -> None:
        """L2 to L1 in blocks, and the matrix unit over them."""
        text, (_, height) = self.text, self.herd
        rows, columns, depth = self.tile_m // BLOCK, self.tile_n // BLOCK, self.inner // BLOCK
        with text.herd("gemm_herd", self.herd, [sums, a_l2, b_l2], link_with=self.object) as (x, y, (held, a, b)):
            a_l1, b_l1 = text.alloc(self.a_l1), text.alloc(self.b_l1)
            with text.loop(0, self.outer // self.inner) as trip:
                at = text.apply(f"s0 * {self.inner}", [trip])
                panel = self.tile_m * self.outer
                text.dma(
                    a_l1,
                    Window(
                        a,
                        [x, 0, 0, 0, 0, at],
                        [1, 1, depth, rows, BLOCK, BLOCK],
                        [panel, panel, BLOCK, self.outer * BLOCK, self.outer, 1],
                    ),
                )
                panel = self.tile_n * self.outer
                text.dma(
                    b_l1,
                    Window(
                        b,
                        [0, y, 0, 0, at, 0],
                        [1, 1, columns, depth, BLOCK, BLOCK],
                        [height * panel, panel, BLOCK, self.tile_n * BLOCK, self.tile_n, 1],
                    ),
                )
                own = self._own(held, x, y)
                if self.object is not None:
                    text.call(self._symbol, [a_l1, b_l1, own])
                else:
                    _contract(text, a_l1, b_l1, own, self.element)
            text.dealloc(a_l1, b_l1)

    def _drain(self, sums: Value, c_l2: Value) -> None:
        """L1 to L2, row-major again; cast first where the method is drain."""
        text, casts = self.text, self.method == "drain"
        with text.herd("gemm_herd", self.herd, [sums, c_l2], link_with=self.object if casts else None) as (
            x,
            y,
            (held, out),
        ):
            if not casts:
                tile = self.tile_m * self.tile_n
                source = Window(held, [x, y, 0, 0, 0, 0], *self._row_major(self.tile_n, self.steps[0], tile))
                text.dma(self._tile_of(out, x, y, 0, self.tile_n), source)
                return
            part = memref(self._chunk, "f32", L1, strides=self.steps)
            across, columns = self._chunk[2], self.tile_n // self.chunks
            for chunk in range(self.chunks):
                own = text.subview(held, [x, y, chunk * across, 0, 0, 0], self._chunk, part)
                narrow = text.alloc(memref(self._chunk, "bf16", L1))
                count = [text.constant(self.tile_m * columns, "i32")] if self.chunks > 1 else []
                text.call(self._narrow, [own, narrow, *count])
                whole = self.tile_m * columns
                source = Window(narrow, [0] * 6, *self._row_major(columns, whole, whole))
                text.dma(self._tile_of(out, x, y, chunk * columns, columns), source)
                text.dealloc(narrow)

    def _row_major(self, columns: int, column_of_herd: int, tile: int) -> tuple[list[int], list[int]]:
        """Sizes and strides that read a blocked tile row by row."""
        sizes = [1, 1, self.tile_m // BLOCK, BLOCK, columns // BLOCK, BLOCK]
        return sizes, [column_of_herd, tile, BLOCK * BLOCK, BLOCK, self.tile_m * BLOCK, 1]

    def _tile_of(self, out: Value, x: Value, y: Value, column: int, columns: int) -> Window:
        steps = [self.herd[1] * self.tile_m * self.tile_n, self.tile_m * self.tile_n, self.tile_n, 1]
        return Window(out, [x, y, 0, column], [1, 1, self.tile_m, columns], steps)


def _contract(text: Text, a: Value, b: Value, c: Value, element: str) -> None:
    """The block product as a structured op, which the toolchain vectorises: no object file."""
    loops = "d0, d1, d2, d3, d4, d5, d6, d7, d8"
    maps = ["d0, d2, d5, d3, d6, d8", "d1, d2, d4, d5, d8, d7", "d1, d0, d4, d3, d6, d7"]
    listed = ", ".join(f"affine_map<({loops}) -> ({results})>" for results in maps)
    kinds = ["parallel", "parallel", "reduction", "parallel", "parallel", "reduction", "parallel", "parallel"]
    iterators = ", ".join(f'"{kind}"' for kind in [*kinds, "reduction"])
    text.line(f"linalg.generic {{indexing_maps = [{listed}], iterator_types = [{iterators}]}}")
    text.line(f"  ins({a}, {b} : {a.type}, {b.type}) outs({c} : {c.type}) {{")
    text.line(f"^bb0(%left: bf16, %right: bf16, %sum: {element}):")
    if element == "f32":
        text.line("  %wide = arith.extf %left : bf16 to f32")
        text.line("  %other = arith.extf %right : bf16 to f32")
        text.line("  %product = arith.mulf %wide, %other : f32")
    else:
        text.line("  %product = arith.mulf %left, %right : bf16")
    text.line(f"  %next = arith.addf %sum, %product : {element}")
    text.line(f"  linalg.yield %next : {element}")
    text.line("}")


def cast(text: Text, count: int, source: Value, target: Value, way: str = "kernel", suffix: str = "") -> None:
    """The second launch of fused-cast: f32 to bf16 over eight cores, each a stretch of the flattened matrix.

    `way` "kernel" calls f32_to_bf16_n of mm.o, which rounds to nearest even; "vector" truncates vectors of 16 in a loop
    on cores that never set a rounding mode and so round down, as upstream's cast launch does.
    """
    share = count // CAST_TILES
    chunk = max(size for size in range(CAST_VECTOR, CAST_CHUNK[way] + 1, CAST_VECTOR) if share % size == 0)
    flat = [memref([count], "f32"), memref([count], "bf16")]
    wide, narrow = memref([chunk], "f32", L1), memref([chunk], "bf16", L1)
    symbol, linked = f"f32_to_bf16_n{suffix}", f"mm{suffix}.o" if way == "kernel" else None
    if linked is not None:
        text.external(symbol, [wide, narrow, "i32"], linked)
    with text.launch([1], [source, target]) as (_, args):
        pair = [
            text.op(f"memref.collapse_shape {value} [[0, 1]] : {value.type} into {kind}", kind, "flat")
            for value, kind in zip(args, flat, strict=True)
        ]
        with text.segment("cast_segment", pair) as pair:
            with text.herd("cast_herd", (CAST_TILES, 1), pair, link_with=linked) as (x, _, held):
                before, after = text.alloc(wide), text.alloc(narrow)
                with text.loop(0, share, chunk) as start:
                    at = text.apply(f"s0 + s1 * {share}", [start, x])
                    text.dma(before, Window(held[0], [at], [chunk], [1]))
                    if linked is not None:
                        text.call(symbol, [before, after, text.constant(chunk, "i32")])
                    else:
                        _narrow(text, before, after, chunk)
                    text.dma(Window(held[1], [at], [chunk], [1]), after)
                text.dealloc(before, after)


def _narrow(text: Text, before: Value, after: Value, count: int) -> None:
    """Vector by vector: read 16 f32, truncate, write 16 bf16."""
    zero = text.op("arith.constant 0.0 : f32", "f32", "zero")
    first = text.constant(0)
    with text.loop(0, count, CAST_VECTOR) as i:
        kinds = [memref([CAST_VECTOR], element, L1, strides=[1]) for element in ("f32", "bf16")]
        wide = text.subview(before, [i], [CAST_VECTOR], kinds[0])
        narrow = text.subview(after, [i], [CAST_VECTOR], kinds[1])
        vector = f"vector<{CAST_VECTOR}xf32>"
        read = text.op(
            f"vector.transfer_read {wide}[{first}], {zero} {{in_bounds = [true]}} : {wide.type}, {vector}", vector
        )
        half = text.op(f"arith.truncf {read} : {vector} to vector<{CAST_VECTOR}xbf16>", f"vector<{CAST_VECTOR}xbf16>")
        text.line(
            f"vector.transfer_write {half}, {narrow}[{first}] {{in_bounds = [true]}} : {half.type}, {narrow.type}"
        )
