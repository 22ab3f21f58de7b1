"""Fit the kernel models to measured rows, and say how good they are on rows they did not see.

fitted = fit(rows)
fitted.kernels["gemm"].params["ddr_gbps"], fitted.kernels["gemm"].held_out.mape
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import numpy as np

from npu_tools.cost.kernels import MODELS, KernelModel, Params
from npu_tools.cost.overheads import Overheads
from npu_tools.cost.rows import MeasuredRow, rows_digest
from npu_tools.cost.solve import Array, fit_positive

FOLDS, REPEATS, SEED = 5, 5, 20260101
"""Cross-validation: five folds, repeated with five shuffles from one seed."""
LEAST_ROWS = 5
"""Fewer rows fit no model of their own; the kernel then borrows a neighbour's shape (BORROWED)."""
BORROWED: Mapping[str, str] = {"layernorm": "rmsnorm"}
BORROWED_SPREAD = 0.35
"""Half-width, in log, of the interval of a borrowed model, where no residual tells."""
NARROWEST = 0.03
"""No interval is narrower than this half-width in log: run-to-run spread alone is of that size."""
LOW, HIGH = 0.1, 0.9


def band_of(logs: Array, rows: int) -> tuple[float, float]:
    """The 80 % band of residuals `logs` of `rows` rows, widened as few rows demand (conformal levels)."""
    level = min(1.0, HIGH * (rows + 1) / rows)
    low, high = np.quantile(logs, [1 - level, level])
    return min(float(low), -NARROWEST), max(float(high), NARROWEST)


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predictions: mean absolute, share within ±20 %, largest."""

    rows: int
    mape: float
    within_20: float
    worst: float

    @classmethod
    def of(cls, predicted: Array, measured: Array) -> Errors:
        """Of predicted [n] against measured [n]."""
        off = np.abs(predicted / measured - 1)
        return cls(len(off), float(off.mean()), float((off <= 0.2).mean()), float(off.max()))


@dataclass(frozen=True, slots=True)
class KernelFit:
    """One fitted kernel. log_low, log_high: 80 % band of log(measured / predicted) on held-out rows.

    coverage: share of rows inside the band that the other folds' residuals give. basis: how it was got.
    """

    kernel: str
    params: Params
    in_sample: Errors
    held_out: Errors | None
    log_low: float
    log_high: float
    coverage: float | None
    basis: str
    digest: str


@dataclass(frozen=True, slots=True)
class Fitted:
    """All fitted kernels, and what they were fitted from."""

    kernels: Mapping[str, KernelFit]
    digest: str
    left_out: Mapping[str, str]
    overheads: Overheads | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "label": "modelled",
            "digest": self.digest,
            "left_out": dict(self.left_out),
            "overheads": asdict(self.overheads) if self.overheads else None,
            "kernels": {name: asdict(one) for name, one in self.kernels.items()},
        }

    def as_json(self) -> str:
        """The text of fitted.json; the same for the same rows."""
        return json.dumps(_rounded(self.as_dict()), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fitted:
        """What `as_dict` gave."""
        kernels: dict[str, KernelFit] = {}
        for name, one in data["kernels"].items():
            errors = {key: Errors(**one[key]) if one[key] else None for key in ("in_sample", "held_out")}
            fields: dict[str, Any] = {**one, **errors}
            kernels[name] = KernelFit(**fields)
        over = data.get("overheads")
        overheads = Overheads.from_dict(over) if over else None
        return cls(kernels, str(data["digest"]), dict(data["left_out"]), overheads)


def _rounded(value: object) -> object:
    """Floats to six digits, so that the last bits of another processor do not show."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(v) for key, v in cast("Mapping[str, object]", value).items()}
    return value


def features_of(model: KernelModel, rows: Sequence[MeasuredRow]) -> dict[str, Array]:
    """Every feature over `rows`: name → [n]."""
    described = [model.describe(row.shape, row.settings) for row in rows]
    return {name: np.array([one[name] for one in described]) for name in described[0]}


def _times(model: KernelModel, names: Sequence[str], features: Mapping[str, Array], params: Array) -> Array:
    parts = model.parts(dict(zip(names, params.tolist(), strict=True)), features)
    return np.sum(list(parts.values()), axis=0)


