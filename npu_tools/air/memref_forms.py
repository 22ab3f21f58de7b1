"""Custom forms of memref, bufferization and tensor that xDSL lacks or refuses."""

from __future__ import annotations

from xdsl.dialects.builtin import (
    AffineMapAttr,
    ArrayAttr,
    BoolAttr,
    DenseArrayBase,
    IntegerAttr,
    StringAttr,
    SymbolRefAttr,
    UnitAttr,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from npu_tools.air.formats import format_form
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import INDEX, grouped, mixed_list


def global_form(reader: Reader, name: str) -> Operation:
    """`["private"] [constant] @name : T [= value | uninitialized] {…}`."""
    attributes: dict[str, Attribute] = {}
    if (visibility := reader.parse_optional_str_literal()) is not None:
        attributes["sym_visibility"] = StringAttr(visibility)
    if reader.parse_optional_keyword("constant") is not None:
        attributes["constant"] = UnitAttr()
    attributes["sym_name"] = reader.parse_symbol_name()
    reader.parse_punctuation(":")
    type = reader.parse_type()
    attributes["type"] = type
    if reader.parse_optional_punctuation("=") is not None:
        if reader.parse_optional_keyword("uninitialized") is not None:
            attributes["initial_value"] = UnitAttr()
        else:
            attributes["initial_value"] = reader.parse_initial_value(type)
    attributes.update(reader.parse_optional_attr_dict())
    return reader.make(name, attributes=attributes)


def reinterpret_cast(reader: Reader, name: str) -> Operation:
    """`%m to offset: [o], sizes: [s], strides: [st] {…} : T to T`."""
    source = reader.parse_unresolved_operand()
    reader.parse_keyword("to")
    attributes: dict[str, Attribute] = {}
    lists: list[list[SSAValue]] = []
    for word, kind in (("offset", "offsets"), ("sizes", "sizes"), ("strides", "strides")):
        if lists:
            reader.parse_punctuation(",")
        reader.parse_keyword(word)
        reader.parse_punctuation(":")
        attributes[f"static_{kind}"], values = mixed_list(reader)
        lists.append(values)
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    source_type = reader.parse_type()
    reader.parse_keyword("to")
    groups = [[reader.resolve_operand(source, source_type)], *lists]
    return grouped(reader, name, groups, [reader.parse_type()], attributes)


def reassociation(reader: Reader) -> ArrayAttr[Attribute]:
    """`[[0, 1], [2]]`."""

    def group() -> ArrayAttr[Attribute]:
        return ArrayAttr(
            [
                IntegerAttr(entry, i64)
                for entry in reader.parse_comma_separated_list(
                    reader.Delimiter.SQUARE, lambda: reader.parse_integer(allow_boolean=False)
                )
            ]
        )

    return ArrayAttr(reader.parse_comma_separated_list(reader.Delimiter.SQUARE, group))


def expand_shape(reader: Reader, name: str) -> Operation:
    """`%m [[0, 1]] [output_shape [2, %n]] {…} : T into T`; older text leaves the shape out."""
    source = reader.parse_unresolved_operand()
    attributes: dict[str, Attribute] = {"reassociation": reassociation(reader)}
    shape: list[SSAValue] = []
    given = reader.parse_optional_keyword("output_shape") is not None
    if given:
        attributes["static_output_shape"], shape = mixed_list(reader)
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    source_type = reader.parse_type()
    reader.parse_keyword("into")
    result = reader.parse_type()
    if not given:
        attributes["static_output_shape"] = DenseArrayBase.from_list(i64, reader.shape_of(result))
    return reader.make(name, [reader.resolve_operand(source, source_type), *shape], [result], attributes)


def transpose(reader: Reader, name: str) -> Operation:
    """`%m (d0, d1) -> (d1, d0) {…} : T to T`."""
    source = reader.parse_unresolved_operand()
    permutation = reader.parse_affine_map()
    attributes: dict[str, Attribute] = {"permutation": AffineMapAttr(permutation), **reader.parse_optional_attr_dict()}
    reader.parse_punctuation(":")
    source_type = reader.parse_type()
    reader.parse_keyword("to")
    return reader.make(name, [reader.resolve_operand(source, source_type)], [reader.parse_type()], attributes)


def view(reader: Reader, name: str) -> Operation:
    """`%m[%shift][%sizes] {…} : T to T`."""
    source = reader.parse_unresolved_operand()
    with reader.in_square_brackets():
        shift = reader.parse_operand(INDEX)
    sizes = reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_operand(INDEX))
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    source_type = reader.parse_type()
    reader.parse_keyword("to")
    operands = [reader.resolve_operand(source, source_type), shift, *sizes]
    return reader.make(name, operands, [reader.parse_type()], attributes)


def atomic_rmw(reader: Reader, name: str) -> Operation:
    """`kind %value, %m[%i] {…} : (T, memref) -> T`."""
    kind = reader.parse_identifier()
    value = reader.parse_unresolved_operand()
    reader.parse_punctuation(",")
    memref = reader.parse_unresolved_operand()
    indices = reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_operand(INDEX))
    attributes: dict[str, Attribute] = {"kind": StringAttr(kind), **reader.parse_optional_attr_dict()}
    reader.parse_punctuation(":")
    place = reader.pos
    type = reader.parse_function_type()
    values = reader.resolve_operands([value, memref], type.inputs.data, place)
    return reader.make(name, [*values, *indices], type.outputs.data, attributes)


