"""Which reference belongs to which program: by the file's stem, else by its entry function's name."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from npu_tools.bench.references import (
    attention,
    convolution,
    elementwise,
    ffn,
    matmul,
    movement,
    norms,
    packed,
    rotary,
)
from npu_tools.bench.references.case import Build

_TABLES = (elementwise, movement, norms, rotary, matmul, packed, attention, convolution, ffn)


def reference_for(stem: str, function: str) -> Build | None:
    """The reference of a program; patterns that start with @ are for function names, tried after all stems."""
    for pattern, build in _all():
        if not pattern.startswith("@") and fnmatchcase(stem, pattern):
            return build
    for pattern, build in _all():
        if pattern.startswith("@") and fnmatchcase(function, pattern[1:]):
            return build
    return None


def _all() -> list[tuple[str, Build]]:
    return [row for table in _TABLES for row in table.REFERENCES]


@dataclass(frozen=True, slots=True)
class Fault:
    """A program that is wrong itself: what a run must find, why no result could be right, what a check may refuse."""

    stem: str
    code: str
    why: str
    refusals: tuple[str, ...] = ()


FAULTS = (
    Fault(
        "ffn_swiglu__prefill__ffn_prefill",
        "out-of-bounds",
        "the down projection writes at [32 * tile, 0] with strides [128, 1], so every tile but the first writes beyond "
        "the output; upstream's own test allows atol 0.5 on values below it and cannot see it",
    ),
    Fault(
        "flash_attention__dataflow_based__attn",
        "out-of-bounds",
        "with the builder's default arguments the launch puts rows 0, 128, 256 and 384 of a query of 128 rows; three "
        "of four cascade stages compute on what lies behind it; its tiles of 128 x 96 scores do not fit L1 either",
        ("l1-overflow",),
    ),
)


def fault_of(stem: str) -> Fault | None:
    """The known fault of a program."""
    return next((fault for fault in FAULTS if fault.stem == stem), None)
