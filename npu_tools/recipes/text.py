"""AIR programs as text, line by line: what a recipe's `design.py` prints with.

    text = Text()
    a, c = memref([512, 512], "bf16"), memref([512, 512], "f32")
    with text.function("copy", [a, c]) as (source, target), text.launch([1, 1], [source, target]) as (ids, args): ...
    str(text)

Ops are printed in the custom forms of mlir-air @ e972f2942 (its own tests under mlir/test use them), synchronous: no
tokens, as upstream's Python builders leave it to `air-dependency` to add them. Constants and affine maps are made where
they are used; SSA names are unique in the module. It judges nothing: `check_program` does.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

L1, L2 = 2, 1
"""Memory spaces of a core's memory and of the memtiles; none is L3."""


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value: its name with the percent sign, and its type."""

    name: str
    type: str

    def __str__(self) -> str:
        return self.name


Index = int | Value


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a memref as DMA sees it; without sizes, all of it. Offsets and strides count elements."""

    memref: Value
    offsets: Sequence[Index] = ()
    sizes: Sequence[int] = ()
    strides: Sequence[int] = ()

    def __str__(self) -> str:
        return f"{self.memref}[{_list(self.offsets)}] [{_list(self.sizes)}] [{_list(self.strides)}]"


def memref(shape: Sequence[int], element: str, space: int | None = None, *, strides: Sequence[int] = ()) -> str:
    """A memref type. With `strides` it is a part of another one, at an offset only known at run time."""
    layout = f", strided<[{_list(strides)}], offset: ?>" if strides else ""
    where = f", {space} : i32" if space is not None else ""
    return f"memref<{''.join(f'{size}x' for size in shape)}{element}{layout}{where}>"


