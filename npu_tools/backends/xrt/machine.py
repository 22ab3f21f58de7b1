"""What this machine has of an NPU: device, generation, driver, firmware, modes, limits. Nothing here can hang.

    machine = probe(toolchain)
    machine.target            # "npu2", from the PCI id and the Architecture column; None where there is no NPU
    machine.npu.power_mode

Files are read; tools are asked in children with a time limit, side by side. What cannot be told is empty, with the
reason in `problems`.
"""

from __future__ import annotations

import os
import platform as this_platform
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from npu_tools.backends.xrt import smi
from npu_tools.backends.xrt.lock import LockState, look
from npu_tools.backends.xrt.smi import Context, SmiReport, Target, target_of
from npu_tools.backends.xrt.toolchain import PROBE_S, Toolchain, ask_python

AMD = "0x1022"
_REVISIONS = {"17f0:10": "Strix", "17f0:11": "Strix Halo", "17f0:20": "Krackan", "1502:00": "Phoenix or Hawk Point"}
_MEMLOCK = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Npu:
    """One NPU on the PCI bus or in xrt-smi's list. `target` is None for a generation mlir-air does not know."""

    bdf: str
    pci_id: str = ""
    revision: str = ""
    name: str = ""
    architecture: str = ""
    topology: str = ""
    firmware: str = ""
    driver: str = ""
    power_mode: str = ""
    columns: str = ""
    target: Target | None = None

    @property
    def product(self) -> str:
        """The family the PCI revision names (Gorgon Point shares one with Strix)."""
        return _REVISIONS.get(f"{self.pci_id}:{self.revision}", "")


@dataclass(frozen=True, slots=True)
class Pyxrt:
    """What importing pyxrt in a child gave."""

    imported: bool
    file: str = ""
    elf: bool = False
    ext: bool = False
    devices: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything the adapter wants to know of a machine."""

    system: str
    kernel: str
    npus: tuple[Npu, ...] = ()
    module_loaded: bool | None = None
    nodes: tuple[tuple[str, bool], ...] = ()
    """Device nodes, and whether this user may read and write each."""
    xrt: str = ""
    smi: str = ""
    smi_problem: str = ""
    listed: int | None = None
    """NPUs xrt-smi lists; None where it could not be asked."""
    platform_profile: str = ""
    tdr_ms: int | None = None
    memlock_bytes: int | None = None
    """None: unlimited, or not known (`memlock_known`)."""
    memlock_known: bool = False
    contexts: tuple[Context, ...] | None = None
    locks: tuple[LockState, ...] = ()
    pyxrt: Pyxrt | None = None
    memory_free_mb: int = 0
    load: tuple[float, ...] = ()
    problems: tuple[str, ...] = field(default=())

    @property
    def npu(self) -> Npu | None:
        """The NPU kernels run on: XRT's device 0."""
        return self.npus[0] if self.npus else None

    @property
    def target(self) -> Target | None:
        """The compile target of that NPU."""
        return self.npu.target if self.npu else None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def probe(toolchain: Toolchain, *, load_pyxrt: bool = True, ask_contexts: bool = True) -> Machine:
    """Look at everything, at most about `2 * PROBE_S` seconds."""
    tool = toolchain.find("xrt-smi")
    with ThreadPoolExecutor(max_workers=4) as pool:
        asked = pool.submit(smi.examine, tool, toolchain) if tool is not None else None
        loaded = pool.submit(_pyxrt, toolchain) if load_pyxrt else None
        locks = pool.submit(look, toolchain)
        on_bus = _on_bus(toolchain)
        report, problem = None, "xrt-smi was not found"
        if asked is not None:
            report, ended = asked.result()
            problem = "" if report is not None else f"xrt-smi examine: {ended.state}: {ended.text.strip()[-300:]}"
        npus = _merged(on_bus, report)
        held: list[Context] | None = None
        if tool is not None and npus and report is not None and report.devices:
            bdf = npus[0].bdf
            mode = pool.submit(smi.platform, tool, toolchain, bdf)
            partitions = pool.submit(smi.contexts, tool, toolchain, bdf) if ask_contexts else None
            said, _ = mode.result()
            if said is not None:
                npus = (_with_mode(npus[0], said), *npus[1:])
            held = partitions.result()[0] if partitions is not None else None
        pyxrt = loaded.result() if loaded is not None else None
        states = tuple(locks.result())
    memlock, known = _memlock(toolchain)
    return Machine(
        system=this_platform.system(),
        kernel=_line(toolchain.at("proc", "sys", "kernel", "osrelease")) or this_platform.release(),
        npus=npus,
        module_loaded=_module(toolchain),
        nodes=_nodes(toolchain),
        xrt=report.xrt if report is not None else "",
        smi=str(tool) if tool is not None else "",
        smi_problem=problem,
        listed=len(report.devices) if report is not None else None,
        platform_profile=_line(toolchain.at("sys", "firmware", "acpi", "platform_profile")),
        tdr_ms=_whole(_line(toolchain.at("sys", "module", "amdxdna", "parameters", "tdr_timeout_ms"))),
        memlock_bytes=memlock,
        memlock_known=known,
        contexts=tuple(held) if held is not None else None,
        locks=states,
        pyxrt=pyxrt,
        memory_free_mb=_memory_free_mb(),
        load=_load(),
    )


