"""The symbols of the FlashAttention objects and what each does to its operands; see flash_attention.py for the builds.

`*_at` and `*_chunk` address one dv or dk chunk of a slab by index, `*_all` walks every chunk: chunks are stored one
after the other, each a whole blocked tile. `copy_half_tile` takes one of two query tiles out of a pair that a broadcast
delivered interleaved: [dk/8, 2, lqp/8, 8, 8].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from npu_tools.emulator.kernels.attention_step import Stage
from npu_tools.emulator.kernels.flash_attention import (
    LOWEST,
    Build,
    Kernels,
    build_of,
    full_depth,
    output_product,
    row_max,
    row_sum,
    rows_view,
    scores_product,
    vector_view,
    write_flat,
)
from npu_tools.emulator.kernels.gemm import tile_dims
from npu_tools.emulator.kernels.kernel import Array, Built, Call, Family, Run
from npu_tools.emulator.kernels.lanes import flat, lane_scalar, uniform
from npu_tools.emulator.numerics import Numerics

Make = Callable[[Call, Kernels], Run]


def _kernels(call: Call) -> Kernels:
    return Kernels(build_of(call), 1.0 if build_of(call).row_major else full_depth(call) ** -0.5)


def _bfp16(call: Call) -> bool:
    return bool(call.surroundings.options.get("bfp16", True))


def _rounding_text(build: Build) -> str:
    inputs = "BFP16 products" if build.matrix_unit else "bf16 products summed in float32"
    return f"{inputs}; every result bf16 ({build.rounding})"


def _family(
    symbol: str,
    memrefs: int,
    scalars_after: int,
    reads: tuple[int, ...],
    writes: tuple[int, ...],
    make: Make,
    takes: str,
    scalars_before: int = 0,
    accumulators: tuple[int, ...] = (),
    name: str | None = None,
    examples: tuple[str, ...] | None = None,
) -> Family:
    """A symbol whose operands are scalars, then memrefs, then scalars, by count."""

    def build(call: Call) -> Built | None:
        kinds = [operand.shape is not None for operand in call.operands]
        if kinds != [False] * scalars_before + [True] * memrefs + [False] * scalars_after:
            return None
        kernels = _kernels(call)
        return Built(
            make(call, kernels),
            reads,
            writes,
            _rounding_text(kernels.build),
            accumulators=accumulators,
            source=f"mlir-air programming_examples/{kernels.build.source}",
            macs=_macs(call) if accumulators else 0,
            detail=Stage(kernels, _bfp16(call)),
        )

    source = "mlir-air programming_examples/flash_attention/*/attn*.cc"
    return Family(name or symbol, symbol, examples or (symbol,), source, takes, build)


def _macs(call: Call) -> int:
    """Products of two tiles into a third: the square root of their sizes' product."""
    return math.isqrt(math.prod(operand.size for operand in call.operands[:3]))


def _zero(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, tile: Array, *chunk: Array) -> None:
        tile[...] = 0

    return run


def _lowest(call: Call, kernels: Kernels) -> Run:
    value = np.float32(-np.inf) if kernels.build.row_major else LOWEST

    def run(numerics: Numerics, tile: Array) -> None:
        tile[...] = value

    return run


def _scores(call: Call, kernels: Kernels) -> Run:
    return scores_product(kernels.build, _bfp16(call))


def _output(call: Call, kernels: Kernels) -> Run:
    return output_product(kernels.build, _bfp16(call))


def _max_g(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, scores: Array, top: Array) -> None:
        write_flat(top, row_max(kernels.build, scores, flat(top).shape[-1]))

    return run


def _maximum(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, old: Array, new: Array) -> None:
        new[...] = np.maximum(new, old.reshape(*old.shape[:2], *new.shape[2:]))

    return run


def _exp_g(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, top: Array, scores: Array) -> None:
        _exponentials(numerics, kernels, top, scores)

    return run


