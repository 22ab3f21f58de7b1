"""Runs the ops of one function body by their lowerings alone: a lowering, a frame and memrefs as plain as can be.

got = run_block("%r = arith.addi %a, %b : i32", {"a": ("i32", np.int32(1)), "b": ("i32", np.int32(2))})
got["r"]
"""

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from npu_tools.air import parse_program
from npu_tools.emulator.elements import dtype_of
from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.ops import LOWERINGS
from npu_tools.emulator.types import Fault


class OneRef:
    """A memref with storage of its own in every lane; windows keep one offset per lane and dimension."""

    def __init__(self, data, element_type, starts=None, sizes=None, strides=None):
        self.data, self.element_type = data, element_type
        self.shape = tuple(sizes if sizes is not None else data.shape[2:])
        self.starts = starts or [0] * (data.ndim - 2)
        self.strides = strides or [1] * (data.ndim - 2)

    def _part(self, x, y):
        cut = []
        for start, size, stride in zip(self.starts, self.shape, self.strides, strict=True):
            first = int(np.broadcast_to(start, self.data.shape[:2])[x, y])
            cut.append(slice(first, first + (size - 1) * stride + 1, stride))
        return self.data[(x, y, *cut, ...)]

    def read(self):
        lanes = self.data.shape[:2]
        parts = [[self._part(x, y) for y in range(lanes[1])] for x in range(lanes[0])]
        return np.array(parts)

    def write(self, values):
        whole = np.broadcast_to(values, (*self.data.shape[:2], *self.shape))
        for x, y in product(*map(range, self.data.shape[:2])):
            self._part(x, y)[...] = whole[x, y]

    def writable(self):
        assert self.data.shape[:2] == (1, 1)
        return self._part(0, 0)[None, None]

    def at(self, offsets, sizes, strides=None):
        for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            low, high = np.min(offset), np.max(offset) + size - 1
            if low < 0 or high >= self.data.shape[2 + axis]:
                raise Fault("out-of-bounds", f"{low} to {high} of dimension {axis}")
        return OneRef(self.data, self.element_type, list(offsets), sizes, strides)


@dataclass
class OneFrame:
    regs: list[Any]
    gx: int = 1
    gy: int = 1


@dataclass
class OneLowering:
    numerics: Numerics
    slots: dict[Any, int] = field(default_factory=dict)
    presets: dict[int, Any] = field(default_factory=dict)

    def slot(self, value):
        return self.slots.setdefault(value, len(self.slots))

    def preset(self, value, content):
        self.presets[self.slot(value)] = content

    def straight(self, block):
        found = [LOWERINGS[op.name](op, self) for op in block.ops if op is not block.last_op]
        return [step for step in found if step is not None]


def run_block(body, arguments, *, numerics=None, head="", lanes=(1, 1)):
    """The values of all named results, by name. `arguments` maps a name to (type, value); arrays become memrefs."""
    text = ", ".join(f"%{name}: {kind}" for name, (kind, _) in arguments.items())
    program = parse_program(f"{head}\nfunc.func @f({text}) {{\n{body}\nreturn\n}}\n", name="block.mlir")
    block = program.functions()[0].body.block
    low = OneLowering(numerics or Numerics())
    for arg in block.args:
        low.slot(arg)
    steps = low.straight(block)
    regs = [None] * (len(low.slots) + 64)
    for arg, (kind, value) in zip(block.args, arguments.values(), strict=True):
        if kind.startswith("memref"):
            element = arg.type.element_type
            held = np.array(np.broadcast_to(value, (*lanes, *arg.type.get_shape())), dtype_of(element))
            regs[low.slot(arg)] = OneRef(held, element)
        else:
            regs[low.slot(arg)] = value
    for slot, content in low.presets.items():
        regs[slot] = content
    frame = OneFrame(regs, *lanes)
    with np.errstate(all="ignore"):
        for step in steps:
            step(frame)
    named = {value.name_hint: frame.regs[slot] for value, slot in low.slots.items() if value.name_hint}
    return {name: value.data if isinstance(value, OneRef) else value for name, value in named.items()}


def vector(values, dtype=np.float32):
    """An array as the register content of a vector."""
    return np.asarray(values, dtype)[None, None]
