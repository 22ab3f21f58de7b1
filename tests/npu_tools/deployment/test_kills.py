"""A deployment killed again and again, in whatever phase: it ends all the same, and its ledger tells the truth."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npu_tools.deployment.ledger import read, verify
from npu_tools.deployment.state import State

ROOT = Path(__file__).resolve().parents[3]
LIVES = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from npu_tools.deployment.ledger import Ledger
from npu_tools.deployment.machine import Machine
from npu_tools.deployment.workspace import Workspace
from tests.npu_tools.deployment.quick_world import KERNELS, QuickWorld, opened

left = int(sys.argv[3])
append = Ledger.append

def dying(self, kind, phase, body):
    global left
    left -= 1
    if left == 0:
        if left_torn:  # half a line, as a power cut leaves it
            with self.path.open("ab") as file:
                file.write(b'{"body":{"torn":')
        os.kill(os.getpid(), signal.SIGKILL)
    return append(self, kind, phase, body)

left_torn = sys.argv[4] == "torn"
Ledger.append = dying
machine = Machine(Workspace(Path(sys.argv[2])), QuickWorld(), KERNELS)
opened(machine, steps=2)
print(machine.run().state)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_deployment_killed_in_every_phase_ends_and_loses_nothing(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    ledger = workspace / "ledger.jsonl"
    seen: set[int | None] = set()
    kept: list[str] = []
    for life, lines_left in enumerate((3, 12, 16, 14, 14, 1000)):
        how = "torn" if life % 2 else "whole"
        done = subprocess.run(
            [sys.executable, "-P", "-c", LIVES, str(ROOT), str(workspace), str(lines_left), how],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        lines = ledger.read_bytes().splitlines() if ledger.exists() else []
        whole = [line.decode() for line in lines if line.endswith(b"}") and b'"hash"' in line]
        assert whole[: len(kept)] == kept, "a line that was there is there"
        kept = whole
        if done.returncode == 0:
            assert done.stdout.strip() == "finished", done.stdout + done.stderr
            break
        assert done.returncode == -9, done.stderr
        seen.add(State.of(read(ledger)).next_phase() if whole else None)
    else:
        pytest.fail("it never ended")
    assert verify(ledger) is None
    assert len(seen) >= 4, seen
    entries = read(ledger)
    assert [State.of(entries).status(number) for number in range(8)] == ["passed"] * 8
    kernels = [json.dumps([e.body["subject"], e.body["backend"]]) for e in entries if e.body.get("gate") == "kernel"]
    assert len(kernels) == len(set(kernels)), "no kernel that had passed was run again"
    steps = [(e.phase, e.body["name"]) for e in entries if e.kind == "step"]
    assert len(steps) == len(set(steps)) == 6, "no step was tried twice"
    assert list(workspace.glob("ledger.torn-*"))
