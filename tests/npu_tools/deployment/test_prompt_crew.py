"""Prompts of a token gate over child processes: the bits of one process, its failures, and nothing left behind."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from npu_tools.deployment import oracle_runs, token_gate
from npu_tools.deployment.ledger import Ledger
from npu_tools.deployment.machine import Machine
from npu_tools.deployment.prompt_crew import START
from npu_tools.deployment.site import Site
from npu_tools.deployment.steps import BASELINE, Deployed
from npu_tools.deployment.token_gate import GateRun, LayerLens
from npu_tools.deployment.workspace import Workspace
from npu_tools.errors import RunStopped
from tests.npu_tools.deployment.quick_world import KERNELS, QuickWorld, opened

PROMPTS, STEPS = 2, 2


@dataclass
class Watching:
    """A teller that can stop the run or end a child once the children report progress."""

    stop: bool = False
    kill: bool = False
    said: int = 0
    asked: bool = False

    def cancelled(self) -> bool:
        return self.asked

    def progress(self, done: float, total: float, note: str = "") -> None:
        self.said += "processes" in note
        found = children()
        if "processes" in note and found:
            self.asked = self.stop
            if self.kill:
                self.kill = False
                found[0].kill()


def children() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if _is_ours(one)]


def _is_ours(process: psutil.Process) -> bool:
    try:
        return START in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def site_of(folder: Path, processes: int, teller: Any = None, **options: Any) -> Site:
    """A deployment that stands before phase 3."""
    world = QuickWorld()
    world.real = replace(world.real, at_once=processes)
    machine = Machine(Workspace(folder), world, KERNELS)
    opened(machine, prompts=PROMPTS, steps=STEPS, **options)
    return Site(
        machine.workspace, Ledger.open(machine.workspace.ledger), world, KERNELS, machine.advise, teller or Watching()
    )


def gated(site: Site) -> tuple[GateRun, Deployed, LayerLens]:
    prompts = oracle_runs.prompts(site, site.dims())
    deployed, lens = Deployed.of(site, BASELINE), LayerLens(len(prompts[0]))
    place = site.place(3, "model")
    return token_gate.run_gate(site, deployed.request, deployed.meter, prompts, STEPS, place, lens), deployed, lens


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[GateRun, Deployed, LayerLens]:
    """The same gate in one process."""
    return gated(site_of(tmp_path_factory.mktemp("alone"), 1))


def logits(run: GateRun) -> list[np.ndarray]:
    return [np.load(path) for path in sorted(run.folder.glob("prompt_*_logits.npy"))]


def test_two_processes_give_the_bits_the_readings_and_the_lens_of_one(
    alone: tuple[GateRun, Deployed, LayerLens], tmp_path: Path
) -> None:
    watching = Watching()
    (one, here, seen), (two, apart, lens) = alone, gated(site_of(tmp_path, 2, watching))
    assert watching.said
    assert one.prompts == two.prompts
    assert len(logits(one)) == PROMPTS
    assert all(a.tobytes() == b.tobytes() for a, b in zip(logits(one), logits(two), strict=True))
    assert (one.prefill, one.decode, one.decoded) == (two.prefill, two.decode, two.decoded)
    assert here.meter.digests == apart.meter.digests
    assert seen.outputs.keys() == lens.outputs.keys() == {0, 1}
    assert all(seen.outputs[layer].tobytes() == lens.outputs[layer].tobytes() for layer in seen.outputs)
    assert (one.folder / "tokens.json").read_bytes() == (two.folder / "tokens.json").read_bytes()


def test_a_kernel_that_is_refused_in_a_child_fails_the_gate_as_it_does_here(tmp_path: Path) -> None:
    runs: list[GateRun] = []
    for processes in (1, 2):
        site = site_of(tmp_path / str(processes), processes)
        body = {"subject": "setting", "key": "gemm.tile_m", "before": None, "after": 3, "why": "", "by": "agent"}
        site.ledger.append("decision", 3, body)
        runs.append(gated(site)[0])
    assert runs[0].failure is not None
    assert runs[0].failure == runs[1].failure
    assert runs[0].prompts == runs[1].prompts == ()


def test_a_cancelled_gate_ends_its_children(tmp_path: Path) -> None:
    with pytest.raises(RunStopped):
        gated(site_of(tmp_path, 2, Watching(stop=True)))
    assert children() == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_what_a_killed_child_left_undone_is_run_here(
    alone: tuple[GateRun, Deployed, LayerLens], tmp_path: Path
) -> None:
    watching = Watching(kill=True)
    cut = gated(site_of(tmp_path, 2, watching))[0]
    assert not watching.kill
    assert cut.prompts == alone[0].prompts
    assert all(a.tobytes() == b.tobytes() for a, b in zip(logits(alone[0]), logits(cut), strict=True))
