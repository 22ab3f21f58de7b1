"""What each kernel's time is made of: features of shape and settings, and parts that sum to microseconds.

A `KernelModel` turns a shape and settings into features (sizes, counts, bytes) and features with fitted
parameters into named parts. Features may be scalars or arrays over many rows alike. Sizes are in
elements, bytes in bytes, times in µs, bandwidths in GB/s; `mac_*` are multiply-adds per ns of one core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from npu_tools.cost.solve import Array
from npu_tools.errors import UnknownKernel, UnusableInput

Params = Mapping[str, float]
Features = Mapping[str, Array]
Parts = dict[str, Array]
Settings = Mapping[str, int | str]

DISPATCH = "dispatch"
"""The part that a fused launch sequence pays once."""
FUSED_CAST_FIXED = "cast_fixed"


@dataclass(frozen=True, slots=True)
class KernelModel:
    """One kernel's time. start: parameter → value where a fit begins (units by name)."""

    kernel: str
    start: Params
    describe: Callable[[Mapping[str, int], Settings], dict[str, float]]
    parts: Callable[[Params, Features], Parts]
    flops: Callable[[Mapping[str, int]], float]
    traffic: Callable[[Mapping[str, int]], float]


def needed(name: str, table: Mapping[str, int | str], what: str) -> int:
    """A positive whole number out of a table.

    Raises:
        UnusableInput: it is missing or not positive.
    """
    value = table.get(name)
    if not isinstance(value, int) or value <= 0:
        have = ", ".join(f"{k}={v}" for k, v in table.items()) or "nothing"
        raise UnusableInput(f"{what} needs {name!r} as a positive whole number; given: {have}")
    return value


def divided(whole: int, part: int, what: str) -> int:
    """whole / part, which must come out even.

    Raises:
        UnusableInput: it does not.
    """
    if part <= 0 or whole % part:
        raise UnusableInput(f"{what}: {whole} is not a multiple of {part}")
    return whole // part


def grouped(count: int, tiling: int) -> int:
    """In how many groups the runtime issues `count` launches: by `tiling` at a time, halved until it divides.

    `tiling` is the backend's runtime_loop_tiling_sizes. 0 is none: the loop then folds into the repeat counts
    of its descriptors and is issued once. The registry's harnesses use 2 for a GEMM and 4 for a GEMV.
    """
    if tiling <= 0:
        return 1
    size = tiling
    while count % size:
        size //= 2
    return count // size


# --- GEMM -------------------------------------------------------------------------------------------------


def _gemm_describe(shape: Mapping[str, int], settings: Settings) -> dict[str, float]:
    m, k, n = (needed(name, shape, "a GEMM's shape") for name in ("M", "K", "N"))
    tile_m, k2, k1, tile_n = (
        needed(name, settings, "a GEMM") for name in ("tile_m", "tile_k_l2", "tile_k_l1", "tile_n")
    )
    herd_m, herd_n = needed("herd_m", settings, "a GEMM"), needed("herd_n", settings, "a GEMM")
    method = str(settings.get("method", "fused-cast"))
    if method not in ("fused-cast", "drain", "direct", "external"):
        raise UnusableInput(f"a GEMM's method is fused-cast, drain, direct or external, not {method!r}")
    rows = divided(m, tile_m * herd_m, "M over tile_m·herd_m")
    columns = divided(n, tile_n * herd_n, "N over tile_n·herd_n")
    loops, calls = divided(k, k2, "K over tile_k_l2"), divided(k2, k1, "tile_k_l2 over tile_k_l1")
    tiling = int(settings.get("runtime_tiling", 2))
    out_bytes = 4 if method in ("fused-cast", "external") or str(settings.get("dtype", "")).endswith("f32") else 2
    return {
        "launches": rows * columns,
        "groups": grouped(rows, tiling) * grouped(columns, tiling),
        "loops": loops,
        "calls": loops * calls,
        "macs": float(tile_m * tile_n * k),
        "fill_bytes": float(k1 * max(tile_m, tile_n) * 2),
        "read_bytes": float((tile_m * herd_m + tile_n * herd_n) * k * 2),
        "write_bytes": float(tile_m * herd_m * tile_n * herd_n * out_bytes),
        "direct": float(method == "direct"),
        "fused": float(method == "fused-cast"),
        "cast_bytes": 6.0 * m * n if method == "fused-cast" else 0.0,
    }


