"""A diagnostic line to a stable signature and its facets.

What differs from run to run is masked: paths, SSA names, addresses, timestamps, ids, locations.
What tells failures apart is kept beside the signature as facets: numbers that are limits or
shapes, op names, error codes, flags. Masking those would delete the signal.

    signature_of("[  12.3] amdxdna 0000:c5:00.1: [drm] *ERROR* aie2_smu_exec: smu cmd 4 failed, 0xff")
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b

VERSION = 1
"""Raised when masking changes, so that stored signatures are recomputed."""

MAX_LINE_CHARS = 4000
"""What of a line is looked at; the signature itself is shorter, and masking is not linear."""

_PREFIX = re.compile(
    r"^\s*(?:\[\s*\d+\.\d+\]\s*|\w{3}\s+\d+ [\d:]{8} \S+ kernel:\s*(?:\[\s*[\d.]+\]\s*)?"
    r"|\[?\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\]?\s*|\[?\d\d:\d\d:\d\d[.,]?\d*\]?\s+|>\s+|\$\s+|E\s{2,})+"
)
_MASKS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d\b"), "<bdf>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<uuid>"),
    (re.compile(r"\b0x[0-9a-fA-F]{6,}\b"), "<addr>"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "<hash>"),
    (re.compile(r"(?:[A-Za-z]:)?(?:\\[\w.$ -]+){2,}\\?|(?<![\w.])(?:~|\.{1,2})?(?:/[\w.+@%~-]+){2,}/?"), "<path>"),
    (re.compile(r"<path>(?=\S*?:\d)"), "<path>"),
    (re.compile(r"\bloc\((?:[^()]|\([^()]*\))*\)"), "<loc>"),
    (re.compile(r"[\w./<>-]*\.(?:mlir|py|cc|cpp|c|h|hpp|ll|o|s|td):\d+(?::\d+)?:?"), "<loc>"),
    (re.compile(r"%[\w#]+"), "%"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*"), "<time>"),
    (re.compile(r"\b(?:pid|tid|ctx|hwctx|context|PID|uid)[ =:#.]*\d+\b"), "<id>"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|us|µs|s|sec|seconds|GB|MB|KB|kB|GiB|MiB|KiB)\b"), "<qty>"),
)
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_CODE = re.compile(
    r"\b(?:0x[0-9a-fA-F]{1,5}|ERT_CMD_STATE_\w+|[A-Z]{2,}(?:_[A-Z0-9]+)+|E[A-Z]{3,}|err(?:or)?[ =:]*-?\d+|-\d{1,3})\b"
)
_OP = re.compile(
    r"'?\b(?:aie|aiex|air|airrt|memref|linalg|vector|scf|func|arith|affine|aievec|llvm|xilinx|amdaie)\.[\w.]+"
)
_SHAPE = re.compile(r"\b\d+(?:[x×]\d+)+(?:x?[bfiu]+\d+)?\b")
_FLAG = re.compile(r"(?<!\w)--?[A-Za-z][\w-]+")


@dataclass(frozen=True, slots=True)
class Signature:
    """The stable form of one diagnostic line and what was kept beside it."""

    text: str
    key: str
    facets: tuple[str, ...]


def signature_of(line: str) -> Signature:
    """The signature of one diagnostic line."""
    text = _PREFIX.sub("", line.strip()[:MAX_LINE_CHARS])
    facets = facets_of(text)
    for pattern, put in _MASKS:
        text = pattern.sub(put, text)
    text = _NUMBER.sub("#", text)
    text = " ".join(text.lower().split())[:400]
    return Signature(text, blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest(), facets)


def facets_of(text: str) -> tuple[str, ...]:
    """Limits, shapes, op names, error codes and flags in `text`, each once, in order."""
    found: list[str] = []
    for pattern in (_OP, _CODE, _SHAPE, _FLAG, _NUMBER):
        found.extend(match.strip("'").lower() for match in pattern.findall(text))
    return tuple(dict.fromkeys(found))[:40]


def is_telling(signature: Signature) -> bool:
    """Whether the masked text still says enough to identify a failure by itself."""
    words = [w for w in re.findall(r"[a-z_][a-z_.]{2,}", signature.text) if w not in _EMPTY]
    return len(words) >= 3 and len(signature.text) >= 18


_EMPTY = frozenset(
    "error fatal failed fail the and for with note warning exception runtimeerror path loc time addr qty hash bdf command exit "
    "code status returned nonzero non zero traceback most recent call last file line".split()
)
