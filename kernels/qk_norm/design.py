"""QK-norm, every head of Q or K divided by its root mean square: RMSNorm whose rows are heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from npu_tools.recipes import Text, Value, memref, sibling

_rms = sibling(__file__, "rmsnorm")


def design(shape: Mapping[str, int], settings: Mapping[str, Any]) -> str:
    """The module with one function, @qk_norm(x, weight, y)."""
    rows, head_dim = shape["rows"], shape["head_dim"]
    text, heads = Text(), memref([rows, head_dim], "bf16")
    with text.function("qk_norm", [heads, memref([head_dim], "bf16"), heads]) as (x, weight, y):
        qk_norm(text, shape, settings, x, weight, y)
    return str(text)


def qk_norm(
    text: Text,
    shape: Mapping[str, int],
    settings: Mapping[str, Any],
    x: Value,
    weight: Value,
    y: Value,
    suffix: str = "",
) -> None:
    """The launch, however x and y are shaped: [seq, heads * head_dim] is seq * heads rows. `suffix` tells segments and
    herds apart."""
    _rms.rmsnorm(text, {"M": shape["rows"], "N": shape["head_dim"]}, settings, x, weight, y, f"_qk{suffix}")
