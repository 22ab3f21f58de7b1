"""Learn the ranking from questions with known answers, honestly: held out by source.

A case is `{"query": …, "lesson": id}`, `{"query": …, "must_match": [regex …], "need": n}`, or, for a
failure the memory does not know, `{"query": …, "kind": "no_answer"}`. `"also": [id …]` names further
lessons that someone read and found to give the same root cause and an equally valid fix; they count in
figures of their own and are never learnt from. `fit` learns; `cross_validate`
reports what the learnt weights do on sources they never saw. Plain numpy: a few hundred cases and
a dozen weights need no more.

    measured = measure(cases, shelf, records, encoder)
    ranking = fit(measured)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kb.corpus import load
from kb.embed import Encoder, Vectors
from kb.files import dump_record
from kb.memory import DENSE_TOKENS
from kb.query import read_query
from kb.rank import DEFAULTS, EVIDENCE, FEATURES, Curves, Ranking, slant_of, telling
from kb.records import Record
from kb.search import Found, Shelf, find

LEAVE_OUT_WEIGHT = 0.05
"""Weight of "its lesson was taken away" cases when learning to abstain, against 1 for foreign failures."""
FOLDS = 5
LEAST_SLANT = 0.25
"""Words that lean less are left out of the ranking file."""


@dataclass(frozen=True, slots=True)
class Case:
    """A question with what is right for it; `right` is empty for a failure nobody knows.

    also: neighbours that answer it as well, judged by reading both lessons.
    """

    case_id: str
    query: str
    right: frozenset[str]
    source: str
    style: str
    kind: str
    also: frozenset[str] = frozenset()

    @property
    def answerable(self) -> bool:
        """Whether any lesson is right."""
        return self.kind != "no_answer"


@dataclass(frozen=True, slots=True)
class Measured:
    """A case with the features of its candidates, for one mode."""

    case: Case
    ids: tuple[str, ...]
    features: NDArray[np.float32]
    found: Found
    words: tuple[str, ...]
    slant: float = 0.0


def read_case(data: Mapping[str, Any], records: Mapping[str, Record], texts: Mapping[str, str]) -> Case:
    """A case from its JSON, `right` being every lesson its judgement accepts."""
    if data.get("kind") == "no_answer":
        right: frozenset[str] = frozenset()
    elif "lesson" in data:
        right = frozenset([str(data["lesson"])])
    else:
        patterns = [re.compile(pattern, re.IGNORECASE) for pattern in data["must_match"]]
        right = frozenset(
            name
            for name, record in records.items()
            if record.kind == "lesson" and sum(bool(p.search(texts[name])) for p in patterns) >= data["need"]
        )
    return Case(
        str(data["id"]), data["query"], right, str(data.get("source", "")), str(data.get("style", "")),
        str(data.get("kind", "")), frozenset(map(str, data.get("also", ()))),
    )  # fmt: skip


def read_cases(lines: Sequence[Mapping[str, Any]], records: Mapping[str, Record]) -> list[Case]:
    """All cases; texts are what an agent would read."""
    texts = {name: dump_record(record) for name, record in records.items()}
    return [read_case(line, records, texts) for line in lines]


def measure(
    cases: Sequence[Case],
    shelf: Shelf,
    records: Mapping[str, Record],
    vectors: Vectors | None,
    *,
    leave_out: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Measured]:
    """Candidates of every case; with `leave_out`, as if its right lessons did not exist.

    `vectors`: the embedded queries [cases, 384] (`embed`), or None for lexical search only.
    """
    lessons = {name for name, record in records.items() if record.kind == "lesson"}
    ranking = Ranking()
    measured: list[Measured] = []
    for number, case in enumerate(cases):
        query = read_query(case.query)
        vector = vectors[number] if vectors is not None and query.dense_text else None
        hidden = case.right if leave_out else frozenset[str]()

        def admits(ids: Sequence[str], hidden: frozenset[str] = hidden) -> set[str]:
            return {name for name in ids if name in lessons and name not in hidden}

        found = find(query, [shelf], ranking, vector, admits=admits)
        ids = tuple(candidate.record_id for candidate in found.candidates)
        rows = [[candidate.features[name] for name in FEATURES] for candidate in found.candidates]
        features = np.array(rows, dtype=np.float32).reshape(-1, len(FEATURES))
        measured.append(Measured(case, ids, features, found, tuple(telling(query.terms))))
        if progress is not None:
            progress(number + 1, len(cases))
    return measured


def embed(cases: Sequence[Case], encoder: Encoder) -> Vectors:
    """The queries' vectors [cases, 384], as search makes them."""
    return encoder.encode([read_query(case.query).dense_text for case in cases], DENSE_TOKENS)


