"""The cost model: rows read or refused, fits recovered, predictions labelled, the shipped fit of the shipped rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kb.corpus import load
from npu_tools.architectures import Dimensions, published, read_config
from npu_tools.cost.defaults import default_settings
from npu_tools.cost.deployment import decode_calls, lm_head_call, prefill_calls
from npu_tools.cost.fit import Fitted, fit, hold_out
from npu_tools.cost.kernels import MODELS, grouped
from npu_tools.cost.models import left_out, read_speeds
from npu_tools.cost.predict import predict_kernel, predict_launches, predict_model, shipped
from npu_tools.cost.rows import MeasuredRow, read_rows, rows_digest, suspicions
from npu_tools.cost.solve import fit_positive
from npu_tools.cost.sweeps import agreement, sweeps
from npu_tools.cost.tune import tune
from npu_tools.errors import UnknownKernel, UnusableInput

ROOT = Path(__file__).parents[2]
LLAMA = {"M": 2048, "K": 2048, "N": 8192}


@pytest.fixture(scope="module")
def records() -> dict[str, list[dict[str, Any]]]:
    """The shipped corpus's kernel and model rows as plain dicts."""
    found: dict[str, list[dict[str, Any]]] = {"kernel_row": [], "model_row": []}
    for record in load(ROOT / "kb/corpus", ROOT / "kb/compiled").records.values():
        if record.kind in found:
            found[record.kind].append(record.model_dump(mode="json"))
    return found


@pytest.fixture(scope="module")
def rows(records: dict[str, list[dict[str, Any]]]) -> list[MeasuredRow]:
    return read_rows(records["kernel_row"])[0]


def gemv_record(m: int, k: int, us: float, **changes: Any) -> dict[str, Any]:
    """A made-up GEMV row."""
    return {
        "id": f"gemv-{m}x{k}",
        "kernel": "gemv",
        "shape": {"M": m, "K": k},
        "tile": {"herd_m": 8, "tile_m": 8, "m_input": 8},
        "herd": "8x1",
        "dtype": "bf16->bf16",
        "figures": [{"metric": "latency", "value": us, "unit": "us"}],
        **changes,
    }


def dims_named(name: str) -> Dimensions:
    """One of the nine published models."""
    dims = read_config(next(model.config for model in published() if model.name == name))
    assert isinstance(dims, Dimensions)
    return dims


def test_rows_without_a_usable_figure_are_refused_by_reason() -> None:
    rows, refused = read_rows(
        [
            gemv_record(2048, 2048, 330.0),
            gemv_record(1024, 2048, 200.0, figures=[]),
            gemv_record(1024, 2048, 200.0, kernel="softmax"),
            gemv_record(1024, 2048, 200.0, shape={"M": "many"}),
            gemv_record(1024, 2048, 200.0, devices=["npu1"]),
        ]
    )
    assert [row.latency_us for row in rows] == [330.0]
    assert refused == {
        "no latency, throughput or bandwidth": 1,
        "no cost model for kernel 'softmax'": 1,
        "shape or tile is not a table of positive whole numbers": 1,
        "not measured on npu2": 1,
    }


def test_a_latency_is_derived_from_gflops_and_a_range_gives_its_middle() -> None:
    flops = gemv_record(2048, 2048, 1.0, figures=[{"metric": "throughput", "value": 25.0, "unit": "GFLOPS"}])
    spread = gemv_record(1024, 2048, 1.0, figures=[{"metric": "latency", "value": 10.0, "high": 20.0, "unit": "us"}])
    first, second = (read_rows([record])[0][0].latency_us for record in (flops, spread))
    assert first == pytest.approx(2 * 2048 * 2048 / 25e3)
    assert second == 15.0


def test_the_digest_of_rows_ignores_their_order_and_sees_a_figure() -> None:
    one, _ = read_rows([gemv_record(2048, 2048, 330.0), gemv_record(1024, 2048, 200.0)])
    other, _ = read_rows([gemv_record(1024, 2048, 201.0), gemv_record(2048, 2048, 330.0)])
    assert rows_digest(one) == rows_digest(one[::-1])
    assert rows_digest(one) != rows_digest(other)


def test_every_suspicious_row_names_a_corpus_row(records: dict[str, list[dict[str, Any]]]) -> None:
    assert set(suspicions()) <= {record["id"] for record in records["kernel_row"]}
    assert all(suspicions().values())


def test_positive_parameters_are_recovered_and_an_outlier_hardly_moves_them() -> None:
    size = np.linspace(1, 100, 40)
    measured = 80 + 3.0 * size
    measured[7] *= 4
    found = fit_positive(lambda p: p[0] + p[1] * size, measured, np.array([50.0, 1.0]))
    assert found == pytest.approx([80, 3.0], rel=0.05)


