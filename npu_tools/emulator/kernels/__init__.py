"""External kernels by symbol: what a `func.call` to a function in an object file computes.

    kernel = lookup("zero_f32_mn", [memref_type], "mm.o")
    kernel.run(numerics, tile)          # in place, all lanes at once

One module per family, named for what it computes; each documents the C++ it was read in, its layouts, where it rounds
and what was simplified. Families match by pattern, so other sizes, suffixes (`_m64`) and prefixes (`down_`) work.
"""

from npu_tools.emulator.kernels.kernel import Array, ExternalKernel, Operand, Surroundings
from npu_tools.emulator.kernels.registry import known_symbols, lookup
from npu_tools.emulator.kernels.surroundings import surroundings_of

__all__ = ["Array", "ExternalKernel", "Operand", "Surroundings", "known_symbols", "lookup", "surroundings_of"]
