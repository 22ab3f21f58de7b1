"""What a machine lacks for the real stack, line by line: passed, to be minded, or in the way; each with its fix.

    for line in checklist(toolchain): line.name, line.state, line.text, line.fix, line.lesson

On a machine without an NPU nothing is in the way: the emulator needs none of it, and the lines say what is not there.
With `wanted` (somebody means to run on the device now) what is missing is in the way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from npu_tools.backends.xrt.lock import SHELL_LOCK
from npu_tools.backends.xrt.machine import Machine, free_mb, probe
from npu_tools.backends.xrt.toolchain import (
    Interior,
    Toolchain,
    aie_include,
    inspect,
    known_releases,
    peano_folder,
    pinned,
    version_of,
)

State = Literal["pass", "warn", "fail"]
NEED_MB = 5_000
"""Free space for a deployment's artefacts: ELFs of 1 to 50 MB, and aiecc's temporaries."""
MEMLOCK_BYTES = 64 << 20
"""The driver maps a heap of 64 MB locked (Xilinx/mlir-air issue 1731)."""
MIN_KERNEL = (6, 10)
LLVM_LINK_BELOW = 23


@dataclass(frozen=True, slots=True)
class Line:
    """One line: what was looked at, how it is, what to do, which record is behind it."""

    name: str
    state: State
    text: str
    fix: str = ""
    lesson: str = ""


def checklist(
    toolchain: Toolchain, *, machine: Machine | None = None, wanted: bool = False, cache: Path | None = None
) -> list[Line]:
    """Every line, in the order in which they should be put right."""
    found = machine or probe(toolchain)
    interior = inspect(toolchain)
    pyxrt = found.pyxrt is not None and found.pyxrt.imported
    if not (wanted or found.npus or found.smi or pyxrt or toolchain.find("aircc")):
        text = "none found, and neither mlir-air nor XRT: programs run on the emulator"
        return [Line("NPU", "pass", text, ""), *_misset(toolchain, interior)]
    missing: State = "fail" if wanted or found.npus else "warn"
    lines = [
        *_device(found, wanted),
        *_driver(found, missing),
        *_xrt(found, toolchain, interior, missing),
        *_limits(found),
        *_compiler(toolchain, interior, "fail" if wanted else "warn"),
        *_modes(found),
        *_locks(found, toolchain),
    ]
    if cache is not None:
        free = free_mb(cache)
        low = free < NEED_MB
        lines.append(
            Line(
                "disk for artefacts", "warn" if low else "pass", f"{free} MB free", f"free {NEED_MB} MB" if low else ""
            )
        )
    return lines


def _misset(toolchain: Toolchain, interior: Interior) -> Iterator[Line]:
    """What somebody named that is not there, on a machine with nothing else: named, it was meant."""
    if not interior.ok:
        yield _no_python(interior, "warn")
    if toolchain.peano and not os.path.isdir(toolchain.peano):
        yield _no_peano_there(toolchain.peano)
    if toolchain.examples and not os.path.isdir(toolchain.examples):
        yield _no_sources(toolchain.examples, "warn")


def _no_python(interior: Interior, state: State) -> Line:
    fix = "set HERDBOOK_NPU_PYTHON to a Python that runs"
    return Line("Python of the toolchain", state, interior.problem, fix, "airtc-pyxrt-not-available")


def _no_peano_there(place: str) -> Line:
    text = f"{place} is no folder that can be read; upstream ignores it silently"
    return Line("PEANO_INSTALL_DIR", "warn", text, "correct or unset it", "airtc-peano-dir-ignored")


def _no_sources(place: str, state: State) -> Line:
    text, fix = f"{place} is no folder that can be read", "set HERDBOOK_MLIR_AIR to a clone of mlir-air"
    return Line("kernel sources", state, text, fix, "airtc-stale-object-flags")


def _device(machine: Machine, wanted: bool) -> Iterator[Line]:
    if not machine.npus:
        state: State = "fail" if wanted else "warn"
        text = "none found; programs run on the emulator"
        yield Line(
            "NPU",
            state,
            text,
            "a Ryzen AI machine, with the NPU enabled in the BIOS (IPU)",
            "xdna14-ipu-disabled-in-bios",
        )
        return
    for npu in machine.npus:
        known = ", ".join(
            part
            for part in (npu.name or npu.product, npu.architecture, npu.pci_id and f"{npu.pci_id}:{npu.revision}")
            if part
        )
        if npu.target is None:
            yield Line(
                "NPU",
                "fail",
                f"{known} at {npu.bdf}: a generation mlir-air does not know",
                "nothing here compiles for it yet",
                "airtc-npu10-substring-npu1",
            )
            continue
        yield Line("NPU", "pass", f"{known} at {npu.bdf} → {npu.target}")
        guess = upstream_guess(npu.name)
        if guess != npu.target and (npu.name or machine.smi):  # without driver and XRT there is no name to misread yet
            lesson = "airtc-gorgon-not-recognised" if "gorgon" in npu.name.lower() else "airtc-npu10-substring-npu1"
            yield Line(
                "generation", "warn", f"upstream's tools would take {npu.name!r} for {guess}; a program built for it computes nothing",
                f"Herdbook names {npu.target} itself; for upstream's own scripts: export AIR_TARGET_DEVICE={npu.target}", lesson,
            )  # fmt: skip
    if len({npu.target for npu in machine.npus}) > 1:
        yield Line("generation", "warn", "NPUs of two generations; XRT's device 0 is used", "")


def upstream_guess(name: str) -> str:
    """What mlir-air's own probe makes of a name: substrings, npu1's words first, npu1 when none fits (xrt.py NPU_MODELS)."""
    low = name.lower()
    for target, words in (("npu1", ("npu1", "phoenix")), ("npu2", ("npu4", "strix", "npu5", "npu6", "krackan"))):
        if any(word in low for word in words):
            return target
    return "npu1"


def _driver(machine: Machine, missing: State) -> Iterator[Line]:
    if machine.system != "Linux" or (not machine.npus and not machine.module_loaded):
        return
    release = re.match(r"(\d+)\.(\d+)", machine.kernel)
    if release and tuple(map(int, release.groups())) < MIN_KERNEL:
        yield Line(
            "kernel",
            "fail",
            f"{machine.kernel}: amdxdna needs 6.10 or later",
            "install a newer kernel (Ubuntu 24.04: the HWE one)",
            "aie3372-kernel-too-old",
        )
    else:
        yield Line("kernel", "pass", machine.kernel)
    if not machine.module_loaded:
        yield Line(
            "driver",
            "fail",
            "amdxdna is not loaded",
            "sudo modprobe amdxdna; then journalctl -k | grep -i amdxdna says why not",
            "xdna50-dkms-not-installed",
        )
        return
    npu = machine.npu
    yield Line(
        "driver", "pass", f"amdxdna {npu.driver if npu and npu.driver not in ('', 'amdxdna') else '(version not told)'}"
    )
    if not machine.nodes:
        yield Line(
            "device node",
            "fail",
            "no /dev/accel/accel*: the driver could not start the NPU",
            "power the machine off and on; reloading amdxdna does not help",
            "airtc-dev-accel-missing-power-cycle",
        )
    for node, usable in machine.nodes:
        fix = "sudo usermod -aG render $USER, a udev rule giving /dev/accel/* to render, and a new login"
        yield Line(
            "device node",
            "pass" if usable else "fail",
            node + ("" if usable else ": this user may not open it"),
            "" if usable else fix,
            "" if usable else "xdna-device-node-permission",
        )
    if npu is not None and machine.xrt:
        firmware = npu.firmware or "not told"
        state: State = "pass" if npu.firmware else "warn"
        yield Line(
            "firmware",
            state,
            firmware,
            "" if npu.firmware else "a driver older than XRT does not tell; install both from one release",
            "" if npu.firmware else "xrt8145-firmware-na-examine",
        )
    if machine.tdr_ms is None:
        yield Line(
            "watchdog",
            "warn",
            "this driver has no watchdog that can be seen: a hang on the device may never end",
            "update amdxdna",
            "xdna-tdr-timeout-param",
        )
    elif machine.tdr_ms == 0:
        yield Line(
            "watchdog",
            "warn",
            "tdr_timeout_ms is 0: a hang on the device never ends",
            "remove that module option",
            "xdna-tdr-timeout-param",
        )
    else:
        yield Line("watchdog", "pass", f"{machine.tdr_ms} ms: a dispatch must show progress within that")


def _xrt(machine: Machine, toolchain: Toolchain, interior: Interior, missing: State) -> Iterator[Line]:
    if not machine.smi:
        yield Line(
            "XRT",
            missing,
            "xrt-smi was not found",
            "install XRT and the amdxdna plugin, then source /opt/xilinx/xrt/setup.sh",
            "xrt-setup-sh-invalid-location",
        )
    elif machine.smi_problem:
        yield Line(
            "XRT",
            "fail",
            machine.smi_problem,
            "xrt-smi examine by hand; one that hangs means a wedged NPU",
            "airtc-exec-cmd-err5-wedged",
        )
    elif machine.npus and machine.listed == 0:
        yield Line(
            "XRT",
            "fail",
            f"{machine.xrt}: 0 devices found, though one is on the bus",
            "install the plugin xrt_plugin*-amdxdna of the same release",
            "aie2615-zero-devices-after-fresh-install",
        )
    else:
        yield Line("XRT", "pass", machine.xrt or "version not told")
    pyxrt = machine.pyxrt
    if pyxrt is None:
        return
    tags = [tag for path in interior.pyxrt_files if (tag := python_tag(path))]
    here = re.match(r"(\d+)\.(\d+)", interior.python)
    minor = "".join(here.groups()) if here else ""
    if not interior.ok:
        yield _no_python(interior, "fail")
    elif tags and minor and minor not in tags:
        text = f"built for Python {', '.join(f'{tag[0]}.{tag[1:]}' for tag in sorted(set(tags)))}, the toolchain's is {interior.python}"
        yield Line(
            "pyxrt",
            "fail",
            text,
            "use that Python (HERDBOOK_NPU_PYTHON), or rebuild XRT with -DPython3_EXECUTABLE in a clean folder",
            "xrt5611-pyxrt-undefined-symbol",
        )
    elif not pyxrt.imported and "No module named" in pyxrt.error:
        yield Line(
            "pyxrt",
            missing,
            f"{toolchain.python} has none",
            "source /opt/xilinx/xrt/setup.sh before Herdbook starts, or set HERDBOOK_NPU_PYTHON",
            "airtc-pyxrt-not-available",
        )
    elif not pyxrt.imported:
        yield Line(
            "pyxrt",
            "fail",
            pyxrt.error,
            "a pyxrt for this Python, of the installed XRT",
            "xrt5611-pyxrt-undefined-symbol",
        )
    elif pyxrt.error:
        yield Line(
            "pyxrt",
            "fail" if machine.npus else "warn",
            f"loads, but opening the device says: {pyxrt.error}",
            "the lines above; memlock and the device node are usual causes",
            "xdna903-memlock-mmap-eagain",
        )
    elif not (pyxrt.elf and pyxrt.ext):
        yield Line(
            "pyxrt",
            "warn",
            "loads xclbin only: this XRT has no ELF loading",
            "update XRT; programs of several launches need ELF",
            "airtc-elf-load-failed",
        )
    else:
        yield Line("pyxrt", "pass", pyxrt.file)


def python_tag(path: str) -> str:
    """The CPython an extension was built for, as "312"; "" where its name does not say."""
    found = re.search(r"cpython-(\d{2,3})|\.cp(\d{2,3})-", Path(path).name)
    return next(part for part in found.groups() if part) if found else ""


def _limits(machine: Machine) -> Iterator[Line]:
    if not machine.npus or not machine.memlock_known:
        return
    if machine.memlock_bytes is None:
        yield Line("memlock", "pass", "unlimited")
        return
    text = f"{machine.memlock_bytes // 1024} KB can be locked, {MEMLOCK_BYTES >> 20} MB and more are needed"
    enough = machine.memlock_bytes >= 16 * MEMLOCK_BYTES
    fix = "sudo prlimit -lunlimited --pid $$ in this shell; for good: memlock unlimited in /etc/security/limits.conf"
    yield Line(
        "memlock",
        "warn" if enough else "fail",
        text if not enough else f"{machine.memlock_bytes >> 20} MB; weights may need more",
        fix,
        "xdna903-memlock-mmap-eagain",
    )


def _compiler(toolchain: Toolchain, interior: Interior, missing: State) -> Iterator[Line]:
    air, aie, version = (interior.packages.get(name) for name in ("mlir_air", "mlir_aie", "llvm-aie"))
    aircc = toolchain.find("aircc")
    if aircc is None:
        yield Line(
            "mlir-air",
            missing,
            "not found",
            "pip install 'mlir_air[aie]' with upstream's three find-links pages (docs/first-hour.md)",
            "airtc-pip-three-find-links",
        )
    else:
        yield Line("mlir-air", "pass", f"{air or 'a source build'} ({aircc})")
    origin, folder = interior.modules.get("air", ""), interior.folders.get("mlir_air", "")
    if folder and origin and not Path(origin).is_relative_to(folder):
        yield Line(
            "mlir-air",
            "warn",
            f"'import air' finds {origin}, not the wheel's: upstream's scripts will fail",
            "uninstall the other package named air, or take it off PYTHONPATH",
            "airtc-win-shadowed-install",
        )
    if toolchain.find("aiecc") is None and toolchain.find("aiecc.py") is None:
        yield Line("mlir-aie", missing, "aiecc is not on PATH", "put mlir_aie/bin on PATH", "airtc-aiecc-not-in-path")
    else:
        yield Line("mlir-aie", "pass", aie or "a source build")
    if aircc is not None and aie_include(toolchain) is None:
        yield Line(
            "AIE API headers",
            missing,
            "aie_api/aie.hpp was not found",
            "put mlir_aie/bin on PATH, or set MLIR_AIE_INSTALL_DIR",
            "airtc-aie-api-include-not-found",
        )
    yield from _peano(toolchain, version, missing)
    link = toolchain.find("llvm-link")
    said = version_of(link, toolchain) if link is not None else None
    major = int(said.split(".")[0]) if said else None
    if major is not None and major >= LLVM_LINK_BELOW:
        yield Line(
            "llvm-link",
            "warn",
            f"{said}: from LLVM {LLVM_LINK_BELOW} on Peano refuses what it merges (Q4NX fused decode alone needs it)",
            "put an llvm-link of LLVM 21 first on PATH",
            "air1783-llvm-link-pre23",
        )
    elif major is not None and version and version.split(".")[0].isdigit() and major != int(version.split(".")[0]):
        yield Line(
            "llvm-link",
            "warn",
            f"{said}, Peano is LLVM {version.split('.')[0]}: an older one merged attention silently wrong (Q4NX fused decode alone needs it)",
            "put an llvm-link of Peano's own LLVM first on PATH",
            "airtc-llvm-link-old-fluent-garbage",
        )
    if not toolchain.examples:
        yield Line(
            "kernel sources",
            missing,
            "HERDBOOK_MLIR_AIR is not set: kernels that link C++ objects cannot be compiled",
            "clone mlir-air at the installed version and set it to that folder",
            "airtc-stale-object-flags",
        )
    elif not os.path.isdir(toolchain.examples):
        yield _no_sources(toolchain.examples, "fail")
    else:
        yield Line("kernel sources", "pass", toolchain.examples)


def _peano(toolchain: Toolchain, version: str | None, missing: State) -> Iterator[Line]:
    folder, good = peano_folder(toolchain), pinned("llvm-aie")
    pin = good.version if good else ""
    if toolchain.peano and not os.path.isdir(toolchain.peano):
        yield _no_peano_there(toolchain.peano)
    if folder is None:
        yield Line(
            "Peano",
            missing,
            "llvm-aie was not found; upstream falls back to Chess, which needs a Vitis licence",
            f"pip install 'llvm-aie=={pin}' from its nightly page",
            "airtc-peano-missing-chess-fallback",
        )
        return
    if version is None:
        yield Line(
            "Peano",
            "warn",
            f"{folder}: its version cannot be read",
            f"the pinned wheel: llvm-aie {pin}",
            "peano-dist-info-version-unreadable",
        )
        return
    for known in known_releases("llvm-aie", version):
        if known.state == "bad":
            yield Line(
                "Peano",
                "fail",
                f"{version}: {known.why}",
                f"pip install 'llvm-aie=={pin}'; gate every kernel again",
                "air1980-llvm22-stack-frame",
            )
            return
        if known.state == "doubtful":
            yield Line(
                "Peano",
                "warn",
                f"{version}: {known.why}",
                f"pip install 'llvm-aie=={pin}', or gate every kernel before trusting one",
                "aie2456-nightly-breaks-examples",
            )
            return
        yield Line("Peano", "pass", f"{version}, the release upstream's CI pins")
        return
    yield Line(
        "Peano",
        "warn",
        f"{version} is not the release upstream's CI pins ({pin}); nothing is known of it",
        f"pip install 'llvm-aie=={pin}', or gate every kernel before trusting one",
        "tx22-llvm-aie-not-upgraded",
    )


def _modes(machine: Machine) -> Iterator[Line]:
    npu = machine.npu
    if npu is None:
        return
    if npu.power_mode:
        turbo = npu.power_mode.lower() in ("turbo", "performance")
        fix = f"sudo xrt-smi configure -d {npu.bdf} --pmode turbo"
        yield Line(
            "power mode",
            "pass" if turbo else "warn",
            npu.power_mode + ("" if turbo else ": figures will be below published ones"),
            "" if turbo else fix,
            "" if turbo else "turbo-pmode-decode-speed",
        )
    if machine.platform_profile:
        fast = machine.platform_profile == "performance"
        text = machine.platform_profile + ("" if fast else ": one model decoded 1.5 x slower than in performance")
        fix = "echo performance | sudo tee /sys/firmware/acpi/platform_profile"
        yield Line(
            "platform profile",
            "pass" if fast else "warn",
            text,
            "" if fast else fix,
            "" if fast else "airtc-perf-acpi-profile",
        )
    if machine.contexts is not None:
        others = ", ".join(sorted({f"{one.process} ({one.pid})" for one in machine.contexts}))
        text = f"{len(machine.contexts)} held by {others}" if machine.contexts else "none held"
        yield Line(
            "hardware contexts",
            "warn" if machine.contexts else "pass",
            text,
            "end those processes before measuring" if machine.contexts else "",
            "xdna-hwctx-limit" if machine.contexts else "",
        )


def _locks(machine: Machine, toolchain: Toolchain) -> Iterator[Line]:
    for lock in machine.locks:
        holders = ", ".join(f"{one.name} ({one.pid})" for one in lock.holders) or "somebody this user cannot see"
        name = "job lock" if lock.path.endswith(SHELL_LOCK) else "NPU lock"
        if lock.state == "held":
            yield Line(
                name,
                "warn",
                f"{lock.path} is held by {holders}",
                "let that process end; runs wait for it",
                "npu-lock-timeout",
            )
        elif lock.state == "not writable":
            yield Line(
                name,
                "fail",
                f"{lock.path} belongs to another user and cannot be locked",
                "have its owner remove it, or make it writable for all",
                "airtc-lock-tmpdir-differs",
            )
        elif machine.npus:
            yield Line(name, "pass", f"{lock.path} is free")
    if machine.npus and machine.system == "Linux" and Path(toolchain.temp) != Path("/tmp"):  # noqa: S108  (upstream's path)
        yield Line(
            "temporary folder",
            "warn",
            f"it is {toolchain.temp}, while upstream's LLM runtime always locks /tmp/npu.lock",
            "Herdbook takes both locks; upstream's own tools do not exclude each other then",
            "airtc-lock-tmpdir-differs",
        )
