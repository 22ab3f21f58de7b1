"""Which records a caller wants: device, component, phase, kernel, model, versions, status, kind.

A record that says nothing of a dimension fits any value of it: silence is not a "no".

    Filters(device="strix", versions={"llvm-aie": "22.0.0.2026081201"}).admits(record)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kb.errors import KbError
from kb.records import Record

DEVICE_NAMES = {
    "npu1": ("npu1", "phoenix", "hawk point", "hawkpoint", "xdna1", "xdna", "aie2", "phx", "hpt", "1502"),
    "npu2": ("npu2", "npu4", "npu5", "npu6", "strix", "strix halo", "krackan", "gorgon point", "gorgon", "xdna2",
             "aie2p", "stx", "krk", "17f0"),
}  # fmt: skip
"""Compile target → what people call the devices it serves (toolchain facts: mlir-air xrt.py NPU_MODELS, xdna-driver)."""
_CONSTRAINT = re.compile(r"^\s*(<=|>=|==|!=|<|>|=)?\s*v?(\d[\w.+-]*)\s*$")


def device_target(name: str) -> str:
    """`npu1` or `npu2` for any common name of a device. Raises KbError for another word."""
    low = " ".join(name.lower().replace("-", " ").replace("_", " ").split())
    for target, words in DEVICE_NAMES.items():
        if low in words or any(low.startswith(word + " ") for word in words):
            return target
    known = ", ".join(word for words in DEVICE_NAMES.values() for word in words)
    raise KbError(f"device {name[:40]!r} is unknown; use one of {known}")


PHASES = ("setup", "0", "1", "2", "3", "4", "5", "6", "7")
"""Setup, or a deployment phase."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What a hit has to fit; empty fields admit everything. versions: package → installed version."""

    device: str | None = None
    component: str | None = None
    phase: str | None = None
    kernel: str | None = None
    model: str | None = None
    status: str | None = None
    kinds: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    def check(self) -> None:
        """Refuse values that nothing can fit. Raises KbError naming the valid ones."""
        if self.device:
            device_target(self.device)
        if self.phase and self.phase not in PHASES:
            raise KbError(f"phase {self.phase[:40]!r} is unknown; use one of {', '.join(PHASES)}")

    def admits(self, record: Record) -> bool:
        """Whether `record` fits."""
        if self.kinds and record.kind not in self.kinds:
            return False
        if self.status and record.status != self.status:
            return False
        if self.device and not _fits_device(self.device, record.devices):
            return False
        wanted = ((self.component, record.components), (self.phase, record.phases),
                  (self.kernel, record.kernels), (self.model, record.models))  # fmt: skip
        if any(value and names and not _named(value, names) for value, names in wanted):
            return False
        return all(
            holds(record.versions[package], installed)
            for package, installed in self.versions.items()
            if package in record.versions
        )

    def any(self) -> bool:
        """Whether anything is filtered at all."""
        return self != Filters()


def _fits_device(device: str, devices: list[str]) -> bool:
    return not devices or "any" in devices or device_target(device) in devices


def _named(value: str, names: list[str]) -> bool:
    flat = re.sub(r"[\s_.-]", "", value.lower())
    return any(
        flat in (name := re.sub(r"[\s_.-]", "", other.lower())) or name in flat or name == "any" for other in names
    )


def holds(constraint: str, installed: str) -> bool:
    """Whether `installed` meets `>=22.0.0,<23`; what cannot be compared is taken to hold."""
    for part in constraint.split(","):
        match = _CONSTRAINT.match(part)
        if match is None:
            continue
        sign, version = match[1] or "==", match[2]
        order = _compare(installed, version)
        met = {
            "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0, "!=": order != 0,
        }.get(sign, order == 0 or installed.startswith(version))  # fmt: skip
        if not met:
            return False
    return True


def _compare(left: str, right: str) -> int:
    a, b = _numbers(left), _numbers(right)
    width = max(len(a), len(b))
    a, b = a + (0,) * (width - len(a)), b + (0,) * (width - len(b))
    return (a > b) - (a < b)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:8])
