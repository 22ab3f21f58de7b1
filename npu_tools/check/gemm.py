"""GEMM, C[m, n] = A[m, k] @ B[k, n] in bf16: four ways to build it, and what each needs of L1, L2 and the shim.

What the builder lays out (Xilinx/mlir-air programming_examples/matrix_multiplication/bf16_in_bf16_out/run.py and
bf16_in_fp32_out/run.py @ e972f2942): herd_m columns by herd_n rows; a column's memtile holds its A panel
[tile_m, tile_k_l2], one of herd_n B panels [tile_k_l2, tile_n] and herd_n C tiles; a core holds A [tile_m, tile_k_l1],
B [tile_k_l1, tile_n] and its accumulator, f32 except on the direct path. Panels inside a loop are ping-ponged.

Methods: `external` writes f32; `fused-cast` writes f32 and casts in a second launch, `drain` casts on the way out, both
to bf16 and of high precision; `direct` is compiled without an object file, and rounds to bf16 once per L2 trip (low
precision) unless the output is f32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2

from npu_tools.check.limits import REGISTRY, herd, memory, multiple, odd_trips, stride
from npu_tools.check.measured import gemm_row
from npu_tools.check.search import legal
from npu_tools.check.settings import Settings, Value
from npu_tools.device import Device
from npu_tools.findings import Finding

BUILDER = "Xilinx/mlir-air programming_examples/matrix_multiplication/bf16_in_bf16_out/run.py @ e972f2942"
PAGE = f"{REGISTRY}/details/GEMM_bf16_in_bf16_out.md @ e972f2942"
ROWS = f"{REGISTRY}/details/GEMM_bf16_in_bf16_out.json @ e972f2942"
METHODS = ("external", "fused-cast", "drain", "direct")
FUSED_CAST_FROM = 4_000_000_000
"""m*k*n from which two launches pay: the registry page's own rule, true for all seven shapes it swept both ways."""
MICRO = 16
"""mm.o computes 2 x 2 blocks of 8x8x8: its static_assert wants m and n of a tile in multiples of 16, k of 8."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """One GEMM with its tiles. Extents in elements."""

    m: int
    k: int
    n: int
    output: str = "bf16"
    precision: str = "high"
    method: str = "fused-cast"
    tile_m: int = 64
    tile_k_l2: int = 256
    tile_k_l1: int = 32
    tile_n: int = 128
    herd_m: int = 8
    herd_n: int = 4
    drain_chunks: int = 1
    omit_pingpong: str = ""
    stack_bytes: int = 1024
    stitched: bool = False

    def shape(self) -> tuple[int, ...]:
        return (self.m, self.k, self.n)

    def settings(self) -> dict[str, Value]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in {"m", "k", "n"}}

    @property
    def l2_trips(self) -> int:
        """How often the panels of L2 are replaced for one tile of C."""
        return max(1, self.k // self.tile_k_l2)

    @property
    def l1_trips(self) -> int:
        """How often the tiles of L1 are replaced for one panel of L2."""
        return max(1, self.tile_k_l2 // self.tile_k_l1)

    @property
    def launches(self) -> tuple[int, int]:
        """Launch iterations over m and n."""
        return max(1, self.m // (self.tile_m * self.herd_m)), max(1, self.n // (self.tile_n * self.herd_n))

    def l1_parts(self) -> dict[str, int]:
        """Bytes of one core."""
        copies = 2 if self.l1_trips > 1 and self.omit_pingpong not in {"L1", "all"} else 1
        accumulator = self.tile_m * self.tile_n * (2 if self.method == "direct" and self.output == "bf16" else 4)
        drained = self.tile_m * self.tile_n // self.drain_chunks * 2 if self.method == "drain" else 0
        return {
            f"A {copies} x": copies * self.tile_m * self.tile_k_l1 * 2,
            f"B {copies} x": copies * self.tile_k_l1 * self.tile_n * 2,
            "C accumulator": accumulator,
            "bf16 drain": drained,
            "stack": self.stack_bytes,
        }

    def l2_parts(self) -> dict[str, int]:
        """Bytes of the fullest memtile.

        Two copies of A and B in a loop. An odd number of trips leaves a remainder with buffers of its own: at
        tile_k_l2 512 the panels just fit for k = 2048, 4096, 12288 and 14336 and overflow for 3584 and 18944 (7 and
        37 trips), as the rows' notes have it.
        """
        copies = 1
        if self.l2_trips > 1 and self.omit_pingpong not in {"L2", "all"}:
            copies = 3 if self.l2_trips % 2 else 2
        out_bytes = 2 if self.output == "bf16" and self.method in {"drain", "direct"} else 4
        return {
            f"A {copies} x": copies * self.tile_m * self.tile_k_l2 * 2,
            f"B {copies} x": copies * self.tile_k_l2 * self.tile_n * 2,
            "C": self.herd_n * self.tile_m * self.tile_n * out_bytes,
        }

    @property
    def b_stride_words(self) -> int:
        """Step of B's descriptor from one L2 panel to the next, in 4-byte words; unused with one trip."""
        return self.tile_k_l2 * self.n * 2 // 4 if self.l2_trips > 1 else 0

    def figures(self, device: Device) -> dict[str, int]:
        del device
        return {
            "l1_bytes": sum(self.l1_parts().values()),
            "l2_bytes": sum(self.l2_parts().values()),
            "b_stride_words": self.b_stride_words,
            "tiles": self.herd_m * self.herd_n,
            "launch_iterations": self.launches[0] * self.launches[1],
            "l2_trips": self.l2_trips,
            "l1_trips": self.l1_trips,
        }

    def findings(self, device: Device) -> list[Finding]:
        return [finding for finding in self.faults(device) if finding is not None]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        yield memory(device, "core", self.l1_parts())
        yield memory(device, "memtile", self.l2_parts())
        if self.l2_trips > 1:
            yield stride(device, "B's descriptor", self.b_stride_words, self.tile_k_l2 * self.n)
        yield from self._tiling(device)
        yield from self._silent()
        yield from self._method(device)

    def _tiling(self, device: Device) -> Iterator[Finding | None]:
        yield herd(device, self.herd_m, self.herd_n, names=("herd_m", "herd_n"))
        rows, columns = self.tile_m * self.herd_m, self.tile_n * self.herd_n
        older = "; builders before #1687 did not assert this and returned garbage"
        asserted = "AssertionError"
        yield _with(multiple("m", self.m, "tile_m*herd_m", rows, diagnostic=asserted, source=BUILDER), older)
        yield _with(multiple("n", self.n, "tile_n*herd_n", columns, diagnostic=asserted, source=BUILDER), older)
        yield multiple("k", self.k, "tile_k_l2", self.tile_k_l2, diagnostic=asserted, source=BUILDER)
        yield multiple("tile_k_l2", self.tile_k_l2, "tile_k_l1", self.tile_k_l1, diagnostic=asserted, source=BUILDER)
        block = "static assertion failed"
        yield multiple("tile_m", self.tile_m, "2 x mmul m", MICRO, diagnostic=f"{block}: m % (2 * r) == 0", source=PAGE)
        yield multiple("tile_n", self.tile_n, "2 x mmul n", MICRO, diagnostic=f"{block}: n % (2 * t) == 0", source=PAGE)
        yield multiple("tile_k_l1", self.tile_k_l1, "mmul k", 8, diagnostic=f"{block}: k % s == 0", source=PAGE)

    def _silent(self) -> Iterator[Finding | None]:
        """Combinations that compile, run and return garbage."""
        source = f"{ROWS}; the rows' notes list the wrong ones, the common cause is read off them"
        yield odd_trips("the L1 loop over k (tile_k_l2/tile_k_l1)", self.l1_trips, severe=True, source=source)
        if self.l1_trips == 1 and self.l2_trips > 1:
            yield odd_trips("the L2 loop over k, with one L1 trip each,", self.l2_trips, severe=True, source=source)

    def _method(self, device: Device) -> Iterator[Finding | None]:
        if self.method == "drain":
            if self.tile_n % self.drain_chunks or self.tile_n // self.drain_chunks % 8:
                yield Finding(
                    severity="error",
                    code="divisibility",
                    message=f"drain_chunks = {self.drain_chunks} must cut tile_n = {self.tile_n} into multiples of 8",
                    diagnostic="AssertionError: tile_n must be divisible by drain_chunks",
                    source=BUILDER,
                )
            if self.stitched:
                yield Finding(
                    severity="note",
                    code="drain_stitched",
                    message="drain inside a stitched ELF: one author measured wrong results at every shape, while "
                    "Llama-3.2-1B stitches drain K and V projections and passes; gate the fused ELF itself",
                    source=PAGE,
                    certain=False,
                )
        if self.method == "fused-cast" and device.compile_target == "npu1":
            yield Finding(
                severity="error",
                code="elf_output",
                message="fused-cast is two launches and so an ELF; npu1 takes no ELF",
                diagnostic="AirBackendError",
                source="Xilinx/mlir-air python/air/backend/xrt.py @ e972f2942",
            )
        if self.herd_n == 1 and self.launches[1] > 1:
            yield Finding(
                severity="error",
                code="herd_shape",
                message=f"herd_n = 1 with {self.launches[1]} launch iterations over n compiled and then failed at run time",
                diagnostic="qds_device::wait() unexpected command state",
                source=PAGE,
                certain=False,
            )
        if self.method == "direct" and self.output == "bf16":
            yield Finding(
                severity="note",
                code="precision",
                message=f"direct rounds the sum to bf16 {self.l2_trips} times (k/tile_k_l2): mean_rel_L1 1.0e-2 to 1.9e-2 "
                "against 9.3e-3 to 9.9e-3 of fused-cast and drain",
                source=PAGE,
            )
        if (
            self.l2_trips > 1
            and device.shim.max_step < self.tile_k_l2 * self.n
            and self.b_stride_words <= device.shim.max_step
        ):
            yield Finding(
                severity="note",
                code="stride_guideline",
                message=f"tile_k_l2*n = {self.tile_k_l2 * self.n} is over the 2^20 that upstream's pages give as limit; "
                f"the step counts words ({self.b_stride_words}), and rows with as much run",
                source=ROWS,
                certain=False,
            )

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        fixed_output = ("external", "direct") if self.output == "f32" else ("fused-cast", "drain", "direct")
        inner = [size for size in range(MICRO, 81, MICRO) if self.k % size == 0]
        return {
            "tile_m": [size for size in range(MICRO, 129, MICRO) if self.m % size == 0],
            "tile_n": [size for size in range(MICRO, 257, MICRO) if self.n % size == 0],
            "tile_k_l2": [size for size in _divisors(self.k) if 16 <= size <= 1024 and size % 8 == 0],
            "tile_k_l1": inner,
            "herd_m": [count for count in range(device.columns, 0, -1) if self.m % count == 0],
            "herd_n": [count for count in range(device.core_rows, 0, -1) if self.n % count == 0],
            "method": fixed_output,
        }


