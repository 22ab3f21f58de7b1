"""What a run counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class KernelCount:
    """Calls of one external kernel, over all tiles, and the multiply-accumulates they make (0 where unknown)."""

    calls: int = 0
    macs: int = 0


@dataclass(slots=True)
class Counters:
    """Counts over all lanes: a step of 32 tiles in lockstep moves 32 times the bytes of one.

    `dma_bits` by (from level, to level); `channel_bits` by (channel, level) for puts and (level, channel) for gets.
    """

    instructions: int = 0
    dma_bits: dict[tuple[str, str], int] = field(default_factory=dict["tuple[str, str]", int])
    channel_bits: dict[tuple[str, str], int] = field(default_factory=dict["tuple[str, str]", int])
    kernels: dict[str, KernelCount] = field(default_factory=dict[str, KernelCount])
    channel_puts: dict[str, int] = field(default_factory=dict[str, int])
    channel_gets: dict[str, int] = field(default_factory=dict[str, int])
    launch_iterations: int = 0
    peak_bytes: int = 0
    """Most bytes of host memory that buffers took at once."""

    def copy(self) -> Counters:
        """The counts as they are now."""
        return Counters(
            self.instructions,
            dict(self.dma_bits),
            dict(self.channel_bits),
            {symbol: KernelCount(count.calls, count.macs) for symbol, count in self.kernels.items()},
            dict(self.channel_puts),
            dict(self.channel_gets),
            self.launch_iterations,
            self.peak_bytes,
        )

    def clear(self) -> None:
        """Count anew, in the same tables: lowered code holds on to them."""
        self.instructions = self.launch_iterations = self.peak_bytes = 0
        for table in (self.dma_bits, self.channel_bits, self.channel_puts, self.channel_gets):
            table.clear()
        for count in self.kernels.values():
            count.calls = count.macs = 0

    def as_dict(self) -> dict[str, Any]:
        """The counts as JSON-ready fields; bytes, not bits."""
        return {
            "instructions": self.instructions,
            "launch_iterations": self.launch_iterations,
            "peak_bytes": self.peak_bytes,
            "dma_bytes": {f"{a}->{b}": bits // 8 for (a, b), bits in sorted(self.dma_bits.items())},
            "channel_bytes": {f"{b}->{a}": bits // 8 for (a, b), bits in sorted(self.channel_bits.items())},
            "channel_puts": dict(sorted(self.channel_puts.items())),
            "channel_gets": dict(sorted(self.channel_gets.items())),
            "kernels": {
                symbol: {"calls": count.calls, "macs": count.macs} for symbol, count in sorted(self.kernels.items())
            },
        }