def test_a_fit_of_synthetic_rows_recovers_what_made_them() -> None:
    made = {"dispatch_us": 60.0, "group_us": 4.0, "call_us": 0.05, "column_gbps": 5.0}
    model = MODELS["gemv"]
    records: list[dict[str, Any]] = []
    for m in (256, 512, 1024, 2048, 4096, 8192):
        for k in (1024, 2048, 4096):
            shape = {"M": m, "K": k}
            features = {
                name: np.array(value)
                for name, value in model.describe(shape, {"herd_m": 8, "tile_m": 8, "m_input": 8}).items()
            }
            records.append(gemv_record(m, k, float(sum(float(v) for v in model.parts(made, features).values()))))
    fitted = fit(read_rows(records)[0]).kernels["gemv"]
    assert fitted.params["column_gbps"] == pytest.approx(5.0, rel=0.05)
    assert fitted.held_out is not None
    assert fitted.held_out.mape < 0.01


def test_held_out_predictions_are_the_same_each_time(rows: list[MeasuredRow]) -> None:
    mine = [row for row in rows if row.kernel == "rope"]
    model = MODELS["rope"]
    described = [model.describe(row.shape, row.settings) for row in mine]
    features = {name: np.array([one[name] for one in described]) for name in described[0]}
    measured = np.array([row.latency_us for row in mine])
    first, second = (hold_out(model, features, measured, repeats=1) for _ in range(2))
    assert np.array_equal(first.logs, second.logs)


def test_runtime_loops_are_issued_in_groups_that_divide_them() -> None:
    assert [grouped(70, 4), grouped(72, 4), grouped(7, 4), grouped(128, 16), grouped(128, 0)] == [35, 18, 7, 8, 1]


def test_the_shipped_fit_is_of_the_shipped_rows_and_meets_its_targets(
    rows: list[MeasuredRow], records: dict[str, list[dict[str, Any]]]
) -> None:
    fitted = shipped()
    trusted = [row for row in rows if row.suspicious is None]
    assert fitted.digest == rows_digest(trusted), "rebuild fitted.json: measured rows changed"
    gemm = fitted.kernels["gemm"].held_out
    assert gemm is not None
    assert gemm.within_20 >= 0.93
    for kernel in ("gemv", "rmsnorm", "rope", "silu_mul"):
        held = fitted.kernels[kernel].held_out
        assert held is not None
        assert held.mape <= 0.08


def test_the_shipped_parameters_are_what_a_fit_gives_today(rows: list[MeasuredRow]) -> None:
    again, fitted = fit(rows, judge=False), shipped()
    for kernel, found in again.kernels.items():
        assert found.params == pytest.approx(fitted.kernels[kernel].params, rel=0.02)


def test_models_left_out_are_predicted_within_a_fifth(
    rows: list[MeasuredRow], records: dict[str, list[dict[str, Any]]]
) -> None:
    speeds, refused = read_speeds(records["model_row"])
    assert len(speeds) == 9
    assert sum(refused.values()) == len(records["model_row"]) - 9
    each = left_out(rows, speeds)
    assert all(one.rows_left_out > 0 for one in each)
    assert sum(abs(np.expm1(-one.ttft_log)) <= 0.2 for one in each) >= 7
    assert sum(abs(np.expm1(one.token_log)) <= 0.2 for one in each) >= 7


def test_a_prediction_is_labelled_and_its_parts_sum_up() -> None:
    found = predict_kernel(shipped(), "gemm", LLAMA)
    assert found.label == "modelled"
    assert found.low < found.modelled_us < found.high
    assert sum(found.parts.values()) == pytest.approx(found.modelled_us)
    assert json.loads(json.dumps(found.as_dict()))["basis"]


@pytest.mark.parametrize("kernel", sorted(MODELS))
def test_every_kernel_has_settings_by_rule_and_a_prediction(kernel: str) -> None:
    shapes = {
        "gemm": LLAMA,
        "gemv": {"M": 8192, "K": 2048},
        "rmsnorm": {"rows": 2048, "cols": 2048},
        "layernorm": {"rows": 1024, "cols": 768},
        "rope": {"rows": 65536, "head_dim": 64},
        "flash_attention": {"seq_q": 2048, "seq_kv": 2048, "head_dim": 128, "heads": 16, "kv_heads": 8},
    }
    found = predict_kernel(shipped(), kernel, shapes.get(kernel, {"n": 4194304}))
    assert 50 < found.modelled_us < 100_000