def fit_order(measured: Sequence[Measured], rounds: int = 300, decay: float = 2e-3) -> dict[str, float]:
    """Weights that put right candidates first: softmax over each case's candidates, by gradient ascent."""
    useful = [m for m in measured if m.case.right & set(m.ids)]
    width = max(len(m.ids) for m in useful)
    x = np.zeros((len(useful), width, len(FEATURES)), dtype=np.float32)
    real = np.zeros((len(useful), width), dtype=bool)
    right = np.zeros((len(useful), width), dtype=bool)
    for i, m in enumerate(useful):
        x[i, : len(m.ids)] = m.features
        real[i, : len(m.ids)] = True
        right[i, : len(m.ids)] = [name in m.case.right for name in m.ids]
    scale = x[real].std(axis=0) + 1e-6
    x /= scale
    weights = np.array([DEFAULTS["dense"].order_prose.get(name, 0.0) for name in FEATURES], dtype=np.float32) * scale
    momentum = np.zeros_like(weights)
    for step in range(rounds):
        p = _softmax(np.where(real, x @ weights, -1e9))
        inside = p * right
        pull = inside / np.maximum(inside.sum(axis=1, keepdims=True), 1e-9) - p
        gradient = np.einsum("nc,ncf->f", pull, x) / len(useful) - decay * weights
        momentum = 0.9 * momentum + gradient
        weights = weights + 0.3 * momentum / (1 + step / 100)
    return {name: round(float(w), 4) for name, w in zip(FEATURES, weights / scale, strict=True)}


def fit_curve(
    rows: NDArray[np.float64], labels: NDArray[np.float64], weights: NDArray[np.float64], decay: float = 0.02
) -> dict[str, float]:
    """A logistic curve over EVIDENCE by Newton's method; `weights` is each row's importance."""
    mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-6
    x = np.hstack([np.ones((len(rows), 1)), (rows - mean) / scale])
    beta = np.zeros(x.shape[1])
    ridge = np.diag([0.0] + [decay * float(weights.sum())] * rows.shape[1]) * 0.1
    for _ in range(50):
        p = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        gradient = x.T @ (weights * (labels - p)) - ridge @ beta
        hessian = (x * (weights * p * (1 - p))[:, None]).T @ x + ridge + 1e-9 * np.eye(x.shape[1])
        step = np.linalg.solve(hessian, gradient)
        beta = beta + step
        if float(np.abs(step).max()) < 1e-7:
            break
    slopes = beta[1:] / scale
    bias = float(beta[0] - slopes @ mean)
    return {"bias": round(bias, 4), **{name: round(float(s), 4) for name, s in zip(EVIDENCE, slopes, strict=True)}}


def fit_slants(measured: Sequence[Measured]) -> dict[str, float]:
    """Word → log-odds of standing in a question about this stack rather than another, shrunk for rare words."""
    ours: Counter[str] = Counter()
    others: Counter[str] = Counter()
    for m in measured:
        (ours if m.case.answerable else others).update(set(m.words))
    known = sum(m.case.answerable for m in measured)
    slants: dict[str, float] = {}
    for word in ours.keys() | others.keys():
        odds = ((ours[word] + 0.5) / (known + 1)) / ((others[word] + 0.5) / (len(measured) - known + 1))
        count = ours[word] + others[word]
        value = float(np.log(odds)) * count / (count + 2)
        if abs(value) >= LEAST_SLANT:
            slants[word] = round(value, 2)
    return slants


def _with_slants(measured: Sequence[Measured]) -> list[Measured]:
    """Each case with the slant that words learnt without its fold give it: what a new question will get."""
    fold = {
        m.case.case_id: i % FOLDS for i, m in enumerate(sorted(measured, key=lambda m: m.case.source + m.case.case_id))
    }
    lexicons = [fit_slants([m for m in measured if fold[m.case.case_id] != f]) for f in range(FOLDS)]
    return [replace(m, slant=slant_of(lexicons[fold[m.case.case_id]], list(m.words))) for m in measured]


