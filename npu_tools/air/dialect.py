"""The AIR dialect: one class an op, with the names of upstream's AIR.td and typed accessors.

The classes only give names to what the text says. What custom forms look like is in `air_forms.py`, what is legal in
`verify.py`. The reader refuses text whose operand segments do not add up, so accessors of a parsed op never raise.

>>> herd.sizes, herd.ids, herd.kernel_args   # SSA values
>>> put.chan_name, put.window.offsets        # "aL3ToL2", [0, <BlockArgument>]
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IntegerAttr, StringAttr, SymbolRefAttr
from xdsl.ir import Attribute, BlockArgument, Dialect, Operation, ParametrizedAttribute, Region, SSAValue, TypeAttribute
from xdsl.irdl import irdl_attr_definition, traits_def
from xdsl.traits import IsolatedFromAbove, IsTerminator, Pure, SymbolOpInterface

from npu_tools.air.windows import Window, mixed

SEGMENT_SIZES = "operandSegmentSizes"


@irdl_attr_definition
class AsyncTokenType(ParametrizedAttribute, TypeAttribute):
    """`!air.async.token`: done when the op that returned it is done."""

    name = "air.async.token"


@irdl_attr_definition
class UniverseType(ParametrizedAttribute, TypeAttribute):
    """`!air.universe`: a bounded pool of devices."""

    name = "air.universe"


@irdl_attr_definition
class SymmetricHeapAttr(ParametrizedAttribute):
    """`#air.symmetric_heap`: the memory space of buffers that every rank holds at the same place."""

    name = "air.symmetric_heap"


class AirOp(Operation):
    """What all AIR ops share: operand segments by name, attributes, dependencies and token.

    `segments` names the operand groups in order; `"name"` is any number of operands, `"name:1"` exactly one and
    `"name?"` at most one.
    """

    name = "air.op"
    traits = traits_def()
    segments: ClassVar[tuple[str, ...]] = ()
    required: ClassVar[tuple[str, ...]] = ()
    region_count: ClassVar[int] = 0
    sized: ClassVar[bool] = True
    """Whether the op carries `operandSegmentSizes`; without, all operands belong to the only segment of many."""
    _known_sizes: tuple[Attribute | None, int, tuple[int, ...]] | None = None
    """The attribute and the number of operands that were looked at last, and the sizes they gave."""

    def attr(self, name: str) -> Attribute | None:
        """The attribute of that name, or None."""
        return self.properties.get(name) or self.attributes.get(name)

    def string_attr(self, name: str) -> str | None:
        """The text of a string attribute, or None."""
        value = self.attr(name)
        return value.data if isinstance(value, StringAttr) else None

    def int_attr(self, name: str) -> int | None:
        """The value of an integer attribute, or None."""
        value = self.attr(name)
        return cast("IntegerAttr[Any]", value).value.data if isinstance(value, IntegerAttr) else None

    def ints_attr(self, name: str) -> list[int] | None:
        """The values of `array<i64: …>` or `[…]`, or None."""
        return integers(self.attr(name))

    def segment_sizes(self) -> list[int]:
        """How many operands each segment has.

        Raises:
            ValueError: the sizes do not fit the op or its operands.
        """
        attribute, count = self.attr(SEGMENT_SIZES), len(self._operands)
        known = self._known_sizes
        if known is not None and known[0] is attribute and known[1] == count:
            return list(known[2])
        given = integers(attribute) if self.sized else None
        if self.sized and given is None:
            raise ValueError(f"{SEGMENT_SIZES} is missing")
        sizes = _checked_sizes(self.name, self.segments, given or [], count, self.sized)
        self._known_sizes = (attribute, count, tuple(sizes))
        return sizes

    def segment(self, name: str) -> Sequence[SSAValue]:
        """The operands of one segment."""
        index = _positions(self.segments)[name]
        sizes = self.segment_sizes()
        start = sum(sizes[:index])
        return self._operands[start : start + sizes[index]]

    @property
    def async_dependencies(self) -> Sequence[SSAValue]:
        """The tokens this op waits for."""
        return self.segment("async_dependencies") if "async_dependencies" in self.segments else ()

    @property
    def async_token(self) -> SSAValue | None:
        """The token it returns, where it is asynchronous."""
        return next((result for result in self.results if isinstance(result.type, AsyncTokenType)), None)

    def check_shape(self) -> None:
        """Refuse an op whose accessors could not answer.

        Raises:
            ValueError: what is missing or does not add up.
        """
        self.segment_sizes()
        self.windows()
        if len(self.regions) != self.region_count:
            raise ValueError(f"it has {len(self.regions)} regions, not {self.region_count}")
        if any(len(region.blocks) != 1 for region in self.regions):
            raise ValueError("its region must be exactly one block")
        for name in self.required:
            if not isinstance(self.attr(name), StringAttr | SymbolRefAttr):
                raise ValueError(f"its attribute {name} is missing or no name")

    def windows(self) -> dict[str, Window]:
        """The windows of this op by the name of their memref.

        Raises:
            ValueError: an array has more or fewer markers than there are values.
        """
        return {}

    def window_of(self, memref: str) -> Window:
        """The window into `dst` or `src`."""

        def entries(kind: str) -> list[int | SSAValue]:
            return mixed(self.ints_attr(f"static_{memref}_{kind}"), self.segment(f"dynamic_{memref}_{kind}"))

        return Window(entries("offsets"), entries("sizes"), entries("strides"))


def plain_name(segment: str) -> str:
    """The segment's name without the mark that says how many operands it takes."""
    return segment.removesuffix(":1").removesuffix("?")


