"""Named contractions, convolutions and poolings as loops: one line each.

A line names the loops that index each operand, `matmul: m k, k n -> m n`. In convolutions `oh*sh+kh*dh` is the input
row of output row oh and kernel row kh at stride sh and dilation dh (attributes `strides` and `dilations`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation
from xdsl.ir.affine import AffineExpr, AffineMap

from npu_tools.emulator.ops.domain import domain_sizes
from npu_tools.emulator.ops.signature import affine_maps, attribute, integers, refuse

NAMED_MAPS: dict[str, str] = {
    "linalg.matmul": "m k, k n -> m n",
    "linalg.matmul_transpose_a": "k m, k n -> m n",
    "linalg.matmul_transpose_b": "m k, n k -> m n",
    "linalg.batch_matmul": "b m k, b k n -> b m n",
    "linalg.batch_matmul_transpose_a": "b k m, b k n -> b m n",
    "linalg.batch_matmul_transpose_b": "b m k, b n k -> b m n",
    "linalg.batch_reduce_matmul": "b m k, b k n -> m n",
    "linalg.contract": "",
    "linalg.mmt4d": "m k m0 k0, n k n0 k0 -> m n m0 n0",
    "linalg.batch_mmt4d": "b m k m0 k0, b n k n0 k0 -> b m n m0 n0",
    "linalg.matvec": "m k, k -> m",
    "linalg.vecmat": "k, k n -> n",
    "linalg.batch_matvec": "b m k, b k -> b m",
    "linalg.batch_vecmat": "b k, b k n -> b n",
    "linalg.dot": "k, k -> ",
    "linalg.conv_1d": "ow+kw, kw -> ow",
    "linalg.conv_2d": "oh+kh ow+kw, kh kw -> oh ow",
    "linalg.conv_1d_ncw_fcw": "n c ow*sw+kw*dw, f c kw -> n f ow",
    "linalg.conv_1d_nwc_wcf": "n ow*sw+kw*dw c, kw c f -> n ow f",
    "linalg.conv_2d_nchw_fchw": "n c oh*sh+kh*dh ow*sw+kw*dw, f c kh kw -> n f oh ow",
    "linalg.conv_2d_nhwc_hwcf": "n oh*sh+kh*dh ow*sw+kw*dw c, kh kw c f -> n oh ow f",
    "linalg.conv_2d_nhwc_fhwc": "n oh*sh+kh*dh ow*sw+kw*dw c, f kh kw c -> n oh ow f",
    "linalg.conv_2d_ngchw_fgchw": "n g c oh*sh+kh*dh ow*sw+kw*dw, f g c kh kw -> n g f oh ow",
    "linalg.conv_2d_ngchw_gfchw": "n g c oh*sh+kh*dh ow*sw+kw*dw, g f c kh kw -> n g f oh ow",
    "linalg.conv_2d_nhwgc_gfhwc": "n oh*sh+kh*dh ow*sw+kw*dw g c, g f kh kw c -> n oh ow g f",
    "linalg.depthwise_conv_1d_nwc_wc": "n ow*sw+kw*dw c, kw c -> n ow c",
    "linalg.depthwise_conv_2d_nchw_chw": "n c oh*sh+kh*dh ow*sw+kw*dw, c kh kw -> n c oh ow",
    "linalg.depthwise_conv_2d_nhwc_hwc": "n oh*sh+kh*dh ow*sw+kw*dw c, kh kw c -> n oh ow c",
    **{f"linalg.pooling_nchw_{how}": "n c oh*sh+kh*dh ow*sw+kw*dw, kh kw -> n c oh ow" for how in ("max", "sum")},
    **{
        f"linalg.pooling_nhwc_{how}": "n oh*sh+kh*dh ow*sw+kw*dw c, kh kw -> n oh ow c" for how in ("max", "min", "sum")
    },
    **{f"linalg.pooling_ncw_{how}": "n c ow*sw+kw*dw, kw -> n c ow" for how in ("max", "sum")},
    **{f"linalg.pooling_nwc_{how}": "n ow*sw+kw*dw c, kw -> n ow c" for how in ("max", "min", "sum")},
}
"""Loops by op name; `linalg.contract` brings its own maps."""


def pool_kind(name: str, *, is_float: bool) -> str:
    """Reduction kind of a pooling op by the last word of its name."""
    match name.rsplit("_", 1)[-1]:
        case "max":
            return "maximumf" if is_float else "maxsi"
        case "min":
            return "minimumf" if is_float else "minsi"
        case _:
            return "add"


@dataclass(frozen=True, slots=True)
class Structure:
    """Indexing maps of both inputs and the output, loop extents, and whether a matrix multiply is meant."""

    maps: list[AffineMap]
    sizes: tuple[int, ...]
    matrix: bool


def structure_of(op: Operation, shapes: Sequence[tuple[int, ...]]) -> Structure:
    """The loops of a named op with these operand shapes.

    Raises:
        Fault: the shapes do not fit together.
    """
    maps = _own_maps(op)
    if len(shapes) != 3 or len(maps) != 3:
        refuse(op, f"{len(shapes)} operands where 3 are expected (zero points are not modelled)")
    return Structure(maps, domain_sizes(op.name, maps, shapes), "conv" not in op.name)


def _own_maps(op: Operation) -> list[AffineMap]:
    if attribute(op, "indexing_maps") is not None:
        return affine_maps(op)
    line = NAMED_MAPS[op.name]
    if not line:
        refuse(op, "attribute indexing_maps is missing")
    operands = [side.split() for side in line.replace("->", ",").split(",")]
    names = sorted({name for operand in operands for term in operand for name in _loops(term)})
    dims = {name: AffineExpr.dimension(i) for i, name in enumerate(names)}
    factors = _factors(op, names)
    return [
        AffineMap(len(names), 0, tuple(_expression(term, dims, factors) for term in operand)) for operand in operands
    ]


def _loops(term: str) -> list[str]:
    return [part.split("*")[0] for part in term.split("+")]


def _factors(op: Operation, names: Sequence[str]) -> dict[str, int]:
    """Strides and dilations by letter: sh, sw, dh, dw."""
    letters = [letter for letter in "hw" if f"k{letter}" in names]
    ones = (1,) * len(letters)
    strides, dilations = integers(op, "strides", ones), integers(op, "dilations", ones)
    found = {f"s{letter}": n for letter, n in zip(letters, strides, strict=True)}
    return found | {f"d{letter}": n for letter, n in zip(letters, dilations, strict=True)}


def _expression(term: str, dims: dict[str, AffineExpr], factors: dict[str, int]) -> AffineExpr:
    total: AffineExpr | None = None
    for part in term.split("+"):
        name, _, factor = part.partition("*")
        scaled = dims[name] * factors[factor] if factor and factors[factor] != 1 else dims[name]
        total = scaled if total is None else total + scaled
    assert total is not None
    return total
