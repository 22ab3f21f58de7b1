"""GEMV, c[m] = A[m, k] @ b[k] in bf16, for decode: the plain kernel, its two fused forms, and the LM head.

Plain (Xilinx/mlir-air programming_examples/matrix_vector_multiplication/bf16/matvec.py @ e972f2942): one memtile panel
A [herd_m*tile_m, k] a launch iteration; a core takes m_input whole rows and the whole of b at a time.
Residual (bf16_cascade/matvec_2tile_add.py): two cores a column, the second adds r. SwiGLU (decode_ffn_swiglu/
matvec_swiglu_rms.py): a cascade of cores over k with the RMSNorm in front and SiLU*up behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from npu_tools.check.limits import REGISTRY, granule, herd, memory, multiple, repeats
from npu_tools.check.search import legal
from npu_tools.check.settings import Settings, Value
from npu_tools.device import Device
from npu_tools.findings import Finding

BUILDER = "Xilinx/mlir-air programming_examples/matrix_vector_multiplication/bf16/matvec.py @ e972f2942"
PAGE = f"{REGISTRY}/details/GEMV_bf16.md @ e972f2942"
RESIDUAL = (
    "Xilinx/mlir-air programming_examples/matrix_vector_multiplication/bf16_cascade/matvec_2tile_add.py @ e972f2942"
)
SWIGLU = "Xilinx/mlir-air programming_examples/decode_ffn_swiglu/matvec_swiglu_rms.py @ e972f2942"
DECODE = "Xilinx/mlir-air programming_examples/llms/qwen3_4b/qwen3_4b_decode.py @ e972f2942"
TILING = "tonyjie/mlir-air programming_examples/_llm_shared/docs/kernels/gemv.md @ 7267eb8b"
VECTOR = 64
CASCADE_EMB_BELOW = 2560
"""Upstream's fused decode stops here (llms/README.md): a wider embedding wants five cascade rows, the array has four."""


