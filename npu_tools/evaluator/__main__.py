"""`python -m npu_tools.evaluator DIR --kernels FOLDER`: one evaluation. Exit 0 held, 1 failed, 2 nothing to evaluate."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from npu_tools.errors import NpuToolsError
from npu_tools.evaluator.evaluate import BUDGET_S, evaluate
from npu_tools.jobs.records import write_json


def main(arguments: list[str] | None = None) -> int:
    """Evaluate, print the verdict, leave the report."""
    parser = argparse.ArgumentParser(prog="python -m npu_tools.evaluator", description=__doc__)
    parser.add_argument("workspace", type=Path, metavar="DIR")
    parser.add_argument("--kernels", type=Path, required=True, help="the folder of shipped recipes")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--effort", choices=list(BUDGET_S), default="quick")
    parser.add_argument("--head", default=None, help="a hash of the ledger that was kept elsewhere")
    parser.add_argument("--answer", type=Path, default=None, help="also write the verdict here")
    parser.add_argument("--leave-nothing", action="store_true", help="write nothing into the workspace")
    chosen = parser.parse_args(arguments)
    answer: dict[str, Any]
    try:
        found = evaluate(
            chosen.workspace, chosen.kernels, seed=chosen.seed, effort=chosen.effort, head=chosen.head,
            write=not chosen.leave_nothing,
        )  # fmt: skip
        answer, code = found.as_dict(), 1 if found.verdict == "fail" else 0
    except NpuToolsError as error:
        answer, code = {"error": str(error)}, 2
    if chosen.answer is not None:
        write_json(chosen.answer, answer)
    print(answer.get("verdict") or answer["error"])
    return code


if __name__ == "__main__":
    sys.exit(main())
