"""The levels of memory, and the host bytes that all buffers of a run take."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npu_tools.emulator.types import Array, Fault

if TYPE_CHECKING:
    from npu_tools.emulator.journal import Journal

LEVELS = {0: "L3", 1: "L2", 2: "L1"}
KEPT_BYTES = 256 << 20
"""Host bytes of operands kept for later products at most."""


@dataclass(slots=True)
class Pool:
    """The bytes alive and their limit."""

    limit: int
    live: int = 0
    peak: int = 0
    journal: Journal | None = None
    """What happens to memory is noted here, while somebody wants to know."""
    kept: dict[Any, Array] = field(default_factory=dict[Any, Array])
    """Arrays made of what nothing ever writes, by where that lies."""
    kept_bytes: int = 0

    def take(self, count: int, what: str) -> None:
        """Account for `count` more bytes.

        Raises:
            Fault: that is more than the limit.
        """
        if self.live + count > self.limit:
            self.forget()
        if self.live + count > self.limit:
            raise Fault(
                "memory-limit",
                f"{what} takes {count:,} bytes on top of {self.live:,} alive, over the limit of {self.limit:,}",
                "run a smaller shape, free buffers earlier (memref.dealloc), or raise the memory limit (--memory-mb on the command line, memory_mb over MCP, max_bytes in Python)",
            )
        self.live += count
        self.peak = max(self.peak, self.live)

    def keep(self, key: Any, array: Array) -> None:
        """Keep an array for later, if there is room."""
        if self.kept_bytes + array.nbytes <= KEPT_BYTES and self.live + array.nbytes <= self.limit:
            self.kept[key] = array
            self.kept_bytes += array.nbytes
            self.take(array.nbytes, "what is kept")

    def forget(self) -> None:
        """Let go of what is kept."""
        self.kept.clear()
        self.live -= self.kept_bytes
        self.kept_bytes = 0

    def give(self, count: int) -> None:
        """Account for `count` bytes fewer."""
        self.live -= count
