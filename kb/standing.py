"""How records fared: votes by client, and by the versions they were cast for.

>>> standing.count("lesson", {"client": "ann", "helped": False, "versions": {"llvm-aie": "22.0.0"}})
>>> standing.counts("lesson", {"llvm-aie": "22.0.0"}), standing.stopped("lesson")

A client's latest word for one set of versions counts once. Asked for installed versions, votes cast for one of them
speak alone where there are any: a fix that has stopped helping with a new compiler sinks there and not elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

STOPPED_VOTES = 2
"""Votes for one version from which a lesson is said to have stopped helping with it."""


@dataclass(frozen=True, slots=True)
class _Vote:
    helped: bool
    versions: frozenset[tuple[str, str]]


@dataclass(slots=True)
class Standing:
    """All votes of a home."""

    votes: dict[str, dict[str, _Vote]] = field(default_factory=dict[str, dict[str, _Vote]])

    def count(self, record_id: str, data: Mapping[str, Any]) -> None:
        """Take in one outcome event."""
        versions = _versions(data.get("versions"))
        voice = " ".join([str(data.get("client", "")), *(f"{name}={version}" for name, version in sorted(versions))])
        self.votes.setdefault(record_id, {})[voice] = _Vote(bool(data.get("helped")), versions)

    def counts(self, record_id: str, installed: Mapping[str, str] | None = None) -> tuple[int, int]:
        """(helped, did not help); with `installed`, of the votes cast for one of these versions, if there are any."""
        cast_votes = list(self.votes.get(record_id, {}).values())
        if installed:
            here = [vote for vote in cast_votes if vote.versions & frozenset(installed.items())]
            cast_votes = here or cast_votes
        helped = sum(vote.helped for vote in cast_votes)
        return helped, len(cast_votes) - helped

    def stopped(self, record_id: str) -> tuple[str, ...]:
        """The versions with which the record has stopped helping while it helps without them."""
        by_version: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
        all_votes = list(self.votes.get(record_id, {}).values())
        for vote in all_votes:
            for pair in vote.versions:
                by_version[pair].append(vote.helped)
        found: list[str] = []
        for (name, version), said in sorted(by_version.items()):
            rest = [vote.helped for vote in all_votes if (name, version) not in vote.versions]
            if len(said) - sum(said) >= STOPPED_VOTES and 2 * sum(said) < len(said) and 2 * sum(rest) >= len(rest):
                found.append(f"{name} {version} (did not help {len(said) - sum(said)} of {len(said)} times)")
        return tuple(found)


def _versions(value: Any) -> frozenset[tuple[str, str]]:
    if not isinstance(value, dict):
        return frozenset()
    pairs = cast("dict[Any, Any]", value).items()
    return frozenset((str(name)[:80], str(version)[:80]) for name, version in list(pairs)[:20])
