"""What an op says about itself: attributes, operand groups, element types, shapes, affine maps.

Ops come as xDSL classes, or, where xDSL has none, as ops known by name alone; both are read the same way here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import numpy as np
from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    BFloat16Type,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    StringAttr,
    VectorType,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineMap

from npu_tools.emulator.elements import dtype_of
from npu_tools.emulator.types import Fault

FLOATS = (BFloat16Type, Float16Type, Float32Type, Float64Type)


def refuse(op: Operation, why: str, remedy: str = "rewrite it with ops the emulator has, or report it") -> NoReturn:
    """Raise the fault for an op, or a form of one, that has no lowering.

    Raises:
        Fault: always.
    """
    raise Fault("unsupported-op", f"{op.name}: {why}", remedy)


def attribute(op: Operation, name: str) -> Attribute | None:
    """A property or attribute by name, or None."""
    found = op.properties.get(name)
    return found if found is not None else op.attributes.get(name)


def integer(op: Operation, name: str, default: int | None = None) -> int:
    """An integer attribute."""
    found = attribute(op, name)
    if isinstance(found, IntegerAttr):
        return cast("IntegerAttr[Any]", found).value.data
    if default is None:
        refuse(op, f"attribute {name} is missing")
    return default


def integers(op: Operation, name: str, default: Sequence[int] | None = None) -> tuple[int, ...]:
    """A list of integers, in any of the three forms MLIR prints them in."""
    found = attribute(op, name)
    if isinstance(found, DenseArrayBase):
        return tuple(int(value) for value in cast("DenseArrayBase[Any]", found).get_values())
    if isinstance(found, ArrayAttr):
        entries = cast("ArrayAttr[Attribute]", found).data
        return tuple(_as_int(op, name, entry) for entry in entries)
    if isinstance(found, DenseIntOrFPElementsAttr):
        return tuple(int(value) for value in cast("DenseIntOrFPElementsAttr[Any]", found).get_values())
    if default is None:
        refuse(op, f"attribute {name} is missing")
    return tuple(default)


def _as_int(op: Operation, name: str, entry: Attribute) -> int:
    if isinstance(entry, IntegerAttr):
        return cast("IntegerAttr[Any]", entry).value.data
    refuse(op, f"attribute {name} holds {entry} where an integer is expected")


def strings(op: Operation, name: str) -> tuple[str, ...]:
    """The words of an array of strings or enum attributes such as `#linalg.iterator_type<parallel>`."""
    found = attribute(op, name)
    if not isinstance(found, ArrayAttr):
        refuse(op, f"attribute {name} is missing")
    return tuple(word(entry) for entry in cast("ArrayAttr[Attribute]", found).data)


def word(found: Attribute | None) -> str:
    """The bare word of a string or an enum attribute, however it is printed."""
    if found is None:
        return ""
    if isinstance(found, StringAttr):
        return found.data
    data = getattr(found, "data", None)
    value = getattr(data, "value", data)
    if isinstance(value, str):
        return value
    text = str(found)
    inner = text[text.index("<") + 1 : text.rindex(">")] if "<" in text else text.strip('"')
    return inner.split()[-1] if inner.split() else ""


def affine_maps(op: Operation, name: str = "indexing_maps") -> list[AffineMap]:
    """An array of affine maps."""
    found = attribute(op, name)
    if not isinstance(found, ArrayAttr):
        refuse(op, f"attribute {name} is missing")
    return [cast("AffineMapAttr", entry).data for entry in cast("ArrayAttr[Attribute]", found).data]


def affine_map(op: Operation, name: str) -> AffineMap | None:
    """An affine map attribute, or None."""
    found = attribute(op, name)
    return found.data if isinstance(found, AffineMapAttr) else None


def groups(op: Operation) -> list[list[SSAValue]]:
    """The operands by segment (`operandSegmentSizes`); one segment where the op has no such property."""
    if attribute(op, "operandSegmentSizes") is None:
        return [list(op.operands)]
    rest = list(op.operands)
    found: list[list[SSAValue]] = []
    for size in integers(op, "operandSegmentSizes"):
        found.append(rest[:size])
        rest = rest[size:]
    return found


def element_of(kind: Attribute) -> Attribute:
    """The element type of a vector or memref, or the type itself."""
    if isinstance(kind, VectorType | MemRefType):
        return cast("Attribute", cast("VectorType[Any] | MemRefType[Any]", kind).element_type)
    return kind


def shape_of(kind: Attribute) -> tuple[int, ...]:
    """The shape of a vector or memref; () for a scalar."""
    if isinstance(kind, VectorType | MemRefType):
        return tuple(cast("VectorType[Any] | MemRefType[Any]", kind).get_shape())
    return ()


def is_vector(kind: Attribute) -> bool:
    """Whether this is a vector type (zero-dimensional ones count)."""
    return isinstance(kind, VectorType)


def is_float(kind: Attribute) -> bool:
    """Whether the element type is a float."""
    return isinstance(element_of(kind), FLOATS)


def is_bf16(kind: Attribute) -> bool:
    """Whether the element type is bf16."""
    return isinstance(element_of(kind), BFloat16Type)


def is_index(kind: Attribute) -> bool:
    """Whether the element type is index."""
    return isinstance(element_of(kind), IndexType)


def width_of(kind: Attribute) -> int:
    """Bits of an integer element type; index counts as 64."""
    element = element_of(kind)
    if isinstance(element, IndexType):
        return 64
    if isinstance(element, IntegerType):
        return cast("IntegerType", element).width.data
    raise Fault("unsupported-type", f"{kind} holds no integers", "use an integer type")


def dtype(kind: Attribute) -> np.dtype[Any]:
    """The numpy type that holds elements of this type."""
    return dtype_of(element_of(kind))


def inside_linalg(op: Operation) -> bool:
    """Whether the op is in the body of a linalg op, where scalars stand for what becomes vector code."""
    parent = op.parent_op()
    return parent is not None and parent.name.startswith("linalg.")
