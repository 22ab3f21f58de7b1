"""The custom forms of the AIR dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xdsl.dialects.builtin import SymbolRefAttr
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.parser import Parser, UnresolvedOperand

from npu_tools.air.dialect import SEGMENT_SIZES, AsyncTokenType, Hierarchy, UniverseType
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import INDEX, close_region, grouped, keyword_attributes, mixed_list, segment_sizes

TOKEN: Final = AsyncTokenType()


def async_dependencies(reader: Reader) -> tuple[list[Attribute], list[SSAValue]]:
    """`[async] [[%t, …]]`: the token type returned, and the tokens waited for."""
    place = reader.pos
    token = reader.parse_optional_keyword("async") is not None
    if token and not reader.result_count:
        reader.raise_error("an op marked 'async' returns a token, so its result needs a name (%token = …)", place)
    return [TOKEN] if token else [], bracketed_tokens(reader)


def bracketed_tokens(reader: Reader) -> list[SSAValue]:
    """`[%t, …]` or nothing."""
    operands = reader.parse_optional_comma_separated_list(reader.Delimiter.SQUARE, reader.parse_unresolved_operand)
    return [reader.resolve_operand(operand, TOKEN) for operand in operands or []]


def iteration_space(
    reader: Reader,
) -> tuple[list[Parser.Argument], list[SSAValue]]:
    """`(%x, %y) in (%sx = %a, %sy = %b)`: the arguments for ids and sizes, and the sizes."""
    ids = reader.parse_comma_separated_list(reader.Delimiter.PAREN, lambda: reader.parse_argument(expect_type=False))
    reader.parse_keyword("in")
    names: list[Parser.UnresolvedArgument] = []
    sizes: list[UnresolvedOperand] = []
    reader.parse_punctuation("(")
    for _ in ids:
        names.append(reader.parse_argument(expect_type=False))
        reader.parse_punctuation("=")
        sizes.append(reader.parse_unresolved_operand())
        reader.parse_optional_punctuation(",")
    reader.parse_punctuation(")")
    return [name.resolve(INDEX) for name in (*ids, *names)], [reader.resolve_operand(size, INDEX) for size in sizes]


def kernel_arguments(reader: Reader) -> tuple[list[Parser.Argument], list[SSAValue]]:
    """`args(%a = %b, …) : types` or nothing: the arguments of the body and the values handed in."""
    if reader.parse_optional_keyword("args") is None:
        return [], []
    names: list[Parser.UnresolvedArgument] = []
    operands: list[UnresolvedOperand] = []

    def entry() -> None:
        names.append(reader.parse_argument(expect_type=False))
        reader.parse_punctuation("=")
        operands.append(reader.parse_unresolved_operand())

    reader.parse_comma_separated_list(reader.Delimiter.PAREN, entry)
    if not operands:
        return [], []
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.parse_comma_separated_list(reader.Delimiter.NONE, reader.parse_type)
    if len(types) < len(operands):
        reader.raise_error(f"args has {len(operands)} values but {len(types)} types", place)
    types = types[: len(operands)]  # upstream's parser ignores types past the last value
    arguments = [name.resolve(type) for name, type in zip(names, types, strict=True)]
    return arguments, list(reader.resolve_operands(operands, types, place))


def body_region(reader: Reader, arguments: Sequence[Parser.Argument], terminator: str, *, optional: bool) -> Region:
    """A region of one block, its terminator added where the text leaves it out."""
    region = reader.parse_optional_region(arguments)
    if region is None:
        if not optional:
            reader.raise_error(f"a region '{{ … }}' was expected, found {reader.shown()}")
        region = Region(Block(arg_types=[argument.type for argument in arguments]))
    close_region(reader, region, terminator)
    return region


def hierarchy(keyword: str | None, *, optional_space: bool = False, universe: bool = False) -> Form:
    """The form of rank, launch, segment (`unroll`, optional) and herd (`tile`)."""

    def form(reader: Reader, name: str) -> Operation:
        attributes: dict[str, Attribute] = {}
        if (symbol := reader.parse_optional_symbol_name()) is not None:
            attributes["sym_name"] = symbol
        results, dependencies = async_dependencies(reader)
        pool: list[SSAValue] = []
        if universe and reader.parse_optional_keyword("universe") is not None:
            with reader.in_parens():
                pool.append(reader.parse_operand(UniverseType()))
        arguments: list[Parser.Argument] = []
        sizes: list[SSAValue] = []
        if keyword is None or not optional_space or reader.parse_optional_keyword(keyword) is not None:
            if keyword is not None and not optional_space:
                reader.parse_keyword(keyword)
            arguments, sizes = iteration_space(reader)
        kernel_names, kernel_operands = kernel_arguments(reader)
        attributes.update(keyword_attributes(reader))
        counts = [len(dependencies), *([len(pool)] if universe else []), len(sizes), len(kernel_operands)]
        attributes[SEGMENT_SIZES] = segment_sizes(*counts)
        op_type = reader.op_type(name)
        terminator = op_type.terminator if issubclass(op_type, Hierarchy) else ""
        region = body_region(reader, [*arguments, *kernel_names], terminator, optional="sym_name" in attributes)
        operands = [*dependencies, *pool, *sizes, *kernel_operands]
        return reader.make(name, operands, results, attributes, [region])

    return form


def window(reader: Reader, memref: str) -> tuple[UnresolvedOperand, list[list[SSAValue]], dict[str, Attribute]]:
    """`%m[o][s][st]`: the memref, the values of the three lists, and their static arrays."""
    operand = reader.parse_unresolved_operand("a memref was expected")
    values: list[list[SSAValue]] = []
    attributes: dict[str, Attribute] = {}
    for kind in ("offsets", "sizes", "strides"):
        attributes[f"static_{memref}_{kind}"], dynamic = mixed_list(reader)
        values.append(dynamic)
    return operand, values, attributes


def dma_memcpy_nd(reader: Reader, name: str) -> Operation:
    """`[async] [deps] (%dst[o][s][st], %src[o][s][st]) {…} : (T, T)`."""
    results, dependencies = async_dependencies(reader)
    reader.parse_punctuation("(")
    dst, dst_values, dst_attributes = window(reader, "dst")
    reader.parse_punctuation(",")
    src, src_values, src_attributes = window(reader, "src")
    reader.parse_punctuation(")")
    attributes: dict[str, Attribute] = {**dst_attributes, **src_attributes, **reader.parse_optional_attr_dict()}
    reader.parse_punctuation(":")
    reader.parse_punctuation("(")
    dst_type = reader.parse_type()
    reader.parse_punctuation(",")
    src_type = reader.parse_type()
    reader.parse_punctuation(")")
    groups = [
        dependencies,
        [reader.resolve_operand(dst, dst_type)],
        *dst_values,
        [reader.resolve_operand(src, src_type)],
        *src_values,
    ]
    return grouped(reader, name, groups, results, attributes)


def channel(reader: Reader, name: str) -> Operation:
    """`@c [sizes] {…}`."""
    attributes: dict[str, Attribute] = {"sym_name": reader.parse_symbol_name()}
    attributes["size"] = reader.parse_attribute()
    attributes.update(reader.parse_optional_attr_dict())
    return reader.make(name, attributes=attributes)


def channel_access(memref: str) -> Form:
    """`[async] [deps] @c[idx] (%m[o][s][st]) [dest(%i)] {…} : (T)`."""

    def form(reader: Reader, name: str) -> Operation:
        results, dependencies = async_dependencies(reader)
        attributes: dict[str, Attribute] = {"chan_name": SymbolRefAttr(reader.parse_symbol_name())}
        indices = reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_operand(INDEX))
        reader.parse_punctuation("(")
        operand, values, arrays = window(reader, memref)
        reader.parse_punctuation(")")
        dest: list[SSAValue] = []
        if memref == "src" and reader.parse_optional_keyword("dest") is not None:
            with reader.in_parens():
                dest.append(reader.parse_operand(INDEX))
        attributes.update(arrays)
        attributes.update(reader.parse_optional_attr_dict())
        reader.parse_punctuation(":")
        with reader.in_parens():
            type = reader.parse_type()
        groups = [dependencies, indices, [reader.resolve_operand(operand, type)], *values]
        if memref == "src":
            groups.append(dest)
        return grouped(reader, name, groups, results, attributes)

    return form


def execute(reader: Reader, name: str) -> Operation:
    """`[deps] -> (types) {…} {…}`."""
    dependencies = bracketed_tokens(reader)
    results: list[Attribute] = [TOKEN]
    if reader.parse_optional_punctuation("->") is not None:
        results += reader.parse_comma_separated_list(reader.Delimiter.PAREN, reader.parse_type)
    region = reader.parse_region()
    close_region(reader, region, "air.execute_terminator")
    attributes = reader.parse_optional_attr_dict()
    return reader.make(name, dependencies, results, attributes, [region])


def execute_terminator(reader: Reader, name: str) -> Operation:
    """`{…} %a, %b : types`."""
    attributes = reader.parse_optional_attr_dict()
    operands = reader.parse_optional_undelimited_comma_separated_list(
        reader.parse_optional_unresolved_operand, reader.parse_unresolved_operand
    )
    if not operands:
        return reader.make(name, attributes=attributes)
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.parse_comma_separated_list(reader.Delimiter.NONE, reader.parse_type)
    return reader.make(name, reader.resolve_operands(operands, types, place), attributes=attributes)


def wait_all(reader: Reader, name: str) -> Operation:
    """`[async] [deps] {…}`."""
    results, dependencies = async_dependencies(reader)
    return reader.make(name, dependencies, results, reader.parse_optional_attr_dict())


def custom(reader: Reader, name: str) -> Operation:
    """`@sym [async] [deps] operands (%a, …) : types attributes {…}`."""
    attributes: dict[str, Attribute] = {}
    if (symbol := reader.parse_optional_symbol_name()) is not None:
        attributes["sym_name"] = symbol
    results, dependencies = async_dependencies(reader)
    operands: Sequence[SSAValue] = ()
    if reader.parse_optional_keyword("operands") is not None:
        names = reader.parse_comma_separated_list(reader.Delimiter.PAREN, reader.parse_unresolved_operand)
        if names:
            reader.parse_punctuation(":")
            place = reader.pos
            types = reader.parse_comma_separated_list(reader.Delimiter.NONE, reader.parse_type)
            operands = reader.resolve_operands(names, types, place)
    attributes.update(keyword_attributes(reader))
    return grouped(reader, name, [dependencies, operands], results, attributes)


def translate(reader: Reader, name: str) -> Operation:
    """`%source, %from, %to, %bases {…} : T, T`."""
    source = reader.parse_unresolved_operand()
    reader.parse_punctuation(",")
    ranks = [reader.parse_operand(INDEX)]
    reader.parse_punctuation(",")
    ranks.append(reader.parse_operand(INDEX))
    reader.parse_punctuation(",")
    bases = reader.parse_unresolved_operand()
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    type = reader.parse_type()
    reader.parse_punctuation(",")
    bases_type = reader.parse_type()
    operands = [reader.resolve_operand(source, type), *ranks, reader.resolve_operand(bases, bases_type)]
    return reader.make(name, operands, [type], attributes)


def universe_alloc(reader: Reader, name: str) -> Operation:
    """`(%capacity) {…}`."""
    with reader.in_parens():
        capacity = reader.parse_operand(INDEX)
    return reader.make(name, [capacity], [UniverseType()], reader.parse_optional_attr_dict())


def terminator(reader: Reader, name: str) -> Operation:
    """`{…}`."""
    return reader.make(name, attributes=reader.parse_optional_attr_dict())


FORMS: dict[str, Form] = {
    "air.rank": hierarchy(None, universe=True),
    "air.launch": hierarchy(None),
    "air.segment": hierarchy("unroll", optional_space=True),
    "air.herd": hierarchy("tile"),
    "air.dma_memcpy_nd": dma_memcpy_nd,
    "air.channel": channel,
    "air.channel.put": channel_access("src"),
    "air.channel.get": channel_access("dst"),
    "air.execute": execute,
    "air.execute_terminator": execute_terminator,
    "air.wait_all": wait_all,
    "air.custom": custom,
    "air.translate": translate,
    "air.universe.alloc": universe_alloc,
    "air.rank_terminator": terminator,
    "air.launch_terminator": terminator,
    "air.segment_terminator": terminator,
    "air.herd_terminator": terminator,
}
