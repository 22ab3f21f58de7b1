"""Structural rules of AIR programs: what upstream's verifiers and MLIR's own would refuse, with the place and a remedy.

Errors are refused by upstream, or leave a program without meaning; warnings are taken by upstream's verifiers although
nothing below AIR can build them.

What a device refuses is not judged here, and nothing is executed. xDSL's verifiers are not asked: they refuse programs
that MLIR takes.

>>> [(finding.line, finding.code) for finding in verify(program)]
[(14, 'channel-undeclared')]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from xdsl.dialects.builtin import FunctionType, IndexType, MemRefType, ModuleOp, StringAttr, SymbolRefAttr
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.traits import IsolatedFromAbove, IsTerminator

from npu_tools.air.dialect import (
    AirOp,
    AsyncTokenType,
    ChannelAccess,
    ChannelOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    ExecuteTerminatorOp,
    HerdOp,
    Hierarchy,
    LaunchOp,
    RankOp,
    SegmentOp,
)
from npu_tools.air.program import Program
from npu_tools.findings import Finding, Severity

SOURCE = "AIR.td and AIRDialect.cpp of mlir-air"

NOT_INSIDE: dict[type[Operation], tuple[type[Operation], ...]] = {
    RankOp: (RankOp, SegmentOp, HerdOp),
    LaunchOp: (LaunchOp, SegmentOp, HerdOp),
    SegmentOp: (SegmentOp, HerdOp),
    HerdOp: (HerdOp,),
}

PARENT_OF_TERMINATOR = {
    "air.rank_terminator": "air.rank",
    "air.launch_terminator": "air.launch",
    "air.segment_terminator": "air.segment",
    "air.herd_terminator": "air.herd",
    "air.execute_terminator": "air.execute",
}


def verify(program: Program) -> list[Finding]:
    """What breaks AIR's structural rules, in the order of the text."""
    checker = _Checker(program)
    found = [finding for op in program.module.walk() for finding in checker.check(op)]
    return sorted(found, key=lambda finding: (finding.line or 0, finding.column or 0))