@lru_cache(maxsize=256)
def _positions(segments: tuple[str, ...]) -> dict[str, int]:
    return {plain_name(segment): index for index, segment in enumerate(segments)}


def _checked_sizes(op: str, segments: tuple[str, ...], given: list[int], count: int, sized: bool) -> list[int]:
    """The sizes of all segments of an op with `count` operands, of which the text gives some where it is `sized`."""
    if not sized:
        fixed = sum(name.endswith(":1") for name in segments)
        sizes = [1 if name.endswith(":1") else count - fixed for name in segments]
    else:
        # A segment that upstream appended later is absent in older text.
        missing = segments[len(given) :]
        if len(given) > len(segments) or not all(name.endswith("?") for name in missing):
            raise ValueError(f"{SEGMENT_SIZES} has {len(given)} entries, {op} has {len(segments)}")
        sizes = [*given, *(0 for _ in missing)]
    for name, size in zip(segments, sizes, strict=True):
        if size < 0 or (name.endswith(":1") and size != 1) or (name.endswith("?") and size > 1):
            raise ValueError(f"{size} operands given for {name.rstrip(':1?')}")
    if sum(sizes) != count:
        raise ValueError(f"its operand groups take {sum(sizes)} operands, but it has {count}")
    return sizes


def integers(attribute: Attribute | None) -> list[int] | None:
    """The integers of `array<i32: …>`, `array<i64: …>` or `[1, 2]`; None for anything else."""
    if isinstance(attribute, DenseArrayBase):
        values = cast("DenseArrayBase[Any]", attribute).get_values()
        return [int(value) for value in values]
    if isinstance(attribute, ArrayAttr):
        entries = cast("ArrayAttr[Attribute]", attribute).data
        if all(isinstance(entry, IntegerAttr) for entry in entries):
            return [cast("IntegerAttr[Any]", entry).value.data for entry in entries]
    return None


class Hierarchy(AirOp):
    """rank, launch, segment and herd: a body that runs once for each point of `sizes`.

    Block arguments of the body: ids, sizes, then one for each kernel operand.
    """

    name = "air.hierarchy"
    traits = traits_def(IsolatedFromAbove())
    segments = ("async_dependencies", "sizes", "kernel_operands")
    region_count = 1
    terminator: ClassVar[str] = ""

    @property
    def sizes(self) -> Sequence[SSAValue]:
        """The extents of the iteration space."""
        return self.segment("sizes")

    @property
    def kernel_operands(self) -> Sequence[SSAValue]:
        """The values handed to the body."""
        return self.segment("kernel_operands")

    @property
    def body(self) -> Region:
        """The one region."""
        return self.regions[0]

    @property
    def ids(self) -> Sequence[BlockArgument]:
        """The position of this instance, one argument a dimension."""
        return self.body.block.args[: len(self.sizes)]

    @property
    def size_args(self) -> Sequence[BlockArgument]:
        """The sizes as the body sees them."""
        dims = len(self.sizes)
        return self.body.block.args[dims : 2 * dims]

    @property
    def kernel_args(self) -> Sequence[BlockArgument]:
        """The kernel operands as the body sees them."""
        return self.body.block.args[2 * len(self.sizes) :]

    @property
    def sym_name(self) -> str | None:
        """Its name, where it has one."""
        return self.string_attr("sym_name")


