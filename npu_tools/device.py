"""The NPUs this package knows and every limit they have, read once from devices.toml.

    npu2 = device("strix")
    npu2.core.memory_bytes          # 65536
    npu2.limit("core.memory_bytes")  # Limit with unit, kind, source, status and what other sources claim

No other module writes such a number. This one knows nothing of programs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, cast, get_args

from npu_tools.errors import UnknownDevice

Kind = Literal["hardware", "compiler", "driver"]
Status = Literal["verified on hardware", "from toolchain", "documented", "claimed"]
TileKind = Literal["core", "memtile", "shim"]


@dataclass(frozen=True, slots=True)
class Claim:
    """What another source says a limit is."""

    value: int
    source: str
    note: str


@dataclass(frozen=True, slots=True)
class Limit:
    """One number a device or its toolchain imposes, and who says so."""

    name: str
    value: int
    unit: str
    kind: Kind
    source: str
    status: Status
    note: str = ""
    alternatives: tuple[Claim, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} = {self.value} {self.unit}"


@dataclass(frozen=True, slots=True)
class TileLimits:
    """What one tile of a kind has. Lengths and steps count 4-byte words."""

    memory_bytes: int
    memory_banks: int
    locks: int
    dma_channels: int
    bd_count: int
    bd_dims: int
    bd_max_length: int
    step_bits: int
    wrap_bits: int

    @property
    def max_step(self) -> int:
        """The largest stride a BD of this tile holds, in 4-byte words."""
        return 1 << self.step_bits

    @property
    def max_wrap(self) -> int:
        """The largest size of an inner dimension of a BD of this tile."""
        return (1 << self.wrap_bits) - 1


@dataclass(frozen=True, slots=True)
class Device:
    """One NPU: its names and its limits."""

    name: str
    title: str
    architecture: str
    compile_target: str
    names: tuple[str, ...]
    pci_ids: tuple[str, ...]
    source: str
    limits: Mapping[str, Limit]
    core: TileLimits
    memtile: TileLimits
    shim: TileLimits

    def limit(self, name: str) -> Limit:
        """The limit of this name, for its source and status.

        Raises:
            KeyError: no such limit; a mistake in this package, never of a caller's input.
        """
        return self.limits[name]

    def value(self, name: str) -> int:
        """The bare number of a limit."""
        return self.limits[name].value

    def tile(self, kind: TileKind) -> TileLimits:
        """The limits of one kind of tile."""
        return {"core": self.core, "memtile": self.memtile, "shim": self.shim}[kind]

    @property
    def columns(self) -> int:
        return self.value("array.columns")

    @property
    def core_rows(self) -> int:
        return self.value("array.core_rows")

    @property
    def core_tiles(self) -> int:
        return self.columns * self.core_rows

    @property
    def stack_bytes(self) -> int:
        return self.value("core.stack_bytes")

    @property
    def granule_bytes(self) -> int:
        return self.value("dma.granule_bytes")

    @property
    def repeat_max(self) -> int:
        return self.value("queue.repeat_max")

    @property
    def iteration_max(self) -> int:
        return self.value("bd.iteration_max")


def device(name: str) -> Device:
    """The device of this name: npu1, npu2, a product name such as "Strix Halo", or a PCI id such as 1022:17f0.

    Raises:
        UnknownDevice: no device is called so; the text lists those there are.
    """
    wanted = _spelling(name)
    for one in devices():
        if wanted in {_spelling(known) for known in (one.name, *one.names, *one.pci_ids)}:
            return one
    known = "; ".join(f"{one.name} ({', '.join(one.names[:4])})" for one in devices())
    raise UnknownDevice(f"no device is called {name[:80]!r}; there are {known}")


@cache
def devices() -> tuple[Device, ...]:
    """Every device of devices.toml, in its order."""
    table = tomllib.loads(files("npu_tools").joinpath("devices.toml").read_text(encoding="utf-8"))
    limits = cast("dict[str, dict[str, Any]]", table["limits"])
    return tuple(
        _device(name, row, limits) for name, row in cast("dict[str, dict[str, Any]]", table["devices"]).items()
    )


def _spelling(name: str) -> str:
    """A name without the differences that do not matter: case, blanks, dashes and underscores."""
    return "".join(letter for letter in name.casefold() if letter not in " -_\t\r\n")


def _device(name: str, row: Mapping[str, Any], table: Mapping[str, Mapping[str, Any]]) -> Device:
    limits = {key: _limit(key, entry, name) for key, entry in table.items()}

    def tile(kind: TileKind) -> TileLimits:
        def of(what: str) -> int:
            return limits[f"{kind}.{what}"].value if f"{kind}.{what}" in limits else 0

        return TileLimits(*(of(what) for what in TileLimits.__dataclass_fields__))

    return Device(
        name=name,
        title=row["title"],
        architecture=row["architecture"],
        compile_target=row["compile_target"],
        names=tuple(row["names"]),
        pci_ids=tuple(row["pci_ids"]),
        source=row["source"],
        limits=limits,
        core=tile("core"),
        memtile=tile("memtile"),
        shim=tile("shim"),
    )


def _limit(name: str, entry: Mapping[str, Any], device_name: str) -> Limit:
    value = cast("int | dict[str, int]", entry["value"])
    if entry["kind"] not in get_args(Kind) or entry["status"] not in get_args(Status):
        raise ValueError(f"devices.toml: {name} has an unknown kind or status")
    return Limit(
        name=name,
        value=value[device_name] if isinstance(value, dict) else value,
        unit=entry["unit"],
        kind=entry["kind"],
        source=entry["source"],
        status=entry["status"],
        note=entry.get("note", ""),
        alternatives=tuple(Claim(**claim) for claim in entry.get("alternatives", ())),
    )
