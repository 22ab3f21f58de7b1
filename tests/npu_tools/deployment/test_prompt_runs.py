"""A decode stands for another only where it follows from the same, and one token of it was run again and is the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from npu_tools.deployment.ledger import Ledger
from npu_tools.deployment.machine import Machine
from npu_tools.deployment.metering import Meter, Options
from npu_tools.deployment.prompt_runs import Earlier, decode_inputs, earlier_decodes, run_prompt
from npu_tools.deployment.site import Site, save
from npu_tools.deployment.steps import BASELINE, Deployed
from tests.npu_tools.deployment.quick_world import KERNELS, opened

STEPS = 5


@dataclass
class Counting:
    """A runner whose logits are its own count, and which says what its decode follows from."""

    programs: str = "as before"
    drifts: bool = False
    decoded: list[int] = field(default_factory=list)

    def prefill(self, tokens: Sequence[int], tap: Any = None) -> Any:
        self.decoded.clear()
        return SimpleNamespace(logits=np.eye(8, dtype=np.float32)[0])

    def decode(self, token: int) -> np.ndarray:
        self.decoded.append(token)
        return np.eye(8, dtype=np.float32)[len(self.decoded)] * (1.5 if self.drifts else 1)

    def decode_digest(self) -> str:
        return self.programs


def run(runner: Counting, inputs: str | None = "weights", earlier: Sequence[Earlier] = ()) -> Any:
    meter = Meter(cast("Any", SimpleNamespace(name="emulator")))
    return run_prompt(runner, meter, [1, 2], STEPS, inputs=inputs, earlier=earlier)


@pytest.fixture
def earlier(tmp_path: Path) -> list[Earlier]:
    """What a first run leaves in the ledger."""
    first = run(Counting())
    assert first.decoded == STEPS - 1
    return [Earlier(32, str(first.follows), str(save(tmp_path / "logits.npy", first.rows)))]


def test_the_same_decode_is_run_for_one_token_and_taken_over(earlier: list[Earlier]) -> None:
    runner = Counting()
    again = run(runner, earlier=earlier)
    assert (len(runner.decoded), again.decoded, again.taken_from) == (1, 1, 32)
    assert again.rows.tobytes() == run(Counting()).rows.tobytes()


@pytest.mark.parametrize(
    ("runner", "inputs"),
    [(Counting("another program"), "weights"), (Counting(), "other weights"), (Counting(), None)],
    ids=["program", "weights", "a device"],
)
def test_a_decode_that_follows_from_something_else_is_run_whole(
    runner: Counting, inputs: str | None, earlier: list[Earlier]
) -> None:
    again = run(runner, inputs, earlier)
    assert (len(runner.decoded), again.taken_from) == (STEPS - 1, None)


def test_a_first_token_that_is_not_the_kept_one_is_believed_before_any_digest(earlier: list[Earlier]) -> None:
    runner = Counting(drifts=True)
    again = run(runner, earlier=earlier)
    assert (len(runner.decoded), again.taken_from) == (STEPS - 1, None)
    assert again.rows[1].max() == 1.5


def test_phase_4_takes_phase_3s_decode_over_and_says_so_and_damaged_logits_are_not_taken(machine: Machine) -> None:
    ran = opened(machine).run(last=4)
    assert ran.state == "passed", ran.summary
    third, *fourth = [e for e in machine.state().attempts if e.body["gate"] in ("model", "prefill")]
    outcome = third.body["metrics"]["prompts"][0]
    assert outcome["taken_from"] is None
    assert third.body["metrics"]["decode"]["tokens"] == 3
    for entry in fourth:
        assert entry.body["metrics"]["prompts"][0] == {**outcome, "taken_from": third.seq}
        assert entry.body["metrics"]["decode"]["tokens"] == 1
        said = next(one["said"] for one in entry.body["criteria"] if one["name"] == "token_sets")
        assert f"line {third.seq}" in said
    site = Site(
        machine.workspace, Ledger.open(machine.workspace.ledger), machine.world, KERNELS, machine.advise, machine.teller
    )
    tokens = third.body["subject"]["prompts"][0]["tokens"]
    assert [one.seq for one in earlier_decodes(site, tokens)] == [third.seq]
    assert earlier_decodes(site, [*tokens, 1]) == []
    kept = next(path for path in third.body["digests"]["results"] if path.endswith("prompt_00_logits.npy"))
    save(machine.workspace.folder / kept, np.zeros((4, 512), np.float32))
    assert earlier_decodes(site, tokens) == []


def test_inputs_written_once_let_no_decode_stand_for_another(machine: Machine) -> None:
    opened(machine)
    site = Site(
        machine.workspace, Ledger.open(machine.workspace.ledger), machine.world, KERNELS, machine.advise, machine.teller
    )
    deployed = Deployed.of(site, BASELINE)
    assert decode_inputs(site, deployed.request, deployed.meter)
    deployed.meter.configure(Options(static={"rope": (0,)}))
    assert decode_inputs(site, deployed.request, deployed.meter) is None
