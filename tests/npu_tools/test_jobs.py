"""Jobs on disk: they outlive who started them, end as what they are, and can be stopped in any state."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from filelock import FileLock

from npu_tools.errors import UnusableInput
from npu_tools.jobs import ENDED, Jobs
from npu_tools.jobs.records import Stored, read_json, write_json
from npu_tools.jobs.worker import CPU_SLOTS

COPY = """
func.func @copy(%arg0: memref<8xi32>, %arg1: memref<8xi32>) {
  memref.copy %arg0, %arg1 : memref<8xi32> to memref<8xi32>
  return
}
"""
ENDLESS = """
func.func @endless(%arg0: memref<8xi32>) {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %big = arith.constant 1000000000000 : index
  scf.for %i = %c0 to %big step %c1 {
    %x = memref.load %arg0[%c0] : memref<8xi32>
    memref.store %x, %arg0[%c1] : memref<8xi32>
  }
  return
}
"""


def request(text: str, **more: object) -> dict[str, object]:
    return {"program": {"text": text, "name": "a.mlir"}, "outputs": "", **more}


def ended(jobs: Jobs, job: str):
    view = jobs.wait(job)
    while view.state not in ENDED:
        view = jobs.wait(job)
    return view


def test_a_run_ends_with_its_outputs_in_its_folder(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    view = ended(jobs, jobs.start("run", request(COPY)))
    assert view.state == "done", view
    assert view.result is not None
    assert view.result["ok"], view.result
    assert Path(view.result["outputs"]).is_relative_to(view.folder)


def test_a_job_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, json, pathlib; from npu_tools.jobs import Jobs;"
        "print(Jobs(pathlib.Path(sys.argv[1])).start('run', json.loads(sys.argv[2])))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path), json.dumps(request(COPY))],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ended(Jobs(tmp_path), done.stdout.strip()).state == "done"


def test_a_killed_job_is_told_as_failed_and_never_as_running(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    job = jobs.start("run", request(ENDLESS))
    while not (view := jobs.view(job)).progress.note and view.state != "running":
        jobs.wait(job, 0.1)
    pid = (read_json(tmp_path / job / "state.json") or {})["pid"]
    process = psutil.Process(pid)
    process.kill()
    psutil.wait_procs([process], timeout=20)
    view = ended(jobs, job)
    assert view.state == "failed"
    assert "without a result" in view.reason


def test_a_running_job_is_cancelled(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    job = jobs.start("run", request(ENDLESS))
    while jobs.view(job).state == "queued":
        jobs.wait(job, 0.1)
    assert jobs.cancel(job, patience_s=20).state == "cancelled"
    assert jobs.cancel(job).state == "cancelled"


def test_no_more_jobs_run_at_once_than_there_are_slots_and_a_queued_one_can_be_cancelled(tmp_path: Path) -> None:
    (tmp_path / "slots").mkdir()
    held = [FileLock(tmp_path / "slots" / f"cpu-{n}.lock") for n in range(CPU_SLOTS)]
    for lock in held:
        lock.acquire()
    jobs = Jobs(tmp_path)
    job = jobs.start("run", request(COPY))
    while (read_json(tmp_path / job / "state.json") or {}).get("pid") is None:
        jobs.wait(job, 0.1)
    assert jobs.view(job).state == "queued"
    assert jobs.cancel(job, patience_s=20).state == "cancelled"
    for lock in held:
        lock.release()


def test_a_time_limit_ends_an_endless_program_with_an_answer(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    view = ended(jobs, jobs.start("run", request(ENDLESS, timeout_s=0.3)))
    assert view.state == "done", view
    assert view.result is not None
    assert not view.result["ok"]
    assert "time" in json.dumps(view.result["diagnostics"])


def test_a_request_that_cannot_be_done_fails_with_its_reason(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    assert "nonsense" in ended(jobs, jobs.start("nonsense", {})).reason
    assert "program" in ended(jobs, jobs.start("run", {"outputs": 3})).reason


@pytest.mark.parametrize("job", ["", "run-1", "../../etc", "run-20260101-000000-abcdef", "x" * 500])
def test_unknown_jobs_are_refused_with_those_there_are(tmp_path: Path, job: str) -> None:
    with pytest.raises(UnusableInput, match="the latest are"):
        Jobs(tmp_path).view(job)


def test_a_reused_process_id_is_not_taken_for_the_job(tmp_path: Path) -> None:
    job = "run-20260101-000000-abcdef"
    (tmp_path / job).mkdir()
    stored = Stored(state="running", pid=psutil.Process().pid, started_as=1.0, queued_at=1.0, started_at=1.0)
    write_json(tmp_path / job / "state.json", stored.model_dump())
    assert Jobs(tmp_path).view(job).state == "failed"


def test_old_jobs_are_pruned_and_running_ones_are_kept(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    old = jobs.start("nonsense", {})
    ended(jobs, old)
    assert jobs.prune(3600) == 0
    assert jobs.prune(-1) == 1
    assert jobs.listed() == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UnusableInput, match="cannot start"):
        Jobs(tmp_path / "file").start("run", {})
