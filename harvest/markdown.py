"""Markdown as far as notes need it: sections with their bodies, labelled paragraphs, list items, tables, code blocks.

>>> for section in sections(text):
...     section.title, section.body

Not a Markdown parser: headings of the `#` form, fences, pipe tables and list items at the margin are all it knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_FENCE = re.compile(r"^\s*(?:```|~~~)")
_ITEM = re.compile(r"^(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?(.*)$")
_DATED = re.compile(r"^\**20\d\d-\d\d-\d\d")
_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the text up to the next one. `path`: the headings above it, outermost first. `line` counts from 1."""

    title: str
    level: int
    path: tuple[str, ...]
    body: str
    line: int


@dataclass(frozen=True, slots=True)
class Table:
    """A pipe table: column names, and rows of cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def sections(text: str) -> Iterator[Section]:
    """The sections of `text` in order; text before the first heading is one without a title."""
    title, level, start = "", 0, 1
    stack: list[tuple[int, str]] = []
    above: tuple[str, ...] = ()
    body: list[str] = []
    fenced = False
    for number, line in enumerate(text.split("\n"), 1):
        fenced ^= bool(_FENCE.match(line))
        heading = None if fenced else _HEADING.match(line)
        if heading is None:
            body.append(line)
            continue
        if title or any(part.strip() for part in body):
            yield Section(title, level, above, "\n".join(body).strip("\n"), start)
        level, title, start, body = len(heading[1]), plain(heading[2]), number, []
        while stack and stack[-1][0] >= level:
            stack.pop()
        above = tuple(name for _, name in stack)
        stack.append((level, title))
    if title or any(part.strip() for part in body):
        yield Section(title, level, above, "\n".join(body).strip("\n"), start)


def plain(text: str) -> str:
    """`text` on one line without emphasis marks, links' targets and pictograms."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"\*\*|__|(?<!\w)\*(?=\S)|(?<=\S)\*(?!\w)", "", text)
    text = re.sub(r"[\U0001f000-\U0001faff\u2600-\u27bf\ufe0f]", "", text)
    return " ".join(text.split())


def blocks(body: str) -> Iterator[str]:
    """Paragraphs, whole code blocks, whole tables and single list items (with what is indented under them), in order."""
    current: list[str] = []
    fenced = False
    mode = ""

    def close() -> Iterator[str]:
        if any(line.strip() for line in current):
            yield "\n".join(current).strip("\n")
        current.clear()

    for line in body.split("\n"):
        if _FENCE.match(line):
            if not fenced and mode not in ("item",):
                yield from close()
                mode = "code"
            fenced = not fenced
            current.append(line)
            if not fenced and mode == "code":
                yield from close()
                mode = ""
            continue
        if fenced:
            current.append(line)
            continue
        if not line.strip():
            if mode == "item":
                current.append(line)
                continue
            yield from close()
            mode = ""
            continue
        indented = line[:1] in (" ", "\t")
        if _ITEM.match(line):
            yield from close()
            mode = "item"
        elif mode == "item" and not indented and current and not current[-1].strip():
            yield from close()
            mode = "table" if line.lstrip().startswith("|") else "text"
        elif line.lstrip().startswith("|") and mode not in ("table", "item"):
            yield from close()
            mode = "table"
        elif mode == "table" and not line.lstrip().startswith("|"):
            yield from close()
            mode = "text"
        current.append(line)
    yield from close()


def item_text(block: str) -> str | None:
    """The text of a list item, lines joined; None for another block."""
    first = _ITEM.match(block.split("\n", 1)[0])
    if first is None:
        return None
    rest = block.split("\n")[1:]
    return "\n".join([first[1], *(line.strip() for line in rest)]).strip()


def is_code(block: str) -> bool:
    """Whether the block is fenced code."""
    return _FENCE.match(block) is not None


def code_of(text: str) -> list[str]:
    """The contents of the fenced blocks of `text`."""
    found: list[str] = []
    inside: list[str] | None = None
    for line in text.split("\n"):
        if _FENCE.match(line):
            if inside is None:
                inside = []
            else:
                found.append("\n".join(inside))
                inside = None
        elif inside is not None:
            inside.append(line)
    return found


def table_of(block: str) -> Table | None:
    """The table the block is; None for another block."""
    lines = [line.strip() for line in block.split("\n") if line.strip().startswith("|")]
    if len(lines) < 2:
        return None
    rows = [_cells(line) for line in lines if not _RULE.match(line)]
    if rows and len(rows) == len(lines) and _DATED.match(rows[0][0]):
        rows = [["date", *["what"] * (len(rows[0]) - 1)], *rows]  # a log that a blank line has cut from its head
    elif len(rows) == len(lines) or not rows:
        return None
    width = len(rows[0])
    shaped = [tuple((row + [""] * width)[:width]) for row in rows[1:]]
    return Table(tuple(plain(cell).lower() for cell in rows[0]), tuple(shaped))


def _cells(line: str) -> list[str]:
    line = line.strip().removeprefix("|").removesuffix("|")
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
