"""From candidates to an order, a confidence, and the decision to abstain.

Each candidate has a few features (lexical share, cosine, signature, facets …). A linear score
orders them. Two logistic curves read the best one's evidence: how likely it is right (the
confidence that is shown), and how likely the failure is one the memory knows at all (below a
threshold the answer is "no known match"). The numbers live in `ranking.json`, learnt by
`herdbook corpus tune` (`kb.tune`); without the file the defaults here hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FEATURES = (
    "share",  # lexical score over the most the query could score [0, 1]
    "relative",  # lexical score over the best candidate's [0, 1]
    "coverage",  # weight of matched query terms over all of them [0, 1]
    "cosine",  # best cosine of the embedded query to a passage of the record
    "cosine_lead",  # that cosine minus the mean of the ten best
    "signature",  # 1 when a diagnostic line is the record's own, masked
    "facets",  # share of the query's limits, ops and codes that the record names
    "rare",  # share of the query's heaviest terms it has
)
EVIDENCE = (
    "share",
    "coverage",
    "cosine",
    "signature",
    "facets",
    "rare",
    "lead",  # relative gap of the best to the second candidate
    "known",  # share of the query's weight that any record knows at all
    "prose",  # 1 for a description in words
    "foreign",  # share of the telling words that stand for another stack (CUDA, Docker, Java …)
    "home",  # share of them that only the NPU stack prints
    "near",  # share of them at home here but not only here (tiles, tensors, model names)
    "slant",  # how far its words lean to failures of this stack or of others, learnt word by word [-1, 1]
    "amount",  # how much the query says at all [0, 1]
)


@dataclass(frozen=True, slots=True)
class Curves:
    """Learnt weights for one mode (with dense search, or lexical only).

    slants: word → log-odds of standing in a question about this stack.
    A log and a description in words are ordered by different weights: words tell logs apart,
    meaning helps descriptions.
    """

    order_log: Mapping[str, float]
    order_prose: Mapping[str, float]
    confidence: Mapping[str, float]
    known: Mapping[str, float]
    threshold: float
    slants: Mapping[str, float] = field(default_factory=dict[str, float])


_ORDER = {"share": 4.0, "relative": 3.0, "coverage": 1.0, "signature": 1.0, "facets": 0.5, "rare": 0.5}
_EVIDENCE = {
    "bias": -2.5,
    "share": 4.0,
    "coverage": 2.0,
    "signature": 1.5,
    "known": 1.0,
    "foreign": -6.0,
    "home": 2.0,
    "near": 1.0,
    "amount": 1.0,
}
DEFAULTS = {
    "dense": Curves(
        _ORDER,
        {**_ORDER, "cosine": 3.0, "cosine_lead": 1.0},
        {**_EVIDENCE, "cosine": 3.0},
        {**_EVIDENCE, "cosine": 3.0},
        0.35,
    ),
    "lexical": Curves(_ORDER, _ORDER, {**_EVIDENCE, "bias": -1.5}, {**_EVIDENCE, "bias": -1.5}, 0.35),
}


@dataclass(frozen=True, slots=True)
class Ranking:
    """The curves of both modes and where they were learnt from."""

    curves: Mapping[str, Curves] = field(default_factory=lambda: dict(DEFAULTS))
    learnt_from: str = "defaults"

    @classmethod
    def load(cls, path: Path) -> Ranking:
        """The weights in `path`, or the defaults when it is absent or unreadable."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls({mode: Curves(**curves) for mode, curves in data["curves"].items()}, data["learnt_from"])
        except (OSError, ValueError, TypeError, KeyError):
            return cls()

    def save(self, path: Path) -> None:
        """Write the weights as JSON."""
        data = {"learnt_from": self.learnt_from, "curves": {mode: asdict(c) for mode, c in self.curves.items()}}
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")

    def scores(self, features: NDArray[np.float32], dense: bool, prose: bool) -> NDArray[np.float32]:
        """Order scores of candidates from their features [candidates, len(FEATURES)]."""
        weights = self._mode(dense).order_prose if prose else self._mode(dense).order_log
        return features @ np.array([weights.get(name, 0.0) for name in FEATURES], dtype=np.float32)

    def confidence_of(self, evidence: Mapping[str, float], dense: bool) -> float:
        """Probability that the candidate with this evidence is right."""
        return _logistic(self._mode(dense).confidence, evidence)

    def knows(self, evidence: Mapping[str, float], dense: bool) -> bool:
        """Whether a candidate with this evidence is an answer at all."""
        curves = self._mode(dense)
        return _logistic(curves.known, evidence) >= curves.threshold

    def slant(self, weights: Mapping[str, float], dense: bool) -> float:
        """How far a query's telling words lean to this stack (1) or to others (-1)."""
        return slant_of(self._mode(dense).slants, telling(weights))

    def _mode(self, dense: bool) -> Curves:
        return self.curves["dense" if dense else "lexical"]


def telling(weights: Mapping[str, float]) -> list[str]:
    """The words of a query's telling lines."""
    return [term for term, weight in weights.items() if weight >= 1.0]


def slant_of(slants: Mapping[str, float], words: list[str]) -> float:
    """Summed log-odds of `words`, damped by their number and cut to [-1, 1]."""
    total = sum(slants.get(word, 0.0) for word in words) / (len(words) + 4) ** 0.5
    return max(-1.0, min(1.0, total / 5))


def _logistic(weights: Mapping[str, float], evidence: Mapping[str, float]) -> float:
    total = weights.get("bias", 0.0) + sum(weights.get(name, 0.0) * evidence[name] for name in EVIDENCE)
    return float(1.0 / (1.0 + np.exp(-np.clip(total, -30.0, 30.0))))
