"""The legality check of programs: a program that passes and its refused twin, one rule a test.

The refused twins are made from `tests/data/air/check_*.mlir` by changing what the rule is about.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from npu_tools.check import CheckOptions, CheckReport, check_program_text
from npu_tools.device import device
from npu_tools.findings import Finding

AIR = Path(__file__).parents[1] / "data" / "air"


def check(name: str, *changes: tuple[str, str], on: str = "npu2", options: CheckOptions | None = None) -> CheckReport:
    """The report on a program of tests/data/air with texts replaced; each must occur."""
    text = (AIR / f"check_{name}.mlir").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text, f"{old!r} is not in check_{name}.mlir"
        text = text.replace(old, new)
    return check_program_text(text, f"check_{name}.mlir", device(on), options)


def only(report: CheckReport, code: str) -> Finding:
    """The one finding of a code."""
    found = [one for one in report.findings if one.code == code]
    assert len(found) == 1, [(one.code, one.message) for one in report.findings]
    return found[0]


def codes(report: CheckReport) -> set[str]:
    """The codes of a report without notes."""
    return {one.code for one in report.findings if one.severity != "note"}


@pytest.mark.parametrize("name", ["eltwise", "channels", "cascade", "l2", "herds", "gemv", "launches"])
def test_the_programs_the_twins_are_made_from_pass(name: str) -> None:
    report = check(name)
    assert report.parsed
    assert report.ok
    assert codes(report) == set()


def test_every_error_says_its_place_its_source_and_what_to_do() -> None:
    for report in (
        check("eltwise", ("1024", "16384")),
        check("channels", ("64xi32, 2", "20000xi32, 2")),
        check("herds", ("%q = arith.constant 3", "%q = arith.constant 5")),
    ):
        assert not report.ok
        for one in report.findings:
            assert one.line
            assert one.column
            assert one.source
            assert one.remedy


# ---------------------------------------------------------------- text that is no program


def test_text_that_is_no_program_is_a_finding_with_its_place() -> None:
    report = check_program_text("module {\n  func.func @f( {\n}", "broken.mlir", device("npu2"))
    assert not report.parsed
    assert not report.ok
    assert report.findings[0].code == "syntax"
    assert report.findings[0].line == 2


@pytest.mark.parametrize("text", ["", "\x00", "module {", "\ud800", "}" * 10_000, "module {}\n" * 3])
def test_any_text_is_answered(text: str) -> None:
    assert check_program_text(text, "x.mlir", device("npu1")).findings is not None


# ---------------------------------------------------------------- L1 and L2


def test_buffers_beyond_l1_are_refused_with_the_sum_and_a_size_that_fits() -> None:
    found = only(check("eltwise", ("1024", "16384"), ("65536xbf16", "1048576xbf16")), "l1-overflow")
    assert found.certain
    assert "99328 B of L1" in found.message
    assert found.diagnostic is not None
    assert "'aie.tile' op allocated buffers exceeded available memory" in found.diagnostic
    assert found.limit == "core.memory_bytes = 65536 bytes"
    assert "1/" in (found.remedy or "")


def test_buffers_that_just_fit_beside_the_stack_pass() -> None:
    fitting = check("channels", ("64xi32, 2", "16128xi32, 2"))
    assert "l1-overflow" not in codes(fitting)
    too_much = check("channels", ("64xi32, 2", "16129xi32, 2"))
    assert only(too_much, "l1-overflow").certain


def test_a_larger_stack_leaves_less_for_buffers() -> None:
    change = ("64xi32, 2", "16128xi32, 2")
    report = check("channels", change, options=CheckOptions(stack_bytes=4096))
    assert "4096 B stack" in only(report, "l1-overflow").message


def test_what_ping_pong_doubles_is_told_apart_from_what_does_not_fit_at_all() -> None:
    """The pass doubles the buffers that a loop's channel gets fill; the matrix here is one of them."""
    larger = (("4x1024", "15x1024"), ("[4, 1024]", "[15, 1024]"))
    found = only(check("gemv", *larger), "l1-overflow-ping-pong")
    assert found.severity == "warning"
    assert not found.certain
    assert 'omit_pingpong="L1"' in (found.remedy or "")
    assert "x2" in found.message