class Text:
    """A module being printed."""

    def __init__(self) -> None:
        self._maps: dict[str, str] = {}
        self._sets: dict[str, str] = {}
        self._externals: dict[str, str] = {}
        self._lines: list[str] = []
        self._module: list[str] = []
        self._depth = 1
        self._count = 0
        self._constants: list[dict[tuple[int | float, str], Value]] = []

    def __str__(self) -> str:
        maps = [f"{name} = affine_map<{map_}>" for map_, name in self._maps.items()]
        maps += [f"{name} = affine_set<{set_}>" for set_, name in self._sets.items()]
        body = [*self._module, *self._externals.values(), *self._lines]
        return "\n".join([*maps, "module {", *body, "}", ""])

    def line(self, words: str) -> None:
        """One line of text as it stands."""
        self._lines.append("  " * self._depth + words)

    def name(self, stem: str, kind: str) -> Value:
        """A fresh value of this type."""
        self._count += 1
        return Value(f"%{stem}{self._count}", kind)

    def external(self, symbol: str, types: Sequence[str], link_with: str) -> None:
        """Declare a kernel of an object file. Declaring it twice is declaring it once."""
        attributes = f'{{link_with = "{link_with}", llvm.emit_c_interface}}'
        self._externals[symbol] = f"  func.func private @{symbol}({_list(types)}) attributes {attributes}"

    def channel(
        self,
        symbol: str,
        size: Sequence[int] = (1,),
        *,
        kind: str | None = None,
        broadcast: Sequence[int] = (),
    ) -> None:
        """Declare a channel; `kind` is a channel type other than the DMA stream, as "npu_cascade"."""
        settings: list[str] = []
        if broadcast:
            settings.append(f"broadcast_shape = [{_list(broadcast)}]")
        if kind:
            settings.append(f'channel_type = "{kind}"')
        words = f" {{{', '.join(settings)}}}" if settings else ""
        self._module.append(f"  air.channel @{symbol} [{_list(size)}]{words}")

    @contextmanager
    def function(self, name: str, types: Sequence[str]) -> Generator[list[Value], None, None]:
        """The entry function and its arguments."""
        values = [self.name("arg", kind) for kind in types]
        with self._region(f"func.func @{name}({_typed(values)}) {{"):
            yield values
            self.line("return")

    @contextmanager
    def launch(
        self, sizes: Sequence[int], operands: Sequence[Value]
    ) -> Generator[tuple[list[Value], list[Value]], None, None]:
        """`air.launch` over `sizes` iterations: its indices, and its operands inside."""
        with self._hierarchy("air.launch", [self.constant(size) for size in sizes], operands, {}) as inside:
            yield inside

    @contextmanager
    def segment(self, name: str, operands: Sequence[Value]) -> Generator[list[Value], None, None]:
        """`air.segment`: its operands inside."""
        with self._hierarchy(f"air.segment @{name}", [], operands, {}) as (_, values):
            yield values

    @contextmanager
    def segments(
        self, name: str, sizes: tuple[int, int], operands: Sequence[Value]
    ) -> Generator[tuple[Value, Value, list[Value]], None, None]:
        """`air.segment` unrolled, one herd of its own an instance: an instance's indices, and its operands inside."""
        counts = [self.constant(size) for size in sizes]
        with self._hierarchy(f"air.segment @{name} unroll", counts, operands, {}) as ((x, y), values):
            yield x, y, values

    @contextmanager
    def herd(
        self,
        name: str,
        sizes: tuple[int, int],
        operands: Sequence[Value],
        *,
        link_with: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> Generator[tuple[Value, Value, list[Value]], None, None]:
        """`air.herd` of columns by rows: a tile's x and y, and the operands inside."""
        words = {"link_with": f'"{link_with}"'} if link_with else {}
        words |= attributes or {}
        counts = [self.constant(size) for size in sizes]
        with self._hierarchy(f"air.herd @{name} tile", counts, operands, words) as ((x, y), values):
            yield x, y, values

    @contextmanager
    def loop(self, low: int, high: int, step: int = 1) -> Generator[Value, None, None]:
        """`scf.for` from `low` to below `high`."""
        bounds = [self.constant(value) for value in (low, high, step)]
        counter = self.name("i", "index")
        with self._region(f"scf.for {counter} = {bounds[0]} to {bounds[1]} step {bounds[2]} {{", isolated=False):
            yield counter

    @contextmanager
    def trips(self, count: int) -> Generator[Value, None, None]:
        """A loop from 0 to below `count`, or its body alone where it runs once: the compiler doubles what a loop fills."""
        if count == 1:
            yield self.constant(0)
            return
        with self.loop(0, count) as trip:
            yield trip

    @contextmanager
    def branch(self, condition: Value) -> Generator[None, None, None]:
        """`scf.if` without results and without an else."""
        with self._region(f"scf.if {condition} {{", isolated=False):
            yield

    @contextmanager
    def where(self, constraints: str, operands: Sequence[Value]) -> Generator[None, None, None]:
        """`affine.if` over s0, s1, …: `with text.where("s1 - 3 == 0", [x, y]): …`."""
        symbols = ", ".join(f"s{number}" for number in range(len(operands)))
        set_ = self._sets.setdefault(f"()[{symbols}] : ({constraints})", f"#set{len(self._sets)}")
        with self._region(f"affine.if {set_}()[{_list(operands)}] {{", isolated=False):
            yield

    def constant(self, value: int | float, kind: str = "index") -> Value:
        """A number, made once a region."""
        for known in reversed(self._constants):
            if (value, kind) in known:
                return known[value, kind]
        made = self.name("c", kind)
        self.line(f"{made} = arith.constant {_number(value)} : {kind}")
        self._constants[-1][value, kind] = made
        return made

    def apply(self, expression: str, operands: Sequence[Value]) -> Value:
        """`affine.apply` of an expression over s0, s1, …: `text.apply("s0 * 64 + s1", [row, i])`."""
        symbols = ", ".join(f"s{number}" for number in range(len(operands)))
        map_ = self._maps.setdefault(f"()[{symbols}] -> ({expression})", f"#map{len(self._maps)}")
        result = self.name("at", "index")
        self.line(f"{result} = affine.apply {map_}()[{_list(operands)}]")
        return result

    def op(self, words: str, kind: str, stem: str = "v") -> Value:
        """Any op with one result, given without the result: `text.op(f"arith.addf {a}, {b} : f32", "f32")`."""
        result = self.name(stem, kind)
        self.line(f"{result} = {words}")
        return result

    def alloc(self, kind: str, attributes: str = "") -> Value:
        """`memref.alloc` of this type."""
        return self.op(f"memref.alloc(){f' {attributes}' if attributes else ''} : {kind}", kind, "buffer")

    def dealloc(self, *values: Value) -> None:
        """`memref.dealloc` of each."""
        for value in values:
            self.line(f"memref.dealloc {value} : {value.type}")

    def subview(self, source: Value, offsets: Sequence[Index], sizes: Sequence[int], kind: str) -> Value:
        """`memref.subview` at stride 1, of the type given."""
        steps = _list([1] * len(sizes))
        words = f"memref.subview {source}[{_list(offsets)}] [{_list(sizes)}] [{steps}] : {source.type} to {kind}"
        return self.op(words, kind, "part")

    def read(self, buffer: Value, at: Value, width: int) -> Value:
        """`width` elements of a buffer of one dimension from `at` on, as a vector."""
        part, element = self._strip(buffer, at, width), _element(buffer)
        vector, first, zero = f"vector<{width}x{element}>", self.constant(0), self.constant(0.0, element)
        return self.op(
            f"vector.transfer_read {part}[{first}], {zero} {{in_bounds = [true]}} : {part.type}, {vector}", vector
        )

    def write(self, values: Value, buffer: Value, at: Value) -> None:
        """A vector into a buffer of one dimension, from `at` on."""
        width = int(values.type.partition("<")[2].partition("x")[0])
        part, first = self._strip(buffer, at, width), self.constant(0)
        self.line(
            f"vector.transfer_write {values}, {part}[{first}] {{in_bounds = [true]}} : {values.type}, {part.type}"
        )

    def _strip(self, buffer: Value, at: Value, width: int) -> Value:
        if buffer.type.startswith(f"memref<{width}x"):
            return buffer
        return self.subview(buffer, [at], [width], memref([width], _element(buffer), L1, strides=[1]))

    def flat(self, value: Value) -> Value:
        """A dense memref as one of a single dimension, without a copy; inside a launch, where upstream's builders do it."""
        *extents, element = value.type[len("memref<") : -1].split(", ")[0].split("x")
        if len(extents) == 1:
            return value
        kind = memref([math.prod(int(extent) for extent in extents)], element)
        dims = _list(range(len(extents)))
        return self.op(f"memref.collapse_shape {value} [[{dims}]] : {value.type} into {kind}", kind, "flat")

    def call(self, symbol: str, operands: Sequence[Value]) -> None:
        """`func.call` of a kernel without results."""
        types = _list([value.type for value in operands])
        self.line(f"func.call @{symbol}({_list(operands)}) : ({types}) -> ()")

    def dma(self, target: Window | Value, source: Window | Value) -> None:
        """`air.dma_memcpy_nd`; a bare value is the whole memref."""
        to, of = _window(target), _window(source)
        self.line(f"air.dma_memcpy_nd ({to}, {of}) : ({to.memref.type}, {of.memref.type})")

    def put(self, channel: str, indices: Sequence[Index], source: Window | Value) -> None:
        """`air.channel.put`."""
        window = _window(source)
        self.line(f"air.channel.put @{channel}[{self._indices(indices)}] ({window}) : ({window.memref.type})")

    def get(self, channel: str, indices: Sequence[Index], target: Window | Value) -> None:
        """`air.channel.get`."""
        window = _window(target)
        self.line(f"air.channel.get @{channel}[{self._indices(indices)}] ({window}) : ({window.memref.type})")

    def _indices(self, indices: Sequence[Index]) -> str:
        return _list([self.constant(one) if isinstance(one, int) else one for one in indices])

    @contextmanager
    def _hierarchy(
        self, head: str, counts: Sequence[Value], operands: Sequence[Value], attributes: Mapping[str, str]
    ) -> Generator[tuple[list[Value], list[Value]], None, None]:
        ids = [self.name("id", "index") for _ in counts]
        sizes = [self.name("size", "index") for _ in counts]
        inside = [self.name("in", operand.type) for operand in operands]
        words = head
        if ids:
            words += f" ({_list(ids)}) in ({_pairs(sizes, counts)})"
        if operands:
            words += f" args({_pairs(inside, operands)}) : {_list([value.type for value in operands])}"
        if attributes:
            words += f" attributes {{{', '.join(f'{name} = {value}' for name, value in attributes.items())}}}"
        with self._region(words + " {"):
            yield ids, inside

    @contextmanager
    def _region(self, head: str, *, isolated: bool = True) -> Generator[None, None, None]:
        """Lines one level deeper. An isolated region sees no constants from outside."""
        self.line(head)
        outside = self._constants
        self._constants = [{}] if isolated else [*outside, {}]
        self._depth += 1
        yield
        self._depth -= 1
        self._constants = outside
        self.line("}")


def _window(place: Window | Value) -> Window:
    return place if isinstance(place, Window) else Window(place)


def _number(value: int | float) -> str:
    """As MLIR reads it: a float has a point."""
    words = repr(value)
    return words if isinstance(value, int) or "." in words else words.replace("e", ".0e")


def _element(buffer: Value) -> str:
    """The element type of a memref."""
    return buffer.type[len("memref<") : -1].split(", ")[0].rpartition("x")[2]


def _list(items: Sequence[object]) -> str:
    return ", ".join(str(item) for item in items)


def _typed(values: Sequence[Value]) -> str:
    return ", ".join(f"{value}: {value.type}" for value in values)


def _pairs(inside: Sequence[Value], outside: Sequence[Value]) -> str:
    return ", ".join(f"{left}={right}" for left, right in zip(inside, outside, strict=True))