def resolve(extents: tuple[int, ...], given: Settings, device: Device) -> Gemm:
    """The GEMM with the registry's measured configuration where there is one, else the first legal by its rules."""
    m, k, n = extents
    output = given.word("output", "bf16", ("bf16", "f32"))
    precision = given.word("precision", "high", ("high", "low"))
    methods = _methods(m * k * n, output, precision)
    method = given.word("method", methods[0], METHODS)
    fixed = {
        "drain_chunks": given.integer("drain_chunks", 1),
        "stack_bytes": given.integer("stack_bytes", device.stack_bytes),
    }
    omit = given.word("omit_pingpong", "", ("", "L1", "L2", "all"))
    stitched = given.flag("stitched", False)

    def case(method: str, tiles: tuple[int, int, int, int], herds: tuple[int, int]) -> Gemm:
        names = ("tile_m", "tile_k_l2", "tile_k_l1", "tile_n")
        tile_m, tile_k_l2, tile_k_l1, tile_n = (
            given.integer(name, size) for name, size in zip(names, tiles, strict=True)
        )
        return Gemm(
            m, k, n, output, precision, method, tile_m, tile_k_l2, tile_k_l1, tile_n,
            given.integer("herd_m", herds[0]), given.integer("herd_n", herds[1]),
            fixed["drain_chunks"], omit, fixed["stack_bytes"], stitched,
        )  # fmt: skip

    row = gemm_row(m, k, n, output, precision)
    if row is not None and device.compile_target == "npu2" and (not given.has("method") or method == row.method):
        measured = case(row.method, row.tiles, row.herd)
        if legal(measured, device):
            return measured
    first: Gemm | None = None
    for way in (method,) if given.has("method") else methods:
        for tiles, herds in _preferred(m, k, n, way, given, device):
            candidate = case(way, tiles, herds)
            first = first or candidate
            if legal(candidate, device):
                return candidate
    base = 32 if method == "drain" else 64
    return first or case(method, (base, 256, 32, 128), (device.columns, device.core_rows))


