"""The legality check of data movement: descriptors, channels, streams, cascades, and the traps nothing diagnoses."""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_tools.air import parse_program
from npu_tools.check import CheckReport, check_program, check_program_text
from npu_tools.device import device
from npu_tools.findings import Finding

AIR = Path(__file__).parents[1] / "data" / "air"


def check(name: str, *changes: tuple[str, str], on: str = "npu2") -> CheckReport:
    """The report on a program of tests/data/air with texts replaced; each must occur."""
    text = (AIR / f"check_{name}.mlir").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, f"{old!r} is not in check_{name}.mlir"
        text = text.replace(old, new)
    return check_program_text(text, f"check_{name}.mlir", device(on))


def only(report: CheckReport, code: str) -> Finding:
    """The first finding of a code, which there must be."""
    found = [one for one in report.findings if one.code == code]
    assert found, [(one.code, one.message) for one in report.findings]
    return found[0]


def codes(report: CheckReport) -> set[str]:
    """The codes of a report without notes."""
    return {one.code for one in report.findings if one.severity != "note"}


# ---------------------------------------------------------------- descriptors


def test_four_dimensions_on_a_memtile_pass_and_on_a_core_are_refused() -> None:
    """check_l2 reorders with four dimensions on the memtile; here the core would do it."""
    found = only(
        check("l2", ("[64, 8, 512, 1]", "[128, 8, 512, 1]"), ("[8, 8, 8, 8] [128", "[4, 8, 8, 8] [128")),
        "bd-dimensions",
    )
    assert found.certain
    assert found.diagnostic == (
        "'aie.dma_bd' op Cannot give more than 3 dimensions for step sizes and wraps in this  tile (got 4 dimensions)."
    )


def test_dimensions_that_touch_count_as_one() -> None:
    """[8, 8, 8, 8] [64, 8, 512, 1] on the core is three dimensions: 8 steps of 64 and 8 of 8 are 64 of 8."""
    assert codes(check("l2")) == set()


def test_a_window_that_leaves_its_buffer_is_refused() -> None:
    found = only(check("l2", ("[8, 512, 64, 1]", "[16, 512, 64, 1]")), "bd-out-of-bounds")
    assert "for index 4151 in memref of length 4096" in (found.diagnostic or "")


@pytest.mark.parametrize(("count", "passes"), [(64, True), (63, False), (62, True), (1, False)])
def test_a_transfer_of_bf16_is_a_multiple_of_four_bytes(count: int, passes: bool) -> None:
    report = check("eltwise", ("[1024] [1]", f"[{count}] [1]"))
    assert ("dma-granule" not in codes(report)) is passes
    if not passes:
        found = only(report, "dma-granule")
        assert found.certain
        assert f"{count} elements at 2 bytes each equal {2 * count} bytes, which is not divisible by 4." in (
            found.diagnostic or ""
        )
        assert f"{count + 1} instead of {count}" in (found.remedy or "")


def test_an_innermost_stride_below_32_bits_is_refused_and_at_32_bits_passes() -> None:
    strided = ("[1024] [1]", "[512] [2]")
    found = only(check("eltwise", strided), "dma-inner-stride")
    assert found.certain
    assert found.diagnostic == "'aie.dma_bd' op For <32b width datatypes, inner-most dim stride must be 1"
    assert "dma-inner-stride" not in codes(check("channels", ("(%la[0] [64] [1])", "(%la[0] [64] [2])")))


def test_a_stride_only_a_single_step_takes_does_not_count() -> None:
    assert "dma-inner-stride" not in codes(check("eltwise", ("[1024] [1]", "[1024, 1] [1, 4]")))


