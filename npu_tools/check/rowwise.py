"""Kernels that work row by row, a row a DMA: rmsnorm, layernorm, rope, qk_norm and qkv_bias, in bf16 without L2.

Builders: Xilinx/mlir-air programming_examples/{weighted_rms_norm/weighted_rms_norm,layer_norm/layer_norm,
rope_halfsplit/rope_halfsplit}.py and llms/shared/builders/{rms_qkv_qknorm_rope_multi,rms_qkv_bias_rope_multi}.py
@ e972f2942.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from npu_tools.check.limits import REGISTRY, granule, herd, memory, multiple, odd_trips, shim_channels
from npu_tools.check.settings import Settings, Value
from npu_tools.device import Device
from npu_tools.errors import UnknownKernel
from npu_tools.findings import Finding

EXAMPLES = "Xilinx/mlir-air programming_examples"
LANES = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """What tells the row kernels apart: their streams, their L1 rows, and who says so."""

    source: str
    page: str
    into: int
    """Streams into each tile that carry its own rows."""
    shared: int
    """Streams into all tiles at once: weights, biases."""
    looped_rows: int
    """Row buffers inside the loop, ping-ponged."""
    fixed_rows: int
    """Row buffers held throughout: weights."""
    flat: bool
    """One column of tiles only (herd_x by 1)."""


LAYOUTS = {
    "rmsnorm": Layout(
        f"{EXAMPLES}/weighted_rms_norm/weighted_rms_norm.py @ e972f2942", f"{REGISTRY}/details/RMSNorm_bf16.md", 1, 1, 2, 1, True
    ),
    "layernorm": Layout(
        f"{EXAMPLES}/layer_norm/layer_norm.py @ e972f2942", f"{REGISTRY}/details/LayerNorm_bf16.md", 1, 1, 2, 2, True
    ),
    "rope": Layout(
        f"{EXAMPLES}/rope_halfsplit/rope_halfsplit.py @ e972f2942", f"{REGISTRY}/details/RoPE_bf16.md", 2, 0, 3, 0, False
    ),
    "qk_norm": Layout(
        f"{EXAMPLES}/llms/shared/builders/rms_qkv_qknorm_rope_multi.py @ e972f2942",
        f"{REGISTRY}/details/RMSNorm_bf16.md", 1, 1, 2, 1, True,
    ),
    "qkv_bias": Layout(
        f"{EXAMPLES}/llms/shared/builders/rms_qkv_bias_rope_multi.py @ e972f2942",
        f"{EXAMPLES}/llms/qwen25_0_5b/ARCHITECTURE.md", 1, 1, 2, 1, True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rows:
    """One row kernel over rows of `width` elements."""

    kernel: str
    rows: int
    width: int
    herd_x: int = 8
    herd_y: int = 1
    vector_size: int = 16
    omit_pingpong: str = ""
    stack_bytes: int = 1024

    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.width)

    def settings(self) -> dict[str, Value]:
        return {
            name: getattr(self, name) for name in ("herd_x", "herd_y", "vector_size", "omit_pingpong", "stack_bytes")
        }

    @property
    def tiles(self) -> int:
        return self.herd_x * self.herd_y

    @property
    def trips(self) -> int:
        return max(1, self.rows // self.tiles)

    def _l1(self) -> dict[str, int]:
        layout = LAYOUTS[self.kernel]
        copies = 2 if self.trips > 1 and self.omit_pingpong not in {"L1", "all"} else 1
        return {
            f"{layout.looped_rows} rows {copies} x": layout.looped_rows * copies * self.width * 2,
            "weights": layout.fixed_rows * self.width * 2,
            "f32 sums": 2 * self.vector_size * 4,
            "stack": self.stack_bytes,
        }

    def figures(self, device: Device) -> dict[str, int]:
        del device
        return {"l1_bytes": sum(self._l1().values()), "tiles": self.tiles, "trips": self.trips}

    def findings(self, device: Device) -> list[Finding]:
        return [finding for finding in self.faults(device) if finding is not None]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        layout = LAYOUTS[self.kernel]
        what = "head_dim" if self.kernel in {"rope", "qk_norm"} else "row length"
        yield herd(device, self.herd_x, self.herd_y, names=("herd_x", "herd_y"))
        yield multiple(
            "rows", self.rows, "herd_x*herd_y", self.tiles,
            diagnostic=f"rows ({self.rows}) must be divisible by herd_x * herd_y ({self.tiles})", source=layout.source,
        )  # fmt: skip
        yield multiple(
            what, self.width, "vector_size", self.vector_size,
            diagnostic=f"N ({self.width}) must be divisible by vector_size ({self.vector_size})", source=layout.source,
        )  # fmt: skip
        if self.vector_size not in {LANES, 2 * LANES}:
            yield Finding(
                severity="error",
                code="vector_width",
                message=f"vector_size = {self.vector_size}: Peano lowers bf16 vectors of {LANES} and {2 * LANES} lanes only",
                diagnostic="unable to legalize instruction",
                source=f"{EXAMPLES}/decode_ffn_swiglu/matvec_swiglu_rms.py @ e972f2942",
                certain=False,
            )
        if layout.flat and self.herd_y > 1:
            yield Finding(
                severity="error",
                code="herd_shape",
                message=f"{self.kernel} is built for one row of tiles; herd_y = {self.herd_y}",
                source=layout.source,
            )
        yield granule(device, "a row", self.width, 2)
        yield shim_channels(device, self.tiles, into=layout.into, out=1, shared=layout.shared)
        yield memory(device, "core", self._l1())
        yield odd_trips("a tile's loop over its rows", self.trips, severe=False, source=layout.page)
        if self.kernel == "rope":
            yield Finding(
                severity="note",
                code="rope_convention",
                message="half-split as in Hugging Face Llama and Qwen; rope_lut and rope_sincos are interleaved and "
                "give other values. The LUT is [cos half, sin half] a row",
                source=layout.page,
            )

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        return {
            "herd_x": [count for count in range(device.columns, 0, -1) if self.rows % count == 0],
            "herd_y": (1,),
            "vector_size": (16, 32),
        }


def resolve(kernel: str, extents: tuple[int, ...], given: Settings, device: Device) -> Rows:
    """As many columns as divide the rows; more than 8 tiles never place where each has three streams."""
    if len(extents) != 2:
        raise UnknownKernel(f"{kernel} takes a shape of two extents, rows x width, not {len(extents)}")
    rows, width = extents
    rest = (
        given.integer("vector_size", LANES),
        given.word("omit_pingpong", "", ("", "L1", "L2", "all")),
        given.integer("stack_bytes", device.stack_bytes),
    )
    herd_y = given.integer("herd_y", 1)
    fits = (count for count in range(device.columns, 0, -1) if rows % (count * herd_y) == 0)
    herd_x = given.integer("herd_x", next(fits, device.columns))
    return Rows(kernel, rows, width, herd_x, herd_y, *rest)
