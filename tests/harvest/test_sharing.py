"""What one home learnt, a team-mate's home takes in: through a folder, an archive or a git directory."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from harvest import apply_plan, plan_harvest
from harvest.planted import PLANTED, asked_with, deploy
from harvest.sharing import export_new, import_shared
from kb import Memory, parse_record
from kb.errors import ImportRefused
from tests.harvest.conftest import MakeMemory


@pytest.fixture
def learnt(tmp_path: Path, make_memory: MakeMemory) -> Memory:
    """A memory that has harvested three failures."""
    memory = make_memory("learnt")
    apply_plan(memory, plan_harvest(memory, deploy(tmp_path / "w", "SmolLM2-135M", PLANTED[:3])))
    return memory


def test_new_records_become_files_ready_for_a_pull_request(learnt: Memory, tmp_path: Path) -> None:
    done = export_new(learnt, tmp_path / "out")
    assert len(done.written) == 6
    files = sorted(p for p in (tmp_path / "out").rglob("*.md") if p.name != "README.md")
    assert {parse_record(p.read_text(encoding="utf-8")).id for p in files} == set(done.written)
    summary = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert all(name in summary for name in done.written)


def test_exporting_again_writes_what_came_since(learnt: Memory, tmp_path: Path) -> None:
    export_new(learnt, tmp_path / "out")
    assert export_new(learnt, tmp_path / "again").written == ()
    apply_plan(learnt, plan_harvest(learnt, deploy(tmp_path / "w2", "Qwen3-0.6B", PLANTED[4:5])))
    assert len(export_new(learnt, tmp_path / "out").written) == 2


def test_a_checkout_is_added_to_and_never_overwritten(learnt: Memory, tmp_path: Path) -> None:
    name = next(hit.record.id for hit in learnt.records() if hit.record.kind == "lesson")
    mine = tmp_path / "out" / "lessons" / f"{name}.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("somebody's own\n", encoding="utf-8")
    with pytest.raises(ImportRefused, match="another text"):
        export_new(learnt, tmp_path / "out")
    assert mine.read_text(encoding="utf-8") == "somebody's own\n"


@pytest.mark.parametrize("form", ["folder", "tar", "checkout", "git directory"])
def test_a_team_mate_takes_them_in_and_finds_them(
    learnt: Memory, make_memory: MakeMemory, tmp_path: Path, form: str
) -> None:
    folder = tmp_path / "out"
    export_new(learnt, folder)
    source = folder
    if form == "tar":
        source = tmp_path / "out.tar.gz"
        with tarfile.open(source, "w:gz") as archive:
            archive.add(folder, arcname=".")
    elif form != "folder":
        if shutil.which("git") is None:
            pytest.skip("git is not installed")
        identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
        for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "lessons"]):
            subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)
        source = folder if form == "checkout" else folder / ".git"
    other = make_memory("other")
    report = import_shared(other, source)
    assert len(report.new) == 6
    assert import_shared(other, source).new == ()
    answer = other.explain(asked_with(PLANTED[0]))
    assert not answer.no_match
    assert "divide" in answer.hits[0].record.title


def test_a_git_directory_that_cannot_be_read_is_refused_whole(make_memory: MakeMemory, tmp_path: Path) -> None:
    broken = tmp_path / "x.git"
    for name in ("objects", "refs"):
        (broken / name).mkdir(parents=True)
    (broken / "HEAD").write_text("ref: refs/heads/none\n", encoding="utf-8")
    with pytest.raises(ImportRefused, match="git"):
        import_shared(make_memory("m"), broken)


def test_a_record_with_something_secret_in_it_is_left_out(learnt: Memory, tmp_path: Path) -> None:
    from datetime import date

    from kb.records import Lesson, Provenance

    assert learnt.store is not None
    learnt.store.add(
        Lesson(id="leaky", title="A leaky lesson", category="process", symptom="gemm stops", cause="see host 10.1.2.3 of ann@mail.example.org",
               fix="none", provenance=[Provenance(evidence="t", date=date(2026, 1, 1))])
    )  # fmt: skip
    done = export_new(learnt, tmp_path / "out")
    assert "leaky" not in done.written
    assert done.left_out[0][0] == "leaky"


def test_what_was_imported_stays_when_the_team_mate_harvests_and_undoes(
    learnt: Memory, make_memory: MakeMemory, tmp_path: Path
) -> None:
    """Other homes' events come along with their records, and must not make these look like harvested here."""
    from harvest import undo
    from kb.exchange import export

    apply_plan(learnt, plan_harvest(learnt, deploy(tmp_path / "twice", "Qwen3-0.6B", PLANTED[:3], second=True)))
    export(learnt, tmp_path / "all")
    other = make_memory("other")
    taken = set(import_shared(other, tmp_path / "all").new)
    apply_plan(other, plan_harvest(other, deploy(tmp_path / "w3", "Llama-3.2-1B", PLANTED[5:7])))
    assert taken <= {hit.record.id for hit in other.records()}
    undo(other)
    assert {hit.record.id for hit in other.records()} == taken
