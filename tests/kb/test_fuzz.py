"""Whatever comes in, only a KbError comes out. `HERDBOOK_EXAMPLES=20000` runs the long form."""

from __future__ import annotations

import gzip
import io
import os
import resource
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kb import Filters, KbError, Memory, dump_record, open_memory, parse_record
from kb.exchange import STANDING, import_from
from mcp_server import Config
from tests.conftest import lesson

SNIPPETS = [
    "\0", "\ud800", "\udfff", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\u202e", "\u200f", "\ufeff", "\u2028", "\r", "\r\n", "\n", "\t",
    "error: ", "```", "## Fix\n", "---\n", "%s%n{0}", "' OR 1=1 --", "../..", "C:\\", "0x", "aie.tile(0, 2)", "ERT_CMD_STATE_TIMEOUT", "[0.1] ",
    "字" * 5, "🙂", "é", "a" * 700, "-" * 50, "=" * 50, "Traceback (most recent call last):\n", "1" * 40, "loc(" * 20, "<" * 30, "/a" * 60,
]  # fmt: skip
text = st.lists(
    st.one_of(st.sampled_from(SNIPPETS), st.text(alphabet=st.characters(), max_size=30)), max_size=12
).map("".join)  # fmt: skip
scalar = st.one_of(text, st.none(), st.booleans(), st.integers(), st.floats(), st.binary(max_size=20), st.dates())
value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.one_of(text, st.integers()), inner, max_size=4), max_leaves=12
)  # fmt: skip
FIELDS = [
    "id", "title", "symptom", "cause", "fix", "verify", "did_not_help", "also_seen_as", "components", "devices", "phases", "kernels", "models",
    "versions", "provenance", "category", "resolution", "status", "kind", "schema_version", "superseded_by",
]  # fmt: skip
wild = st.dictionaries(st.one_of(st.sampled_from(FIELDS), text), value, max_size=8)
plausible = st.fixed_dictionaries(
    {"symptom": text.map(lambda t: t + "abc"), "cause": text.map(lambda t: t + "abc"), "fix": text.map(lambda t: t + "abc")},
    optional={name: value for name in FIELDS if name not in ("symptom", "cause", "fix")},
)  # fmt: skip


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """One memory for all examples of this file; it fills up with what the fuzzer contributes."""
    config = replace(Config.from_environment(), home=tmp_path_factory.mktemp("fuzz"), chroma=None, dense=False)
    with closing(open_memory(config.memory())) as memory:
        assert memory.store is not None
        memory.store.db.execute("PRAGMA synchronous=OFF")  # thousands of writes; nothing is killed here
        yield memory


def attempt(action: Any) -> Any:
    """What `action` gives, or the KbError it raised, whose text must be fit to print."""
    try:
        return action()
    except KbError as error:
        refused = error
    str(refused).encode("utf-8")
    assert len(str(refused)) < 4000
    return refused


@given(paste=text, limit=st.integers(-3, 50))
@example(paste="", limit=3)
@example(paste="\ud800", limit=3)
@example(paste="\0" * 1000, limit=3)
def test_any_text_can_be_asked_about(shared: Memory, paste: str, limit: int) -> None:
    for answer in (
        attempt(lambda: shared.explain(paste, limit=limit)),
        attempt(lambda: shared.search(paste, limit=limit)),
    ):
        assert len(answer.hits) <= max(1, limit)
        "".join(answer.signature + answer.facets).encode("utf-8")


@given(paste=text, words=st.lists(text, min_size=7, max_size=7), versions=st.dictionaries(text, text, max_size=2))
def test_any_text_can_stand_in_a_filter(shared: Memory, paste: str, words: list[str], versions: dict[str, str]) -> None:
    device, component, phase, kernel, model, status, kind = words
    chosen = Filters(device, component, phase, kernel, model, status, (kind,), versions)
    attempt(lambda: shared.search(f"error: deadlock {paste}", chosen))
    attempt(lambda: shared.search(f"error: deadlock {paste}", replace(chosen, device=None, status=None, kinds=())))


@given(name=text, note=text, client=text, helped=st.booleans(), number=st.integers(0, 2000))
def test_any_text_can_stand_for_an_id_a_note_or_a_client(
    shared: Memory, name: str, note: str, client: str, helped: bool, number: int
) -> None:
    attempt(lambda: shared.get(name))
    attempt(lambda: shared.history(name))
    attempt(lambda: shared.report_outcome(name, helped, note, client))
    known = list(shared.corpus.records)[number]  # not always the same: its history would grow without end
    votes = shared.report_outcome(known, helped, note, client)
    assert sum(votes) >= 1
    assert shared.history(known)[-1].type == "outcome"


@given(draft=st.one_of(wild, plausible), client=text)
@example(draft={"symptom": "abc", "cause": "abc", "fix": "abc", "title": "\ud80000"}, client="")
@example(draft={"symptom": "abc", "cause": "abc", "fix": "abc", "versions": {"\ud800a": "1"}}, client="")
@example(draft={"symptom": "abc", "cause": "abc", "fix": "abc", "kernels": ["gemm \udfff"]}, client="\ud800")
def test_any_draft_is_stored_readable_or_refused(shared: Memory, draft: dict[Any, Any], client: str) -> None:
    done = attempt(lambda: shared.contribute(draft, client))
    if not isinstance(done, KbError):
        record = shared.get(done.record_id).record
        dump_record(record).encode("utf-8")
        assert parse_record(dump_record(record)) == record


