"""The child process that runs one stored case: reads JSON on standard input, prints one line of JSON.

echo '{"case": {"kernel": "gemv", "shape": {"M": 512, "K": 512}, "settings": {}}, "recipes": ["…"]}' | python -m harvest.rerun
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from harvest.kept import is_recipe_file
from npu_tools.errors import NpuToolsError, ProgramSyntaxError, UnusableInput

if TYPE_CHECKING:
    from npu_tools.recipes import Recipe

NUMERICS = "numerics"
"""An output outside its tolerance; a gate adds what the error looks like, which other inputs may change."""


def main() -> None:
    """Run the case and print how it ended."""
    asked = cast("dict[str, Any]", json.load(sys.stdin))
    case = cast("Mapping[str, Any]", asked["case"])
    try:
        answer = _program(str(case["program_text"])) if case.get("program_text") else _kernel(case, asked["recipes"])
    except ProgramSyntaxError as error:
        answer = _ended(False, "syntax", str(error))
    except NpuToolsError as error:
        answer = _ended(False, _code_in(str(error)), str(error))
    print(json.dumps(answer))


def _kernel(case: Mapping[str, Any], folders: list[str]) -> dict[str, Any]:
    from npu_tools.recipes import recipe

    name = str(case["kernel"])
    folder = next((Path(f) for f in folders if (Path(f) / name / "kernel.toml").is_file()), None)
    if folder is None:
        return _ended(False, "no_recipe", f"no recipe {name} in {', '.join(folders)}")
    files = cast("Mapping[str, str]", case.get("files") or {})
    if files:
        with tempfile.TemporaryDirectory(prefix="herdbook-") as held:
            return _run(recipe(_laid_over(Path(held) / "recipes", folder, name, files), name), case)
    return _run(recipe(folder, name), case)


def _laid_over(target: Path, folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """The recipes with the kept files of one of them in the place of its own."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    for file, text in files.items():
        if not is_recipe_file(file):
            raise UnusableInput(f"{file[:60]!r} is no file of a recipe that a deployment may change")
        (target / name / file).write_text(text, encoding="utf-8", newline="\n")
    return target


def _run(found: Recipe, case: Mapping[str, Any]) -> dict[str, Any]:
    from npu_tools.check.kernel import check_kernel
    from npu_tools.recipes import run_case

    shape, settings = cast("Mapping[str, int]", case["shape"]), cast("Mapping[str, Any]", case.get("settings") or {})
    report = check_kernel(found.checked_as, tuple(found.extents(shape).values()), settings)
    refused = [finding for finding in report.findings if finding.severity == "error"]
    if refused:
        return _ended(False, refused[0].code, refused[0].message)
    run = run_case(found, shape, settings, timeout_s=600)
    if run.passed:
        return _ended(True, "", run.reason)
    bad = next((finding.code for finding in run.findings if finding.severity == "error"), NUMERICS)
    return _ended(False, bad, run.reason)


def _program(text: str) -> dict[str, Any]:
    from npu_tools.air import parse_program
    from npu_tools.arrays import seeded, signature
    from npu_tools.check import check_program
    from npu_tools.device import device
    from npu_tools.emulator.run import choose_function, run_program

    program = parse_program(text, "case.mlir")
    refused = [finding for finding in check_program(program, device("npu2")) if finding.severity == "error"]
    if refused:
        return _ended(False, refused[0].code, refused[0].message)
    function = choose_function(program, None)
    result = run_program(program, seeded(signature(function), 0), function=function.sym_name.data, timeout_s=600)
    bad = next((finding for finding in result.findings if finding.severity == "error"), None)
    return _ended(result.ok, bad.code if bad else "", bad.message if bad else "it ran to the end")


def _ended(passed: bool, code: str, reason: str) -> dict[str, Any]:
    return {"passed": passed, "code": code, "reason": reason[:2000]}


def _code_in(text: str) -> str:
    """The code a refusal begins with (`l2_overflow: …`), else "unusable"."""
    head = text.split(":", 1)[0].strip()
    return head if head.isidentifier() else "unusable"


if __name__ == "__main__":
    main()
