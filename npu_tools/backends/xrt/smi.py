"""What xrt-smi says, read from its JSON or from either form of its text.

The generation is told by the Architecture column or the PCI id, never by the product's name: mlir-air's own probe looks
for name substrings, finds npu1 in "RyzenAI-npu10", and knows no Gorgon Point (Xilinx/mlir-air python/air/backend/xrt.py).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from npu_tools.backends.xrt.toolchain import PROBE_S, Toolchain
from npu_tools.process import Ended, run_child

Target = Literal["npu1", "npu2"]
ARCHITECTURES: dict[str, Target] = {"aie2": "npu1", "aie2p": "npu2"}
PCI: dict[str, Target] = {"1502": "npu1", "17f0": "npu2"}
"""PCI device id → compile target (amd/xdna-driver drivers/accel/amdxdna/amdxdna_pci_drv.c). Others are newer and unknown
to mlir-air."""
_NAMES: tuple[tuple[str, Target], ...] = (
    (r"\bnpu1(?!\d)|phoenix|hawk", "npu1"),
    (r"\bnpu[456](?!\d)|strix|krackan|gorgon", "npu2"),
)
_NUMBER = re.compile(r"\s*:\s*(.+?)\s*$")
_OLD_ROW = re.compile(r"^\s*\[([0-9a-fA-F:.]+)\]\s*:\s*(\S.*?)\s*$")
_ROW = re.compile(r"^\s*\|?\s*\[([0-9a-fA-F:.]+)\]\s*\|\s*([^|]*?)\s*(?:\|\s*([^|]*?)\s*)?(?:\|\s*([^|]*?)\s*)?\|?\s*$")


@dataclass(frozen=True, slots=True)
class SmiDevice:
    """One NPU as xrt-smi lists it; empty where it says nothing."""

    bdf: str
    name: str
    architecture: str = ""
    topology: str = ""
    firmware: str = ""


@dataclass(frozen=True, slots=True)
class SmiReport:
    """`xrt-smi examine`."""

    xrt: str = ""
    branch: str = ""
    driver: str = ""
    devices: tuple[SmiDevice, ...] = ()


@dataclass(frozen=True, slots=True)
class Platform:
    """`xrt-smi examine -r platform`: the power mode and how many columns there are."""

    name: str = ""
    power_mode: str = ""
    columns: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """A hardware context somebody holds on the NPU."""

    pid: int
    process: str
    context: str
    status: str
    errors: int
    columns: int


def target_of(architecture: str = "", pci_id: str = "", name: str = "") -> Target | None:
    """The compile target: by architecture, else by PCI id, else by a whole word of the name; None when all are unknown."""
    known = ARCHITECTURES.get(architecture.strip().lower().replace("_", "").replace("-", ""))
    if known is not None:
        return known
    if pci_id:
        return PCI.get(pci_id.lower().removeprefix("0x"))
    for pattern, target in _NAMES:
        if re.search(pattern, name, re.IGNORECASE):
            return target
    return None


def examine(smi: Path, toolchain: Toolchain) -> tuple[SmiReport | None, Ended]:
    """`xrt-smi examine`: by JSON where it writes some, else from its text; None where it failed or hung."""
    document, ended = _json(smi, toolchain, "examine")
    if document is not None:
        return read_json(document), ended
    if ended.state in ("timeout", "missing"):
        return None, ended
    ended = run_child([str(smi), "examine"], timeout_s=PROBE_S, environment=toolchain.environment)
    return (read_text(ended.out) if ended.ok else None), ended


def platform(smi: Path, toolchain: Toolchain, bdf: str) -> tuple[Platform | None, Ended]:
    """`xrt-smi examine -r platform`."""
    document, ended = _json(smi, toolchain, "examine", "-d", bdf, "-r", "platform")
    for found in _all(document, "platforms"):
        for each in _items(found):
            static, status = _mapping(each.get("static_region")), _mapping(each.get("status"))
            columns = _text(static, "total_columns")
            return Platform(_text(static, "name"), _text(status, "power_mode"), columns), ended
    return None, ended


def contexts(smi: Path, toolchain: Toolchain, bdf: str) -> tuple[list[Context] | None, Ended]:
    """`xrt-smi examine -r aie-partitions`: who holds hardware contexts. None where it could not be asked."""
    document, ended = _json(smi, toolchain, "examine", "-d", bdf, "-r", "aie-partitions")
    if document is None:
        return None, ended
    found: list[Context] = []
    for partitions in _all(document, "partitions"):
        for partition in _items(partitions):
            for one in _items(partition.get("hw_contexts")):
                found.append(
                    Context(
                        _whole(one, "pid"), _text(one, "process_name"), _text(one, "context_id"), _text(one, "status"),
                        _whole(one, "errors"), _whole(partition, "num_cols"),
                    )
                )  # fmt: skip
    return found, ended


def read_json(document: Mapping[str, Any]) -> SmiReport:
    """The report in a JSON document; `host` is at the root or under `system`, and every value may be a string."""
    host = _mapping(next(_all(document, "host"), None))
    xrt = _mapping(host.get("xrt"))
    drivers = _items(xrt.get("drivers"))
    named = next((one for one in drivers if "xdna" in _text(one, "name").lower()), drivers[0] if drivers else {})
    devices = tuple(
        SmiDevice(
            _text(one, "bdf"), _text(one, "name"), _text(one, "aie_architecture_version"), _text(one, "aie_topology"),
            _text(one, "firmware_version"),
        )
        for one in _items(host.get("devices"))
        if _text(one, "device_class") in ("", "ryzen")
    )  # fmt: skip
    driver = _text(named, "version")
    if driver in ("", "unknown", "N/A"):  # an in-tree driver has the kernel's version
        driver = _text(_mapping(host.get("os")), "release")
    return SmiReport(_text(xrt, "version"), _text(xrt, "branch"), driver, devices)


def read_text(text: str) -> SmiReport:
    """The report in the text: the table of today, or the two-column list of older releases."""
    fields: dict[str, str] = {}
    devices: list[SmiDevice] = []
    for line in text.splitlines():
        row = _ROW.match(line) if "|" in line else None
        old = _OLD_ROW.match(line)
        if row is not None:
            devices.append(SmiDevice(*(part or "" for part in row.groups())))
        elif old is not None:
            devices.append(SmiDevice(old.group(1), old.group(2)))
        else:
            name, _, _rest = line.partition(":")
            value = _NUMBER.match(line[len(name) :])
            if value is not None:
                fields.setdefault(name.strip().lower(), value.group(1))
    firmware = fields.get("npu firmware version", "")
    known = tuple(SmiDevice(one.bdf, one.name, one.architecture, one.topology, firmware) for one in devices)
    driver = fields.get("amdxdna version", fields.get("amdxdna", ""))
    return SmiReport(fields.get("version", ""), fields.get("branch", ""), driver.split(",")[0].strip(), known)


def _json(smi: Path, toolchain: Toolchain, *arguments: str) -> tuple[dict[str, Any] | None, Ended]:
    try:
        return _json_in_file(smi, toolchain, *arguments)
    except OSError as error:  # no room for its file
        return None, Ended("missing", None, "", str(error), 0.0)


def _json_in_file(smi: Path, toolchain: Toolchain, *arguments: str) -> tuple[dict[str, Any] | None, Ended]:
    with tempfile.TemporaryDirectory(prefix="herdbook-") as folder:
        # A format needs an output file, and a file that exists is refused without --force (XBHelpMenus.cpp).
        target = Path(folder) / "report.json"
        command = [str(smi), *arguments, "-f", "JSON", "-o", str(target), "--force"]
        ended = run_child(command, timeout_s=PROBE_S, environment=toolchain.environment)
        try:
            document = json.loads(target.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError):
            return None, ended
        return (cast("dict[str, Any]", document) if isinstance(document, dict) else None), ended


def _all(document: object, key: str) -> Iterator[object]:
    """Every value under `key`, at any depth, outermost first."""
    if isinstance(document, dict):
        mapping = cast("dict[str, Any]", document)
        if key in mapping:
            yield mapping[key]
        for value in mapping.values():
            yield from _all(value, key)
    elif isinstance(document, list):
        for value in cast("list[Any]", document):
            yield from _all(value, key)


def _items(value: object) -> list[dict[str, Any]]:
    return (
        [cast("dict[str, Any]", one) for one in cast("list[Any]", value) if isinstance(one, dict)]
        if isinstance(value, list)
        else []
    )


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(mapping: Mapping[str, Any], key: str) -> str:
    value = mapping.get(key, "")
    return "" if value in (None, "N/A", "n/a") else str(value).strip()


def _whole(mapping: Mapping[str, Any], key: str) -> int:
    text = _text(mapping, key)
    return int(text) if text.isdecimal() else 0