def test_a_stride_beyond_the_shim_is_refused_unless_the_iteration_takes_it() -> None:
    """A stride of 2^22 words is only legal outermost, where a few steps become iterations."""
    wide = ("memref<2048x1024xbf16>", "memref<1048576x4096xbf16>")
    report = check("gemv", wide, ("[4, 1024] [1024, 1]", "[100, 1024] [4194304, 1]"), ("4x1024", "100x1024"))
    assert only(report, "bd-stride").limit == "shim.step_bits = 20 bits, in 4-byte words"
    few = check("gemv", wide, ("[4, 1024] [1024, 1]", "[4, 1024] [4194304, 1]"))
    assert "bd-stride" not in codes(few)


def test_an_empty_dimension_is_refused() -> None:
    assert "must be a positive integer" in (
        only(check("eltwise", ("[1024] [1]", "[0] [1]")), "dma-size").diagnostic or ""
    )


def test_an_innermost_offset_with_a_stride_is_a_portability_trap() -> None:
    """The shim scales it by the stride, tiles do not (get1DOffset)."""
    found = only(check("channels", ("(%la[64] [64] [1])", "(%la[64] [64] [2])")), "innermost-offset-scaling")
    assert found.severity == "warning"
    assert "innermost-offset-scaling" not in codes(check("channels"))


# ---------------------------------------------------------------- the shim


def test_a_vector_sent_256_times_passes_and_more_often_exceeds_the_queue() -> None:
    assert codes(check("gemv", ("%c64 = arith.constant 64", "%c64 = arith.constant 128"), ("2048", "4096"))) == set()
    found = only(
        check("gemv", ("%c64 = arith.constant 64", "%c64 = arith.constant 129"), ("2048", "4128")), "queue-repeat"
    )
    assert "repeated 258 times" in found.message
    assert found.diagnostic == "'aiex.npu.push_queue' op Repeat count exceeds the [0:255] range."


@pytest.mark.parametrize(("tile", "places"), [(256, True), (512, True), (1024, False), (2048, False), (4096, True)])
def test_the_tiles_silu_was_measured_to_place_with_are_told_from_those_it_was_not(tile: int, places: bool) -> None:
    """SiLU·mul over 16777216 elements on eight columns (kernel_registry/details/SiLU_Mul_bf16.md)."""
    total, step = 16777216, 8 * tile
    report = check(
        "eltwise",
        ("65536xbf16", f"{total}xbf16"),
        ("1024", str(tile)),
        ("s0 * 8192", f"s0 * {step}"),
        ("%c8 = arith.constant 8", f"%c8 = arith.constant {total // step}"),
    )
    assert ("shim-bd-cut" not in codes(report)) is places


@pytest.mark.parametrize(("columns", "rows", "places"), [(8, 1, True), (2, 4, True), (8, 2, False), (4, 4, False)])
def test_kernels_with_two_inputs_a_tile_place_on_eight_tiles_and_no_more(columns: int, rows: int, places: bool) -> None:
    """RoPE's page: 2x4 places, 8x2 and 4x4 do not; a column has two shim channels each way."""
    report = check(
        "eltwise",
        ("%columns = arith.constant 8", f"%columns = arith.constant {columns}"),
        ("%rows = arith.constant 1", f"%rows = arith.constant {rows}"),
        (
            "affine_map<()[s0, s1] -> (s0 * 8192 + s1 * 1024)>",
            "affine_map<()[s0, s1, s2] -> (s0 * 8192 + s1 * 1024 + s2 * 256)>",
        ),
        ("#offset()[%i, %x]", "#offset()[%i, %x, %y]"),
    )
    assert ("shim-dma-channels" not in codes(report)) is places


def test_what_all_tiles_read_is_one_stream() -> None:
    """%hb read at the same place by all sixteen tiles is broadcast: 16 + 1 inputs, still one too many; 15 + 1 would do."""
    changes = (
        ("%rows = arith.constant 1", "%rows = arith.constant 2"),
        ("%hb[%at] [1024] [1]", "%hb[%c0] [1024] [1]"),
    )
    assert "shim-dma-channels" not in codes(check("eltwise", *changes, ("s1 * 1024)", "s1 * 512)")))


