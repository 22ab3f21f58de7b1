"""Notes of a deployment to drafts: labelled sections, list items, tables of symptoms, the story of a session log.

>>> drafts = drafts_of_notes(source)

Written for the layouts found in the field (LESSONS.md, issues.md, debug_log.md, progress.md, phase documents, kernel
notes, skills) and for no author's words in particular: what counts is a symptom, a cause and a change, said with
labels or in sentences that speak of something going wrong and of what was done. What is not said stays missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from harvest.draft import Draft, Evidence
from harvest.markdown import Section, blocks, code_of, is_code, item_text, plain, sections, table_of
from harvest.sources import Source
from harvest.wording import (
    broke,
    broke_and_mended,
    clean_title,
    date_in,
    draft_of,
    fails,
    field_of,
    is_lesson_heading,
    mends,
    names_a_failure,
    organises,
    phase_in,
    sentences,
    speaks_of_success_only,
)

MIN_CHARS = 60
MAX_CHARS = 6_000
MAX_DRAFTS = 300
"""Lessons taken of one document; the richest seen upstream has fifteen."""
MAX_DEPTH = 6
"""Shorter items say too little to be found again."""
_BOLD_LABEL = re.compile(
    r"^[ \t]*(?:[-*+]\s+)?(?:\*\*|__)(?P<label>[^*_\n]{2,110}?)(?:\*\*|__)(?P<more>\s*\([^)\n]*\))?\s*:?[ \t]*(?P<rest>.*)$"
)
_PLAIN_LABEL = re.compile(
    r"^[ \t]*(?:[-*+]\s+)?(?P<label>[A-Z][A-Za-z' ]{2,30}?)(?P<more>\s*\([^)\n]*\))?\s*:[ \t]+(?P<rest>.*)$"
)
_INLINE = re.compile(
    r"(?<![\w`])(?:\*\*)?(?P<label>Fix(?:ed by| applied| confirmed| attempt \d+)?|FIX(?:ED| CONFIRMED)?|Workaround(?: applied| used)?|Solution|Resolution"
    r"|Remedy|Recovery|Root cause|ROOT CAUSE(?: FOUND)?|Cause|Why|Symptom|Mitigation|Plan|Impact|Verify|Result)(?:\*\*)?\s*(?:\([^)]*\))?:(?:\*\*)?\s+"
)
_LEAD = re.compile(
    r"^(?:\*\*|__)(?P<lead>.{3,160}?)(?:\*\*|__)\s*(?:\([^)]*\))?\s*(?:[:.—–-]|$)\s*(?P<rest>.*)$", re.DOTALL
)
_FIXED_BUGS = re.compile(r"(?i)\b(?:bugs?|findings?|lessons?|gotchas?|pitfalls?)\b")
"""Headings under which an item with a bold lead tells a lesson even when it does not say that something failed."""
_SOLVED = re.compile(
    r"^(?P<fix>.{8,}?)\s*[:;—–-]+\s*(?:solved|solves|fixed|fixes|resolved|resolves)\s+(?P<symptom>.{8,})$", re.DOTALL
)
_BECAUSE = re.compile(r"^(?P<fix>.{8,}?)\s*\((?P<symptom>(?:[^()]|\([^()]*\)){15,})\)\.?$", re.DOTALL)
_MEASURE = re.compile(r"^[a-z]+(?:_[a-z]+)+:\s")
"""A figure of a log (`wall_min: 37.1`), whatever is said beside it."""
_FIGURE_FIRST = re.compile(
    r"(?i)^\W*(?:mean_rel\w*|rel_err|abs_err|rtol|atol|cosine|corr)\b(?: max)?`? ?= ?`?[\d.e-]+|^\W*`?make \w+`?\W+(?:pass|run)"
)
"""An item that is about a figure or a target's success."""
_ATTEMPT = re.compile(r"(?i)\b(?:attempt|try|cycle|iteration)\s*#?\d+|^#\d+\b")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in which document: what every draft of it has in common."""

    source: Source
    heading: str
    when: date | None
    phase: str | None

    def evidence(self, part: str = "") -> Evidence:
        where = f"{self.source.label}#{self.heading}" + (f" / {part}" if part else "")
        return Evidence(f"notes:{where}"[:390], self.when)


def drafts_of_notes(source: Source) -> list[Draft]:
    """The drafts of one document."""
    found: list[Draft] = []
    document_date = date_in(source.text)
    skill = source.label.endswith("SKILL.md")
    for section in _folded(list(sections(source.text))):
        when = date_in(section.title) or date_in(section.body) or document_date
        phase = phase_in(section.title) or phase_in(" ".join(section.path)) or phase_in(source.label)
        place = _Place(source, section.title[:160], when, phase)
        whole = None if skill and section.level <= 1 else _labelled(section, place)
        if whole is None or "fix" in whole.missing:
            story = _attempts(section.body, section.title, place)
            if story is not None:
                found.append(story)
                continue
        if whole is not None:
            found.append(whole)
            continue
        # A skill is a procedure: its steps speak of failing and mending without being lessons; its tables are.
        parts = (
            [d for block in blocks(section.body) if (t := table_of(block)) for d in _rows(t.columns, t.rows, place)]
            if skill
            else list(_parts(section, place))
        )
        prose = _prose(section, place) if not parts else None
        found.extend([prose] if prose is not None else parts)
        if len(found) >= MAX_DRAFTS:
            break
    return found[:MAX_DRAFTS]


def _folded(found: list[Section]) -> Iterator[Section]:
    """Sections, with children named after parts of a lesson ("Symptom", "Fix") put back into their parent."""
    position = 0
    while position < len(found):
        section = found[position]
        end = position + 1
        while end < len(found) and found[end].level > section.level:
            end += 1
        below = found[position + 1 : end]
        named = {field_of(child.title) for child in below if child.level == section.level + 1} - {None}
        if section.level >= 1 and len(named & {"symptom", "cause", "fix", "apply"}) >= 2:
            text = "\n\n".join([section.body, *(f"**{child.title}**: {child.body}" for child in below)])
            yield Section(section.title, section.level, section.path, text.strip(), section.line)
            position = end
            continue
        mended = _mended_later(section, found[position + 1 :])
        if mended:
            yield Section(
                section.title, section.level, section.path, f"**Symptom**: {section.body}\n\n{mended}", section.line
            )
        else:
            yield section
        position += 1


def _mended_later(section: Section, after: list[Section]) -> str:
    """What a sibling called "Resolution" or "Workaround" says about a section whose heading names a bug or a blocker."""
    if (
        len(section.body) < 2 * MIN_CHARS
        or not re.search(r"(?i)\b(?:bugs?|blockers?|blocked)\b", section.title)
        or {"fix", "apply"} & set(labelled_parts(section.body))
    ):
        return ""
    told: list[str] = []
    for other in after:
        if other.level < section.level or (
            other.level == section.level
            and names_a_failure(other.title)
            and not re.search(r"(?i)workaround|alternative|resol|fix", other.title)
        ):
            break
        if other.level == section.level and field_of(other.title) == "fix":
            told.append(f"**Fix**: {other.body}")
    return "\n\n".join(told)


def _labelled(section: Section, place: _Place) -> Draft | None:
    """The section as one lesson, when labels say which part is what."""
    fields = labelled_parts(section.body)
    lead = fields.pop("", "")
    if organises(clean_title(section.title)) and len(lead) > 300:
        lead = ""
    own = {"symptom", "cause", "fix", "apply"} & set(fields)
    if "symptom" not in fields and lead and fails(lead) and own & {"fix", "cause"} and not _has_rows(lead):
        fields["symptom"] = lead
    elif lead and "symptom" in fields and not _has_rows(lead) and len(lead) < 600:
        fields["symptom"] = f"{lead}\n\n{fields['symptom']}"
    has_change = bool({"fix", "apply"} & set(fields))
    has_trouble = bool({"symptom", "cause"} & set(fields))
    if not (has_change and has_trouble):
        if len(own) >= 1 and {"symptom", "cause"} <= set(fields) and is_lesson_heading(section.title, section.path):
            return draft_of(clean_title(section.title), fields, place.evidence(), place.phase)
        return None
    if "symptom" not in fields and not fails(f"{section.title} {fields.get('cause', '')}"):
        return None
    if section.level <= 1 and not ({"symptom", "fix"} <= own and names_a_failure(section.title)):
        return None
    title = clean_title(section.title)
    if not section.title or _has_rows(fields.get("fix", "")) or (organises(title) and len(own) < 2):
        return None
    title = _named(title, fields) if organises(title) else title
    return draft_of(title, fields, place.evidence(), place.phase)


def _prose(section: Section, place: _Place) -> Draft | None:
    """A section whose heading names a failure, told without labels: sentences up to the first change, and from there on."""
    if not names_a_failure(section.title) or organises(clean_title(section.title)):
        return None
    text = "\n\n".join(block for block in blocks(section.body) if table_of(block) is None)
    plain_text = re.sub(r"(?ms)^\s*```.*?^\s*```", "", text)
    said = list(sentences(plain_text))
    first = next(
        (n for n, sentence in enumerate(said) if n > 0 and mends(sentence) and not _ATTEMPT.search(sentence)), None
    )
    if first is None or len(plain_text) < MIN_CHARS * 2 or not broke_and_mended(f"{section.title} {text}"):
        return None
    quoted = "\n\n".join(f"```\n{code}\n```" for code in code_of(section.body)[:1] if len(code) < 600)
    fields = {"symptom": f"{' '.join(said[:first])}\n\n{quoted}".strip(), "fix": " ".join(said[first:])[:3000]}
    return draft_of(clean_title(section.title), fields, place.evidence(), place.phase)


def labelled_parts(body: str) -> dict[str, str]:
    """Field → text by the labels at the start of lines; what stands before the first label is under ""."""
    fields: dict[str, list[str]] = {"": []}
    current = ""
    fenced = False
    for line in body.split("\n"):
        if re.match(r"^\s*(?:```|~~~)", line):
            fenced = not fenced
        label = None if fenced else (_BOLD_LABEL.match(line) or _PLAIN_LABEL.match(line))
        name = field_of(label["label"]) if label is not None else None
        if label is not None and name is not None:
            current = name
            fields.setdefault(current, []).append(label["rest"] if name else line)
        else:
            fields.setdefault(current, []).append(line)
    joined = {name: "\n".join(lines).strip() for name, lines in fields.items()}
    return {name: text for name, text in joined.items() if text or not name}


def _has_rows(text: str) -> bool:
    return any(table_of(block) is not None for block in blocks(text))


def _parts(section: Section, place: _Place) -> Iterator[Draft]:
    """Lessons told by single items, paragraphs and table rows of a section."""
    ours = is_lesson_heading(section.title, section.path)
    for block in _unnested(section.body):
        text = item_text(block)
        below = _below(block)
        story = _attempts(below, section.title, place) if below else None
        if story is not None:
            yield story
            continue
        table = table_of(block)
        if table is not None:
            yield from _rows(table.columns, table.rows, place)
        elif text is not None:
            draft = _told(
                text, place, strict=not ours, item_like=True, granted=_FIXED_BUGS.search(section.title) is not None
            )
            if draft is not None:
                yield draft
        elif not is_code(block):
            draft = _told(block, place, strict=True)
            if draft is not None:
                yield draft


def _unnested(body: str, depth: int = 0) -> Iterator[str]:
    """The blocks of `body`; the points under a list item that only introduces them (`- notable_events:`) by themselves."""
    for block in blocks(body):
        below, first = _below(block), block.split("\n", 1)[0]
        if depth < MAX_DEPTH and below and len(first) < MIN_CHARS and len(_attempt_items(below)) < 2:
            yield first
            yield from _unnested(below, depth + 1)
        else:
            yield block


def _below(block: str) -> str:
    """The points nested under a list item, moved to the margin; empty for another block."""
    _, _, rest = block.partition("\n")
    inner = [line for line in rest.split("\n") if line.strip()]
    if item_text(block) is None or not inner or not re.match(r"\s+(?:[-*+]|\d+[.)])\s", inner[0]):
        return ""
    margin = min(len(line) - len(line.lstrip()) for line in inner)
    return "\n".join(line[margin:] for line in rest.split("\n"))


def _told(text: str, place: _Place, *, strict: bool, item_like: bool = False, granted: bool = False) -> Draft | None:
    """A lesson in one item or paragraph: it says what went wrong and what was done. `strict`: only with a bold lead or a label."""
    if (
        not MIN_CHARS <= len(text) <= MAX_CHARS
        or _FIGURE_FIRST.match(text)
        or speaks_of_success_only(text)
        or _MEASURE.match(text)
    ):
        return None
    lead = _LEAD.match(text)
    title = plain(lead["lead"]) if lead is not None else ""
    rest = lead["rest"] if lead is not None else text
    pieces = _inline(rest)
    labelled = {"fix", "cause"} & set(pieces)
    if title and organises(title):
        title = ""
    item = strict and item_like and broke_and_mended(text)
    if (
        strict
        and not item
        and not (labelled and fails(text))
        and not (title and broke_and_mended(text) and mends(rest))
    ):
        return None
    known_trouble = fails(text) or (granted and bool(title))
    if not strict and not (known_trouble and (labelled or mends(text))):
        return None
    fields = dict(pieces)
    before = fields.pop("", "").strip()
    if "fix" not in fields:
        said = list(sentences(before))
        first = next((n for n, sentence in enumerate(said) if mends(sentence) and n > 0), None)
        if first is None and said and mends(said[0]) and len(said) == 1 and title:
            fields["fix"] = said[0]
            before = ""
        elif first is not None and fails(f"{title} {' '.join(said[:first])}"):
            fields["fix"] = " ".join(said[first:])
            before = " ".join(said[:first])
        else:
            changes = [one for one in said if mends(one) and not broke(one)] or [one for one in said if mends(one)]
            rest_of = [sentence for sentence in said if sentence not in changes]
            if changes and (rest_of or fails(title) or (granted and title)):
                fields["fix"] = " ".join(changes)
                before = " ".join(rest_of) or title
    if "fix" not in fields:
        one = _SOLVED.match(before) or _BECAUSE.match(before)
        if one is not None and broke(one["symptom"]) and mends(one["fix"]):
            fields["fix"], before = one["fix"], one["symptom"]
    if before:
        fields["symptom"] = f"{before}\n\n{fields['symptom']}" if "symptom" in fields else before
    if "symptom" not in fields and title and (granted or fails(f"{title} {fields.get('cause', '')}")):
        fields["symptom"] = title
    if "fix" not in fields or not ({"symptom", "cause"} & set(fields)):
        return None
    named = _named(title, fields)
    return draft_of(named, fields, place.evidence((clean_title(title) or named)[:80]), place.phase)


def _named(title: str, fields: Mapping[str, str]) -> str:
    """`title`, unless it only organises a page: then the first sentence of cause or symptom."""
    clean = clean_title(title)
    if clean and not organises(clean) and field_of(clean) is None and len(clean) >= 12:
        return clean
    told = [clean_title(_first_words(fields[name])) for name in ("cause", "symptom", "fix") if fields.get(name)]
    return next((one for one in told if len(one) >= 12 and not organises(one)), clean or "untitled note")


def _inline(text: str) -> dict[str, str]:
    """Field → text by labels inside sentences: "… Fix: use X. Root cause: Y"."""
    fields: dict[str, str] = {}
    current, start = "", 0
    for match in _INLINE.finditer(text):
        piece = text[start : match.start()].strip(" ;,—-\n")
        if piece:
            fields[current] = f"{fields[current]}\n\n{piece}" if current in fields else piece
        current, start = field_of(match["label"]) or "", match.end()
    piece = text[start:].strip()
    if piece:
        fields[current] = f"{fields[current]}\n\n{piece}" if current in fields else piece
    return fields


def _attempt_items(body: str) -> list[str]:
    return [text for block in blocks(body) if (text := item_text(block)) and _ATTEMPT.search(text[:60])]


def _attempts(body: str, heading: str, place: _Place) -> Draft | None:
    """A numbered list of attempts of which the last one passed: the others did not help."""
    tried = _attempt_items(body)
    if len(tried) < 2:
        return None
    passed = next(
        (
            text
            for text in reversed(tried)
            if re.search(r"\bPASS(?:ED)?\b|✓|\bworks\b|\bfixed\b|\bcorrect\b|\bsucceeds?\b", text)
        ),
        None,
    )
    if passed is None:
        return None
    fields = labelled_parts(body)
    cause = fields.get("cause", "")
    failed = [text for text in tried if text is not passed]
    parts = {"symptom": failed[0], "fix": passed, "did_not_help": "\n".join(f"- {text}" for text in failed[1:])}
    if cause:
        parts["cause"] = cause
    title = clean_title(_first_words(sentences_or(cause, failed[0])))
    named = place.evidence(title[:80]) if organises(clean_title(heading)) else place.evidence()
    return draft_of(title, parts, named, place.phase)


def sentences_or(text: str, other: str) -> str:
    """The first sentence of `text`, else of `other`."""
    return next(iter(sentences(text or other)), other)


def _rows(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...], place: _Place) -> Iterator[Draft]:
    """Lessons of a table: columns named after parts of a lesson, or a log with dates."""
    named = {number: name for number, column in enumerate(columns) if (name := field_of(column)) is not None}
    if {"fix", "apply"} & set(named.values()) and {"symptom", "cause"} & set(named.values()):
        for row in rows:
            fields: dict[str, str] = {}
            for number, name in named.items():
                if row[number].strip(" -—–"):
                    fields[name] = f"{fields[name]}\n{row[number]}" if name in fields else row[number]
            rest = [cell for number, cell in enumerate(row) if number not in named and cell.strip(" -—–")]
            title = _first_words(fields.get("symptom") or (rest[0] if rest else fields.get("cause", "")))
            if (
                ({"fix", "apply"} & set(fields))
                and ({"symptom", "cause"} & set(fields))
                and len(" ".join(fields.values())) >= MIN_CHARS
            ):
                yield draft_of(clean_title(title), fields, place.evidence(title[:80]), place.phase)
    elif columns and re.fullmatch(r"date|when|day", columns[0]) and len(columns) >= 2:
        yield from _log(rows, place)


def _log(rows: tuple[tuple[str, ...], ...], place: _Place) -> Iterator[Draft]:
    """Entries of a dated log that tell of a failure and, in the same or the following entries, of its mending."""
    when: date | None = None
    open_failure: list[str] = []
    quiet = 0
    for row in rows:
        when = date_in(row[0]) or when
        text = " ".join(cell for cell in row[1:] if cell).strip()
        dated = _Place(place.source, place.heading, when or place.when, place.phase)
        own = _inline(text)
        cause = own.get("cause", "")
        fixed = own.get("fix", "")
        mended = re.search(
            r"(?i)\bfixed\b|\bworkaround\b|\bfix landed\b|\bsolved\b|now compiles|fallback implemented", text
        )
        if not fixed and mended and open_failure and not cause:
            fixed = text
        if not fixed and fails(text) and mended and not open_failure:
            draft = _told(text, dated, strict=True, item_like=True)
            if draft is not None:
                yield draft
                continue
        if cause and not fixed:
            open_failure.append(text)
            continue
        if fixed and (open_failure or fails(text)):
            symptom = " ".join(open_failure) or own.get("", "")
            causes = _inline(symptom).get("cause", "") or cause
            fields = {"symptom": _inline(symptom).get("", symptom) or symptom, "fix": fixed}
            if causes:
                fields["cause"] = causes
            title = _first_words(causes or fields["symptom"])
            yield draft_of(clean_title(title), fields, dated.evidence(title[:80]), place.phase)
            open_failure = []
        elif open_failure and fails(text) and len(open_failure) < 6:
            open_failure.append(text)
        elif open_failure:
            quiet += 1
            if quiet > 2:
                open_failure, quiet = [], 0


def _first_words(text: str) -> str:
    line = plain(re.sub(r"^[#\d.()\s-]+", "", text.strip())).replace("`", "")
    first = next(iter(sentences(line)), line)
    return first if len(first) <= 120 else first[:120].rsplit(" ", 1)[0]


def verbatim_in(text: str) -> list[str]:
    """The lines of the code blocks of `text`."""
    return [line.strip() for block in code_of(text) for line in block.split("\n") if line.strip()]
