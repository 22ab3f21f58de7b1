"""Many questions from a JSONL file, answered one line each: what tests and measurements use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from kb import Filters, KbError, Memory, dump_record

RESULTS = 10
"""Hits a line holds: scoring looks at the first ten."""


def read_cases(path: Path) -> list[dict[str, Any]]:
    """The cases of a JSONL file, each with `id` and `query`.

    Raises:
        KbError: a line is not such an object; the text names it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise KbError(f"{path} cannot be read: {error}") from None
    cases: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            case: Any = json.loads(line)
        except ValueError as error:
            raise KbError(f"{path}:{number}: not JSON ({error})") from None
        if (
            not isinstance(case, dict)
            or not isinstance(cast("dict[str, Any]", case).get("query"), str)
            or "id" not in case
        ):
            raise KbError(f"{path}:{number}: a case needs an 'id' and a 'query' string")
        cases.append(cast("dict[str, Any]", case))
    return cases


def answers(memory: Memory, cases: list[dict[str, Any]], filters: Filters) -> Iterator[dict[str, Any]]:
    """One result line per case: `id`, `no_match`, `results` best first."""
    for case in cases:
        answer = memory.explain(case["query"], filters, RESULTS)
        yield {
            "id": case["id"],
            "no_match": answer.no_match,
            "results": [
                {
                    "id": hit.record.id,
                    "title": hit.record.title,
                    "text": dump_record(hit.record),
                    "confidence": hit.confidence,
                    "matched_on": list(hit.matched_on),
                }
                for hit in answer.hits
            ],
        }
