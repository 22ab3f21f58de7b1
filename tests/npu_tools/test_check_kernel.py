"""Kernels with their shape and tile configuration, checked before a compile."""

from __future__ import annotations

import json

import pytest

from npu_tools.check.kernel import KernelReport, check_kernel, kernel_name, kernels
from npu_tools.check.measured import gemm_rows
from npu_tools.errors import UnknownDevice, UnknownKernel, UnusableInput
from npu_tools.findings import Finding


def errors(report: KernelReport) -> dict[str, Finding]:
    return {finding.code: finding for finding in report.findings if finding.severity == "error"}


def passes_as_its_remedy_says(report: KernelReport, settings: dict[str, object]) -> bool:
    """Whether the report's remedy, taken literally, passes."""
    remedy = next(iter(errors(report).values())).remedy
    assert remedy is not None
    changes = remedy.split("passes with ")[1]
    changed = dict(settings)
    for change in changes.split(", "):
        name, value = change.split(" instead of ")[0].split("=")
        changed[name] = value.strip("'")
    return check_kernel(report.kernel, report.shape, changed).ok


@pytest.mark.parametrize("row", gemm_rows(), ids=lambda row: f"{row.m}x{row.k}x{row.n}-{row.method}")
def test_every_gemm_the_registry_measured_passes_with_its_tiles(row) -> None:
    names = ("tile_m", "tile_k_l2", "tile_k_l1", "tile_n")
    settings = {**dict(zip(names, row.tiles, strict=True)), "herd_m": row.herd[0], "herd_n": row.herd[1]}
    report = check_kernel("gemm", (row.m, row.k, row.n), {**settings, "output": row.output, "method": row.method})
    assert report.ok, report.findings


def test_a_step_beyond_the_shim_descriptor_is_refused_in_the_words_of_the_tool() -> None:
    settings: dict[str, object] = {"tile_k_l2": 256, "tile_n": 64, "method": "direct"}
    report = check_kernel("matmul", "2048x2048x11008", settings)
    finding = errors(report)["stride"]
    assert finding.diagnostic == "'aie.dma_bd' op Stride 2818048 exceeds the [1:1048576] range."
    assert "1409024 words" in finding.message
    assert finding.limit is not None
    assert "shim.step_bits" in finding.limit
    assert passes_as_its_remedy_says(report, settings)


def test_more_than_the_guideline_of_upstreams_pages_passes_where_rows_ran() -> None:
    report = check_kernel("gemm", "2048x4096x14336", {"tile_k_l2": 128, "method": "fused-cast"})
    assert report.ok
    assert any(finding.code == "stride_guideline" and not finding.certain for finding in report.findings)


def test_drain_at_tile_m_64_does_not_fit_l1_and_the_parts_are_named() -> None:
    settings: dict[str, object] = {"method": "drain", "tile_m": 64, "tile_k_l2": 256, "tile_k_l1": 32, "tile_n": 128}
    finding = errors(check_kernel("gemm", "2048x2048x512", settings))["l1_bytes"]
    assert "bf16 drain 16384" in finding.message
    assert "74752" in finding.message


@pytest.mark.parametrize(
    ("shape", "l2", "l1"), [("64x720x960", 240, 48), ("192x320x64", 64, 64), ("256x960x960", 160, 32)]
)
def test_tilings_that_return_garbage_without_a_word_are_refused_as_a_rule_of_thumb(
    shape: str, l2: int, l1: int
) -> None:
    finding = errors(check_kernel("gemm", shape, {"tile_k_l2": l2, "tile_k_l1": l1}))["odd_trips"]
    assert not finding.certain
    assert finding.diagnostic is None


def test_k_256_is_clean_at_every_tiling_as_measured() -> None:
    for l2 in (64, 128, 256):
        for l1 in (32, 64):
            assert check_kernel("gemm", "192x256x64", {"tile_k_l2": l2, "tile_k_l1": l1}).ok


def test_settings_left_out_are_the_registrys_for_a_measured_shape() -> None:
    report = check_kernel("gemm", "2048x8192x2048")
    assert report.settings["method"] == "fused-cast"
    assert (report.settings["tile_m"], report.settings["tile_k_l2"], report.settings["tile_n"]) == (64, 256, 128)


def test_settings_left_out_are_legal_for_shapes_nobody_measured() -> None:
    for shape in ("2048x3200x8640", "512x1152x4608", "128x640x2560", "1024x5120x1280"):
        assert check_kernel("gemm", shape).ok, shape


def test_a_shape_no_tile_divides_says_what_to_pad_to() -> None:
    report = check_kernel("gemm", "1000x1000x1000")
    assert not report.ok
    remedy = next(iter(errors(report).values())).remedy
    assert remedy is not None
    assert "pad with zeros" in remedy
    padded = remedy.split("passes as ")[1].split(" ")[0]
    assert check_kernel("gemm", padded).ok


