"""Does memory transfer? Every deployment's failures asked of what earlier deployments wrote down.

>>> report = measure_transfer(checkout, open_empty)
>>> report.share_at_3, report.by_deployment

The documents are the user's own checkout; what repeats what is one person's judgement (data/transfer.toml). Beside the
harvest stand nothing at all, and plain BM25 over the same raw documents, whole and in windows of forty lines.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

from harvest.apply import apply_plan
from harvest.errors import SourceUnusable
from harvest.plan import plan_harvest
from harvest.sources import Source, read_sources
from kb.bench import plain_bm25
from kb.memory import Memory

DATA = Path(__file__).with_name("data")
WINDOW_LINES, WINDOW_STEP = 40, 20
WANTED_AT_3 = 0.8


@dataclass(frozen=True, slots=True)
class Failure:
    """One recorded failure: the words it is asked with, and which earlier notes answer it (none: it is new)."""

    id: str
    deployment: str
    query: str
    repeats: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Asked:
    """One failure as it was answered. Ranks count from 1; 0 is "not among the first ten"."""

    id: str
    deployment: str
    repeated: bool
    rank: int
    no_match: bool
    raw_documents: int
    raw_windows: int
    first: str


@dataclass(frozen=True, slots=True)
class TransferReport:
    """All failures as asked, and the shares among those that repeat."""

    asked: tuple[Asked, ...]
    records: int
    changed: tuple[str, ...]
    second_run_adds: int

    @property
    def repeated(self) -> list[Asked]:
        """Those an earlier deployment had an answer to."""
        return [one for one in self.asked if one.repeated]

    def share(self, rank: int, of: str = "rank") -> float:
        """Of the repeated failures, the share answered within `rank`."""
        found = [getattr(one, of) for one in self.repeated]
        return sum(0 < r <= rank for r in found) / len(found) if found else 0.0

    def by_deployment(self) -> list[dict[str, Any]]:
        """One row a deployment."""
        rows: list[dict[str, Any]] = []
        for name in dict.fromkeys(one.deployment for one in self.asked):
            own = [one for one in self.asked if one.deployment == name]
            again = [one for one in own if one.repeated]
            row: dict[str, Any] = {"deployment": name, "failures": len(own), "repeated": len(again)}
            for of in ("rank", "raw_documents", "raw_windows"):
                for rank in (1, 3):
                    row[f"{of}_{rank}"] = sum(0 < getattr(one, of) <= rank for one in again)
            rows.append(row)
        return rows

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        shares = {
            name: {"at_1": round(self.share(1, of), 3), "at_3": round(self.share(3, of), 3)}
            for name, of in (("harvest", "rank"), ("raw_documents", "raw_documents"), ("raw_windows", "raw_windows"))
        }
        new = [one for one in self.asked if not one.repeated]
        return {"failures": len(self.asked), "repeated": len(self.repeated), "shares_of_repeated": shares | {"no_memory": {"at_1": 0.0, "at_3": 0.0}},
                "new_and_said_so": sum(one.no_match for one in new), "new": len(new), "records": self.records,
                "second_run_adds": self.second_run_adds, "changed_since_judged": list(self.changed),
                "by_deployment": self.by_deployment(), "asked": [asdict(one) for one in self.asked]}  # fmt: skip


def measure_transfer(
    root: Path, empty: Callable[[], Memory], progress: Callable[[int, int], None] | None = None
) -> TransferReport:
    """Harvest the deployments below `root` one after the other, asking each one's failures first.

    Raises:
        SourceUnusable: the folders of the deployments are not there.
    """
    base = base_of(root)
    names = deployments(base)
    failures, changed = read_failures(base)
    memory = empty()
    seen: list[Source] = []
    asked: list[Asked] = []
    for number, name in enumerate(names):
        documents = {source.label: source.text for source in seen}
        windows = {f"{s.label}@{n}": text for s in seen for n, text in _windows(s.text)}
        whole, parts = plain_bm25(documents), plain_bm25(windows)
        for failure in failures:
            if failure.deployment == name:
                asked.append(_ask(memory, failure, whole, parts, windows, documents))
        apply_plan(memory, plan_harvest(memory, base / name))
        seen.extend(source for source in read_sources(base / name).sources if source.kind == "document")
        if progress is not None:
            progress(number + 1, len(names))
    again = sum(plan_harvest(memory, base / name).counts()["new"] for name in names)
    assert memory.store is not None
    return TransferReport(tuple(asked), memory.store.count(), tuple(changed), again)


def base_of(root: Path) -> Path:
    """The folder that holds the deployments, in a checkout or by itself."""
    for folder in (root, root / "programming_examples"):
        if (folder / "llama3").is_dir() and (folder / "qwen3_4b").is_dir():
            return folder
    raise SourceUnusable(
        f"{root} holds no deployments llama3 … qwen3_4b; give a checkout of tonyjie/mlir-air, branch llm_mapping"
    )


def deployments(base: Path) -> list[str]:
    """The deployments in the order they began, as far as they are there."""
    data = tomllib.loads((DATA / "transfer.toml").read_text(encoding="utf-8"))
    return [str(one["name"]) for one in data["deployment"] if (base / str(one["name"])).is_dir()]


def read_failures(base: Path) -> tuple[list[Failure], list[str]]:
    """The failures with their words, and the ids of those whose place in the documents has other words now."""
    data = tomllib.loads((DATA / "transfer.toml").read_text(encoding="utf-8"))
    found: list[Failure] = []
    changed: list[str] = []
    for item in cast("list[Mapping[str, Any]]", data["failure"]):
        query = str(item.get("ask", ""))
        if "lines" in item:
            text = _lines(base / str(item["deployment"]) / str(item["path"]), cast("Sequence[int]", item["lines"]))
            if words_digest(text) != item["digest"]:
                changed.append(str(item["id"]))
                continue
            query = text
        found.append(Failure(str(item["id"]), str(item["deployment"]), query, tuple(item["repeats"]), str(item["why"])))
    return found, changed


def words_digest(text: str) -> str:
    """A digest of the words of `text`, whatever the line breaks."""
    return blake2b(" ".join(text.split()).encode(), digest_size=8).hexdigest()


def tells(evidence: str, target: str) -> bool:
    """Whether a piece of evidence is the note `target` names: the same file, and heading (and item) that begin so."""
    label, _, heading = target.partition("#")
    at, _, place = evidence.removeprefix("notes:").partition("#")
    wanted, there = heading.split(" / "), place.split(" / ")
    return (
        at == label
        and len(there) >= len(wanted)
        and all(t.lower().startswith(w.lower()) for w, t in zip(wanted, there, strict=False))
    )


def _lines(path: Path, span: Sequence[int]) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ""
    return "\n".join(text.split("\n")[span[0] - 1 : span[1]])


def _windows(text: str) -> list[tuple[int, str]]:
    lines = text.split("\n")
    return [
        (n, "\n".join(lines[n : n + WINDOW_LINES])) for n in range(0, max(1, len(lines) - WINDOW_STEP), WINDOW_STEP)
    ]


def _ask(
    memory: Memory, failure: Failure, whole: Callable[[str], tuple[list[str], bool]], parts: Callable[[str], tuple[list[str], bool]],
    windows: Mapping[str, str], documents: Mapping[str, str],
) -> Asked:  # fmt: skip
    answer = memory.explain(failure.query, limit=10)
    rank = 0
    for place, hit in enumerate(answer.hits, 1):
        if any(tells(p.evidence or "", target) for p in hit.record.provenance for target in failure.repeats):
            rank = place
            break
    labels = [target.partition("#")[0] for target in failure.repeats]
    raw = next((n for n, name in enumerate(whole(failure.query)[0], 1) if name in labels), 0)
    spans = _target_lines(failure.repeats, documents)
    cut = 0
    for n, name in enumerate(parts(failure.query)[0], 1):
        label, _, start = name.rpartition("@")
        if any(label == at and int(start) <= line < int(start) + WINDOW_LINES for at, line in spans):
            cut = n
            break
    first = f"{answer.hits[0].record.title[:100]}" if answer.hits else ""
    return Asked(failure.id, failure.deployment, bool(failure.repeats), rank, answer.no_match, raw, cut, first)


def _target_lines(targets: Sequence[str], documents: Mapping[str, str]) -> list[tuple[str, int]]:
    """Where in the documents the notes stand that answer: label and line of the heading (or of the item)."""
    found: list[tuple[str, int]] = []
    for target in targets:
        label, _, heading = target.partition("#")
        pieces = [piece.lower() for piece in heading.split(" / ")]
        for number, line in enumerate(documents.get(label, "").split("\n")):
            plain = line.replace("*", "").replace("`", "").lstrip("#-0123456789. |").lower()
            if plain.startswith(pieces[-1].replace("`", "").lstrip("0123456789. ")):
                found.append((label, number))
                break
    return found