def fit(measured: Sequence[Measured], absent: Sequence[Measured], mode: str) -> Curves:
    """All curves of one mode. `absent`: the same questions with their lessons taken away."""
    slants = fit_slants(measured)
    measured = _with_slants(measured)
    leaning = {m.case.case_id: m.slant for m in measured}
    absent = [replace(m, slant=leaning.get(m.case.case_id, 0.0)) for m in absent]
    order_log = fit_order([m for m in measured if not m.found.evidence.get("prose")])
    order_prose = fit_order([m for m in measured if m.found.evidence.get("prose")])
    draft = Curves(order_log, order_prose, DEFAULTS[mode].confidence, DEFAULTS[mode].known, 0.5)
    ranked = [(m, *_ranked(m, draft)) for m in measured if m.ids]
    rows = np.array([_vector(evidence) for _, _, evidence in ranked])
    right = np.array([float(ids[0] in m.case.right) for m, ids, _ in ranked])
    confidence = fit_curve(rows, right, np.ones(len(right)))

    answerable = np.array([float(m.case.answerable) for m, _, _ in ranked])
    missing = [_vector(_ranked(m, draft)[1]) for m in absent if m.ids and m.case.answerable]
    all_rows = np.vstack([rows, *missing]) if missing else rows
    labels = np.concatenate([answerable, np.zeros(len(missing))])
    negatives = max(1.0, float((answerable == 0).sum()))
    importance = np.concatenate([
        np.where(answerable == 0, answerable.sum() / negatives, 1.0),
        np.full(len(missing), LEAVE_OUT_WEIGHT),
    ])  # fmt: skip
    known = fit_curve(all_rows, labels, importance)
    threshold = _best_threshold(known, rows, answerable)
    return Curves(order_log, order_prose, confidence, known, threshold, slants)