def _gemm_parts(p: Params, f: Features) -> Parts:
    """Launch by launch: the array's time or its reads, whichever is longer (softly), then writes and restarts.

    A restart fills the first L1 tile of every L2 loop through one 4-byte stream before any core can start.
    """
    rate = np.where(f["direct"] > 0, p["mac_direct"], p["mac_external"]) * 1e3
    array = f["macs"] / rate + f["calls"] * p["call_us"]
    reads = f["read_bytes"] / p["ddr_gbps"] / 1e3
    body = (array**5 + reads**5) ** 0.2
    return {
        DISPATCH: p["dispatch_us"] + 0.0 * f["macs"],
        FUSED_CAST_FIXED: f["fused"] * p["cast_fixed_us"],
        "launches": f["launches"] * p["launch_us"] + f["groups"] * p["group_us"],
        "restarts": f["launches"] * f["loops"] * (p["loop_us"] + f["fill_bytes"] / p["stream_gbps"] / 1e3),
        "array_or_reads": f["launches"] * body,
        "writes": f["launches"] * f["write_bytes"] / p["ddr_gbps"] / 1e3,
        "cast": f["cast_bytes"] / p["cast_gbps"] / 1e3,
    }


GEMM = KernelModel(
    kernel="gemm",
    start={
        "dispatch_us": 74.0,
        "cast_fixed_us": 360.0,
        "launch_us": 5.0,
        "group_us": 20.0,
        "loop_us": 1.0,
        "stream_gbps": 6.0,
        "mac_external": 300.0,
        "mac_direct": 150.0,
        "call_us": 0.2,
        "ddr_gbps": 45.0,
        "cast_gbps": 70.0,
    },
    describe=_gemm_describe,
    parts=_gemm_parts,
    flops=lambda s: 2.0 * s["M"] * s["K"] * s["N"],
    traffic=lambda s: 2.0 * (s["M"] * s["K"] + s["K"] * s["N"] + s["M"] * s["N"]),
)


# --- GEMV -------------------------------------------------------------------------------------------------


def _gemv_describe(shape: Mapping[str, int], settings: Settings) -> dict[str, float]:
    m, k = needed("M", shape, "a GEMV's shape"), needed("K", shape, "a GEMV's shape")
    herd, tile_m, rows = (needed(name, settings, "a GEMV") for name in ("herd_m", "tile_m", "m_input"))
    launches = divided(m, tile_m * herd, "M over tile_m·herd_m")
    return {
        "groups": float(grouped(launches, int(settings.get("runtime_tiling", 4)))),
        "calls": float(launches * divided(tile_m, rows, "tile_m over m_input")),
        "bytes": 2.0 * (m * k + k + m),
        "columns": float(herd),
    }


def _gemv_parts(p: Params, f: Features) -> Parts:
    return {
        DISPATCH: p["dispatch_us"] + 0.0 * f["bytes"],
        "groups": f["groups"] * p["group_us"],
        "calls": f["calls"] * p["call_us"],
        "stream": f["bytes"] / (p["column_gbps"] * f["columns"]) / 1e3,
    }


GEMV = KernelModel(
    kernel="gemv",
    start={"dispatch_us": 75.0, "group_us": 5.0, "call_us": 0.05, "column_gbps": 4.5},
    describe=_gemv_describe,
    parts=_gemv_parts,
    flops=lambda s: 2.0 * s["M"] * s["K"],
    traffic=lambda s: 2.0 * s["M"] * s["K"],
)


# --- row kernels: RMSNorm, LayerNorm, RoPE ----------------------------------------------------------------


def _rows_of(kernel: str, width: str) -> Callable[[Mapping[str, int], Settings], dict[str, float]]:
    def describe(shape: Mapping[str, int], settings: Settings) -> dict[str, float]:
        rows, columns = needed("rows", shape, f"{kernel}'s shape"), needed(width, shape, f"{kernel}'s shape")
        tiles = needed("herd_x", settings, kernel) * int(settings.get("herd_y", 1))
        return {"rows": float(divided(rows, tiles, f"{kernel}: rows over tiles")), "columns": float(columns)}

    return describe


def _rows_parts(p: Params, f: Features) -> Parts:
    return {
        DISPATCH: p["dispatch_us"] + 0.0 * f["rows"],
        "rows": f["rows"] * p["row_us"],
        "elements": f["rows"] * f["columns"] * p["element_ns"] / 1e3,
    }


def _row_kernel(kernel: str, width: str, start: Params, reads: float) -> KernelModel:
    return KernelModel(
        kernel=kernel,
        start=start,
        describe=_rows_of(kernel, width),
        parts=_rows_parts,
        flops=lambda s: 4.0 * s["rows"] * s[width],
        traffic=lambda s: reads * s["rows"] * s[width],
    )