def _methods(products: int, output: str, precision: str) -> tuple[str, ...]:
    if output == "f32":
        return ("direct",) if precision == "low" else ("external", "direct")
    if precision == "low":
        return ("direct",)
    return ("fused-cast", "drain") if products >= FUSED_CAST_FROM else ("drain", "fused-cast")


def _preferred(
    m: int, k: int, n: int, method: str, given: Settings, device: Device
) -> Iterator[tuple[tuple[int, int, int, int], tuple[int, int]]]:
    """Tiles and herds, best first by the registry's findings: the whole array, tile_n 128, tile_k_l2 256, tile_k_l1 32.

    tile_n = 128 beat 64 by 1.3 to 1.4 times at every large shape; tile_k_l2 matters less; more columns always won.
    """
    base = 32 if method == "drain" else 64
    over_m = _splits(m, base, given.integer("tile_m", 0, least=0), given.integer("herd_m", 0, least=0), device.columns)
    over_n = _splits(n, 128, given.integer("tile_n", 0, least=0), given.integer("herd_n", 0, least=0), device.core_rows)
    over_k = _k_splits(k, given.integer("tile_k_l2", 0, least=0), given.integer("tile_k_l1", 0, least=0))
    for tile_m, herd_m in over_m[:4]:
        for tile_n, herd_n in over_n[:5]:
            for tile_k_l2, tile_k_l1 in over_k[:10]:
                yield (tile_m, tile_k_l2, tile_k_l1, tile_n), (herd_m, herd_n)


