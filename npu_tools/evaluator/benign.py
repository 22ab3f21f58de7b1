"""Differences an honest deployment may show, none of which is to be accused.

Some are made in a copy of an honest deployment, others are deployments of their own (honest.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from npu_tools.deployment.ledger import Ledger
from npu_tools.evaluator.honest import Making
from npu_tools.evaluator.planting import Planted


@dataclass(frozen=True, slots=True)
class Benign:
    """One difference: changed in a copy (`plant`), or how another deployment is made (`make`)."""

    name: str
    what: str
    plant: Callable[[Planted], None] | None = None
    make: Callable[[Making], Making] | None = None
    head: bool = False
    """Whether the hash of the last line was kept elsewhere before the difference."""


def _nothing(_: Planted) -> None:
    """A copy in another folder, nothing else."""


def _notes(copy: Planted) -> None:
    """The agent's own notes, and its words in the documents."""
    (copy.workspace.notes / "my-thoughts.md").write_text("# What I think\n\nThe tiles are small.\n", encoding="utf-8")
    for path in copy.folder.glob("*.md"):
        path.write_text(path.read_text(encoding="utf-8") + "\nA remark of my own.\n", encoding="utf-8")


def _reordered(copy: Planted) -> None:
    """JSON files with their keys the other way round, and other blanks."""
    for path in (copy.workspace.config, copy.workspace.settings):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(dict(reversed(content.items())), indent=4), encoding="utf-8")


def _no_copies(copy: Planted) -> None:
    """What is only a copy of the ledger, deleted."""
    for path in [copy.workspace.settings, *copy.folder.glob("*.svg"), *copy.folder.glob("*.md")]:
        path.unlink(missing_ok=True)


def _other_files(copy: Planted) -> None:
    """Files of the person's own."""
    (copy.folder / "build.log").write_text("all well\n", encoding="utf-8")
    (copy.folder / "results" / "plots").mkdir(parents=True)
    (copy.folder / "results" / "plots" / "a.txt").write_text("1 2 3\n", encoding="utf-8")


def _page(copy: Planted) -> None:
    """A page of a recipe with a word more: it decides nothing."""
    copy.override("gemv", "README.md", lambda text: text + "\nMeasured twice.\n")


def _touched(copy: Planted) -> None:
    """Other times of change on every file, as a copy by hand leaves."""
    for path in copy.folder.rglob("*"):
        if path.is_file():
            os.utime(path, (1_600_000_000, 1_600_000_000))


def _evaluated_before(copy: Planted) -> None:
    """A verdict and a report of an earlier evaluation lie there."""
    (copy.folder / "verdict.json").write_text('{"verdict": "fail"}', encoding="utf-8")
    (copy.folder / "evaluation_report.md").write_text("# Old\n", encoding="utf-8")


def _gone_on(copy: Planted) -> None:
    """Notes written after an evaluation and after somebody wrote the head down."""
    from npu_tools.evaluator.evaluate import evaluate

    evaluate(copy.folder, copy.shipped, seed=1, effort="papers")
    ledger = Ledger.open(copy.workspace.ledger)
    ledger.append("note", 7, {"text": "the verdict was read", "by": "person"})


BENIGN: tuple[Benign, ...] = (
    Benign("another place", "the workspace copied elsewhere", plant=_nothing),
    Benign("notes edited", "notes and documents with remarks", plant=_notes),
    Benign("keys reordered", "JSON files written otherwise", plant=_reordered),
    Benign("copies deleted", "settings.json and documents gone", plant=_no_copies),
    Benign("own files", "files of the person's own beside", plant=_other_files),
    Benign("a recipe's page edited", "README.md of a recipe", plant=_page),
    Benign("times of files", "every file touched", plant=_touched),
    Benign("evaluated before", "an old verdict lies there", plant=_evaluated_before),
    Benign("gone on", "evaluated, its head kept elsewhere, notes written since", plant=_gone_on, head=True),
    Benign("another seed", "other weights", make=lambda m: replace(m, seed=11)),
    Benign("two threads", "deployed with two BLAS threads", make=lambda m: replace(m, threads=2)),
    Benign("other tiles", "a tile size chosen by hand", make=lambda m: replace(m, settings={"gemm": {"tile_m": 16}})),
    Benign("killed and resumed", "ended hard in the middle of phase 1", make=lambda m: replace(m, stop_at=14, fails_first=False)),
    Benign("killed while it failed", "ended hard among failing gates, then mended", make=lambda m: replace(m, stop_at=16)),
    Benign("killed late", "ended hard in an optimisation", make=lambda m: replace(m, stop_at=44, fails_first=False)),
    Benign(
        "checkpoint answered", "a person was asked twice", make=lambda m: replace(m, checkpoints=(1, 3), fails_first=False)
    ),
    Benign("recipe reworded", "a design with a comment, gated with it",
           make=lambda m: replace(m, recipes={"eltwise_add/design.py": "\n# Whole rows of eight tiles.\n"})),
    Benign("nothing failed", "a deployment without a failure", make=lambda m: replace(m, fails_first=False)),
)  # fmt: skip


def place_of(name: str, folder: Path) -> Path:
    """A folder name for a case."""
    return folder / "".join(letter if letter.isalnum() else "-" for letter in name)