def fit_params(model: KernelModel, features: Mapping[str, Array], measured: Array) -> Array:
    """The parameters, in the order of `model.start`."""
    names = list(model.start)
    start = np.array([model.start[name] for name in names])
    return fit_positive(lambda params: _times(model, names, features, params), measured, start)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Held-out predictions of one kernel: log(measured / predicted) [repeats, n] and the fold of each [repeats, n]."""

    logs: Array
    folds: Array

    def band(self) -> tuple[float, float]:
        """The 80 % band of all residuals."""
        return band_of(self.logs.ravel(), self.logs.shape[1])

    def coverage(self) -> float:
        """Share of rows inside the band of the folds they are not in."""
        inside: list[float] = []
        for logs, folds in zip(self.logs, self.folds, strict=True):
            for fold in range(FOLDS):
                if not np.any(folds == fold) or np.all(folds == fold):
                    continue
                low, high = band_of(logs[folds != fold], int(np.sum(folds != fold)))
                held = logs[folds == fold]
                inside.extend(((held >= low) & (held <= high)).astype(float).tolist())
        return float(np.mean(inside))


def hold_out(model: KernelModel, features: Mapping[str, Array], measured: Array, *, repeats: int = REPEATS) -> HeldOut:
    """Five-fold predictions, `repeats` times with other shuffles; the same for the same rows."""
    shuffle = np.random.default_rng(SEED)
    names = list(model.start)
    n = len(measured)
    logs, folds = np.zeros((repeats, n)), np.zeros((repeats, n))
    for repeat in range(repeats):
        order = shuffle.permutation(n)
        for fold in range(FOLDS):
            held = order[fold::FOLDS]
            rest = np.setdiff1d(order, held)
            if not len(held) or not len(rest):
                continue
            params = fit_params(model, {k: v[rest] for k, v in features.items()}, measured[rest])
            predicted = _times(model, names, {k: v[held] for k, v in features.items()}, params)
            logs[repeat, held] = np.log(measured[held] / predicted)
            folds[repeat, held] = fold
    return HeldOut(logs, folds)


def held_out_errors(held: HeldOut) -> Errors:
    """Mean over the repeats; the worst of all."""
    off = np.abs(np.exp(-held.logs) - 1)
    return Errors(held.logs.shape[1], float(off.mean()), float((off <= 0.2).mean()), float(off.max()))


def fit_kernel(kernel: str, rows: Sequence[MeasuredRow], *, judge: bool = True, repeats: int = REPEATS) -> KernelFit:
    """One kernel from its rows; `judge` adds the cross-validated errors (without it the band is BORROWED_SPREAD)."""
    model = MODELS[kernel]
    features = features_of(model, rows)
    measured = np.array([row.latency_us for row in rows])
    params = fit_params(model, features, measured)
    names = list(model.start)
    fitted = dict(zip(names, (float(f"{value:.6g}") for value in params), strict=True))
    in_sample = Errors.of(_times(model, names, features, params), measured)
    held = hold_out(model, features, measured, repeats=repeats) if judge else None
    low, high = held.band() if held else (-BORROWED_SPREAD, BORROWED_SPREAD)
    return KernelFit(
        kernel=kernel,
        params=fitted,
        in_sample=in_sample,
        held_out=held_out_errors(held) if held else None,
        log_low=low,
        log_high=high,
        coverage=held.coverage() if held else None,
        basis=f"fitted to {len(rows)} measured rows",
        digest=rows_digest(rows),
    )


def _borrow(kernel: str, rows: Sequence[MeasuredRow], donor: KernelFit) -> KernelFit:
    """The donor's parameters times one factor, the one that meets this kernel's few rows in the mean."""
    model = MODELS[kernel]
    names = list(model.start)
    params = np.array([donor.params[name] for name in names])
    factor, in_sample = 1.0, Errors(0, 0.0, 1.0, 0.0)
    dispatch = donor.params["dispatch_us"]
    if rows:
        features = features_of(model, rows)
        measured = np.array([row.latency_us for row in rows])
        beyond = _times(model, names, features, params) - dispatch
        factor = float(np.exp(np.mean(np.log(np.maximum(measured - dispatch, 1.0) / beyond))))
        in_sample = Errors.of(dispatch + factor * beyond, measured)
    return KernelFit(
        kernel=kernel,
        params={name: donor.params[name] * (1.0 if name == "dispatch_us" else factor) for name in names},
        in_sample=in_sample,
        held_out=None,
        log_low=-BORROWED_SPREAD,
        log_high=BORROWED_SPREAD,
        coverage=None,
        basis=f"{donor.kernel}'s model scaled to {len(rows)} measured row(s)",
        digest=rows_digest(rows),
    )


def fit(
    rows: Sequence[MeasuredRow], *, with_suspicious: bool = False, judge: bool = True, repeats: int = REPEATS
) -> Fitted:
    """Every kernel that has rows enough, from the trusted ones."""
    used = [row for row in rows if with_suspicious or row.suspicious is None]
    left_out = {row.source: row.suspicious or "" for row in rows if row.suspicious and not with_suspicious}
    by_kernel: dict[str, list[MeasuredRow]] = {}
    for row in used:
        by_kernel.setdefault(row.kernel, []).append(row)
    kernels: dict[str, KernelFit] = {}
    for kernel in MODELS:
        mine = by_kernel.get(kernel, [])
        if len(mine) >= LEAST_ROWS:
            kernels[kernel] = fit_kernel(kernel, mine, judge=judge, repeats=repeats)
    for kernel, donor in BORROWED.items():
        if kernel not in kernels and donor in kernels:
            kernels[kernel] = _borrow(kernel, by_kernel.get(kernel, []), kernels[donor])
    return Fitted(kernels, rows_digest(used), left_out)
