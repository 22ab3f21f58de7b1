"""A model on the emulator, stage by stage, beside the FP32 decomposition."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_tools.errors import UnknownKernel, UnusableInput
from npu_tools.models import open_weights
from npu_tools.models.generate import generated
from npu_tools.models.host import KeyValueCache, Sampling, embed
from npu_tools.models.kernels import KernelFailed
from npu_tools.models.plan import plan_model
from npu_tools.models.runner import Runner
from npu_tools.oracle import Decomposition, stage_names
from tests.npu_tools.small_models import BACKENDS, KERNELS, MODELS, TOKENS, config_of, dimensions, relative, runner_of


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_without_rounding_every_stage_is_that_of_the_decomposition(config: dict[str, Any]):
    runner = runner_of(config, "f32")
    seen: dict[tuple[int | None, str], Any] = {}
    prompt = runner.prefill(TOKENS, lambda layer, stage, array: seen.__setitem__((layer, stage), array))
    oracle = Decomposition(runner.dims, runner.weights)
    for layer, stage, expected in oracle.stages(TOKENS):
        actual = seen[layer, stage]
        assert actual.shape[1] == expected.shape[1], stage
        assert relative(actual[: len(expected)], expected) < 1e-5, (layer, stage)
    assert set(seen) >= {(0, stage) for stage in stage_names(runner.dims)}
    token = int(prompt.logits.argmax())
    stages = oracle.stages([*TOKENS, token])
    expected = next(array for _, stage, array in stages if stage == "logits")
    assert relative(runner.decode(token), expected[0]) < 1e-5


def test_decoding_token_by_token_is_prefilling_all_of_them():
    runner = runner_of(MODELS["llama"], "f32")
    runner.prefill(TOKENS[:4])
    for token in TOKENS[4:]:
        logits = runner.decode(token)
    assert relative(logits, runner.prefill(TOKENS).logits) < 1e-5
    assert runner.position == len(TOKENS)


def test_faithful_logits_keep_the_top_five():
    config = MODELS["llama"]
    faithful, exact = (runner_of(config, mode).prefill(TOKENS).logits for mode in ("faithful", "f32"))
    assert relative(faithful, exact) < 5e-2
    assert set(np.argsort(-faithful)[:1]) <= set(np.argsort(-exact)[:5])


def test_weights_made_again_for_each_layer_give_what_kept_ones_give():
    config = MODELS["llama"]
    kept, dropped = runner_of(config), runner_of(config, keep_bytes=0)
    for runner in (kept, dropped):
        runner.prefill(TOKENS)
    np.testing.assert_array_equal(kept.decode(7), dropped.decode(7))
    assert {phase for phase, _, _ in dropped._bound} == {"head"}  # pyright: ignore


def test_padding_behind_a_prompt_does_not_matter():
    """Without rounding: in bf16 the values of eight keys share an exponent, also with the padding's."""
    one, other = (runner_of(MODELS["llama"], "f32", pad_token=token) for token in (0, 77))
    assert relative(one.prefill(TOKENS).logits, other.prefill(TOKENS).logits) < 1e-6


def test_a_greedy_run_is_the_same_twice_and_says_where_each_step_ran():
    runner = runner_of(MODELS["llama"])
    first, second = (generated(runner, TOKENS, 4) for _ in range(2))
    assert first.tokens == second.tokens
    assert len(first.logits) == 4
    ran = {(spent.phase, spent.step): spent.ran_on for spent in runner.spent.values()}
    assert {ran[key] for key in ran if key not in HOST} == {"emulator"}
    assert {ran[key] for key in HOST} == {"host"}
    assert runner.modelled_us("decode")


HOST = {("decode", "attention"), ("head", "final_norm")}


def test_drawn_tokens_depend_on_the_seed_alone():
    logits = np.random.default_rng(0).standard_normal(100)
    sampling = Sampling(temperature=1.0, top_k=20, top_p=0.9)
    drawn = [[sampling.choose(logits, np.random.default_rng(seed)) for seed in range(20)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) > 3
    assert set(drawn[0]) <= set(np.argsort(-logits)[:20].tolist())
    assert Sampling().choose(np.array([1.0, 3.0, 3.0]), np.random.default_rng(0)) == 1


def test_a_cache_grows_and_keeps_what_it_has():
    rng = np.random.default_rng(1)
    keys = rng.standard_normal((150, 2 * 4), np.float32)
    whole, pieces = KeyValueCache(2, 4), KeyValueCache(2, 4)
    whole.append(keys, keys)
    for row in range(150):
        pieces.append(keys[row : row + 1], keys[row : row + 1])
    query = rng.standard_normal((1, 16), np.float32)
    np.testing.assert_array_equal(whole.attend(query, np.dtype(np.float32)), pieces.attend(query, np.dtype(np.float32)))


def test_what_cannot_be_planned_or_run_is_said():
    dims = dimensions(MODELS["llama"])
    for seq, said in [(100, "multiple of 64"), (0, "multiple of 64"), (1024, "512 positions")]:
        with pytest.raises(UnusableInput, match=said):
            plan_model(dims, seq)
    runner = runner_of(MODELS["llama"])
    with pytest.raises(UnusableInput, match="call prefill first"):
        runner.decode(1)
    with pytest.raises(UnusableInput, match="65 tokens; this runner takes 1 to 64"):
        runner.prefill([1] * 65)
    with pytest.raises(UnusableInput, match="token 500 is outside"):
        runner.prefill([1, 500])
    with pytest.raises(UnusableInput, match="token -1 is outside"):
        embed(np.zeros((4, 4)), [-1], np.dtype(np.float32))


def test_a_shape_nothing_tiles_is_refused_with_its_step():
    runner = runner_of(config_of("LlamaForCausalLM", intermediate_size=200))
    with pytest.raises(KernelFailed, match="gate: gemm 64x128x200 is refused") as failure:
        runner.check()
    assert failure.value.findings


def test_settings_override_by_kernel_shape_or_step():
    runner = runner_of(MODELS["llama"], settings={"decode/q": {"tile_m": 2, "m_input": 2}})
    runner.check()
    step = next(step for step in runner.plan.decode if step.name == "q")
    assert runner.shelf.kernel(step, "decode").resolved.settings["tile_m"] == 2
    bad = runner_of(MODELS["llama"], settings={"gemv": {"tile_m": 3, "m_input": 2}})
    with pytest.raises(KernelFailed, match="gemv"):
        bad.check()


def test_recipes_are_taken_from_the_first_folder_that_has_them(tmp_path: Path):
    own = tmp_path / "gemv"
    own.mkdir()
    for file in (KERNELS / "gemv").iterdir():
        text = file.read_text(encoding="utf-8")
        (own / file.name).write_text(text.replace("gemv_segment", "own_segment"), encoding="utf-8")
    config = MODELS["llama"]
    runner = Runner(dimensions(config), open_weights("random:5", config), [tmp_path, KERNELS], BACKENDS["faithful"], 64)
    step = next(step for step in runner.plan.decode if step.name == "q")
    assert "own_segment" in runner.shelf.kernel(step, "decode").text
    empty = Runner(dimensions(config), open_weights("random:5", config), [tmp_path], BACKENDS["faithful"], 64)
    with pytest.raises(UnknownKernel, match="no recipe rmsnorm"):
        empty.check()