def prefetch(reader: Reader, name: str) -> Operation:
    """`%m[%i], read, locality<3>, data {…} : T`."""
    memref = reader.parse_unresolved_operand()
    indices = reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_operand(INDEX))
    reader.parse_punctuation(",")
    attributes: dict[str, Attribute] = {"isWrite": BoolAttr.from_bool(reader.parse_identifier() == "write")}
    reader.parse_punctuation(",")
    reader.parse_keyword("locality")
    with reader.in_angle_brackets():
        attributes["localityHint"] = IntegerAttr(reader.parse_integer(allow_boolean=False), i32)
    reader.parse_punctuation(",")
    attributes["isDataCache"] = BoolAttr.from_bool(reader.parse_identifier() == "data")
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    return reader.make(name, [reader.resolve_operand(memref, reader.parse_type()), *indices], [], attributes)


def generate(reader: Reader, name: str) -> Operation:
    """`%n, … {…} {…} : T`."""
    extents = [reader.resolve_operand(operand, INDEX) for operand in reader.operand_names()]
    region = reader.parse_region()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    return reader.make(name, extents, [reader.parse_type()], attributes, [region])


def parallel_insert_slice(reader: Reader, name: str) -> Operation:
    """`%s into %d[o][s][st] {…} : T into T`."""
    source = reader.parse_unresolved_operand()
    reader.parse_keyword("into")
    dest = reader.parse_unresolved_operand()
    attributes: dict[str, Attribute] = {}
    lists: list[list[SSAValue]] = []
    for kind in ("offsets", "sizes", "strides"):
        attributes[f"static_{kind}"], values = mixed_list(reader)
        lists.append(values)
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    source_type = reader.parse_type()
    reader.parse_keyword("into")
    ends = [reader.resolve_operand(source, source_type)], [reader.resolve_operand(dest, reader.parse_type())]
    return grouped(reader, name, [*ends, *lists], [], attributes)


def to_tensor(reader: Reader, name: str) -> Operation:
    """`%m [restrict] [writable] {…} : T [to T]`; older text names the memref alone."""
    source = reader.parse_unresolved_operand()
    attributes: dict[str, Attribute] = {}
    for word in ("restrict", "writable"):
        if reader.parse_optional_keyword(word) is not None:
            attributes[word] = UnitAttr()
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    type = reader.parse_type()
    result = reader.parse_type() if reader.parse_optional_keyword("to") is not None else reader.tensor_like(type)
    return reader.make(name, [reader.resolve_operand(source, type)], [result], attributes)


def to_memref(reader: Reader, name: str) -> Operation:
    """`%t [read_only] {…} : [T to] T`; older text names the memref alone."""
    source = reader.parse_unresolved_operand()
    attributes: dict[str, Attribute] = {}
    if reader.parse_optional_keyword("read_only") is not None:
        attributes["read_only"] = UnitAttr()
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    first = reader.parse_type()
    if reader.parse_optional_keyword("to") is not None:
        return reader.make(name, [reader.resolve_operand(source, first)], [reader.parse_type()], attributes)
    return reader.make(name, [reader.resolve_operand(source, reader.tensor_like(first))], [first], attributes)


def materialize_in_destination(reader: Reader, name: str) -> Operation:
    """`%s in [restrict] [writable] %d {…} : (T, T) -> ()`."""
    source = reader.parse_unresolved_operand()
    reader.parse_keyword("in")
    attributes: dict[str, Attribute] = {}
    for word in ("restrict", "writable"):
        if reader.parse_optional_keyword(word) is not None:
            attributes[word] = UnitAttr()
    dest = reader.parse_unresolved_operand()
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    place = reader.pos
    type = reader.parse_function_type()
    return reader.make(
        name, reader.resolve_operands([source, dest], type.inputs.data, place), type.outputs.data, attributes
    )


def get_global(reader: Reader, name: str) -> Operation:
    """`@name {…} : T`."""
    attributes: dict[str, Attribute] = {"name": SymbolRefAttr(reader.parse_symbol_name())}
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    return reader.make(name, [], [reader.parse_type()], attributes)


def identity_map(rank: int) -> AffineMapAttr:
    """`(d0, …) -> (d0, …)`."""
    return AffineMapAttr(AffineMap(rank, 0, tuple(AffineExpr.dimension(i) for i in range(rank))))


FORMS: dict[str, Form] = {
    "memref.global": global_form,
    "memref.get_global": get_global,
    "memref.reinterpret_cast": reinterpret_cast,
    "memref.expand_shape": expand_shape,
    "memref.transpose": transpose,
    "memref.view": view,
    "memref.atomic_rmw": atomic_rmw,
    "memref.prefetch": prefetch,
    "memref.realloc": format_form("$0 ?( ( $1:index ) )? {} : T0 to R"),
    "tensor.generate": generate,
    "tensor.parallel_insert_slice": parallel_insert_slice,
    "memref.copy": format_form("$0 , $1 {} : T0 to T1"),
    "memref.cast": format_form("$0 {} : T0 to R"),
    "memref.memory_space_cast": format_form("$0 {} : T0 to R"),
    "memref.rank": format_form("$0 {} : T0 R=index"),
    "memref.dim": format_form("$0 , $1:index {} : T0 R=index"),
    "memref.assume_alignment": format_form("$0 , #alignment:i32 {} : T0 R=0"),
    "memref.reshape": format_form("$0 ( $1 ) {} : ( T0 , T1 ) -> R"),
    "memref.extract_strided_metadata": format_form("$0 : T0 -> R* {}"),
    "memref.extract_aligned_pointer_as_index": format_form("$0 {} : T0 -> R"),
    "bufferization.to_tensor": to_tensor,
    "bufferization.to_memref": to_memref,
    "bufferization.to_buffer": to_memref,
    "bufferization.materialize_in_destination": materialize_in_destination,
    "bufferization.dealloc_tensor": format_form("$0 {} : T0"),
}
