"""Block attention of the fused Q4NX decode: one query, sixteen keys a block, online softmax over blocks.

Read in mlir-air programming_examples/fused_decode/kernels/attn_qk.cc and attn_kv.cc, with model_spec.h.

attn_qk_blk(q, k, m, c, s, block, L): scores of the heads of one compute unit, scaled, against the running maximum m,
exponentials into s [heads, 16], the factor for the older sums into c and, as float32 words, behind the scores in s.
attn_kv_blk(s, v, y, l, block, L): l and y scaled by that factor, row sums and s v added. attn_kv_fin(y, l, o): y / l.
Positions past L are masked; a block wholly past it is skipped; block 0 resets the state.

Layouts: q [d/8, heads, 8], k [kv, d/8, 2, 8 keys, 8], v [2, kv, d/8, 8 keys, 8], y [d/8, heads, 8], o [d/8, real heads, 8].
Three builds (2 kv heads x 4, 1 x 4, 1 x 8) follow from sizes: s has 192 words for 8 heads and 128 for 4. How many
of a group's heads are real follows from rope_compute's declaration, else from option Q_HEADS_PER_GROUP, else all are;
scores of padding heads are left as they are. In the 1 x 4 build y and o hold two heads, as its C++ does. ATTN_SCALE is
1/sqrt(d) for every model and can be given as an option.

Products go through BFP16 (the Makefile builds with the emulation). Scores, scaled scores, differences and exponentials
are bf16, rounded down (floor); the exponential is AIE2's table; c, l and y are float32; y, 1/l (a table) and o are bf16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npu_tools.emulator.kernels.activation import table_inverse
from npu_tools.emulator.kernels.flash_attention import LOWEST, table_exp
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, memrefs
from npu_tools.emulator.kernels.lanes import flat, uniform, write_part
from npu_tools.emulator.kernels.sums import tree_sum
from npu_tools.emulator.numerics import Numerics
from npu_tools.errors import UnusableInput

_KEYS = 16


@dataclass(frozen=True, slots=True)
class Unit:
    """Heads of one compute unit: padded ones, kv heads, real ones in a group, and the head size."""

    heads: int
    kv: int
    real: int
    size: int

    @property
    def rows(self) -> tuple[int, ...]:
        """The real heads' rows among the padded ones."""
        per_kv = self.heads // self.kv
        return tuple(kv * per_kv + head for kv in range(self.kv) for head in range(self.real))

    @property
    def stored(self) -> int:
        """Heads that y holds: two in the 1 x 4 build, else all."""
        return 2 if self.heads == 4 else self.heads


