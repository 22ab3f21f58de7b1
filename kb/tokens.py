"""Text to search terms, aware of code: dotted and CamelCase names, flags, hex and error codes.

`aiex.npu.push_queue` yields the whole name and its parts; words are lightly stemmed so that
"compiling" meets "compiled". Scripts without spaces (Chinese, Japanese, Korean) yield character
pairs. No stop list: rarity is the index's business, except for a few glue words.

    terms("error: 'aiex.dma_configure_task' op exceeded 16 BDs")
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_WORD = re.compile(
    r"0x[0-9a-fA-F]+"
    r"|-{1,2}[A-Za-z][\w-]*"  # flags: -O2, --no-xchesscc
    r"|[A-Za-z_][\w]*(?:[.:/+-]{1,2}[A-Za-z0-9_]+)*"  # names, dotted or joined
    r"|\d+(?:\.\d+)*[A-Za-z]*"
    r"|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+"
    r"|[^\W\d_]+"
)
_CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_ACRONYMS = re.compile(r"[A-Z]{2,}s$")
_SPLIT = re.compile(r"[.:/_+-]+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")
_GLUE = frozenset(
    "a an the is are was were be been of to in on at by for and or it its this that with as from i my we our you your "
    "so but if then than there here do does did have has had not no".split()
)
MAX_TERM_CHARS = 48


def terms(text: str) -> list[str]:
    """The search terms of `text`, in order, repeats kept."""
    return list(_terms(text))


def _terms(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text):
        word = match[0]
        if _CJK.match(word):
            yield from (word[i : i + 2] for i in range(max(1, len(word) - 1)))
            continue
        lower = word.lower().rstrip("-")
        if len(lower) > MAX_TERM_CHARS:
            lower = lower[:MAX_TERM_CHARS]
        if lower in _GLUE:
            continue
        if word.startswith("-"):
            yield lower
            yield from _parts(word.lstrip("-"))
        elif word.isalpha() and word.islower():
            yield stem(lower)
        elif _ACRONYMS.match(word):  # BDs, ELFs
            yield lower[:-1]
        elif lower[0].isdigit():
            yield lower
        else:
            parts = list(_parts(word))
            if len(parts) != 1 or parts[0] != stem(lower):
                yield lower
            yield from parts


def _parts(name: str) -> Iterator[str]:
    for piece in _SPLIT.split(name):
        camel = _CAMEL.findall(piece)
        if len(camel) > 1:
            joined = piece.lower()
            if 1 < len(joined) <= MAX_TERM_CHARS and joined not in _GLUE:
                yield joined
        for part in camel if len(camel) > 1 else [piece]:
            low = part.lower()
            if (len(low) > 1 or low.isdigit()) and low not in _GLUE:
                yield stem(low)[:MAX_TERM_CHARS]


def stem(word: str) -> str:
    """`word` without a common English ending; short words stay whole."""
    if len(word) <= 3 or not word.isalpha():
        return word
    for end, least, put in (
        ("ations", 5, "at"), ("ation", 5, "at"), ("ings", 3, ""), ("ing", 3, ""), ("ied", 3, "y"),
        ("ies", 3, "y"), ("sses", 2, "ss"), ("ers", 4, ""), ("edly", 3, ""), ("ed", 3, ""), ("er", 4, ""),
        ("es", 3, "e"), ("s", 3, ""),
    ):  # fmt: skip
        if word.endswith(end) and len(word) - len(end) >= least and not word.endswith("ss"):
            word = word[: len(word) - len(end)] + put
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls":
        word = word[:-1]
    return word.removesuffix("e") if len(word) > 4 else word
