"""Shared fixtures: a fresh home, the shipped corpus, a small corpus, the MiniLM weights when they are here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from kb import Lesson, Memory, open_memory
from kb.records import Provenance
from mcp_server import Config


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--air-ir DIR`: upstream's printed AIR programs, `--mlir-air DIR`: its sources; for the tests that read them."""
    parser.addoption("--air-ir", default=None, metavar="DIR", help="folder of upstream's printed AIR programs")
    parser.addoption(
        "--mlir-air", default=None, metavar="DIR", help="a clone of mlir-air, to compare with its own backend"
    )


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """The shipped corpus with a fresh home; weights wherever this machine has them."""
    found = Config.from_environment()
    return replace(found, home=tmp_path / "home", chroma=None, dense=True)


@pytest.fixture
def lexical_config(config: Config) -> Config:
    """The same without dense search: quick, and needs no weights."""
    return replace(config, dense=False)


@pytest.fixture
def memory(lexical_config: Config) -> Iterator[Memory]:
    """A lexical memory over the shipped corpus and a fresh home."""
    opened = open_memory(lexical_config.memory())
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def weights() -> Path:
    """The folder with the MiniLM weights; tests that need it are skipped where it is not."""
    from kb.embed import find_weights
    from kb.errors import WeightsMissing

    try:
        return find_weights(Config.from_environment().weights)
    except WeightsMissing as error:
        pytest.skip(str(error))


def lesson(number: int = 1, **fields: object) -> Lesson:
    """A made-up lesson about a tool that does not exist, so that no shipped one matches it."""
    base: dict[str, object] = {
        "id": f"frob-{number}",
        "title": f"The frobnicator refuses quux number {number}",
        "category": "compile",
        "symptom": f"Building stops.\n```\nerror: frobnication of quux {number} exceeded its zork budget\n```",
        "cause": f"quux {number} is larger than the zork budget",
        "fix": f"1. Make quux {number} smaller.",
        "provenance": [Provenance(evidence="test", date=date(2026, 1, 2))],
    }
    return Lesson(**{**base, **fields})  # type: ignore[arg-type]
