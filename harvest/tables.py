"""Tables and JSON of kernels to rows: which shape was verified, in which configuration, with which figures.

>>> drafts_of_tables(source), drafts_of_registry(source)

A row needs a kernel and a shape with named or three extents; a result that is no pass makes no row. Types and tiles that
are not stated stay out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, cast

from harvest.draft import Draft, Evidence
from harvest.markdown import blocks, plain, sections, table_of
from harvest.sources import Source
from harvest.wording import date_in, kernels_in

_NAMED = re.compile(r"\b(M|N|K|LQ|LK|seq|rows|cols|n_h|n_kv|n_rows|dk|dv|hd|n|dim)\s*=\s*\**(\d[\d,]*)\**")
_CHAINED = re.compile(r"\b((?:[MNK]\s*=\s*){2,3})\**(\d[\d,]*)")
_CROSS = re.compile(r"(?<![\w.])\**(\d[\d,]*)\**\s*[×x]\s*\**(\d[\d,]*)\**(?:\s*[×x]\s*\**(\d[\d,]*)\**)?(?![\w.])")
_TILE = re.compile(r"\b(tile_\w+|herd_\w+|k_split|m_input|lqp|lkp)\s*=\s*\**(\d+)")
_KERNEL_COLUMN = re.compile(r"kernel|operation|op$")
_SHAPE_COLUMN = re.compile(r"shape|dimension|size|config")
_RESULT_COLUMN = re.compile(r"status|result|cosine|corr|verdict|note|pass")
_LATENCY = re.compile(r"(\d+(?:\.\d+)?)\s*(µs|us|ms)\b")
_BAD = re.compile(r"(?i)\b(?:fail\w*|deferred|n/a|todo|untested|not (?:tested|run)|blocked|hang\w*|skip\w*)\b|❌|✗")
_GOOD = re.compile(r"(?i)\bpass\w*\b|\bok\b|✓|✅|\b0?\.99\d*|\b1\.0+\b|\bverified\b")


def drafts_of_tables(source: Source) -> list[Draft]:
    """The kernel rows of the tables of one document."""
    day = date_in(source.text)
    found: list[Draft] = []
    for section in sections(source.text):
        for block in blocks(section.body):
            table = table_of(block)
            if table is None:
                continue
            kernel_at = next((n for n, c in enumerate(table.columns) if _KERNEL_COLUMN.search(c)), None)
            shape_at = next(
                (n for n, c in enumerate(table.columns) if _SHAPE_COLUMN.search(c) and n != kernel_at), None
            )
            results = [n for n, c in enumerate(table.columns) if _RESULT_COLUMN.search(c)]
            if kernel_at is None or shape_at is None or not results:
                continue
            for row in table.rows:
                draft = _row(source, section.title, table.columns, row, kernel_at, shape_at, results, day)
                if draft is not None:
                    found.append(draft)
    return found


def _row(
    source: Source, heading: str, columns: tuple[str, ...], row: tuple[str, ...], kernel_at: int, shape_at: int,
    results: list[int], day: date | None,
) -> Draft | None:  # fmt: skip
    name, result = plain(row[kernel_at]).replace("`", ""), " ".join(row[n] for n in results)
    kernels = kernels_in(name)
    shape = _shape(row[shape_at], kernels[0] if kernels else "")
    if not kernels or not shape or _BAD.search(result) or not _GOOD.search(result):
        return None
    figures: list[dict[str, Any]] = []
    for number, column in enumerate(columns):
        if re.search(r"cosine|corr", column) and (value := re.search(r"\d?\.\d+", row[number])):
            figures.append({"metric": plain(column)[:60], "value": float(value[0]), "unit": "1"})
        elif number not in (kernel_at, shape_at) and (value := _LATENCY.search(row[number])):
            figures.append(
                {
                    "metric": plain(column)[:60] or "latency",
                    "value": float(value[1]),
                    "unit": value[2].replace("µ", "u"),
                }
            )
    whole = " ".join(row)
    fields: dict[str, Any] = {
        "title": f"{name[:80]} {plain(row[shape_at]).replace('`', '')[:60]}", "kernel": kernels[0], "shape": shape,
        "dtype": next((t for t in ("bf16", "bfp16", "int4", "int8", "f32") if re.search(rf"(?i)\b{t}\b", whole)), "not stated"),
        "tile": {key: int(value) for key, value in _TILE.findall(whole)}, "figures": figures, "kernels": kernels[:1],
        "used_by": source.deployment, "notes": " · ".join(f"{columns[n]}: {plain(row[n])}" for n in results if row[n])[:600],
    }  # fmt: skip
    return Draft(
        "kernel_row",
        fields,
        Evidence(f"notes:{source.label}#{heading[:120]} / {name[:60]} {'x'.join(map(str, shape.values()))}"[:390], day),
        "note",
    )


def drafts_of_registry(source: Source) -> list[Draft]:
    """The kernel rows of a registry in JSON: any list of objects that name a kernel and a shape and say it passed."""
    try:
        data: Any = json.loads(source.text)
    except (ValueError, RecursionError):
        return []
    found: list[Draft] = []
    for path, item in _objects(data):
        kernel = str(item.get("kernel") or item.get("name") or item.get("op") or "")
        shape = item.get("shape") or item.get("dims") or item.get("dimensions")
        extents = {str(k): int(v) for k, v in cast("Mapping[str, Any]", shape).items() if isinstance(v, int)} if isinstance(shape, Mapping) else _shape(
            "x".join(map(str, cast("list[Any]", shape))) if isinstance(shape, list) else str(shape or ""), kernel.lower()
        )  # fmt: skip
        status = str(item.get("status") or item.get("result") or item.get("passed") or item.get("verified") or "")
        if not kernel or not extents or _BAD.search(status) or status.lower() in ("false", "none"):
            continue
        tile: Any = item.get("tile") or item.get("settings") or item.get("config") or {}
        settings = (
            {str(k): v for k, v in cast("Mapping[str, Any]", tile).items() if type(v) is int}
            if isinstance(tile, Mapping)
            else {}
        )
        figures = [
            {
                "metric": str(k),
                "value": float(v),
                "unit": "us" if str(k).endswith("_us") else "ms" if str(k).endswith("_ms") else "1",
            }
            for k, v in item.items()
            if isinstance(v, int | float)
            and not isinstance(v, bool)
            and re.search(r"latency|time|_us$|_ms$|corr|cosine|gflops", str(k))
        ]
        name = (kernels_in(kernel) or [kernel.lower()])[0]
        fields: dict[str, Any] = {
            "title": f"{kernel[:80]} {'x'.join(map(str, extents.values()))}", "kernel": name, "shape": extents,
            "dtype": str(item.get("dtype") or "not stated"), "tile": settings, "figures": figures, "kernels": [name], "notes": status[:200],
        }  # fmt: skip
        found.append(
            Draft(
                "kernel_row",
                fields,
                Evidence(f"registry:{source.label}#{path}"[:390], date_in(json.dumps(item))),
                "note",
            )
        )
    return found


def _objects(data: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if depth > 8:
        return
    if isinstance(data, dict):
        fields = cast("dict[str, Any]", data)
        if any(key in fields for key in ("shape", "dims", "dimensions")):
            yield path or "/", fields
            return
        for key, value in fields.items():
            yield from _objects(value, f"{path}/{key}", depth + 1)
    elif isinstance(data, list):
        for number, value in enumerate(cast("list[Any]", data)):
            yield from _objects(value, f"{path}/{number}", depth + 1)


def _shape(text: str, kernel: str = "") -> dict[str, int]:
    """Extents by name: `M=1 K=2048`, `M=K=N=2048`; `2048×2048×512` of a GEMM as M, K, N, of others as d0, d1, …"""
    found: dict[str, int] = {}
    chained = _CHAINED.search(text)
    if chained is not None:
        found.update({axis: _number(chained[2]) for axis in re.findall(r"[MNK]", chained[1])})
    found.update({name: _number(value) for name, value in _NAMED.findall(text) if name not in found})
    if not found and (crossed := _CROSS.search(text)):
        extents = [_number(value) for value in crossed.groups() if value]
        names = "MKN" if kernel == "gemm" and len(extents) == 3 else [f"d{n}" for n in range(len(extents))]
        found = dict(zip(names, extents, strict=True))
    return found


def _number(text: str) -> int:
    return int(text.replace(",", ""))
