"""Record files: front matter plus Markdown sections, read and written without loss.

The same format serves the shipped corpus, exports and contributions. Section headings are the
ones of the record's class (`kb.records`). A text line that itself looks like a heading is written
with one more backslash in front, and loses it when read.

    text = dump_record(lesson)
    assert parse_record(text) == lesson
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, cast

import yaml

from kb.errors import FileInvalid, RecordInvalid
from kb.migrations import lift
from kb.records import KINDS, Record, record_from_dict

MAX_FILE_BYTES = 256 * 1024
"""Larger record files are refused unread: a lesson is a few kilobytes."""

_MAX_DEPTH = 12
_HEADING = re.compile(r"^## (.+?)\s*$")
_LOOKS_LIKE_HEADING = re.compile(r"^\\*## ")
_ESCAPED_HEADING = re.compile(r"^\\+## ")


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """Safe YAML without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {str(key) for key in keys if keys.count(key) > 1} if len(keys) < 500 else {"too many keys"}
        if twice:
            raise yaml.YAMLError(f"key written twice: {', '.join(sorted(twice))}")
        return cast("dict[Hashable, Any]", _Base.construct_mapping(self, node, deep=deep))


def parse_record(text: str, where: str = "record") -> Record:
    """The record a file's text holds.

    Raises:
        FileInvalid: not front matter plus known sections; the text names `where` and the line.
    """
    try:
        return record_from_dict(parse_fields(text, where))
    except RecordInvalid as error:
        raise FileInvalid(f"{where}: {error}") from None


def parse_fields(text: str, where: str = "record") -> dict[str, Any]:
    """The fields a file's text holds, not yet checked against the schema: a draft may leave some out.

    Raises:
        FileInvalid: not front matter plus known sections.
    """
    front, body, first = read_front_matter(text, where)
    data = lift(front)
    kind = data.get("kind", "lesson")
    if not isinstance(kind, str) or kind not in KINDS:
        raise FileInvalid(f"{where}: kind {str(kind)[:40]!r} is not one of {', '.join(KINDS)}")
    data["kind"] = kind
    _sections(body, data, KINDS[kind].SECTIONS, where, first)
    return data


def read_front_matter(text: str, where: str) -> tuple[dict[str, Any], list[str], int]:
    """The front matter of a file's text, the lines after it, and the number of the first of those.

    Raises:
        FileInvalid: too long, or no front matter.
    """
    if len(text) > MAX_FILE_BYTES:
        raise FileInvalid(f"{where}: {len(text)} characters, over {MAX_FILE_BYTES}; a record is one lesson, split it")
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[0].strip() != "---":
        raise FileInvalid(f"{where}:1: a record file starts with a line '---', found {lines[0][:40]!r}")
    try:
        # At the margin only: a long folded value may have an indented line '---'.
        end = next(i for i, line in enumerate(lines[1:], 1) if line.rstrip() == "---")
    except StopIteration:
        raise FileInvalid(f"{where}: the front matter has no closing '---'") from None
    return _front_matter("\n".join(lines[1:end]), where), lines[end + 1 :], end + 2


def _front_matter(text: str, where: str) -> dict[str, Any]:
    try:
        _refuse_bombs(text)
        # _Loader derives from SafeLoader: no object construction.
        data: Any = yaml.load(text, Loader=_Loader)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split())[:300]
        raise FileInvalid(f"{where}: front matter is not valid YAML: {message}") from None
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in cast("dict[Any, Any]", data)):
        raise FileInvalid(f"{where}: front matter is a list of 'field: value' lines")
    return cast("dict[str, Any]", data)


def _refuse_bombs(text: str) -> None:
    """Refuse anchors, aliases and deep nesting before anything is built. libyaml composes in C, so no hook sees them."""
    depth = 0
    for event in cast("Any", yaml).parse(text, Loader=_Base):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.YAMLError("anchors and aliases are not used in record files")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                raise yaml.YAMLError(f"nested deeper than {_MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _sections(lines: list[str], data: dict[str, Any], known: dict[str, str], where: str, first: int) -> None:
    field: str | None = None
    found: dict[str, list[str]] = {}
    for number, line in enumerate(lines, first):
        heading = _HEADING.match(line)
        if heading:
            field = known.get(heading[1])
            if field is None:
                raise FileInvalid(f"{where}:{number}: section {heading[1][:60]!r} is unknown; use {', '.join(known)}")
            if field in found:
                raise FileInvalid(f"{where}:{number}: section {heading[1]!r} stands twice")
            found[field] = []
        elif field is not None:
            found[field].append(line[1:] if _ESCAPED_HEADING.match(line) else line)
        elif line.strip():
            raise FileInvalid(f"{where}:{number}: text before the first '## ' section")
    for name, body in found.items():
        if name in data:
            raise FileInvalid(f"{where}: {name} stands both in the front matter and as a section")
        text = "\n".join(body).strip("\n")
        data[name] = _bullets(text) if name == "also_seen_as" else text


def _bullets(text: str) -> list[str]:
    items: list[str] = []
    for line in text.split("\n"):
        if line.startswith("- "):
            items.append(line[2:])
        elif line.strip() and items:
            items[-1] += " " + line.strip()
        elif line.strip():
            items.append(line.strip())
    return items


def dump_record(record: Record) -> str:
    """The file text of a record; `parse_record` gives the same record back."""
    data = record.model_dump(mode="python", exclude_defaults=True)
    head: dict[str, Any] = {
        "schema_version": record.schema_version,
        "kind": record.kind,
        "id": record.id,
        "title": record.title,
        "status": record.status,
    }
    sections = record.SECTIONS
    rest = {key: value for key, value in data.items() if key not in head and key not in sections.values()}
    rest["provenance"] = [p.model_dump(exclude_none=True) for p in record.provenance]
    head.update(rest)
    front = cast("Any", yaml).dump(head, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True, width=110)
    parts = [f"---\n{front}---\n"]
    for heading, field in sections.items():
        value = data.get(field)
        if not value:
            continue
        items = cast("list[str]", value) if isinstance(value, list) else None
        text: str = str(cast("Any", value)) if items is None else "\n".join(f"- {item}" for item in items)
        body = "\n".join("\\" + line if _LOOKS_LIKE_HEADING.match(line) else line for line in text.split("\n"))
        parts.append(f"\n## {heading}\n{body}\n")
    return "".join(parts)


def read_record(path: Path) -> Record:
    """The record in the file `path`. Raises FileInvalid."""
    return parse_record(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a record's or skill's file. Raises FileInvalid: unreadable, too large, not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileInvalid(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise FileInvalid(f"{path}: {len(raw)} bytes, over {MAX_FILE_BYTES}; a record is one lesson, split it")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileInvalid(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