def test_a_third_input_to_a_core_is_refused() -> None:
    third = (
        "air.dma_memcpy_nd (%l1b[] [] [], %hb[%at] [1024] [1]) : (memref<1024xbf16, 2 : i32>, memref<65536xbf16>)",
        "air.dma_memcpy_nd (%l1b[] [] [], %hb[%at] [1024] [1]) : (memref<1024xbf16, 2 : i32>, memref<65536xbf16>)\n"
        "            air.dma_memcpy_nd (%l1c[] [] [], %hc[%at] [1024] [1]) : (memref<1024xbf16, 2 : i32>, memref<65536xbf16>)",
    )
    found = only(check("eltwise", third), "core-dma-channels")
    assert found.severity == "error"
    assert "needs 3 input DMA channels; a core has 2" in found.message
    assert found.diagnostic == "'aie.tile' op number of input DMA channel exceeded!"


# ---------------------------------------------------------------- channels


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ("[2, 2] {broadcast_shape = [4, 4, 4]}", "bundle rank should match broadcast_shape rank"),
        ("[2, 2] {broadcast_shape = [1, 2]}", "broadcast_shape[0] (1) must be >= size[0] (2)"),
        ("[2, 2] {broadcast_shape = [8, 2]}", "size[0] (2) is not compatible with broadcast_shape[0] (8)"),
        ('[2, 2] {channel_type = "ddr_stream"}', 'unsupported channel_type "ddr_stream"'),
        ('[2, 2] {channel_type = "npu_dma_stream", packet_ids = [1, 2]}', '"packet_ids" is only valid on'),
        ('[2, 2] {channel_type = "npu_dma_packet", packet_ids = [40]}', '"packet_ids" id (40) must be in [0, 31]'),
        ('[2, 2] {channel_type = "npu_dma_packet", packet_ids = [3, 3]}', '"packet_ids" id (3) is duplicated'),
    ],
)
def test_what_upstream_refuses_in_a_channel_declaration_is_refused_in_its_words(attributes: str, text: str) -> None:
    """The cases of mlir-air's mlir/test/Dialect/AIR/air_channel_invalid.mlir."""
    report = check("channels", ("air.channel @toCore [2, 2]", f"air.channel @toCore {attributes}"))
    assert any(text in (one.diagnostic or "") and one.certain for one in report.findings), report.findings


@pytest.mark.parametrize(
    "attributes",
    ["[2, 2] {broadcast_shape = [2, 2]}", '[2, 2] {channel_type = "npu_dma_packet", packet_ids = [1, 4]}'],
)
def test_declarations_that_are_legal_pass(attributes: str) -> None:
    assert check("channels", ("air.channel @toCore [2, 2]", f"air.channel @toCore {attributes}")).ok


def test_a_channel_index_over_time_is_refused() -> None:
    looped = (
        "air.channel.put @fromCore[%x, %y] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)",
        "%a0 = arith.constant 0 : index\n          %a1 = arith.constant 1 : index\n"
        "          scf.for %t = %a0 to %a1 step %a1 {\n"
        "            air.channel.put @fromCore[%x, %t] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)\n          }",
    )
    found = only(check("channels", looped), "channel-index-loop")
    assert found.certain
    assert "channel index 1 is an scf.for induction variable" in (found.diagnostic or "")


def test_a_channel_with_one_end_is_refused_at_that_end() -> None:
    report = check(
        "channels", ("air.channel.get @toCore[%x, %y] (%buffer[] [] []) : (memref<64xi32, 2 : i32>)\n", "\n")
    )
    found = only(report, "channel-no-partner")
    assert found.certain
    assert "failed to find the other side of air.channel" in (found.diagnostic or "")
    assert found.op == "air.channel.put"


def test_a_channel_that_is_not_declared_is_refused() -> None:
    assert only(check("channels", ("  air.channel @toCore [2, 2]\n", "")), "channel-undeclared").certain


