"""The device model: names, limits, and where each number comes from."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from npu_tools.device import device, devices
from npu_tools.errors import UnknownDevice

PACKAGE = Path(__file__).parents[2] / "npu_tools"


@pytest.mark.parametrize(
    ("called", "is_"),
    [
        ("npu1", "npu1"),
        ("Phoenix", "npu1"),
        ("hawk point", "npu1"),
        ("1022:1502", "npu1"),
        ("npu2", "npu2"),
        ("STRIX", "npu2"),
        ("strix-halo", "npu2"),
        ("Krackan", "npu2"),
        ("Gorgon Point", "npu2"),
        ("npu4", "npu2"),
        ("1022:17F0", "npu2"),
    ],
)
def test_a_device_is_found_by_every_name_it_has(called: str, is_: str) -> None:
    assert device(called).name == is_


def test_an_unknown_device_is_refused_with_a_list_of_those_there_are() -> None:
    with pytest.raises(UnknownDevice, match=r"'npu9'.*npu1 \(Phoenix.*npu2 \(Strix"):
        device("npu9")


def test_a_name_that_only_contains_a_known_one_is_not_that_device() -> None:
    """Upstream's probe takes npu10 for npu1 because it searches for a substring."""
    with pytest.raises(UnknownDevice):
        device("RyzenAI-npu10")


def test_npu1_has_half_the_columns_of_npu2() -> None:
    assert (device("npu1").columns, device("npu2").columns) == (4, 8)
    assert device("npu2").core_tiles == 32


@pytest.mark.parametrize("name", ["npu1", "npu2"])
def test_every_limit_says_its_unit_its_kind_its_source_and_how_sure_it_is(name: str) -> None:
    for limit in device(name).limits.values():
        assert limit.unit
        assert limit.kind in {"hardware", "compiler", "driver"}
        assert limit.status in {"verified on hardware", "from toolchain", "documented", "claimed"}
        assert len(limit.source.split()) >= 2, f"{limit.name}: a source is a repository and a path"


@pytest.mark.parametrize("name", ["npu1", "npu2"])
def test_every_tile_kind_has_every_limit_that_applies_to_it(name: str) -> None:
    one = device(name)
    for kind in ("core", "memtile", "shim"):
        tile = one.tile(kind)
        assert min(tile.locks, tile.dma_channels, tile.bd_count, tile.bd_dims, tile.step_bits, tile.wrap_bits) > 0
    assert one.shim.memory_bytes == 0, "a shim tile has no memory of its own"


def test_sources_that_disagree_are_kept_beside_the_value_used() -> None:
    limit = device("npu2").limit("bd.iteration_max")
    assert limit.value == 64
    assert {claim.value for claim in limit.alternatives} == {31, 255}
    assert all(claim.source for claim in limit.alternatives)


def test_the_devices_are_read_once() -> None:
    assert devices() is devices()


def test_no_other_module_writes_a_memory_size_or_a_descriptor_count() -> None:
    """Limits live in devices.toml alone; a bare 65536 or 48 elsewhere would drift from it."""
    bare = re.compile(r"(?<![\w.])(65536|524288|65_536|524_288|1048576|1_048_576|48)(?![\w.])")
    written = {
        f"{path.relative_to(PACKAGE)}:{number}"
        for path in PACKAGE.rglob("*.py")
        if path.is_relative_to(PACKAGE / "check") or path.name == "device.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if bare.search(line.split("#")[0]) and '"""' not in line
    }
    assert not {place for place in written if not place.startswith("device.py:")}
    assert bare.search("limit = 65536"), "the search itself finds such a number"