@dataclass(frozen=True, slots=True)
class Gemv:
    """The plain GEMV, also one partition of an LM head. `loop_tiling` 0 leaves the launch loop untiled."""

    m: int
    k: int
    herd_m: int = 8
    tile_m: int = 8
    m_input: int = 8
    omit_pingpong: str = "all"
    loop_tiling: int = 4
    stack_bytes: int = 1024

    def shape(self) -> tuple[int, ...]:
        return (self.m, self.k)

    def settings(self) -> dict[str, Value]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in {"m", "k"}}

    @property
    def trips(self) -> int:
        """Kernel calls of a core in one launch iteration."""
        return max(1, self.tile_m // self.m_input)

    @property
    def launches(self) -> int:
        return max(1, self.m // (self.tile_m * self.herd_m))

    @property
    def tiled(self) -> bool:
        """Whether the launch loop is cut into a host loop and an inner one; a remainder leaves it whole."""
        return self.loop_tiling > 0 and self.launches % self.loop_tiling == 0

    @property
    def b_reads(self) -> int:
        """How often one queue entry feeds b: once a kernel call of the launch iterations it covers."""
        return (self.loop_tiling if self.tiled else self.launches) * self.trips

    def l1_parts(self) -> dict[str, int]:
        """Bytes of one core. Both operands are loaded inside the row loop, so ping-pong doubles both."""
        copies = 2 if self.trips > 1 and self.omit_pingpong not in {"L1", "all"} else 1
        return {
            f"A {copies} x": copies * self.m_input * self.k * 2,
            f"b {copies} x": copies * self.k * 2,
            "c": self.tile_m * 2,
            "stack": self.stack_bytes,
        }

    def l2_parts(self) -> dict[str, int]:
        """Bytes of the staged panels; the builder holds them against one memtile."""
        return {"A": self.herd_m * self.tile_m * self.k * 2, "C": self.herd_m * self.tile_m * 2}

    def figures(self, device: Device) -> dict[str, int]:
        del device
        return {
            "l1_bytes": sum(self.l1_parts().values()),
            "l2_bytes": sum(self.l2_parts().values()),
            "tiles": self.herd_m,
            "launch_iterations": self.launches,
            "b_reads": self.b_reads,
        }

    def findings(self, device: Device) -> list[Finding]:
        return [finding for finding in self.faults(device) if finding is not None]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        lanes = self.tile_m * self.herd_m
        yield herd(device, self.herd_m, 1, names=("herd_m", "rows"))
        yield multiple(
            "m", self.m, "tile_m*herd_m", lanes,
            diagnostic=f"M ({self.m}) must be divisible by tile_m * herd_m ({lanes})", source=BUILDER,
        )  # fmt: skip
        yield multiple(
            "tile_m", self.tile_m, "m_input", self.m_input,
            diagnostic=f"tile_m ({self.tile_m}) must be divisible by m_input ({self.m_input})", source=BUILDER,
        )  # fmt: skip
        yield multiple(
            "k", self.k, "vector width", VECTOR,
            diagnostic=f"K ({self.k}) must be divisible by {VECTOR} (vector width)", source=BUILDER,
        )  # fmt: skip
        yield granule(device, "a core's rows of c (tile_m)", self.tile_m, 2)
        yield self._panels(device)
        yield memory(device, "core", self.l1_parts())
        yield self._split(repeats(device, "one queue entry feeds b", self.b_reads))
        if self.tiled and not _in_two(self.launches // self.loop_tiling, device.repeat_max + 1):
            host_loop = self.launches // self.loop_tiling
            yield self._split(repeats(device, "the host loop over launch iterations, in one piece, runs", host_loop))
        if self.loop_tiling > device.shim.bd_count:
            limit = device.limit("shim.bd_count")
            yield Finding(
                severity="error",
                code="bd_count",
                message=f"loop_tiling = {self.loop_tiling} launch iterations are unrolled into one BD each; "
                f"a shim has {limit.value}",
                diagnostic="Allocator exhausted available buffer descriptor IDs",
                limit=str(limit),
                source=TILING,
            )

    def _panels(self, device: Device) -> Finding | None:
        found = memory(device, "memtile", self.l2_parts())
        if found is None:
            return None
        a, c = self.l2_parts().values()
        return replace(
            found,
            diagnostic=f"L2 capacity exceeded: A={a}B + C={c}B = {a + c}B > {device.memtile.memory_bytes}B.",
            source=BUILDER,
        )

    def _split(self, found: Finding | None) -> Finding | None:
        """A tall matrix runs in partitions, as the LM head does."""
        if found is None:
            return None
        rows = 8192
        return replace(
            found, remedy=f"as lm_head_gemv: {-(-self.m // rows)} partitions of {rows} rows, the last padded"
        )

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        return {
            "tile_m": (2, 4, 8, 16, 32),
            "m_input": (1, 2, 4, 8, 16),
            "herd_m": [count for count in range(device.columns, 0, -1) if self.m % count == 0],
            "omit_pingpong": ("all",),
            "loop_tiling": (4, 16),
        }


@dataclass(frozen=True, slots=True)
class GemvResidual:
    """d[m] = A @ b + r with two cores a column; `k_tile` values of k at a time."""

    m: int
    k: int
    herd_m: int = 8
    tile_m: int = 8
    k_tile: int = 512
    stack_bytes: int = 1024

    def shape(self) -> tuple[int, ...]:
        return (self.m, self.k)

    def settings(self) -> dict[str, Value]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in {"m", "k"}}

    def figures(self, device: Device) -> dict[str, int]:
        del device
        return {"l1_bytes": sum(self._l1().values()), "tiles": 2 * self.herd_m, "k_trips": self.k // self.k_tile}

    def _l1(self) -> dict[str, int]:
        return {
            "A 2 x": 2 * self.tile_m * self.k_tile * 2,
            "b 2 x": 2 * self.k_tile * 2,
            "r": self.m // self.herd_m * 2,
            "stack": self.stack_bytes,
        }

    def findings(self, device: Device) -> list[Finding]:
        return [finding for finding in self.faults(device) if finding is not None]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        lanes, asserted = self.tile_m * self.herd_m, "AssertionError"
        yield herd(device, self.herd_m, 2, names=("herd_m", "rows"))
        yield multiple("m", self.m, "tile_m*herd_m", lanes, diagnostic=asserted, source=RESIDUAL)
        yield multiple("k", self.k, "k_tile", self.k_tile, diagnostic=asserted, source=RESIDUAL)
        yield memory(device, "core", self._l1())
        if self.k % 512:
            yield Finding(
                severity="error",
                code="k_multiple",
                message=f"k = {self.k} is not a multiple of 512; with other k the result was wrong",
                limit="k % 512 == 0",
                source="Xilinx/mlir-air programming_examples/llms/qwen25_0_5b/ARCHITECTURE.md @ e972f2942",
                remedy="use the plain GEMV and add the residual on the CPU",
                certain=False,
            )

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        return {"tile_m": (2, 4, 8, 16), "herd_m": list(range(device.columns, 0, -1)), "k_tile": (512,)}


@dataclass(frozen=True, slots=True)
class GemvSwiglu:
    """d[m/2] = silu(gate) * up of RMSNorm(x), gate and up rows interleaved in A[m, k], over a cascade of cores."""

    m: int
    k: int
    herd_m: int = 8
    tile_m: int = 32
    m_input: int = 4
    n_cascade: int = 4
    stack_bytes: int = 1024

    def shape(self) -> tuple[int, ...]:
        return (self.m, self.k)

    def settings(self) -> dict[str, Value]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in {"m", "k"}}

    def figures(self, device: Device) -> dict[str, int]:
        del device
        return {
            "l1_bytes": sum(self._l1().values()),
            "l2_bytes": self.tile_m * self.k * 2,
            "tiles": self.herd_m * self.n_cascade,
        }

    def _l1(self) -> dict[str, int]:
        return {
            "A": self.tile_m * (self.k // self.n_cascade) * 2,
            "normed x": self.k * 2,
            "x and norm weight": 2 * self.k * 2,
            "scratch": 2 * max(16, self.tile_m) * 4 + 2 * self.tile_m * 2,
            "stack": self.stack_bytes,
        }

    def findings(self, device: Device) -> list[Finding]:
        return [finding for finding in self.faults(device) if finding is not None]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        asserted = "AssertionError"
        yield herd(device, self.herd_m, self.n_cascade, names=("herd_m", "n_cascade"))
        yield multiple("m", self.m, "tile_m*herd_m", self.tile_m * self.herd_m, diagnostic=asserted, source=SWIGLU)
        yield multiple("tile_m", self.tile_m, "m_input", self.m_input, diagnostic=asserted, source=SWIGLU)
        yield multiple("m_input", self.m_input, "a gate and an up row", 2, diagnostic=asserted, source=SWIGLU)
        yield multiple("k", self.k, "n_cascade", self.n_cascade, diagnostic=asserted, source=SWIGLU)
        if self.k % self.n_cascade == 0:
            yield multiple(
                "k/n_cascade", self.k // self.n_cascade, "vector width", VECTOR, diagnostic=asserted, source=SWIGLU
            )
        if self.n_cascade < 2:
            yield Finding(
                severity="error", code="cascade", message="n_cascade = 1 is no cascade; it takes 2 to 4",
                diagnostic="n_cascade (1) must be >= 2 for a cascade pipeline", source=SWIGLU,
            )  # fmt: skip
        if self.tile_m % 32:
            yield Finding(
                severity="error",
                code="vector_width",
                message=f"tile_m/2 = {self.tile_m / 2:g} outputs a core must be a multiple of 16: "
                "Peano lowers bf16 vectors of 16 and 32 lanes only",
                diagnostic="must be a positive multiple of 16",
                source=SWIGLU,
            )
        yield memory(device, "memtile", {"A": self.tile_m * self.k * 2})
        yield memory(device, "core", self._l1())
        if self.k >= CASCADE_EMB_BELOW:
            yield Finding(
                severity="error",
                code="cascade_rows",
                message=f"k = {self.k}: from {CASCADE_EMB_BELOW} on the cascade needs 5 or more core rows, "
                f"{device.name} has {device.core_rows}",
                limit=f"k < {CASCADE_EMB_BELOW}",
                source="Xilinx/mlir-air programming_examples/llms/README.md, llms/qwen3_4b/ARCHITECTURE.md @ e972f2942",
                remedy="decode with plain GEMVs for gate and up, and RMSNorm and SwiGLU on the CPU (five ELFs a layer)",
                certain=False,
            )

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        return {
            "tile_m": (32, 64),
            "m_input": (2, 4, 8),
            "n_cascade": range(2, device.core_rows + 1),
            "herd_m": list(range(device.columns, 0, -1)),
        }


def _in_two(times: int, most: int) -> bool:
    """Whether a loop folds into two nested ones of at most `most` trips: 768 ran, 1187, a prime, does not."""
    return times <= most or any(times % inner == 0 and times // inner <= most for inner in range(2, most + 1))


def resolve(extents: tuple[int, ...], given: Settings, device: Device) -> Gemv:
    """All columns where m allows, the largest tile_m up to 16 whose panel fits L2, and m_input as large as L1 allows.

    By the registry page: herd_m 8 is 2.6 times as fast as 4, m_input = tile_m 1.2 times as fast as 1.
    """
    m, k = extents
    omit = given.word("omit_pingpong", "all", ("", "L1", "L2", "all"))
    tiling = given.integer("loop_tiling", 4, least=0)
    stack = given.integer("stack_bytes", device.stack_bytes)
    herds = [count for count in range(device.columns, 0, -1) if m % count == 0]
    first: Gemv | None = None
    for herd_m in [given.integer("herd_m", 8)] if given.has("herd_m") else herds:
        for tile_m in [given.integer("tile_m", 8)] if given.has("tile_m") else (16, 8, 4, 2):
            halves = [size for size in (16, 8, 4, 2, 1) if size <= tile_m and tile_m % size == 0]
            for m_input in [given.integer("m_input", 8)] if given.has("m_input") else halves or [tile_m]:
                case = Gemv(m, k, herd_m, tile_m, m_input, omit, tiling, stack)
                first = first or case
                if legal(case, device):
                    return case
    for name in ("herd_m", "tile_m", "m_input"):
        given.integer(name, 8)
    return first or Gemv(m, k, given.integer("herd_m", 1))


def resolve_residual(extents: tuple[int, ...], given: Settings, device: Device) -> GemvResidual:
    """The builder's defaults."""
    m, k = extents
    return GemvResidual(
        m,
        k,
        given.integer("herd_m", min(8, device.columns)),
        given.integer("tile_m", 8),
        given.integer("k_tile", 512),
        given.integer("stack_bytes", device.stack_bytes),
    )


def resolve_swiglu(extents: tuple[int, ...], given: Settings, device: Device) -> GemvSwiglu:
    """The configuration of the fused decode ELF."""
    m, k = extents
    return GemvSwiglu(
        m,
        k,
        given.integer("herd_m", min(8, device.columns)),
        given.integer("tile_m", 32),
        given.integer("m_input", 4),
        given.integer("n_cascade", 4),
        given.integer("stack_bytes", device.stack_bytes),
    )