def _exponentials(numerics: Numerics, kernels: Kernels, top: Array, scores: Array) -> None:
    view = rows_view(kernels.build, scores, flat(top).shape[-1])
    weights = kernels.exp(numerics, kernels.difference(numerics, view, vector_view(kernels.build, top)))
    write_flat(scores, weights.reshape(*weights.shape[:2], -1))


def _exp_up(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, old: Array, new: Array, ratio: Array) -> None:
        values = kernels.exp(numerics, kernels.difference(numerics, flat(old), flat(new)))
        write_flat(ratio, values)

    return run


def _scale_rows(numerics: Numerics, kernels: Kernels, factor: Array, tile: Array) -> None:
    view = rows_view(kernels.build, tile, flat(factor).shape[-1])
    scaled = kernels.narrow(numerics, view * vector_view(kernels.build, factor))
    write_flat(tile, scaled.reshape(*scaled.shape[:2], -1))


def _mul_r(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, factor: Array, tile: Array) -> None:
        _scale_rows(numerics, kernels, factor, tile)

    return run


def _divide_rows(numerics: Numerics, kernels: Kernels, divisor: Array, tile: Array) -> None:
    with np.errstate(divide="ignore", invalid="ignore"):
        if kernels.build.name == "npu2":
            _scale_rows(numerics, kernels, kernels.narrow(numerics, numerics.inv(divisor)), tile)
            return
        view = rows_view(kernels.build, tile, flat(divisor).shape[-1])
        quotient = kernels.narrow(numerics, view / vector_view(kernels.build, divisor))
    write_flat(tile, quotient.reshape(*quotient.shape[:2], -1))


def _div(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, divisor: Array, tile: Array) -> None:
        _divide_rows(numerics, kernels, divisor, tile)

    return run


def _sum_g(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, weights: Array, total: Array) -> None:
        write_flat(total, row_sum(numerics, kernels, weights, flat(total).shape[-1]))

    return run


def _accum(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, denominator: Array, ratio: Array, total: Array) -> None:
        values = flat(denominator) * flat(ratio) + flat(total)
        write_flat(total, kernels.narrow(numerics, values))

    return run


def _add(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, part: Array, total: Array) -> None:
        write_flat(total, kernels.narrow(numerics, flat(part) + flat(total)))

    return run


def _scale_scores(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, scores: Array) -> None:
        _multiply_scores(numerics, kernels, scores)

    return run


def _multiply_scores(numerics: Numerics, kernels: Kernels, scores: Array) -> None:
    # inv_sqrt_dk is folded by the compiler: the constant itself is the nearest bf16.
    factor = np.float32(numerics.round_to(np.float32(kernels.scale), "bf16", rounding="conv_even"))
    scores[...] = kernels.narrow(numerics, scores * factor)


def _fused_softmax(call: Call, kernels: Kernels) -> Run:
    """Online softmax step: scores to weights, maximum updated, row sums and the rescale factor given back."""

    def run(numerics: Numerics, scores: Array, top: Array, total: Array, ratio: Array) -> None:
        rows = flat(top).shape[-1]
        if kernels.build.name == "npu1":
            _multiply_scores(numerics, kernels, scores)
        old = flat(top)
        new = np.maximum(row_max(kernels.build, scores, rows), old)
        _exponentials(numerics, kernels, new, scores)
        rescale = kernels.exp(numerics, kernels.difference(numerics, old, new))
        write_flat(top, new)
        write_flat(ratio, rescale)
        write_flat(total, row_sum(numerics, kernels, scores, rows))

    return run


def _causal(call: Call, kernels: Kernels) -> Run:
    """apply_causal_mask: minus infinity right of the diagonal, by block indices of query and key."""

    def run(numerics: Numerics, scores: Array, query: Array, key: Array) -> None:
        q, k = lane_scalar(query), lane_scalar(key)
        _hide(kernels, scores, k > q, k == q, np.zeros((1, 1), np.bool_))

    return run


