"""Custom forms of llvm and gpu that upstream's host-side programs use and xDSL lacks."""

from __future__ import annotations

from xdsl.dialects.gpu import DimensionAttr, DimensionEnum
from xdsl.ir import Attribute, Operation, SSAValue

from npu_tools.air.formats import format_form
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import INDEX, grouped


def asynchronous(reader: Reader) -> tuple[list[Attribute], list[SSAValue]]:
    """`[async] [[%t, …]]` with gpu's own tokens."""
    token = reader.dialect_type("gpu.async.token")
    results = [token] if reader.parse_optional_keyword("async") is not None else []
    names = reader.parse_optional_comma_separated_list(reader.Delimiter.SQUARE, reader.parse_unresolved_operand)
    return results, [reader.resolve_operand(name, token) for name in names or []]


def alloc(reader: Reader, name: str) -> Operation:
    """`[async] [deps] [host_shared] (%dyn) [[%sym]] {…} : T`."""
    results, dependencies = asynchronous(reader)
    shared = reader.parse_optional_keyword("host_shared") is not None

    def index() -> SSAValue:
        return reader.parse_operand(INDEX)

    sizes = reader.parse_comma_separated_list(reader.Delimiter.PAREN, index)
    symbols = reader.parse_optional_comma_separated_list(reader.Delimiter.SQUARE, index) or []
    attributes = reader.parse_optional_attr_dict()
    if shared:
        attributes["hostShared"] = reader.unit()
    reader.parse_punctuation(":")
    return grouped(reader, name, [dependencies, sizes, symbols], [reader.parse_type(), *results], attributes)


def memcpy(reader: Reader, name: str) -> Operation:
    """`[async] [deps] %dst, %src {…} : T, T`."""
    results, dependencies = asynchronous(reader)
    names = reader.operand_names()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    place = reader.pos
    operands = reader.resolve_operands(names, reader.type_list(), place)
    return reader.make(name, [*dependencies, *operands], results, attributes)


def dimension(reader: Reader, name: str) -> Operation:
    """`x {…}`: gpu.thread_id and its like."""
    place = reader.pos
    word = reader.parse_identifier()
    if word not in ("x", "y", "z"):
        reader.raise_error(f"x, y or z was expected, found '{word}'", place)
    attributes: dict[str, Attribute] = {"dimension": DimensionAttr(DimensionEnum(word))}
    return reader.make(name, [], [INDEX], {**attributes, **reader.parse_optional_attr_dict()})


FORMS: dict[str, Form] = {
    "gpu.alloc": alloc,
    "gpu.dealloc": memcpy,
    "gpu.memcpy": memcpy,
    "gpu.block_dim": dimension,
    "gpu.block_id": dimension,
    "gpu.grid_dim": dimension,
    "gpu.thread_id": dimension,
    "gpu.barrier": format_form("{}"),
    "gpu.lane_id": format_form("{} R=index"),
    "gpu.shuffle": format_form("=mode $0 , $1:i32 , $2:i32 {} : T0 R=0 R=i1"),
    "llvm.mlir.poison": format_form("{} : R"),
}
