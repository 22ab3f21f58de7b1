"""The reader: xDSL's MLIR parser with MLIR's own tolerance, positions of ops, and a table of custom forms.

What differs from xDSL's parser:
- ops of any name are read in generic form, and keep their name (`op.name`), whether xDSL knows them or not;
- a custom form is looked up in the table of forms first, then in xDSL;
- nothing is verified while reading, so xDSL's verifiers, stricter than MLIR's in places, refuse nothing;
- regions isolated from above start with no values, so the same names may be used inside and outside;
- every op's place is kept, and values used but never defined are reported where they are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import (
    AnyDenseElement,
    DenseArrayBase,
    IndexType,
    MemRefType,
    ModuleOp,
    RankedStructure,
    ShapedType,
    TensorType,
    UnitAttr,
    UnrankedMemRefType,
    UnrankedTensorType,
    UnregisteredAttr,
    i64,
)
from xdsl.ir import Attribute, AttributeInvT, Block, Operation, ParametrizedAttribute, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.irdl import IRDLOperation, traits_def
from xdsl.parser import ForwardDeclaredValue, Parser, UnresolvedOperand
from xdsl.traits import IsolatedFromAbove
from xdsl.utils.lexer import Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from npu_tools.air.attribute_reader import AttributeReader, SsaAffineParser
from npu_tools.air.dialect import AirOp
from npu_tools.air.names import Names

Form = Callable[["Reader", str], Operation]
"""Reads what follows an op's name in its custom form; gets the reader and the name."""

MAX_REGION_DEPTH = 48
"""Regions nested deeper than any real program; deeper ones would exhaust the stack here or in later passes."""


_PAYLOAD = re.compile(r"\{\s*[a-z_]+\.[a-z_.]+\s*(?:\}|\{)")
_NUMBERED = re.compile(r"(_\d+)+$")


class NamedOp(Operation):
    """An op that neither xDSL nor the AIR dialect declares: known by its name alone."""

    name = "builtin.named"
    traits = traits_def()


@lru_cache(maxsize=4096)
def named_op(name: str) -> type[Operation]:
    """The class of ops of that name."""
    return type("NamedOp_" + name.replace(".", "_"), (NamedOp,), {"name": name, "__doc__": f"`{name}`, by name alone."})