def test_with_ping_pong_left_out_single_buffers_count() -> None:
    larger = (("4x1024", "15x1024"), ("[4, 1024]", "[15, 1024]"))
    assert "l1-overflow-ping-pong" not in codes(check("gemv", *larger, options=CheckOptions(omit_pingpong="all")))
    decided = only(check("gemv", *larger, options=CheckOptions(omit_pingpong="")), "l1-overflow-ping-pong")
    assert decided.severity == "error"
    assert decided.certain


def test_a_buffer_an_opaque_kernel_touches_first_is_not_doubled() -> None:
    """%l1c is written by a call, which may read it: upstream's pass then leaves the loop alone (2026-08)."""
    assert (
        codes(check("eltwise", ("1024", "4096"), ("65536xbf16", "262144xbf16"), ("s0 * 8192", "s0 * 32768"))) == set()
    )


def test_l2_buffers_beyond_all_memtiles_are_refused() -> None:
    wide = (("64x64xbf16, 1 : i32", "64x65536xbf16, 1 : i32"),)
    found = only(check("l2", *wide), "l2-overflow")
    assert found.certain
    assert "8 memtiles of 524288 B" in found.message
    assert "4 memtiles" in only(check("l2", *wide, on="npu1"), "l2-overflow").message


# ---------------------------------------------------------------- placement


@pytest.mark.parametrize(
    ("columns", "rows", "fits"), [(8, 4, True), (8, 5, False), (9, 1, False), (1, 4, True), (1, 8, False)]
)
def test_a_herd_wider_or_higher_than_the_device_is_refused(columns: int, rows: int, fits: bool) -> None:
    report = check(
        "channels",
        ("%c2 = arith.constant 2", f"%c2 = arith.constant {columns} : index\n        %r = arith.constant {rows}"),
        ("%h=%c2", "%h=%r"),
        ("[2, 2]", f"[{max(2, columns)}, {max(2, rows)}]"),
    )
    if fits:
        assert "herd-placement" not in codes(report)
        return
    found = only(report, "herd-placement")
    assert found.certain
    assert found.diagnostic == "No valid placement found.\nUnplaced herd: copy"


def test_a_herd_too_high_is_given_a_shape_with_as_many_tiles() -> None:
    report = check(
        "channels",
        ("%c2 = arith.constant 2", "%c2 = arith.constant 1 : index\n        %r = arith.constant 8"),
        ("%h=%c2", "%h=%r"),
    )
    assert only(report, "herd-placement").remedy == "use the same 8 tiles as a 8x1 herd"


def test_the_same_herd_fits_npu2_and_not_npu1() -> None:
    change = (
        ("%c2 = arith.constant 2", "%c2 = arith.constant 6 : index\n        %r = arith.constant 1"),
        ("%h=%c2", "%h=%r"),
        ("[2, 2]", "[6, 2]"),
    )
    assert "herd-placement" not in codes(check("channels", *change))
    assert "herd-placement" in codes(check("channels", *change, on="npu1"))


def test_herds_that_fit_alone_and_not_together_are_refused() -> None:
    report = check(
        "herds", ("%r = arith.constant 4", "%r = arith.constant 5"), ("%p = arith.constant 4", "%p = arith.constant 5")
    )
    found = only(report, "herd-placement")
    assert "35 tiles of 32" in (found.remedy or "") or "do not" in found.message or found.remedy


def test_herds_that_fit_by_count_and_not_by_shape_are_refused() -> None:
    """5x3 and 4x3 take 27 of 32 tiles, but only 8 columns are there and only one row is left above."""
    report = check(
        "herds",
        ("%p = arith.constant 4", "%p = arith.constant 5"),
        ("%s = arith.constant 4", "%s = arith.constant 3"),
    )
    assert only(report, "herd-placement").certain


