"""A raw paste or a sentence to a query: weighted terms, signatures, a text to embed.

query = read_query(open("build.log").read())
query.signatures, query.terms["pingpong"], query.dense_text
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kb.diagnostic import NOISE, PLAIN, STRONG, TELLING, Line, strongest, weigh
from kb.signature import Signature, facets_of, is_telling, signature_of
from kb.tokens import terms

MAX_QUERY_TERMS = 400
MAX_SIGNATURE_LINES = 60
SHOWN_LINES = 4
DENSE_CHARS = 420
"""Of the most telling lines, what is embedded; about 90 tokens, 40 ms on one core."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a paste asks.

    terms: term → weight of the best line it stands in (0.08–4). signatures: of its telling lines.
    lines: the most telling lines; shown: the few an answer repeats. facets: limits, shapes, ops, codes and flags in them.
    dense_text: what to embed. prose: whether it is a description rather than a log.
    """

    terms: dict[str, float]
    signatures: tuple[Signature, ...]
    lines: tuple[str, ...]
    facets: tuple[str, ...]
    dense_text: str
    prose: bool
    shown: tuple[str, ...] = ()


def read_query(paste: str) -> Query:
    """The query a paste of any size or kind makes; an empty one has no terms."""
    lines = weigh(paste)
    prose = bool(lines) and all(line.weight == PLAIN for line in lines)
    weights = _term_weights(lines)
    candidates = [line for line in lines if line.weight > NOISE]
    candidates.sort(key=lambda line: -line.weight)
    signatures = {s.key: s for s in (signature_of(line.text) for line in candidates[:MAX_SIGNATURE_LINES])}
    top = strongest(lines)
    facets = tuple(dict.fromkeys(f for text in top for f in facets_of(text)))[:40]
    return Query(
        weights,
        tuple(s for s in signatures.values() if is_telling(s)),
        tuple(top),
        facets,
        _dense_text(lines, prose),
        prose,
        tuple(strongest(lines, SHOWN_LINES)),
    )


def _term_weights(lines: list[Line]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for line in lines:
        for term in terms(line.text):
            if weights.get(term, 0.0) < line.weight:
                weights[term] = line.weight
    if len(weights) > MAX_QUERY_TERMS:
        best = sorted(weights.items(), key=lambda item: -item[1])[:MAX_QUERY_TERMS]
        weights = dict(best)
    return weights


_DENSE_JUNK = re.compile(
    r"(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+){2,}[/\\]?|0x[0-9a-fA-F]{5,}|\b[0-9a-f]{10,}\b|[=\-*#|]{3,}"
)


def _dense_text(lines: list[Line], prose: bool) -> str:
    """The telling lines as one short text, paths and addresses cut to their last part."""
    if prose:
        chosen = [line.text for line in lines]
    else:
        least = next((w for w in (STRONG, TELLING, PLAIN) if any(line.weight >= w for line in lines)), 0.0)
        chosen = [line.text for line in lines if line.weight >= least]
        if least == STRONG and len(" ".join(chosen)) < 120:
            chosen = [line.text for line in lines if line.weight >= PLAIN]
    text = " ".join(_DENSE_JUNK.sub(_last_part, line) for line in chosen)
    return " ".join(text.split())[:DENSE_CHARS]


def _last_part(match: re.Match[str]) -> str:
    return re.split(r"[/\\]", match[0].rstrip("/\\"))[-1] if "/" in match[0] or "\\" in match[0] else " "
