"""In which order a buffer's elements lie in host memory: where only kernels look at it, as suits the kernel.

The program sees the same elements at the same indices either way. An accumulator of blocked tiles, which a matrix
multiplication adds to many times, is kept so that each tile is a plain matrix.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import func
from xdsl.ir import SSAValue

from npu_tools.air.dialect import HerdOp
from npu_tools.emulator.effects import users
from npu_tools.emulator.elements import row_major
from npu_tools.emulator.kernels import ExternalKernel

KernelOf = Callable[[func.CallOp], ExternalKernel]


def storage_strides(value: SSAValue, shape: tuple[int, ...], kernel_of: KernelOf) -> tuple[int, ...]:
    """Strides in elements for a buffer of this shape: row-major unless its kernels prefer another order."""
    orders: set[tuple[int, ...]] = set()
    if not _only_kernels(value, shape, kernel_of, orders) or len(orders) != 1:
        return row_major(shape)
    (order,) = orders
    if sorted(order) != list(range(len(shape))):
        return row_major(shape)
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
    return tuple(strides)


def _only_kernels(value: SSAValue, shape: tuple[int, ...], kernel_of: KernelOf, orders: set[tuple[int, ...]]) -> bool:
    """Whether kernels alone touch the elements, by index and not as flat memory; collects the orders they prefer."""
    for use in users(value):
        if use.name == "memref.dealloc":
            continue
        if isinstance(use, HerdOp):
            for operand, argument in zip(use.kernel_operands, use.kernel_args, strict=True):
                if operand is value and not _only_kernels(argument, shape, kernel_of, orders):
                    return False
        elif use.name == "memref.subview":
            result = use.results[0]
            if not _only_kernels(result, shape, kernel_of, orders):
                return False
        elif isinstance(use, func.CallOp):
            kernel = kernel_of(use)
            for index, operand in enumerate(use.arguments):
                if operand is value and index in kernel.accumulators:
                    order = kernel.storage_order[index]
                    if order is not None:
                        orders.add(tuple(axis - 2 for axis in order[2:]))
        else:
            return False
    return True
