"""FlashAttention in bf16, printed for a herd of query tiles by shares of the keys; causal or not, query heads sharing KV heads.

A launch iteration takes lqp queries of heads_per_unroll heads; a segment is unrolled over the heads. A head's herd has a
column a query tile and a row a share of the keys: of every run of rows * 64 keys each row takes 64. A row keeps its running
maximum, sum and output in bf16; at the end the rows hand them down a cascade and row 0 divides. Heads wider than dv_tile
are one more axis of the launch, which streams queries and keys again for each piece of the values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from npu_tools.errors import UnusableInput
from npu_tools.recipes import L1, L2, Text, Value, Window, memref

TILE = 64
"""Queries, keys and columns of values a tile: the only build of attn_npu2.o that was seen to work."""
BLOCK = 8
"""Rows, depth and columns of one matrix-unit step on AIE2P."""
OBJECT = "attn_npu2.o"


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @flash_attention(Q, K, V, O)."""
    text = Text()
    queries, keys = argument_types(shape, settings)
    with text.function("flash_attention", [queries, keys, keys, queries]) as (q, k, v, out):
        flash_attention(text, shape, settings, q, k, v, out)
    return str(text)


def argument_types(shape: Mapping[str, int], settings: Mapping[str, Any]) -> tuple[str, str]:
    """The types of Q and O, and of K and V: [length, heads * head_dim], or head-first [heads, length, head_dim]."""
    width, sides = shape["head_dim"], (("heads", "lq"), ("kv_heads", "lk"))
    if settings["variant"] == "head-first":
        queries, keys = (memref([shape[heads], shape[length], width], "bf16") for heads, length in sides)
    else:
        queries, keys = (memref([shape[length], shape[heads] * width], "bf16") for heads, length in sides)
    return queries, keys


def flash_attention(
    text: Text, shape: Mapping[str, int], settings: Mapping[str, Any], q: Value, k: Value, v: Value, out: Value
) -> None:
    """The launch."""
    _Attention(text, shape, settings).launch(q, k, v, out)


