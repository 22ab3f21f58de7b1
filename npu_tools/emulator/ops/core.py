"""Which rounding a core is in when an op of a herd runs on it.

The rounding register of a core is `floor` until something on that core writes it, and stays as written. Two things
write it, both to conv_even: kernels that call `aie::set_rounding`, and the compiler's bf16 matrix multiply. Herds of
one launch with the same name share their cores, so one such call in any of them settles all of them; a launch has
cores programmed anew. The order of the first write is not followed: a core that ever multiplies rounds to even here
from the start.

That the compiler's multiply sets the register, and plain vector code does not, is inferred from published errors on
NPU2: the direct-codegen GEMM has the even-rounding error to 3 % over 16 shapes (floor would be 2 to 25 times off), and
eltwise_add, weighted_rms_norm, layer_norm and gelu, all without kernels, have the flooring one.
"""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

from xdsl.dialects.builtin import StringAttr, SymbolRefAttr
from xdsl.ir import Operation

from npu_tools.emulator.numerics import Numerics
from npu_tools.emulator.ops.signature import attribute, element_of, is_bf16
from npu_tools.emulator.rounding import Rounding
from npu_tools.emulator.types import Lowering

# Symbols whose C++ calls set_rounding(conv_even) on AIE2P: mlir-air programming_examples, *.cc at e972f2942.
_SETS_ROUNDING = re.compile(
    r"op_has_no_registered_library_name|f32_to_bf16_|matmul_\w*bf16|matvec_\w*bf16|dequant_int4_bf16|bfp16_to_"
    r"|conv2dk\w+|copy_tile|copy_half_tile|(zero|neg_inf)_fill_(gp?|sp|up)_bf16|max_g_bf16|maximum_up_u_bf16"
    r"|exp_g_minus_u|exp_up_minus_u|mul_r_gp|sum_g|accum_sp_r_s|div_gp_sp|fused_softmax|add_gp_g|apply_\w+_mask"
)
_MULTIPLIES = re.compile(r"linalg\.(\w*matmul\w*|mmt4d|generic|contract)|vector\.contract")

_known: WeakKeyDictionary[Operation, Rounding] = WeakKeyDictionary()


def core_numerics(op: Operation, low: Lowering) -> Numerics:
    """The run's numerics for the core this op runs on."""
    return low.numerics.with_rounding(core_rounding(op))


def core_rounding(op: Operation) -> Rounding:
    """The rounding of the core this op runs on; conv_even outside herds, where the host's numpy stands in."""
    herd = _around(op, "air.herd")
    if herd is None:
        return "conv_even"
    found = _known.get(herd)
    if found is None:
        found = _settle(herd)
        _known[herd] = found
    return found


def _settle(herd: Operation) -> Rounding:
    room = _around(herd, "air.launch") or _around(herd, "func.func")
    herds = [herd]
    if (name := _name(herd)) and room is not None:
        herds = [other for other in room.walk() if other.name == "air.herd" and _name(other) == name]
    return "conv_even" if any(_sets_rounding(op) for one in herds for op in one.walk()) else "floor"


def _sets_rounding(op: Operation) -> bool:
    if op.name == "func.call":
        callee = attribute(op, "callee")
        symbol = callee.root_reference.data if isinstance(callee, SymbolRefAttr) else ""
        return _SETS_ROUNDING.search(symbol) is not None
    if _MULTIPLIES.fullmatch(op.name) is None or len(op.operands) < 3:
        return False
    if op.name == "linalg.generic" and not _is_product_of_sums(op):
        return False
    return is_bf16(element_of(op.operands[0].type)) and is_bf16(element_of(op.operands[1].type))


def _is_product_of_sums(op: Operation) -> bool:
    names = {inner.name for inner in op.regions[0].walk()} if op.regions else set[str]()
    return "arith.mulf" in names and "arith.addf" in names and "reduction" in str(attribute(op, "iterator_types"))


def _around(op: Operation, name: str) -> Operation | None:
    current: Operation | None = op
    while current is not None and current.name != name:
        current = current.parent_op()
    return current


def _name(op: Operation) -> str:
    found = attribute(op, "sym_name")
    return found.data if isinstance(found, StringAttr) else ""
