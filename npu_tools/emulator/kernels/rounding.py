"""How kernels narrow float32 to bf16: to nearest even where they ask for it, else towards minus infinity.

A kernel chooses with `aie::set_rounding(conv_even)`; without the call the core's reset mode stands, which is floor
(mlir-air's mm_aie2p.cc states the bias it causes). Scalar `(bfloat16)x` casts and library results are taken as
nearest even. The register is sticky on the device: a kernel that does not set it runs in whatever mode an earlier
kernel on that core left. The emulator does not follow the register; each kernel's page says which mode is modelled.
"""

from __future__ import annotations

from npu_tools.emulator.kernels.kernel import Array, KernelNumerics
from npu_tools.emulator.rounding import Rounding, round_bf16

__all__ = ["Rounding", "narrow"]


def narrow(numerics: KernelNumerics, values: Array, element: str, rounding: Rounding = "conv_even") -> Array:
    """The values as `element` holds them: rounded when it is narrower than float32, else unchanged."""
    if element != "bf16" or rounding == "conv_even":
        return numerics.round_to(values, element)
    if numerics.mode == "f32":
        return values
    return round_bf16(values, rounding)
