"""Measured models: their speeds out of plain records, the fit of overheads, and every model left out once.

speeds, refused = read_speeds(model_records)
fitted = fit_all(rows, speeds)
left_out(rows, speeds)               # each model predicted by a fit that never saw it
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from npu_tools.architectures import Dimensions, published, read_config
from npu_tools.cost.fit import Fitted, band_of, fit
from npu_tools.cost.overheads import Overheads
from npu_tools.cost.predict import ModelPrediction, Work, decode_work, predict_model, prefill_work
from npu_tools.cost.rows import MeasuredRow
from npu_tools.cost.solve import Array
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

SEQ_LEN = 2048
"""Every published TTFT is of a prompt padded to this."""
CONTEXT_LEN = 64
"""Published tokens/s are of 32 tokens after a short prompt: padding does not count as context."""
LEAST_MODELS = 4


@dataclass(frozen=True, slots=True)
class ModelSpeed:
    """One model's published speed: seconds to the first token, tokens per second. model_ids: names its rows bear."""

    model_id: str
    dims: Dimensions
    ttft_s: float
    tokens_per_s: float


def read_speeds(records: Iterable[Mapping[str, Any]]) -> tuple[list[ModelSpeed], dict[str, int]]:
    """The models with a published configuration and both speeds at HEAD, and how many were refused for what."""
    configs = {model.repo: model for model in published()}
    speeds: list[ModelSpeed] = []
    refused: Counter[str] = Counter()
    for record in records:
        known = configs.get(str(record.get("hub_id")))
        if known is None or not record.get("prefill_elfs"):
            refused["no bf16 deployment of a published configuration"] += 1
            continue
        dims = read_config(known.config, name=known.name)
        ttft, tokens = _head(record, "ttft", "s"), _head(record, "decode", "tok/s")
        if isinstance(dims, Finding) or ttft is None or tokens is None:
            refused["no TTFT and decode speed at HEAD"] += 1
            continue
        speeds.append(ModelSpeed(known.name.replace(".", "-"), dims, ttft, tokens))
    return sorted(speeds, key=lambda speed: speed.model_id), dict(sorted(refused.items()))


def _head(record: Mapping[str, Any], what: str, unit: str) -> float | None:
    """The figure of the step whose change begins with HEAD and names `what`."""
    for step in cast("list[Mapping[str, Any]]", record.get("speeds") or []):
        change = str(step.get("change", "")).lower()
        if re.match(rf"head {what}", change) and step.get("unit") == unit and step.get("after"):
            return float(step["after"])
    return None


def _weighted(columns: Array, rest: Array, measured: Array) -> Array:
    """Nonnegative weights [p] of columns [n, p] by least squares of relative error; `rest` [n] is fixed."""
    a = columns / measured[:, None]
    b = 1 - rest / measured
    gram, target = a.T @ a, a.T @ b
    x = np.zeros(a.shape[1])
    for _ in range(5000):
        before = x.copy()
        for j in range(len(x)):
            if gram[j, j] > 0:
                x[j] = max(0.0, x[j] + (target[j] - gram[j] @ x) / gram[j, j])
        if np.max(np.abs(x - before)) < 1e-9:
            break
    return x


def fit_overheads(fitted: Fitted, speeds: Sequence[ModelSpeed]) -> Overheads:
    """The overheads that meet `speeds` best; the bands are left at zero width.

    Raises:
        UnusableInput: fewer than four models.
    """
    if len(speeds) < LEAST_MODELS:
        raise UnusableInput(f"overheads need at least {LEAST_MODELS} measured models; there are {len(speeds)}")
    first = [prefill_work(fitted, speed.dims, SEQ_LEN) for speed in speeds]
    token = [decode_work(fitted, speed.dims, CONTEXT_LEN) for speed in speeds]
    ttft = np.array([speed.ttft_s * 1e3 for speed in speeds])
    tpot = np.array([1e3 / speed.tokens_per_s for speed in speeds])
    prefill = _weighted(_columns(first, ("npu", "attention")), _columns(first, ("host",))[:, 0], ttft)
    decode = _weighted(_columns(token, ("npu", "launches")), _columns(token, ("host",))[:, 0], tpot)
    return Overheads(
        *(float(f"{value:.6g}") for value in (*prefill, *decode)),
        ttft_log_low=0.0,
        ttft_log_high=0.0,
        token_log_low=0.0,
        token_log_high=0.0,
        basis=f"kernels as measured alone, overheads fitted over {len(speeds)} measured models",
    )


def _columns(works: Sequence[Work], names: Sequence[str]) -> Array:
    return np.array([[float(getattr(work, name)) for name in names] for work in works])


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A model and what a fit without it, and without the kernel rows it uses, predicts."""

    speed: ModelSpeed
    predicted: ModelPrediction
    rows_left_out: int

    @property
    def ttft_log(self) -> float:
        """log(measured / predicted) of the time to first token."""
        return float(np.log(self.speed.ttft_s / self.predicted.ttft_s))

    @property
    def token_log(self) -> float:
        """log(measured / predicted) of the time per token."""
        return float(np.log(self.predicted.tokens_per_s / self.speed.tokens_per_s))


def left_out(rows: Sequence[MeasuredRow], speeds: Sequence[ModelSpeed]) -> list[LeftOut]:
    """Every model predicted with its row and all kernel rows it uses left out of every fit."""
    found: list[LeftOut] = []
    for speed in speeds:
        kept = [row for row in rows if speed.model_id not in row.models]
        others = [other for other in speeds if other.model_id != speed.model_id]
        kernels = fit(kept, judge=False)
        fitted = replace(kernels, overheads=fit_overheads(kernels, others))
        predicted = predict_model(fitted, speed.dims, seq_len=SEQ_LEN, context_len=CONTEXT_LEN)
        found.append(LeftOut(speed, predicted, len(rows) - len(kept)))
    return found


def fit_all(rows: Sequence[MeasuredRow], speeds: Sequence[ModelSpeed], *, without: Sequence[LeftOut] = ()) -> Fitted:
    """Kernels and overheads; the bands of the latter from the models left out one by one (`without`, or anew)."""
    fitted = fit(rows)
    over = fit_overheads(fitted, speeds)
    each = list(without) or left_out(rows, speeds)
    ttft = band_of(np.array([one.ttft_log for one in each]), len(each))
    token = band_of(np.array([one.token_log for one in each]), len(each))
    bands = {"ttft_log_low": ttft[0], "ttft_log_high": ttft[1], "token_log_low": token[0], "token_log_high": token[1]}
    return replace(fitted, overheads=replace(over, **bands))
