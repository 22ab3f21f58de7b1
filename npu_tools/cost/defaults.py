"""Settings a kernel runs with when nobody chose any: what the deployed models use, as rules.

Sources: Xilinx/mlir-air kernel_registry detail pages ("Recommended" columns) and llms/*/ARCHITECTURE.md.
The rules choose a configuration, never a time.
"""

from __future__ import annotations

from collections.abc import Mapping

from npu_tools.cost.kernels import model_of, needed

HERD_M, HERD_N = 8, 4
FUSED_CAST_FROM = 4e9
"""From this M·K·N on a separate cast launch pays (registry's `auto`)."""
WIDEST_GEMM_N = 9000
"""Wider outputs need a smaller tile_k_l2: the B window's stride is tile_k_l2·N elements."""
L2_BYTES = 512 * 1024
TILE_N = (128, 96, 80, 64, 48, 32, 16)


def padded(size: int, multiple: int) -> int:
    """`size` rounded up to a multiple."""
    return -(-size // multiple) * multiple


def default_settings(kernel: str, shape: Mapping[str, int]) -> dict[str, int | str]:
    """The settings by rule.

    Raises:
        UnknownKernel: no model for this kernel.
        UnusableInput: the shape lacks a size.
    """
    model_of(kernel)
    if kernel == "gemm":
        return _gemm(*(needed(name, shape, "a GEMM's shape") for name in ("M", "K", "N")))
    if kernel == "gemv":
        return _gemv(*(needed(name, shape, "a GEMV's shape") for name in ("M", "K")))
    if kernel == "flash_attention":
        return _attention(needed("head_dim", shape, "flash_attention's shape"))
    if kernel in ("rmsnorm", "layernorm", "rope"):
        rows = needed("rows", shape, f"{kernel}'s shape")
        return {"herd_x": _largest((8, 4, 2, 1), rows), "herd_y": 1}
    n = needed("n", shape, f"{kernel}'s shape")
    herd_y = 2 if kernel == "gelu" else 1
    name, tiles = ("tile", (2048, 1920, 1024)) if kernel == "eltwise_add" else ("tile_n", (4096, 5120, 4864, 512, 256))
    herd_x = next((h for h in (8, 4, 2, 1) if n % (h * herd_y) == 0), 1)
    each = n // (herd_x * herd_y)
    fallback = next((t for t in range(min(4096, each), 0, -1) if each % t == 0), 1)
    return {"herd_x": herd_x, "herd_y": herd_y, name: next((t for t in tiles if each % t == 0), fallback)}


def _largest(sizes: tuple[int, ...], whole: int) -> int:
    return next(size for size in sizes if whole % size == 0)


def _gemm(m: int, k: int, n: int) -> dict[str, int | str]:
    """Fused cast for large shapes, drain for small ones, direct where a narrow tile would overflow L1."""
    tile_n, herd_n = next(
        ((t, h) for h in (HERD_N, 3, 2, 1) for t in TILE_N if n % (t * h) == 0), (n if n < 16 else 16, 1)
    )
    large = m * k * n >= FUSED_CAST_FROM
    method = "drain" if not large else "direct" if 64 <= tile_n < 128 else "fused-cast"
    wanted = 32 if method == "drain" else 64
    tile_m, herd_m = next(((t, h) for h in (HERD_M, 6, 4, 2, 1) for t in (wanted, 32, 16) if m % (t * h) == 0), (m, 1))
    k1 = next((size for size in (32, 48, 64, 16) if k % size == 0), k)
    largest = 128 if method == "direct" else 256
    if method == "fused-cast" and n > WIDEST_GEMM_N:
        largest = 128 if n % 1024 == 0 else 64
    k2 = max((size for size in range(k1, max(largest, k1) + 1, k1) if k % size == 0), default=k1)
    return {
        "tile_m": tile_m,
        "tile_k_l2": k2,
        "tile_k_l1": k1,
        "tile_n": tile_n,
        "herd_m": herd_m,
        "herd_n": herd_n,
        "method": method,
        "dtype": "bf16->bf16",
    }


def _gemv(m: int, k: int) -> dict[str, int | str]:
    """The largest tile_m that divides M and fits L2; K from 11000 on takes one row a call (L1)."""
    herd = _largest((8, 4, 2, 1), m)
    tile_m = next((t for t in (8, 4, 2) if m % (t * herd) == 0 and herd * t * (k + 1) * 2 <= L2_BYTES), 1)
    return {"herd_m": herd, "tile_m": tile_m, "m_input": 1 if k >= 11000 else tile_m}


def _attention(head_dim: int) -> dict[str, int | str]:
    if head_dim >= 256:
        return {"lqp": 256, "num_heads_per_unroll": 1, "dv_chunks": max(1, head_dim // 128)}
    return {"lqp": 256, "num_heads_per_unroll": 2, "dv_chunks": max(1, head_dim // 64)}
