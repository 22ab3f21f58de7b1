"""The last token's logits: the vocabulary in equal partitions, one GEMV launch each, all reading the same vector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import Text, memref, sibling

gemv = sibling(__file__, "gemv")


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @lm_head_gemv(x, weight_0 …, logits_0 …)."""
    emb, rows, count = shape["emb"], int(settings["n_part"]), int(settings["n_partitions"])
    tiles = settings["parts"][0].settings
    text = Text()
    weights = [memref([rows, emb], "bf16")] * count
    logits = [memref([rows], "bf16")] * count
    with text.function("lm_head_gemv", [memref([emb], "bf16"), *weights, *logits]) as (x, *rest):
        for weight, out in zip(rest[:count], rest[count:], strict=True):
            gemv.gemv(text, {"M": rows, "K": emb}, tiles, weight, x, out)
    return str(text)
