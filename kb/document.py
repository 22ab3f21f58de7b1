"""What of a record is searched: weighted text fields, passages to embed, signatures.

doc = document_of(lesson)
doc.weights["pingpong"], doc.passages[0], doc.signatures
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from kb.diagnostic import STRONG, weigh
from kb.records import Dispute, KernelNote, KernelRow, Lesson, ModelRow, Record, Skill, Trajectory
from kb.signature import is_telling, signature_of
from kb.tokens import terms

MAX_DOCUMENT_TERMS = 1500
"""Distinct terms kept of one record; only an absurdly long one has more."""
MAX_PASSAGES = 8


@dataclass(frozen=True, slots=True)
class Document:
    """The searchable form of a record.

    weights: term → field-weighted frequency. passages: short texts to embed, title first.
    signatures: keys of its telling diagnostic lines.
    """

    record_id: str
    weights: dict[str, float]
    passages: tuple[str, ...]
    signatures: tuple[str, ...]


def document_of(record: Record) -> Document:
    """The searchable form of `record`."""
    fields = _fields(record)
    weights: Counter[str] = Counter()
    for text, weight in fields:
        for term in terms(text):
            weights[term] += weight  # type: ignore[assignment]
    if len(weights) > MAX_DOCUMENT_TERMS:
        weights = Counter(dict(weights.most_common(MAX_DOCUMENT_TERMS)))
    return Document(record.id, dict(weights), _passages(record), signatures_of(record))


def signatures_of(record: Record) -> tuple[str, ...]:
    """Keys of the diagnostic lines in a lesson's symptom that identify it by themselves."""
    if not isinstance(record, Lesson):
        return ()
    keys: list[str] = []
    for line in fenced_lines(record.symptom):
        signature = signature_of(line)
        if is_telling(signature):
            keys.append(signature.key)
    return tuple(dict.fromkeys(keys))[:24]


def fenced_lines(text: str) -> list[str]:
    """The lines inside the ``` blocks of `text`: the verbatim diagnostics of a symptom."""
    lines: list[str] = []
    inside = False
    for line in text.split("\n"):
        if line.strip().startswith("```"):
            inside = not inside
        elif inside and line.strip():
            lines.append(line.strip())
    return lines


def prose_of(text: str) -> str:
    """`text` without its ``` blocks, on one line."""
    kept: list[str] = []
    inside = False
    for line in text.split("\n"):
        if line.strip().startswith("```"):
            inside = not inside
        elif not inside:
            kept.append(line)
    return " ".join(" ".join(kept).split())


def _tags(record: Record) -> str:
    pairs = " ".join(f"{name} {limit}" for name, limit in record.versions.items())
    return " ".join([*record.components, *record.devices, *record.kernels, *record.models, pairs])


def _fields(record: Record) -> list[tuple[str, float]]:
    """Texts with their weights, chosen on held-out questions: flat around these values (herdbook corpus tune)."""
    common = [(record.title, 2.5), (_tags(record), 1.5), (record.id.replace("-", " "), 1.0)]
    match record:
        case Lesson():
            return [
                *common,
                (record.symptom, 2.0),
                (" ".join(record.also_seen_as), 2.2),
                (record.cause, 1.0),
                (record.fix, 0.7),
                (record.verify, 0.3),
                (record.did_not_help, 0.3),
            ]
        case KernelNote():
            return [*common, (record.note, 1.0)]
        case KernelRow():
            shape = "x".join(str(extent) for extent in record.shape.values())
            axes = " ".join(f"{axis}={extent}" for axis, extent in record.shape.items())
            return [*common, (f"{record.kernel} {shape} {axes} {record.dtype} {record.method or ''}", 2.0),
                    (f"{record.used_by or ''} {record.notes}", 1.0)]  # fmt: skip
        case Trajectory():
            steps = " ".join(f"{step.change} {step.detail or ''}" for step in record.steps)
            return [*common, (f"{record.subject} {record.stage}", 2.0), (f"{steps} {record.notes}", 1.0)]
        case ModelRow():
            axes = " ".join(f"{axis}={value}" for axis, value in record.config.items())
            elfs = " ".join([*record.prefill_elfs, *record.decode_elfs])
            return [*common, (f"{record.hub_id} {axes}", 1.5), (f"{elfs} {record.notes}", 1.0)]
        case Dispute():
            claims = " ".join(position.claim for position in record.positions)
            return [*common, (f"{record.topic} {record.better_supported}", 1.5),
                    (f"{claims} {record.reason or ''} {record.notes}", 1.0)]  # fmt: skip
        case Skill():
            return [*common, (record.description, 2.0), (" ".join(record.aliases).replace("-", " "), 1.0),
                    (record.body, 0.3)]  # fmt: skip


def _passages(record: Record) -> tuple[str, ...]:
    passages = [record.title]
    if isinstance(record, Lesson):
        passages.append(prose_of(record.symptom))
        strong = [line.text for line in weigh("\n".join(fenced_lines(record.symptom))) if line.weight >= STRONG]
        passages.append(" ".join(strong or fenced_lines(record.symptom))[:600])
        passages.extend(record.also_seen_as)
        passages.append(record.cause[:600])
    elif isinstance(record, KernelNote):
        passages.append(record.note[:600])
    elif isinstance(record, Skill):
        passages.extend(re.split(r"(?<=[.:;,]) ", record.description))
    return tuple(dict.fromkeys(p for p in passages if p.strip()))[:MAX_PASSAGES]
