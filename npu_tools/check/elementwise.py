"""Element-wise kernels in bf16: eltwise_add, silu_mul and gelu, streaming L3 to L1 and back without L2.

Each tile has its own streams, one shim channel each: two in and one out for add and SiLU*up, one in and one out for
GELU. All buffers of the loop are ping-ponged. Builders: Xilinx/mlir-air programming_examples/{eltwise_add/eltwise_add,
silu_and_mul/silu_and_mul,gelu/gelu}.py @ e972f2942.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from npu_tools.check.limits import OUT_OF_BDS, REGISTRY, granule, herd, memory, multiple, odd_trips, shim_channels
from npu_tools.check.search import legal
from npu_tools.check.settings import Settings, Value
from npu_tools.device import Device
from npu_tools.findings import Finding

LANES = 16
TRIPS_A_BD = 64
"""Trips of an interleaved loop that one shim BD covers: 32 repeats of 2, as the lowered program of a failing case shows
(tonyjie/mlir-air programming_examples/_llm_shared/docs/kernels/silu_and_mul.md @ 7267eb8b)."""
SPLIT_FROM = 1024
"""A tile of as many elements or more does not fit one dimension of a shim BD and takes a second one."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One element-wise kernel over n elements, `tile` at a time on each of columns x rows tiles."""

    kernel: str
    extents: tuple[int, ...]
    inputs: int
    interleaved: bool
    """Whether neighbouring tiles take neighbouring pieces (SiLU*up, GELU) or each its own part of the array (add)."""
    source: str
    page: str
    tile: int = 4096
    columns: int = 8
    rows: int = 1
    omit_pingpong: str = ""
    stack_bytes: int = 1024
    names: tuple[str, str, str] = ("tile_n", "herd_x", "herd_y")

    @property
    def n(self) -> int:
        return prod(self.extents)

    @property
    def tiles(self) -> int:
        return self.columns * self.rows

    @property
    def trips(self) -> int:
        """Pieces one tile works through."""
        return max(1, self.n // (self.tile * self.tiles))

    def shape(self) -> tuple[int, ...]:
        return self.extents

    def settings(self) -> dict[str, Value]:
        return {
            "tile": self.tile,
            "columns": self.columns,
            "rows": self.rows,
            "omit_pingpong": self.omit_pingpong,
            "stack_bytes": self.stack_bytes,
        }

    def _l1(self) -> dict[str, int]:
        copies = 2 if self.trips > 1 and self.omit_pingpong not in {"L1", "all"} else 1
        return {
            f"{self.inputs + 1} buffers {copies} x": (self.inputs + 1) * copies * self.tile * 2,
            "stack": self.stack_bytes,
        }

    @property
    def shim_bds(self) -> int:
        """BDs one shim channel needs at a time for an interleaved loop; a contiguous one folds into one."""
        if not self.interleaved or self.tiles == 1 or self.tile < SPLIT_FROM:
            return 1
        return -(-self.trips // TRIPS_A_BD)

    def figures(self, device: Device) -> dict[str, int]:
        del device
        return {
            "l1_bytes": sum(self._l1().values()),
            "tiles": self.tiles,
            "trips": self.trips,
            "shim_bds": self.shim_bds,
        }

    def findings(self, device: Device) -> list[Finding]:
        return [finding for finding in self.faults(device) if finding is not None]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        tile_name, x_name, y_name = self.names
        lanes = self.tile * self.tiles
        yield herd(device, self.columns, self.rows, names=(x_name, y_name))
        yield multiple(
            "n", self.n, f"{tile_name}*{x_name}*{y_name}", lanes,
            diagnostic=f"n ({self.n}) must be divisible by tile_n * total_tiles ({lanes})", source=self.source,
        )  # fmt: skip
        yield multiple(
            tile_name, self.tile, "vector width", LANES, diagnostic="must be a multiple of the vector width",
            source=self.source,
        )  # fmt: skip
        yield granule(device, f"a piece ({tile_name})", self.tile, 2)
        yield shim_channels(device, self.tiles, into=self.inputs, out=1)
        yield memory(device, "core", self._l1())
        limit = device.limit("shim.bd_count")
        if self.shim_bds >= limit.value:
            yield Finding(
                severity="error",
                code="bd_count",
                message=f"{self.trips} pieces a tile take {self.shim_bds} BDs a shim channel at {TRIPS_A_BD} pieces each, "
                f"and {limit.value} are too many for {limit.value} BDs",
                diagnostic=OUT_OF_BDS,
                limit=str(limit),
                source=f"{self.page}; 688 pieces place, 1024 do not",
                remedy="a tile below 1024 elements, or fewer pieces: a larger tile, or the rows in several launches",
                certain=False,
            )
        yield odd_trips(
            "a tile's loop over its pieces", self.trips, severe=not self.interleaved, source=self.page,
        )  # fmt: skip

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        return {
            "tile": [size for size in range(LANES, 8193, LANES) if self.n % size == 0][-160:],
            "columns": [count for count in (8, 4, 2, 1) if count <= device.columns],
            "rows": range(1, device.core_rows + 1),
        }


def _kernel(kernel: str, extents: tuple[int, ...], columns: int, rows: int, tile: int, stack: int, omit: str) -> Stream:
    table = {
        "eltwise_add": (2, False, "eltwise_add/eltwise_add.py", "EltwiseAdd_bf16.md", ("tile", "columns", "rows")),
        "silu_mul": (2, True, "silu_and_mul/silu_and_mul.py", "SiLU_Mul_bf16.md", ("tile_n", "herd_x", "herd_y")),
        "gelu": (1, True, "gelu/gelu.py", "GELU_bf16.md", ("tile_n", "herd_x", "herd_y")),
    }
    inputs, interleaved, builder, page, names = table[kernel]
    return Stream(
        kernel, extents, inputs, interleaved,
        f"Xilinx/mlir-air programming_examples/{builder} @ e972f2942", f"{REGISTRY}/details/{page} @ e972f2942",
        tile, columns, rows, omit, stack, names,
    )  # fmt: skip


def resolve(kernel: str, extents: tuple[int, ...], given: Settings, device: Device) -> Stream:
    """The herd the registry found best (8x1, GELU 8x2) and the tile nearest to its best (2048 for add, else 4096) that
    places; a loop of an odd number of pieces, wrong for add, is avoided where a tile of half that size or more does."""
    total = prod(extents)
    two_high = kernel == "gelu" and total % (2 * LANES) == 0
    base, height = (2048, 1) if kernel == "eltwise_add" else (4096, 2 if two_high else 1)
    rows = given.integer("herd_y", given.integer("rows", height))
    omit = given.word("omit_pingpong", "", ("", "L1", "L2", "all"))
    stack = given.integer("stack_bytes", device.stack_bytes)
    asked = given.integer("tile_n", given.integer("tile", 0, least=0), least=0)
    columns = given.integer("herd_x", given.integer("columns", _columns(total, rows, asked or LANES, device)))
    sizes = [base, *sorted((size for size in range(LANES, 5377, LANES)), key=lambda size: (abs(size - base), size))]
    first: Stream | None = None
    odd: Stream | None = None
    for tile in [asked] if asked else (size for size in sizes if total % (size * columns * rows) == 0):
        case = _kernel(kernel, extents, columns, rows, tile, stack, omit)
        first = first or case
        if not legal(case, device):
            continue
        if case.trips < 5 or case.trips % 2 == 0:
            return case if odd is None or case.tile * 2 >= odd.tile else odd
        odd = odd or case
    return odd or first or _kernel(kernel, extents, columns, rows, asked or base, stack, omit)


def _columns(total: int, rows: int, tile: int, device: Device) -> int:
    """All columns, or as many as the elements divide over; fewer only cost time."""
    fits = (count for count in range(device.columns, 0, -1) if total % (tile * rows * count) == 0)
    return next(fits, device.columns)
