"""Whether every kernel a core calls is declared and will be found in an object file."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import StringAttr, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from npu_tools.air.dialect import HerdOp
from npu_tools.check.subject import Subject
from npu_tools.check.walk import around
from npu_tools.findings import Finding

SOURCE = "Xilinx/mlir-air mlir/lib/Conversion/AIRToAIEPass.cpp (link_with)"


def find(subject: Subject) -> Iterator[Finding]:
    """Calls in a herd to functions that are missing or that no object file supplies."""
    declared = subject.facts.program.declarations()
    defined = {function.sym_name.data for function in subject.facts.program.functions()}
    said: set[tuple[HerdOp, str]] = set()
    for op in subject.facts.ops:
        if op.name not in ("func.call", "call"):
            continue
        callee = op.properties.get("callee") or op.attributes.get("callee")
        if not isinstance(callee, SymbolRefAttr):
            continue
        name = callee.string_value()
        if name not in declared and name not in defined:
            yield _undeclared(subject, op, name)
            continue
        herd = around(op, HerdOp)
        if isinstance(herd, HerdOp) and name in declared and (herd, name) not in said:
            said.add((herd, name))
            yield from _unlinked(subject, op, herd, declared[name], name)


def _undeclared(subject: Subject, op: Operation, name: str) -> Finding:
    text = f"'{name}' does not reference a valid function"
    return subject.finding(
        op,
        "error",
        "call-undeclared",
        text,
        diagnostic=text,
        source="MLIR func dialect (CallOp::verifySymbolUses)",
        remedy=f'declare it in the module: func.func private @{name}(…) attributes {{link_with = "….o", '
        "llvm.emit_c_interface}",
    )


def _unlinked(subject: Subject, op: Operation, herd: HerdOp, declaration: FuncOp, name: str) -> Iterator[Finding]:
    if herd.link_with is None and _link_with(declaration) is None:
        yield subject.finding(
            op,
            "error",
            "link-with-missing",
            f"herd {herd.sym_name or ''} calls the external kernel @{name}, but neither the herd nor the declaration "
            "says link_with: the core's link step finds no such symbol",
            diagnostic=f"undefined symbol: {name}",
            source=SOURCE,
            remedy=f'add link_with = "<object>.o" to the declaration of @{name} and to the herd, '
            "and put that object in the working directory and in air_project/",
            certain=False,
        )


def _link_with(declaration: FuncOp) -> str | None:
    value = declaration.attributes.get("link_with") or declaration.properties.get("link_with")
    return value.data if isinstance(value, StringAttr) else None