RMSNORM = _row_kernel("rmsnorm", "cols", {"dispatch_us": 110.0, "row_us": 0.1, "element_ns": 1.2}, 4.0)
LAYERNORM = _row_kernel("layernorm", "cols", {"dispatch_us": 100.0, "row_us": 0.3, "element_ns": 2.0}, 4.0)
ROPE = _row_kernel("rope", "head_dim", {"dispatch_us": 80.0, "row_us": 0.03, "element_ns": 0.5}, 6.0)


# --- element kernels: SiLU·mul, add, GELU -----------------------------------------------------------------


def _elements_of(kernel: str, tile: str) -> Callable[[Mapping[str, int], Settings], dict[str, float]]:
    def describe(shape: Mapping[str, int], settings: Settings) -> dict[str, float]:
        n = needed("n", shape, f"{kernel}'s shape")
        tiles = needed("herd_x", settings, kernel) * int(settings.get("herd_y", 1))
        size = needed(tile, settings, kernel)
        chunks = divided(n, tiles * size, f"{kernel}: n over tiles·{tile}")
        return {"elements": n / tiles, "chunks": float(chunks)}

    return describe


def _elements_parts(p: Params, f: Features) -> Parts:
    return {
        DISPATCH: p["dispatch_us"] + 0.0 * f["elements"],
        "chunks": f["chunks"] * p["chunk_us"],
        "elements": f["elements"] * p["element_ns"] / 1e3,
    }


def _element_kernel(kernel: str, tile: str, start: Params, reads: float) -> KernelModel:
    return KernelModel(
        kernel=kernel,
        start=start,
        describe=_elements_of(kernel, tile),
        parts=_elements_parts,
        flops=lambda s: float(s["n"]),
        traffic=lambda s: reads * s["n"],
    )


SILU_MUL = _element_kernel("silu_mul", "tile_n", {"dispatch_us": 80.0, "chunk_us": 0.01, "element_ns": 2.0}, 6.0)
ELTWISE_ADD = _element_kernel("eltwise_add", "tile", {"dispatch_us": 86.0, "chunk_us": 0.01, "element_ns": 0.7}, 6.0)
GELU = _element_kernel("gelu", "tile_n", {"dispatch_us": 90.0, "chunk_us": 0.01, "element_ns": 2.2}, 4.0)


# --- FlashAttention ---------------------------------------------------------------------------------------


def _attention_describe(shape: Mapping[str, int], settings: Settings) -> dict[str, float]:
    what = "flash_attention's shape"
    queries, keys = needed("seq_q", shape, what), needed("seq_kv", shape, what)
    dim, heads, kv_heads = (needed(name, shape, what) for name in ("head_dim", "heads", "kv_heads"))
    lqp, unroll = (
        needed("lqp", settings, "flash_attention"),
        needed("num_heads_per_unroll", settings, "flash_attention"),
    )
    chunks = needed("dv_chunks", settings, "flash_attention")
    steps = divided(queries, lqp, "seq_q over lqp") * divided(heads, unroll, "heads over num_heads_per_unroll") * chunks
    divided(heads, kv_heads, "heads over kv_heads")
    return {
        "steps": float(steps),
        "keys": float(keys),
        "key_bytes": 2.0 * keys * (dim + dim / chunks),
    }


def _attention_parts(p: Params, f: Features) -> Parts:
    """Each step of the launch re-streams all keys and values for one block of queries; heads side by side in parallel."""
    return {
        DISPATCH: p["dispatch_us"] + 0.0 * f["steps"],
        "steps": f["steps"] * p["step_us"],
        "scores": f["steps"] * f["keys"] * p["key_ns"] / 1e3,
        "stream": f["steps"] * f["key_bytes"] / p["stream_gbps"] / 1e3,
    }


FLASH_ATTENTION = KernelModel(
    kernel="flash_attention",
    start={"dispatch_us": 600.0, "step_us": 30.0, "key_ns": 25.0, "stream_gbps": 30.0},
    describe=_attention_describe,
    parts=_attention_parts,
    flops=lambda s: 4.0 * s["heads"] * s["seq_q"] * s["seq_kv"] * s["head_dim"],
    traffic=lambda s: 2.0 * s["head_dim"] * (2 * s["heads"] * s["seq_q"] + 2 * s["kv_heads"] * s["seq_kv"]),
)

MODELS: Mapping[str, KernelModel] = {
    model.kernel: model
    for model in (GEMM, GEMV, RMSNORM, LAYERNORM, ROPE, SILU_MUL, ELTWISE_ADD, GELU, FLASH_ATTENTION)
}


def model_of(kernel: str) -> KernelModel:
    """The model of a kernel.

    Raises:
        UnknownKernel: there is none; the text lists those there are.
    """
    if kernel not in MODELS:
        raise UnknownKernel(f"no cost model for kernel {kernel!r}; there are models for {', '.join(MODELS)}")
    return MODELS[kernel]
