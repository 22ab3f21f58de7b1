"""The bench over upstream's deployments: its data is sound, and its measure does what it says on small made-up deployments."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from harvest.errors import SourceUnusable
from harvest.recall import read_list
from harvest.transfer import DATA, base_of, deployments, read_failures, tells, words_digest


def transfer_data() -> dict[str, Any]:
    return tomllib.loads((DATA / "transfer.toml").read_text(encoding="utf-8"))


def test_every_failure_has_words_or_a_place_a_reason_and_earlier_answers_only() -> None:
    data = transfer_data()
    order = [one["name"] for one in data["deployment"]]
    ids: list[str] = []
    for item in data["failure"]:
        ids.append(item["id"])
        assert item["why"]
        assert item.get("ask") or (item.get("lines") and item.get("digest")), item["id"]
        for target in item["repeats"]:
            assert order.index(target.split("/")[0]) < order.index(item["deployment"]), item["id"]
            assert "#" in target
    assert len(ids) == len(set(ids)) >= 60


def test_the_repository_and_commit_the_judgement_was_made_at_are_named() -> None:
    data = transfer_data()
    assert data["repository"] == "tonyjie/mlir-air"
    assert len(str(data["commit"])) == 40


def test_every_listed_lesson_has_a_place_and_words() -> None:
    listed = read_list()
    assert len(listed) >= 80
    assert len({item["what"] for item in listed}) == len(listed)
    for item in listed:
        assert item["at"]
        assert item["words"]


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("m/docs/a.md#Lesson 2", True), ("m/docs/a.md#Lesson 3", False), ("m/docs/b.md#Lesson 2", False),
        ("m/docs/a.md#Lesson 2 / First", True), ("m/docs/a.md#Lesson 2 / Second", False),
    ],
)  # fmt: skip
def test_a_note_is_named_by_file_heading_and_item(target: str, told: bool) -> None:
    assert tells("notes:m/docs/a.md#Lesson 2 — what happened / First item", target) is told


def test_a_changed_document_is_left_out_and_named_never_asked_with_other_words(tmp_path: Path) -> None:
    for name in ("llama3", "qwen3_4b"):
        (tmp_path / name).mkdir()
    failures, changed = read_failures(tmp_path)
    assert "qwen3-4b-short-sequence" in changed
    assert all(failure.query for failure in failures)
    assert deployments(tmp_path) == ["llama3", "qwen3_4b"]
    assert words_digest("a  b\nc") == words_digest("a b c")


def test_another_folder_is_told_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(SourceUnusable, match="llm_mapping"):
        base_of(tmp_path)
