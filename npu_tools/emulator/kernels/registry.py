"""Finding the kernel behind a symbol.

A symbol is first taken as it stands; then with a prefix before and a suffix behind it, since builders rename kernels
to link two builds of one source into one ELF (`op_has_no_registered_library_name_m64`, `down_matvec_...`). Several
families may know one symbol; the operands decide.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from xdsl.ir import Attribute

from npu_tools.emulator.kernels import (
    activation,
    attention_calls,
    bfp16,
    convolution,
    decode,
    fill,
    gemm,
    gemv,
    int4,
    q4nx,
    q4nx_attention,
    rope,
    tiles,
)
from npu_tools.emulator.kernels.kernel import Call, ExternalKernel, Family, Surroundings, operand
from npu_tools.errors import UnusableInput

_FAMILIES: tuple[Family, ...] = (
    *gemm.FAMILIES,
    *fill.FAMILIES,
    *attention_calls.FAMILIES,
    *gemv.FAMILIES,
    *int4.FAMILIES,
    *bfp16.FAMILIES,
    *activation.FAMILIES,
    *rope.FAMILIES,
    *decode.FAMILIES,
    *convolution.FAMILIES,
    *tiles.FAMILIES,
    *q4nx.FAMILIES,
    *q4nx_attention.FAMILIES,
)

# A rename ends in sizes: _m64, _k8192, _24_8, _hd128.
_SUFFIX = r"(?:_[A-Za-z]{0,4}\d+)*"


def lookup(
    symbol: str,
    operand_types: Sequence[Attribute],
    link_with: str | None,
    surroundings: Surroundings | None = None,
) -> ExternalKernel | None:
    """The kernel for a symbol called with these operand types, or None when no family knows the symbol.

    Two upstream objects may use one symbol on the same types for different functions (`rope`), and some sizes are
    compiled in (`dk_full`); `surroundings` (from `surroundings_of`) tells what the rest of the program knows.

    Raises:
        UnusableInput: the symbol is known and the operands are not what it takes; the text says what it takes.
    """
    operands = tuple(operand(attribute) for attribute in operand_types)
    candidates = _matches(symbol)
    for family, match in candidates:
        built = family.build(Call(symbol, match, operands, link_with or "", surroundings or Surroundings()))
        if built is not None:
            return ExternalKernel(
                symbol=symbol,
                family=family.name,
                run=built.run,
                reads=built.reads,
                writes=built.writes,
                source=built.source or family.source,
                rounding=built.rounding,
                accumulators=built.accumulators,
                storage_order=built.storage_order or (None,) * len(operands),
                macs=built.macs,
                detail=built.detail,
            )
    if candidates:
        takes = "; or ".join(family.takes for family, _ in candidates)
        given = ", ".join(str(attribute) for attribute in operand_types)
        raise UnusableInput(f"@{symbol} takes {takes}. It is called with ({given}). Check the private declaration.")
    return None


def known_symbols() -> tuple[str, ...]:
    """Representative symbols of every family, sorted, for messages; sizes and suffixes may differ."""
    return tuple(sorted({symbol for family in _FAMILIES for symbol in family.symbols}))


@cache
def _matches(symbol: str) -> tuple[tuple[Family, re.Match[str]], ...]:
    exact = [(family, match) for family in _FAMILIES if (match := re.fullmatch(family.pattern, symbol))]
    if exact:
        return tuple(exact)
    renamed = [
        (family, match)
        for family in _FAMILIES
        if (match := re.fullmatch(rf"(?:\w+?_)?(?P<core>{family.pattern}){_SUFFIX}", symbol))
    ]
    # The longest core wins: `matvec_int4_bf16_packed_add` is not `matvec_int4_bf16` with a suffix.
    return tuple(sorted(renamed, key=lambda found: -len(found[1].group("core"))))