@pytest.mark.parametrize(
    ("shape", "settings", "code"),
    [
        ("2048x8192", {"tile_m": 8, "m_input": 8}, "l2_bytes"),
        ("2048x11008", {"tile_m": 2, "m_input": 2}, "l1_bytes"),
        ("2048x2048", {"tile_m": 1, "m_input": 1}, "granule"),
        ("151936x1024", {"tile_m": 16}, "repeat_count"),
        ("18992x1024", {"tile_m": 8, "herd_m": 8}, "divisibility"),
        ("2048x2048", {"loop_tiling": 32}, "bd_count"),
    ],
)
def test_gemv_limits_are_named(shape: str, settings: dict[str, object], code: str) -> None:
    assert code in errors(check_kernel("gemv", shape, settings))


def test_ping_pong_is_what_makes_a_wide_gemv_overflow() -> None:
    settings: dict[str, object] = {"tile_m": 2, "m_input": 1, "loop_tiling": 16}
    assert "l1_bytes" in errors(check_kernel("gemv", "2048x8192", {**settings, "omit_pingpong": ""}))
    assert check_kernel("gemv", "2048x8192", {**settings, "omit_pingpong": "all"}).ok


def test_a_matrix_too_tall_for_one_launch_loop_is_sent_to_partitions() -> None:
    finding = errors(check_kernel("matvec", "151936x1536", {"tile_m": 16}))["repeat_count"]
    assert finding.remedy is not None
    assert "19 partitions of 8192 rows" in finding.remedy


@pytest.mark.parametrize("kernel", ["rope", "eltwise_add", "silu_and_mul"])
def test_three_streams_a_tile_stop_at_eight_tiles_and_gelu_at_sixteen(kernel: str) -> None:
    shape = "65536x64" if kernel == "rope" else "16777216"
    assert "shim_channels" in errors(
        check_kernel(
            kernel, shape, {"herd_x": 8, "herd_y": 2} if kernel != "eltwise_add" else {"columns": 8, "rows": 2}
        )
    )
    assert check_kernel("gelu", "3145728", {"herd_x": 8, "herd_y": 2, "tile_n": 4096}).ok
    assert "shim_channels" in errors(check_kernel("gelu", "3145728", {"herd_x": 8, "herd_y": 4}))


def test_silu_tiles_place_in_the_measured_order_which_is_not_monotonic() -> None:
    legal = [
        tile for tile in (256, 512, 1024, 2048, 4096, 8192) if check_kernel("silu_mul", "16777216", {"tile_n": tile}).ok
    ]
    assert legal == [256, 512, 4096]


def test_an_odd_number_of_add_pieces_is_refused_and_sixteen_are_not() -> None:
    assert "odd_trips" in errors(check_kernel("eltwise_add", "245760", {"tile": 2048}))
    assert check_kernel("eltwise_add", "245760", {"tile": 1920}).ok


def test_flash_attention_is_determined_not_tuned() -> None:
    shape = "2048x2048x32x8x64"
    legal = [lqp for lqp in (64, 128, 256, 512, 1024) if check_kernel("flash_attention", shape, {"lqp": lqp}).ok]
    assert legal == [256]
    assert "head_dim" in errors(check_kernel("attn", "2048x2048x32x8x128", {"variant": "seq-first"}))
    assert "herd_size" in errors(check_kernel("attn", shape, {"num_cascade_stages": 8}))


def test_temporal_causal_attention_stops_at_four_rounds_unless_three_heads_share_a_kv_head() -> None:
    assert "rounds" in errors(check_kernel("flash_attention", "2048x2048x32x8x128", {"variant": "temporal"}))
    assert check_kernel("flash_attention", "2048x2048x24x8x128", {"variant": "temporal"}).ok


def test_an_odd_number_of_heads_runs_one_at_a_time_by_default() -> None:
    assert check_kernel("flash_attention", "2048x2048x9x3x64").settings["heads_per_unroll"] == 1
    assert "divisibility" in errors(check_kernel("flash_attention", "2048x2048x9x3x64", {"heads_per_unroll": 2}))


def test_the_fused_decode_ffn_ends_at_four_cascade_rows_and_multiples_of_512() -> None:
    assert check_kernel("o_gemv_ffn", "2048x8192").ok
    assert "cascade_rows" in errors(check_kernel("o_gemv_ffn", "2560x9728"))
    assert "k_multiple" in errors(check_kernel("o_gemv_ffn", "1536x8960"))


def test_a_refused_launch_of_a_fused_elf_is_named_by_its_role() -> None:
    finding = errors(check_kernel("rms_gemms_rope", "1000x2048x512"))["divisibility"]
    assert finding.op is not None
    assert finding.op.startswith("rms_gemms_rope: ")


def test_attention_may_not_share_an_elf() -> None:
    assert check_kernel("stitched", "8").ok
    assert "attention_alone" in errors(check_kernel("stitched", "3", {"attention": True}))