@pytest.mark.parametrize(
    ("kernel", "shape", "settings", "device"),
    [
        ("gemm", {"M": 2048, "K": 2048}, None, "npu2"),
        ("gemm", LLAMA, {"tile_n": 100}, "npu2"),
        ("gemm", LLAMA, {"method": "magic"}, "npu2"),
        ("gemm", {"M": -1, "K": 2, "N": 3}, None, "npu2"),
        ("gemv", {"M": 2048, "K": 2048}, {"tile_m": 7}, "npu2"),
        ("gemm", LLAMA, None, "npu1"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    kernel: str, shape: dict[str, int], settings: dict[str, int | str] | None, device: str
) -> None:
    with pytest.raises(UnusableInput):
        predict_kernel(shipped(), kernel, shape, settings, device)


def test_an_unknown_kernel_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownKernel, match="flash_attention"):
        predict_kernel(shipped(), "conv2d", {"n": 1})


def test_a_fused_sequence_pays_the_dispatch_once() -> None:
    launches = prefill_calls(dims_named("llama-3.2-1b"), 2048)[2].launches
    whole = predict_launches(shipped(), launches)
    alone = sum(predict_kernel(shipped(), one.kernel, one.shape, one.settings).modelled_us for one in launches)
    assert len(launches) == 8
    assert whole.modelled_us < alone - 300
    with pytest.raises(UnusableInput, match="at least one"):
        predict_launches(shipped(), [])


def test_the_calls_of_a_layer_are_those_upstream_runs() -> None:
    for model in published():
        dims = read_config(model.config)
        assert isinstance(dims, Dimensions)
        assert len(prefill_calls(dims, 2048)) == len(model.prefill_elfs)
        assert len(decode_calls(dims)) == len(model.decode_elfs)
        assert len(lm_head_call(dims).launches) == model.lm_head[0]


def test_longer_context_and_longer_prompts_cost_more() -> None:
    dims = dims_named("qwen3-1.7b")
    short, long = (predict_model(shipped(), dims, seq_len=n, context_len=n) for n in (512, 4096))
    assert short.label == "modelled"
    assert short.ttft_s < long.ttft_s
    assert short.tokens_per_s > long.tokens_per_s
    assert short.ttft_low_s < short.ttft_s < short.ttft_high_s
    assert short.tokens_low < short.tokens_per_s < short.tokens_high
    with pytest.raises(UnusableInput):
        predict_model(shipped(), dims, seq_len=0)


def test_tuning_asks_from_the_fastest_on_and_keeps_what_is_legal() -> None:
    asked: list[int] = []

    def narrow(kernel: str, shape: Any, settings: Any) -> bool:
        asked.append(settings["tile_n"])
        return settings["tile_n"] <= 128 and settings["tile_m"] <= 64

    tuned = tune(shipped(), "gemm", LLAMA, legal=narrow, best=3)
    assert len(tuned.ranked) == 3
    assert tuned.refused == len(asked) - 3
    assert all(one.settings["tile_n"] <= 128 for one in tuned.ranked)
    times = [one.prediction.modelled_us for one in tuned.ranked]
    assert times == sorted(times)


def test_the_order_of_printed_sweeps_is_met_where_the_measurement_tells_them_apart() -> None:
    fitted = shipped()
    alike = unlike = 0
    for sweep in sweeps():
        predicted = [predict_kernel(fitted, sweep.kernel, sweep.shape, point).modelled_us for point, _ in sweep.points]
        found = agreement(predicted, [cost for _, cost in sweep.points])
        alike, unlike = alike + found.clear_alike, unlike + found.clear_unlike
    assert (alike - unlike) / (alike + unlike) > 0.8


def test_agreement_counts_pairs_and_sets_close_ones_apart() -> None:
    found = agreement([1.0, 2.0, 3.0], [10.0, 30.0, 29.9])
    assert (found.alike, found.unlike, found.clear_alike, found.clear_unlike) == (2, 1, 2, 0)
    assert found.tau == pytest.approx(1 / 3)


def test_a_fit_survives_its_file() -> None:
    fitted = shipped()
    assert Fitted.from_dict(json.loads(fitted.as_json())) == fitted


def test_default_settings_divide_the_shapes_of_all_published_models() -> None:
    for model in published():
        dims = read_config(model.config)
        assert isinstance(dims, Dimensions)
        for call in (*prefill_calls(dims, 2048), *decode_calls(dims), lm_head_call(dims)):
            for launch in call.launches:
                MODELS[launch.kernel].describe(launch.shape, launch.settings)
    assert default_settings("gemm", LLAMA)["method"] == "fused-cast"
