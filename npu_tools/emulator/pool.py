"""The levels of memory, and the host bytes that all buffers of a run take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npu_tools.emulator.types import Fault

if TYPE_CHECKING:
    from npu_tools.emulator.journal import Journal

LEVELS = {0: "L3", 1: "L2", 2: "L1"}


@dataclass(slots=True)
class Pool:
    """The bytes alive and their limit."""

    limit: int
    live: int = 0
    peak: int = 0
    journal: Journal | None = None
    """What happens to memory is noted here, while somebody wants to know."""

    def take(self, count: int, what: str) -> None:
        """Account for `count` more bytes.

        Raises:
            Fault: that is more than the limit.
        """
        if self.live + count > self.limit:
            raise Fault(
                "memory-limit",
                f"{what} takes {count:,} bytes on top of {self.live:,} alive, over the limit of {self.limit:,}",
                "run a smaller shape, free buffers earlier (memref.dealloc), or raise the memory limit (--memory-mb on the command line, memory_mb over MCP, max_bytes in Python)",
            )
        self.live += count
        self.peak = max(self.peak, self.live)

    def give(self, count: int) -> None:
        """Account for `count` bytes fewer."""
        self.live -= count
