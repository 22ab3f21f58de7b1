"""A deployment whose kernels run on a device, played by the stand-in: what is measured is called so, from the baseline on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from npu_tools.backends import BackendName, EmulatorBackend, Measured
from npu_tools.backends.protocol import Call
from npu_tools.backends.xrt import XrtBackend
from npu_tools.backends.xrt.outcomes import outcome
from npu_tools.deployment.machine import Machine
from npu_tools.deployment.workspace import Workspace
from npu_tools.deployment.world import RealWorld
from npu_tools.evaluator.claims import read_claims
from npu_tools.evaluator.gates import audit_gates
from npu_tools.evaluator.record import audit_record
from npu_tools.findings import Finding
from tests.npu_tools.deployment.quick_world import KERNELS, QuickWorld, opened
from tests.stand_in.machine import QUICK, StandIn

PACE_US = 500.0


class Clock(EmulatorBackend):
    """A device whose kernels take what a test says, or fail when they are run again."""

    def __init__(self, us: Callable[[str], float] | Finding) -> None:
        super().__init__()
        self.us = us

    @property
    def name(self) -> BackendName:
        return "xrt"

    def measure(self, calls: Sequence[Call], **_: Any) -> Measured | Finding:  # type: ignore[override]
        if isinstance(self.us, Finding):
            return self.us
        return Measured(
            tuple((self.us(bound.kernel.name),) * 20 for bound, _ in calls), 5, "by the clock", {"device": "clock"}
        )


def deployed_on(tmp_path: Path, us: Callable[[str], float] | Finding) -> Machine:
    world = QuickWorld(real=RealWorld(KERNELS, xrt=lambda: Clock(us)))
    return opened(Machine(Workspace(tmp_path / "w"), world, KERNELS), backend="xrt", layers=1, steps=2)


def test_a_kernel_that_runs_once_and_not_again_fails_its_gate(tmp_path: Path) -> None:
    hung = outcome("run-timeout", tdr=2000, state="ERT_CMD_STATE_TIMEOUT")
    machine = deployed_on(tmp_path, hung)
    ran = machine.run(last=1)
    assert ran.state == "failed"
    body = ran.failures[0].body
    assert body["diagnosis"]["code"] == "run-timeout"
    assert "it ran once, and not again and again" in next(c["said"] for c in body["criteria"] if c["name"] == "signal")
    assert "measured_us" not in body


def test_a_time_is_the_calls_of_a_layer_counted_as_often_as_there_are_layers(tmp_path: Path) -> None:
    machine = deployed_on(tmp_path, lambda name: 1000.0 if name == "gemm" else 10.0)
    machine.run(last=3)
    (model,) = [entry.body for entry in machine.state().attempts if entry.body["gate"] == "model"]
    said = model["metrics"]["time"]
    assert said["label"] == "measured"
    calls = said["prefill_calls"]
    assert {call["kernel_us"] for call in calls if call["kernel"] == "gemm"} == {1000.0}
    assert {call["kernel_us"] for call in calls if call["kernel"] != "gemm"} == {10.0}
    total = sum(call["count"] * (call["kernel_us"] + call["host_us"]) for call in calls)
    assert model["measured_us"] == pytest.approx(total, abs=0.1)
    assert said["measurement"]["environment"] == {"device": "clock"}


def assert_profiled(said: dict[str, Any]) -> None:
    """Timed the profile way: apart from the judged run, with the machine it was taken on."""
    assert (said["warm_up"], said["iterations"]) == (5, 20)
    assert "start() and the wait" in said["timed"]
    assert said["environment"]["complete"]
    assert said["environment"]["power_mode"] == "Turbo"


def test_steps_are_measured_against_a_measured_baseline(tmp_path: Path) -> None:
    stand_in = StandIn(tmp_path, {"pyxrt": {"pace_s": PACE_US / 1e6}})
    patience = replace(QUICK, dispatch_s=30, load_s=30)
    workspace = tmp_path / "workspace"
    with XrtBackend(stand_in.toolchain, cache=tmp_path / "cache", patience=patience) as device:
        machine = Machine(Workspace(workspace), QuickWorld(real=RealWorld(KERNELS, xrt=lambda: device)), KERNELS)
        ran = opened(machine, backend="xrt", layers=1, steps=2).run(last=4)
    assert ran.passed == (0, 1, 2, 3, 4), ran.summary
    state = machine.state()
    assert {entry.body["timing"] for entry in state.steps} == {"measured"}
    merge = state.steps[0].body
    assert merge["name"] == "merge"
    assert merge["kept"]
    assert merge["after_us"] < merge["before_us"]
    assert merge["after_us"] >= PACE_US, "a sum of waits, none of them shorter"
    attempts = {entry.seq: entry.body for entry in state.attempts}
    for step in state.steps:
        if step.body["gate_seq"] is not None and step.body["after_us"] is not None:
            assert_profiled(step.body["measurement"])
            assert step.body["measurement"]["environment"]["context_length"] == 64
            ran = set(attempts[step.body["gate_seq"]]["digests"]["programs"].values())
            assert set(step.body["measurement"]["programs"]) <= ran, "what was timed is what was gated"
    for body in attempts.values():
        if body["gate"] in ("kernel", "model", "prefill"):
            assert body["backend"] == "xrt"
            assert body["measured_us"] >= PACE_US
        if body["gate"] == "kernel":
            assert_profiled(body["metrics"]["measured"])
            assert body["measured_us"] == body["metrics"]["measured"]["median_us"][0]
    document = (workspace / "perf_opt_traj.md").read_text(encoding="utf-8")
    assert "Median of 20 runs after 5 warm-ups" in document
    assert "device NPU Strix, power mode Turbo, platform profile performance" in document
    claims = read_claims(workspace, KERNELS)
    accused = {one.code for one in (*audit_gates(claims), *audit_record(claims))}
    assert accused <= {"gate_small", "incomplete", "model_cut"}, accused