def test_a_segment_unrolled_by_rows_is_refused() -> None:
    unrolled = "air.segment @seg unroll (%u, %v) in (%su=%one, %sv=%two) {"
    text = (
        "air.segment @seg {",
        f"%one = arith.constant 1 : index\n      %two = arith.constant 2 : index\n      {unrolled}",
    )
    assert only(check("channels", text), "segment-unroll-rows").certain


# ---------------------------------------------------------------- memory spaces


def test_an_allocation_in_l2_inside_a_herd_is_refused() -> None:
    report = check("channels", ("memref<64xi32, 2 : i32>", "memref<64xi32, 1 : i32>"))
    found = only(report, "alloc-memory-space")
    assert found.diagnostic == ("memref.alloc inside air.herd must have memory space >= L1, but found memory space L2")


def test_an_allocation_in_l3_inside_a_segment_is_refused() -> None:
    report = check(
        "l2",
        ("%l2 = memref.alloc() : memref<64x64xbf16, 1 : i32>", "%l2 = memref.alloc() : memref<64x64xbf16>"),
        ("%l2[] [] [], %sa[] [] []) : (memref<64x64xbf16, 1 : i32>", "%l2[] [] [], %sa[] [] []) : (memref<64x64xbf16>"),
        ("args(%hl2=%l2, %ho=%l2out) : memref<64x64xbf16, 1 : i32>", "args(%hl2=%l2, %ho=%l2out) : memref<64x64xbf16>"),
        (
            "memref<8x8x8x8xbf16, 2 : i32>, memref<64x64xbf16, 1 : i32>)\n          air.dma",
            "memref<8x8x8x8xbf16, 2 : i32>, memref<64x64xbf16>)\n          air.dma",
        ),
        ("dealloc %l2 : memref<64x64xbf16, 1 : i32>", "dealloc %l2 : memref<64x64xbf16>"),
    )
    assert (
        "air.segment must have memory space >= L2, but found memory space L3"
        in only(report, "alloc-memory-space").message
    )


def test_a_core_that_addresses_l2_is_refused() -> None:
    load = "%l1 = memref.alloc() : memref<8x8x8x8xbf16, 2 : i32>\n          %zero = arith.constant 0 : index\n          %v = memref.load %hl2[%zero, %zero] : memref<64x64xbf16, 1 : i32>"
    report = check("l2", ("%l1 = memref.alloc() : memref<8x8x8x8xbf16, 2 : i32>", load))
    assert "accesses memref with memory_space L2" in only(report, "core-memory-access").message


# ---------------------------------------------------------------- launches and linking


def test_a_kernel_no_object_file_supplies_is_refused() -> None:
    report = check(
        "eltwise",
        (' attributes {link_with = "add.o", llvm.emit_c_interface}', ""),
        (' attributes {link_with = "add.o"} {', " {"),
    )
    found = only(report, "link-with-missing")
    assert found.diagnostic == "undefined symbol: add_bf16"
    assert not found.certain


def test_several_launches_are_said_to_need_an_elf() -> None:
    assert only(check("launches"), "multi-launch-elf").severity == "note"
    assert "multi-launch-elf" not in {
        one.code for one in check("launches", options=CheckOptions(output_format="elf")).findings
    }


def test_several_launches_as_xclbin_are_refused() -> None:
    assert (
        only(check("launches", options=CheckOptions(output_format="xclbin")), "multi-launch-format").severity == "error"
    )


def test_npu1_has_no_elf_for_several_launches() -> None:
    assert only(check("launches", on="npu1"), "multi-launch-format").severity == "warning"


def test_a_herd_without_a_segment_beside_other_launches_is_refused() -> None:
    text = (AIR / "check_launches.mlir").read_text(encoding="utf-8")
    first, second = text.split("air.launch @second")
    second = second.replace("      air.segment @seg args(%sa=%la, %sb=%lb) : memref<64xi32>, memref<64xi32> {\n", "", 1)
    second = second.replace("%ha=%sa, %hb=%sb", "%ha=%la, %hb=%lb").replace(
        "        }\n      }\n    }\n    return", "        }\n    }\n    return"
    )
    report = check_program_text(f"{first}air.launch @second{second}", "bare.mlir", device("npu2"))
    assert "failed to legalize" in (only(report, "herd-outside-launch").diagnostic or "")


