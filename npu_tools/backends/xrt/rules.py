"""The rules of the real toolchain that concern this adapter, and which test covers each: rules.toml, read and checked.

rules = read_rules()
missing(rules, folder)        # tests that are named and do not exist, where the tests are at hand
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: where it was read, and the tests that cover it or the reason why none does."""

    section: str
    rule: str
    source: str
    tests: tuple[str, ...] = ()
    reason: str = ""

    @property
    def covered(self) -> bool:
        """Whether a test is named."""
        return bool(self.tests)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "section": self.section, "rule": self.rule, "source": self.source, "tests": list(self.tests),
            "reason": self.reason,
        }  # fmt: skip


@cache
def read_rules() -> tuple[Rule, ...]:
    """Every rule, in the order of the facts."""
    text = (files("npu_tools.backends.xrt") / "rules.toml").read_text(encoding="utf-8")
    return tuple(
        Rule(row["section"], row["rule"], row["source"], tuple(row.get("tests", ())), row.get("reason", ""))
        for row in tomllib.loads(text)["rule"]
    )


def missing(rules: Sequence[Rule], tests: Path) -> list[str]:
    """Tests that are named and are not in the folder of tests; the part in brackets is a case of a test."""
    known: dict[str, set[str]] = {}
    lost: list[str] = []
    for name in dict.fromkeys(name for rule in rules for name in rule.tests):
        file, _, function = name.partition("[")[0].partition("::")
        if file not in known:
            known[file] = _functions(tests / file)
        if function not in known[file]:
            lost.append(name)
    return lost


def _functions(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except OSError:
        return set()
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
