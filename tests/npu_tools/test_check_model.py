"""Whole models from their config.json, checked before anything is compiled."""

from __future__ import annotations

import json

import pytest

from npu_tools.architectures import Published, published
from npu_tools.check.model import check_model
from npu_tools.errors import UnusableInput

LLAMA = dict(published()[0].config)


def codes(report, severity: str = "error") -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == severity}


@pytest.mark.parametrize("model", published(), ids=lambda model: model.name)
def test_the_nine_published_models_deploy_with_upstreams_elfs(model: Published) -> None:
    report = check_model(model.config, 2048, name=model.name)
    assert report.ok, report.findings
    assert tuple(elf.name for elf in report.prefill) == model.prefill_elfs
    assert tuple(elf.name for elf in report.decode) == model.decode_elfs
    assert report.lm_head is not None
    assert (len(report.lm_head.launches), report.lm_head.launches[0].case.shape()[0]) == model.lm_head


def test_the_plan_holds_every_shape_of_every_phase() -> None:
    report = check_model(published()[8].config, 2048, name="qwen3-4b")
    shapes = {
        (launch.kernel, launch.case.shape()) for elf in (*report.prefill, *report.decode) for launch in elf.launches
    }
    assert {
        ("gemm", (2048, 2560, 4096)),
        ("gemm", (2048, 4096, 2560)),
        ("gemm", (2048, 2560, 9728)),
        ("gemm", (2048, 9728, 2560)),
        ("gemv", (2560, 9728)),
        ("qk_norm", (65536, 128)),
        ("rope", (16384, 128)),
        ("silu_mul", (2048 * 9728,)),
        ("flash_attention", (2048, 2048, 32, 8, 128)),
    } <= shapes


def test_memory_is_what_the_dimensions_say() -> None:
    report = check_model(LLAMA, 2048)
    assert report.memory is not None
    assert report.memory.kv_cache == 2 * 2 * 16 * 2048 * 512
    assert 2.4e9 < report.memory.weights < 2.5e9


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"num_local_experts": 8}, "moe"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "moe"),
        ({"kv_lora_rank": 512}, "mla"),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, "sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ({"is_encoder_decoder": True}, "encoder_decoder"),
        ({"architectures": ["FalconForCausalLM"]}, "architecture"),
        ({"hidden_act": "gelu_pytorch_tanh"}, "activation"),
        ({"partial_rotary_factor": 0.5}, "rotary"),
        ({"attention_bias": True}, "bias"),
    ],
)
def test_an_architecture_that_cannot_run_is_refused_with_one_that_can(changed: dict[str, object], code: str) -> None:
    report = check_model({**LLAMA, **changed}, 2048)
    assert codes(report) == {code}
    remedy = report.findings[0].remedy
    assert remedy is not None
    assert "llama-3.2-1b" in remedy
    assert report.parsed


def test_qwen2_with_its_window_switched_off_is_full_attention() -> None:
    qwen = {**published()[5].config, "sliding_window": 32768, "use_sliding_window": False}
    assert check_model(qwen, 2048).ok


@pytest.mark.parametrize(("seq", "ok"), [(1024, True), (512, True), (256, True), (1000, False), (2047, False)])
def test_a_prompt_is_whole_tiles_of_64(seq: int, ok: bool) -> None:
    report = check_model(LLAMA, seq)
    assert ("seq_len" not in codes(report)) is ok
    if not ok:
        finding = next(finding for finding in report.findings if finding.code == "seq_len")
        assert finding.remedy == f"pad the prompt to {-(-seq // 64) * 64} tokens"


def test_a_prompt_shorter_than_an_attention_chunk_is_refused() -> None:
    """lq % lqp: 256 queries a launch iteration."""
    report = check_model(LLAMA, 128)
    assert not report.ok
    assert any(finding.op == "flash_attn: attention" for finding in report.findings)


def test_short_prompts_use_fewer_columns_and_say_so() -> None:
    assert "short_prompt" in codes(check_model(LLAMA, 256), "note")
    assert "short_prompt" not in codes(check_model(LLAMA, 512), "note")


def test_an_untied_head_and_more_than_4_gib_of_weights_are_pointed_out() -> None:
    eight = {
        **LLAMA,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "head_dim": 128,
        "intermediate_size": 14336,
        "tie_word_embeddings": False,
    }
    report = check_model(eight, 2048)
    assert report.ok, [finding for finding in report.findings if finding.severity == "error"]
    assert "buffer_bytes" in codes(report, "warning")
    assert "untied_lm_head" in codes(report, "note")


def test_more_elfs_than_contexts_hold_asks_to_unload() -> None:
    finding = next(
        finding for finding in check_model(published()[8].config, 2048).findings if finding.code == "contexts"
    )
    assert finding.remedy is not None
    assert "unload the prefill ELFs" in finding.remedy


def test_a_prompt_longer_than_the_model_knows_is_a_warning() -> None:
    smol = published()[1].config
    assert "positions" in codes(check_model(smol, 16384), "warning")


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"architectures": ["LlamaForCausalLM"]},
        {**LLAMA, "hidden_size": "wide"},
        {**LLAMA, "num_hidden_layers": 0},
        {**LLAMA, "intermediate_size": -1},
        {**LLAMA, "vocab_size": 1 << 60},
        {**LLAMA, "rope_theta": "far"},
    ],
)
def test_what_is_no_config_is_said_so(config: dict[str, object]) -> None:
    with pytest.raises(UnusableInput):
        check_model(config, 2048)


@pytest.mark.parametrize("seq", [0, -64, 1 << 40])
def test_a_length_that_is_none_is_said_so(seq: int) -> None:
    with pytest.raises(UnusableInput):
        check_model(LLAMA, seq)


def test_odd_dimensions_get_findings_and_never_a_crash() -> None:
    for heads, hidden, emb in ((7, 1001, 777), (1, 16, 16), (3, 4097, 960)):
        report = check_model(
            {
                **LLAMA,
                "num_attention_heads": heads,
                "num_key_value_heads": 1,
                "intermediate_size": hidden,
                "hidden_size": emb,
            },
            2048,
        )
        assert report.parsed
        assert all(finding.source or finding.severity != "error" for finding in report.findings)


def test_a_report_is_json() -> None:
    report = json.loads(json.dumps(check_model(LLAMA, 2048).as_dict()))
    assert report["elfs_a_layer"] == {
        "prefill": ["rms_gemms_rope", "flash_attn", "o_ffn"],
        "decode": ["rms_gemv_rope", "o_gemv_ffn"],
    }


def test_the_widest_ffns_take_the_only_build_that_was_measured() -> None:
    """Qwen2.5's gate and up have a direct row and no high-precision one (kernel registry)."""
    report = check_model(published()[4].config, 2048, name="qwen2.5-1.5b")
    gate = next(launch for elf in report.prefill for launch in elf.launches if launch.role == "gate")
    settings = gate.case.settings()
    assert (settings["method"], settings["tile_k_l2"], settings["tile_n"]) == ("direct", 128, 64)


def test_npu1_is_told_that_it_takes_no_elf() -> None:
    assert {"elf_output", "device"} <= codes(check_model(LLAMA, 2048, "npu1"))


def test_a_length_attention_does_not_divide_is_padded_and_never_retiled_into_the_unknown() -> None:
    finding = next(finding for finding in check_model(LLAMA, 384).findings if finding.severity == "error")
    assert finding.remedy is not None
    assert "passes as 512x512x32x8x64 (pad with zeros)" in finding.remedy