class Reader(AttributeReader):
    """Reads one chunk of MLIR text into a module."""

    def __init__(self, context: Context, text: str, name: str, find_form: Callable[[str], Form | None]) -> None:
        super().__init__(context, text, name)
        self.ssa_values = Names()
        self.module = ModuleOp([])
        self.resources: list[str] = []
        self.offsets: dict[Operation, int] = {}
        self.result_count = 0
        """How many results the op being read is bound to; some custom forms depend on it."""
        self._find_form = find_form
        self._op_stack: list[type[Operation]] = []
        self._outside: list[dict[str, tuple[SSAValue, ...]]] = []
        self._first_uses: dict[str, Span] = {}
        self._depth = 0

    # -- operations

    def read_module(self) -> None:
        """Read the whole text into `module`; ops that stand alone are put into one."""
        ops: list[Operation] = []
        while self._current_token.kind != MLIRTokenKind.EOF:
            if self._current_token.kind in (MLIRTokenKind.HASH_IDENT, MLIRTokenKind.EXCLAMATION_IDENT):
                self._parse_alias_def()
            elif self._current_token.kind == MLIRTokenKind.FILE_METADATA_BEGIN:
                self._keep_resources()
            elif (op := self.parse_optional_operation()) is not None:
                ops.append(op)
            else:
                self.raise_error(f"an operation was expected, found {self.shown()}")
        self._refuse_undefined()
        self.module = ops[0] if len(ops) == 1 and isinstance(ops[0], ModuleOp) else ModuleOp(ops)

    def _keep_resources(self) -> None:
        content = self.lexer.input.content
        start = self.pos
        end = content.find("#-}", start)
        if end < 0:
            self.raise_error("this section of resources never ends; '#-}' is missing", start)
        self.resources.append(content[start : end + 3])
        self._resume_from(end + 3)

    def parse_operation(self) -> Operation:
        """One operation, in generic or custom form, with its results bound."""
        bound = self._parse_op_result_list()
        outer_count, self.result_count = self.result_count, sum(size for _, size in bound)
        token = self._current_token
        start = token.span.start
        if token.kind == MLIRTokenKind.STRING_LIT:
            name = self.parse_str_literal()
            op_type = self.op_type(name)
            read: Callable[[], Operation] = lambda: self._parse_generic_operation(op_type)  # noqa: E731
        elif token.kind == MLIRTokenKind.BARE_IDENT:
            self._consume_token()
            op_type, read = self._custom_form(token.text, token.span)
        else:
            self.raise_error(f"an operation name was expected, found {self.shown()}")
        self._op_stack.append(op_type)
        self._parser_state.dialect_stack.append(op_type.dialect_name())
        op = read()
        self._parser_state.dialect_stack.pop()
        self._op_stack.pop()
        if (location := self.parse_optional_location()) is not None:
            op.location = location
        if self.result_count and len(op.results) != self.result_count:
            self.raise_error(
                f"{op.name} returns {len(op.results)} values, but {self.result_count} names are bound", start
            )
        self.result_count = outer_count
        self.offsets[op] = start
        self._check(op, token.span)
        first = 0
        for span, size in bound:
            self._register_ssa_definition(span.text[1:], op.results[first : first + size], span)
            first += size
        return op

    def _custom_form(self, name: str, span: Span) -> tuple[type[Operation], Callable[[], Operation]]:
        full = self._full_name(name)
        op_type = self._known(full)
        if (form := self._find_form(full)) is not None:
            return self.op_type(full), lambda: form(self, full)
        if op_type is not None and any("parse" in vars(base) for base in op_type.__mro__ if base is not Operation):
            return op_type, lambda: op_type.parse(self)
        dialect, _, _ = full.partition(".")
        self.raise_error(
            f"the custom form of '{full}' (dialect '{dialect}') is not known here; "
            "print the program in generic form (--mlir-print-op-generic), which is read for any dialect",
            span,
        )

    def _full_name(self, name: str) -> str:
        if self._find_form(name) is not None or self._known(name) is not None:
            return name
        for dialect in reversed(self._parser_state.dialect_stack):
            candidate = f"{dialect}.{name}"
            if self._find_form(candidate) is not None or self._known(candidate) is not None:
                return candidate
        return name

    def _known(self, name: str) -> type[Operation] | None:
        self.ctx.allow_unregistered = False
        try:
            return self.ctx.get_optional_op(name)
        finally:
            self.ctx.allow_unregistered = True

    def op_type(self, name: str) -> type[Operation]:
        """The class for ops of that name."""
        return self._known(name) or named_op(name)

    def _get_op_by_name(self, name: str) -> type[Operation]:
        return self.op_type(name)

    def make(
        self,
        name: str,
        operands: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region] = (),
        successors: Sequence[Block] = (),
    ) -> Operation:
        """An op of that name, its attributes stored where the generic form would store them."""
        op_type = self.op_type(name)
        discardable = dict(attributes or {})
        inherent: dict[str, Attribute] = {}
        if issubclass(op_type, IRDLOperation):
            for key in op_type.get_irdl_definition().properties:
                if key in discardable:
                    inherent[key] = discardable.pop(key)
        return op_type.create(
            operands=operands,
            result_types=result_types,
            properties=inherent,
            attributes=discardable,
            regions=regions,
            successors=successors,
        )

    def _check(self, op: Operation, span: Span) -> None:
        if not isinstance(op, AirOp):
            return
        op.attributes = {**op.properties, **op.attributes}
        op.properties = {}
        try:
            op.check_shape()
        except ValueError as fault:
            self.raise_error(f"{op.name}: {fault}", span)

    # -- regions and values

    def parse_optional_region(self, arguments: Sequence[Parser.Argument] | None = None) -> Region | None:
        """A region; one of an isolated op sees no values from around it."""
        if self._current_token.kind != MLIRTokenKind.L_BRACE:
            return None
        self._depth += 1
        if self._depth > MAX_REGION_DEPTH:
            self.raise_error(f"regions are nested more than {MAX_REGION_DEPTH} deep")
        isolated = bool(self._op_stack) and self._op_stack[-1].has_trait(IsolatedFromAbove)
        values, awaited, uses = self.ssa_values, self.forward_ssa_references, self._first_uses
        # What is awaited outside is not found inside, though a value of that name be defined there.
        self.forward_ssa_references, self._first_uses = {}, {}
        if isolated:
            self.ssa_values = Names()
            self._outside.append(values)
            region = super().parse_optional_region(arguments)
            self._refuse_undefined()
            self._outside.pop()
            self.ssa_values, self.forward_ssa_references, self._first_uses = values, awaited, uses
        else:
            region = super().parse_optional_region(arguments)
            inside, inside_uses = self.forward_ssa_references, self._first_uses
            self.forward_ssa_references, self._first_uses = awaited, uses
            self._await(inside, inside_uses)
        self._depth -= 1
        return region

    def _await(self, inside: dict[str, dict[int, ForwardDeclaredValue[Attribute]]], uses: dict[str, Span]) -> None:
        """Values that a region used without defining them are awaited around it."""
        for name, references in inside.items():
            known = self.forward_ssa_references.setdefault(name, {})
            for index, value in references.items():
                first = known.setdefault(index, value)
                if first.type != value.type:
                    self.raise_error(f"%{name} is used as {value.type} here and as {first.type} before", uses[name])
                if first is not value:
                    value.replace_all_uses_with(first)
            self._first_uses.setdefault(name, uses[name])

    def resolve_operand(self, operand: UnresolvedOperand, type: AttributeInvT) -> SSAValue[AttributeInvT]:
        """The value a name stands for; a name not yet defined is remembered with its place."""
        value = super().resolve_operand(operand, type)
        if isinstance(value, ForwardDeclaredValue):
            self._first_uses.setdefault(operand.operand_name, operand.span)
        return value

    def parse_optional_operand(self, type: Attribute | None = None) -> SSAValue | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """xDSL's, but silent where its own dialects still leave the type out."""
        if type is None:
            return self._parse_optional_operand_without_type()
        operand = self.parse_optional_unresolved_operand()
        return None if operand is None else self.resolve_operand(operand, type)

    def parse_operand(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, type: Attribute | str | None = None, *, msg: str = "an operand was expected"
    ) -> SSAValue:
        """xDSL's, but silent where its own dialects still leave the type out."""
        if isinstance(type, Attribute):
            return self.resolve_operand(self.parse_unresolved_operand(msg), type)
        return self.expect(self._parse_optional_operand_without_type, type or msg)

    def _parse_optional_operand_without_type(self) -> SSAValue | None:
        operand = self.parse_optional_unresolved_operand()
        if operand is None:
            return None
        values = self.ssa_values.get(operand.operand_name)
        if values is None:
            self.raise_error(f"%{operand.operand_name} is used before it is defined", operand.span)
        if operand.index >= len(values):
            self.raise_error(f"%{operand.operand_name} has {len(values)} values", operand.span)
        return values[operand.index]

    def _register_ssa_definition(self, name: str, values: Sequence[SSAValue], span: Span) -> None:
        super()._register_ssa_definition(name, values, span)
        # The printer numbers equal names (%c_0, %c_1); hints without those numbers print the same when read again.
        hint = _NUMBERED.sub("", name)
        for value in values:
            value.name_hint = hint if SSAValue.is_valid_name(hint) else None

    def _refuse_undefined(self) -> None:
        if not self.forward_ssa_references:
            return
        name = min(self.forward_ssa_references, key=lambda name: self._first_uses[name].start)
        message = f"%{name} is used but never defined"
        if self._outside and name in self._outside[-1]:
            message = (
                f"%{name} is defined outside, and the op around this one is isolated from above: "
                "hand the value in as an argument (args(%inside = %outside) for AIR ops)"
            )
        self.raise_error(message, self._first_uses[name])

    # -- small pieces that custom forms are made of

    def at_operand(self) -> bool:
        """Whether an operand comes next."""
        return self._current_token.kind == MLIRTokenKind.PERCENT_IDENT

    def at_symbol(self) -> bool:
        """Whether a symbol comes next."""
        return self._current_token.kind == MLIRTokenKind.AT_IDENT

    def expect_text(self, text: str) -> None:
        """This word or punctuation, or an error that shows what stands there."""
        if self._current_token.text != text:
            self.raise_error(f"'{text}' was expected, found {self.shown()}")
        self._consume_token()

    def operand_names(self) -> list[UnresolvedOperand]:
        """A comma-separated list of operands, perhaps empty."""
        return (
            self.parse_optional_undelimited_comma_separated_list(
                self.parse_optional_unresolved_operand, self.parse_unresolved_operand
            )
            or []
        )

    def type_list(self) -> list[Attribute]:
        """A comma-separated list of types."""
        return [*self.parse_comma_separated_list(self.Delimiter.NONE, self.parse_type)]

    def angle_text(self) -> str:
        """The text between `<` and its `>`."""
        if not self.at_text("<"):
            self.raise_error(f"'<' was expected, found {self.shown()}")
        return self._parse_dialect_symbol_body()

    def dialect_type(self, name: str) -> Attribute:
        """A dialect's type without parameters, `!gpu.async.token`, whether somebody declares it or not."""
        kind = self.ctx.get_optional_type(name)
        if kind is not None and issubclass(kind, UnregisteredAttr):
            return kind(name, True, False, "")
        assert kind is not None
        assert issubclass(kind, ParametrizedAttribute)
        return kind.new([])

    def payload_follows(self) -> bool:
        """Whether the brace that comes next holds one op's name, as linalg.map's short form does."""
        return _PAYLOAD.match(self.lexer.input.content, self.pos) is not None

    def block_name(self) -> Block:
        """`^bb1`."""
        return self.parse_successor()

    def unit(self) -> UnitAttr:
        """The attribute of a bare keyword."""
        return UnitAttr()

    def i64_array(self, values: Sequence[int]) -> DenseArrayBase:
        """`array<i64: …>`."""
        return DenseArrayBase.from_list(i64, values)

    def shape_of(self, type: Attribute) -> Sequence[int]:
        """The shape of a shaped type."""
        if not isinstance(type, ShapedType):
            self.raise_error("a shaped type was expected")
        return type.get_shape()

    def tensor_like(self, type: Attribute) -> Attribute:
        """The tensor type of a memref's shape and elements."""
        if isinstance(type, MemRefType):
            memref = cast("MemRefType[Attribute]", type)
            return TensorType(memref.element_type, memref.get_shape())
        if isinstance(type, UnrankedMemRefType):
            return UnrankedTensorType(cast("UnrankedMemRefType[Attribute]", type).element_type)
        self.raise_error("a memref type was expected")

    def parse_initial_value(self, type: Attribute) -> Attribute:
        """`dense<…>` whose type is that of the global where it is left out, or any other attribute."""
        if self.at_text("dense") and isinstance(type, MemRefType):
            self._consume_token()
            tensor = cast("RankedStructure[AnyDenseElement]", self.tensor_like(cast("MemRefType[Attribute]", type)))
            value = self.parse_dense_int_or_fp_elements_attr(tensor)
            if self.parse_optional_punctuation(":") is not None:
                self.parse_type()
            return value
        return self.parse_attribute()

    def affine_expressions(self, delimiter: Parser.Delimiter | None) -> tuple[AffineMap, list[SSAValue[IndexType]]]:
        """An affine expression over SSA values, `%n + 1`, or several in brackets, as a map of symbols."""
        results, spans = SsaAffineParser(self._parser_state).expressions(delimiter)
        operands = [self.resolve_operand(UnresolvedOperand(span, 0), IndexType()) for span in spans]
        return AffineMap(0, len(spans), tuple(results)), operands

    def parse_affine_map_of_ssa_ids(self) -> tuple[AffineMap, Sequence[SSAValue[IndexType]]]:
        """`[%i + 1, symbol(%n)]`."""
        return self.affine_expressions(self.Delimiter.SQUARE)

    def last_brace(self) -> int:
        """Where the region that was just read closes."""
        return max(self.lexer.input.content.rfind("}", 0, self.pos), 0)

    def shown(self) -> str:
        """The current token as an error message shows it."""
        token = self._current_token
        return "the end of the text" if token.kind == MLIRTokenKind.EOF else f"'{token.text[:40]}'"
