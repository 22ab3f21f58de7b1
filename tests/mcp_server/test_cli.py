"""The command line as a user and a script see it: exit codes, pure JSON, two processes, two homes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ERROR = "error: frobnication of quux exceeded its zork budget\nnote: zork budget is 17"
DRAFT = {
    "title": "The frobnicator refuses a large quux",
    "symptom": f"Building in /home/ann/x stops.\n```\n{ERROR}\n```",
    "cause": "quux is larger than the zork budget of 17",
    "fix": "1. Make quux smaller.",
}


class Cli:
    """`herdbook` in child processes with one home."""

    def __init__(self, home: Path) -> None:
        self.environment = {**os.environ, "HERDBOOK_HOME": str(home), "HERDBOOK_DENSE": "0"}

    def __call__(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        code = "from mcp_server.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments], input=text, capture_output=True, text=True,
            encoding="utf-8", check=False, env=self.environment,
        )  # fmt: skip

    def json(self, *arguments: str, text: str = "", code: int = 0) -> dict[str, object]:
        done = self(*arguments, "--json", text=text)
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


def test_the_demo_answers_its_three_logs(cli: Cli) -> None:
    answers = cli.json("demo")
    assert len(answers) == 3
    assert all(not answer["no_match"] for answer in answers.values())  # type: ignore[index]


def test_a_lesson_contributed_by_one_process_is_found_by_the_next_and_in_another_home(cli: Cli, tmp_path: Path) -> None:
    done = cli.json("contribute", "-", text=json.dumps(DRAFT))
    assert done["action"] == "stored"
    assert done["redacted"] == {"home-path": 1}
    found = cli.json("explain", text=ERROR)
    assert found["lessons"][0]["id"] == done["id"]  # type: ignore[index]
    assert found["lessons"][0]["cause"].startswith("> ")  # type: ignore[index]
    cli.json("export", str(tmp_path / "out"))
    other = Cli(tmp_path / "other")
    assert other.json("import", str(tmp_path / "out"))["new"] == [done["id"]]
    assert other.json("get", str(done["id"]))["record"] == cli.json("get", str(done["id"]))["record"]


def test_the_same_lesson_again_is_merged_and_counted(cli: Cli) -> None:
    cli.json("contribute", "-", text=json.dumps(DRAFT))
    again = cli.json("contribute", "-", text=json.dumps(DRAFT))
    assert (again["action"], again["seen"]) == ("merged", 2)


def test_no_known_match_exits_with_one_and_says_the_next_step(cli: Cli) -> None:
    reply = cli.json("explain", text="psql: FATAL: password authentication failed for user postgres", code=1)
    assert reply["no_match"] is True
    assert "contribute" in str(reply["next_step"])


def test_a_batch_writes_a_line_per_case_with_whole_texts(cli: Cli, tmp_path: Path) -> None:
    cases = tmp_path / "cases.jsonl"
    cases.write_text('{"id": "a", "query": "ERT_CMD_STATE_TIMEOUT"}\n\n{"id": "b", "query": ""}\n', encoding="utf-8")
    cli.json("explain", "--batch", str(cases), "--out", str(tmp_path / "out.jsonl"))
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == ["a", "b"]
    assert {"id", "title", "text", "confidence", "matched_on"} == set(lines[0]["results"][0])
    assert "## Fix" in lines[0]["results"][0]["text"]
    assert lines[1]["no_match"] is True


@pytest.mark.parametrize(
    ("arguments", "text", "says"),
    [
        (("explain", "no-such-file.log"), "", "no-such-file.log cannot be read"),
        (("explain", "--batch", "x.jsonl"), "", "--out"),
        (("explain", "--device", "toaster"), "x", "toaster"),
        (("explain", "--version", "llvm-aie"), "x", "PACKAGE=VERSION"),
        (("search", "--kind", "poem", "x"), "", "kernel_row"),
        (("get", "no-such-record"), "", "no record"),
        (("contribute", "-"), "{not json", "JSON"),
        (("contribute", "-"), '{"title": "x"}', "symptom"),
        (("contribute", "-"), "just text", "---"),
        (("import", "no-such-folder"), "", "does not exist"),
        (("outcome", "no-such-record", "--helped"), "", "no record"),
        (("connect", "emacs"), "", "claude-code"),
    ],
)
def test_unusable_input_exits_with_two_and_names_what_to_change(
    cli: Cli, arguments: tuple[str, ...], text: str, says: str
) -> None:
    done = cli(*arguments, text=text)
    assert done.returncode == 2
    assert says in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert json.loads(cli(*arguments, "--json", text=text).stdout)["error"]


def test_a_lesson_file_may_leave_out_id_category_and_provenance(cli: Cli) -> None:
    text = "---\ntitle: The quux is too big\ndevices: [Strix]\n---\n\n## Symptom\nzork\n\n## Cause\nquux\n\n## Fix\n1. Shrink it.\n"
    done = cli.json("contribute", "-", text=text)
    assert cli.json("get", str(done["id"]))["record"]["devices"] == ["npu2"]  # type: ignore[index]


def test_unknown_devices_and_phases_of_a_contribution_are_refused(cli: Cli) -> None:
    assert "toaster" in cli("contribute", "-", text=json.dumps({**DRAFT, "devices": ["toaster"]})).stderr
    assert "99" in cli("contribute", "-", text=json.dumps({**DRAFT, "phases": ["99"]})).stderr


def test_outcomes_are_counted(cli: Cli) -> None:
    cli.json("contribute", "-", text=json.dumps({**DRAFT, "id": "frob"}))
    assert cli.json("outcome", "frob", "--did-not-help", "--note", "nope")["did_not"] == 1
    assert cli.json("get", "frob", "--history")["did_not"] == 1


def test_an_existing_target_is_never_overwritten(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", encoding="utf-8")
    assert cli("export", str(tmp_path / "out")).returncode == 2
    assert (tmp_path / "out" / "mine.txt").read_text(encoding="utf-8") == "mine"


def test_the_editor_is_opened_on_a_template_and_its_text_is_stored(cli: Cli, tmp_path: Path) -> None:
    """A pseudo-terminal stands in for the person; the editor is a script that fills the template in."""
    pty = pytest.importorskip("pty", reason="needs a POSIX pseudo-terminal")
    script = tmp_path / "edit.py"
    script.write_text(
        "import sys; p = sys.argv[1]; t = open(p).read()\n"
        "t = t.replace('name-it-like-this', 'from-editor').replace('## Cause\\n', '## Cause\\nquux too big\\n')\n"
        "open(p, 'w').write(t.replace('1.\\n', '1. shrink it\\n'))\n",
        encoding="utf-8",
    )
    controller, terminal = pty.openpty()
    environment = {**cli.environment, "EDITOR": f"{sys.executable} {script}", "VISUAL": ""}
    code = "from mcp_server.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "contribute", "--json"], stdin=terminal, capture_output=True, text=True,
        check=False, env=environment,
    )  # fmt: skip
    os.close(controller)
    os.close(terminal)
    assert json.loads(done.stdout)["id"] == "from-editor", done.stderr


def test_the_search_agents_use_brings_up_the_right_skill_for_every_trigger_prompt(
    weights: Path, tmp_path: Path
) -> None:
    """With dense search; the prompts are data in kb/skills/triggers.toml."""
    dense = Cli(tmp_path / "home")
    dense.environment |= {"HERDBOOK_DENSE": "1", "HERDBOOK_WEIGHTS": str(weights)}
    said = dense.json("skills", "check")
    assert (said["missed"], said["dense"]) == ([], True)


def test_skills_install_into_the_agents_folder_of_the_project(cli: Cli, tmp_path: Path) -> None:
    done = cli.json("skills", "install", "--to", str(tmp_path / "skills"))
    assert (done["new"], done["changed"]) == (15, 0)
    assert cli.json("skills", "install", "somebody", code=2)["error"]


@pytest.mark.parametrize("arguments", [("nothing",), ("check", "x.mlir", "--seq", "0"), ("gate", "--rtol", "nan")])
def test_what_the_option_parser_refuses_is_json_too(cli: Cli, arguments: tuple[str, ...]) -> None:
    assert cli.json(*arguments, code=2)["error"]
