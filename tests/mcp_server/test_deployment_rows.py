"""Phase 1 appends its kernels' rows to the user's registry; a harvest later knows them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harvest import apply_plan, plan_harvest
from kb import Filters, KbError, Memory, MemoryConfig, open_memory
from kb.records import KernelRow
from mcp_server import Config
from mcp_server.deployments import registrar
from npu_tools.deployment.machine import Machine
from npu_tools.deployment.workspace import Workspace
from tests.npu_tools.deployment.quick_world import KERNELS, QuickWorld, opened


@pytest.fixture
def memory(tmp_path: Path, config: Config) -> Iterator[Memory]:
    """An empty one: no shipped records, the shipped ranking."""
    for name in ("corpus", "compiled"):
        (tmp_path / name).mkdir()
    shutil.copy(config.compiled / "ranking.json", tmp_path / "compiled" / "ranking.json")
    made = open_memory(MemoryConfig(tmp_path / "corpus", tmp_path / "compiled", tmp_path / "home", (), False))
    yield made
    made.close()


def machine(folder: Path, memory: Memory) -> Machine:
    made = Machine(Workspace(folder), QuickWorld(), KERNELS, register=registrar(lambda: memory))
    return opened(made, layers=1, steps=2)


def rows(memory: Memory) -> list[KernelRow]:
    found = memory.records(Filters(kinds=("kernel_row",)))
    return [hit.record for hit in found if isinstance(hit.record, KernelRow)]


def test_rows_are_in_the_registry_right_after_phase_1_and_once(tmp_path: Path, memory: Memory) -> None:
    work = machine(tmp_path / "w", memory)
    assert work.run(last=0).passed == (0,)
    assert rows(memory) == []
    assert work.run(last=1).warnings == ()
    found = rows(memory)
    passed = [entry for entry in work.state().attempts if entry.body["gate"] == "kernel"]
    assert len(found) == len(passed)
    for row in found:
        assert row.figures == [], "the emulator measures nothing"
        assert "Modelled, not measured" in row.notes
        assert (row.provenance[0].evidence or "").startswith("ledger:")
        assert row.used_by == "tiny"
    work.run(first=1, last=1)
    apply_plan(memory, plan_harvest(memory, tmp_path / "w"))
    assert sorted(row.id for row in rows(memory)) == sorted(row.id for row in found)


def test_a_registry_that_cannot_be_written_is_said_and_made_up_for(tmp_path: Path, memory: Memory) -> None:
    work = machine(tmp_path / "w", memory)

    def broken() -> Memory:
        raise KbError("the disk is full")

    work.register = registrar(broken)
    ran = work.run(last=1)
    assert ran.passed == (0, 1)
    assert "the disk is full" in ran.warnings[-1]
    work.register = registrar(lambda: memory)
    work.run(last=2)
    assert rows(memory)
