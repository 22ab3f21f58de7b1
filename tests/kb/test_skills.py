"""Skills: valid Agent Skills, found by their names, installed without losing what was there."""

from __future__ import annotations

from pathlib import Path

import pytest

import kb
from kb.errors import FileInvalid, KbError
from kb.skills import Trigger, install, read_skill, read_triggers, score_triggers, skill_files

FOLDER = Path(kb.__file__).parent / "skills"
NAMES = {path.parent.name for path in skill_files(FOLDER)}
UPSTREAM = {
    "deploy-new-llm", "phase-0-build-cpu-reference", "phase-1-kernel-validation", "phase-2-single-block-validation",
    "phase-3-full-model-validation", "phase-4-prefill-optimization", "phase-5-decode-optimization", "phase-6-finalize-and-learn",
    "phase-7-independent-evaluator", "opt-merge-multi-launch-kernels", "opt-buffer-object-reuse", "opt-layout-alignment",
    "debug-bo-corruption", "debug-fa-runtime-failure", "debug-multi-launch-merge",
}  # fmt: skip
OLDER = {"build-cpu-oracle", "kernel-validation", "single-block-validation", "full-model-validation", "prefill-optimization",
         "decode-optimization", "finalize-and-learn", "independent-evaluator", "merge-multi-launch-kernels", "runtime-failure",
         "bo-corruption", "routing-congestion"}  # fmt: skip


def written(folder: Path, text: str, name: str = "a-skill") -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def skill_text(**changed: str) -> str:
    fields = {
        "name": "a-skill",
        "description": "Does a thing. Use when it is asked for.",
        "metadata": "{source-repo: a/b, source-path: c, source-commit: abcdef0, source-date: '2026-01-02'}",
    } | changed
    front = "\n".join(f"{name}: {value}" for name, value in fields.items() if value)
    return f"---\n{front}\n---\n\n# A skill\n\nDo it.\n"


def test_the_fifteen_skills_are_there_under_upstreams_names() -> None:
    assert NAMES == UPSTREAM


def test_every_skill_is_short_and_says_its_source() -> None:
    for path in skill_files(FOLDER):
        skill = read_skill(path)
        assert len(skill.body.split()) < 700, skill.id
        assert skill.provenance[0].repo == "Xilinx/mlir-air"


def test_no_two_skills_share_a_name() -> None:
    names = [name for path in skill_files(FOLDER) for name in (path.parent.name, *read_skill(path).aliases)]
    assert len(names) == len(set(names))
    assert set(names) >= OLDER


def test_a_skill_is_read_as_a_record(tmp_path: Path) -> None:
    skill = read_skill(written(tmp_path, skill_text()))
    assert (skill.id, skill.title, skill.status) == ("a-skill", "A skill", "documented")
    assert skill.body.endswith("Do it.")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "another"}, "differs from its folder"),
        ({"name": "A Skill"}, "lower-case"),
        ({"description": "x" * 1025}, "1,024"),
        ({"description": ""}, "description"),
        ({"metadata": ""}, "date"),
        ({"metadata": "{phase: 3}"}, "texts by name"),
        ({"version": "1"}, "unknown fields version"),
    ],
)
def test_an_invalid_skill_is_refused_with_the_reason(tmp_path: Path, changed: dict[str, str], said: str) -> None:
    with pytest.raises(FileInvalid, match=said):
        read_skill(written(tmp_path, skill_text(**changed)))


def test_installing_twice_changes_nothing(tmp_path: Path) -> None:
    assert {one.action for one in install(FOLDER, tmp_path)} == {"new"}
    assert {one.action for one in install(FOLDER, tmp_path)} == {"same"}


def test_a_skill_somebody_changed_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    for text in ("mine", "mine again"):
        written(tmp_path, text, "deploy-new-llm")
        (done,) = install(FOLDER, tmp_path, ["deploy-new-llm"])
        assert done.action == "changed"
    kept = sorted(path.read_text() for path in (tmp_path / "deploy-new-llm").glob("SKILL.md.bak*"))
    assert kept == ["mine", "mine again"]


def test_an_unknown_skill_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(KbError, match="no skill nothing; there are"):
        install(FOLDER, tmp_path, ["nothing"])


def test_every_skill_has_prompts_that_should_and_should_not_trigger_it() -> None:
    triggers = read_triggers(FOLDER)
    assert {trigger.skill for trigger in triggers} == NAMES


def test_prompts_of_too_few_are_refused(tmp_path: Path) -> None:
    written(tmp_path, skill_text())
    (tmp_path / "triggers.toml").write_text('[a-skill]\nyes = ["a", "b"]\nno = ["c", "d"]\n')
    with pytest.raises(FileInvalid, match="at least three"):
        read_triggers(tmp_path)


def test_a_case_is_right_when_the_skill_comes_first_as_wanted() -> None:
    answers = {"one": "a", "two": "b", "three": None}
    wanted = [Trigger("a", "one", True), Trigger("a", "two", False), Trigger("a", "three", True)]
    scored = score_triggers(wanted, lambda prompt: (answers[prompt], 1.0))
    assert [one.right for one in scored] == [True, True, False]
