"""Record files: lossless both ways, older formats lifted, bombs refused."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kb import KbError, Record, dump_record, parse_record
from kb.errors import FileInvalid
from kb.files import MAX_FILE_BYTES, read_record
from kb.records import (
    KINDS,
    Dispute,
    Figure,
    KernelNote,
    KernelRow,
    Lesson,
    ModelRow,
    Position,
    Provenance,
    Skill,
    Step,
    Trajectory,
)

NASTY = [
    "## Cause", "\\## Cause", "\\\\## Fix", "## ", "# Title", "---", "...", "```", "```mlir\n## Fix\n```", "- item", "* x",
    "key: value", "yes", "no", "null", "~", "1.10", "0x1F", "1e3", "2026-01-02", "12:30:45", "&anchor", "*alias", "!!str x",
    "{a: b}", "[1, 2]", "%YAML 1.2", "@at", "`tick", "'single'", '"double"', "\\n", "C:\\new\\table", "\r\n", "\r", "\t",
    "naïve", "字", "🙂", "\u202e", "\u200b", "\ufeff", "\u2028", "\x00", "\x1b[31m", "#no comment", "a #comment", "?", "|", ">",
    "    indented", "trailing  ", "<<", "=", "  ---", "x" * 130,
]  # fmt: skip
line = st.one_of(st.sampled_from(NASTY), st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=60))
prose = st.lists(line, min_size=1, max_size=8).map("\n".join)
text = prose.map(lambda value: f"abc {value} xyz" if len(value) % 2 else f"abc\n{value}\nxyz")
name = st.lists(line, min_size=1, max_size=4).map(lambda parts: "n " + " ".join(parts)[:300])
title = name.map(lambda value: f"{value[:100]} abc")
names = st.lists(name, max_size=3)
number = st.floats(allow_nan=False, allow_infinity=False)
day = st.dates()
ids = st.from_regex(r"\A[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?\Z")
provenance = st.lists(
    st.one_of(
        st.builds(Provenance, evidence=name, date=day, note=st.none() | name),
        st.builds(Provenance, repo=st.just("a-b/c.d"), issue=st.integers(1, 10**6), date=day),
        st.builds(
            Provenance, repo=st.just("a-b/c.d"), path=name, date=day,
            commit=st.from_regex(r"\A[0-9a-f]{7,40}\Z"),
        ),
    ),
    min_size=1, max_size=3,
)  # fmt: skip
common = {
    "id": ids, "title": title, "status": st.sampled_from(["documented", "observed", "reproduced", "superseded", "disputed"]),
    "components": names, "devices": names, "phases": names, "kernels": names, "models": names,
    "versions": st.dictionaries(name, name, max_size=2), "provenance": provenance,
}  # fmt: skip
steps = st.builds(
    Step, when=name, change=name, before=st.none() | number, after=st.none() | number, unit=st.none() | name,
    detail=st.none() | name, helped=st.none() | st.booleans(),
)  # fmt: skip
RECORDS: dict[str, st.SearchStrategy[Record]] = {
    "lesson": st.builds(
        Lesson, **common, category=st.sampled_from(["compile", "numerics"]), symptom=text, cause=text, fix=text,
        verify=st.just("") | text, did_not_help=st.just("") | text, also_seen_as=names, superseded_by=st.none() | ids,
        resolution=st.sampled_from(["fixed", "negative", "open"]),
    ),
    "kernel_note": st.builds(KernelNote, **common, note=text),
    "kernel_row": st.builds(
        KernelRow, **common, kernel=name, shape=st.dictionaries(name, st.integers(-(2**62), 2**62), max_size=3), dtype=name,
        tile=st.dictionaries(name, st.integers(0, 10**6), max_size=2), herd=st.none() | name, notes=st.just("") | text,
        figures=st.lists(st.builds(Figure, metric=name, value=number, high=st.none() | number, unit=name), max_size=2),
        rtol=st.none() | number, measured_on=st.none() | day,
    ),
    "trajectory": st.builds(
        Trajectory, **common, subject=name, stage=name, steps=st.lists(steps, min_size=1, max_size=3), notes=st.just("") | text
    ),
    "model_row": st.builds(
        ModelRow, **common, hub_id=name, config=st.dictionaries(name, st.integers() | number | name, max_size=3),
        prefill_elfs=names, speeds=st.lists(steps, max_size=2), notes=st.just("") | text,
    ),
    "dispute": st.builds(
        Dispute, **common, topic=name, better_supported=name, reason=st.none() | name, notes=st.just("") | text,
        positions=st.lists(st.builds(Position, claim=name, source=name), min_size=2, max_size=3),
    ),
    "skill": st.builds(Skill, **common, description=text, aliases=names, body=text),
}  # fmt: skip


def test_every_kind_of_record_is_generated() -> None:
    assert set(RECORDS) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(RECORDS))
@given(data=st.data())
def test_a_record_written_to_a_file_reads_back_as_the_same_record(kind: str, data: st.DataObject) -> None:
    record = data.draw(RECORDS[kind])
    written = dump_record(record)
    assert parse_record(written) == record
    assert parse_record(written.replace("\n", "\r\n")) == record
    assert dump_record(parse_record(written)) == written


def minimal(**fields: object) -> Lesson:
    base = {
        "id": "a", "title": "abc", "category": "compile", "symptom": "abc", "cause": "abc", "fix": "abc",
        "provenance": [Provenance(evidence="x", date=date(2026, 1, 2))],
    }  # fmt: skip
    return Lesson(**{**base, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("words", ["a " + "b" * 107 + " --- " + "c" * 120, "x " * 60 + "--- y"])
def test_a_folded_front_matter_line_of_dashes_does_not_end_the_front_matter(words: str) -> None:
    """A value is folded near column 110, so a line may hold nothing but its dashes."""
    record = minimal(components=[words, words])
    assert parse_record(dump_record(record)) == record


def test_a_heading_inside_a_fence_stays_text() -> None:
    record = minimal(symptom="before\n```\n## Fix\n\\## Fix\n```\nafter")
    assert parse_record(dump_record(record)).symptom == record.symptom


def test_a_hash_line_typed_by_hand_keeps_its_hashes() -> None:
    written = dump_record(minimal()).replace("## Cause\nabc", "## Cause\nabc\n## \nxyz")
    assert parse_record(written).cause == "abc\n## \nxyz"


# -- older formats ---------------------------------------------------------------------------------

VERSION_0 = """---
schema_version: 0
id: old
title: An old lesson
category: compile
component: mlir-air
device: npu2
phase: [compile, run]
source:
  repo: Xilinx/mlir-air
  issue: 12
  date: 2025-01-02
