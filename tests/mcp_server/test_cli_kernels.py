"""`herdbook kernel list, show, best, test` as a person or a script calls them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def herdbook(tmp_path: Path):
    def run(*words: str, code: int = 0) -> dict[str, Any]:
        environment = {**os.environ, "HERDBOOK_HOME": str(tmp_path), "HERDBOOK_DENSE": "0", "OPENBLAS_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from mcp_server.start import main; main()", "kernel", *words, "--json"],
            capture_output=True, text=True, env=environment, check=False, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    return run


def test_the_list_says_how_many_rows_of_a_kernel_were_measured(herdbook) -> None:
    listed = {each["name"]: each for each in herdbook("list")["kernels"]}
    assert listed["gemm"]["measured"] > 100
    assert listed["gemv_residual"]["measured"] == 0
    assert listed["lm_head_gemv"]["shape"] == "vocabxemb"


def test_a_measured_shape_comes_with_its_sources_and_an_unmeasured_one_says_so(herdbook) -> None:
    best = herdbook("best", "gemv", "2048x8192")
    assert best["chosen"]["by"] == "measured"
    assert best["measured"][0]["provenance"][0]["path"].endswith("GEMV_bf16.md")
    unknown = herdbook("best", "gemv", "192x576")
    assert unknown["measured"] == "not measured"
    assert unknown["chosen"]["ok"]


def test_a_refused_shape_answers_no_with_its_findings(herdbook) -> None:
    refused = herdbook("best", "gemv_residual", "896x896", code=1)
    assert "k_multiple" in {finding["code"] for finding in refused["findings"]}


def test_an_unknown_kernel_or_case_is_unusable_input(herdbook) -> None:
    assert "gemm" in herdbook("show", "warp_drive", code=2)["error"]
    assert "cases" in herdbook("test", "gemv", "--case", "99", code=2)["error"]


def test_a_recipe_tests_itself_and_shows_its_page(herdbook) -> None:
    tested = herdbook("test", "gemv", "--case", "1")
    assert tested["passed"]
    assert tested["cases"][0]["ran_on"] == "emulator"
    assert "Datapath" in herdbook("show", "gemv")["page"]