def _window(call: Call, kernels: Kernels) -> Run:
    """apply_window_mask: as causal, and minus infinity for keys `window_blocks` blocks back and older."""

    def run(numerics: Numerics, scores: Array, query: Array, key: Array, window: Array) -> None:
        q, k = lane_scalar(query), lane_scalar(key)
        oldest = q - lane_scalar(window)
        _hide(kernels, scores, (k > q) | (k < oldest), k == q, (k == oldest) & (k != q))

    return run


def _hide(kernels: Kernels, scores: Array, whole: Array, diagonal: Array, oldest: Array) -> None:
    """Put minus infinity on whole tiles, right of the diagonal, or on and left of it, as lanes say ([gx|1, gy|1])."""
    rows, columns = scores.shape[2:] if scores.ndim == 4 else (round(scores.shape[2] ** 0.5),) * 2
    later = ~np.tri(rows, columns, dtype=np.bool_)
    lanes = (..., None, None)
    hidden = whole[lanes] | (diagonal[lanes] & later) | (oldest[lanes] & ~later)
    hidden = np.broadcast_to(hidden, (*hidden.shape[:2], rows, columns))
    if kernels.build.row_major:
        spread = hidden[:, :, None]
    else:
        r = kernels.build.height
        spread = hidden.reshape(*hidden.shape[:2], rows, columns // r, r).swapaxes(2, 3)
    values = np.where(spread, np.float32(-np.inf), rows_view(kernels.build, scores, rows))
    write_flat(scores, values.reshape(*values.shape[:2], -1))


def _copy(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, source: Array, target: Array) -> None:
        count = min(flat(source).shape[-1], flat(target).shape[-1])
        write_flat(target, flat(source)[..., :count])

    return run


def _copy_vector(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, offset: Array | int, source: Array, target: Array) -> None:
        _write_part(target, flat(source), uniform(offset))

    return run


def _write_part(target: Array, values: Array, start: int) -> None:
    """Write values into the tile's elements from `start` on."""
    whole = flat(target)
    whole[..., start : start + values.shape[-1]] = values
    if not np.shares_memory(whole, target):
        target[...] = whole.reshape(target.shape)


def half_of_pair(pair: Array, half: Array | int, rows: int, depth: int) -> Array:
    """One query tile [rows, depth] out of a pair that lies as [depth/8, 2, rows*8], chosen per lane: [gx, gy, n]."""
    blocks = flat(pair)[..., : 2 * rows * depth].reshape(*pair.shape[:2], depth // 8, 2, rows * 8)
    first = lane_scalar(half)[..., None, None] == 0
    chosen = np.where(first, blocks[:, :, :, 0], blocks[:, :, :, 1])
    return chosen.reshape(*chosen.shape[:2], -1)


def _copy_half(call: Call, kernels: Kernels) -> Run:
    def run(numerics: Numerics, pair: Array, target: Array, half: Array | int) -> None:
        write_flat(target, half_of_pair(pair, half, target.shape[2], flat(target).shape[-1] // target.shape[2]))

    return run


def _copy_half_at(call: Call, kernels: Kernels) -> Run:
    given = _depth_tile(call)

    def run(numerics: Numerics, pair: Array, target: Array, half: Array | int, chunk: Array | int) -> None:
        rows = target.shape[2]
        values = half_of_pair(pair, half, rows, given or min(rows, flat(target).shape[-1] // rows))
        _write_part(target, values, uniform(chunk) * values.shape[-1])

    return run


def _depth_tile(call: Call) -> int | None:
    """The C++ dk of a full-depth call: the option, else the width of the query pair that is copied in chunks."""
    option = call.surroundings.options.get("dk_tile")
    if option is not None:
        return int(option)
    copied = call.surroundings.declared.get("copy_half_tile_at", ())
    if len(copied) == 4 and copied[0].shape is not None and copied[1].shape is not None:
        (pair_rows, *pair_rest), (rows, *_) = copied[0].shape, copied[1].shape
        # The pair may borrow the key tile's buffer; then its shape says nothing.
        if pair_rows == 2 * rows and len(pair_rest) == 1:
            return pair_rest[0]
    return None


def _width_tile(call: Call) -> int | None:
    """The C++ dv: the option, else the width of the tile that div_gp_sp is declared on."""
    option = call.surroundings.options.get("dv_tile")
    if option is not None:
        return int(option)
    divided = call.surroundings.declared.get("div_gp_sp", ())
    if len(divided) == 2 and divided[1].shape is not None and len(divided[1].shape) == 2:
        return divided[1].shape[1]
    return None


def _scores_chunk(call: Call, kernels: Kernels) -> Run:
    product = scores_product(kernels.build, _bfp16(call))
    given = _depth_tile(call)

    def run(numerics: Numerics, queries: Array, keys: Array, scores: Array, chunk: Array | int) -> None:
        q, k, index = flat(queries), flat(keys), uniform(chunk)
        m, depth, n = tile_dims("matmul_a_b_bf16_chunk", q.shape[-1], k.shape[-1], flat(scores).shape[-1])
        dk = given or min(depth, n)
        a, b = q[..., index * m * dk : (index + 1) * m * dk], k[..., index * n * dk : (index + 1) * n * dk]
        product(numerics, a, b, scores)

    return run


def _output_chunk(call: Call, kernels: Kernels) -> Run:
    product = output_product(kernels.build, _bfp16(call))
    given = _width_tile(call)

    def run(numerics: Numerics, weights: Array, values: Array, output: Array, chunk: Array | int) -> None:
        v, out, index = flat(values), flat(output), uniform(chunk)
        m, n, width = tile_dims("matmul_g_b_bf16_chunk", flat(weights).shape[-1], v.shape[-1], out.shape[-1])
        dv = given or min(width, n)
        part = np.array(out[..., index * m * dv : (index + 1) * m * dv])
        product(numerics, weights, v[..., index * n * dv : (index + 1) * n * dv], part)
        _write_part(output, part, index * m * dv)

    return run


def _chunked(step: Callable[[Numerics, Kernels, Array, Array], None]) -> Make:
    """A step on one dv chunk of a slab: (vector, slab, chunk index)."""

    def make(call: Call, kernels: Kernels) -> Run:
        given = _width_tile(call)

        def run(numerics: Numerics, vector: Array, slab: Array, chunk: Array | int) -> None:
            rows, whole = flat(vector).shape[-1], flat(slab)
            width = given or min(rows, whole.shape[-1] // rows)
            index = uniform(chunk)
            part = np.array(whole[..., index * rows * width : (index + 1) * rows * width])
            step(numerics, kernels, vector, part)
            _write_part(slab, part, index * rows * width)

        return run

    return make


def _zero_chunk(call: Call, kernels: Kernels) -> Run:
    width = _width_tile(call)
    vector = call.surroundings.declared.get("zero_fill_sp_bf16", ())
    rows = vector[0].size if vector else None

    def run(numerics: Numerics, slab: Array, chunk: Array | int) -> None:
        whole = flat(slab)
        count = rows * width if rows and width else whole.shape[-1]
        index = uniform(chunk)
        zeros = np.zeros((1, 1, min(count, whole.shape[-1] - index * count)), np.float32)
        _write_part(slab, zeros, index * count)

    return run


FAMILIES: tuple[Family, ...] = (
    _family(
        "zero_fill_(?:g|gp|sp)_bf16",
        1,
        0,
        (),
        (0,),
        _zero,
        "one bf16 tile",
        name="zero_fill",
        examples=("zero_fill_g_bf16", "zero_fill_gp_bf16", "zero_fill_sp_bf16"),
    ),
    _family("zero_fill_gp_bf16_all", 1, 0, (), (0,), _zero, "the slab of all dv chunks"),
    _family("zero_fill_gp_bf16_at", 1, 1, (0, 1), (0,), _zero_chunk, "slab, chunk i32"),
    _family("neg_inf_fill_up_bf16", 1, 0, (), (0,), _lowest, "maximum [lqp, 1]"),
    _family("matmul_a_b_bf16", 3, 0, (0, 1, 2), (2,), _scores, "Q, K and G tiles", accumulators=(2,)),
    _family("matmul_a_b_bf16_chunk", 3, 1, (0, 1, 2, 3), (2,), _scores_chunk, "Q, K, G, chunk i32", accumulators=(2,)),
    _family("matmul_g_b_bf16", 3, 0, (0, 1, 2), (2,), _output, "G, V and Gp tiles", accumulators=(2,)),
    _family("matmul_g_b_bf16_chunk", 3, 1, (0, 1, 2, 3), (2,), _output_chunk, "G, V, slab, chunk", accumulators=(2,)),
    _family("max_g_bf16", 2, 0, (0,), (1,), _max_g, "G, maximum"),
    _family("maximum_up_u_bf16", 2, 0, (0, 1), (1,), _maximum, "two maxima [lqp, 1]"),
    _family("exp_g_minus_u", 2, 0, (0, 1), (1,), _exp_g, "maximum, G"),
    _family("exp_up_minus_u", 3, 0, (0, 1), (2,), _exp_up, "old maximum, new maximum, factor"),
    _family("mul_r_gp", 2, 0, (0, 1), (1,), _mul_r, "factor [lqp, 1], Gp"),
    _family("mul_r_gp_at", 2, 1, (0, 1, 2), (1,), _chunked(_scale_rows), "factor, slab, chunk"),
    _family("div_gp_sp", 2, 0, (0, 1), (1,), _div, "denominator [lqp, 1], Gp"),
    _family("div_gp_sp_at", 2, 1, (0, 1, 2), (1,), _chunked(_divide_rows), "denominator, slab, chunk"),
    _family("div_gp_sp_all", 2, 0, (0, 1), (1,), _div, "denominator, slab of all dv chunks"),
    _family("sum_g", 2, 0, (0,), (1,), _sum_g, "G, row sums"),
    _family("accum_sp_r_s", 3, 0, (0, 1, 2), (2,), _accum, "denominator, factor, sum"),
    _family("add_gp_g", 2, 0, (0, 1), (1,), _add, "two output tiles"),
    _family("vector_accum_32x64elems", 2, 0, (0, 1), (1,), _add, "two output tiles"),
    _family("scale_g_bf16", 1, 0, (0,), (0,), _scale_scores, "G"),
    _family("fused_softmax", 4, 0, (0, 1), (0, 1, 2, 3), _fused_softmax, "G, maximum, row sums, rescale factor"),
    _family("apply_causal_mask", 1, 2, (0, 1, 2), (0,), _causal, "G [lqp, lkp], query block, key block"),
    _family("apply_window_mask", 1, 3, (0, 1, 2, 3), (0,), _window, "G, query block, key block, window in blocks"),
    _family("copy_tile", 2, 0, (0,), (1,), _copy, "two tiles"),
    _family("copy_half_tile", 2, 1, (0, 2), (1,), _copy_half, "query pair, query tile, which half"),
    _family("copy_half_tile_at", 2, 2, (0, 1, 2, 3), (1,), _copy_half_at, "query pair, queries, which half, chunk"),
    _family(
        r"vector_copy_\d+(?:x\d+)?elems",
        2,
        0,
        (0, 1, 2),
        (2,),
        _copy_vector,
        "offset, source, target",
        scalars_before=1,
        name="vector_copy_elems",
        examples=("vector_copy_32elems", "vector_copy_32x96elems"),
    ),
)
