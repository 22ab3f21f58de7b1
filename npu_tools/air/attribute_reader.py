"""Reading attributes and types: xDSL's parser with limits on depth, width and size.

Text that is nested without end, or asks for terabytes in ten characters, is refused with its place instead of
exhausting the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any, cast

from xdsl.context import Context
from xdsl.dialects.builtin import (
    AnyDenseElement,
    AnyFloat,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    DenseResourceAttr,
    IndexType,
    IntegerType,
    RankedStructure,
    ShapedType,
    TensorType,
)
from xdsl.ir import Attribute, TypeAttribute
from xdsl.ir.affine import AffineBinaryOpExpr, AffineExpr, AffineMap, AffineSet
from xdsl.parser import AffineParser, Parser, ParserState
from xdsl.utils.lexer import Input, Span
from xdsl.utils.mlir_lexer import MLIRTokenKind

from npu_tools.air.lexer import AirLexer

MAX_ATTRIBUTE_DEPTH = 32
MAX_EXPRESSION_DEPTH = 100
"""Nested deeper than any real program; deeper ones would exhaust the stack here or in later passes."""

MAX_CONSTANT_BYTES = 256 << 20
"""The largest constant: two matrices of 8192 × 8192 in bf16."""

MAX_INTEGER_BITS = 1 << 16
"""The widest integer type."""

_INTEGER_TYPE = re.compile(r"[su]?i([0-9]+)")
_SCALAR = re.compile(r"<\s*(?:-?\s*[0-9]|true\b|false\b)")


class SsaAffineParser(AffineParser):
    """Affine expressions over SSA values: `%n + 1`, `symbol(%n)`."""

    def expressions(self, delimiter: Parser.Delimiter | None) -> tuple[list[AffineExpr], list[Span]]:
        """One expression, or several in brackets, with symbols for the values and where each value is first named."""
        value, _, spans = self._get_parse_optional_ssa_value()

        def primary() -> AffineExpr | None:
            if self.parse_optional_keyword("symbol") is None:
                return value()
            with self.in_parens():
                return self.expect(value, "a value was expected in symbol(…)")

        def expression() -> AffineExpr:
            return self._parse_affine_expr(primary)

        if delimiter is None:
            return [expression()], spans
        return self.parse_comma_separated_list(delimiter, expression), spans


class AttributeReader(Parser):
    """The part of the reader that knows attributes and types."""

    def __init__(self, context: Context, text: str, name: str) -> None:
        super().__init__(context, "", name)
        self._parser_state = ParserState(AirLexer(Input(text, name)))
        self._attribute_depth = 0

    def at_text(self, text: str) -> bool:
        """Whether this word or punctuation comes next."""
        return self._current_token.text == text

    def parse_optional_attribute(self) -> Attribute | None:
        """An attribute, refused where it is nested too deep."""
        self._enter()
        attribute = super().parse_optional_attribute()
        self._attribute_depth -= 1
        return attribute

    def parse_optional_type(self) -> TypeAttribute | None:
        """A type, refused where it is nested too deep or too wide."""
        self._enter()
        type = super().parse_optional_type()
        self._attribute_depth -= 1
        return type

    def _enter(self) -> None:
        self._attribute_depth += 1
        if self._attribute_depth > MAX_ATTRIBUTE_DEPTH:
            self.raise_error(f"attributes and types are nested more than {MAX_ATTRIBUTE_DEPTH} deep")

    def _parse_optional_integer_or_float_type(self) -> TypeAttribute | None:
        token = self._current_token
        if token.kind == MLIRTokenKind.BARE_IDENT and (width := _INTEGER_TYPE.fullmatch(token.text)):
            digits = width.group(1)
            if len(digits) > 6 or not 0 < int(digits) <= MAX_INTEGER_BITS:
                self.raise_error(f"'{token.text[:40]}' is no integer type; widths go from 1 to {MAX_INTEGER_BITS}")
        return super()._parse_optional_integer_or_float_type()

    def parse_affine_map(self) -> AffineMap:
        """An affine map, refused where an expression is too deep."""
        start = self.pos
        result = super().parse_affine_map()
        self._refuse_deep(result.results, start)
        return result

    def parse_affine_set(self) -> AffineSet:
        """An affine set, refused where an expression is too deep."""
        start = self.pos
        result = super().parse_affine_set()
        self._refuse_deep([side for one in result.constraints for side in (one.lhs, one.rhs)], start)
        return result

    def _refuse_deep(self, expressions: Sequence[AffineExpr], start: int) -> None:
        level: list[AffineExpr] = [*expressions]
        for _ in range(MAX_EXPRESSION_DEPTH):
            level = [side for one in level if isinstance(one, AffineBinaryOpExpr) for side in (one.lhs, one.rhs)]
            if not level:
                return
        self.raise_error(f"the affine expression is more than {MAX_EXPRESSION_DEPTH} operations deep", start)

    def parse_dense_int_or_fp_elements_attr(
        self, type: RankedStructure[AnyDenseElement] | None
    ) -> DenseIntOrFPElementsAttr:
        """`dense<…> : T`; one value for all elements is stored as bytes at once, and absurd sizes are refused."""
        start = self.pos
        if self._scalar_follows():
            self.parse_punctuation("<")
            element = self._parse_tensor_literal_element()
            self.parse_punctuation(">")
            if type is None:
                self.parse_punctuation(":")
                type = self._parse_dense_literal_type()
            self._refuse_large(type, start)
            one = DenseIntOrFPElementsAttr.from_list(
                cast("RankedStructure[IntegerType]", TensorType(type.get_element_type(), [1])),
                [cast("int", element.to_type(self, type.get_element_type()))],
            )
            count = prod(type.get_shape())
            return DenseIntOrFPElementsAttr(type, BytesAttr(one.data.data * count))
        if type is not None:
            self._refuse_large(type, start)
        return super().parse_dense_int_or_fp_elements_attr(type)

    def _scalar_follows(self) -> bool:
        content = self.lexer.input.content
        return self.at_text("<") and _SCALAR.match(content, self.pos) is not None

    def _parse_dense_literal_type(
        self,
    ) -> RankedStructure[IntegerType | IndexType | AnyFloat | ComplexType[Any]]:
        start = self.pos
        type = super()._parse_dense_literal_type()
        self._refuse_large(type, start)
        return type

    def _refuse_large(self, type: RankedStructure[AnyDenseElement], start: int) -> None:
        shape = [*type.get_shape()]
        if any(extent < 0 for extent in shape):
            self.raise_error("a dense constant needs a static shape", start)
        total = prod(shape) * type.get_element_type().compile_time_size
        if total > MAX_CONSTANT_BYTES:
            self.raise_error(f"the constant has {total} bytes, more than the {MAX_CONSTANT_BYTES} that are kept", start)

    def _parse_builtin_dense_resource_attr(self) -> DenseResourceAttr:
        # xDSL renames a key that any program of this process has used before.
        with self.in_angle_brackets():
            key = self.parse_identifier()
        self.parse_punctuation(":")
        type = self.parse_type()
        if not isinstance(type, ShapedType):
            self.raise_error("a dense resource needs a shaped type")
        return DenseResourceAttr.from_params(key, cast("Any", type))
