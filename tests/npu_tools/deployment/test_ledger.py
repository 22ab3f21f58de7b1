"""The ledger: lines stay what they were, or the reader is told; a crash loses nothing that was promised."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npu_tools.deployment.ledger import FIRST, Ledger, read, verify
from npu_tools.errors import LedgerBroken, UnusableInput

MANY = """
import sys
from pathlib import Path
from npu_tools.deployment.ledger import Ledger
ledger = Ledger.open(Path(sys.argv[1]))
for number in range(25):
    ledger.append("note", None, {"text": f"{sys.argv[2]} {number}"})
"""


def filled(folder: Path, lines: int = 3) -> Path:
    ledger = Ledger.open(folder / "ledger.jsonl")
    for number in range(lines):
        ledger.append("note", number, {"text": f"line {number}"})
    return ledger.path


def test_lines_follow_each_other_and_are_read_back(tmp_path: Path) -> None:
    path = filled(tmp_path)
    entries = read(path)
    assert [entry.seq for entry in entries] == [1, 2, 3]
    assert entries[0].prev == FIRST
    assert [entry.prev for entry in entries[1:]] == [entry.hash for entry in entries[:-1]]
    assert verify(path) is None
    assert Ledger.open(path).append("phase", 1, {"state": "started"}).seq == 4


def test_numbers_of_numpy_and_nan_become_json(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.jsonl")
    ledger.append("attempt", 1, {"error": np.float32(0.5), "nan": float("nan"), "ids": (np.int64(3),)})
    assert read(ledger.path)[0].body == {"error": 0.5, "nan": None, "ids": [3]}


@pytest.mark.parametrize("line", [0, 1, 2])
def test_a_changed_line_is_found_and_nothing_is_appended_after_it(tmp_path: Path, line: int) -> None:
    path = filled(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[line] = lines[line].replace(f"line {line}", "line x")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    broken = verify(path)
    assert broken is not None
    assert broken.line == line + 1
    with pytest.raises(LedgerBroken, match=f"line {line + 1}"):
        Ledger.open(path)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3


def test_a_line_written_anew_with_a_right_hash_breaks_the_chain_after_it(tmp_path: Path) -> None:
    from npu_tools.deployment.ledger import canonical, digest

    path = filled(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    forged = json.loads(lines[1])
    forged["body"]["text"] = "better"
    forged["hash"] = digest(forged)
    path.write_text("\n".join([lines[0], canonical(forged), lines[2]]) + "\n", encoding="utf-8")
    broken = verify(path)
    assert broken is not None
    assert broken.line == 3


def test_a_forged_or_missing_last_line_is_found(tmp_path: Path) -> None:
    from npu_tools.deployment.ledger import canonical, digest

    path = filled(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join(lines[:2]) + "\n", encoding="utf-8")
    broken = verify(path)
    assert broken is not None
    assert "only 2" in broken.reason
    forged = json.loads(lines[2])
    forged["body"]["text"] = "better"
    forged["hash"] = digest(forged)
    path.write_text("\n".join([*lines[:2], canonical(forged)]) + "\n", encoding="utf-8")
    assert verify(path) is not None


@pytest.mark.parametrize("kept", [1, 30, -2])
def test_a_torn_last_line_is_set_aside_and_said(tmp_path: Path, kept: int) -> None:
    path = filled(tmp_path)
    content = path.read_bytes()
    third = content.splitlines(keepends=True)[-1]
    path.write_bytes(content + third.replace(b'"seq":3', b'"seq":4')[:kept])
    assert len(read(path)) == 3, "a reader only leaves it out"
    ledger = Ledger.open(path)
    assert "put aside" in ledger.entries()[-1].body["text"]
    assert (tmp_path / "ledger.torn-4.txt").read_bytes() == third.replace(b'"seq":3', b'"seq":4')[:kept]
    assert verify(path) is None


def test_a_line_that_lacks_only_its_end_is_kept(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    assert len(Ledger.open(path).entries()) == 3
    assert path.read_bytes().endswith(b"\n")
    assert not list(tmp_path.glob("*.torn*"))


def test_two_processes_append_by_turns(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writers = [subprocess.Popen([sys.executable, "-P", "-c", MANY, str(path), name]) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(read(path)) == 50


def test_a_ledger_sees_what_another_appended(tmp_path: Path) -> None:
    one, other = Ledger.open(tmp_path / "ledger.jsonl"), Ledger.open(tmp_path / "ledger.jsonl")
    one.append("note", None, {"text": "first"})
    assert other.append("note", None, {"text": "second"}).seq == 2
    assert len(one.entries()) == 2


def test_no_room_on_the_disk_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(tmp_path)
    before = path.read_bytes()
    ledger = Ledger.open(path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("npu_tools.deployment.ledger.os.fsync", full)
        with pytest.raises(UnusableInput, match="No space left"):
            ledger.append("note", None, {"text": "lost"})
    assert path.read_bytes() == before
    assert ledger.append("note", None, {"text": "kept"}).seq == 4
    assert verify(path) is None


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text("not a ledger\n", encoding="utf-8")
    with pytest.raises(LedgerBroken, match="no JSON"):
        Ledger.open(path)
    with pytest.raises(UnusableInput, match="no kind"):
        Ledger.open(tmp_path / "other.jsonl").append("gossip", None, {})  # pyright: ignore[reportArgumentType]
