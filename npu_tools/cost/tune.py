"""Rank the legal configurations of one shape by the cost model.

best = tune(fitted, "gemm", {"M": 2048, "K": 2048, "N": 8192}, legal=check)[0]
best.settings, best.prediction.modelled_us
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from npu_tools.cost.defaults import default_settings
from npu_tools.cost.fit import Fitted
from npu_tools.cost.kernels import model_of, needed
from npu_tools.cost.predict import MEASURED_DEVICE, Prediction, check_device, predict_kernel
from npu_tools.errors import UnusableInput

Settings = dict[str, int | str]
Legal = Callable[[str, Mapping[str, int], Mapping[str, int | str]], bool]
"""Whether a kernel, shape and settings pass the device checks."""

TILE_M = (16, 32, 48, 64, 128)
TILE_N = (16, 32, 48, 64, 80, 96, 128, 192, 240, 256)
TILE_K_L1 = (16, 32, 48, 64)
TILE_K_L2 = (32, 64, 96, 128, 144, 160, 192, 256, 320, 384, 512)
HERDS = ((8, 4), (6, 4), (4, 4), (4, 3), (8, 2), (4, 2), (4, 1), (2, 4), (1, 4))
COLUMNS = (8, 4, 2, 1)
CHUNKS = (256, 512, 1024, 1920, 2048, 4096, 4864, 5120, 6144)


@dataclass(frozen=True, slots=True)
class Ranked:
    """One configuration and its modelled time."""

    settings: Mapping[str, int | str]
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Tuned:
    """Configurations from the fastest on. tried: generated ones that divide the shape; refused: by `legal`."""

    ranked: tuple[Ranked, ...]
    tried: int
    refused: int


def candidates(kernel: str, shape: Mapping[str, int]) -> Iterator[Settings]:
    """Configurations of `kernel` worth trying; those that do not divide the shape are among them.

    Raises:
        UnknownKernel: no model for this kernel.
        UnusableInput: the shape lacks a size.
    """
    model_of(kernel)
    base = default_settings(kernel, shape)
    if kernel == "gemm":
        yield from _gemm(base, shape)
    elif kernel == "gemv":
        for herd, tile_m, tiling in product(COLUMNS, (2, 4, 8, 16, 32), (4, 16)):
            for rows in (r for r in (1, 2, 4, 8, 16, 32) if r <= tile_m):
                yield {"herd_m": herd, "tile_m": tile_m, "m_input": rows, "runtime_tiling": tiling}
    elif kernel in ("rmsnorm", "layernorm", "rope"):
        for columns in COLUMNS:
            yield {"herd_x": columns, "herd_y": 1}
    elif kernel == "flash_attention":
        for lqp, unroll in ((256, 2), (512, 1), (256, 1)):
            yield {**base, "lqp": lqp, "num_heads_per_unroll": unroll}
    else:
        tile = "tile" if kernel == "eltwise_add" else "tile_n"
        for columns, rows, size in product(COLUMNS, (1, 2, 4) if kernel == "gelu" else (1,), CHUNKS):
            yield {"herd_x": columns, "herd_y": rows, tile: size}


def _gemm(base: Settings, shape: Mapping[str, int]) -> Iterator[Settings]:
    k = needed("K", shape, "a GEMM's shape")
    deep = tuple(size for size in TILE_K_L2 if k % size == 0)
    for method in ("fused-cast", "drain", "direct"):
        for (herd_m, herd_n), tile_m, tile_n, k1, k2 in product(HERDS, TILE_M, TILE_N, TILE_K_L1, deep):
            if k2 % k1 == 0 and not (method == "drain" and tile_m > 48):
                yield {
                    **base,
                    "method": method,
                    "tile_m": tile_m,
                    "tile_n": tile_n,
                    "tile_k_l1": k1,
                    "tile_k_l2": k2,
                    "herd_m": herd_m,
                    "herd_n": herd_n,
                }


def tune(
    fitted: Fitted,
    kernel: str,
    shape: Mapping[str, int],
    *,
    device: str = MEASURED_DEVICE,
    legal: Legal | None = None,
    best: int = 10,
    fixed: Mapping[str, int | str] | None = None,
) -> Tuned:
    """The `best` fastest configurations that divide the shape and pass `legal`; `fixed` settings are kept.

    `legal` is asked from the fastest on, and only until `best` have passed. Configurations with the same
    modelled time keep the order of `candidates`.

    Raises:
        UnknownKernel: no model, or no rows, for this kernel.
        UnusableInput: the shape lacks a size, or another device.
    """
    check_device(device)
    kept: list[Ranked] = []
    for settings in candidates(kernel, shape):
        if fixed and any(settings.get(name, value) != value for name, value in fixed.items()):
            continue
        try:
            kept.append(Ranked(settings, predict_kernel(fitted, kernel, shape, settings, device)))
        except UnusableInput:
            continue
    kept.sort(key=lambda one: one.prediction.modelled_us)
    passed: list[Ranked] = []
    refused = 0
    for one in kept:
        if len(passed) == best:
            break
        if legal is None or legal(kernel, shape, one.settings):
            passed.append(one)
        else:
            refused += 1
    return Tuned(tuple(passed), len(kept), refused)
