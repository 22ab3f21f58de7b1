"""A lesson's failing and fixed case run again on the emulator: what was observed once becomes reproduced.

>>> reproduce(memory, "gemv-l2-capacity-…", recipes=folder).confirmed

The cases are those of the gate or job the lesson was harvested from: kernel, shape and settings, the changed files of
the recipe where the workspace kept them, or the programs themselves. They run in a child process (recipes and programs
are somebody's code; kept files only for a lesson asked for by name). A lesson without cases, or one whose recipe files
were not kept, cannot be run again and says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from harvest.apply import promote
from harvest.draft import Case
from harvest.errors import NotReproducible
from harvest.kept import digest_of
from harvest.members import desired, standing
from harvest.rerun import NUMERICS
from harvest.vet import Candidate
from kb.memory import Memory
from kb.records import Lesson

TIMEOUT_S = 900.0
CLIENT = "reproduce"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one case ended on the emulator."""

    passed: bool
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reproduced:
    """Both cases of a lesson. `confirmed`: the failing one fails as it did, and the fixed one passes."""

    lesson: str
    failing: Outcome
    fixed: Outcome
    confirmed: bool
    why: str
    status: str
    ran_on: str = "emulator"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


Run = Callable[[Mapping[str, Any], Sequence[Path]], Outcome]


def reproduce(memory: Memory, lesson: str, recipes: Sequence[Path], run: Run | None = None) -> Reproduced:
    """Run the stored cases of a harvested lesson again and record what came of it.

    `recipes`: folders to find the kernel's recipe in, the first that has it wins. A confirmed lesson becomes
    `reproduced`; one whose fixed case fails gets a vote against it.

    Raises:
        NotFound: no such lesson.
        NotReproducible: it carries no case that can be run.
    """
    hit = memory.get(lesson)
    member = _member(memory, lesson)
    case = member.case if member is not None else None
    if case is None or member is None:
        raise NotReproducible(
            f"{lesson} carries no cases: only lessons harvested from a deployment's ledger or from jobs can be run again"
        )
    _runnable(lesson, case, recipes)
    ran = run or run_case_in_child
    failing, fixed = ran(case.failing, recipes), ran(case.fixed, recipes)
    as_before = not failing.passed and _as_before(case, failing)
    confirmed = as_before and fixed.passed
    if confirmed:
        promote(memory, lesson, member.key, {"failing": asdict(failing), "fixed": asdict(fixed), "ran_on": "emulator"})
    elif not fixed.passed:
        memory.report_outcome(lesson, False, f"its fixed case fails on the emulator: {fixed.reason[:300]}", CLIENT)
    status = "reproduced" if confirmed else hit.record.status
    return Reproduced(lesson, failing, fixed, confirmed, _why(case, failing, fixed, as_before), status)


def proven(candidate: Candidate, recipes: Sequence[Path], run: Run | None = None) -> bool:
    """Whether a candidate's cases end as it tells; False for one that has none that can be run."""
    if candidate.case is None or not isinstance(candidate.record, Lesson):
        return False
    if candidate.case.failing.get("files") or candidate.case.fixed.get("files"):
        return False  # a folder's own code is run by name only
    try:
        _runnable(candidate.record.id, candidate.case, recipes)
    except NotReproducible:
        return False
    ran = run or run_case_in_child
    failing = ran(candidate.case.failing, recipes)
    return not failing.passed and _as_before(candidate.case, failing) and ran(candidate.case.fixed, recipes).passed


def _as_before(case: Case, failing: Outcome) -> bool:
    """Whether a failure is the stored one: the same code, or the same words where a refusal carries no code."""
    if (
        not case.code
        or case.code == "failed"
        or failing.code in (case.code, "failed")
        or (failing.code == NUMERICS and case.code.split("-")[0] == NUMERICS)
    ):
        return True
    stored, now = (" ".join(text.split()) for text in (str(case.failing.get("message") or ""), failing.reason))
    return bool(stored and now) and (stored[:60] in now or now[:60] in stored)


def _why(case: Case, failing: Outcome, fixed: Outcome, as_before: bool) -> str:
    if failing.passed:
        return "the failing case passes now: what it was about has changed"
    if not as_before:
        return f"the failing case fails otherwise now: {failing.code} instead of {case.code}"
    return "fails as it did, and passes with the change" if fixed.passed else f"the fixed case fails: {fixed.reason}"


def _member(memory: Memory, lesson: str) -> Candidate | None:
    """The candidate with a case behind a record."""
    assert memory.store is not None
    stand = standing(memory.store)
    item = desired(stand.members, memory, stand.reproduced).get(lesson)
    members = item.members if item is not None else ()
    return next((member for member in members if member.case is not None), None)


def _runnable(lesson: str, case: Case, recipes: Sequence[Path]) -> None:
    for name, one in (("failing", case.failing), ("fixed", case.fixed)):
        if not one.get("program_text") and not (one.get("kernel") and one.get("shape")):
            raise NotReproducible(f"the {name} case of {lesson} names no kernel and shape and holds no program")
    digests = (case.failing.get("recipe_digest"), case.fixed.get("recipe_digest"))
    if case.failing.get("program_text") or digests[0] == digests[1] or _settings(case.failing) != _settings(case.fixed):
        return
    for name, one in (("failing", case.failing), ("fixed", case.fixed)):
        here = {digest_of(folder, str(one["kernel"])) for folder in recipes}
        if not one.get("files") and one.get("recipe_digest") not in here:
            raise NotReproducible(
                f"{lesson} is about a change to the recipe's files, and those of the {name} case were not kept with it "
                "(the workspace had them no more, or they are long); put them in a workspace and run the gate there"
            )


def _settings(case: Mapping[str, Any]) -> str:
    return json.dumps(case.get("settings"), sort_keys=True)


def run_case_in_child(case: Mapping[str, Any], recipes: Sequence[Path]) -> Outcome:
    """One case in a process of its own."""
    asked = json.dumps({"case": dict(case), "recipes": [str(folder) for folder in recipes]})
    command = [sys.executable, "-P", "-m", "harvest.rerun"]
    try:
        done = subprocess.run(  # noqa: S603
            command, input=asked, capture_output=True, text=True, encoding="utf-8", timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, "timeout", f"not done within {TIMEOUT_S:.0f} s")
    try:
        answer = cast("dict[str, Any]", json.loads(done.stdout.strip().split("\n")[-1]))
    except ValueError:
        return Outcome(False, "crashed", done.stderr.strip()[-300:] or "the child process ended without an answer")
    return Outcome(bool(answer["passed"]), str(answer["code"]), str(answer["reason"]))