def test_an_index_beyond_the_channels_extent_is_refused() -> None:
    found = only(check("channels", ("air.channel @toCore [2, 2]", "air.channel @toCore [2, 1]")), "channel-index-range")
    assert found.remedy == "use an index from 0 to 0, or declare the channel with size 2"


@pytest.mark.parametrize(
    ("attribute", "passes"),
    [
        ("air.tile_dma_channel = 1 : i32", True),
        ("air.tile_dma_channel = 2 : i32", False),
        ("air.shim_col = 0 : i32", True),
        ("air.shim_col = 7 : i32", True),
        ("air.shim_col = 8 : i32", False),
    ],
)
def test_a_pin_must_name_a_place_there_is(attribute: str, passes: bool) -> None:
    """The cases of mlir-air's dma_channel_pin_invalid.mlir and shim_column_pin_invalid.mlir."""
    report = check("channels", ("air.channel @toCore [2, 2]", f"air.channel @toCore [2, 2] {{{attribute}}}"))
    assert ("pin-range" not in codes(report)) is passes
    if not passes:
        assert only(report, "pin-range").certain


def test_a_herd_pinned_outside_the_cores_is_said_to_lose_its_pin() -> None:
    pinned = (
        "air.herd @copy tile (%x, %y) in (%w=%c2, %h=%c2) {",
        "air.herd @copy tile (%x, %y) in (%w=%c2, %h=%c2) attributes {x_loc = 7 : i64, y_loc = 2 : i64} {",
    )
    assert only(check("channels", pinned), "herd-pin-ignored").severity == "warning"


def test_a_herd_pinned_inside_the_cores_passes() -> None:
    pinned = (
        "air.herd @copy tile (%x, %y) in (%w=%c2, %h=%c2) {",
        "air.herd @copy tile (%x, %y) in (%w=%c2, %h=%c2) attributes {x_loc = 6 : i64, y_loc = 4 : i64} {",
    )
    assert codes(check("channels", pinned)) == set()


# ---------------------------------------------------------------- memtile descriptors


def _many_transfers(count: int) -> str:
    """A segment that sends `count` different parts of an L2 buffer down one channel."""
    puts = "\n".join(
        f"        air.channel.put @down[] (%l2[{64 * part}] [64] [1]) : (memref<4096xi32, 1 : i32>)"
        for part in range(count)
    )
    return f"""
    module {{
      air.channel @up [1, 1]
      air.channel @down [1, 1]
      func.func @f(%a: memref<4096xi32>) {{
        air.launch () in () args(%la=%a) : memref<4096xi32> {{
          air.channel.put @up[] (%la[] [] []) : (memref<4096xi32>)
          air.segment @seg {{
            %one = arith.constant 1 : index
            %l2 = memref.alloc() : memref<4096xi32, 1 : i32>
            air.channel.get @up[] (%l2[] [] []) : (memref<4096xi32, 1 : i32>)
    {puts}
            air.herd @h tile (%x, %y) in (%w=%one, %v=%one) {{
              %l1 = memref.alloc() : memref<64xi32, 2 : i32>
              air.channel.get @down[] (%l1[] [] []) : (memref<64xi32, 2 : i32>)
            }}
          }}
        }}
        return
      }}
    }}"""


@pytest.mark.parametrize(("count", "passes"), [(24, True), (25, False)])
def test_a_memtiles_channel_reaches_twenty_four_descriptors(count: int, passes: bool) -> None:
    report = check_program_text(_many_transfers(count), "many.mlir", device("npu2"))
    assert ("memtile-bd-pool" not in codes(report)) is passes
    if not passes:
        assert only(report, "memtile-bd-pool").limit == "memtile.bd_pool = 24 BDs per channel parity"


# ---------------------------------------------------------------- what the front end says of the structure


