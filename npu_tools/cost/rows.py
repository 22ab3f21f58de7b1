"""Measured rows: what a device took for one kernel, shape and configuration, from plain records.

    rows, refused = read_rows(records)      # records: JSON-like dicts, for instance corpus records
    rows[0].latency_us, refused             # 2764.0, {"no latency, throughput or bandwidth": 2}

A record is refused by a counted reason, never repaired.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from typing import Any, cast

KERNELS = (
    "gemm",
    "gemv",
    "rmsnorm",
    "layernorm",
    "rope",
    "silu_mul",
    "eltwise_add",
    "gelu",
    "flash_attention",
)
"""The kernels there is a cost model for; the names are the corpus's."""

GEMM_METHODS = ("fused-cast", "drain", "direct", "external")


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measurement. shape, tile: sizes by name, in elements. herd: columns × rows. latency_us: microseconds."""

    kernel: str
    shape: Mapping[str, int]
    tile: Mapping[str, int]
    herd: tuple[int, int] | None
    method: str | None
    dtype: str
    precision: str | None
    latency_us: float
    source: str
    models: tuple[str, ...] = ()
    suspicious: str | None = None
    settings: Mapping[str, int | str] = field(init=False)

    def __post_init__(self) -> None:
        settings: dict[str, int | str] = dict(self.tile)
        if self.herd is not None and self.kernel == "gemm":
            settings["herd_m"], settings["herd_n"] = self.herd
        if self.kernel == "gemm":
            settings["method"] = self.method or "direct"
            settings["dtype"] = self.dtype
        object.__setattr__(self, "settings", settings)

    def digest_line(self) -> str:
        """The measured facts on one line; equal lines are equal measurements."""
        shape = ",".join(f"{k}={v}" for k, v in sorted(self.shape.items()))
        settings = ",".join(f"{k}={v}" for k, v in sorted(self.settings.items()))
        return f"{self.kernel}|{shape}|{settings}|{self.latency_us:.6g}"


def rows_digest(rows: Iterable[MeasuredRow]) -> str:
    """A digest of the measured facts of `rows`, whatever their order."""
    text = "\n".join(sorted(row.digest_line() for row in rows))
    return blake2b(text.encode(), digest_size=12).hexdigest()


def read_rows(records: Iterable[Mapping[str, Any]]) -> tuple[list[MeasuredRow], dict[str, int]]:
    """The usable rows of `records` in a fixed order, and how many were refused for which reason."""
    rows: list[MeasuredRow] = []
    refused: Counter[str] = Counter()
    for record in records:
        row = _read(record)
        if isinstance(row, str):
            refused[row] += 1
        else:
            rows.append(row)
    return sorted(rows, key=lambda row: (row.digest_line(), row.source)), dict(sorted(refused.items()))


def _read(record: Mapping[str, Any]) -> MeasuredRow | str:
    """The row of one record, or why there is none."""
    kernel = record.get("kernel")
    if kernel not in KERNELS:
        return f"no cost model for kernel {kernel!r}"
    devices = record.get("devices") or ["npu2"]
    if "npu2" not in devices:
        return "not measured on npu2"
    shape, tile = _sizes(record.get("shape")), _sizes(record.get("tile"))
    if not shape or tile is None:
        return "shape or tile is not a table of positive whole numbers"
    herd = _herd(record.get("herd"))
    latency = _latency(str(kernel), shape, record.get("figures"))
    if latency is None:
        return "no latency, throughput or bandwidth"
    method = _method(str(kernel), record.get("method"))
    if kernel == "gemm" and (method not in GEMM_METHODS or herd is None or not {"M", "K", "N"} <= set(shape)):
        return "a GEMM without method, herd or M, K and N"
    models = cast("list[object]", record.get("models") or [])
    source = str(record.get("id", "unnamed"))
    return MeasuredRow(
        kernel=str(kernel),
        shape=shape,
        tile=tile,
        herd=herd,
        method=method,
        dtype=str(record.get("dtype", "bf16")),
        precision=cast("str | None", record.get("precision")),
        latency_us=latency,
        source=source,
        models=tuple(sorted(str(model).replace(".", "-") for model in models)),
        suspicious=suspicions().get(source),
    )


@cache
def suspicions() -> Mapping[str, str]:
    """Why a row is not to be trusted, by its id (suspicious.toml)."""
    text = files("npu_tools.cost").joinpath("suspicious.toml").read_text(encoding="utf-8")
    return {str(row["id"]): str(row["reason"]) for row in tomllib.loads(text)["row"]}


def _sizes(value: object) -> dict[str, int] | None:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return None
    items = cast("Mapping[str, object]", value)
    sizes = {key: v for key, v in items.items() if isinstance(v, int) and v >= 0}
    return sizes if len(sizes) == len(items) else None


def _herd(value: object) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d+)[x×](\d+)", str(value)) if value else None
    return (int(found[1]), int(found[2])) if found else None


def _method(kernel: str, value: object) -> str | None:
    """For a GEMM one of GEMM_METHODS; for others the record's own words."""
    if value is None:
        return None
    text = str(value)
    if kernel != "gemm":
        return text
    return next((name for name in GEMM_METHODS if text.startswith(name)), text)


def _latency(kernel: str, shape: Mapping[str, int], figures: object) -> float | None:
    """Microseconds, from a latency, or from a GEMM's or GEMV's GFLOP/s; the middle of a range."""
    if not isinstance(figures, list):
        return None
    found: dict[str, float] = {}
    for figure in cast("list[Mapping[str, Any]]", figures):
        value, high = figure.get("value"), figure.get("high")
        if isinstance(value, (int, float)) and value > 0:
            found[f"{figure.get('metric')} {figure.get('unit')}"] = (value + high) / 2 if high else float(value)
    if "latency us" in found:
        return found["latency us"]
    flops = {"gemm": ("M", "K", "N"), "gemv": ("M", "K")}.get(kernel)
    if flops and "throughput GFLOPS" in found and all(name in shape for name in flops):
        count = 2.0
        for name in flops:
            count *= shape[name]
        return count / found["throughput GFLOPS"] / 1e3
    return None
