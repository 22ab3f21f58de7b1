"""The cascade on the shipped corpus: what comes first, what is left out, what is not known."""

from __future__ import annotations

import random

import pytest

from kb import Filters, KbError, Lesson, Memory
from kb.diagnostic import NOISE, STRONG, line_weight, weigh
from kb.document import fenced_lines
from kb.query import read_query
from kb.records import KernelRow
from kb.signature import signature_of
from kb.tokens import terms

BUILD_NOISE = [
    "make[1]: Entering directory '/data/ws/examples'",
    "[ 2/6] building module text (8806 lines)",
    "warning: overriding the module target triple with aie2p-none-unknown-elf [-Woverride-module]",
    "Requirement already satisfied: numpy in ./venv/lib/python3.12/site-packages (2.2.0)",
    "Loading checkpoint shards: 100%|##########| 2/2 [00:01<00:00,  1.90s/it]",
    "-- Generating done (0.4s)",
]


def with_diagnostics(memory: Memory, count: int) -> list[Lesson]:
    lessons = [r for r in memory.corpus.records.values() if isinstance(r, Lesson) and len(fenced_lines(r.symptom)) >= 2]
    return random.Random(4).sample(lessons, count)


def test_a_diagnostic_in_five_thousand_lines_of_noise_finds_its_lesson(memory: Memory) -> None:
    rng = random.Random(1)
    found = 0
    sample = with_diagnostics(memory, 20)
    for lesson in sample:
        lines = [f"{rng.choice(BUILD_NOISE)} {n}" for n in range(5000)]
        at = rng.randrange(5000)
        lines[at:at] = fenced_lines(lesson.symptom)
        found += lesson.id in [hit.record.id for hit in memory.explain("\n".join(lines)).hits]
    assert found >= 19


def test_a_description_in_words_finds_its_lesson(memory: Memory) -> None:
    found = 0
    sample = with_diagnostics(memory, 60)
    for lesson in sample:
        answer = memory.explain(lesson.also_seen_as[0], limit=5)
        found += lesson.id in [hit.record.id for hit in answer.hits]
    assert found >= 54


@pytest.mark.parametrize(
    "paste",
    [
        'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space\n\tat java.util.Arrays.copyOf(Arrays.java:3537)',
        "npm ERR! code ERESOLVE\nnpm ERR! ERESOLVE unable to resolve dependency tree for webpack",
        "psql: error: FATAL:  password authentication failed for user postgres",
        "my sourdough does not rise in the oven although the starter is active",
    ],
)
def test_failures_of_other_stacks_are_not_answered(memory: Memory, paste: str) -> None:
    answer = memory.explain(paste)
    assert answer.no_match
    assert answer.signature


@pytest.mark.parametrize("paste", ["", "   \n\t ", "\x00\x01", "....", "????"])
def test_text_without_words_is_no_match(memory: Memory, paste: str) -> None:
    assert memory.explain(paste).no_match


def test_a_device_filter_leaves_out_lessons_of_the_other_generation(memory: Memory) -> None:
    text = "ERT_CMD_STATE_TIMEOUT on the first run"
    for hit in memory.explain(text, Filters(device="Phoenix"), 10).hits:
        assert set(hit.record.devices) & {"npu1", "any"}
    for hit in memory.explain(text, Filters(device="strix halo"), 10).hits:
        assert set(hit.record.devices) & {"npu2", "any"}


def test_an_unknown_device_is_refused_with_the_known_ones(memory: Memory) -> None:
    with pytest.raises(KbError, match=r"toaster.*npu1.*strix"):
        memory.explain("x", Filters(device="toaster"))


def test_a_version_filter_leaves_out_lessons_for_other_versions(memory: Memory) -> None:
    text = "NaN logits after updating llvm-aie nightly, bf16 Qwen fails its gate"
    bounded = {r.id for r in memory.corpus.records.values() if ">" in r.versions.get("llvm-aie", "")}
    assert bounded
    old = memory.explain(text, Filters(versions={"llvm-aie": "15.0.0"}), 10)
    assert not bounded & {hit.record.id for hit in old.hits}