def real_heads(call: Call, padded: int) -> int:
    """How many of a group's padded heads are real."""
    option = call.surroundings.options.get("Q_HEADS_PER_GROUP")
    if option is not None:
        return int(option)
    rope = call.surroundings.declared.get("rope_compute", ())
    if len(rope) >= 4:
        return min(padded, (rope[3].size - 2 * rope[1].size) // rope[1].size)
    return padded


def unit_of(call: Call, scores: int, queries: int | None, block: int) -> Unit:
    """The unit from the sizes of a score block, of the queries (unless unknown) and of a key or value block."""
    if scores not in (128, 192):
        raise UnusableInput(f"@{call.symbol}: a score block has 128 or 192 words, not {scores}.")
    heads = 8 if scores == 192 else 4
    size = (queries or 0) // heads
    if size == 0 or block % (_KEYS * size) or heads % (kv := block // (_KEYS * size)):
        raise UnusableInput(f"@{call.symbol}: {queries} query and {block} block elements make no heads.")
    return Unit(heads, kv, 2 if heads == 4 else real_heads(call, heads // kv), size)


def float_words(values: Array) -> Array:
    """Float32 `[.., n]` as the 2n bf16 words of its bytes, held as float32."""
    halves = np.ascontiguousarray(values, np.float32).view(np.uint16).astype(np.uint32)
    return (halves << np.uint32(16)).view(np.float32)


def words_float(words: Array) -> Array:
    """The inverse of float_words."""
    halves = (np.ascontiguousarray(words, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return halves.view(np.float32)


def _scores(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2, 3, 4) or len(call.operands) != 7:
        return None
    unit = unit_of(call, call.operands[4].size, call.operands[0].size, call.operands[1].size)
    scale = float(call.surroundings.options.get("ATTN_SCALE", unit.size**-0.5))

    def run(
        numerics: Numerics, q: Array, k: Array, m: Array, c: Array, s: Array, index: Array | int, length: Array | int
    ) -> None:
        block, live = uniform(index), uniform(length) - uniform(index) * _KEYS
        if block == 0:
            m[...] = LOWEST
        if live <= 0:
            return
        narrow = numerics.rounder("bf16", kind="q4nx.attention", rounding="floor")
        lead = np.broadcast_shapes(q.shape[:2], k.shape[:2])
        queries = flat(q).reshape(*q.shape[:2], unit.size // 8, unit.heads, 8).swapaxes(2, 3)
        queries = queries.reshape(*q.shape[:2], unit.kv, unit.heads // unit.kv, unit.size)
        keys = flat(k).reshape(*k.shape[:2], unit.kv, unit.size // 8, _KEYS, 8)
        keys = keys.transpose(0, 1, 2, 3, 5, 4).reshape(*k.shape[:2], unit.kv, unit.size, _KEYS)
        product = narrow(numerics.matmul(np.ascontiguousarray(queries), np.ascontiguousarray(keys)))
        factor = numerics.round_to(np.float32(scale), "bf16", rounding="conv_even")
        rows = list(unit.rows)
        scores = narrow(product * factor).reshape(*lead, unit.heads, _KEYS)[:, :, rows]
        seen = np.arange(_KEYS) < live
        # The state holds a kv head's rows four apart; the scores lie in padded order.
        slots = [kv * 4 + head for kv in range(unit.kv) for head in range(unit.real)]
        old = flat(m)[..., slots]
        new = np.maximum(np.where(seen, scores, LOWEST).max(axis=-1), old)
        weights = np.where(seen, narrow(_exp(numerics, narrow(scores - new[..., None]))), np.float32(0))
        with np.errstate(over="ignore"):
            correction = _exp(numerics, narrow(old - new))
        state, kept = np.array(flat(m)), np.array(flat(c))
        state[..., slots], kept[..., slots] = new, correction
        write_part(m, state, 0)
        write_part(c, kept, 0)
        for position, row in enumerate(rows):
            write_part(s, weights[:, :, position], row * _KEYS)
        write_part(s, float_words(kept[..., :8]), unit.heads * _KEYS)

    return Built(run, (0, 1, 2, 3, 4, 5, 6), (2, 3, 4), "BFP16 products; scores and weights bf16 (floor); c float32")


def _exp(numerics: Numerics, difference: Array) -> Array:
    bounded = np.clip(difference, np.float32(-87), np.float32(88))
    return np.exp(bounded, dtype=np.float32) if numerics.mode == "f32" else table_exp(bounded)


def _values(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2, 3) or len(call.operands) != 6:
        return None
    unit = unit_of(call, call.operands[0].size, call.operands[2].size, call.operands[1].size)

    def run(
        numerics: Numerics, s: Array, v: Array, y: Array, total: Array, index: Array | int, length: Array | int
    ) -> None:
        block = uniform(index)
        if block == 0:
            y[...] = 0
            total[...] = 0
        if uniform(length) - block * _KEYS <= 0:
            return
        stored = unit.stored
        weights = flat(s)[..., : stored * _KEYS].reshape(*s.shape[:2], stored, _KEYS)
        factor = words_float(flat(s)[..., unit.heads * _KEYS : unit.heads * _KEYS + 16])[..., :stored]
        sums = np.array(flat(total))
        rows = tree_sum(numerics.quantise(weights, -1), -1)
        sums[..., :stored] = sums[..., :stored] * factor + rows
        sums[..., 8 : 8 + stored] = sums[..., :stored]
        write_part(total, sums, 0)
        values = flat(v).reshape(*v.shape[:2], 2, unit.kv, unit.size // 8, 8, 8)
        values = values.transpose(0, 1, 3, 2, 5, 4, 6).reshape(*v.shape[:2], unit.kv, _KEYS, unit.size)
        grouped = weights.reshape(*s.shape[:2], unit.kv, stored // unit.kv, _KEYS)
        product = numerics.matmul(np.ascontiguousarray(grouped), np.ascontiguousarray(values))
        spread = product.reshape(*product.shape[:2], stored, unit.size // 8, 8).swapaxes(2, 3)
        count = stored * unit.size
        kept = flat(y)[..., :count].reshape(*y.shape[:2], unit.size // 8, stored, 8)
        result = kept * factor[:, :, None, :, None] + spread
        write_part(y, result.reshape(*result.shape[:2], -1), 0)

    return Built(run, (0, 1, 2, 3, 4, 5), (2, 3), "BFP16 products; l and y float32", accumulators=(2, 3))


def _finish(call: Call) -> Built | None:
    if memrefs(call) != (0, 1, 2) or len(call.operands) != 3:
        return None
    scores = call.surroundings.declared.get("attn_kv_blk", ())
    unit = (
        unit_of(call, scores[0].size, call.operands[0].size, scores[1].size)
        if len(scores) >= 2
        else Unit(8, 1, real_heads(call, 8), call.operands[0].size // 8)
    )

    def run(numerics: Numerics, y: Array, total: Array, out: Array) -> None:
        narrow = numerics.rounder("bf16", kind="q4nx.attention", rounding="floor")
        stored = unit.stored
        with np.errstate(divide="ignore", invalid="ignore"):
            sums = flat(total)[..., :stored]
            inverse = np.float32(1) / sums if numerics.mode == "f32" else table_inverse(sums)
            tiles = flat(y)[..., : stored * unit.size].reshape(*y.shape[:2], unit.size // 8, stored, 8)
            scaled = narrow(narrow(np.array(tiles)) * inverse[:, :, None, :, None])
        kept = scaled if stored != unit.heads else scaled[:, :, :, list(unit.rows)]
        write_part(out, kept.reshape(*kept.shape[:2], -1), 0)

    return Built(run, (0, 1), (2,), "y, 1/l and their product bf16 (floor)")


_AIR = "mlir-air programming_examples/fused_decode/kernels/"

FAMILIES: tuple[Family, ...] = (
    Family(
        "q4nx_attention_scores",
        r"attn_qk_blk",
        ("attn_qk_blk",),
        _AIR + "attn_qk.cc",
        "q, k block, m [16], c [8] f32, s, block, L",
        _scores,
    ),
    Family(
        "q4nx_attention_values",
        r"attn_kv_blk",
        ("attn_kv_blk",),
        _AIR + "attn_kv.cc",
        "s, v block, y f32, l [16] f32, block, L",
        _values,
    ),
    Family("q4nx_attention_end", r"attn_kv_fin", ("attn_kv_fin",), _AIR + "attn_kv.cc", "y, l, o", _finish),
)
