"""What is read of a folder, what is left out and why; transcripts, logs and jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from harvest import SourceUnusable, apply_plan, plan_harvest
from harvest.sources import read_sources
from kb import Memory
from kb.records import Lesson

DIAGNOSTIC = "error: 'aiex.npu.push_queue' op Repeat count exceeds the [0:255] range."


def lessons(memory: Memory) -> list[Lesson]:
    return [hit.record for hit in memory.records() if isinstance(hit.record, Lesson)]


def write(folder: Path, name: str, text: str = "# Notes\n") -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_layouts_of_the_field_are_recognised(tmp_path: Path) -> None:
    names = [
        "m/docs/development_progress/LESSONS.md", "m/docs/development_progress/debug_log.md", "m/docs/development_progress/progress.md",
        "m/docs/development_progress/phase4_prefill.md", "m/issues.md", "m/perf_opt_traj.md", "m/docs/perf_optimization.md", "m/docs/kernels/gemm.md",
        ".claude/skills/debug/SKILL.md", "m/TODO.md",
    ]  # fmt: skip
    for name in [*names, "README.md", "docs/usage.md", "m/build/LESSONS.md", "node_modules/x/LESSONS.md"]:
        write(tmp_path, name)
    found = {source.path.relative_to(tmp_path.resolve()).as_posix() for source in read_sources(tmp_path).sources}
    assert found == set(names)


def test_a_note_has_the_same_name_whether_a_checkout_or_one_deployment_is_harvested(tmp_path: Path) -> None:
    write(tmp_path, "tree/qwen/docs/development_progress/LESSONS.md")
    labels = {read_sources(tmp_path / part).sources[0].label for part in ("tree", "tree/qwen")}
    assert labels == {"qwen/docs/development_progress/LESSONS.md"}


def test_a_missing_folder_says_what_to_give(tmp_path: Path, empty: Memory) -> None:
    with pytest.raises(SourceUnusable, match="workspace"):
        plan_harvest(empty, tmp_path / "no")


def test_a_log_alone_is_refused_and_says_what_is_missing(tmp_path: Path, empty: Memory) -> None:
    write(tmp_path, "compile.log", f"building\nin.mlir:3:5: {DIAGNOSTIC}\nmake: *** [x] Error 1\n")
    (item,) = plan_harvest(empty, tmp_path).items
    assert (item.action, item.needs) == ("refused", ("fix", "cause"))
    answered = plan_harvest(
        empty,
        tmp_path,
        answers={
            item.evidence[0]: {
                "fix": "split the K transfer with down_k_split=70",
                "cause": "the vector is read too often",
            }
        },
    )
    assert answered.counts()["new"] == 1


def claude_line(kind: str, **part: object) -> str:
    role = "assistant" if kind == "tool_use" else "user"
    return json.dumps(
        {
            "type": role,
            "timestamp": "2026-05-01T10:00:00Z",
            "message": {"role": role, "content": [{"type": kind, **part}]},
        }
    )


@pytest.mark.parametrize("form", ["claude", "codex", "text"])
def test_a_transcript_tells_failure_edit_and_pass(tmp_path: Path, empty: Memory, form: str) -> None:
    failure = f"in.mlir:3:5: {DIAGNOSTIC}\nmake: *** [run] Error 1"
    if form == "claude":
        lines = [
            claude_line("tool_use", id="1", name="Bash", input={"command": "make run"}),
            claude_line("tool_result", tool_use_id="1", content=failure, is_error=True),
            claude_line("tool_use", id="2", name="Edit", input={"file_path": "/home/ann/design.py", "old_string": "k_split=None", "new_string": "k_split=70"}),
            claude_line("tool_use", id="3", name="Bash", input={"command": "make run"}),
            claude_line("tool_result", tool_use_id="3", content="PASS"),
        ]  # fmt: skip
        write(tmp_path, "session.jsonl", "\n".join(lines) + "\n")
    elif form == "codex":
        calls = [
            {"type": "function_call", "call_id": "1", "name": "shell", "arguments": json.dumps({"command": ["bash", "-lc", "make run"]})},
            {"type": "function_call_output", "call_id": "1", "output": failure},
            {"type": "function_call", "call_id": "2", "name": "apply_patch", "arguments": json.dumps({"patch": "-k_split=None\n+k_split=70"})},
            {"type": "function_call", "call_id": "3", "name": "shell", "arguments": json.dumps({"command": ["bash", "-lc", "make run"]})},
            {"type": "function_call_output", "call_id": "3", "output": "PASS"},
        ]  # fmt: skip
        write(
            tmp_path,
            "session.jsonl",
            "\n".join(json.dumps({"type": "response_item", "payload": call}) for call in calls) + "\n",
        )
    else:
        write(
            tmp_path,
            "session.txt",
            f"$ make run\n{failure}\n$ git diff\n@@ -1 +1 @@\n-k_split=None\n+k_split=70\n$ make run\nPASS\n",
        )
    plan = plan_harvest(empty, tmp_path)
    apply_plan(empty, plan)
    (found,) = lessons(empty)
    assert DIAGNOSTIC in found.symptom
    assert "k_split=70" in found.fix
    assert "/home/ann" not in found.fix
    assert plan.items[0].needs == ("cause",)


def test_a_failed_command_that_was_never_mended_is_no_lesson(tmp_path: Path, empty: Memory) -> None:
    write(tmp_path, "session.txt", f"$ make run\n{DIAGNOSTIC}\n$ make clean\nok\n$ ls\nmake.log\n")
    assert plan_harvest(empty, tmp_path).counts()["new"] == 0


def job(folder: Path, name: str, ended: float, program: str, finding: Mapping[str, object] | None) -> None:
    place = folder / name
    write(
        place,
        "request.json",
        json.dumps({"kind": "run", "request": {"program": {"name": "gemv.mlir", "text": program}}}),
    )
    write(place, "state.json", json.dumps({"state": "done", "queued_at": ended, "ended_at": ended}))
    answer = {"ok": finding is None, "findings": [finding] if finding else []}
    write(place, "result.json", json.dumps(answer))


def test_jobs_on_one_program_tell_what_of_it_was_changed(tmp_path: Path, empty: Memory) -> None:
    bad = {
        "severity": "error",
        "code": "buffer_bytes",
        "message": "622592 bytes in L2, over 524288",
        "diagnostic": DIAGNOSTIC,
        "limit": "memtile.bytes",
        "source": "devices.toml",
    }
    job(tmp_path, "run-20260501-100000-aaaaaa", 1.7e9, "a\ntile = 8\nb", bad)
    job(tmp_path, "run-20260501-100500-bbbbbb", 1.7e9 + 300, "a\ntile = 2\nb", None)
    apply_plan(empty, plan_harvest(empty, tmp_path))
    (found,) = lessons(empty)
    assert "-tile = 8\n+tile = 2" in found.fix
    assert "memtile.bytes" in found.cause
    assert found.provenance[0].evidence == "job:run-20260501-100000-aaaaaa..run-20260501-100500-bbbbbb"


def test_an_endless_note_is_read_within_bounds(tmp_path: Path) -> None:
    """One line of a megabyte, fifteen thousand rows, eight hundred levels of points."""
    from harvest.extract import extract
    from harvest.notes import MAX_DRAFTS
    from harvest.sources import MAX_LINE_CHARS

    row = "| gemm fails with an error | the tile is wrong here | use another tile |\n"
    write(tmp_path, "a/LESSONS.md", "## x\n\n| Symptom | Cause | Fix |\n|---|---|---|\n" + row * 15_000)
    write(tmp_path, "b/LESSONS.md", "## Bug\n\n- " + "**" * 300_000 + " fails, use another\n")
    write(tmp_path, "c/LESSONS.md", "## Bugs\n\n" + "".join(" " * n + "- fails fix use error\n" for n in range(800)))
    reading = read_sources(tmp_path)
    assert max(len(line) for source in reading.sources for line in source.text.split("\n")) <= MAX_LINE_CHARS
    assert len(extract(reading).drafts) <= 3 * MAX_DRAFTS