@given(st.one_of(text, st.tuples(text, text).map(lambda t: f"---\n{t[0]}\n---\n{t[1]}")))
def test_any_text_is_a_record_file_or_refused(content: str) -> None:
    attempt(lambda: parse_record(content, "a.md"))


yaml_bits = st.sampled_from(
    ["id: a\n", "title: abc\n", "- ", "  ", "? ", ": ", "&a ", "*a", "!!set ", "!!binary ", "!!python/name:os ", "<<: ", "[", "]", "{", "}", "|\n", ">\n",
     "---\n", "...\n", "%TAG ! x\n", "'", '"', "\\", "\t", "2026-01-02", "1e999", ".nan", "0b1", "1:2:3", "null", "=", "~", "#", "\n", "é", "kind: lesson\n",
     "schema_version: ", "0", "provenance:\n", "- evidence: x\n  date: 2026-01-01\n", "category: compile\n", "## Fix\n", "abc\n"]
)  # fmt: skip


@given(st.lists(yaml_bits, max_size=30).map("".join), st.lists(yaml_bits, max_size=6).map("".join))
def test_any_front_matter_is_a_record_or_refused(front: str, body: str) -> None:
    attempt(lambda: parse_record(f"---\n{front}\n---\n{body}", "a.md"))


def archives(content: bytes, name: str) -> dict[str, bytes]:
    tar, packed = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return {"a.tar": tar.getvalue(), "a.tar.gz": gzip.compress(tar.getvalue()), "a.zip": packed.getvalue()}


def broken(data: bytes, flips: list[tuple[int, int]], cut: int) -> bytes:
    damaged = bytearray(data)
    for at, new in flips:
        damaged[at % len(damaged)] = new
    return bytes(damaged[: len(damaged) - cut % len(damaged)])


GOOD = dump_record(lesson(1)).encode()


@given(
    content=st.one_of(st.binary(max_size=300), text.map(lambda t: t.encode("utf-8", "surrogatepass")), st.just(GOOD)),
    name=st.sampled_from(["a.md", STANDING, "b/a.md", "x.bin"]),
    form=st.sampled_from(["a.tar", "a.tar.gz", "a.zip", "raw"]),
    flips=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6),
    cut=st.one_of(st.just(0), st.integers(0, 3000)),
)
@settings(max_examples=max(60, settings().max_examples))
def test_any_archive_is_taken_or_refused(
    shared: Memory, tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str, form: str,
    flips: list[tuple[int, int]], cut: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.getbasetemp() / f"fuzz-{form if form != 'raw' else 'a.tar.gz'}"
    path.write_bytes(content if form == "raw" else broken(archives(content, name)[form], flips, cut))
    attempt(lambda: import_from(shared, path))
    assert shared.store is not None
    list(shared.store.changed_since(0))


@pytest.mark.parametrize(
    "paste",
    ["a" * 5_000_000, "a " * 2_500_000, "error: " * 700_000, "\x1b[31m" * 1_000_000, "/a" * 2_500_000, "字" * 2_000_000, "%x" * 2_500_000,
     "\u202e\u200f" * 1_000_000, "\0" * 5_000_000, "\ud800" * 2_000_000, "-" * 5_000_000, "(" * 5_000_000, "a." * 2_500_000, "0x" * 2_500_000],
    ids=lambda p: ascii(p[:6]),
)  # fmt: skip
def test_a_line_of_five_megabytes_is_answered(shared: Memory, paste: str) -> None:
    assert len(shared.explain(paste).hits) <= 3


def test_a_draft_far_too_long_is_refused_by_field(shared: Memory) -> None:
    with pytest.raises(KbError, match="symptom"):
        shared.contribute({"symptom": "a1 " * 2_000_000, "cause": "abc", "fix": "abc"})


BIG = textwrap.dedent(
    """
    import resource, sys
    from dataclasses import replace
    from pathlib import Path
    from kb import open_memory
    from mcp_server import Config

    config = replace(Config.from_environment(), home=Path(sys.argv[1]), chroma=None, dense=False)
    memory = open_memory(config.memory())
    memory.explain("error: x")
    line = "[{n}] build/step {n:x}: compiled /opt/src/file{n}.cc in {n} ms, nothing of note here\\n"
    chunk = "".join(line.format(n=n * 7919) for n in range(10_000))
    core = "error: 'aie.tile' op allocated buffers exceeded available memory\\n"
    paste = (chunk * (50_000_000 // len(chunk) // 2)) + core + (chunk * (50_000_000 // len(chunk) // 2))
    before = resource.getrusage(resource.RUSAGE_SELF)
    answer = memory.explain(paste)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(len(paste), after.ru_utime - before.ru_utime, after.ru_maxrss // 1024)
    alone = {hit.record.id for hit in memory.explain(core, limit=20).hits}
    print(answer.hits[0].record.id in alone)
    """
)


def test_a_paste_of_fifty_megabytes_is_answered_within_bounded_memory(tmp_path: Path) -> None:
    """The error stands in the middle. No time is asserted; the child's own figures are printed."""
    child = subprocess.run(
        [sys.executable, "-c", BIG, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False,
        preexec_fn=None if os.name == "nt" else lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)),
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-2000:]
    print(child.stdout)
    assert child.stdout.splitlines()[1] == "True"
    assert int(child.stdout.split()[2]) < 1000