def _splits(extent: int, base: int, tile: int, lanes: int, most: int) -> list[tuple[int, int]]:
    """(tile, lanes) that divide the extent: the most lanes first, then the tile nearest to `base`, the smaller first."""
    tiles = [tile] if tile else [size for size in range(MICRO, 257, MICRO) if extent % size == 0]
    counts = [lanes] if lanes else range(most, 0, -1)
    fits = [(size, count) for size in tiles for count in counts if size and extent % (size * count) == 0]
    return sorted(fits, key=lambda fit: (-fit[1], fit[0] > base, abs(log2(fit[0] / base))))


def _k_splits(k: int, l2: int, l1: int) -> list[tuple[int, int]]:
    """(tile_k_l2, tile_k_l1): 32 or 64 inside where that leaves even trips, then what the rows show to work."""
    inner = [l1] if l1 else [size for size in (32, 64) if k % (2 * size) == 0]
    inner += (
        [] if l1 else [size for size in (3 * MICRO, 16, 80, 32, 64, 40, 24, 8) if k % size == 0 and size not in inner]
    )
    outer = [l2] if l2 else [size for size in _divisors(k) if size >= 16]
    fits = [(big, small) for small in inner for big in outer if k % big == 0 and big % small == 0]
    return sorted(fits, key=lambda fit: (inner.index(fit[1]), abs(log2(fit[0] / 256))))


def _divisors(number: int) -> list[int]:
    return [size for size in range(8, min(number, 2048) + 1, 8) if number % size == 0]


def _with(finding: Finding | None, more: str) -> Finding | None:
    if finding is None:
        return None
    return replace(finding, message=finding.message + more)
