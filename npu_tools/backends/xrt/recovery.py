"""After a hang: is the NPU still there, does it answer, and what should the person do.

The driver's own watchdog stops a context that makes no progress for 2 s and, where the firmware no longer answers,
power-cycles the NPU, at most once in 60 s (amd/xdna-driver drivers/accel/amdxdna/aie2_ctx.c, aie2_pci.h). An older driver has
neither: a wait then hangs for ever, and only the process can be killed. Reloading the module helps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from npu_tools.backends.xrt import smi
from npu_tools.backends.xrt.toolchain import Toolchain
from npu_tools.process import run_child

RESET_S = 60
"""Seconds between two resets by the driver: AIE2_HW_RESET_MIN_INTERVAL_MS."""
_LOG_S = 10.0
_LOG_LINES = 40

Health = Literal["gone", "silent", "lists", "unknown"]


@dataclass(frozen=True, slots=True)
class Aftermath:
    """How the NPU is after a hang: `gone` (no device node), `silent` (xrt-smi does not answer), `lists` (it is listed)."""

    health: Health
    watchdog_ms: int | None
    kernel_log: tuple[str, ...]

    @property
    def advice(self) -> str:
        """What to do, in order."""
        match self.health:
            case "gone":
                return "the device node is gone, which only a power cycle of the machine brings back; reloading amdxdna does not"
            case "silent":
                return f"xrt-smi does not answer; wait {RESET_S} s for the driver's reset, try once, then power the machine off and on"
            case "lists":
                watchdog = "" if self.watchdog_ms else ", and this driver has no watchdog (update amdxdna)"
                return f"the NPU is still listed{watchdog}; wait {RESET_S} s, run 'herdbook doctor', then try once"
            case "unknown":
                return f"wait {RESET_S} s, then try once; if it hangs again, power the machine off and on"


def after_hang(toolchain: Toolchain) -> str:
    """The advice after a hang, from how the NPU is now."""
    return look_after(toolchain).advice


def look_after(toolchain: Toolchain) -> Aftermath:
    """How the NPU is: its node, whether xrt-smi lists it, what the kernel says. At most about half a minute."""
    accel = toolchain.at("dev", "accel")
    tdr = toolchain.at("sys", "module", "amdxdna", "parameters", "tdr_timeout_ms")
    try:
        watchdog: int | None = int(tdr.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        watchdog = None
    log = kernel_log(toolchain)
    if toolchain.at("dev").is_dir() and toolchain.at("sys").is_dir() and not any(accel.glob("accel*")):
        return Aftermath("gone", watchdog, log)
    tool = toolchain.find("xrt-smi")
    if tool is None:
        return Aftermath("unknown", watchdog, log)
    report, ended = smi.examine(tool, toolchain)
    if report is None:
        return Aftermath("silent" if ended.state == "timeout" else "unknown", watchdog, log)
    return Aftermath("lists" if report.devices else "gone", watchdog, log)


def kernel_log(toolchain: Toolchain) -> tuple[str, ...]:
    """The kernel's latest lines about amdxdna, where this user may read them; as upstream's CI collects them."""
    journal = toolchain.find("journalctl")
    if journal is None:
        return ()
    ended = run_child(
        [str(journal), "-k", "--no-pager", "-n", "2000"], timeout_s=_LOG_S, environment=toolchain.environment
    )
    found = [line.strip() for line in ended.out.splitlines() if "amdxdna" in line.lower() or "aie2_" in line]
    return tuple(found[-_LOG_LINES:])
