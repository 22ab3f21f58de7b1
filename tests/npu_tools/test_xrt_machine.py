"""What a machine has, and what it lacks: every probe on made machines, each line with its fix and its lesson."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from npu_tools.backends.xrt import Toolchain, probe
from npu_tools.backends.xrt.checklist import Line, checklist, python_tag, upstream_guess
from npu_tools.backends.xrt.lock import look
from npu_tools.backends.xrt.machine import Machine
from npu_tools.backends.xrt.recovery import look_after
from npu_tools.backends.xrt.smi import read_text, target_of
from npu_tools.backends.xrt.toolchain import identify
from tests.stand_in.machine import BDF, PHOENIX, STRIX, StandIn

ROOT = Path(__file__).parents[2]


def lines(machine: StandIn, **options: object) -> dict[str, Line]:
    found: dict[str, Line] = {}
    for line in checklist(machine.toolchain, **options):  # type: ignore[arg-type]
        if line.name not in found or line.state != "pass":
            found[line.name] = line
    return found


def test_a_whole_machine_has_nothing_in_the_way(tmp_path: Path) -> None:
    found = lines(StandIn(tmp_path))
    bad = {name: line for name, line in found.items() if line.state != "pass" and name != "temporary folder"}
    assert not bad
    assert found["NPU"].text.endswith("npu2")
    assert "pins" in found["Peano"].text


def test_a_machine_with_none_of_it_is_one_line_that_passes_and_many_that_fail_when_wanted(tmp_path: Path) -> None:
    empty = Toolchain(python=sys.executable, environment={}, root=str(tmp_path), temp=str(tmp_path))
    assert [line.state for line in checklist(empty)] == ["pass"]
    wanted = {line.name: line for line in checklist(empty, wanted=True)}
    assert {"NPU", "XRT", "pyxrt", "mlir-air", "Peano"} <= {
        name for name, line in wanted.items() if line.state == "fail"
    }
    assert all(line.fix and line.lesson for line in wanted.values() if line.state == "fail")


NOWHERE = "/" + "n" * 5000
"""A place that cannot even be asked for, as one behind a folder of somebody else: pathlib raises, and nobody may fall."""


def test_what_somebody_named_and_is_not_there_is_told_on_a_machine_with_nothing_else(tmp_path: Path) -> None:
    named = Toolchain(
        python=NOWHERE, peano=NOWHERE, examples=NOWHERE, aie=NOWHERE, environment={}, root=str(tmp_path),
        temp=str(tmp_path),
    )  # fmt: skip
    found = {line.name: line for line in checklist(named)}
    assert {name for name, line in found.items() if line.state == "warn"} == {
        "Python of the toolchain", "PEANO_INSTALL_DIR", "kernel sources",
    }  # fmt: skip
    assert all(line.fix and line.lesson for line in found.values() if line.state == "warn")
    assert next(line for line in checklist(named, wanted=True) if line.name == "Peano").state == "fail"


@pytest.mark.parametrize(
    ("architecture", "pci_id", "name", "target"),
    [
        ("aie2p", "", "", "npu2"), ("aie2", "", "", "npu1"), ("AIE2P", "", "NPU Phoenix", "npu2"),
        ("", "17f0", "NPU Gorgon Point 1", "npu2"), ("", "0x1502", "", "npu1"), ("", "17f1", "RyzenAI-npu10", None),
        ("", "", "RyzenAI-npu10", None), ("", "", "RyzenAI-npu11", None), ("", "", "NPU Gorgon Point 2", "npu2"),
        ("", "", "RyzenAI-npu1", "npu1"), ("", "", "NPU Krackan 1", "npu2"), ("", "", "something", None),
    ],
)  # fmt: skip
def test_the_generation_is_told_by_architecture_then_pci_id_then_whole_words(
    architecture: str, pci_id: str, name: str, target: str | None
) -> None:
    """amd/xdna-driver drivers/accel/amdxdna/amdxdna_pci_drv.c; Xilinx/XRT ReportHost.cpp (Architecture)."""
    assert target_of(architecture, pci_id, name) == target


def test_gorgon_point_is_npu2_here_and_the_line_says_upstream_takes_it_for_npu1(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, npu={**STRIX, "name": "NPU Gorgon Point 1", "vbnv": "NPU Gorgon Point 1"})
    found = lines(machine)
    assert probe(machine.toolchain).target == "npu2"
    assert found["generation"].lesson == "airtc-gorgon-not-recognised"
    assert "AIR_TARGET_DEVICE=npu2" in found["generation"].fix
    assert upstream_guess("RyzenAI-npu10") == "npu1"


def test_a_generation_nobody_compiles_for_is_in_the_way_and_not_guessed(tmp_path: Path) -> None:
    newer = {**STRIX, "name": "RyzenAI-npu10", "architecture": "aie4", "device": "0x17f1", "vbnv": "RyzenAI-npu10"}
    machine = StandIn(tmp_path, npu=newer)
    assert probe(machine.toolchain).target is None
    assert lines(machine)["NPU"].state == "fail"


@pytest.mark.parametrize(
    ("change", "name", "state", "lesson"),
    [
        ({"packages": {"llvm_aie": "22.0.0.2026081201+046b11f9"}}, "Peano", "fail", "air1980-llvm22-stack-frame"),
        ({"packages": {"llvm_aie": "22.0.0.2026090101+00000000"}}, "Peano", "warn", "aie2456-nightly-breaks-examples"),
        ({"packages": {"llvm_aie": "20.0.0.2025010101+00000000"}}, "Peano", "warn", "tx22-llvm-aie-not-upgraded"),
        ({"missing": ["peano"]}, "Peano", "warn", "airtc-peano-missing-chess-fallback"),
        ({"link": {"version": "23.0.0git"}}, "llvm-link", "warn", "air1783-llvm-link-pre23"),
        ({"link": {"version": "20.1.2"}}, "llvm-link", "warn", "airtc-llvm-link-old-fluent-garbage"),
        ({"missing": ["aircc"]}, "mlir-air", "warn", "airtc-pip-three-find-links"),
        ({"missing": ["aiecc"]}, "mlir-aie", "warn", "airtc-aiecc-not-in-path"),
        ({"missing": ["pyxrt"]}, "pyxrt", "fail", "airtc-pyxrt-not-available"),
        ({"missing": ["examples"]}, "kernel sources", "fail", "airtc-stale-object-flags"),
        ({"pyxrt": {"import": "other_python"}}, "pyxrt", "fail", "xrt5611-pyxrt-undefined-symbol"),
        ({"pyxrt": {"device": "mmap failed (err=-11)"}}, "pyxrt", "fail", "xdna903-memlock-mmap-eagain"),
        ({"pyxrt": {"api": "old"}}, "pyxrt", "warn", "airtc-elf-load-failed"),
        ({"missing": ["xrt-smi"]}, "XRT", "fail", "xrt-setup-sh-invalid-location"),
        ({"smi": {"exit": 1, "stderr": "ERROR: driver\n"}}, "XRT", "fail", "airtc-exec-cmd-err5-wedged"),
        ({"smi": {"devices": []}}, "XRT", "fail", "aie2615-zero-devices-after-fresh-install"),
        ({"smi": {"power_mode": "Default"}}, "power mode", "warn", "turbo-pmode-decode-speed"),
        ({"smi": {"contexts": [[4711, "python3"]]}}, "hardware contexts", "warn", "xdna-hwctx-limit"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_a_line_with_its_fix_and_lesson(
    tmp_path: Path, change: dict[str, object], name: str, state: str, lesson: str
) -> None:
    line = lines(StandIn(tmp_path, change))[name]
    assert (line.state, line.lesson) == (state, lesson), line
    assert line.fix


@pytest.mark.parametrize(
    ("path", "content", "name", "state", "lesson"),
    [
        (
            "proc/self/limits",
            "Max locked memory         8388608   8388608   bytes\n",
            "memlock",
            "fail",
            "xdna903-memlock-mmap-eagain",
        ),
        ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n", "kernel", "fail", "aie3372-kernel-too-old"),
        ("sys/firmware/acpi/platform_profile", "balanced\n", "platform profile", "warn", "airtc-perf-acpi-profile"),
        ("sys/module/amdxdna/parameters/tdr_timeout_ms", "0\n", "watchdog", "warn", "xdna-tdr-timeout-param"),
    ],
)
def test_limits_and_modes_are_read_from_the_system(
    tmp_path: Path, path: str, content: str, name: str, state: str, lesson: str
) -> None:
    machine = StandIn(tmp_path)
    machine.write(path, content)
    line = lines(machine)[name]
    assert (line.state, line.lesson) == (state, lesson)


def test_a_device_node_that_is_gone_asks_for_a_power_cycle(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    (machine.folder / "root" / "dev" / "accel" / "accel0").unlink()
    line = lines(machine)["device node"]
    assert (line.state, line.lesson) == ("fail", "airtc-dev-accel-missing-power-cycle")
    assert "power the machine off" in line.fix
    assert look_after(machine.toolchain).health == "gone"


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may open every file")
def test_a_device_node_of_others_names_the_group(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    (machine.folder / "root" / "dev" / "accel" / "accel0").chmod(0)
    assert lines(machine)["device node"].lesson == "xdna-device-node-permission"


def test_a_tool_that_hangs_is_a_line_and_no_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("smi", "toolchain", "machine"):
        monkeypatch.setattr(f"npu_tools.backends.xrt.{module}.PROBE_S", 1.0)
    machine = StandIn(tmp_path, {"smi": {"hang": True}, "pyxrt": {"device": "hang"}})
    found = lines(machine)
    assert found["XRT"].state == "fail"
    assert "timeout" in found["XRT"].text
    assert "hung" in found["pyxrt"].text
    assert found["NPU"].text.endswith("npu2"), "the bus still tells what it is"
    assert look_after(machine.toolchain).health == "silent"


def test_text_of_today_and_of_older_releases_is_read(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"smi": {"no_json": True}})
    found = probe(machine.toolchain)
    assert (found.xrt, found.target) == ("2.21.0", "npu2")
    assert found.npu is not None
    assert (found.npu.name, found.npu.architecture) == ("NPU Strix", "aie2p")
    machine.change(smi={"no_json": True, "text": "old"})
    older = probe(machine.toolchain)
    assert (older.xrt, older.target) == ("2.18.0", "npu2")
    assert not read_text("Device(s) Present\n  0 devices found\n").devices


def test_phoenix_is_npu1(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, npu=PHOENIX)
    assert probe(machine.toolchain).target == "npu1"


def test_a_held_lock_is_told_with_who_holds_it(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    place = Path(machine.toolchain.temp) / "npu.lock"
    with FileLock(place):
        inode = place.stat().st_ino
        machine.write("proc/locks", f"1: FLOCK  ADVISORY  WRITE {os.getpid()} 08:01:{inode} 0 EOF\n")
        state = next(one for one in look(machine.toolchain) if one.path == str(place.resolve()))
        assert state.state == "held"
        assert [one.pid for one in state.holders] == [os.getpid()]
        line = lines(machine)["NPU lock"]
        assert (line.state, line.lesson) == ("warn", "npu-lock-timeout")
        assert str(os.getpid()) in line.text
    assert lines(machine)["NPU lock"].state == "pass"


def test_looking_at_locks_makes_no_file(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    look(machine.toolchain)
    assert not list(Path(machine.toolchain.temp).iterdir())


def test_the_python_an_extension_is_for_is_read_off_its_name() -> None:
    assert python_tag("/opt/xilinx/xrt/python/pyxrt.cpython-312-x86_64-linux-gnu.so") == "312"
    assert python_tag("C:/Xilinx/XRT/python/pyxrt.cp313-win_amd64.pyd") == "313"
    assert python_tag("/opt/xilinx/xrt/python/pyxrt.so") == ""


def test_a_pyxrt_for_another_python_is_told_before_it_is_tried(tmp_path: Path) -> None:
    machine = StandIn(tmp_path, {"missing": ["pyxrt"]})
    (machine.folder / "site" / "pyxrt.cpython-399-x86_64-linux-gnu.so").write_bytes(b"")
    line = lines(machine)["pyxrt"]
    assert line.lesson == "xrt5611-pyxrt-undefined-symbol"
    assert "3.99" in line.text


def test_the_identity_changes_with_every_tool_and_release(tmp_path: Path) -> None:
    first = StandIn(tmp_path / "a")
    (tmp_path / "b").mkdir()
    second = StandIn(tmp_path / "b", {"packages": {"mlir_aie": "1.4.2"}})
    before = identify(first.toolchain).digest
    assert before == identify(first.toolchain).digest
    assert before != identify(second.toolchain).digest
    aiecc = first.folder / "bin" / "aiecc"
    aiecc.write_text(aiecc.read_text(encoding="utf-8") + "# another build\n", encoding="utf-8")
    assert identify(first.toolchain).digest != before


def test_tools_of_the_wheels_are_found_without_being_on_path_and_behind_what_is(tmp_path: Path) -> None:
    """mlir_aie/bin must be on PATH for aircc (mlir-air tools/aircc/aircc.cpp); users' own tools come first."""
    machine = StandIn(tmp_path, {"missing": ["aiecc"]})
    assert machine.toolchain.find("aiecc") is None
    place = machine.folder / "site" / "mlir_aie" / "bin"
    place.mkdir()
    for name in ("aiecc", "xrt-smi"):
        (place / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (place / name).chmod(0o755)
    assert machine.toolchain.find("aiecc") == place / "aiecc"
    assert machine.toolchain.find("xrt-smi") == machine.folder / "bin" / "xrt-smi"
    path = machine.toolchain.for_tools()["PATH"].split(os.pathsep)
    assert path.index(str(machine.folder / "bin")) < path.index(str(place))


def test_another_package_named_air_is_noticed_and_the_wheels_tools_are_found_all_the_same(tmp_path: Path) -> None:
    machine = StandIn(tmp_path)
    other = machine.folder / "other" / "air"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("", encoding="utf-8")
    environment = dict(machine.toolchain.environment)
    environment["PYTHONPATH"] = str(other.parent) + os.pathsep + environment["PYTHONPATH"]
    toolchain = machine.toolchain.model_copy(update={"environment": environment})
    assert toolchain.find("aircc") == machine.folder / "site" / "mlir_air" / "bin" / "aircc"
    said = [line for line in checklist(toolchain) if line.name == "mlir-air" and line.state == "warn"]
    assert [line.lesson for line in said] == ["airtc-win-shadowed-install"]


def test_every_line_of_the_doctor_names_a_record_that_exists() -> None:
    shipped = {path.stem for path in (ROOT / "kb" / "corpus").rglob("*.md")}
    text = (ROOT / "npu_tools" / "backends" / "xrt" / "checklist.py").read_text(encoding="utf-8")
    import re

    named = set(re.findall(r'"((?:air|aie|iree|iron|xdna|xrt|tx|npu|turbo|peano)[a-z0-9]*-[a-z0-9-]{5,})"', text))
    assert len(named) > 20
    assert named <= shipped | {"npu-lock-timeout"}


def test_a_machine_as_data_is_json() -> None:
    import json

    json.dumps(Machine("Linux", "6.14").as_dict())
    assert BDF