def free_mb(place: Path) -> int:
    """Free space where `place` is or will be, in MB (10^6 bytes)."""
    existing = next((each for each in (place, *place.parents) if os.path.exists(each)), Path.cwd())
    return shutil.disk_usage(existing).free // 1_000_000


def _on_bus(toolchain: Toolchain) -> tuple[Npu, ...]:
    """NPUs in sysfs: those amdxdna drives, else those with one of its PCI ids."""
    bus = toolchain.at("sys", "bus", "pci")
    found: dict[str, Npu] = {}
    for folder in sorted(_children(bus / "drivers" / "amdxdna")):
        if os.path.isfile(folder / "device"):
            found[folder.name] = _read_npu(folder, "amdxdna")
    for folder in sorted(_children(bus / "devices")):
        if folder.name in found or _line(folder / "vendor").lower() != AMD:
            continue
        if _line(folder / "device").lower().removeprefix("0x") in smi.PCI:
            found[folder.name] = _read_npu(folder, "")
    return tuple(found.values())


def _read_npu(folder: Path, driver: str) -> Npu:
    pci_id = _line(folder / "device").lower().removeprefix("0x")
    name = _line(folder / "vbnv")
    return Npu(
        bdf=folder.name,
        pci_id=pci_id,
        revision=_line(folder / "revision").lower().removeprefix("0x"),
        name=name,
        firmware=_line(folder / "fw_version"),
        driver=driver,
        target=target_of("", pci_id, name),
    )


def _merged(on_bus: tuple[Npu, ...], report: SmiReport | None) -> tuple[Npu, ...]:
    """Bus and xrt-smi as one list; the Architecture column decides where there is one."""
    from dataclasses import replace

    said = {one.bdf: one for one in report.devices} if report is not None else {}
    merged: list[Npu] = []
    for npu in on_bus:
        one = said.pop(npu.bdf, None)
        if one is None:
            merged.append(npu)
            continue
        merged.append(
            replace(
                npu, name=one.name or npu.name, architecture=one.architecture, topology=one.topology,
                firmware=one.firmware or npu.firmware, driver=report.driver if report is not None else npu.driver,
                target=target_of(one.architecture, npu.pci_id, one.name or npu.name),
            )
        )  # fmt: skip
    for one in said.values():
        target = target_of(one.architecture, "", one.name)
        driver = report.driver if report is not None else ""
        merged.append(
            Npu(one.bdf, "", "", one.name, one.architecture, one.topology, one.firmware, driver, "", "", target)
        )
    # XRT's device 0 is its first; NPUs only the bus knows come behind.
    listed = [one.bdf for one in report.devices] if report is not None else []
    return tuple(sorted(merged, key=lambda npu: listed.index(npu.bdf) if npu.bdf in listed else len(listed)))


def _with_mode(npu: Npu, said: smi.Platform) -> Npu:
    from dataclasses import replace

    return replace(npu, power_mode=said.power_mode, columns=said.columns)


def _pyxrt(toolchain: Toolchain) -> Pyxrt:
    ended, said = ask_python(toolchain, "device", timeout_s=PROBE_S)
    if not isinstance(said, dict):
        how = "it hung while pyxrt was imported or the device opened" if ended.state == "timeout" else ended.state
        return Pyxrt(False, error=f"{how}; {ended.err.strip()[-300:]}".strip("; "))
    answer = cast("dict[str, Any]", said)
    return Pyxrt(
        bool(answer["imported"]), str(answer["file"]), bool(answer["elf"]), bool(answer["ext"]), answer["devices"],
        str(answer["error"]),
    )  # fmt: skip


def _nodes(toolchain: Toolchain) -> tuple[tuple[str, bool], ...]:
    folder = toolchain.at("dev", "accel")
    return tuple(
        (str(node), os.access(node, os.R_OK | os.W_OK))
        for node in sorted(_children(folder))
        if node.name.startswith("accel")
    )


def _module(toolchain: Toolchain) -> bool | None:
    modules = toolchain.at("sys", "module")
    return os.path.isdir(modules / "amdxdna") if os.path.isdir(modules) else None


def _memlock(toolchain: Toolchain) -> tuple[int | None, bool]:
    try:
        text = toolchain.at("proc", "self", "limits").read_text(encoding="utf-8")
    except OSError:
        return None, False
    found = _MEMLOCK.search(text)
    if found is None:
        return None, False
    return (None, True) if found.group(1) == "unlimited" else (int(found.group(1)), True)


def _memory_free_mb() -> int:
    import psutil

    return psutil.virtual_memory().available // 1_000_000


def _load() -> tuple[float, ...]:
    import psutil

    return tuple(round(each, 2) for each in psutil.getloadavg())


def _children(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
