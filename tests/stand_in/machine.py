"""A machine made of files: fake tools, a fake pyxrt, and a tree of sys, dev and proc; built where a test says.

    machine = StandIn(tmp_path, {"pyxrt": {"wait": "hang"}})
    XrtBackend(machine.toolchain, cache=tmp_path / "cache")

Nothing finds it by itself: it is in no search path, its tools refuse to run unless the variable HERDBOOK_STAND_IN names
the scenario file, and only `StandIn` sets that, in the environment of the children of the toolchain it gives. It lies
under tests/, which no wheel has.

What it does when nothing is asked of it is what recorded facts say success looks like; a scenario changes one thing.
Results of kernels come from our own emulator, so that gates pass: it says nothing of what silicon computes.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_tools.backends.xrt.session import Patience
from npu_tools.backends.xrt.toolchain import Toolchain

TOOLS = Path(__file__).parent / "tools"
VARIABLE = "HERDBOOK_STAND_IN"
BDF = "0000:66:00.1"
GOOD_PEANO = "21.0.0.2026080601+f4a72c27"
QUICK = Patience(start_s=30, load_s=4, lock_s=1, dispatch_s=2, grace_s=3)
"""Limits a test can wait for; the emulator behind the fake device needs the start."""
STRIX = {
    "bdf": BDF, "name": "NPU Strix", "architecture": "aie2p", "topology": "6x8", "firmware": "1.1.2.65",
    "device": "0x17f0", "revision": "0x10", "vbnv": "RyzenAI-npu4",
}  # fmt: skip
PHOENIX = {
    "bdf": BDF, "name": "NPU Phoenix", "architecture": "aie2", "topology": "6x5", "firmware": "1.5.5.391",
    "device": "0x1502", "revision": "0x00", "vbnv": "RyzenAI-npu1",
}  # fmt: skip
SOURCES = (
    "matrix_multiplication/bf16_in_fp32_out/mm_aie2p.cc", "rope_halfsplit/rope_halfsplit.cc",
    "silu_and_mul/silu_and_mul.cc", "gelu_and_mul/gelu_and_mul.cc", "flash_attention/kernel_fusion_based/attn_npu2.cc",
    "matrix_vector_multiplication/bf16/mv.cc", "matrix_vector_multiplication/bf16_cascade/mv_bf16.cc",
    "matrix_vector_multiplication/int4_awq/mv_int4_bf16.cc", "attention_decode/attn_decode_npu2.cc",
)  # fmt: skip


class StandIn:
    """One made machine. `scenario` by tool: aircc, clang, smi, pyxrt, link, journal; and `packages`, `missing`."""

    def __init__(
        self, folder: Path, scenario: Mapping[str, Any] | None = None, *, npu: Mapping[str, str] | None = STRIX
    ) -> None:
        self.folder = folder / "stand-in"
        self.scenario: dict[str, Any] = dict(scenario or {})
        self.npu = dict(npu) if npu is not None else None
        for name in ("bin", "site", "root", "temp", "home"):
            (self.folder / name).mkdir(parents=True)
        self.file = self.folder / "scenario.json"
        self._write_scenario()
        self._tools()
        self._packages()
        self._peano()
        self._examples()
        self._root()

    @property
    def toolchain(self) -> Toolchain:
        """The only way to it."""
        return Toolchain(
            python=sys.executable,
            search=(str(self.folder / "bin"),),
            environment={
                VARIABLE: str(self.file),
                "PATH": str(self.folder / "bin"),
                "PYTHONPATH": str(self.folder / "site" / "mlir_air" / "python")
                + os.pathsep
                + str(self.folder / "site"),
                "HOME": str(self.folder / "home"),
                "OPENBLAS_NUM_THREADS": "1",
            },
            aie=str(self.folder / "site" / "mlir_aie"),
            examples=str(self.folder / "programming_examples"),
            root=str(self.folder / "root"),
            temp=str(self.folder / "temp"),
        )

    def change(self, **scenario: Any) -> None:
        """Another scenario from now on."""
        self.scenario.update(scenario)
        self._write_scenario()

    def calls(self, tool: str) -> list[list[str]]:
        """The command lines a fake tool was started with."""
        log = self.folder / "calls.jsonl"
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        return [one["arguments"] for one in map(json.loads, lines) if one["tool"] == tool]

    def write(self, path: str, text: str) -> Path:
        """A file of the tree of sys, dev and proc."""
        place = self.folder / "root" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return place

    def _write_scenario(self) -> None:
        content = {**self.scenario, "npu": self.npu, "log": str(self.folder / "calls.jsonl")}
        self.file.write_text(json.dumps(content), encoding="utf-8")

    def _tools(self) -> None:
        missing = self.scenario.get("missing", [])
        for name in ("aiecc", "aie-opt", "xrt-smi", "llvm-link", "journalctl"):
            if name not in missing:
                self._script(self.folder / "bin" / name, name)
        if "aircc" not in missing:
            self._script(self.folder / "site" / "mlir_air" / "bin" / "aircc", "aircc")

    def _packages(self) -> None:
        site, missing = self.folder / "site", self.scenario.get("missing", [])
        air = site / "mlir_air" / "python" / "air"
        air.mkdir(parents=True)
        (air / "__init__.py").write_text('raise ImportError("the stand-in air is never imported")\n', encoding="utf-8")
        (site / "mlir_aie" / "include" / "aie_api").mkdir(parents=True)
        if "aie_api" not in missing:
            (site / "mlir_aie" / "include" / "aie_api" / "aie.hpp").write_text("// stand-in\n", encoding="utf-8")
        if "pyxrt" not in missing:
            (site / "pyxrt.py").write_text((TOOLS / "pyxrt.py").read_text(encoding="utf-8"), encoding="utf-8")
        versions = {"mlir_air": "0.0.1.2026082201", "mlir_aie": "1.4.2.dev16+g7e00b57", "llvm_aie": GOOD_PEANO}
        for name, version in {**versions, **self.scenario.get("packages", {})}.items():
            info = site / f"{name}-{version}.dist-info"
            info.mkdir()
            said = name.replace("llvm_aie", "llvm-aie")
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {said}\nVersion: {version}\n", encoding="utf-8"
            )

    def _peano(self) -> None:
        if "peano" not in self.scenario.get("missing", []):
            self._script(self.folder / "site" / "llvm-aie" / "bin" / "clang++", "clang++")

    def _examples(self) -> None:
        if "examples" in self.scenario.get("missing", []):
            return
        for source in SOURCES:
            place = self.folder / "programming_examples" / source
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(f"// stand-in for {source}\n", encoding="utf-8")

    def _root(self) -> None:
        self.write("proc/sys/kernel/osrelease", "6.14.0-28-generic\n")
        self.write(
            "proc/self/limits",
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         unlimited            unlimited            bytes\n",
        )
        self.write("sys/firmware/acpi/platform_profile", "performance\n")
        (self.folder / "root" / "sys" / "module").mkdir(parents=True, exist_ok=True)
        (self.folder / "root" / "dev").mkdir(parents=True, exist_ok=True)
        if self.npu is None:
            return
        self.write("sys/module/amdxdna/parameters/tdr_timeout_ms", "2000\n")
        pci = f"sys/bus/pci/drivers/amdxdna/{self.npu['bdf']}"
        for name, value in (
            ("vendor", "0x1022"), ("device", self.npu["device"]), ("revision", self.npu["revision"]),
            ("vbnv", self.npu["vbnv"]), ("fw_version", self.npu["firmware"]),
        ):  # fmt: skip
            self.write(f"{pci}/{name}", f"{value}\n")
        self.write("dev/accel/accel0", "")

    def _script(self, place: Path, tool: str) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        code = f"import sys\nsys.argv[0] = {tool!r}\nexec(open({str(TOOLS / 'tool.py')!r}).read())\n"
        body = f"#!{sys.executable} -S\n{code}"
        place.write_text(body, encoding="utf-8")
        place.chmod(place.stat().st_mode | stat.S_IXUSR)
