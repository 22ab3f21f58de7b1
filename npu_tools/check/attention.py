"""FlashAttention in bf16: head-first, seq-first and temporal-causal, and why there is next to nothing to tune.

Head-first and seq-first (Xilinx/mlir-air programming_examples/flash_attention/kernel_fusion_based/attn_npu2.py and
attn_npu2_seqfirst.py @ e972f2942) put heads_per_unroll * num_q_tiles columns by num_cascade_stages rows on the array; a
core holds its Q tile in chunks, one K, one V and one score tile, its output and the one that comes down the cascade.
Temporal-causal (attn_npu2_temporal_causal.py) has one core loop over all K blocks instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from npu_tools.check.limits import NO_PLACEMENT, OUT_OF_CHANNELS, REGISTRY, herd, memory, multiple
from npu_tools.check.settings import Settings, Value
from npu_tools.device import Device
from npu_tools.errors import UnknownKernel
from npu_tools.findings import Finding

FOLDER = "Xilinx/mlir-air programming_examples/flash_attention/kernel_fusion_based"
BUILDERS = {
    "head-first": f"{FOLDER}/attn_npu2.py @ e972f2942",
    "seq-first": f"{FOLDER}/attn_npu2_seqfirst.py @ e972f2942",
    "temporal": f"{FOLDER}/attn_npu2_temporal_causal.py @ e972f2942",
}
PAGE = f"{REGISTRY}/details/FlashAttention_bf16.md @ e972f2942"
TILING = "Xilinx/mlir-air programming_examples/llms/shared/infra/fa_headfirst.py @ e972f2942"
TEMPORAL = "Xilinx/mlir-air programming_examples/llms/shared/infra/fa_temporal.py @ e972f2942"
TIMEOUT = "ERT_CMD_STATE_TIMEOUT"
MOST_HEADS_PER_UNROLL = 2
"""Four heads at a time run out of shim channels (registry page)."""
IMBALANCED = 7
"""Query heads a KV head from which the seq-first kernel was seen to lose precision on real activations."""
TEMPORAL_ROUNDS = 4
"""More rounds use another output placement that is mapped for three query heads a KV head only."""


@dataclass(frozen=True, slots=True)
class Attention:
    """One FlashAttention. lq, lk in tokens, head_dim the width of Q, K and V."""

    lq: int
    lk: int
    heads: int
    kv_heads: int
    head_dim: int
    variant: str = "head-first"
    causal: bool = True
    window: int = 0
    lqp: int = 256
    lkp: int = 64
    dv_tile: int = 64
    num_q_tiles: int = 4
    num_cascade_stages: int = 4
    heads_per_unroll: int = 2
    stack_bytes: int = 1024

    def shape(self) -> tuple[int, ...]:
        return (self.lq, self.lk, self.heads, self.kv_heads, self.head_dim)

    def settings(self) -> dict[str, Value]:
        names = [
            name for name in self.__dataclass_fields__ if name not in {"lq", "lk", "heads", "kv_heads", "head_dim"}
        ]
        return {name: getattr(self, name) for name in names}

    @property
    def tile_q(self) -> int:
        """Query rows of one core."""
        return max(1, self.lqp // self.num_q_tiles)

    @property
    def columns(self) -> int:
        group = max(1, self.heads // max(1, self.kv_heads))
        return 2 * group if self.variant == "temporal" else self.heads_per_unroll * self.num_q_tiles

    def l1_parts(self) -> dict[str, int]:
        """Bytes of one core; FlashAttention is built without ping-pong."""
        tile_q = self.tile_q
        if self.variant == "temporal":
            return {
                "Q": tile_q * self.head_dim * 2,
                "Q pair": 2 * tile_q * self.head_dim * 2,
                "output": 2 * tile_q * self.head_dim * 2 if 1 < self.lq // self.lqp <= TEMPORAL_ROUNDS else tile_q * self.head_dim * 2,
                "K or V": self.lkp * self.head_dim * 2,
                "scores": tile_q * self.lkp * 2,
                "statistics": 4 * tile_q * 2,
                "stack": self.stack_bytes,
            }  # fmt: skip
        return {
            "Q": max(1, self.head_dim // self.lkp) * tile_q * self.lkp * 2,
            "K": self.lkp * self.lkp * 2,
            "V": self.lkp * self.dv_tile * 2,
            "scores": tile_q * self.lkp * 2,
            "output 2 x": 2 * tile_q * self.dv_tile * 2,
            "statistics": 8 * tile_q * 2,
            "stack": self.stack_bytes,
        }

    def figures(self, device: Device) -> dict[str, int]:
        rows = device.core_rows if self.variant == "temporal" else self.num_cascade_stages
        return {
            "l1_bytes": sum(self.l1_parts().values()),
            "tiles": self.columns * rows,
            "tile_q": self.tile_q,
            "rounds": max(1, self.lq // self.lqp),
        }

    def findings(self, device: Device) -> list[Finding]:
        return [finding for finding in self.faults(device) if finding is not None]

    def faults(self, device: Device) -> Iterator[Finding | None]:
        yield from self._common(device)
        yield from self._temporal(device) if self.variant == "temporal" else self._cascade(device)

    def _multiple(self, what: str, value: int, by: str, divisor: int) -> Finding | None:
        return multiple(
            what, value, by, max(1, divisor),
            diagnostic=f"{what} ({value}) must be divisible by {by} ({divisor})", source=BUILDERS[self.variant],
        )  # fmt: skip

    def _common(self, device: Device) -> Iterator[Finding | None]:
        yield self._multiple("lq", self.lq, "lqp", self.lqp)
        yield self._multiple("lqp", self.lqp, "num_q_tiles", self.num_q_tiles)
        yield self._multiple("num_heads", self.heads, "num_kv_heads", self.kv_heads)
        yield memory(device, "core", self.l1_parts())
        if self.causal and self.lq != self.lk:
            yield self._refused(
                "shape", f"causal needs lq = lk, not {self.lq} and {self.lk}",
                f"Causal masking requires lq == lk, got lq={self.lq}, lk={self.lk}",
            )  # fmt: skip
        if self.window and (not self.causal or self.window % self.lkp):
            yield self._refused(
                "window", f"a window needs causal and a multiple of lkp = {self.lkp}, not {self.window}",
                "window must be a multiple of the block size lkp" if self.causal else "window requires causal=True",
            )  # fmt: skip
        if device.compile_target == "npu1":
            yield Finding(
                severity="error", code="device", message="these builders are for npu2; npu1 has attn_npu1.py",
                source=f"{FOLDER}/attn_npu1.py @ e972f2942", remedy="use attn_npu1.py",
            )  # fmt: skip

    def _cascade(self, device: Device) -> Iterator[Finding | None]:
        chunk = self.lkp * self.num_cascade_stages
        yield self._multiple("lk", self.lk, "lkp * num_cascade_stages", chunk)
        yield self._multiple("dk", self.head_dim, "dk_tile/lkp", self.lkp)
        yield self._multiple("dv", self.head_dim, "dv_tile", self.dv_tile)
        yield self._multiple("dv_tile", self.dv_tile, "mmul", 8)
        yield self._multiple("num_heads", self.heads, "num_heads_per_unroll", self.heads_per_unroll)
        yield herd(
            device, self.columns, self.num_cascade_stages, names=("heads_per_unroll*num_q_tiles", "num_cascade_stages")
        )
        if self.heads_per_unroll > MOST_HEADS_PER_UNROLL:
            yield self._measured(
                "shim_channels", f"heads_per_unroll = {self.heads_per_unroll} runs out of shim channels; 1 or 2 place",
                OUT_OF_CHANNELS,
            )  # fmt: skip
        if self.tile_q != self.lkp:
            yield from self._tile_q()
        if self.num_cascade_stages < device.core_rows:
            yield Finding(
                severity="warning",
                code="cascade",
                message=f"{self.num_cascade_stages} cascade stages on {device.core_rows} rows: about 25 % slower at 2, and "
                "the routing of long sequences explodes",
                source=PAGE,
                certain=False,
            )
        if self.variant == "seq-first" and self.head_dim != self.lkp:
            yield self._refused(
                "head_dim", f"seq-first takes head_dim = lkp only, not {self.head_dim} with lkp = {self.lkp}; "
                "more chunks hang or give NaN",
                f"attn_npu2_seqfirst.py currently supports only dv == lkp (dv_chunks == 1); got dv={self.head_dim}, "
                f"lkp={self.lkp}.",
            )  # fmt: skip
        if self.variant == "seq-first" and self.kv_heads and self.heads // self.kv_heads >= IMBALANCED:
            yield Finding(
                severity="note",
                code="precision",
                message=f"{self.heads // self.kv_heads} query heads a KV head: seq-first gave a per-position cosine of 0.94 "
                "where head-first gave 0.995",
                source="tonyjie/mlir-air programming_examples/qwen25_3b/docs/development_progress/LESSONS.md @ 7267eb8b",
                remedy="compare with the head-first kernel, which costs two host transposes",
                certain=False,
            )
        if self.head_dim >= 128 and self.lq >= 2048:
            yield Finding(
                severity="note",
                code="flaky",
                message=f"head_dim {self.head_dim} at {self.lq} tokens timed out or gave NaN on some machines",
                diagnostic=TIMEOUT,
                source=PAGE,
                certain=False,
            )

    def _tile_q(self) -> Iterator[Finding]:
        if self.causal:
            yield self._refused(
                "tile_q", f"causal needs lqp/num_q_tiles = lkp: {self.tile_q} is not {self.lkp}",
                f"Causal masking requires tile_size_q == lkp, got tile_size_q={self.tile_q}, lkp={self.lkp}",
            )  # fmt: skip
        else:
            yield self._measured(
                "tile_q", f"lqp/num_q_tiles = {self.tile_q} and lkp = {self.lkp}: only equal ones worked; "
                "smaller ones hung, larger ones do not fit L1",
                TIMEOUT if self.tile_q < self.lkp else NO_PLACEMENT,
            )  # fmt: skip

    def _temporal(self, device: Device) -> Iterator[Finding | None]:
        group = self.heads // max(1, self.kv_heads)
        yield self._multiple("lk", self.lk, "lkp", self.lkp)
        yield herd(device, self.columns, device.core_rows, names=("2 * heads/kv_heads", "rows"))
        if not self.causal:
            yield self._refused("causal", "temporal-causal is causal only", "")
        if self.num_q_tiles // 2 != device.core_rows:
            yield self._refused(
                "herd_size", f"herd rows = num_q_tiles/2 = {self.num_q_tiles // 2} must be {device.core_rows}",
                f"herd rows = num_q_tiles / (2*q_tiles_per_core) = {self.num_q_tiles // 2}, must be {device.core_rows}",
            )  # fmt: skip
        if self.causal and self.tile_q != self.lkp:
            yield from self._tile_q()
        rounds = self.lq // self.lqp
        if rounds > TEMPORAL_ROUNDS and group != 3:
            yield Finding(
                severity="error",
                code="rounds",
                message=f"{rounds} rounds of {self.lqp} queries with {group} query heads a KV head; past "
                f"{TEMPORAL_ROUNDS} rounds only 3 are mapped",
                diagnostic="NotImplementedError",
                limit=f"lq/lqp <= {TEMPORAL_ROUNDS} or heads/kv_heads = 3",
                source=TEMPORAL,
                remedy="use the head-first kernel",
            )

    def _refused(self, code: str, message: str, diagnostic: str) -> Finding:
        return Finding(
            severity="error", code=code, message=message, diagnostic=diagnostic or None, source=BUILDERS[self.variant]
        )

    def _measured(self, code: str, message: str, diagnostic: str) -> Finding:
        return Finding(severity="error", code=code, message=message, diagnostic=diagnostic, source=PAGE, certain=False)

    def choices(self, device: Device) -> Mapping[str, Sequence[Value]]:
        """Only what was seen to work: the shipped tiling of the head_dim and its one variation (8 Q tiles, one head)."""
        _, lkp, tiles, unroll, dv_tile = _tiling(self.variant, self.head_dim)
        return {
            "variant": ("head-first", "seq-first", "temporal"),
            "lqp": (256, 512),
            "lkp": (lkp,),
            "dv_tile": (dv_tile or lkp,),
            "num_q_tiles": (tiles, 8),
            "num_cascade_stages": (device.core_rows,),
            "heads_per_unroll": (unroll, 1),
        }


def resolve(extents: tuple[int, ...], given: Settings, device: Device) -> Attention:
    """The one tiling upstream ships for a head_dim: 64 and 128 by head_dim 64/128 with lkp 64, 256 with lkp 32."""
    if len(extents) not in {2, 5}:
        raise UnknownKernel(
            "flash_attention takes lq x lk, or lq x lk x heads x kv_heads x head_dim, "
            f"not {len(extents)} extents: {'x'.join(map(str, extents))}"
        )
    lq, lk, *rest = extents
    heads = given.integer("heads", rest[0] if rest else 32)
    kv_heads = given.integer("kv_heads", rest[1] if rest else heads)
    head_dim = given.integer("head_dim", rest[2] if rest else 64)
    variant = given.word("variant", "seq-first" if head_dim <= 64 else "head-first", tuple(BUILDERS))
    causal = given.flag("causal", lq == lk)
    lqp, lkp, tiles, unroll, dv_tile = _tiling(variant, head_dim)
    lqp = given.integer("lqp", lqp)
    tiles = given.integer("num_q_tiles", tiles)
    unroll = given.integer("heads_per_unroll", unroll if heads % 2 == 0 else 1)
    lkp = given.integer("lkp", lkp)
    return Attention(
        lq, lk, heads, kv_heads, head_dim, variant, causal, given.integer("window", 0, least=0), lqp, lkp,
        given.integer("dv_tile", dv_tile if dv_tile else lkp), tiles,
        given.integer("num_cascade_stages", device.core_rows), unroll,
        given.integer("stack_bytes", device.stack_bytes),
    )  # fmt: skip


def _tiling(variant: str, head_dim: int) -> tuple[int, int, int, int, int]:
    """lqp, lkp, num_q_tiles, heads_per_unroll, dv_tile (0: as lkp). From fa_headfirst.py and fa_temporal.py."""
    if variant == "temporal":
        return 256, 32, 8, 1, head_dim
    if head_dim >= 256:
        return 256, 32, 8, 1, 128
    return 256, 64, 4, 2, 0
