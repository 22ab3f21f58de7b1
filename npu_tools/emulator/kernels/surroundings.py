"""What the rest of a program says about an external call: facts that C++ builds carry as macros.

Read from the program: the enclosing function and its arguments, the declarations of the module, and how channels move
the tile a kernel has written (the innermost size of a window on `matmul_a_b_bf16`'s result is its block width).
"""

from __future__ import annotations

from collections.abc import Mapping
from weakref import WeakKeyDictionary

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Operation, SSAValue

from npu_tools.emulator.kernels.kernel import Operand, Option, Surroundings, operand


def surroundings_of(call: Operation, options: Mapping[str, Option] | None = None) -> Surroundings:
    """What the program around a `func.call` tells; `options` are build parameters the user gives."""
    function: FuncOp | None = None
    module: ModuleOp | None = None
    current = call.parent_op()
    while current is not None:
        match current:
            case FuncOp() if function is None:
                function = current
            case ModuleOp():
                module = current
            case _:
                pass
        current = current.parent_op()
    return Surroundings(
        function=function.sym_name.data if function is not None else "",
        arguments=tuple(operand(kind) for kind in function.function_type.inputs) if function is not None else (),
        declared=_facts(module)[0] if module is not None else {},
        observed=_facts(module)[1] if module is not None else {},
        options=dict(options or {}),
    )


_known: WeakKeyDictionary[ModuleOp, tuple[dict[str, tuple[Operand, ...]], dict[str, int]]] = WeakKeyDictionary()


def _facts(module: ModuleOp) -> tuple[dict[str, tuple[Operand, ...]], dict[str, int]]:
    """Declarations and observations of a module, walked once."""
    found = _known.get(module)
    if found is None:
        found = _known[module] = (_declared(module), _observed(module))
    return found


def _declared(module: ModuleOp) -> dict[str, tuple[Operand, ...]]:
    return {
        op.sym_name.data: tuple(operand(kind) for kind in op.function_type.inputs)
        for op in module.walk()
        if isinstance(op, FuncOp) and op.is_declaration
    }


def _observed(module: ModuleOp) -> dict[str, int]:
    for op in module.walk():
        if isinstance(op, CallOp) and op.callee.string_value() == "matmul_a_b_bf16" and len(op.arguments) == 3:
            width = _innermost_put_size(op.arguments[2])
            if width is not None:
                return {"block_columns": width}
    return {}


def _innermost_put_size(value: SSAValue) -> int | None:
    """The innermost size of a channel.put's window on a value, None where none is put through a window."""
    for use in value.uses:
        if use.operation.name != "air.channel.put":
            continue
        sizes = use.operation.properties.get("static_src_sizes") or use.operation.attributes.get("static_src_sizes")
        if isinstance(sizes, DenseArrayBase):
            numbers = sizes.get_values()
            if numbers:
                return int(numbers[-1])
    return None