class _Attention:
    """One attention being printed: the sizes every step needs."""

    def __init__(self, text: Text, shape: Mapping[str, int], settings: Mapping[str, Any]) -> None:
        self.text = text
        self.lq, self.lk = shape["lq"], shape["lk"]
        self.heads, self.kv_heads, self.width = shape["heads"], shape["kv_heads"], shape["head_dim"]
        self.head_first = settings["variant"] == "head-first"
        self.causal = bool(settings["causal"])
        self.block, self.columns = int(settings["lqp"]), int(settings["num_q_tiles"])
        self.rows, self.at_once = int(settings["num_cascade_stages"]), int(settings["heads_per_unroll"])
        self.keys, self.values = int(settings["lkp"]), int(settings["dv_tile"])
        self.queries = self.block // self.columns
        if settings.get("window") or {self.keys, self.values, self.queries} != {TILE}:
            raise UnusableInput("flash_attention: no windows, and tiles of 64 queries, keys and columns of values only")
        self.depths, self.pieces = self.width // self.keys, self.width // self.values
        self.steps = self.lk // (self.rows * self.keys)
        self.q_l1 = memref([self.queries, self.keys], "bf16", L1)
        self.k_l1 = memref([self.keys, self.keys], "bf16", L1)
        self.v_l1 = memref([self.keys, self.values], "bf16", L1)
        self.scores = memref([self.queries, self.keys], "bf16", L1)
        self.flat = memref([self.queries * self.keys], "bf16", L1)
        self.output = memref([self.queries, self.values], "bf16", L1)
        self.line = memref([self.queries, 1], "bf16", L1)

    def launch(self, q: Value, k: Value, v: Value, out: Value) -> None:
        text = self.text
        self._declare()
        trips = [self.lq // self.block, self.heads // self.at_once, *([self.pieces] if self.pieces > 1 else [])]
        with text.launch(trips, [q, k, v, out]) as (ids, (q, k, v, out)):
            block, group = ids[:2]
            piece = text.apply(f"s0 * {self.values}", [ids[2]]) if self.pieces > 1 else None
            targets: list[Window] = []
            for local in range(self.at_once):
                head = text.apply(f"s0 * {self.at_once} + {local}", [group])
                shared = text.apply(f"s0 floordiv {self.heads // self.kv_heads}", [head])
                targets.append(self._send(local, head, shared, block, piece, (q, k, v, out)))
            arguments = [text.apply(f"s0 * {self.columns}", [block])] if self.causal else []
            with text.segments("attention_segment", (self.at_once, 1), arguments) as (unit, _, first):
                self._segment(unit, first)
            for local, target in enumerate(targets):
                text.get("attention_out", [local], target)

    def _declare(self) -> None:
        text, kernels = self.text, self._kernels()
        for symbol, types in kernels.items():
            text.external(symbol, types, OBJECT)
        spread = [self.at_once, 1, self.columns]
        for row in range(self.rows):
            for stream in ("attention_qk", "attention_v"):
                text.channel(f"{stream}_in_{row}", [self.at_once])
                text.channel(f"{stream}_{row}", [self.at_once, 1, 1], broadcast=spread if self.columns > 1 else ())
        if self.rows > 1:
            for part in ("output", "maximum", "sum"):
                text.channel(f"attention_{part}", [self.columns, self.rows - 1], kind="npu_cascade")
        text.channel("attention_gather", [self.columns, 1])
        text.channel("attention_out", [self.at_once])

    def _kernels(self) -> dict[str, Sequence[str]]:
        line = self.line
        kernels: dict[str, Sequence[str]] = {
            "zero_fill_g_bf16": [self.flat],
            "zero_fill_gp_bf16": [self.output],
            "zero_fill_sp_bf16": [line],
            "neg_inf_fill_up_bf16": [line],
            "matmul_a_b_bf16": [self.q_l1, self.k_l1, self.flat],
            "matmul_g_b_bf16": [self.flat, self.v_l1, self.output],
            "fused_softmax": [self.flat, line, line, line],
            "mul_r_gp": [line, self.output],
            "accum_sp_r_s": [line, line, line],
            "vector_copy_32elems": ["i32", line, line],
            "copy_tile": [self.k_l1, self.q_l1],
            "div_gp_sp": [line, self.output],
        }
        if self.rows > 1:
            kernels |= {
                "maximum_up_u_bf16": [line, line],
                "exp_up_minus_u": [line, line, line],
                "add_gp_g": [self.output, self.output],
            }
        if self.causal:
            kernels["apply_causal_mask"] = [self.scores, "i32", "i32"]
        return kernels

    def _send(
        self,
        local: int,
        head: Value,
        shared: Value,
        block: Value,
        piece: Value | None,
        arrays: tuple[Value, Value, Value, Value],
    ) -> Window:
        """A head's queries to every row, each row's share of keys and values; where the head's output goes."""
        text, (q, k, v, out) = self.text, arrays
        q_step, kv_step = (self.width, self.width) if self.head_first else (
            self.heads * self.width,
            self.kv_heads * self.width,
        )  # fmt: skip
        if self.head_first:
            row, column = text.apply(f"s0 * {self.block} + s1 * {self.lq}", [block, head]), None
            first, kv_column = text.apply(f"s0 * {self.lk}", [shared]), None
        else:
            row, column = text.apply(f"s0 * {self.block}", [block]), text.apply(f"s0 * {self.width}", [head])
            first, kv_column = None, text.apply(f"s0 * {self.width}", [shared])
        tile = [self.columns, self.depths, self.queries, self.keys]
        for stage in range(self.rows):
            steps = [self.queries * q_step, self.keys, q_step, 1]
            text.put(f"attention_qk_in_{stage}", [local], Window(q, [0, 0, row, column or 0], tile, steps))
        share = self.rows * self.keys * kv_step
        starts = [self._sum(first, stage * self.keys) for stage in range(self.rows)]
        for stage, start in enumerate(starts):
            sizes = [self.steps, self.depths, self.keys, self.keys]
            window = Window(k, [0, 0, start, kv_column or 0], sizes, [share, self.keys, kv_step, 1])
            text.put(f"attention_qk_in_{stage}", [local], window)
        for stage, start in enumerate(starts):
            sizes = [self.steps, self.keys, self.values]
            window = Window(v, [0, start, self._plus(kv_column, piece)], sizes, [share, kv_step, 1])
            text.put(f"attention_v_in_{stage}", [local], window)
        return Window(out, [row, self._plus(column, piece)], [self.block, self.values], [q_step, 1])

    def _sum(self, base: Value | None, offset: int) -> Value | int:
        return offset if base is None else base if offset == 0 else self.text.apply(f"s0 + {offset}", [base])

    def _plus(self, one: Value | None, other: Value | None) -> Value | int:
        if one is None or other is None:
            return one or other or 0
        return self.text.apply("s0 + s1", [one, other])

    def _segment(self, unit: Value, first: Sequence[Value]) -> None:
        """Relays through L2, the herd, and the collection of what it gives."""
        text = self.text
        held = [text.alloc(memref([self.keys, self.keys], "bf16", L2)) for _ in range(self.rows)]
        values = [text.alloc(memref([self.keys, self.values], "bf16", L2)) for _ in range(self.rows)]
        result = text.alloc(memref([self.block, self.values], "bf16", L2))
        mine = [text.alloc(self.q_l1) for _ in range(self.depths)]
        kinds = (self.k_l1, self.v_l1, self.scores, self.output, self.line, self.line)
        buffers = [*mine, *(text.alloc(kind) for kind in kinds)]
        for stage, (tile, value) in enumerate(zip(held, values, strict=True)):
            self._relay("attention_qk", stage, unit, tile, self.columns * self.depths)
            self._relay("attention_qk", stage, unit, tile, self.steps * self.depths)
            self._relay("attention_v", stage, unit, value, self.steps)
        herd = text.herd("attention_herd", (self.columns, self.rows), [*buffers, unit, *first], link_with=OBJECT)
        with herd as (x, y, inside):
            self._core(x, y, inside[: self.depths], inside[self.depths :])
        for column in range(self.columns):
            window = Window(result, [column * self.queries, 0], [self.queries, self.values], [self.values, 1])
            text.get("attention_gather", [column, 0], window)
        text.put("attention_out", [unit], result)
        text.dealloc(*held, *values, result, *buffers)

    def _relay(self, stream: str, stage: int, unit: Value, tile: Value, trips: int) -> None:
        """Through L2 and on in blocks of 8 x 8, a column of blocks after the other."""
        rows, columns = (int(size) for size in tile.type[len("memref<") :].split("x")[:2])
        blocks = [columns // BLOCK, rows // BLOCK, BLOCK, BLOCK]
        with self.text.loop(0, trips):
            self.text.get(f"{stream}_in_{stage}", [unit], tile)
            window = Window(tile, [0, 0, 0, 0], blocks, [BLOCK, columns * BLOCK, columns, 1])
            self.text.put(f"{stream}_{stage}", [unit, 0, 0], window)

    def _core(self, x: Value, y: Value, mine: Sequence[Value], rest: Sequence[Value]) -> None:
        """Keep the query tile of the column, go over the row's keys, merge along the cascade."""
        text = self.text
        tile, value, scores, output, top, total, unit, *first = rest
        text.call("zero_fill_gp_bf16", [output])
        text.call("zero_fill_sp_bf16", [total])
        text.call("neg_inf_fill_up_bf16", [top])
        column = text.op(f"arith.index_cast {x} : index to i32", "i32", "column")
        for each in range(self.columns):
            for kept in mine:
                self._receive("attention_qk", unit, x, y, tile)
                if self.columns == 1:
                    text.call("copy_tile", [tile, kept])
                    continue
                number = text.constant(each, "i32")
                here = text.op(f"arith.cmpi eq, {column}, {number} : i32", "i1", "here")
                with text.branch(here):
                    text.call("copy_tile", [tile, kept])
        with text.loop(0, self.steps) as step:
            seen = self._compare("sle", step, f"s0 * {self.rows}", first, f"s0 + {self.columns - 1}")
            words = f"memref.collapse_shape {scores} [[0, 1]] : {self.scores} into {self.flat}"
            flat = text.op(words, self.flat, "flat")
            for depth, kept in enumerate(mine):
                self._receive("attention_qk", unit, x, y, tile)
                if depth + 1 < len(mine):
                    with self._if(seen):
                        self._multiply(kept, tile, flat, depth)
            self._receive("attention_v", unit, x, y, value)
            with self._if(seen):
                self._multiply(mine[-1], tile, flat, len(mine) - 1)
                self._mask(scores, x, y, step, first)
                self._soften(flat, value, output, top, total)
        self._finish(x, y, output, top, total)

    def _if(self, seen: Value | None) -> AbstractContextManager[None]:
        """A branch where there is a condition, else the body as it stands."""
        return nullcontext() if seen is None else self.text.branch(seen)

    def _compare(self, how: str, step: Value, of_step: str, first: Sequence[Value], of_first: str) -> Value | None:
        """Blocks of 64 keys against blocks of queries: the same for all cores; nothing where nothing is masked."""
        if not first:
            return None
        text = self.text
        key, query = text.apply(of_step, [step]), text.apply(of_first, [first[0]])
        return text.op(f"arith.cmpi {how}, {key}, {query} : index", "i1", "seen")

    def _receive(self, stream: str, unit: Value, x: Value, y: Value, tile: Value) -> None:
        """Every row has a channel of its own."""
        for row in range(self.rows):
            if self.rows == 1:
                self.text.get(f"{stream}_0", [unit, 0, x], tile)
                continue
            with self.text.where(f"s0 >= 0, s1 - {row} == 0", [x, y]):
                self.text.get(f"{stream}_{row}", [unit, 0, x], tile)

    def _multiply(self, queries: Value, keys: Value, flat: Value, depth: int) -> None:
        if depth == 0:
            self.text.call("zero_fill_g_bf16", [flat])
        self.text.call("matmul_a_b_bf16", [queries, keys, flat])

    def _mask(self, scores: Value, x: Value, y: Value, step: Value, first: Sequence[Value]) -> None:
        """Minus infinity for keys after the query, where the step has any."""
        text = self.text
        crossing = self._compare("sge", step, f"s0 * {self.rows} + {self.rows - 1}", first, "s0")
        if crossing is None:
            return
        with text.branch(crossing):
            query = text.apply("s0 + s1", [first[0], x])
            key = text.apply(f"s0 * {self.rows} + s1", [step, y])
            numbers = [text.op(f"arith.index_cast {one} : index to i32", "i32", "block") for one in (query, key)]
            text.call("apply_causal_mask", [scores, *numbers])

    def _soften(self, flat: Value, value: Value, output: Value, top: Value, total: Value) -> None:
        """One step of the online softmax, and the weighted values added to the rescaled output."""
        text = self.text
        part, ratio = text.alloc(self.line), text.alloc(self.line)
        text.call("fused_softmax", [flat, top, part, ratio])
        text.call("mul_r_gp", [ratio, output])
        text.call("matmul_g_b_bf16", [flat, value, output])
        text.call("accum_sp_r_s", [total, ratio, part])
        text.call("vector_copy_32elems", [text.constant(0, "i32"), part, total])
        text.dealloc(part, ratio)

    def _finish(self, x: Value, y: Value, output: Value, top: Value, total: Value) -> None:
        """The last row sends, middle ones merge and send, row 0 merges, divides and gives the output."""
        text, last = self.text, self.rows - 1
        if last == 0:
            self._give(x, output, total)
            return
        below = text.op(f"arith.subi {y}, {text.constant(1)} : index", "index", "below")
        with text.where(f"s0 >= 0, s1 - {last} == 0", [x, y]):
            self._pass_on(x, below, output, top, total)
        if last > 1:
            with text.where(f"s1 - 1 >= 0, -s1 + {last - 1} >= 0, s0 >= 0", [x, y]):
                merged = self._merge(x, y, output, top, total)
                self._pass_on(x, below, merged[0], top, merged[1])
                text.dealloc(*merged)
        with text.where("s0 >= 0, s1 == 0", [x, y]):
            merged = self._merge(x, y, output, top, total)
            self._give(x, *merged[:2])
            text.dealloc(*merged)

    def _pass_on(self, x: Value, below: Value, output: Value, top: Value, total: Value) -> None:
        for part, value in (("output", output), ("maximum", top), ("sum", total)):
            self.text.put(f"attention_{part}", [x, below], value)

    def _merge(self, x: Value, y: Value, output: Value, top: Value, total: Value) -> list[Value]:
        """What comes from above and the row's own, brought to the larger maximum, which `top` then is, and added: the
        output, its sum, and the buffers in between."""
        text, start = self.text, self.text.constant(0, "i32")
        above = text.alloc(self.output)
        its_total, its_top, before, its_ratio, own_ratio, both = (text.alloc(self.line) for _ in range(6))
        for part, buffer in (("output", above), ("maximum", its_top), ("sum", its_total)):
            text.get(f"attention_{part}", [x, y], buffer)
        text.call("vector_copy_32elems", [start, top, before])
        text.call("maximum_up_u_bf16", [its_top, top])
        text.call("exp_up_minus_u", [its_top, top, its_ratio])
        text.call("exp_up_minus_u", [before, top, own_ratio])
        text.call("mul_r_gp", [its_ratio, above])
        text.call("mul_r_gp", [own_ratio, output])
        text.call("add_gp_g", [output, above])
        text.call("zero_fill_sp_bf16", [both])
        text.call("accum_sp_r_s", [its_total, its_ratio, both])
        text.call("accum_sp_r_s", [total, own_ratio, both])
        text.call("vector_copy_32elems", [start, both, its_total])
        return [above, its_total, its_top, before, its_ratio, own_ratio, both]

    def _give(self, x: Value, output: Value, total: Value) -> None:
        """Divided by its sum, and row-major again on the way out."""
        sizes = [self.queries // BLOCK, BLOCK, self.values // BLOCK, BLOCK]
        steps = [BLOCK * BLOCK, BLOCK, self.queries * BLOCK, 1]
        self.text.call("div_gp_sp", [total, output])
        self.text.put("attention_gather", [x, 0], Window(output, [0, 0, 0, 0], sizes, steps))
