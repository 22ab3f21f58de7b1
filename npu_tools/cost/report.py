"""How good the cost model is: every figure of the bench in one report, a roofline beside it.

report = measure_cost(row_records, model_records)
report.kernels["gemm"].trusted.within_20, report.models_within_20
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from npu_tools.architectures import published, read_config
from npu_tools.cost.deployment import lm_head_call, prefill_calls
from npu_tools.cost.fit import (
    Errors,
    Fitted,
    features_of,
    fit,
    fit_kernel,
    held_out_errors,
    hold_out,
)
from npu_tools.cost.kernels import MODELS
from npu_tools.cost.models import SEQ_LEN, LeftOut, ModelSpeed, fit_all, left_out, read_speeds
from npu_tools.cost.predict import predict_kernel, predict_launches
from npu_tools.cost.rows import MeasuredRow, read_rows
from npu_tools.cost.solve import Array, fit_positive
from npu_tools.cost.sweeps import NONE, Agreement, Sweep, agreement, sweeps, sweeps_of
from npu_tools.findings import Finding

ROOFLINE = (115.0, 10.0, 63.0)
"""Where the baseline's fit begins: µs of dispatch, TFLOP/s, GB/s; the fastest GEMM and stream measured here."""


@dataclass(frozen=True, slots=True)
class KernelFigures:
    """One kernel. trusted: five-fold, without suspicious rows; all_rows: with them; roofline: a baseline fitted in sample."""

    rows: int
    suspicious: int
    in_sample: Errors
    trusted: Errors
    all_rows: Errors
    roofline: Errors
    interval: tuple[float, float]
    coverage: float


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model left out: measured and modelled, and whether the 80 % interval of the others holds it."""

    model: str
    ttft_s: float
    modelled_ttft_s: float
    tokens_per_s: float
    modelled_tokens_per_s: float
    rows_left_out: int
    ttft_inside: bool
    tokens_inside: bool

    @property
    def ttft_off(self) -> float:
        """Relative error of the time to first token."""
        return self.modelled_ttft_s / self.ttft_s - 1

    @property
    def tokens_off(self) -> float:
        """Relative error of the tokens per second."""
        return self.modelled_tokens_per_s / self.tokens_per_s - 1


@dataclass(frozen=True, slots=True)
class RankFigures:
    """Agreement of one sweep's order, and how much slower the configuration ranked first was than the best."""

    sweep: str
    kernel: str
    points: int
    agreement: Agreement
    regret: float


@dataclass(frozen=True, slots=True)
class SequenceFigures:
    """A published time of one fused ELF, ms, and the modelled one with its interval."""

    model: str
    call: str
    ms: float
    modelled_ms: float
    low_ms: float
    high_ms: float
    source: str


@dataclass(frozen=True, slots=True)
class CostReport:
    """All figures. label: what every time in it is."""

    kernels: Mapping[str, KernelFigures]
    models: Sequence[ModelFigures]
    ranking: Sequence[RankFigures]
    sequences: Sequence[SequenceFigures]
    refused_rows: Mapping[str, int]
    refused_models: Mapping[str, int]
    fitted: Fitted
    label: str = "modelled"

    @property
    def ttft_within_20(self) -> int:
        """Models whose time to first token is within ±20 %, left out."""
        return sum(abs(one.ttft_off) <= 0.2 for one in self.models)

    @property
    def tokens_within_20(self) -> int:
        """Models whose tokens per second are within ±20 %, left out."""
        return sum(abs(one.tokens_off) <= 0.2 for one in self.models)

    def ranked(self, kernel: str | None = None) -> Agreement:
        """Pairs over all sweeps, or those of one kernel."""
        total = NONE
        for one in self.ranking:
            if kernel in (None, one.kernel):
                total += one.agreement
        return total

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the fit itself."""
        total = self.ranked()
        return {
            "label": self.label,
            "kernels": {name: asdict(one) for name, one in self.kernels.items()},
            "models": [asdict(one) | {"ttft_off": one.ttft_off, "tokens_off": one.tokens_off} for one in self.models],
            "ttft_within_20": self.ttft_within_20,
            "tokens_within_20": self.tokens_within_20,
            "ranking": [
                asdict(one) | {"tau": one.agreement.tau, "clear_tau": one.agreement.clear_tau} for one in self.ranking
            ],
            "sequences": [asdict(one) for one in self.sequences],
            "kendall_tau": total.tau,
            "kendall_tau_clear_pairs": total.clear_tau,
            "refused_rows": dict(self.refused_rows),
            "refused_models": dict(self.refused_models),
            "fit_digest": self.fitted.digest,
        }


def roofline(kernel: str, rows: Sequence[MeasuredRow]) -> Array:
    """The baseline's times [n], µs: one dispatch and the longer of arithmetic and traffic, fitted to these very rows."""
    model = MODELS[kernel]
    flops = np.array([model.flops(row.shape) for row in rows])
    traffic = np.array([model.traffic(row.shape) for row in rows])

    def times(params: Array) -> Array:
        return np.asarray(params[0] + np.maximum(flops / params[1] / 1e6, traffic / params[2] / 1e3))

    return times(fit_positive(times, np.array([row.latency_us for row in rows]), np.array(ROOFLINE)))


