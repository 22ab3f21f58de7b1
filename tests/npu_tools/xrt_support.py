"""Programs and backends over the stand-in, for the tests of the device adapter."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np

from npu_tools.backends.xrt import XrtBackend
from npu_tools.backends.xrt.backend import XrtKernel
from npu_tools.backends.xrt.outcomes import lesson_of
from npu_tools.findings import Finding
from npu_tools.recipes import recipe
from tests.stand_in.behaviours import Behaviour
from tests.stand_in.machine import QUICK, StandIn

ROOT = Path(__file__).parents[2]
NOT_HUNG_S = 40
"""Far over every limit a stand-in is given, far under a hang: what a wait that nobody ends would take is not measured."""


@cache
def gemv() -> tuple[str, dict[str, object]]:
    kernel = recipe(ROOT / "kernels", "gemv")
    resolved = kernel.resolve("64x64")
    return kernel.program(resolved), kernel.compile_options(resolved)


@cache
def two_launches() -> str:
    kernel = recipe(ROOT / "kernels", "gemm")
    return kernel.program(kernel.resolve("256x512x512", {"method": "fused-cast", "tile_m": 32}))


def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    made = rng.standard_normal((64, 64), np.float32), rng.standard_normal(64, np.float32)
    return made[0].astype(ml_dtypes.bfloat16), made[1].astype(ml_dtypes.bfloat16)


def made(tmp_path: Path, behaviour: Behaviour) -> tuple[StandIn, XrtBackend]:
    machine = StandIn(tmp_path, behaviour.scenario)
    timeout = 1.0 if behaviour.code == "compile-timeout" else None
    return machine, XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=QUICK, timeout_s=timeout)


def assert_said(findings: tuple[Finding, ...], behaviour: Behaviour) -> None:
    said = [one for one in findings if one.code == behaviour.code]
    assert said, f"{behaviour.code} expected, got {[(one.code, one.message) for one in findings]}"
    assert said[0].severity == behaviour.severity
    assert said[0].remedy
    assert said[0].source
    assert "(unknown)" not in said[0].message + said[0].remedy
    assert lesson_of(behaviour.code), "a failure of the real stack has a record behind it"
    if behaviour.severity == "warning":
        assert not [one for one in findings if one.severity == "error"]


def name(behaviour: Behaviour) -> str:
    return behaviour.name.replace(" ", "-")


def opened(tmp_path: Path, scenario: dict[str, object] | None = None) -> tuple[StandIn, XrtBackend]:
    machine = StandIn(tmp_path, scenario)
    return machine, XrtBackend(machine.toolchain, cache=tmp_path / "cache", patience=QUICK)


def loaded(backend: XrtBackend, text: str | None = None, **options: object) -> XrtKernel:
    kernel = backend.load(text or gemv()[0], name="gemv", options=options, outputs=(2,))
    assert isinstance(kernel, XrtKernel), kernel
    return kernel
