"""What one buffer descriptor can say: dimensions, strides, sizes, the 4-byte granule.

Windows are brought to the form the compiler gives them first (size-1 dimensions dropped, adjacent ones that touch
merged), so that only what is left counts. Shim windows may be split into several descriptors; `shim.py` counts those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from npu_tools.check.subject import Subject
from npu_tools.check.walk import L1, L2, L3, Move, element_bits, elements, shape
from npu_tools.device import TileKind
from npu_tools.findings import Finding

VERIFIER = "Xilinx/mlir-aie lib/Dialect/AIE/IR/AIEDialect.cpp (DMABDOp::verify)"
RUNTIME_VERIFIER = "Xilinx/mlir-aie lib/Dialect/AIEX/IR/AIEXDialect.cpp (verifyStridesWraps)"
OFFSET_SOURCE = "Xilinx/mlir-air mlir/lib/Conversion/AIRToAIESchedulingUtils.cpp (get1DOffset)"
_TILES: dict[int, TileKind] = {L1: "core", L2: "memtile", L3: "shim"}
MAX_SIZE = 1023
"""What the descriptor's verifier allows a dimension's size to be, on every tile."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a descriptor, in elements."""

    size: int
    stride: int


def canonical(sizes: Sequence[int], strides: Sequence[int]) -> list[Dim]:
    """The dimensions left once size-1 ones are gone and adjacent ones that touch are one, outermost first."""
    dims = [Dim(size, stride) for size, stride in zip(sizes, strides, strict=False) if size != 1]
    merged: list[Dim] = []
    for dim in reversed(dims):
        if merged and dim.stride == merged[0].size * merged[0].stride:
            merged[0] = Dim(dim.size * merged[0].size, merged[0].stride)
        else:
            merged.insert(0, dim)
    return merged


