"""Custom forms of aie, aiex and airrt: what upstream's passes print below AIR.

Enumerations (devices, directions, bundles, lock actions) are kept as the words of the text, not as upstream's numbers.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IntegerAttr, StringAttr, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from npu_tools.air.formats import format_form
from npu_tools.air.reader import Form, Reader
from npu_tools.air.syntax import INDEX, close_region


def dma_start(reader: Reader, name: str) -> Operation:
    """`(S2MM, 0, ^bd, ^next [, repeat_count = n]) {…}`."""
    reader.parse_punctuation("(")
    attributes: dict[str, Attribute] = {"channel_dir": StringAttr(reader.parse_identifier())}
    reader.parse_punctuation(",")
    attributes["channel_index"] = IntegerAttr(reader.parse_integer(allow_boolean=False), i32)
    successors: list[Block] = []
    for _ in range(2):
        reader.parse_punctuation(",")
        successors.append(reader.block_name())
    while reader.parse_optional_punctuation(",") is not None:
        word = reader.parse_identifier()
        reader.parse_punctuation("=")
        attributes[word] = IntegerAttr(reader.parse_integer(allow_boolean=False), i32)
    reader.parse_punctuation(")")
    attributes.update(reader.parse_optional_attr_dict())
    return reader.make(name, [], [i1], attributes, successors=successors)


def dma_bd(reader: Reader, name: str) -> Operation:
    """`(%m : T offset = o len = n sizes = […] strides = […]) {…}`; commas between the parts in older text."""
    reader.parse_punctuation("(")
    operand = reader.parse_unresolved_operand()
    reader.parse_punctuation(":")
    buffer = reader.resolve_operand(operand, reader.parse_type())
    attributes: dict[str, Attribute] = {}
    positional = ["offset", "len", "dimensions"]
    while not reader.at_text(")"):
        reader.parse_optional_punctuation(",")
        if (word := reader.parse_optional_identifier()) is not None:
            reader.parse_punctuation("=")
        elif positional:
            word = positional.pop(0)
        else:
            reader.raise_error(f"')' was expected, found {reader.shown()}")
        if reader.at_text("["):
            attributes[word] = reader.parse_attribute()
        else:
            attributes[word] = IntegerAttr(reader.parse_integer(allow_boolean=False), i32)
    reader.parse_punctuation(")")
    attributes.update(reader.parse_optional_attr_dict())
    return reader.make(name, [buffer], [], attributes)


def next_bd(reader: Reader, name: str) -> Operation:
    """`^block {…}`."""
    successor = reader.block_name()
    return reader.make(name, attributes=reader.parse_optional_attr_dict(), successors=[successor])


def port(reader: Reader, side: str) -> tuple[SSAValue, dict[str, Attribute]]:
    """`%tile, DMA : 0`."""
    tile = reader.parse_operand(INDEX)
    reader.parse_punctuation(",")
    bundle = reader.parse_identifier()
    reader.parse_punctuation(":")
    channel = IntegerAttr(reader.parse_integer(allow_boolean=False), i32)
    return tile, {f"{side}bundle": StringAttr(bundle), f"{side}channel": channel}


def flow(reader: Reader, name: str) -> Operation:
    """`(%a, DMA : 0, %b, DMA : 1) {…}`."""
    reader.parse_punctuation("(")
    source, source_port = port(reader, "source_")
    reader.parse_punctuation(",")
    dest, dest_port = port(reader, "dest_")
    reader.parse_punctuation(")")
    return reader.make(name, [source, dest], [], {**source_port, **dest_port, **reader.parse_optional_attr_dict()})


def packet_port(reader: Reader, name: str) -> Operation:
    """`<%tile, DMA : 0> {…}`."""
    with reader.in_angle_brackets():
        tile, attributes = port(reader, "")
    return reader.make(name, [tile], [], {**attributes, **reader.parse_optional_attr_dict()})


def use_lock(reader: Reader, name: str) -> Operation:
    """`(%lock, Acquire, %value)` or an integer for the value."""
    reader.parse_punctuation("(")
    operands: list[SSAValue] = [reader.parse_operand(INDEX)]
    reader.parse_punctuation(",")
    attributes: dict[str, Attribute] = {"action": StringAttr(reader.parse_identifier())}
    while reader.parse_optional_punctuation(",") is not None:
        if reader.at_operand():
            operands.append(reader.parse_operand(i32))
        elif (value := reader.parse_optional_integer(allow_boolean=False)) is not None:
            attributes["value"] = IntegerAttr(value, i32)
        else:
            attributes["blocking"] = StringAttr(reader.parse_identifier())
    reader.parse_punctuation(")")
    return reader.make(name, operands, [], {**attributes, **reader.parse_optional_attr_dict()})


def objectfifo(reader: Reader, name: str) -> Operation:
    """`@name(%producer, {%consumer, …}, depth) {…} : T`."""
    attributes: dict[str, Attribute] = {"sym_name": reader.parse_symbol_name()}
    reader.parse_punctuation("(")
    producer = reader.parse_operand(INDEX)
    reader.parse_punctuation(",")
    consumers = reader.parse_comma_separated_list(reader.Delimiter.BRACES, lambda: reader.parse_operand(INDEX))
    reader.parse_punctuation(",")
    attributes["elemNumber"] = reader.parse_attribute()
    reader.parse_punctuation(")")
    attributes.update(reader.parse_optional_attr_dict())
    reader.parse_punctuation(":")
    attributes["elemType"] = reader.parse_type()
    return reader.make(name, [producer, *consumers], [], attributes)


def runtime_sequence(reader: Reader, name: str) -> Operation:
    """`[@name](%a: T, …) {…}`."""
    attributes: dict[str, Attribute] = {}
    if (symbol := reader.parse_optional_symbol_name()) is not None:
        attributes["sym_name"] = symbol
    arguments = reader.parse_comma_separated_list(reader.Delimiter.PAREN, reader.parse_argument)
    region = reader.parse_region(arguments)
    attributes.update(reader.parse_optional_attr_dict())
    return reader.make(name, attributes=attributes, regions=[region])


def i64_list(reader: Reader) -> list[SSAValue]:
    """`[%a, %b]` of i64."""
    return reader.parse_comma_separated_list(reader.Delimiter.SQUARE, lambda: reader.parse_operand(i64))


def airrt_dma(reader: Reader, name: str) -> Operation:
    """`(%id, %x, %y, %m[o], [lengths], [strides]) {…} : (T, T, T, T) [: event]`."""
    reader.parse_punctuation("(")
    names = [reader.parse_unresolved_operand()]
    for _ in range(3):
        reader.parse_punctuation(",")
        names.append(reader.parse_unresolved_operand())
    lists = i64_list(reader)
    for _ in range(2):
        reader.parse_punctuation(",")
        lists += i64_list(reader)
    reader.parse_punctuation(")")
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    place = reader.pos
    types = reader.parse_comma_separated_list(reader.Delimiter.PAREN, reader.parse_type)
    results = [reader.parse_type()] if reader.parse_optional_punctuation(":") is not None else []
    return reader.make(name, [*reader.resolve_operands(names, types, place), *lists], results, attributes)


def airrt_memcpy(reader: Reader, name: str) -> Operation:
    """`(%dst, %src, [o], [lengths], [strides]) {…} : (T, T, [T, …], …)`."""
    reader.parse_punctuation("(")
    names = [reader.parse_unresolved_operand()]
    reader.parse_punctuation(",")
    names.append(reader.parse_unresolved_operand())
    lists: list[SSAValue] = []
    while reader.parse_optional_punctuation(",") is not None:
        lists += i64_list(reader)
    reader.parse_punctuation(")")
    attributes = reader.parse_optional_attr_dict()
    reader.parse_punctuation(":")
    reader.parse_punctuation("(")
    place = reader.pos
    types = [reader.parse_type()]
    reader.parse_punctuation(",")
    types.append(reader.parse_type())
    while reader.parse_optional_punctuation(",") is not None:
        reader.parse_comma_separated_list(reader.Delimiter.SQUARE, reader.parse_type)
    reader.parse_punctuation(")")
    return reader.make(name, [*reader.resolve_operands(names, types, place), *lists], [], attributes)


def airrt_wait_all(reader: Reader, name: str) -> Operation:
    """`%a, %b {…} [: event]`."""
    event = reader.dialect_type("airrt.event")
    operands = [reader.resolve_operand(operand, event) for operand in reader.operand_names()]
    attributes = reader.parse_optional_attr_dict()
    results = [reader.parse_type()] if reader.parse_optional_punctuation(":") is not None else []
    return reader.make(name, operands, results, attributes)


def configure_task(reader: Reader, name: str) -> Operation:
    """`@allocation {…} {…}` or `(%tile, DIR, channel) {…} {…}`."""
    attributes: dict[str, Attribute] = {}
    operands: list[SSAValue] = []
    if reader.parse_optional_punctuation("(") is not None:
        operands.append(reader.parse_operand(INDEX))
        reader.parse_punctuation(",")
        attributes["direction"] = StringAttr(reader.parse_identifier())
        reader.parse_punctuation(",")
        attributes["channel"] = IntegerAttr(reader.parse_integer(allow_boolean=False), i32)
        reader.parse_punctuation(")")
    else:
        attributes["alloc"] = reader.parse_attribute()
    region = reader.parse_region()
    close_region(reader, region, "aie.end")
    attributes.update(reader.parse_optional_attr_dict())
    return reader.make(name, operands, [INDEX], attributes, [region])


TILE_REGION = format_form("( $0:index ) region:aie.end {} R=index")
TASK = format_form("( $0:index ) {}")

FORMS: dict[str, Form] = {
    "aie.device": format_form("( =device ) @@sym_name? region:aie.end {}"),
    "aie.tile": format_form("( #col:i32 , #row:i32 ) {} R=index"),
    "aie.lock": format_form("( $0:index ?( , #lockID:i32 )? ) {} R=index"),
    "aie.buffer": format_form("( $0:index ) {} : R ?( = #initial_value )?"),
    "aie.external_buffer": format_form("{} : R"),
    "aie.core": TILE_REGION,
    "aie.mem": TILE_REGION,
    "aie.memtile_dma": TILE_REGION,
    "aie.shim_dma": TILE_REGION,
    "aie.end": format_form("{}"),
    "aie.dma_start": dma_start,
    "aie.dma_bd": dma_bd,
    "aie.next_bd": next_bd,
    "aie.flow": flow,
    "aie.use_lock": use_lock,
    "aie.cascade_flow": format_form("( $0:index , $1:index ) {}"),
    "aie.packet_flow": format_form("( #ID:i8 ) region:aie.end {}"),
    "aie.packet_source": packet_port,
    "aie.packet_dest": packet_port,
    "aie.objectfifo": objectfifo,
    "aie.shim_dma_allocation": format_form("@@sym_name ( $0:index , =channel_dir , #channel_index:i64 ) {}"),
    "aie.runtime_sequence": runtime_sequence,
    "aiex.runtime_sequence": runtime_sequence,
    "aiex.dma_configure_task": configure_task,
    "aiex.dma_configure_task_for": configure_task,
    "aiex.dma_start_task": TASK,
    "aiex.dma_await_task": TASK,
    "aiex.dma_free_task": TASK,
    "aiex.npu.sync": format_form("{}"),
    "aiex.npu.write32": format_form("{}"),
    "aiex.npu.rtp_write": format_form("( @buffer , #index:i32 , #value:i32 ) {}"),
    "aiex.npu.dma_wait": format_form("{}"),
    "airrt.dma_memcpy_nd": airrt_dma,
    "airrt.memcpy_nd": airrt_memcpy,
    "airrt.wait_all": airrt_wait_all,
    "airrt.alloc": format_form("{} : R"),
    "airrt.dealloc": format_form("$0 {} : T0"),
    "airrt.segment_load": format_form("#sym_name {} : R"),
    "airrt.herd_load": format_form("#sym_name ( $0* ) {} : F"),
    "airrt.module_metadata": format_form("attributes{} region:airrt.module_metadata_terminator"),
    "airrt.module_metadata_terminator": format_form("{}"),
    "airrt.segment_metadata": format_form("attributes{} region:airrt.segment_metadata_terminator"),
    "airrt.segment_metadata_terminator": format_form("{}"),
    "airrt.herd_metadata": format_form("{}"),
}
