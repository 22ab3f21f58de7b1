"""A deployment whose kernels run on a device, played by the stand-in: what is measured is called so, from the baseline on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from npu_tools.backends.xrt import XrtBackend
from npu_tools.deployment.machine import Machine
from npu_tools.deployment.workspace import Workspace
from npu_tools.deployment.world import RealWorld
from npu_tools.evaluator.claims import read_claims
from npu_tools.evaluator.gates import audit_gates
from npu_tools.evaluator.record import audit_record
from tests.npu_tools.deployment.quick_world import KERNELS, QuickWorld, opened
from tests.stand_in.machine import QUICK, StandIn

PACE_US = 2000.0


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
    assert "measured" in (workspace / "perf_opt_traj.md").read_text(encoding="utf-8")
    claims = read_claims(workspace, KERNELS)
    accused = {one.code for one in (*audit_gates(claims), *audit_record(claims))}
    assert accused <= {"gate_small", "incomplete", "model_cut"}, accused
