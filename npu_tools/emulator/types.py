"""What the parts of the emulator say to each other: values, instructions, memory access, lowering.

A region body is lowered once to a flat list of instructions. A group of lanes (herd tiles in lockstep, a rectangle
`gx` by `gy`; launches, segments and functions run as 1 by 1) executes it with a list of registers, one per SSA value:

    index, integer, float   the same in all lanes: Python int (index) or numpy scalar;
                            differing between lanes: ndarray [gx|1, gy|1]
    vector<SxT>             ndarray [gx|1, gy|1, *S]
    memref                  `Ref`
    !air.async.token        opaque, owned by the scheduler

A lane axis of length 1 is shared by all lanes of the group: numpy broadcasting does the rest. In a 1 by 1 group scalars
are never arrays. bf16 lives in float32 arrays that hold bf16-rounded values, i1 in bool, other integers and floats in
the numpy dtype of their width, index in int64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import Attribute, Block, Operation, SSAValue

if TYPE_CHECKING:
    from npu_tools.emulator.numerics import Numerics

Array = NDArray[Any]
Scalar = int | float | bool | np.generic | Array
"""One scalar SSA value in a register: uniform, or an array [gx|1, gy|1]."""
Index = int | Array
"""One index SSA value in a register: Python int, or an int64 array [gx|1, gy|1]."""


class Ref(Protocol):
    """A memref value: a window on a buffer, for all lanes of the group that holds it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Static shape of the memref, without lane axes."""
        ...

    @property
    def element_type(self) -> Attribute:
        """Element type as in the program (bf16 stays bf16 here, whatever dtype holds it)."""
        ...

    def read(self) -> Array:
        """Contents [gx|1, gy|1, *shape]: a view, never to be written, and to be copied where it outlives the
        instruction. Elements nobody has written yet are noted."""
        ...

    def write(self, values: Array | np.generic | float) -> None:
        """Overwrite the whole window with values that broadcast to [gx, gy, *shape], already rounded to the type."""
        ...

    def writable(self) -> Array:
        """Contents [gx, gy, *shape] to be changed in place (all lanes of their own); counts as written whole."""
        ...

    def at(self, offsets: Sequence[Index], sizes: Sequence[int], strides: Sequence[int] | None = None) -> Ref:
        """The part of the window at these offsets; element `strides` default to 1. Raises Fault when out of bounds."""
        ...

    def load(self, indices: Sequence[Index]) -> Scalar:
        """One element per lane."""
        ...

    def store(self, indices: Sequence[Index], value: Scalar) -> None:
        """Write one element per lane."""
        ...


class Frame(Protocol):
    """What an instruction sees of the group that executes it."""

    regs: list[Any]
    gx: int
    gy: int


Instruction = Callable[[Frame], Any]
"""One step. Instructions from op modules return None; control and channel instructions return where to go on."""


class Lowering(Protocol):
    """What a lowering function may ask for."""

    @property
    def numerics(self) -> Numerics:
        """The numerics of the run."""
        ...

    def slot(self, value: SSAValue) -> int:
        """The register of an SSA value."""
        ...

    def preset(self, value: SSAValue, content: Any) -> None:
        """Give an SSA value its content before the run (constants): its op then needs no instruction."""
        ...

    def straight(self, block: Block) -> list[Instruction]:
        """Instructions of a block without control flow (the body of a linalg.generic), terminator left out."""
        ...


Lower = Callable[[Operation, Lowering], Instruction | None]
"""Turns one op into one instruction, or into None where `preset` said all. Looked up by op name in `LOWERINGS`."""


class Fault(Exception):
    """Something in the program went wrong while it ran; the scheduler adds op, line and column and makes a finding.

    `code` is a short stable name such as `out-of-bounds`, `remedy` one concrete next step.
    """

    def __init__(self, code: str, message: str, remedy: str | None = None, *, diagnostic: str | None = None) -> None:
        self.code, self.message, self.remedy, self.diagnostic = code, message, remedy, diagnostic
        super().__init__(message)


class LanesDiffer(Exception):
    """Raised by an instruction, before any side effect, that cannot serve lanes which differ in this way (it is a request, no error).

    The scheduler splits the group into single lanes and executes the instruction again in each.
    """
