"""Notes as they are found in the field become lessons; what they do not state stays missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from harvest.draft import Draft
from harvest.notes import drafts_of_notes
from harvest.sources import Source
from harvest.speed import drafts_of_figures
from harvest.tables import drafts_of_registry, drafts_of_tables


def drafts(text: str, label: str = "m/docs/development_progress/LESSONS.md") -> list[Draft]:
    return drafts_of_notes(Source("document", label, Path("x.md"), text))


def only(text: str) -> Draft:
    (found,) = drafts(text)
    return found


def test_labels_say_what_is_symptom_cause_and_fix() -> None:
    found = only(
        "# Lessons\n\n## Lesson 3 — K=4864 is over L2 (Phase 5, 2026-04-27)\n\n"
        "**Symptom (Phase 5)**: Down GEMV fails with `L2 capacity exceeded: 622592 > 524288`.\n\n"
        "**Root cause**: eight rows of K do not fit.\n\n**Fix**: tile_m 2.\n\n**How to apply**: for K over 4096.\n"
    )
    assert found.fields["title"] == "K=4864 is over L2"
    assert found.fields["cause"] == "eight rows of K do not fit."
    assert str(found.fields["fix"]).startswith("tile_m 2.")
    assert "K over 4096" in str(found.fields["fix"])
    assert "```\nL2 capacity exceeded: 622592 > 524288\n```" in str(found.fields["symptom"])
    assert found.fields["phases"] == ["5"]
    assert str(found.evidence.when) == "2026-04-27"
    assert found.missing == ()


def test_sub_headings_named_after_parts_are_one_lesson() -> None:
    found = only(
        "# Issues\n\n## The gate hangs\n\n### Symptom\nIt never returns from wait.\n\n### Cause\nA lock.\n\n### Fix\nRelease it first.\n"
    )
    assert (found.fields["cause"], found.fields["fix"]) == ("A lock.", "Release it first.")


@pytest.mark.parametrize("missing", ["cause", "fix"])
def test_what_is_not_stated_is_missing(missing: str) -> None:
    parts = {
        "Symptom": "GEMM output is garbage at N=128 in every column",
        "Cause": "N is too narrow",
        "Fix": "use tile_n=32",
    }
    text = "".join(f"**{name}**: {said}\n\n" for name, said in parts.items() if name.lower() != missing)
    found = only(f"# Bugs\n\n## Narrow N gives garbage\n\n{text}")
    assert found.missing == (missing,)
    assert not found.fields[missing]


def test_a_list_of_fixed_bugs_gives_one_lesson_an_item() -> None:
    found = drafts(
        "# Progress\n\n## Bugs found and fixed\n\n"
        "1. **Wrong buffer index**: the runtime returns every array and the output is the last one. Fix: take the last.\n"
        "2. **Stale folder**: two compilations in a row share one temporary folder. Fix: wipe it before each.\n"
    )
    assert [draft.fields["title"] for draft in found] == ["Wrong buffer index", "Stale folder"]


def test_attempts_of_which_the_last_passed_are_one_story() -> None:
    found = only(
        "# Phase 2\n\n## Debug timeline\n\n1. **Attempt #1**: seq 256, Q/K/V all garbage with cosine 0.0.\n2. **Attempt #2**: other tiles, the same garbage.\n"
        "3. **Attempt #3**: seq 512 with the old tiles. PASS, cosine 0.9988.\n\n**Root cause**: 256 rows are less than one round of the herd.\n"
    )
    assert "seq 512" in str(found.fields["fix"])
    assert "other tiles" in str(found.fields["did_not_help"])
    assert "one round" in str(found.fields["cause"])


def test_a_table_of_symptoms_gives_a_lesson_a_row() -> None:
    found = drafts(
        "# Failure modes\n\n| Symptom | Cause | Fix |\n|---|---|---|\n| all outputs are NaN from the first row on | per-launch flags | build with per-tile flags |\n"
        "| the second call repeats the first | static position | take it off the list of static ones |\n"
    )
    assert len(found) == 2
    assert all(not draft.missing for draft in found)


def test_reports_of_success_and_plans_are_no_lessons() -> None:
    text = (
        "# Progress\n\n## Status\n\n- [x] Phase 1: kernels (PASSED 2026-04-17, all shapes match)\n- PASS: cosine 0.9999 at every position of the block\n"
        "\n## Next\n\nThe LM head moves to the NPU in phase 5, as in the other deployments of this family.\n"
    )
    assert drafts(text) == []


def test_steps_with_figures_become_a_trajectory_with_their_gate() -> None:
    text = (
        "# Progress\n\n## Session log\n\n| Date | What was done |\n|---|---|\n"
        "| 2026-03-17 | **XRT context reuse**: NPU kernel 13.40s → 6.49s. 16 layers verified. |\n| 2026-03-20 | Optimal GEMM tiles: NPU 6.49s → **3.60s** (44% reduction). |\n"
    )
    (found,) = drafts_of_figures(Source("document", "llama/progress.md", Path("x"), text))
    steps = found.fields["steps"]
    assert [(s["when"], s["before"], s["after"], s["unit"], s["helped"]) for s in steps] == [
        ("2026-03-17", 13.4, 6.49, "s", True), ("2026-03-20", 6.49, 3.6, "s", True),
    ]  # fmt: skip
    assert "verified" in steps[0]["detail"]


def test_verified_shapes_become_rows_and_failed_ones_do_not() -> None:
    text = (
        "# Registry\n\n| Kernel | Shape | Cosine | Status |\n|---|---|---|---|\n| GEMM Q/O | M=2048 K=896 N=896 (tile_n=32) | 0.999935 | PASS |\n"
        "| GEMV Down | M=896 K=4864 | - | DEFERRED |\n| RoPE | outer 2048×128 | 0.999994 | PASS |\n"
    )
    found = drafts_of_tables(Source("document", "m/docs/kernel_registry/m.md", Path("x"), text))
    assert [(d.fields["kernel"], d.fields["shape"], d.fields["tile"]) for d in found] == [
        ("gemm", {"M": 2048, "K": 896, "N": 896}, {"tile_n": 32}), ("rope", {"d0": 2048, "d1": 128}, {}),
    ]  # fmt: skip
    assert found[0].fields["dtype"] == "not stated"


def test_a_registry_in_json_gives_rows() -> None:
    text = '{"kernels": [{"kernel": "gemv", "shape": {"M": 512, "K": 2048}, "dtype": "bf16", "status": "pass", "latency_us": 81.0},' \
           ' {"kernel": "gemv", "shape": {"M": 1, "K": 1}, "status": "failed"}]}'  # fmt: skip
    (found,) = drafts_of_registry(Source("registry", "m/registry.json", Path("x"), text))
    assert (found.fields["shape"], found.fields["dtype"]) == ({"M": 512, "K": 2048}, "bf16")
    assert found.fields["figures"] == [{"metric": "latency_us", "value": 81.0, "unit": "us"}]
