"""From candidates to an order, a confidence, and the decision to abstain.

Each candidate has a few features (lexical share, cosine, signature, facets …). A linear score
orders them, a logistic curve turns the best one's evidence into a confidence, and below the
threshold the answer is "no known match". The numbers live in `ranking.json`, learnt by
`herdbook corpus tune` from questions held out by source; without the file the defaults here hold.
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
    "rare",  # share of the query's rarest matched terms it has
)
CONFIDENCE_FEATURES = (
    "share",
    "coverage",
    "cosine",
    "signature",
    "facets",
    "lead",  # relative gap of the best to the second candidate
    "known",  # share of the query's weight that any record knows at all
    "prose",
)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Learnt weights. `threshold`: least confidence that is an answer."""

    order: Mapping[str, float] = field(
        default_factory=lambda: {
            "share": 4.0, "relative": 3.0, "coverage": 1.0, "cosine": 3.0, "cosine_lead": 1.0,
            "signature": 1.0, "facets": 0.5, "rare": 0.5,
        }
    )  # fmt: skip
    order_lexical: Mapping[str, float] = field(
        default_factory=lambda: {
            "share": 4.0, "relative": 3.0, "coverage": 1.0, "cosine": 0.0, "cosine_lead": 0.0,
            "signature": 1.0, "facets": 0.5, "rare": 0.5,
        }
    )  # fmt: skip
    confidence: Mapping[str, float] = field(
        default_factory=lambda: {
            "bias": -2.5, "share": 4.0, "coverage": 2.0, "cosine": 3.0, "signature": 1.5, "facets": 0.3,
            "lead": 0.5, "known": 1.0, "prose": 0.3,
        }
    )  # fmt: skip
    confidence_lexical: Mapping[str, float] = field(
        default_factory=lambda: {
            "bias": -1.5, "share": 5.0, "coverage": 3.0, "cosine": 0.0, "signature": 1.5, "facets": 0.3,
            "lead": 0.5, "known": 1.0, "prose": 0.3,
        }
    )  # fmt: skip
    threshold: float = 0.35
    threshold_lexical: float = 0.35
    learnt_from: str = "defaults"

    @classmethod
    def load(cls, path: Path) -> Ranking:
        """The weights in `path`, or the defaults when it is absent or unreadable."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return cls(**data)
        except (OSError, ValueError, TypeError):
            return cls()

    def save(self, path: Path) -> None:
        """Write the weights as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True) + "\n", encoding="utf-8", newline="\n")

    def scores(self, features: NDArray[np.float32], dense: bool) -> NDArray[np.float32]:
        """Order scores of candidates from their features [candidates, len(FEATURES)]."""
        weights = self.order if dense else self.order_lexical
        return features @ np.array([weights.get(name, 0.0) for name in FEATURES], dtype=np.float32)

    def confidence_of(self, evidence: Mapping[str, float], dense: bool) -> float:
        """Probability that the best candidate is right, from its evidence."""
        weights = self.confidence if dense else self.confidence_lexical
        total = weights.get("bias", 0.0) + sum(weights.get(name, 0.0) * evidence[name] for name in CONFIDENCE_FEATURES)
        return float(1.0 / (1.0 + np.exp(-np.clip(total, -30.0, 30.0))))

    def answers(self, confidence: float, dense: bool) -> bool:
        """Whether that confidence is enough to answer."""
        return confidence >= (self.threshold if dense else self.threshold_lexical)
