"""Votes move lessons: a popular wrong one sinks, and one that stopped helping with a version sinks there."""

from __future__ import annotations

from kb import Filters, Memory

QUERY = "error: frobnication of quux exceeded its zork budget"
SYMPTOM = f"Building stops.\n```\n{QUERY}\n```"


def two_lessons(memory: Memory) -> tuple[str, str]:
    """A wrong lesson that is found first, and the right one behind it."""
    wrong = memory.contribute(
        {"title": "The frobnication of quux exceeded its zork budget", "symptom": f"{SYMPTOM}\nfrobnication quux zork budget",
         "cause": "the moon stands high over the frobnication", "fix": "wait for a zork moon"}
    ).record_id  # fmt: skip
    right = memory.contribute(
        {"title": "zork budget", "symptom": SYMPTOM, "cause": "a stale cache entry", "fix": "delete that entry"}
    ).record_id
    assert [hit.record.id for hit in memory.explain(QUERY).hits[:2]] == [wrong, right]
    return wrong, right


def order(memory: Memory, **filters: object) -> list[str]:
    return [hit.record.id for hit in memory.explain(QUERY, Filters(**filters)).hits[:2]]  # type: ignore[arg-type]


def test_a_popular_wrong_lesson_sinks(memory: Memory) -> None:
    """Thirty clients liked it at first; then gates began to fail after it while the other one's passed."""
    wrong, right = two_lessons(memory)
    for number in range(30):
        memory.report_outcome(wrong, True, client=f"early{number}")
    assert order(memory) == [wrong, right]
    for number in range(60):
        memory.report_outcome(wrong, False, client=f"gate{number}")
        memory.report_outcome(right, True, client=f"gate{number}")
    assert order(memory) == [right, wrong]
    hit = memory.get(wrong)
    assert (hit.helped, hit.failed) == (30, 60)


def test_a_lesson_that_stopped_helping_with_a_version_sinks_for_that_version_only(memory: Memory) -> None:
    first, second = two_lessons(memory)
    for number in range(8):
        memory.report_outcome(first, True, client=f"c{number}", versions={"llvm-aie": "21.0.0"})
        memory.report_outcome(first, False, client=f"c{number}", versions={"llvm-aie": "22.0.0"})
        memory.report_outcome(second, True, client=f"c{number}", versions={"llvm-aie": "22.0.0"})
    assert order(memory, versions={"llvm-aie": "21.0.0"})[0] == first
    assert order(memory, versions={"llvm-aie": "22.0.0"})[0] == second
    assert memory.get(first).stopped == ("llvm-aie 22.0.0 (did not help 8 of 8 times)",)
    assert memory.get(second).stopped == ()


def test_one_client_has_one_voice_a_version(memory: Memory) -> None:
    first, _ = two_lessons(memory)
    for _ in range(9):
        memory.report_outcome(first, False, client="a", versions={"xrt": "2.21"})
    assert memory.report_outcome(first, True, client="a", versions={"xrt": "2.20"}) == (1, 1)


def test_votes_without_versions_count_for_every_version(memory: Memory) -> None:
    first, second = two_lessons(memory)
    for number in range(20):
        memory.report_outcome(first, False, client=f"c{number}")
    assert order(memory, versions={"llvm-aie": "22.0.0"})[0] == second
