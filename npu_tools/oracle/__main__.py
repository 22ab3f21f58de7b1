"""`python -m npu_tools.oracle REQUEST.json ANSWER.json`: the oracle's process. `run_oracle` starts it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from npu_tools.errors import NpuToolsError
from npu_tools.jobs.records import write_json
from npu_tools.oracle.requests import GreedyRequest, Request, StagesRequest, WeightsSource

SHOWN = """\
REQUEST.json is one of:
  {"kind": "stages", "config": {…}, "weights": "random:7", "tokens": [1, 2, 3], "folder": "reference"}
      every stage of every layer in FP32, written to folder/layer_00/<stage>.npy and compared with Hugging Face
      optional: length, depth, keep (stage names to write), compare (false: numpy only), threads
  {"kind": "greedy", "config": {…}, "weights": "…", "prompts": [[1, 2], [3]], "folder": "reference"}
      Hugging Face in bf16: tokens, the five best ids and the logits of every step
      optional: steps (32), dtype (bfloat16), threads
weights: a folder of safetensors, a .gguf file, random:SEED, or a hub id.
ANSWER.json gets "ok", "criteria", figures a layer, the files' digests. Exit 0 answered, 1 refused or unusable."""


def main(arguments: list[str] | None = None) -> int:
    """Read the request, do it, write the answer; 0 when there is one."""
    parser = argparse.ArgumentParser(
        prog="python -m npu_tools.oracle",
        description="What a model must compute: FP32 stages compared with Hugging Face, and greedy references.",
        epilog=SHOWN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("request", type=Path, metavar="REQUEST.json")
    parser.add_argument("answer", type=Path, metavar="ANSWER.json")
    chosen = parser.parse_args(arguments)
    _leave_the_working_folder()
    try:
        answer = _answered(chosen.request, chosen.answer.with_name("progress.json"))
    except MemoryError:
        answer = {"ok": False, "error": "out of memory"}
    except NpuToolsError as error:
        answer = {"ok": False, "error": str(error)}
    except Exception as error:  # the last line before the process ends: the caller must learn why
        traceback.print_exc()
        answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    write_json(chosen.answer, answer)
    return 1 if answer.get("error") or answer.get("findings") else 0


def _answered(request: Path, told: Path) -> dict[str, Any]:
    from npu_tools.errors import UnusableInput
    from npu_tools.oracle.work import perform

    form: TypeAdapter[Request] = TypeAdapter(StagesRequest | GreedyRequest)
    try:
        asked = form.validate_python(json.loads(request.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise UnusableInput(f"{request} is no request of the oracle: {error}") from None

    def progress(done: float, total: float, note: str) -> None:
        write_json(told, {"done": done, "total": total, "note": note})

    return perform(asked, _open, progress)


def _open(source: str, config: dict[str, Any]) -> WeightsSource:
    from npu_tools.models.weights import open_weights

    return open_weights(source, config)


def _leave_the_working_folder() -> None:
    """Take the current folder off the path: a folder `kernels` in it breaks transformers' look for a package so named."""
    here = {"", os.getcwd()}
    sys.path[:] = [entry for entry in sys.path if entry not in here]


if __name__ == "__main__":
    sys.exit(main())