class RankOp(Hierarchy):
    """air.rank: one instance a device of a communicating world."""

    name = "air.rank"
    segments = ("async_dependencies", "universe?", "sizes", "kernel_operands")
    terminator = "air.rank_terminator"

    @property
    def universe(self) -> SSAValue | None:
        """The pool its instances are taken from."""
        return next(iter(self.segment("universe")), None)


class LaunchOp(Hierarchy):
    """air.launch: what one dispatch from the host runs."""

    name = "air.launch"
    terminator = "air.launch_terminator"


class _Placed(Hierarchy):
    """What segment and herd share: where the placer put them, in columns and rows."""

    name = "air.placed"

    @property
    def x_loc(self) -> int | None:
        """First column."""
        return self.int_attr("x_loc")

    @property
    def y_loc(self) -> int | None:
        """First row."""
        return self.int_attr("y_loc")

    @property
    def x_size(self) -> int | None:
        """Columns."""
        return self.int_attr("x_size")

    @property
    def y_size(self) -> int | None:
        """Rows."""
        return self.int_attr("y_size")


class SegmentOp(_Placed):
    """air.segment: a group of tiles with their L2 memory; `sizes` unrolls it in space."""

    name = "air.segment"
    terminator = "air.segment_terminator"


class HerdOp(_Placed):
    """air.herd: a 1D or 2D array of cores that run the same body."""

    name = "air.herd"
    terminator = "air.herd_terminator"

    @property
    def link_with(self) -> str | None:
        """The object file that holds its external kernels."""
        return self.string_attr("link_with")


class DmaMemcpyNdOp(AirOp):
    """air.dma_memcpy_nd: a strided copy between two memrefs."""

    name = "air.dma_memcpy_nd"
    segments = (
        "async_dependencies",
        "dst:1",
        "dynamic_dst_offsets",
        "dynamic_dst_sizes",
        "dynamic_dst_strides",
        "src:1",
        "dynamic_src_offsets",
        "dynamic_src_sizes",
        "dynamic_src_strides",
    )

    @property
    def dst(self) -> SSAValue:
        """The memref written."""
        return self.segment("dst")[0]

    @property
    def src(self) -> SSAValue:
        """The memref read."""
        return self.segment("src")[0]

    @property
    def dst_window(self) -> Window:
        """Where it is written."""
        return self.window_of("dst")

    @property
    def src_window(self) -> Window:
        """What is read."""
        return self.window_of("src")

    def windows(self) -> dict[str, Window]:
        """The windows of `dst` and `src`."""
        return {"dst": self.dst_window, "src": self.src_window}

    @property
    def pad_before(self) -> list[int] | None:
        """Zeros in front, a number for each dimension."""
        return self.ints_attr("pad_before")

    @property
    def pad_after(self) -> list[int] | None:
        """Zeros behind, a number for each dimension."""
        return self.ints_attr("pad_after")

    @property
    def src_rank(self) -> int | None:
        """The rank whose memory is read, None for its own."""
        return self.int_attr("src_rank")

    @property
    def dst_rank(self) -> int | None:
        """The rank whose memory is written, None for its own."""
        return self.int_attr("dst_rank")


class ChannelOp(AirOp):
    """air.channel: a declared connection, or an array of them."""

    name = "air.channel"
    required = ("sym_name",)
    sized = False
    traits = traits_def(SymbolOpInterface())

    @property
    def sym_name(self) -> str:
        """Its name."""
        return self.string_attr("sym_name") or ""

    @property
    def size(self) -> list[int]:
        """The extents of the array; empty means one channel."""
        return self.ints_attr("size") or []

    @property
    def channel_type(self) -> str:
        """npu_dma_stream unless said otherwise."""
        return self.string_attr("channel_type") or "npu_dma_stream"

    @property
    def broadcast_shape(self) -> list[int] | None:
        """The extents on the receiving side, where one put serves several gets."""
        return self.ints_attr("broadcast_shape")

    @property
    def packet_ids(self) -> list[int] | None:
        """The pinned routing ids of a packet channel."""
        return self.ints_attr("packet_ids")

    @property
    def buffer_resources(self) -> int:
        """How many buffers it may hold."""
        value = self.int_attr("buffer_resources")
        return 1 if value is None else value


