"""A bench for external kernels: look one up, run it on a herd of lanes, and one lane at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import (
    IndexType,
    IntegerType,
    MemRefType,
    bf16,
    f32,
)
from xdsl.ir import Attribute

from npu_tools.emulator.kernels import ExternalKernel, Surroundings, lookup
from npu_tools.emulator.numerics import Numerics


def bf16_rounded(values: Any) -> np.ndarray:
    """The values rounded to the nearest bf16, as float32."""
    return np.asarray(values, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def type_of(text: str) -> Attribute:
    """The MLIR type of "i32", "bf16", or a memref written like "4x8xbf16"."""
    *dims, element = text.split("x")
    named: dict[str, Attribute] = {"bf16": bf16, "f32": f32, "index": IndexType()}
    kind = named.get(element) or IntegerType(int(re.sub(r"\D", "", element)))
    return MemRefType(kind, [int(dim) for dim in dims]) if dims else kind


class KernelBench:
    """Runs kernels of the emulator on arrays `[gx, gy, *shape]`."""

    def __init__(self) -> None:
        self.numerics = Numerics()

    def kernel(
        self, symbol: str, types: Sequence[str], link_with: str = "x.o", around: Surroundings | None = None
    ) -> ExternalKernel:
        found = lookup(symbol, [type_of(text) for text in types], link_with, around)
        assert found is not None, symbol
        return found

    def run(
        self,
        symbol: str,
        types: Sequence[str],
        args: Sequence[Any],
        link_with: str = "x.o",
        around: Surroundings | None = None,
    ) -> list[Any]:
        """The arguments after the kernel ran on all lanes, and on each lane alone with the same bits."""
        kernel = self.kernel(symbol, types, link_with, around)
        together = [np.array(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
        kernel.run(self.numerics, *together)
        gx = max(arg.shape[0] for arg in args if isinstance(arg, np.ndarray))
        gy = max(arg.shape[1] for arg in args if isinstance(arg, np.ndarray))
        for x in range(gx):
            for y in range(gy):
                alone = [self.lane(arg, x, y) for arg in args]
                kernel.run(self.numerics, *alone)
                for index in kernel.writes:
                    assert np.array_equal(self.lane(together[index], x, y), alone[index], equal_nan=True), (
                        symbol,
                        x,
                        y,
                    )
        for index, (before, after) in enumerate(zip(args, together, strict=True)):
            if isinstance(before, np.ndarray) and index not in kernel.writes:
                assert np.array_equal(before, after, equal_nan=True), f"{symbol} changed operand {index}"
        return together

    def lane(self, arg: Any, x: int, y: int) -> Any:
        """One lane of an argument, in an array of its own."""
        if not isinstance(arg, np.ndarray):
            return arg
        x, y = min(x, arg.shape[0] - 1), min(y, arg.shape[1] - 1)
        part = arg[x : x + 1, y : y + 1]
        return part.reshape(1, 1)[0, 0] if part.ndim == 2 else np.array(part)

    def normal(self, *shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
        """Normal bf16 values as float32."""
        return bf16_rounded(np.random.default_rng(seed).standard_normal(shape) * scale)


@pytest.fixture
def bench() -> KernelBench:
    """The kernel bench with the emulator's faithful numerics."""
    return KernelBench()