def test_a_kind_filter_finds_measured_rows_and_an_unmeasured_shape_has_none(memory: Memory) -> None:
    rows = memory.search("gemm 2048x2048x8192 bf16", Filters(kinds=("kernel_row",)), 3)
    assert {hit.record.kind for hit in rows.hits} == {"kernel_row"}
    shapes = [tuple(hit.record.shape.values()) for hit in rows.hits if hit.record.kind == "kernel_row"]
    assert (2048, 2048, 8192) in shapes
    strange = memory.search("gemm 2047x2049x8191 bf16", Filters(kinds=("kernel_row",)), 10)
    assert (2047, 2049, 8191) not in [
        tuple(h.record.shape.values()) for h in strange.hits if h.record.kind == "kernel_row"
    ]


def test_each_hit_says_what_matched(memory: Memory) -> None:
    lesson = with_diagnostics(memory, 1)[0]
    top = memory.explain("\n".join(fenced_lines(lesson.symptom))).hits[0]
    assert "exact diagnostic line" in top.matched_on
    assert 0.0 < top.confidence <= 1.0


def test_the_order_of_ties_does_not_change_between_runs(memory: Memory) -> None:
    first = [hit.record.id for hit in memory.explain("timeout", limit=10).hits]
    assert first == [hit.record.id for hit in memory.explain("timeout", limit=10).hits]


def test_build_chatter_weighs_little_and_diagnostics_much() -> None:
    for line in BUILD_NOISE[:5]:
        assert line_weight(line) <= NOISE or "warning" in line
    for line in (
        "error: 'aie.tile' op allocated buffers exceeded available memory",
        "RuntimeError: Command failed to complete successfully (ERT_CMD_STATE_TIMEOUT)",
        "[   1.63] amdxdna 0000:c5:00.1: [drm] *ERROR* amdxdna_probe: Hardware init failed, ret -2",
        "ld.lld: error: undefined symbol: __air_herd_arg",
    ):
        assert line_weight(line) == STRONG


def test_colour_codes_and_progress_do_not_hide_the_error() -> None:
    lines = weigh("10%\r20%\r\x1b[31merror:\x1b[0m Repeat count exceeds the [0:255] range.\r\n")
    assert max(lines, key=lambda line: line.weight).text == "error: Repeat count exceeds the [0:255] range."


def test_a_signature_masks_what_changes_and_keeps_limits_as_facets() -> None:
    a = signature_of("/home/x/a.mlir:12:4: error: Repeat count exceeds the [0:255] range. %12 at 0x7ffdeadbeef0")
    b = signature_of("/tmp/yy/b.mlir:9:7: error: Repeat count exceeds the [0:255] range. %3 at 0x55aabbccdd00")
    assert a.key == b.key
    assert "255" in a.facets


def test_identifiers_are_found_whole_and_in_parts() -> None:
    found = terms("aiex.npu.push_queue omit_pingpong XRTRunner -O2 0x1f BDs")
    assert {"aiex.npu.push_queue", "push", "omit_pingpong", "pingpong", "xrtrunner", "-o2", "0x1f", "bd"} <= set(found)


def test_scripts_without_spaces_become_pairs() -> None:
    assert terms("编译失败") == ["编译", "译失", "失败"]


def test_what_is_embedded_is_the_error_not_the_chatter() -> None:
    query = read_query(
        "\n".join([*BUILD_NOISE, "error: 'aie.tile' op allocated buffers exceeded available memory", *BUILD_NOISE])
    )
    assert "allocated buffers exceeded" in query.dense_text
    assert "Requirement" not in query.dense_text


def test_a_shape_with_rows_brings_them_first_and_one_without_is_said_not_to_be_measured(memory: Memory) -> None:
    rows = memory.search("GEMM 2048 x 2048 x 8192", Filters(kinds=("kernel_row",)), 8)
    assert isinstance(rows.hits[0].record, KernelRow)
    assert tuple(rows.hits[0].record.shape.values()) == (2048, 2048, 8192)
    absent = memory.search("gemm 2048x2048x8193", Filters(kinds=("kernel_row",)), 8)
    assert absent.no_match
    assert "2048x2048x8193 is not measured" in absent.warnings[0]