class ChannelAccess(AirOp):
    """What put and get share."""

    name = "air.channel.access"
    required = ("chan_name",)
    memref_name: ClassVar[str] = ""

    @property
    def chan_name(self) -> str:
        """The channel's name."""
        value = self.attr("chan_name")
        return value.string_value() if isinstance(value, SymbolRefAttr) else ""

    @property
    def indices(self) -> Sequence[SSAValue]:
        """Which channel of the array."""
        return self.segment("indices")

    @property
    def memref(self) -> SSAValue:
        """The memref it reads (put) or writes (get)."""
        return self.segment(self.memref_name)[0]

    @property
    def window(self) -> Window:
        """Which elements of it."""
        return self.window_of(self.memref_name)

    def windows(self) -> dict[str, Window]:
        """The one window."""
        return {self.memref_name: self.window}

    @property
    def pad_before(self) -> list[int] | None:
        """Zeros in front, a number for each dimension."""
        return self.ints_attr("pad_before")

    @property
    def pad_after(self) -> list[int] | None:
        """Zeros behind, a number for each dimension."""
        return self.ints_attr("pad_after")


class ChannelPutOp(ChannelAccess):
    """air.channel.put: sends a window of a memref into a channel."""

    name = "air.channel.put"
    memref_name = "src"
    segments = (
        "async_dependencies",
        "indices",
        "src:1",
        "dynamic_src_offsets",
        "dynamic_src_sizes",
        "dynamic_src_strides",
        "dest?",
    )

    @property
    def dest(self) -> SSAValue | None:
        """The consumer a packet is for, along the broadcast dimension."""
        return next(iter(self.segment("dest")), None)


class ChannelGetOp(ChannelAccess):
    """air.channel.get: fills a window of a memref from a channel."""

    name = "air.channel.get"
    memref_name = "dst"
    segments = (
        "async_dependencies",
        "indices",
        "dst:1",
        "dynamic_dst_offsets",
        "dynamic_dst_sizes",
        "dynamic_dst_strides",
    )


class ExecuteOp(AirOp):
    """air.execute: a region run as one asynchronous step; results are its token and what it yields."""

    name = "air.execute"
    region_count = 1
    sized = False
    segments = ("async_dependencies",)

    @property
    def body(self) -> Region:
        """The one region; it sees the values around it."""
        return self.regions[0]


class ExecuteTerminatorOp(AirOp):
    """air.execute_terminator: hands the values of an execute out."""

    name = "air.execute_terminator"
    sized = False
    segments = ("values",)
    traits = traits_def(IsTerminator(), Pure())


class WaitAllOp(AirOp):
    """air.wait_all: waits for tokens, or joins them into one."""

    name = "air.wait_all"
    sized = False
    segments = ("async_dependencies",)


class CustomOp(AirOp):
    """air.custom: a placeholder for a user's kernel."""

    name = "air.custom"
    segments = ("async_dependencies", "custom_operands")

    @property
    def symbol(self) -> str | None:
        """The kernel's name, where it has one."""
        value = self.attr("symbol")
        return value.string_value() if isinstance(value, SymbolRefAttr) else self.string_attr("sym_name")

    @property
    def custom_operands(self) -> Sequence[SSAValue]:
        """What the kernel is given."""
        return self.segment("custom_operands")


class TranslateOp(AirOp):
    """air.translate: the same buffer of the symmetric heap, at another rank's address."""

    name = "air.translate"
    sized = False
    segments = ("source:1", "from_rank:1", "to_rank:1", "heap_bases:1")
    traits = traits_def(Pure())


class UniverseAllocOp(AirOp):
    """air.universe.alloc: a pool of `capacity` devices."""

    name = "air.universe.alloc"
    sized = False
    segments = ("capacity:1",)
    traits = traits_def(Pure())


class _Terminator(AirOp):
    """An op without operands that ends a hierarchy's body."""

    name = "air.terminator"
    sized = False
    traits = traits_def(IsTerminator(), Pure())


class RankTerminatorOp(_Terminator):
    """Ends air.rank."""

    name = "air.rank_terminator"


class LaunchTerminatorOp(_Terminator):
    """Ends air.launch."""

    name = "air.launch_terminator"


class SegmentTerminatorOp(_Terminator):
    """Ends air.segment."""

    name = "air.segment_terminator"


class HerdTerminatorOp(_Terminator):
    """Ends air.herd."""

    name = "air.herd_terminator"


AIR = Dialect(
    "air",
    [
        RankOp,
        LaunchOp,
        SegmentOp,
        HerdOp,
        DmaMemcpyNdOp,
        ChannelOp,
        ChannelPutOp,
        ChannelGetOp,
        ExecuteOp,
        ExecuteTerminatorOp,
        WaitAllOp,
        CustomOp,
        TranslateOp,
        UniverseAllocOp,
        RankTerminatorOp,
        LaunchTerminatorOp,
        SegmentTerminatorOp,
        HerdTerminatorOp,
    ],
    [AsyncTokenType, UniverseType, SymmetricHeapAttr],
)