class _Checker:
    """The rules, with the symbols of each module at hand."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._symbols: dict[Operation, dict[str, Operation]] = {}
        self._positions: dict[Block, dict[Operation, int]] = {}

    def check(self, op: Operation) -> Iterator[Finding]:
        """The findings of one op."""
        yield from self._operands(op)
        if op.regions and isinstance(op, ModuleOp):
            yield from self._unique_symbols(op)
        if isinstance(op, CallOp):
            yield from self._call(op)
        if not isinstance(op, AirOp):
            return
        try:
            op.check_shape()
        except ValueError as fault:
            yield self._finding(op, "operand-groups", str(fault), "print the program again with the tool that made it")
            return
        yield from self._tokens(op)
        yield from self._terminator_parent(op)
        if isinstance(op, Hierarchy):
            yield from self._hierarchy(op)
        if isinstance(op, ExecuteOp):
            yield from self._execute(op)
        if isinstance(op, ChannelAccess):
            yield from self._channel(op)
        if isinstance(op, DmaMemcpyNdOp):
            yield from self._elements(op)
        yield from self._windows(op)

    def _finding(
        self,
        op: Operation,
        code: str,
        message: str,
        remedy: str,
        diagnostic: str | None = None,
        severity: Severity = "error",
    ) -> Finding:
        place = self._program.where(op)
        return Finding(
            severity=severity,
            code=code,
            message=f"{op.name}: {message}",
            op=op.name,
            line=place.line if place else None,
            column=place.column if place else None,
            diagnostic=diagnostic,
            source=SOURCE,
            remedy=remedy,
        )

    # -- values

    def _operands(self, op: Operation) -> Iterator[Finding]:
        for number, operand in enumerate(op.operands):
            home = operand.owner if isinstance(operand.owner, Block) else operand.owner.parent_block()
            barrier = _barrier(op, home)
            if barrier is not None:
                yield self._finding(
                    op,
                    "isolated-from-above",
                    f"operand {number} comes from outside {barrier.name}, which is isolated from above",
                    "hand the value in as an argument (args(%inside = %outside) for AIR ops)",
                    "using value defined outside the region",
                )
            elif not self._dominates(operand, home, op):
                yield self._finding(
                    op,
                    "use-before-definition",
                    f"operand {number} is used before it is defined",
                    "move the op that defines it in front",
                    "operand #" + str(number) + " does not dominate this use",
                )

    def _dominates(self, value: SSAValue, home: Block | None, user: Operation) -> bool:
        if home is None or home.parent is None or len(home.parent.blocks) > 1:
            return True  # several blocks need the control-flow graph; upstream's programs at this level have one
        inside = _ancestor_in(user, home)
        if inside is None:
            return False
        if isinstance(value.owner, Block) or isinstance(inside.parent_op(), ModuleOp):
            return True
        positions = self._positions.get(home)
        if positions is None:
            positions = self._positions[home] = {op: index for index, op in enumerate(home.ops)}
        return positions[value.owner] < positions[inside]

    # -- symbols

    def _unique_symbols(self, module: Operation) -> Iterator[Finding]:
        seen: dict[str, Operation] = {}
        for op in _direct(module):
            name = _symbol(op)
            if name is None:
                continue
            if name in seen:
                first = self._program.where(seen[name])
                where = f", first at line {first.line}" if first else ""
                yield self._finding(
                    op,
                    "symbol-redefined",
                    f"@{name} is declared twice{where}",
                    "rename one of them",
                    f"redefinition of symbol named '{name}'",
                )
            seen.setdefault(name, op)

    def _lookup(self, op: Operation, name: str) -> Operation | None:
        table = op.parent_op()
        while table is not None:
            if table not in self._symbols:
                self._symbols[table] = {symbol: one for one in _direct(table) if (symbol := _symbol(one)) is not None}
            if (found := self._symbols[table].get(name)) is not None:
                return found
            table = table.parent_op()
        return None

    def _call(self, op: CallOp) -> Iterator[Finding]:
        callee = op.properties.get("callee")
        if not isinstance(callee, SymbolRefAttr):
            return
        name = callee.string_value()
        target = self._lookup(op, name)
        if not isinstance(target, FuncOp):
            yield self._finding(
                op,
                "call-undeclared",
                f"@{name} is called but nowhere declared",
                f"declare it: func.func private @{name}(…)",
                f"'func.call' op '{name}' does not reference a valid function",
            )
            return
        wanted = target.properties.get("function_type")
        given = FunctionType.from_lists([*op.operand_types], [*op.result_types])
        if isinstance(wanted, FunctionType) and wanted != given:
            yield self._finding(
                op,
                "call-signature",
                f"@{name} is declared as {wanted}, but called as {given}",
                "make the call and the declaration agree",
                "operand type mismatch",
            )

    # -- AIR

    def _tokens(self, op: AirOp) -> Iterator[Finding]:
        for dependency in op.async_dependencies:
            if not isinstance(dependency.type, AsyncTokenType):
                yield self._finding(
                    op,
                    "async-dependency",
                    f"it waits for a value of type {dependency.type}, which is no token",
                    "name tokens (!air.async.token) in the brackets",
                )

    def _terminator_parent(self, op: AirOp) -> Iterator[Finding]:
        wanted = PARENT_OF_TERMINATOR.get(op.name)
        parent = op.parent_op()
        if wanted is not None and (parent is None or parent.name != wanted):
            yield self._finding(
                op,
                "terminator-parent",
                f"it stands in {parent.name if parent else 'no op'}, but ends {wanted}",
                "remove it",
                f"'{op.name}' op expects parent op '{wanted}'",
            )

    def _hierarchy(self, op: Hierarchy) -> Iterator[Finding]:
        parent = op.parent_op()
        while parent is not None:
            if isinstance(parent, NOT_INSIDE.get(type(op), ())):
                yield self._finding(
                    op,
                    "hierarchy-nesting",
                    f"it stands inside {parent.name}",
                    f"put it beside or around {parent.name}: launch holds segments, a segment holds herds",
                    severity="error" if isinstance(op, RankOp) else "warning",
                )
                break
            if isinstance(op, LaunchOp) and isinstance(parent, RankOp):
                break  # a rank is a device of its own, even inside a launch
            parent = parent.parent_op()
        yield from self._arguments(op)
        yield from self._ends_with(op, op.body, op.terminator)
        if isinstance(op, HerdOp) and not 1 <= len(op.sizes) <= 2:
            message = f"it has {len(op.sizes)} dimensions"
            yield self._finding(op, "herd-rank", message, "give it one or two", severity="warning")

    def _arguments(self, op: Hierarchy) -> Iterator[Finding]:
        arguments = op.body.block.args
        dims, handed = len(op.sizes), op.kernel_operands
        wanted = [*(IndexType() for _ in range(2 * dims)), *(operand.type for operand in handed)]
        if len(arguments) != len(wanted):
            yield self._finding(
                op,
                "hierarchy-arguments",
                f"its body takes {len(arguments)} arguments, but {dims} ids, {dims} sizes and {len(handed)} operands "
                "are handed in",
                f"give the body {len(wanted)} arguments: ids, sizes, operands",
            )
            return
        for number, (argument, type) in enumerate(zip(arguments, wanted, strict=True)):
            if argument.type != type:
                yield self._finding(
                    op,
                    "hierarchy-arguments",
                    f"argument {number} of its body is {argument.type}, but {type} is handed in",
                    f"give argument {number} the type {type}",
                )

    def _ends_with(self, op: Operation, body: Region, terminator: str) -> Iterator[Finding]:
        last = body.block.last_op
        if last is None or last.name != terminator:
            yield self._finding(
                op,
                "terminator-missing",
                f"its body ends with {last.name if last else 'nothing'}",
                f"end it with {terminator}",
                f"'{op.name}' op expects regions to end with '{terminator}'",
            )
        for inner in body.block.ops:
            if inner is not last and inner.has_trait(IsTerminator, value_if_unregistered=False):
                yield self._finding(
                    inner,
                    "terminator-early",
                    "ops follow it in the block it ends",
                    "move it to the end",
                    f"'{inner.name}' op must be the last operation in the parent block",
                )

    def _execute(self, op: ExecuteOp) -> Iterator[Finding]:
        yield from self._ends_with(op, op.body, "air.execute_terminator")
        last = op.body.block.last_op
        if not op.results or not isinstance(op.results[0].type, AsyncTokenType):
            yield self._finding(op, "execute-results", "its first result is no token", "return a token first")
        elif isinstance(last, ExecuteTerminatorOp):
            wanted, given = [one.type for one in op.results[1:]], [one.type for one in last.operands]
            if wanted != given:
                yield self._finding(
                    op,
                    "execute-results",
                    f"it returns {_types(wanted)} behind its token, but its body hands out {_types(given)}",
                    "make the results and the operands of air.execute_terminator agree",
                )

    def _channel(self, op: ChannelAccess) -> Iterator[Finding]:
        channel = self._lookup(op, op.chan_name)
        if not isinstance(channel, ChannelOp):
            yield self._finding(
                op,
                "channel-undeclared",
                f"no channel @{op.chan_name} is declared",
                f"declare it in the module: air.channel @{op.chan_name} [1, 1]",
            )
            return
        ranks = {len(channel.size), len(channel.broadcast_shape or channel.size)}
        if all(size == 1 for size in channel.size):
            ranks.add(0)
        if not channel.size:
            ranks |= {1, 2}  # one channel, whatever the indices
        if len(op.indices) not in ranks:
            yield self._finding(
                op,
                "channel-index-count",
                f"it names {len(op.indices)} indices, but @{op.chan_name} has {len(channel.size)} dimensions",
                f"give {len(channel.size)} indices",
                severity="error" if len(op.indices) < min(ranks) else "warning",
            )
        for number, index in enumerate(op.indices):
            if not isinstance(index.type, IndexType):
                yield self._finding(
                    op, "channel-index-type", f"index {number} is of type {index.type}", "cast it (arith.index_cast)"
                )

    def _elements(self, op: DmaMemcpyNdOp) -> Iterator[Finding]:
        dst, src = _element(op.dst), _element(op.src)
        if dst is not None and src is not None and dst != src:
            yield self._finding(
                op,
                "dma-element-type",
                f"it copies elements of {src} into a memref of {dst}; data movement does not convert",
                "make the element types agree, and convert in a herd",
                severity="warning",
            )

    def _windows(self, op: AirOp) -> Iterator[Finding]:
        for side, window in op.windows().items():
            sizes, strides, offsets = len(window.sizes), len(window.strides), len(window.offsets)
            if sizes != strides:
                yield self._finding(
                    op,
                    "dma-rank",
                    f"{side} has {sizes} sizes and {strides} strides",
                    "give as many sizes as strides",
                    f"{side} sizes and strides must have the same number of dimensions, but got {sizes} and {strides}",
                )
            elif offsets > sizes:
                yield self._finding(
                    op,
                    "dma-rank",
                    f"{side} has {offsets} offsets and {sizes} sizes",
                    "give at most as many offsets as sizes",
                    severity="warning",
                )
            entries = (*window.offsets, *window.sizes, *window.strides)
            for entry in entries:
                if not isinstance(entry, int) and not isinstance(entry.type, IndexType):
                    yield self._finding(
                        op, "window-type", f"an entry of {side} is of type {entry.type}", "cast it (arith.index_cast)"
                    )
            if any(isinstance(size, int) and size < 0 for size in window.sizes):
                yield self._finding(
                    op, "window-negative", f"a size of {side} is negative", "give the extent in elements"
                )


def _barrier(user: Operation, home: Block | None) -> Operation | None:
    """The isolated op between a user and the block its operand lives in."""
    current: Operation | None = user
    barrier: Operation | None = None
    while current is not None and current.parent_block() is not home:
        current = current.parent_op()
        if (
            current is not None
            and barrier is None
            and current.has_trait(IsolatedFromAbove, value_if_unregistered=False)
        ):
            barrier = current
    return barrier if current is not None else None


def _ancestor_in(op: Operation, block: Block) -> Operation | None:
    current: Operation | None = op
    while current is not None and current.parent_block() is not block:
        current = current.parent_op()
    return current


def _direct(table: Operation) -> Iterator[Operation]:
    for region in table.regions:
        for block in region.blocks:
            yield from block.ops


def _symbol(op: Operation) -> str | None:
    if isinstance(op, Hierarchy):
        return None  # names of launches, segments and herds are labels, not symbols
    value = op.properties.get("sym_name", op.attributes.get("sym_name"))
    return value.data if isinstance(value, StringAttr) else None


def _element(value: SSAValue) -> Attribute | None:
    type: Attribute = value.type
    return cast("MemRefType[Attribute]", type).element_type if isinstance(type, MemRefType) else None


def _types(types: Sequence[object]) -> str:
    return ", ".join(str(type) for type in types) or "nothing"