def test_npu1_has_half_the_columns_and_channels() -> None:
    assert "shim_channels" in errors(
        check_kernel("eltwise_add", "65536", {"columns": 4, "rows": 2, "tile": 512}, "npu1")
    )
    assert "herd_size" in errors(check_kernel("gemv", "2048x2048", {"herd_m": 8}, "npu1"))
    assert "elf_output" in errors(check_kernel("gemm", "2048x2048x2048", {"method": "fused-cast", "herd_m": 4}, "npu1"))


@pytest.mark.parametrize(
    ("spelt", "name"),
    [
        ("rms_norm", "rmsnorm"),
        ("weighted_rms_norm", "rmsnorm"),
        ("silu_and_mul", "silu_mul"),
        ("matvec", "gemv"),
        ("attn", "flash_attention"),
        ("RoPE-halfsplit", "rope"),
        ("matrix_multiplication", "gemm"),
    ],
)
def test_upstreams_spellings_are_understood(spelt: str, name: str) -> None:
    assert kernel_name(spelt) == name


def test_shapes_may_be_spelt_with_times_signs_and_blanks() -> None:
    assert check_kernel("gemm", "512 × 512 × 512").shape == (512, 512, 512)
    assert check_kernel("gemm", [512, 512, 512]).shape == (512, 512, 512)


@pytest.mark.parametrize(
    ("name", "shape", "settings"),
    [
        ("gemm", "2048x2048", {}),
        ("convolution", "2048x2048x2048", {}),
        ("flash_attention", "2048x2048x32", {}),
    ],
)
def test_what_is_no_kernel_or_no_shape_of_it_says_what_there_is(
    name: str, shape: str, settings: dict[str, object]
) -> None:
    with pytest.raises(UnknownKernel, match=r"gemm \(m|takes"):
        check_kernel(name, shape, settings)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("2048x0x2048", {}),
        ("2048x-1x2048", {}),
        ("manyxmany", {}),
        ("", {}),
        ("9" * 30 + "x64x64", {}),
        ("2048x2048x2048", {"tile_m": "wide"}),
        ("2048x2048x2048", {"tile_m": 0}),
        ("2048x2048x2048", {"tile_q": 64}),
        ("2048x2048x2048", {"method": "magic"}),
        ("2048x2048x2048", {"stitched": "perhaps"}),
    ],
)
def test_sizes_and_settings_that_are_none_are_said_so(shape: str, settings: dict[str, object]) -> None:
    with pytest.raises(UnusableInput):
        check_kernel("gemm", shape, settings)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UnknownDevice):
        check_kernel("gemm", "512x512x512", {}, "npu9")


def test_absurd_sizes_get_an_answer() -> None:
    report = check_kernel("gemm", "1099511627776x1099511627776x1099511627776")
    assert report.parsed
    assert check_kernel("silu_mul", "1099511627776").parsed
    assert check_kernel("gemv", "1x64").ok is False


def test_settings_given_as_text_are_numbers() -> None:
    assert check_kernel("gemm", "512x512x512", {"tile_m": "32"}).settings["tile_m"] == 32


def test_a_report_is_json() -> None:
    report = json.loads(json.dumps(check_kernel("gemm", "2048x2048x11008", {"tile_k_l2": 256}).as_dict()))
    assert report["parsed"] is True
    assert report["findings"][0].keys() >= {
        "severity",
        "code",
        "message",
        "op",
        "line",
        "limit",
        "source",
        "remedy",
        "certain",
    }


def test_every_error_names_its_source() -> None:
    for family in kernels():
        shape = "x".join("97" for axis in family.axes if not axis.startswith("["))
        for finding in check_kernel(family.name, shape).findings:
            assert finding.severity != "error" or finding.source, (family.name, finding)


def test_a_fused_elf_counts_one_f32_scratch_argument_a_fused_cast_gemm() -> None:
    """GQA needs one, for Q; pure MHA three. Too few leave K and V zero (Xilinx/mlir-air #1689)."""
    assert check_kernel("rms_gemms_rope", "2048x2048x512").figures["f32_scratch_arguments"] == 1
    assert check_kernel("rms_gemms_rope", "2048x2048x2048", {"kv_heads": 32}).figures["f32_scratch_arguments"] == 3
    assert check_kernel("o_ffn", "2048x2048x8192").figures["launches"] == 12


def test_one_object_for_two_tile_sizes_is_pointed_out() -> None:
    report = check_kernel("o_gemv_ffn", "2048x8192")
    assert "object_names" not in {finding.code for finding in report.findings}
    report = check_kernel("o_ffn", "256x960x2560")
    assert "object_names" in {finding.code for finding in report.findings}


def test_a_launch_loop_folds_in_two_unless_its_count_is_prime() -> None:
    assert check_kernel("gemv", "49152x2048", {"herd_m": 8, "tile_m": 8, "m_input": 8}).ok
    assert "repeat_count" in errors(check_kernel("gemv", "151936x1024", {"herd_m": 8, "tile_m": 4, "m_input": 4}))
