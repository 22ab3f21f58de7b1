"""What a figure must be kept with: device, modes, versions, load. Without it a time cannot be compared with another.

Upstream's nightly runs record the same (Xilinx/mlir-air .github/workflows/nightlyPerfBenchmark.yml): one model stepped from
42.5 to 64.1 tokens a second when only the host's ACPI profile changed.
"""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from npu_tools.backends.xrt.machine import Machine, probe
from npu_tools.backends.xrt.toolchain import Toolchain, identify

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class EnvironmentRecord:
    """The machine and its tools when something was measured. What could not be told is "unknown", never guessed."""

    taken_at: str
    device: str
    product: str
    architecture: str
    target: str
    firmware: str
    driver: str
    xrt: str
    power_mode: str
    platform_profile: str
    kernel: str
    processor: str
    load_average: tuple[float, ...]
    memory_free_mb: int
    packages: dict[str, str]
    tools: str
    """Digest of the toolchain's identity."""
    context_length: int | None = None
    contexts_of_others: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether nothing a comparison needs is unknown."""
        needed = (self.device, self.firmware, self.driver, self.xrt, self.power_mode, self.platform_profile)
        return UNKNOWN not in needed and "none" not in self.packages.values()

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {**asdict(self), "complete": self.complete}


def record(
    toolchain: Toolchain,
    *,
    machine: Machine | None = None,
    context_length: int | None = None,
    own: Collection[int] = (),
) -> EnvironmentRecord:
    """The environment now. `own`: processes of the caller, whose contexts are nobody else's."""
    found = machine or probe(toolchain, load_pyxrt=False)
    others = None if found.contexts is None else [one for one in found.contexts if one.pid not in own]
    npu, identity = found.npu, identify(toolchain)
    notes: list[str] = []
    if found.platform_profile not in ("", "performance"):
        notes.append(
            f"the host's ACPI profile is {found.platform_profile}: the same kernel may be 1.5 x slower than in performance"
        )
    if npu is not None and npu.power_mode.lower() not in ("", "turbo"):
        notes.append(f"the NPU's power mode is {npu.power_mode}; published rows are of turbo")
    if others:
        notes.append(f"{len(others)} hardware contexts of other processes were on the NPU")
    return EnvironmentRecord(
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device=(npu.name if npu else "") or UNKNOWN,
        product=(npu.product if npu else "") or UNKNOWN,
        architecture=(npu.architecture if npu else "") or UNKNOWN,
        target=(npu.target if npu and npu.target else "") or UNKNOWN,
        firmware=(npu.firmware if npu else "") or UNKNOWN,
        driver=(npu.driver if npu else "") or UNKNOWN,
        xrt=found.xrt or UNKNOWN,
        power_mode=(npu.power_mode if npu else "") or UNKNOWN,
        platform_profile=found.platform_profile or UNKNOWN,
        kernel=found.kernel,
        processor=platform.processor() or platform.machine(),
        load_average=found.load,
        memory_free_mb=found.memory_free_mb,
        packages=identity.packages,
        tools=identity.digest,
        context_length=context_length,
        contexts_of_others=None if others is None else len(others),
        notes=tuple(notes),
    )
