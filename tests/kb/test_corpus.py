"""The shipped corpus is fit to ship, and a damaged compiled form is noticed and survived."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kb.check import check
from kb.corpus import load, record_files, source_digest
from kb.records import Lesson
from mcp_server import Config


def test_the_shipped_corpus_passes_its_own_checker(lexical_config: Config) -> None:
    report = check(lexical_config.corpus, lexical_config.compiled)
    assert report.errors == []
    assert report.lessons >= 450
    assert report.duplicates == []


def test_the_compiled_form_is_built_from_these_very_files(lexical_config: Config) -> None:
    assert load(lexical_config.corpus, lexical_config.compiled).digest == source_digest(lexical_config.corpus)


@pytest.fixture
def small(lexical_config: Config, tmp_path: Path) -> tuple[Path, Path]:
    """Thirty lessons and the compiled form of the whole corpus, in a folder to damage."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for path in record_files(lexical_config.corpus / "lessons")[:30]:
        shutil.copy(path, folder)
    compiled = tmp_path / "compiled"
    shutil.copytree(lexical_config.compiled, compiled)
    return folder, compiled


@pytest.mark.parametrize("name", ["manifest.json", "records.jsonl", "postings.npz", "vectors.npz"])
def test_a_damaged_compiled_file_falls_back_to_the_markdown_and_says_so(small: tuple[Path, Path], name: str) -> None:
    folder, compiled = small
    (compiled / name).write_bytes(b"damaged")
    corpus = load(folder, compiled)
    assert len(corpus.records) == 30
    assert "compiled corpus unusable" in corpus.warnings[0]


def test_the_checker_names_what_is_wrong_with_a_record(small: tuple[Path, Path]) -> None:
    folder, compiled = small
    path = next(p for p in sorted(folder.glob("*.md")) if "kind: lesson" in p.read_text(encoding="utf-8"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("status: documented", "status: observed") + "\n" + "word " * 320, encoding="utf-8")
    errors = "\n".join(check(folder, compiled).errors)
    assert "over 300" in errors
    assert "observed" in errors
    assert "older than the records" in errors


def test_every_shipped_source_has_a_form_a_script_can_resolve(lexical_config: Config) -> None:
    for record in load(lexical_config.corpus, lexical_config.compiled).records.values():
        for item in record.provenance:
            assert item.repo
            assert item.issue or (item.path and len(item.commit or "") == 40)


def test_negative_and_open_findings_are_kept_too(lexical_config: Config) -> None:
    found = {
        r.resolution
        for r in load(lexical_config.corpus, lexical_config.compiled).records.values()
        if isinstance(r, Lesson)
    }
    assert found == {"fixed", "workaround", "by_design", "open", "negative"}