---
## Symptom
abc
## Cause
abc
## Fix
abc
"""


def test_a_version_0_file_is_lifted_to_todays_format() -> None:
    record = parse_record(VERSION_0)
    assert (record.schema_version, record.components, record.devices, record.phases) == (
        1, ["mlir-air"], ["npu2"], ["compile", "run"],
    )  # fmt: skip
    assert record.provenance == [Provenance(repo="Xilinx/mlir-air", issue=12, date=date(2025, 1, 2))]
    assert parse_record(dump_record(record)) == record


def test_a_newer_format_is_refused_by_its_version() -> None:
    with pytest.raises(FileInvalid, match="schema_version"):
        parse_record(VERSION_0.replace("schema_version: 0", "schema_version: 2"))


# -- what is refused -------------------------------------------------------------------------------

HEAD = "id: a\ntitle: abcd\ncategory: compile\nprovenance:\n- evidence: x\n  date: 2026-01-01\n"
BODY = "## Symptom\nabc\n## Cause\nabc\n## Fix\nabc\n"
LAUGHS = "l0: &l0 [x, x, x]\n" + "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 12))
BAD_FRONTS = {
    "an alias": (HEAD + "components: &a [x]\ndevices: *a", "aliases"),
    "an anchor": (HEAD + "components: &a [x]", "anchors"),
    "a billion laughs": (HEAD + LAUGHS, "aliases"),
    "a merge key": (HEAD + "versions: &v {a: b}\nx: {<<: *v}", "aliases"),
    "deep nesting": (HEAD + "components: " + "[" * 20 + "]" * 20, "nested deeper"),
    "very deep nesting": (HEAD + "components: " + "[" * 100_000, "not valid YAML"),
    "very deep block nesting": (HEAD + "components:\n" + "- " * 50_000, "not valid YAML"),
    "a key twice": (HEAD + "title: other", "key written twice: title"),
    "a nested key twice": (HEAD + "versions: {a: x, a: y}", "key written twice: a"),
    "thousands of keys": (HEAD + "".join(f"k{n}: 1\n" for n in range(600)), "key"),
    "a Python object": (HEAD + "x: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "an unknown field": (HEAD + "surprise: 1", "surprise"),
    "a huge integer": (HEAD + "x: " + "9" * 5000, "not valid YAML"),
    "a date that is none": (HEAD + "x: 2026-99-99", "not valid YAML"),
    "a list for a key": (HEAD + "? [a]\n: b", "not valid YAML"),
    "a number for a key": (HEAD + "1: x", "field: value"),
    "no mapping": ("- a\n- b", "field: value"),
    "nothing": ("", "field: value"),
    "an unknown kind": ("kind: spell\n" + HEAD, "kind 'spell'"),
    "two documents": (HEAD + "...\nid: b", "YAML"),
    "an id with a path": (HEAD.replace("id: a", "id: ../../a"), "id"),
    "an id with a newline": (HEAD.replace("id: a", 'id: "a\\n"'), "id"),
    "a control character": (HEAD + 'components: ["\x07"]', "not valid YAML"),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(BAD_FRONTS))
def test_front_matter_that_is_no_plain_record_is_refused_with_its_file_named(what: str) -> None:
    front, reason = BAD_FRONTS[what]
    with pytest.raises(FileInvalid, match=r"lessons/a\.md") as caught:
        parse_record(f"---\n{front}\n---\n{BODY}", "lessons/a.md")
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 1000


ROW = HEAD.replace("category: compile", "kind: kernel_row\nkernel: k\nshape: {m: 1}\ndtype: bf16")


@pytest.mark.parametrize("value", [".inf", "-.inf", ".nan"])
def test_a_figure_that_is_no_number_is_refused(value: str) -> None:
    """The database keeps JSON, which has none: the record could be stored and never be read again."""
    with pytest.raises(FileInvalid, match="finite"):
        parse_record(f"---\n{ROW}figures: [{{metric: a, value: {value}, unit: us}}]\n---\n")
    assert parse_record(f"---\n{ROW}figures: [{{metric: a, value: 1.5, unit: us}}]\n---\n").kind == "kernel_row"


def test_the_good_front_matter_of_these_cases_is_taken() -> None:
    assert parse_record(f"---\n{HEAD}---\n{BODY}").id == "a"


BAD_FILES = {
    "empty": (b"", "starts with a line '---'"),
    "binary": (bytes(range(256)) * 4, "not UTF-8"),
    "UTF-16": (f"---\n{HEAD}---\n{BODY}".encode("utf-16"), "not UTF-8"),
    "Latin-1": (f"---\n{HEAD}---\n{BODY}é".encode("latin-1"), "not UTF-8"),
    "overlong": (b"---\nid: \xc0\xaf\n---\n", "not UTF-8"),
    "surrogate": (b"---\nid: \xed\xa0\x80\n---\n", "not UTF-8"),
    "NULs": (f"---\n{HEAD}x: \0\n---\n{BODY}".encode(), "not valid YAML"),
    "no end": (f"---\n{HEAD}".encode(), "no closing '---'"),
    "too large": (f"---\n{HEAD}---\n{BODY}".encode() + b"x" * MAX_FILE_BYTES, "split it"),
    "unknown section": (f"---\n{HEAD}---\n{BODY}## Poem\nx\n".encode(), "section 'Poem' is unknown"),
    "section twice": (f"---\n{HEAD}---\n{BODY}## Fix\nx\n".encode(), "stands twice"),
    "section in both places": (f"---\n{HEAD}fix: y\n---\n{BODY}".encode(), "fix stands both"),
    "loose text": (f"---\n{HEAD}---\nhello\n{BODY}".encode(), "text before the first"),
    "field too long": (f"---\n{HEAD}---\n{BODY}{'x' * 20_001}\n".encode(), "fix"),
}  # fmt: skip


@pytest.mark.parametrize("what", sorted(BAD_FILES))
def test_a_file_that_is_no_record_is_refused_with_its_name(what: str, tmp_path: Path) -> None:
    content, reason = BAD_FILES[what]
    path = tmp_path / "bad.md"
    path.write_bytes(content)
    with pytest.raises(FileInvalid, match=r"bad\.md") as caught:
        read_record(path)
    assert reason in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused_with_their_names(tmp_path: Path) -> None:
    for path in (tmp_path / "none.md", tmp_path):
        with pytest.raises(FileInvalid, match=path.name):
            read_record(path)


def test_nuls_and_colour_codes_in_sections_are_taken_out() -> None:
    record = parse_record(f"---\n{HEAD}---\n" + BODY.replace("abc", "a\x00b\x1bc"))
    assert record.model_dump()["symptom"] == "abc"


def test_every_shipped_file_reads_back_as_what_it_says() -> None:
    folder = Path(parse_record.__code__.co_filename).parent / "corpus"
    files = [path for path in sorted(folder.rglob("*.md")) if path.name != "README.md"][::7]
    assert files
    for path in files:
        try:
            record = read_record(path)
        except KbError as error:
            pytest.fail(str(error))
        assert parse_record(dump_record(record)) == record
