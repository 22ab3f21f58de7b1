"""How close stages are to their reference, and why a kernel failed while a model ran."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from npu_tools.backends.protocol import KernelRun, Refused
from npu_tools.deployment.diagnosis import Diagnosis, of_finding
from npu_tools.deployment.metering import Meter
from npu_tools.deployment.world import Array


def compare(stages: dict[str, Array], folder: Path) -> dict[str, dict[str, float]]:
    """Each stage beside its reference: cosine, the rows' smallest and median cosine, mean_rel_L1."""
    found: dict[str, dict[str, float]] = {}
    for stage, array in stages.items():
        path = folder / f"{stage}.npy"
        if not path.is_file():
            continue
        reference = np.load(path)
        if reference.shape != array.shape:
            none = float("nan")
            found[stage] = {
                "cosine": none, "position_cosine_min": none, "position_cosine_median": none, "mean_rel_l1": float("inf"),
            }  # fmt: skip
            continue
        found[stage] = closeness(array, reference)
    return found


def row_cosines(actual: Array, reference: Array) -> Array:
    """The cosine of each row, both arrays [rows, width]; 0 where a row is all zero."""
    a, r = np.asarray(actual, np.float64), np.asarray(reference, np.float64)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(r, axis=-1)
    return np.divide((a * r).sum(-1), norms, out=np.zeros_like(norms), where=norms > 0)


def closeness(actual: Array, reference: Array) -> dict[str, float]:
    """Figures of one array against its reference, both [rows, width]."""
    a, r, rows = np.asarray(actual, np.float64), np.asarray(reference, np.float64), row_cosines(actual, reference)
    whole = float(np.linalg.norm(a) * np.linalg.norm(r))
    mean = float(np.abs(r).mean())
    return {
        "cosine": float((a * r).sum()) / whole if whole else 0.0,
        "position_cosine_min": float(rows.min()) if rows.size else 0.0,
        "position_cosine_median": float(np.median(rows)) if rows.size else 0.0,
        "mean_rel_l1": float(np.abs(a - r).mean()) / mean if mean else float("inf"),
        "scale": float(np.linalg.norm(a) / np.linalg.norm(r)) if np.linalg.norm(r) else float("nan"),
    }


def device_failure(meter: Meter) -> Diagnosis | None:
    """Why a kernel was refused or failed while the model ran."""
    if not meter.failures:
        return None
    name, failure = meter.failures[-1]
    match failure:
        case Refused():
            return of_finding(failure.first, kernel=name)
        case KernelRun() if failure.failure is not None:
            return of_finding(failure.failure, kernel=name, refused=False)
        case _:
            return None