def _best_threshold(known: Mapping[str, float], rows: NDArray[np.float64], answerable: NDArray[np.float64]) -> float:
    """The threshold with the best F1 of abstaining, in the middle of its plateau."""
    scores = np.array([_probability(known, row) for row in rows])
    best: list[tuple[float, float]] = []
    for threshold in np.linspace(0.02, 0.98, 193):
        abstained = scores < threshold
        hit = float((abstained & (answerable == 0)).sum())
        precision, recall = hit / max(1.0, float(abstained.sum())), hit / max(1.0, float((answerable == 0).sum()))
        best.append((2 * precision * recall / max(1e-9, precision + recall), float(threshold)))
    top = max(score for score, _ in best)
    plateau = [threshold for score, threshold in best if score >= top - 1e-9]
    return round(plateau[len(plateau) // 2], 3)


@dataclass(frozen=True, slots=True)
class Figures:
    """What a ranking achieves on cases: shares, and how often it abstained on known and unknown failures.

    near_1, near_3: recall where an accepted neighbour counts too.
    """

    cases: int
    recall_1: float
    recall_3: float
    mrr_10: float
    abstain_precision: float
    abstain_recall: float
    abstained: int
    near_1: float
    near_3: float


def figures(measured: Sequence[Measured], curves: Callable[[Case], Curves]) -> Figures:
    """Recall, MRR and abstention of `curves` (which may differ by fold)."""
    n = first = third = near_first = near_third = abstained = unknown = unknown_abstained = 0
    mrr = 0.0
    for m in measured:
        chosen = curves(m.case)
        m = replace(m, slant=slant_of(chosen.slants, list(m.words)))
        ids, evidence = _ranked(m, chosen) if m.ids else ((), {})
        silent = not ids or _probability(chosen.known, _vector(evidence)) < chosen.threshold
        abstained += silent
        if not m.case.answerable:
            unknown += 1
            unknown_abstained += silent
            continue
        n += 1
        rank = 0 if silent else _rank(ids, m.case.right)
        near = 0 if silent else _rank(ids, m.case.right | m.case.also)
        first += rank == 1
        third += 0 < rank <= 3
        near_first += near == 1
        near_third += 0 < near <= 3
        mrr += 1 / rank if rank else 0.0
    return Figures(
        n, first / max(1, n), third / max(1, n), mrr / max(1, n),
        unknown_abstained / abstained if abstained else 1.0, unknown_abstained / unknown if unknown else 1.0, abstained,
        near_first / max(1, n), near_third / max(1, n),
    )  # fmt: skip


def _rank(ids: Sequence[str], right: frozenset[str]) -> int:
    """The place of the first right one of the ten best, from 1; 0 for none."""
    return next((i for i, name in enumerate(ids[:10], 1) if name in right), 0)


def cross_validate(
    measured: Sequence[Measured], absent: Sequence[Measured], mode: str, group: Callable[[Case], str]
) -> Figures:
    """The figures when every case is judged by weights learnt without its group."""
    groups = sorted({group(m.case) for m in measured})
    fold_of = {name: i % FOLDS for i, name in enumerate(groups)}
    curves = [
        fit(
            [m for m in measured if fold_of[group(m.case)] != fold],
            [m for m in absent if fold_of[group(m.case)] != fold],
            mode,
        )
        for fold in range(FOLDS)
    ]
    return figures(measured, lambda case: curves[fold_of[group(case)]])


def _ranked(m: Measured, curves: Curves) -> tuple[tuple[str, ...], dict[str, float]]:
    """A case's ids in the order of `curves`, and the evidence of the first."""
    weights = curves.order_prose if m.found.evidence["prose"] else curves.order_log
    scores = m.features @ np.array([weights.get(name, 0.0) for name in FEATURES], dtype=np.float32)
    order = sorted(range(len(m.ids)), key=lambda i: (-float(scores[i]), m.ids[i]))
    best = order[0]
    second = float(scores[order[1]]) if len(order) > 1 else 0.0
    own = dict(zip(FEATURES, map(float, m.features[best]), strict=True))
    evidence = {**m.found.evidence, "slant": m.slant}
    evidence.update({name: value for name, value in own.items() if name in evidence})
    evidence["lead"] = min(1.0, (float(scores[best]) - second) / max(abs(float(scores[best])), 1e-6))
    return tuple(m.ids[i] for i in order), evidence


def _vector(evidence: Mapping[str, float]) -> NDArray[np.float64]:
    return np.array([evidence[name] for name in EVIDENCE], dtype=np.float64)


def _probability(curve: Mapping[str, float], row: NDArray[np.float64]) -> float:
    total = curve["bias"] + sum(curve.get(name, 0.0) * value for name, value in zip(EVIDENCE, row, strict=True))
    return float(1 / (1 + np.exp(-np.clip(total, -30, 30))))


def _softmax(x: NDArray[Any]) -> NDArray[Any]:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@dataclass(frozen=True, slots=True)
class Learnt:
    """A learnt ranking, its figures on sources it never saw, and on its own training cases."""

    ranking: Ranking
    held_out: dict[str, Figures]
    training: dict[str, Figures]


def learn(
    folder: Path,
    compiled: Path,
    lines: Sequence[Mapping[str, Any]],
    encoder: Encoder,
    progress: Callable[[int, int], None] | None = None,
) -> Learnt:
    """Learn both modes from cases over the compiled corpus, cross-validated by source.

    Cases whose lesson is not in the corpus are left out. A source is a repository and document, or
    a repository and issue; all cases of one source fall into the same fold.
    """
    corpus = load(folder, compiled)
    records = dict(corpus.records)
    usable = [line for line in lines if "lesson" not in line or line["lesson"] in records]
    cases = read_cases(usable, records)
    shelf = Shelf()
    shelf.add(corpus.segment)
    shelf.vectors.put(corpus.vectors)
    embedded = embed(cases, encoder)
    curves: dict[str, Curves] = {}
    held_out: dict[str, Figures] = {}
    training: dict[str, Figures] = {}
    for number, mode in enumerate(("dense", "lexical")):
        vectors = embedded if mode == "dense" else None

        def step(done: int, _total: int, base: int = number * 2 * len(cases)) -> None:
            if progress is not None:
                progress(base + done, 4 * len(cases))

        measured = measure(cases, shelf, records, vectors, progress=step)
        absent = measure(cases, shelf, records, vectors, leave_out=True)
        curves[mode] = fit(measured, absent, mode)
        held_out[mode] = cross_validate(measured, absent, mode, _group)
        training[mode] = figures(measured, lambda _case, mode=mode: curves[mode])
    foreign = sum(not case.answerable for case in cases)
    told = f"{len(cases) - foreign} questions with a known lesson, {foreign} foreign failures"
    return Learnt(Ranking(curves, told), held_out, training)


def _group(case: Case) -> str:
    """What is held out together: all questions about one source, each foreign failure by itself."""
    return (case.source or case.case_id) if case.answerable else case.case_id
