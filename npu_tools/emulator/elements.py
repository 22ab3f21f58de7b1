"""Element types of memrefs and vectors: which numpy dtype holds them here, and how many bytes they take on the device."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    IndexType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    Signedness,
)
from xdsl.ir import Attribute

from npu_tools.emulator.types import Array, Fault

_WIDTHS = (8, 16, 32, 64)


def dtype_of(element_type: Attribute) -> np.dtype[Any]:
    """The numpy dtype that holds one element.

    Raises:
        Fault: the emulator has no such element type.
    """
    match element_type:
        case BFloat16Type() | Float32Type():
            return np.dtype(np.float32)
        case Float16Type():
            return np.dtype(np.float16)
        case Float64Type():
            return np.dtype(np.float64)
        case IndexType():
            return np.dtype(np.int64)
        case IntegerType():
            bits = element_type.width.data
            if bits == 1:
                return np.dtype(np.bool_)
            width = next((width for width in _WIDTHS if width >= bits), None)
            if width is not None:
                sign = "u" if element_type.signedness.data == Signedness.UNSIGNED else ""
                return np.dtype(f"{sign}int{width}")
        case _:
            pass
    raise Fault(
        "unsupported-type",
        f"elements of type {element_type} cannot be held: bf16, f16, f32, f64, index and integers up to 64 bits can",
        "use one of these types",
    )


def bits_of(element_type: Attribute) -> int:
    """How many bits one element takes on the device."""
    match element_type:
        case BFloat16Type() | Float16Type():
            return 16
        case IntegerType():
            return element_type.width.data
        case _:
            return dtype_of(element_type).itemsize * 8


def to_device_bytes(values: Array, element_type: Attribute) -> Array:
    """Elements [..., n] as the bytes [..., n * size] they are on the device."""
    exact = values.astype(ml_dtypes.bfloat16) if isinstance(element_type, BFloat16Type) else values
    return np.ascontiguousarray(exact).view(np.uint8)


def from_device_bytes(data: Array, element_type: Attribute) -> Array:
    """The elements [n] that bytes stand for."""
    dense = np.ascontiguousarray(data)
    if isinstance(element_type, BFloat16Type):
        return dense.view(ml_dtypes.bfloat16).astype(np.float32)
    return dense.view(dtype_of(element_type))


def static_shape(memref: MemRefType[Any]) -> tuple[int, ...]:
    """The shape of a memref type.

    Raises:
        Fault: a dimension is dynamic.
    """
    shape = tuple(memref.get_shape())
    if DYNAMIC_INDEX in shape:
        raise Fault(
            "dynamic-shape",
            f"{memref} has a dimension that is only known at run time, and the device's buffers and descriptors are "
            "laid out before the run",
            "give every dimension as a number",
        )
    return shape


def memory_space(memref: MemRefType[Any]) -> int:
    """1 for L2, 2 for L1, 0 for L3 (also where nothing is said)."""
    space = memref.memory_space
    return cast("IntegerAttr[Any]", space).value.data if isinstance(space, IntegerAttr) else 0


@lru_cache(maxsize=4096)
def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a dense array, innermost last."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
