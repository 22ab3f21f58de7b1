"""Deployments written by rule: a ledger as the machine writes it, with failures, decisions and passes, and no run behind it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npu_tools.deployment.ledger import Ledger


def attempt(
    gate: str, kernel: str, shape: Mapping[str, int], settings: Mapping[str, Any], passed: bool, *, code: str = "", message: str = "",
    looks_like: str = "", stage: str = "", diagnostic: str = "", **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """The body of an attempt."""
    diagnosis = {"code": code, "message": message, "looks_like": looks_like, "stage": stage, "layer": None}
    if diagnostic:
        diagnosis["diagnostic"] = diagnostic
    return {
        "gate": gate, "subject": {"kernel": kernel, "shape": dict(shape), "settings": dict(settings), "recipe_digest": "r0"}, "passed": passed,
        "criteria": [{"name": "elements within tolerance", "value": 1.0 if passed else 0.2, "bound": 1.0, "ok": passed}],
        "convention": "elementwise", "tolerance": {"rtol": 0.04, "atol": 0.01}, "metrics": {}, "diagnosis": {} if passed else diagnosis,
        "lessons": [], "skills": [], "backend": "emulator", "digests": {}, "modelled_us": 100.0, "wall_s": 0.1, **more,
    }  # fmt: skip


def decision(subject: str, key: str, before: Any, after: Any, why: str = "") -> dict[str, Any]:
    """The body of a decision."""
    return {"subject": subject, "key": key, "before": before, "after": after, "why": why, "by": "agent"}


def write_deployment(folder: Path, model: str, *events: tuple[str, int | None, Mapping[str, Any]]) -> Path:
    """A workspace with this ledger."""
    ledger = Ledger.open(folder / "ledger.jsonl")
    ledger.append("opened", None, {"model": model, "config_digest": "c", "weights": "random:1", "seq_len": 128, "backend": "emulator",
                                   "device": "npu2", "herdbook": "0"})  # fmt: skip
    for kind, phase, body in events:
        ledger.append(kind, phase, body)  # type: ignore[arg-type]
    return folder
