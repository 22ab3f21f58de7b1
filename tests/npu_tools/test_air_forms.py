"""Reading AIR programs: custom and generic forms, printing, places."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import pytest
from xdsl.dialects.builtin import IndexType

from npu_tools.air import measure_forms, parse_program
from npu_tools.air.air_forms import FORMS as AIR_FORMS
from npu_tools.air.dialect import (
    AIR,
    ChannelGetOp,
    ChannelOp,
    ChannelPutOp,
    CustomOp,
    DmaMemcpyNdOp,
    ExecuteOp,
    HerdOp,
    LaunchOp,
    RankOp,
    SegmentOp,
    WaitAllOp,
)
from npu_tools.air.windows import DYNAMIC

DATA = Path(__file__).parents[1] / "data" / "air"
OWN = sorted(DATA.glob("form_*.mlir"))


@lru_cache
def program(name: str) -> Any:
    """A program of the data folder."""
    return parse_program((DATA / name).read_text(encoding="utf-8"), name)


def only(parsed: Any, kind: Any, index: int = 0) -> Any:
    """The op of that kind at that place in the order of the text."""
    return [op for op in parsed.module.walk() if isinstance(op, kind)][index]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_printing_the_generic_form_and_reading_it_again_changes_nothing(path: Path) -> None:
    printed = parse_program(path.read_text(encoding="utf-8"), path.name).print_generic()
    assert parse_program(printed, "printed").print_generic() == printed


def test_every_air_op_occurs_in_custom_and_in_generic_form() -> None:
    wanted = {op.name for op in AIR.operations}
    custom = program("form_hierarchy.mlir")
    assert {op.name for op in custom.module.walk() if op.name.startswith("air.")} == wanted
    generic = parse_program(custom.print_generic())
    assert {op.name for op in generic.module.walk() if op.name.startswith("air.")} == wanted
    assert set(AIR_FORMS) == wanted


def test_a_launch_tells_its_name_token_sizes_and_arguments() -> None:
    launch = only(program("form_hierarchy.mlir"), LaunchOp)
    assert launch.sym_name == "whole"
    assert launch.async_token is launch.results[0]
    assert [token.owner.name for token in launch.async_dependencies] == ["air.wait_all"]
    assert [size.owner.value.value.data for size in launch.sizes] == [1, 2]
    assert [argument.name_hint for argument in launch.ids] == ["i", "j"]
    assert [argument.name_hint for argument in launch.size_args] == ["ni", "nj"]
    assert [argument.name_hint for argument in launch.kernel_args] == ["la", "lb"]
    assert [operand.name_hint for operand in launch.kernel_operands] == ["a", "b"]
    assert launch.int_attr("id") == 1


def test_a_herd_tells_where_it_is_placed_and_what_it_links() -> None:
    herd = only(program("form_hierarchy.mlir"), HerdOp)
    assert (herd.link_with, herd.x_loc, herd.y_loc, herd.x_size) == ("kernel.o", 1, 2, None)
    assert herd.body.block.last_op.name == "air.herd_terminator"
    segment = only(program("form_hierarchy.mlir"), SegmentOp)
    assert (segment.x_loc, segment.y_loc, segment.x_size, segment.y_size) == (0, 2, 4, 4)
    assert only(program("form_hierarchy.mlir"), RankOp).universe.owner.name == "air.universe.alloc"


def test_windows_mix_integers_and_values_and_the_marker_stays_inside() -> None:
    parsed = program("form_hierarchy.mlir")
    put = only(parsed, ChannelPutOp)
    assert put.window.offsets == [put.indices[0], 0]
    assert put.window.sizes[0] == 16
    assert put.window.sizes[1].owner.name == "arith.constant"
    assert put.window.strides == [64, 1]
    assert (put.pad_before, put.pad_after) == ([0, 0], [0, 2])
    assert (put.chan_name, put.dest) == ("stream", None)
    assert only(parsed, ChannelPutOp, 1).dest is only(parsed, LaunchOp).ids[1]
    get = only(parsed, ChannelGetOp)
    assert get.window.is_whole
    assert get.async_dependencies == (put.async_token,)
    dma = only(parsed, DmaMemcpyNdOp)
    assert dma.dst_window.is_whole
    assert dma.src_window.sizes == [16, 16]
    assert DYNAMIC not in [entry for window in dma.windows().values() for entry in window.offsets]


def test_channels_have_upstream_s_defaults() -> None:
    parsed = program("form_hierarchy.mlir")
    stream, spread, packets = (only(parsed, ChannelOp, index) for index in range(3))
    assert (stream.size, stream.channel_type, stream.broadcast_shape) == ([2, 2], "npu_dma_stream", None)
    assert (spread.size, spread.broadcast_shape) == ([1, 4], [4, 4])
    assert (packets.size, packets.channel_type, packets.packet_ids) == ([], "npu_dma_packet", [1, 4])
    assert only(program("form_generic.mlir"), ChannelOp, 1).size == []


def test_execute_returns_a_token_and_the_values_of_its_terminator() -> None:
    parsed = program("form_hierarchy.mlir")
    execute = only(parsed, ExecuteOp)
    assert [str(result.type) for result in execute.results] == ["!air.async.token", "memref<16x16xbf16, 1 : i64>"]
    freed = only(parsed, ExecuteOp, 1)
    assert freed.int_attr("id") == 2
    assert freed.body.block.last_op.name == "air.execute_terminator"
    assert only(parsed, CustomOp).symbol == "kernel"
    assert only(parsed, WaitAllOp, 1).async_token is None


def test_text_of_the_time_before_dest_was_an_operand_is_read() -> None:
    text = (
        program("form_generic.mlir")
        .print_generic()
        .replace("array<i32: 0, 1, 1, 1, 0, 0, 0>", "array<i32: 0, 1, 1, 1, 0, 0>")
    )
    assert only(parse_program(text), ChannelPutOp).window.sizes == [4]


def test_places_are_those_of_op_names_in_custom_and_generic_form() -> None:
    for name in ("form_hierarchy.mlir", "form_generic.mlir", "form_below_air.mlir"):
        parsed = program(name)
        lines = parsed.text.splitlines()
        for op in parsed.module.walk():
            place = parsed.where(op)
            assert place is not None
            rest = lines[place.line - 1][place.column - 1 :].lstrip('"')
            word = re.match(r"[\w.]*", rest)
            assert word is not None
            assert rest.startswith(("}", "//")) or op.name.endswith(word.group()), (op.name, place)


def test_an_implicit_terminator_stands_where_its_region_closes() -> None:
    parsed = parse_program("func.func @f(%n: index) {\n  air.herd tile (%x) in (%s = %n) {\n    }\n  return\n}\n")
    place = parsed.where(only(parsed, HerdOp).body.block.last_op)
    assert place is not None
    assert (place.line, place.column) == (3, 5)


def test_ops_of_unknown_dialects_keep_their_name_in_generic_form() -> None:
    parsed = program("form_generic.mlir")
    unknown = next(op for op in parsed.module.walk() if op.name == "somebody.else")
    assert "#somebody.attr<[1, {x}]>" in parsed.print_generic()
    assert isinstance(unknown.operands[0].type, IndexType)


def test_names_may_be_used_again_in_a_region_isolated_from_above() -> None:
    herd = only(program("form_odds.mlir"), HerdOp)
    assert [argument.name_hint for argument in herd.body.block.args] == ["x", "y", "n", "a"]


def test_lines_that_a_builder_printed_in_front_are_skipped_and_positions_kept() -> None:
    parsed = parse_program(
        "RoPE LUT: seq_len=64, herd=[1,1]\nlaunch0\nmodule {\n  func.func @f() {\n    return\n  }\n}\n"
    )
    place = parsed.where(parsed.functions()[0])
    assert place is not None
    assert (place.line, place.column) == (4, 3)


def test_a_split_file_becomes_a_module_of_modules_with_places_of_the_file() -> None:
    parsed = program("form_below_air.mlir")
    assert [op.name for op in parsed.module.body.block.ops] == ["builtin.module", "builtin.module"]
    launch = next(op for op in parsed.module.walk() if op.name == "transform.air.par_to_launch")
    place = parsed.where(launch)
    assert place is not None
    assert "transform.air.par_to_launch" in parsed.text.splitlines()[place.line - 1]


def test_functions_and_declarations_are_told_apart() -> None:
    parsed = parse_program("func.func private @kernel(memref<4xi32>)\nfunc.func @main() {\n  return\n}\n")
    assert [function.sym_name.data for function in parsed.functions()] == ["main"]
    assert list(parsed.declarations()) == ["kernel"]


def test_one_value_for_a_large_constant_takes_no_list() -> None:
    parsed = parse_program("%0 = arith.constant dense<7> : tensor<4096x4096xi8>")
    value = cast("Any", next(op for op in parsed.module.walk() if op.name == "arith.constant")).value
    assert value.data.data == b"\x07" * (4096 * 4096)


def test_resources_come_back_with_the_generic_form() -> None:
    printed = program("form_odds.mlir").print_generic()
    assert 'weights: "0x040000000000803F00000040"' in printed
    assert "dense_resource<weights>" in printed


def test_comparisons_of_vectors_give_vectors_of_i1() -> None:
    compare = next(op for op in program("form_memory.mlir").module.walk() if op.name == "arith.cmpf")
    assert str(compare.results[0].type) == "vector<16xi1>"


def test_measuring_forms_counts_files_and_programs(tmp_path: Path) -> None:
    (tmp_path / "good.mlir").write_text((DATA / "form_hierarchy.mlir").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "half.mlir").write_text(
        "air.channel @a []\n// -----\nair.channel @b []\nfoo.bar %x\n", encoding="utf-8"
    )
    (tmp_path / "other.mlir").write_text("module {} // air.herd only in a comment\n", encoding="utf-8")
    measured = measure_forms(tmp_path)
    assert [row.name for row in measured.files] == ["good.mlir", "half.mlir"]
    assert measured.files[0].whole
    assert (measured.files[1].chunks, measured.files[1].parsed, measured.files[1].round_trips) == (2, 1, 1)
    assert "half.mlir:4:1" in str(measured.files[1].error)
    assert measured.totals() == {
        "files": 2,
        "files_whole": 1,
        "programs": 3,
        "programs_parsed": 2,
        "programs_round_trip": 2,
    }


def test_upstream_s_printed_programs_are_read_and_round_trip(air_ir: Path) -> None:
    measured = measure_forms(air_ir, air_only=False)
    assert [row.error for row in measured.files if not row.whole] == []
    assert len(measured.files) > 0