def test_a_value_used_inside_a_herd_without_being_handed_in_is_refused() -> None:
    inside = (
        "%buffer = memref.alloc() : memref<64xi32, 2 : i32>",
        "%buffer = memref.alloc() : memref<64xi32, 2 : i32>\n          %k = arith.addi %c2, %c2 : index",
    )
    report = check("channels", inside)
    assert not report.ok
    assert "isolated from above" in report.findings[0].message


def test_a_call_with_the_wrong_operands_is_refused() -> None:
    wrong = (
        "func.call @add_bf16(%l1a, %l1b, %l1c) : (memref<1024xbf16, 2 : i32>, memref<1024xbf16, 2 : i32>, memref<1024xbf16, 2 : i32>)",
        "func.call @add_bf16(%l1a, %l1b) : (memref<1024xbf16, 2 : i32>, memref<1024xbf16, 2 : i32>)",
    )
    assert only(check("eltwise", wrong), "call-signature").line == 21


# ---------------------------------------------------------------- cascades


def test_a_cascade_to_the_west_is_refused() -> None:
    """Putting at index x - 1 what is got at index x turns the chain around."""
    report = check(
        "cascade",
        ("@sum[%from, %c0] (%buffer", "@sum[%x, %c0] (%buffer"),
        ("air.channel.put @sum[%x, %c0]", "air.channel.put @sum[%back, %c0]"),
        ("affine.if #last()", "%back = affine.apply #before()[%x]\n          affine.if #last()"),
    )
    found = only(report, "cascade-neighbour")
    assert "a cascade runs east or south alone" in found.message


def test_a_cascade_over_two_columns_is_refused() -> None:
    report = check("cascade", ("(s0 - 1)", "(s0 - 2)"))
    assert "not neighbours" in only(report, "cascade-neighbour").message


def test_cascades_take_no_dma_channel() -> None:
    assert "core-dma-channels" not in codes(check("cascade"))


# ---------------------------------------------------------------- traps that no tool diagnoses


def test_tiles_that_reach_past_the_end_of_a_buffer_are_found() -> None:
    """M below tile_m·herd_m: eight tiles of 1024 in a loop of eight need 65536 elements."""
    found = only(check("eltwise", ("65536xbf16", "60000xbf16")), "window-out-of-bounds")
    assert "elements 0 to 65535 of a buffer of 60000" in found.message
    assert not found.certain


def test_an_output_that_is_not_covered_is_found() -> None:
    """N not a multiple of tile_n·herd_n: what is left over is never written."""
    found = only(check("eltwise", ("65536xbf16", "70000xbf16")), "output-partly-written")
    assert "65536 of this output's 70000 elements" in found.message


def test_launch_instances_that_write_one_place_are_refused() -> None:
    """mlir-air runs air-verify-hierarchy-locality on the placed program unless told not to."""
    found = only(check("gemv", ("%hy[%row] [4] [1]", "%hy[0] [4] [1]")), "instances-overlap")
    assert found.certain
    assert "kernel operand #2: iteration variable does not appear" in (found.diagnostic or "")


def test_launch_instances_that_read_one_place_pass() -> None:
    """%hx is read at 0 by all 64 instances: no write, no race."""
    assert "instances-overlap" not in codes(check("gemv"))


# ---------------------------------------------------------------- upstream's programs

NOT_AS_UPSTREAM_RUNS_IT = "flash_attention__dataflow_based__attn"
"""Printed with attn.py's default lq = 128; its Makefile compiles LQ = 64, with half the buffers."""


def test_upstreams_programs_have_no_certain_error(air_ir: Path) -> None:
    """They compile for their target, some with options that this check leaves open."""
    refused: dict[str, list[str]] = {}
    for path in sorted(air_ir.glob("*.mlir")):
        program = parse_program(path.read_text(encoding="utf-8"), name=path.name)
        found = check_program(program, device("npu1" if "npu1" in path.stem else "npu2"))
        errors = [one.code for one in found if one.severity == "error"]
        if errors:
            refused[path.stem] = errors
    assert refused == {NOT_AS_UPSTREAM_RUNS_IT: ["l1-overflow"]}
