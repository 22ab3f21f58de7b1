"""The fresh process: `python -m npu_tools.evaluator DIR --kernels FOLDER`, and how it is started."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TAIL = 1500
TIMEOUT_S = 6 * 3600.0


def run_evaluator(
    workspace: Path, *, kernels: Path, seed: int | None = None, effort: str = "quick", timeout_s: float = TIMEOUT_S,
    write: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """{"verdict", "reasons": [{"code", "text", "evidence", "severity"}], …} of a process that knows only the folder.

    Raises:
        UnusableInput: there is nothing to evaluate, or the process ended without a verdict.
    """
    from npu_tools.errors import UnusableInput

    with tempfile.TemporaryDirectory(prefix="evaluator-", ignore_cleanup_errors=True) as place:
        answered = Path(place) / "answer.json"
        command = [
            sys.executable, "-P", "-m", "npu_tools.evaluator", str(workspace), "--kernels", str(kernels),
            "--effort", effort, "--answer", str(answered), *(["--seed", str(seed)] if seed is not None else []),
            *([] if write else ["--leave-nothing"]),
        ]  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise UnusableInput(f"the evaluation of {workspace} took over {timeout_s:.0f} s and was ended") from None
        try:
            answer: dict[str, Any] = json.loads(answered.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = (done.stderr or done.stdout).strip()[-TAIL:]
            raise UnusableInput(f"the evaluation ended with {done.returncode} and no verdict: {said}") from None
    if "error" in answer:
        raise UnusableInput(str(answer["error"]))
    return answer
