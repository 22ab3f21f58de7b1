"""The oracle is asked a question once: also where a later one is about some of the same prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npu_tools.deployment import oracle_runs
from npu_tools.deployment.ledger import Ledger
from npu_tools.deployment.machine import Machine
from npu_tools.deployment.site import Site, save
from tests.npu_tools.deployment.quick_world import KERNELS, opened

STEPS = 2


@pytest.fixture
def site(machine: Machine) -> Site:
    opened(machine)
    ledger = Ledger.open(machine.workspace.ledger)
    return Site(machine.workspace, ledger, machine.world, KERNELS, machine.advise, machine.teller)


def logits(answer: Any) -> list[bytes]:
    return [np.load(answer.folder / one["logits"]).tobytes() for one in answer.answer["prompts"]]


def test_references_of_some_prompts_come_out_of_those_of_all(site: Site, world: Any) -> None:
    whole = oracle_runs.greedy(site, [[1, 2], [3, 4, 5]], STEPS)
    second = oracle_runs.greedy(site, [[3, 4, 5]], STEPS)
    assert logits(second) == logits(whole)[1:]
    assert world.asked == ["greedy"]


@pytest.mark.parametrize(("prompts", "steps"), [([[1, 2], [9]], STEPS), ([[1, 2]], STEPS + 1)], ids=["prompt", "steps"])
def test_another_prompt_or_more_tokens_are_asked_for(
    site: Site, world: Any, prompts: list[list[int]], steps: int
) -> None:
    oracle_runs.greedy(site, [[1, 2], [3, 4, 5]], STEPS)
    assert oracle_runs.greedy(site, prompts, steps).ok
    assert world.asked == ["greedy", "greedy"]


def test_references_changed_on_disk_are_asked_for_anew(site: Site, world: Any) -> None:
    whole = oracle_runs.greedy(site, [[1, 2], [3, 4, 5]], STEPS)
    save(whole.folder / whole.answer["prompts"][1]["logits"], np.zeros((STEPS, 512), np.float32))
    assert logits(oracle_runs.greedy(site, [[1, 2]], STEPS)) == [logits(whole)[0]]
    assert world.asked == ["greedy", "greedy"]