def split(dim: Dim, most: int, multiple: int = 1) -> list[Dim]:
    """A dimension as one, or as two whose sizes are at most `most`, the inner one a multiple of `multiple`."""
    if dim.size <= most:
        return [dim]
    part = next((part for part in range(most, 0, -1) if dim.size % part == 0 and part % multiple == 0), 1)
    return [Dim(dim.size // part, dim.stride * part), Dim(part, dim.stride)]


def is_linear(dims: Sequence[Dim]) -> bool:
    """Whether the dimensions are one contiguous run."""
    return not dims or (len(dims) == 1 and dims[0].stride == 1)


def find(subject: Subject) -> Iterator[Finding]:
    """Windows that no descriptor of their tile can hold, and those that mean different things on different tiles."""
    for op in subject.facts.ops:
        for move in subject.facts.moves(op):
            if move.space in _TILES and not move.window.is_whole and not _is_cascade(subject, move):
                yield from _window(subject, move, _TILES[move.space])
            elif move.space in _TILES and move.window.is_whole and not _is_cascade(subject, move):
                yield from _whole(subject, move)


def _is_cascade(subject: Subject, move: Move) -> bool:
    channel = subject.facts.channels.get(move.channel or "")
    return channel is not None and channel.channel_type in ("npu_cascade", "npu_mmio", "gpu_symmetric_heap")


def _whole(subject: Subject, move: Move) -> Iterator[Finding]:
    count, bits = elements(move.memref.type), element_bits(move.memref.type)
    if count is not None and bits is not None and count * bits % (8 * subject.device.granule_bytes):
        yield _granule(subject, move, count, bits)


def _window(subject: Subject, move: Move, kind: TileKind) -> Iterator[Finding]:
    values = subject.facts.values
    sizes, strides = values.constants(move.window.sizes), values.constants(move.window.strides)
    bits = element_bits(move.memref.type)
    if sizes is None or strides is None or bits is None or not sizes or len(sizes) != len(strides):
        return
    if min(sizes) <= 0:
        yield _not_positive(subject, move, sizes)
        return
    dims = canonical(sizes, strides)
    if dims and dims[0].stride == 0 and len(dims) > 1:
        dims = dims[1:]  # the outermost stride-0 dimension is a repeat count, not a dimension
    total = 1
    for dim in dims:
        total *= dim.size
    granule_bits = 8 * subject.device.granule_bytes
    inner = dims[-1] if dims else Dim(1, 1)
    if total * bits % granule_bits or (inner.size * bits % granule_bits and inner.stride == 1):
        yield _granule(subject, move, inner.size, bits)
    if bits < granule_bits and inner.stride != 1 and inner.size > 1:
        yield _inner_stride(subject, move, kind, bits, inner)
    if kind != "shim":
        yield from _tile_dims(subject, move, kind, dims)
    else:
        yield from _shim_strides(subject, move, dims, bits)
    yield from _offset_scaling(subject, move, kind, strides)


def _tile_dims(subject: Subject, move: Move, kind: TileKind, dims: Sequence[Dim]) -> Iterator[Finding]:
    limit = subject.device.limit(f"{kind}.bd_dims")
    count = elements(move.memref.type)
    if kind == "memtile" and not is_linear(dims):
        dims = [part for dim in dims for part in split(dim, MAX_SIZE)]
    if len(dims) > limit.value and not is_linear(dims):
        text = (
            f"Cannot give more than {limit.value} dimensions for step sizes and wraps in this  tile "
            f"(got {len(dims)} dimensions)."
        )
        yield subject.finding(
            move.op,
            "error",
            "bd-dimensions",
            f"{_named(move, kind)} needs {len(dims)} dimensions ({_shown(dims)}); a {kind} descriptor has {limit.value}",
            diagnostic=f"'aie.dma_bd' op {text}",
            limit=limit,
            source=VERIFIER,
            remedy=f"make {len(dims) - limit.value} of the dimensions contiguous with its neighbour, or do part of the "
            + ("reshape on the memtile side (4 dimensions)" if kind == "core" else "reshape on the core side"),
            certain=kind == "core",
        )
    if is_linear(dims):
        return
    for dim in dims:
        if dim.stride == 0:
            yield subject.finding(
                move.op,
                "error",
                "bd-stride-zero",
                f"{_named(move, kind)} repeats inside the transfer ({_shown(dims)}); only the outermost dimension may "
                "have stride 0",
                diagnostic="'aie.dma_bd' op Invalid step size; must be a positive integer.",
                source=VERIFIER,
                remedy="move the repeated dimension outermost, or repeat the transfer in a loop",
                certain=False,
            )
        elif dim.size > MAX_SIZE and kind == "core":
            half = next((parts for parts in range(2, 65) if dim.size % parts == 0 and dim.size // parts <= MAX_SIZE), 2)
            yield subject.finding(
                move.op,
                "error",
                "bd-size",
                f"{_named(move, kind)} has a dimension of size {dim.size} ({_shown(dims)}); {MAX_SIZE} is the most",
                diagnostic=f"'aie.dma_bd' op Size may not exceed {MAX_SIZE}.",
                limit=subject.device.limit(f"{kind}.wrap_bits"),
                source=VERIFIER,
                remedy=f"split it into {half} x {dim.size // half}, or move {dim.size // half} at a time",
                certain=False,
            )
    reach = sum(dim.stride * (dim.size - 1) for dim in dims)
    if count is not None and reach >= count:
        text = (
            f"Specified stride(s) and size(s) result in out of bounds access in buffer, for index {reach} in memref "
            f"of length {count}."
        )
        yield subject.finding(
            move.op,
            "error",
            "bd-out-of-bounds",
            f"{_named(move, kind)} reaches element {reach} of {count}",
            diagnostic=f"'aie.dma_bd' op {text}",
            source=VERIFIER,
            remedy=f"keep the window within {count} elements: {_shown(dims)} spans {reach + 1}",
            certain=subject.facts.values.constants(move.window.offsets) is not None,
        )


def _shim_strides(subject: Subject, move: Move, dims: Sequence[Dim], bits: int) -> Iterator[Finding]:
    limit = subject.device.limit("shim.step_bits")
    most = subject.device.shim.max_step
    for position, dim in enumerate(reversed(dims)):
        words = dim.stride * bits // (8 * subject.device.granule_bytes)
        if words > most and dim.size > subject.device.iteration_max:
            yield subject.finding(
                move.op,
                "error",
                "bd-stride",
                f"{_named(move, 'shim')} steps {dim.stride} elements = {words} words {dim.size} times; a descriptor "
                f"steps at most {most}",
                diagnostic=f"Stride {min(position, 3)} exceeds the [1:{most}] range.",
                limit=limit,
                source=RUNTIME_VERIFIER,
                remedy=f"use a smaller tile_k_l2 or lay the matrix out so that rows are at most "
                f"{most * 8 * subject.device.granule_bytes // bits} elements apart",
                certain=False,
            )


def _granule(subject: Subject, move: Move, count: int, bits: int) -> Finding:
    limit = subject.device.limit("dma.granule_bytes")
    bytes_each = bits / 8
    each = int(bytes_each) if bits % 8 == 0 else bytes_each
    size = count * bits // 8
    text = (
        f"Transfer sizes must be multiples of {limit.value} bytes. {count} elements at {each} bytes each equal {size} "
        f"bytes, which is not divisible by {limit.value}."
    )
    step = limit.value * 8 // bits if bits < limit.value * 8 else 1
    fitting = -(-count // step) * step
    return subject.finding(
        move.op,
        "error",
        "dma-granule",
        f"the innermost run of {_shape_of(move)} is {count} elements = {size} bytes, not a multiple of {limit.value}",
        diagnostic=text,
        limit=limit,
        source=RUNTIME_VERIFIER,
        remedy=f"move a multiple of {step} elements: {fitting} instead of {count}",
        certain=bits % 8 == 0,
    )


def _inner_stride(subject: Subject, move: Move, kind: TileKind, bits: int, inner: Dim) -> Finding:
    text = "For <32b width datatypes, inner-most dim stride must be 1"
    return subject.finding(
        move.op,
        "error",
        "dma-inner-stride",
        f"{_named(move, kind)} steps {inner.stride} elements of {bits} bits innermost; streams carry 32-bit words, so "
        "elements below 32 bits must be contiguous",
        diagnostic=f"'aie.dma_bd' op {text}",
        limit=subject.device.limit("dma.granule_bytes"),
        source=VERIFIER,
        remedy=f"keep the innermost stride 1 and at least {32 // bits} elements long; transpose on the host, in the "
        "core, or as 32-bit pairs",
    )


def _not_positive(subject: Subject, move: Move, sizes: Sequence[int]) -> Finding:
    index = next(i for i, size in enumerate(sizes) if size <= 0)
    position = len(sizes) - 1 - index
    return subject.finding(
        move.op,
        "error",
        "dma-size",
        f"dimension {index} of the window has size {sizes[index]}: nothing would be moved",
        diagnostic=f"Size {position} must be a positive integer.",
        source=RUNTIME_VERIFIER,
        remedy="give every dimension a size of at least 1",
        certain=sizes[index] < 0,
    )


def _offset_scaling(subject: Subject, move: Move, kind: TileKind, strides: Sequence[int]) -> Iterator[Finding]:
    """The innermost offset is multiplied by the innermost stride on the shim, and not on tiles."""
    if not move.window.offsets or strides[-1] == 1:
        return
    offset = subject.facts.values.span(move.window.offsets[-1])
    if offset == (0, 0):
        return
    yield subject.finding(
        move.op,
        "warning",
        "innermost-offset-scaling",
        f"{_named(move, kind)} has an innermost offset with innermost stride {strides[-1]}: a shim multiplies it by "
        "the stride, a core or memtile does not",
        source=OFFSET_SOURCE,
        remedy="put the offset in an outer dimension (size 1, its own stride) and leave the innermost offset 0",
        certain=False,
    )


def _named(move: Move, kind: TileKind) -> str:
    what = {"in": "the window written into", "out": "the window read from"}[move.side]
    return f"{what} {_shape_of(move)} ({kind})"


def _shape_of(move: Move) -> str:
    extents = shape(move.memref.type)
    return "x".join(str(extent) for extent in extents) if extents else "a memref"


def _shown(dims: Sequence[Dim]) -> str:
    return (
        "sizes [" + ", ".join(str(d.size) for d in dims) + "] strides [" + ", ".join(str(d.stride) for d in dims) + "]"
    )