def kernel_figures(kernel: str, rows: Sequence[MeasuredRow]) -> KernelFigures:
    """One kernel's figures from its rows, suspicious ones among them."""
    trusted = [row for row in rows if row.suspicious is None]
    found = fit_kernel(kernel, trusted)
    held, coverage = found.held_out, found.coverage
    assert held is not None
    assert coverage is not None
    everything = held
    if len(trusted) < len(rows):
        measured = np.array([row.latency_us for row in rows])
        everything = held_out_errors(hold_out(MODELS[kernel], features_of(MODELS[kernel], rows), measured))
    base = roofline(kernel, trusted)
    return KernelFigures(
        rows=len(rows),
        suspicious=len(rows) - len(trusted),
        in_sample=found.in_sample,
        trusted=held,
        all_rows=everything,
        roofline=Errors.of(base, np.array([row.latency_us for row in trusted])),
        interval=(found.log_low, found.log_high),
        coverage=coverage,
    )


def model_figures(each: Sequence[LeftOut]) -> list[ModelFigures]:
    """Every model left out; its intervals are those the other models give."""
    figures: list[ModelFigures] = []
    for one in each:
        others = [other for other in each if other is not one]
        ttft, token = [other.ttft_log for other in others], [other.token_log for other in others]
        figures.append(
            ModelFigures(
                model=one.speed.model_id,
                ttft_s=one.speed.ttft_s,
                modelled_ttft_s=one.predicted.ttft_s,
                tokens_per_s=one.speed.tokens_per_s,
                modelled_tokens_per_s=one.predicted.tokens_per_s,
                rows_left_out=one.rows_left_out,
                ttft_inside=min(ttft) <= one.ttft_log <= max(ttft),
                tokens_inside=min(token) <= one.token_log <= max(token),
            )
        )
    return figures


def rank_figures(fitted: Fitted, sweep: Sweep) -> RankFigures:
    """How the fit orders one sweep."""
    predicted = [predict_kernel(fitted, sweep.kernel, sweep.shape, point).modelled_us for point, _ in sweep.points]
    measured = [cost for _, cost in sweep.points]
    chosen = measured[int(np.argmin(predicted))]
    return RankFigures(
        sweep.id, sweep.kernel, len(measured), agreement(predicted, measured), chosen / min(measured) - 1
    )


def _ranking(fitted: Fitted, rows: Sequence[MeasuredRow]) -> list[RankFigures]:
    """Printed sweeps by the whole fit; corpus rows of one shape by a fit without that shape's rows."""
    figures = [rank_figures(fitted, sweep) for sweep in sweeps() if sweep.kernel in fitted.kernels]
    for sweep in sweeps_of(rows):
        kept = [row for row in rows if row.kernel == sweep.kernel and dict(row.shape) != dict(sweep.shape)]
        figures.append(rank_figures(fit(kept, judge=False), sweep))
    return figures


def sequence_figures(fitted: Fitted) -> list[SequenceFigures]:
    """The ELFs of sequences.toml."""
    table = tomllib.loads(files("npu_tools.cost").joinpath("sequences.toml").read_text(encoding="utf-8"))
    configs = {model.name: model.config for model in published()}
    figures: list[SequenceFigures] = []
    for entry in table["sequence"]:
        dims = read_config(configs[entry["model"]])
        assert not isinstance(dims, Finding)
        calls = {call.name: call for call in (*prefill_calls(dims, SEQ_LEN), lm_head_call(dims))}
        found = predict_launches(fitted, calls[entry["call"]].launches)
        times = (found.modelled_us / 1e3, found.low / 1e3, found.high / 1e3)
        figures.append(SequenceFigures(entry["model"], entry["call"], float(entry["ms"]), *times, entry["source"]))
    return figures


def measure_cost(row_records: Iterable[Mapping[str, Any]], model_records: Iterable[Mapping[str, Any]]) -> CostReport:
    """Fit, hold out, rank; the same figures for the same records.

    Raises:
        UnusableInput: fewer than four measured models.
    """
    rows, refused_rows = read_rows(row_records)
    speeds: list[ModelSpeed]
    speeds, refused_models = read_speeds(model_records)
    each = left_out(rows, speeds)
    fitted = fit_all(rows, speeds, without=each)
    by_kernel = {kernel: [row for row in rows if row.kernel == kernel] for kernel in fitted.kernels}
    return CostReport(
        kernels={
            kernel: kernel_figures(kernel, mine)
            for kernel, mine in by_kernel.items()
            if fitted.kernels[kernel].held_out is not None
        },
        models=model_figures(each),
        ranking=_ranking(replace(fitted, overheads=None), rows),
        sequences=sequence_figures(fitted),
        refused_rows=refused_rows,
        refused_models=refused_models,
        fitted=fitted,
    )
