"""Twenty failures of different kinds, each as two deployments of different models would meet it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harvest.written import attempt, decision, write_deployment


@dataclass(frozen=True, slots=True)
class Planted:
    """One kind of failure. `message` and `printed` take the figures of a model; `other` are those of the second model."""

    code: str
    gate: str
    kernel: str
    message: str
    printed: str
    looks_like: str
    key: str
    before: Any
    after: Any
    why: str
    figures: Mapping[str, Any]
    other: Mapping[str, Any]


PLANTED = [
    Planted("divisibility", "kernel", "gemm", "N={n} does not divide into tile_n*herd_n = {t}", "N={n} is not a multiple of tile_n*herd_n={t}", "", "tile_n", 128, 32,
            "a K/V projection is narrower than one round of the herd", {"n": 256, "t": 512}, {"n": 128, "t": 512}),
    Planted("buffer_bytes", "kernel", "gemv", "A in L2 takes {b} bytes, over 524288", "L2 capacity exceeded: {b} > 524288", "", "tile_m", 8, 2,
            "tile_m rows of K must fit the memory tile", {"b": 622592}, {"b": 573440}),
    Planted("bd_count", "block", "rms_gemms_rope", "shim channel needs {b} buffer descriptors, over 16", "error: 'aiex.dma_configure_task' op Allocator exhausted available buffer descriptor IDs ({b})",
            "", "stitched", True, False, "six launches share one pool of descriptors", {"b": 21}, {"b": 27}),
    Planted("repeat_count", "kernel", "lm_head_gemv", "{r} repeats of the vector's transfer, over 255", "error: 'aiex.npu.push_queue' op Repeat count exceeds the [0:255] range: {r}", "", "m_input", 4, 16,
            "the vector is read once for every row group", {"r": 512}, {"r": 344}),
    Planted("shim_channels", "kernel", "eltwise_add", "{c} channels on a column of shims that has 2", "error: 'air.channel.put' op failed to map to shim dma channels: out of channels ({c})", "", "herd_rows", 4, 1,
            "every tile of a column takes its own channels to memory", {"c": 6}, {"c": 12}),
    Planted("deadlock", "kernel", "flash_attention", "deadlock: {n} tiles wait for channel QK_{n}, nothing puts", "deadlock: get on @qk[{n}] waits, 0 puts outstanding", "", "dk_chunks", 2, 1,
            "the second chunk of the head is never sent", {"n": 8}, {"n": 16}),
    Planted("leftover_elements", "kernel", "silu_mul", "{n} elements were put and never taken", "channel @gate holds {n} elements at the end", "", "launches", 3, 4,
            "the last launch does not reach the end of the vector", {"n": 1024}, {"n": 2816}),
    Planted("unwritten_read", "block", "o_ffn", "reads {n} elements of %buf that nothing has written", "read of uninitialised memory: {n} elements of L2 buffer normed", "", "seq_pad", 256, 512,
            "fewer rows than one round of the herd leave the shared buffer half empty", {"n": 131072}, {"n": 163840}),
    Planted("rope_convention", "block", "rope", "Q after RoPE is {m:.2f} off in the mean", "mean_rel_L1 {m:.3f} at stage q_rope", "half-split (Hugging Face) against interleaved RoPE", "convention", "interleaved", "halfsplit",
            "Hugging Face rotates halves of the head", {"m": 0.61}, {"m": 0.58}),
    Planted("missing_bias", "block", "rms_qkv_bias_rope", "K is off by a constant along the sequence, mean {m:.1f}", "mean_rel_L1 {m:.2f} at stage k_biased, the same for every position", "a constant added or left out", "qkv_bias", False, True,
            "attention_bias is true in the config and the kernel added none", {"m": 24.9}, {"m": 7.3}),
    Planted("stale_buffer", "model", "o_gemv_ffn", "layer {n} repeats the output of the call before", "output of call 2 equals call 1 bit for bit (layer {n})", "stale buffer", "static", "0,2,5", "0,2",
            "the residual's position was marked as written once", {"n": 3}, {"n": 11}),
    Planted("causal_mask", "block", "flash_attention", "position 0 changes with the keys of position {n}", "attention output correlation 0.34, later keys leak into position 0 (key {n})", "attention that sees the future", "causal", False, True,
            "the kernel was built without its mask", {"n": 7}, {"n": 63}),
    Planted("kv_heads", "block", "flash_attention", "query heads from {n} on use the wrong key head", "cosine 0.77, heads {n} and up", "heads permuted", "pad_heads", "end", "group",
            "padding at the end changes which key head a query head belongs to", {"n": 6}, {"n": 14}),
    Planted("transposed_weight", "kernel", "gemm", "output correlates with the transposed weight ({m:.3f})", "correlation 0.001 with the reference, {m:.3f} with the transposed weight", "transposed", "contiguous", False, True,
            "a transposed view was handed over without copying", {"m": 0.998}, {"m": 0.996}),
    Planted("norm_epsilon", "block", "rmsnorm", "small rows are {m:.1f} times too large", "worst element at a row of norm 3e-4, factor {m:.2f}", "", "epsilon", 1e-6, 1e-5,
            "the config's rms_norm_eps was not passed on", {"m": 2.1}, {"m": 1.7}),
    Planted("out_of_bounds", "kernel", "eltwise_add", "the window touches {n} elements past the end of its buffer", "the source window touches elements {n} to {m}, but the memref ends before: out of bounds", "", "first_piece", 1, 0,
            "the first piece of a core begins where its stretch begins, not a tile later", {"n": 1024, "m": 9215}, {"n": 2048, "m": 18431}),
    Planted("lm_head_rows", "model", "lm_head_gemv", "{v} rows of the vocabulary are in no partition", "logits of {v} tokens are zero", "a block of zeros at the end", "partitions", 8, 10,
            "eight partitions do not cover the vocabulary", {"v": 20864}, {"v": 4544}),
    Planted("nan", "kernel", "flash_attention", "all outputs are NaN from row {n} on", "first NaN at row {n} of the softmax", "NaN", "lqp_flag", "launch", "tile",
            "the object file was built with the launch's rows instead of the tile's", {"n": 0}, {"n": 64}),
    Planted("object_symbol", "kernel", "silu_mul", "@silu_{n} is an external function and no object file has it", "undefined symbol: silu_{n}", "", "symbol", "silu", "silu_and_mul_bf16",
            "the object file has the function under its full name only", {"n": 4096}, {"n": 5632}),
    Planted("two_writers", "kernel", "rope", "two tiles write the same {n} elements of the output", "two tiles of the herd write the same {n} elements while neither waits for the other", "", "row_of_core", "trip", "trip+core",
            "every core has to take rows of its own", {"n": 64}, {"n": 128}),
]  # fmt: skip


def deploy(folder: Path, model: str, planted: list[Planted], *, second: bool = False) -> Path:
    """A deployment that meets these failures one after the other and mends each."""
    events: list[tuple[str, int | None, Mapping[str, Any]]] = []
    for one in planted:
        figures = one.other if second else one.figures
        shape = {"M": 2048 if second else 1024, "K": 1536 if second else 2048}
        phase = {"kernel": 1, "block": 2, "model": 3}[one.gate]
        failed = {
            "code": one.code,
            "message": one.message.format(**figures),
            "looks_like": one.looks_like,
            "diagnostic": one.printed.format(**figures),
        }
        events += [
            ("attempt", phase, attempt(one.gate, one.kernel, shape, {one.key: one.before}, False, **failed)),
            ("decision", phase, decision("setting", f"{one.kernel}.{one.key}", one.before, one.after, one.why)),
            ("attempt", phase, attempt(one.gate, one.kernel, shape, {one.key: one.after}, True)),
        ]
    return write_deployment(folder, model, *events)


def asked_with(one: Planted) -> str:
    """What the second deployment asks the memory with: the printed line and the machine's words."""
    return f"{one.printed.format(**one.other)}\n{one.code}: {one.message.format(**one.other)}"
