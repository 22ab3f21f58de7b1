"""A memory without a corpus, and deployments written in the ledger's own format."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kb import Memory, MemoryConfig, open_memory
from mcp_server import Config

MakeMemory = Callable[[str], Memory]


@pytest.fixture
def make_memory(tmp_path: Path, config: Config) -> Iterator[MakeMemory]:
    """Opens empty memories by name: no shipped records, the shipped ranking."""
    opened: list[Memory] = []

    def make(name: str) -> Memory:
        base = tmp_path / f"memory-{name}"
        (base / "corpus").mkdir(parents=True)
        (base / "compiled").mkdir()
        shutil.copy(config.compiled / "ranking.json", base / "compiled" / "ranking.json")
        memory = open_memory(MemoryConfig(base / "corpus", base / "compiled", base / "home", (), False))
        opened.append(memory)
        return memory

    yield make
    for memory in opened:
        memory.close()


@pytest.fixture
def empty(make_memory: MakeMemory) -> Memory:
    """One empty memory."""
    return make_memory("empty")
