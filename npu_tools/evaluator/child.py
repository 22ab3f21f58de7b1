"""The fresh process: `python -m npu_tools.evaluator DIR --kernels FOLDER`, and how it is started."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from npu_tools.errors import UnusableInput
from npu_tools.process import run_child

TAIL = 1500
TIMEOUT_S = 6 * 3600.0


def run_evaluator(
    workspace: Path, *, kernels: Path, seed: int | None = None, effort: str = "quick", timeout_s: float = TIMEOUT_S,
    write: bool = True, head: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """{"verdict", "reasons": [{"code", "text", "evidence", "severity"}], …} of a process that knows only the folder.

    Raises:
        UnusableInput: there is nothing to evaluate, or the process ended without a verdict.
    """
    with tempfile.TemporaryDirectory(prefix="evaluator-", ignore_cleanup_errors=True) as place:
        answered = Path(place) / "answer.json"
        command = [
            sys.executable, "-P", "-m", "npu_tools.evaluator", str(workspace), "--kernels", str(kernels),
            "--effort", effort, "--answer", str(answered), *(["--seed", str(seed)] if seed is not None else []),
            *([] if write else ["--leave-nothing"]), *(["--head", head] if head is not None else []),
        ]  # fmt: skip
        done = run_child(command, timeout_s=timeout_s)
        if done.state == "timeout":
            raise UnusableInput(f"the evaluation of {workspace} took over {timeout_s:.0f} s and was ended")
        try:
            answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = done.text.strip()[-TAIL:]
            raise UnusableInput(f"the evaluation ended with {done.code} and no verdict: {said}") from None
    if "error" in answer:
        raise UnusableInput(str(answer["error"]))
    return answer