def test_more_launches_than_one_elf_compiles_in_reasonable_time_are_warned_of() -> None:
    text = (AIR / "check_launches.mlir").read_text(encoding="utf-8")
    launch = text[text.index("    air.launch @second") : text.index("    return")]
    many = text.replace(launch, "".join(launch.replace("@second", f"@l{index}") for index in range(9)))
    found = only(check_program_text(many, "many.mlir", device("npu2")), "multi-launch-count")
    assert found.severity == "warning"
    assert "2 ELFs" in (found.remedy or "")


# ---------------------------------------------------------------- absurd input


@pytest.mark.parametrize("op", ["arith.addi", "arith.remsi", "arith.minsi"])
def test_arithmetic_of_any_depth_is_answered(op: str) -> None:
    chain = "".join(f"            %z{step + 1} = {op} %z{step}, %c8 : index\n" for step in range(600))
    start = "            %at = affine.apply #offset()[%i, %x]\n"
    report = check(
        "eltwise", (start, start.replace("%at", "%z0") + chain + "            %at = arith.addi %z600, %c0 : index\n")
    )
    assert report.parsed


@pytest.mark.parametrize(
    "change",
    [
        ("%columns = arith.constant 8", "%columns = arith.constant 4000000000"),
        ("%columns = arith.constant 8", "%columns = arith.constant 0"),
        ("%columns = arith.constant 8", "%columns = arith.constant -3"),
        ("%c8 = arith.constant 8", "%c8 = arith.constant 9000000000000000000"),
        ("%c1 = arith.constant 1", "%c1 = arith.constant 0"),
        ("65536xbf16", "9000000000000000xbf16"),
        ("65536xbf16", "?xbf16"),
        ("[1024] [1]", "[9000000000000000] [9000000000000000]"),
        ("[1024] [1]", "[-5] [1]"),
    ],
)
def test_absurd_sizes_are_answered_at_once(change: tuple[str, str]) -> None:
    assert check("eltwise", change).findings is not None


def test_notes_of_one_kind_are_told_once_with_their_places() -> None:
    from npu_tools.check.program import _once  # pyright: ignore[reportPrivateUsage]

    notes = [
        Finding("note", "dealloc-in-loop", "freed in a loop", op="memref.dealloc", line=line) for line in (9, 4, 7)
    ]
    errors = [Finding("error", "stride", "too long", op="air.dma_memcpy_nd", line=line) for line in (3, 5)]
    merged = _once([*notes, *errors])
    assert [(one.code, one.line) for one in merged] == [("dealloc-in-loop", 4), ("stride", 3), ("stride", 5)]
    assert merged[0].message == "freed in a loop (also at lines 7, 9)"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("%first = arith.constant 12", "%first = arith.constant 11", "704 elements are put on @in in one run"),
        (
            "%buffer[0] [48] [1]",
            "%buffer[] [] []",
            "768 elements are put on @between in one run of the function and 1024",
        ),
        ("%second = arith.constant 16", "%second = arith.constant 17", "1024 elements are put on @out"),
    ],
)
def test_a_channel_that_takes_more_or_less_than_is_put_is_refused(old: str, new: str, said: str) -> None:
    found = only(check("herds", (old, new)), "channel-count")
    assert said in found.message
    assert found.severity == "error"
    assert found.line


def test_channels_whose_traffic_the_text_does_not_settle_are_left_to_the_emulator() -> None:
    undecided = ("scf.for %i = %zero to %first step %one", "scf.for %i = %zero to %unknown step %one")
    text = (("func.func @pair(%a", "func.func @pair(%unknown: index, %a"), ("args(%la=%a, %lb=%b) : ", "args(%unknown_1=%unknown, %la=%a, %lb=%b) : index, "), (undecided[0], undecided[1].replace("%unknown", "%unknown_1")), ("%first = arith.constant 12", "%first = arith.constant 11"))  # fmt: skip
    assert "channel-count" not in codes(check("herds", *text))
