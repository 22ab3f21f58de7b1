"""One contract for both vector indexes. Chroma runs as its own server, as the product uses it."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from kb.embed import DIMENSIONS
from kb.errors import StoreUnavailable
from kb.vectors import ChromaIndex, ExactIndex, VectorIndex


def unit(seed: int, rows: int = 1) -> np.ndarray:
    matrix = np.random.default_rng(seed).standard_normal((rows, DIMENSIONS)).astype(np.float32)
    return matrix / np.linalg.norm(matrix, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def chroma_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    if importlib.util.find_spec("chromadb") is None:
        pytest.skip("extra 'shared' is not installed")
    command = shutil.which("chroma", path=str(Path(sys.executable).parent)) or shutil.which("chroma")
    if command is None:
        pytest.skip("the chroma command is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("chroma")
    process = subprocess.Popen(
        [command, "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError), urlopen(f"http://127.0.0.1:{port}/api/v2/heartbeat", timeout=1):
            break
        if time.monotonic() > deadline or process.poll() is not None:
            process.kill()
            pytest.fail("chroma run did not come up")
    yield port
    process.terminate()
    process.wait()


@pytest.fixture(params=["exact", "chroma"])
def index(request: pytest.FixtureRequest) -> VectorIndex:
    if request.param == "exact":
        return ExactIndex()
    port = request.getfixturevalue("chroma_port")
    return ChromaIndex("127.0.0.1", port, f"t{time.monotonic_ns()}")


def test_an_owner_is_found_by_its_best_vector_and_listed_once(index: VectorIndex) -> None:
    index.put({"a": unit(1, 3), "b": unit(2, 2)})
    found = index.nearest(unit(1, 3)[2], 5)
    assert found[0][0] == "a"
    assert found[0][1] == pytest.approx(1.0, abs=1e-4)
    assert [name for name, _ in found].count("a") == 1


def test_putting_an_owner_again_replaces_its_vectors(index: VectorIndex) -> None:
    index.put({"a": unit(1, 3)})
    index.put({"a": unit(9)})
    assert index.nearest(unit(9)[0], 1)[0][1] == pytest.approx(1.0, abs=1e-4)
    assert index.nearest(unit(1, 3)[0], 1)[0][1] < 0.9


def test_removed_owners_are_gone_and_unknown_ones_are_ignored(index: VectorIndex) -> None:
    index.put({"a": unit(1), "b": unit(2)})
    index.remove(["a", "never-there"])
    assert index.owners() == {"b"}
    assert [name for name, _ in index.nearest(unit(1)[0], 5)] == ["b"]


def test_an_empty_index_answers_nothing(index: VectorIndex) -> None:
    assert index.nearest(unit(1)[0], 5) == []


def test_order_is_by_cosine(index: VectorIndex) -> None:
    query = unit(5)[0]
    rows = {str(n): unit(100 + n) for n in range(30)}
    index.put(rows)
    expected = sorted(rows, key=lambda name: -float((rows[name] @ query)[0]))[:5]
    assert [name for name, _ in index.nearest(query, 5)] == expected


def test_a_server_that_is_not_there_says_what_to_start() -> None:
    if importlib.util.find_spec("chromadb") is None:
        with pytest.raises(StoreUnavailable, match=r"herdbook\[shared\]"):
            ChromaIndex("127.0.0.1", 1, "x")
    else:
        with pytest.raises(StoreUnavailable, match="chroma run"):
            ChromaIndex("127.0.0.1", 1, "x")
