"""Softmax attention: FlashAttention over whole sequences, and one decoding step with its cache."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import affine, func
from xdsl.ir import BlockArgument, OpResult, SSAValue

from npu_tools.air.dialect import ChannelPutOp, LaunchOp
from npu_tools.bench.references.case import Build, Case, Float, Trial, constant, example, units
from npu_tools.bench.references.norms import root_mean_square
from npu_tools.bench.references.rotary import angles, rotate_halves, rotate_pairs
from npu_tools.gate import tolerance_for

Mask = NDArray[np.bool_]


def softmax(scores: Float) -> Float:
    """Along the last axis."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def attention(query: Float, key: Float, value: Float, visible: Mask | None = None) -> Float:
    """[heads, queries, width] over [key heads, keys, width]: query heads share key heads in groups of neighbours."""
    group = len(query) // len(key)
    out = np.empty((*query.shape[:2], value.shape[2]))
    for head in range(len(query)):
        scores = query[head] @ key[head // group].T * query.shape[2] ** -0.5
        if visible is not None:
            scores = np.where(visible, scores, -np.inf)
        out[head] = softmax(scores) @ value[head // group]
    return out


def _visible(case: Case, queries: int, keys: int) -> Mask | None:
    """Which keys a query sees; all where the program masks nothing."""
    window = _window(case)
    if window is None and not case.calls("apply_causal_mask"):
        return None
    back = np.arange(queries)[:, None] - np.arange(keys)
    return (back >= 0) & (back < (window or keys + queries))


def _window(case: Case) -> int | None:
    for op in case.program.module.walk():
        if isinstance(op, func.CallOp) and op.callee.string_value() == "apply_window_mask":
            blocks = constant(op.operands[-1])
            declared = case.declared("apply_window_mask")
            if blocks is not None and declared:
                return int(blocks) * declared[0][1]
    return None


def heads_first(case: Case) -> Trial:
    """Query, key [heads, length, width]; value and output cut into column chunks, [heads * chunks, length, chunk]."""
    q, k = case.normal(0), case.normal(1)
    heads, queries, _ = q.shape
    key_heads, keys, _ = k.shape
    chunk = case.shape(2)[2]
    chunks = case.shape(2)[0] // key_heads
    v = case.normal(2, shape=(key_heads, keys, chunks * chunk))
    out = attention(q, k, v, _visible(case, queries, keys))
    return case.trial(
        {0: q, 1: k, 2: _chunked(v, chunk)},
        {3: (_chunked(out, chunk).reshape(heads * chunks, queries, chunk), tolerance_for("flash_attention"))},
    )


def _chunked(values: Float, chunk: int) -> Float:
    heads, length, width = values.shape
    return values.reshape(heads, length, width // chunk, chunk).transpose(0, 2, 1, 3).reshape(-1, length, chunk)


def sequence_first(case: Case) -> Trial:
    """Everything [length, heads * width]."""
    width = head_width(case, 0)
    q, k, v = case.normal(0), case.normal(1), case.normal(2)
    heads = q.shape[1] // width
    key_heads = k.shape[1] // width

    def split(values: Float, count: int) -> Float:
        return values.reshape(len(values), count, -1).transpose(1, 0, 2)

    out = attention(split(q, heads), split(k, key_heads), split(v, key_heads), _visible(case, len(q), len(k)))
    return case.trial(
        {0: q, 1: k, 2: v}, {3: (out.transpose(1, 0, 2).reshape(len(q), -1), tolerance_for("flash_attention"))}
    )


def head_width(case: Case, position: int) -> int:
    """Columns of one head of a sequence-first argument: what its column offset grows by from head to head."""
    for op in case.program.module.walk():
        if isinstance(op, ChannelPutOp) and _argument(op.memref) == position and op.window.offsets:
            offset = op.window.offsets[-1]
            if isinstance(offset, OpResult) and isinstance(offset.owner, affine.ApplyOp):
                rule = offset.owner.map.data
                zeros = [0] * (rule.num_dims + rule.num_symbols)
                ones = [1, *zeros[1:]]
                base = rule.eval(zeros[: rule.num_dims], zeros[rule.num_dims :])
                step = rule.eval(ones[: rule.num_dims], ones[rule.num_dims :])
                return step[0] - base[0]
    return case.shape(position)[1]


def _argument(value: SSAValue) -> int | None:
    """The function argument behind a launch's argument."""
    if isinstance(value, BlockArgument):
        owner = value.block.parent_op()
        if isinstance(owner, LaunchOp):
            place = list(owner.kernel_args).index(value) if value in list(owner.kernel_args) else -1
            return _argument(owner.kernel_operands[place]) if place >= 0 else None
        if isinstance(owner, func.FuncOp):
            return value.index
    return None


def with_mask(case: Case) -> Trial:
    """Query already scaled, key [width, keys], a mask that is added to the scores."""
    q, k, v = case.normal(0, case.shape(0)[1] ** -0.5), case.normal(1), case.normal(2)
    mask = case.normal(3)
    tolerance = example("flash_attention/dataflow_based/attn.py", 1e-1, 1e-1)
    return case.trial({0: q, 1: k, 2: v, 3: mask}, {4: (softmax(q @ k + mask) @ v, tolerance)})


def decode_grouped(case: Case) -> Trial:
    """RMS norm, projections of a group of queries, a key and a value, rotation at the position, attention to the cache.

    The cache gains the new key and value at the position. Rotary base 500000, halves turned against each other.
    """
    key_heads, projections, inner, width = case.shape(1)
    group = projections - 2
    position = case.herd_indices()[0]
    x = case.normal(0, shape=(inner,))
    weight = case.rounded(0, case.rng.standard_normal(inner) * 0.1 + 1)
    packed = np.zeros(int(np.prod(case.shape(0))))
    packed[:inner], packed[inner : 2 * inner] = x, weight
    w = case.normal(1, inner**-0.5)
    keys, values = case.normal(2), case.normal(3)
    normed = root_mean_square(x) * weight
    projected = np.einsum("k,hpkn->hpn", normed, w)
    turn = angles(np.array([float(position)]), width, 500000.0)
    projected[:, : group + 1] = rotate_halves(projected[:, : group + 1], np.cos(turn), np.sin(turn))
    keys_after, values_after = np.array(keys), np.array(values)
    keys_after[:, position], values_after[:, position] = projected[:, group], projected[:, group + 1]
    seen = slice(position + 1)
    out = np.stack(
        [
            attention(projected[h, :group][None], keys_after[h, seen][None], values_after[h, seen][None])[0]
            for h in range(key_heads)
        ]
    )
    projection = example("matrix_vector_multiplication/bf16_cascade/matvec_cascade.py", 4e-2, 1e-1)
    return case.trial(
        {0: packed, 1: w, 2: keys, 3: values},
        {
            2: (keys_after, projection),
            3: (values_after, projection),
            4: (out, tolerance_for("flash_attention")),
        },
    )


def decode_single(case: Case) -> Trial:
    """One head: query, key and value from three vectors and three matrices, rotation, attention to the cache.

    Rotary base 10000, angles in bf16. Upstream's own test allows rtol 1. The program reads the cache's row at the
    position before it writes it, so the caller puts the new key and value there beforehand, as upstream's test does.
    """
    _, inner, width = case.shape(1)
    position = case.herd_indices()[0]
    a, w = case.normal(0), case.normal(1, inner**-0.5)
    keys, values = case.normal(2), case.normal(3)
    projected = np.einsum("pk,pkn->pn", a, w)
    turn = angles(np.array([float(position)]), width, 10000.0)
    projected[:2] = rotate_pairs(projected[:2], np.cos(turn), np.sin(turn))
    keys_after, values_after = np.array(keys), np.array(values)
    keys_after[position], values_after[position] = projected[1], projected[2]
    seen = slice(position + 1)
    out = attention(projected[:1][None], keys_after[seen][None], values_after[seen][None])
    # Angles up to the position, frequency and product rounded to bf16, are off by up to 2**-8 of it.
    projection = units(4, 2.0**-8 * position * float(np.abs(projected).max()), "rotation by bf16 angles")
    return case.trial(
        {0: a, 1: w, 2: keys_after, 3: values_after},
        {2: (keys_after, projection), 3: (values_after, projection), 4: (out, tolerance_for("flash_attention"))},
    )


def decode(case: Case) -> Trial:
    """One head or groups of heads, by the weights' shape."""
    return decode_grouped(case) if len(case.shape(1)) == 4 else decode_single(case)


def by_shape(case: Case) -> Trial:
    """Whichever of the three layouts the arguments have."""
    if len(case.arguments) == 5:
        return with_mask(case)
    return heads_first(case) if len(case.shape(0)) == 3 else sequence_first(case)


REFERENCES: tuple[tuple[str, Build], ...] = (
    ("flash_attention*", by_shape),
    ("@attention_bf16", by_shape),
    ("@flash_attention", by_shape),
    ("attention_decode*", decode),
    ("llama2_mha*", decode),
    ("@mha_bf16", decode),
)
