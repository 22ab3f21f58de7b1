"""The words by which notes speak of failures and of changes, and a draft made of what they say.

>>> fails("silently produces garbage"), mends("pad to 12288 instead")
(True, True)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import date

from harvest.draft import Draft, Evidence, Origin
from harvest.markdown import code_of, plain

_FIELDS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("did_not_help", r"(?:what )?did(?:n't| not) (?:help|work)|(?:fix )?attempts?(?: \d+)?|tried(?: in vain)?|failed attempts?|ruled out|what this is not"),
        ("symptom", r"(?:previous |trigger |observed |visible |failure )?symptoms?\b|what happened|situation|problem|failure(?: mode)?s?|error(?: message| text)?s?|observed|observation|current behaviou?r|current|trigger|runtime|issue|what goes wrong|what you see|context|signature|diagnostics?|worse"),
        ("cause", r"(?:likely |real |suspected |probable |actual )?(?:root )?causes?\b|why\b|reason|suspected|explanation|diagnosis|key insight|hypothesis|bisection result|bisect|constraint analysis|differential|mechanism|explains|hypotheses"),
        ("fix", r"(?:proposed |actual |recommended |final )?fix(?:es|ed)?\b|workarounds?\b|resolution|resolved|solutions?|potential solutions?|remed(?:y|ies)|mitigations?|recovery|implementation|what (?:we did|fixed it|helped)|action|decision|mitigated|triage|recommendations?|plan"),
        ("apply", r"how to apply|generali[sz]ation|skill update|applies(?: to)?|takeaway|prevention|rule|guidance|avoid|forward|implications"),
        ("verify", r"verif(?:y|ied|ication)|how to (?:check|verify|confirm)|results?\b|validation|outcome|measured|impact|status|current status|regression check"),
    )
)  # fmt: skip
"""A label, from its first word on, to the part of a lesson it introduces; asked in this order."""
_NUMBERED = re.compile(
    r"(?i)^(?:(?:lesson|issue|bug|finding|problem|item|note|rule)\s*[#]?[\w.]{0,4}\s*(?:\([^)]*\))?\s*[:—–-]\s*|l\d+\s*(?:\([^)]*\))?\s*[:—–-]\s*"
    r"|\d{4}-\d\d-\d\d\s*[:—–-]\s*|\(?\d{1,2}[.)]\s+|#\d+\s*[:—–-]?\s*|[\s:—–-]+)+"
)
_DATE = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)\b")
_PHASE = re.compile(r"(?i)\bphase[\s_-]?([0-7])\b")
_FAILS = re.compile(
    r"(?i)\b(?:fail(?:s|ed|ing|ure)?|errors?|wrong(?:ly)?|incorrect(?:ly)?|garbage|corrupt(?:s|ed|ion)?|hang(?:s)?|hung|exceed(?:s|ed|ing)?|exhaust(?:s|ed|ion)?"
    r"|nan|crash(?:es|ed)?|overflow(?:s|ed)?|silently|stale|broken|breaks?|mismatch(?:es|ed)?|regress(?:ion|ed|es)?|timeouts?|unable|cannot|can't|blocked|blockers?"
    r"|over-?strict|false positive|flaky|bug(?:s|gy)?|diverge(?:s|d|nce)?|drops?|degrad\w+|junk|not divisible|does(?:n't| not)|don't|never|over (?:the )?(?:limit|cap|budget)|> ?\d+ ?❌"
    r"|refus(?:es|ed)|reject(?:s|ed)|collid\w+|collision|conflicts?|too (?:large|small|slow|many|long)|missing|undefined|deadlocks?|starv\w+|contaminat\w+|incompatible|mandatory|impossible|spurious|untested|unblocked|false-start|hardcode[sd]?|neither|inconsistent|collapsed?|waste[sd]?|bottleneck|slower|uncorrelated|unsafe)\b|❌|⚠"
)
_MENDS = re.compile(
    r"(?i)\b(?:fix(?:ed|es)?|workaround|instead|must|use[ds]?|using|pad(?:ded|ding)?|split|set|avoid(?:s|ed)?|replace[ds]?|switch(?:ed)?|unless|need(?:s|ed)? to|requires?|rename[ds]?|reduc(?:e|ed|ing)|rais(?:e|ed)"
    r"|resolved|patched|add(?:ed|s)?|remov(?:e|ed)|chang(?:e|ed)|wip(?:e|es|ed)|clean|drop(?:ped)? to|rout(?:e|ed)|prefer|pass(?:es|ed)? with|only by|solved|works? (?:fine )?(?:with|when|at)|should|do not|don't|always|never"
    r"|check|verify|make sure|ensure|call|compile (?:it|with)|re-?run|restores?|relax(?:ed)?|derives?|forward(?:ed)?|deleted?|guard(?:s|ed)?|solutions?|need(?:s|ed)?|eliminat(?:e|ed|es)|pivoted|reorgani[sz]e[sd]?|re-?partition\w*|halv\w+|fusion|lower(?:ed)? to|override[sn]?)\b|→"
)
_BROKE = re.compile(
    r"(?i)\b(?:fail(?:s|ed|ing|ure)?|errors?|wrong|incorrect(?:ly)?|garbage|corrupt\w*|hangs?|hung|exceed\w*|exhaust\w*|nan|crash\w*|overflow\w*|stale|broken|breaks?|broke"
    r"|mismatch\w*|unable|not found|blocked|blockers?|bugs?|collision|incompatible|conflicts?|breach(?:es)?|false positive|regression|asserts?|not divisible|not a known|too tight|over-?strict|bypass\w*|mandatory|snapshots?|deadlock\w*|flaky|spurious|contaminat\w*|impossible|silently)\b|> ?\d{3,}|❌"
)
_MENDED = re.compile(
    r"(?i)\b(?:fix(?:ed|es)?|resolved|workaround|instead|must|need(?:s|ed)?|requires?|pivoted|solved|use[sd]?|halv\w+|renamed?|mandatory|relaxed|reorgani[sz]e|split|pad(?:ded)?|works? fine|re-?compile[ds]?|make clean|override|landed|unblocked|add(?:ed)?)\b|→"
)
_SUCCESS_ONLY = re.compile(
    r"(?i)^\W*(?:\*\*)?(?:pass(?:ed)?|ok|done|verified|✓|✅|inherited|applied|n/a|skip|drop-in)\b"
)
_ORGANISES = re.compile(
    r"(?i)^(?:next(?: steps?)?|dates?|conclusions?|dispositions?|patterns?(?: application)?|open follow-ups?|approach|verdict|decisions?|status|setup|files(?: \w+)?|notes?"
    r"|summary|result|method|goal|phase \d.*|approach \w+|notable[_ ]events.*|critical|insight.*|caveats?|tested|metric|\d+ [\w-]+|option \w+|step \w+|watch list|deferred.*|adjustments.*"
    r"|no new .*|items? surfaced.*|triage.*|new work.*|lesson \d+ captured.*|.*\bcaptured\b.*|memory|compile|runtime|measurements?|performance.*|prefill.*journey|decode.*journey)$"
)
"""Titles and leads that organise a page and name no trouble."""
_TICKED_OFF = re.compile(
    r"(?i)^\W*(?:\[.?\]\s*)?\d+[:.]\s.{0,45}\((?:PASS|PASSED|done)|^\**workaround #?\d+ \(failed\)|^\W*none\b"
)
"""An entry of a list of phases, or of what was tried and failed: no lesson by itself."""
_LESSON_HEADING = re.compile(
    r"(?i)\b(?:bugs?|findings?|lessons?|issues?|frictions?|pitfalls?|gotchas?|blockers?|walls?|known|failures?|warnings?|adjustments?|traps?|quirks?|limits?|limitations?"
    r"|caveats?|troubleshoot\w*|symptoms?|common mistakes|root causes?|did not work|problems?|risks?|anti-?patterns?|workarounds?|debug\w*|hazards?|surprises?|learn(?:ed|t)|what (?:we|i) learn)"
)
_SENTENCE = re.compile(
    r"(?<=[.!?;])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<!etc\.)(?<!incl\.)(?:\*\*)?\s+(?=[A-Za-z`*(\d\"'])|\n{2,}|(?<=\w)\s+→\s+(?=[A-Za-z`*])"
)
_DIAGNOSTIC = re.compile(
    r"(?i)\b(?:error|exceed\w*|exhaust\w*|unable|cannot|could not|failed|fatal|not found|undefined|timeout|unsupported|invalid|overflow\w*|no such|must be|expected)\b|[A-Z]{2,}_[A-Z_]{4,}|Error\b"
)
_CATEGORIES: tuple[tuple[str, str], ...] = (
    ("bo_corruption", r"stale (?:bo|buffer)|\bbo (?:state|contention|corruption)|buffer object|static_input|wrong output buffer|contaminat"),
    ("runtime_hang", r"\bhang|\bhung|deadlock|timeout"),
    ("resource_limit", r"\bbd\b|buffer descriptor|\bl1\b|\bl2\b|repeat[_ ]count|exhaust|capacity|channels?\b.{0,30}\b(?:limit|exceed)|\bcap\b|program memory"),
    ("routing", r"\brout(?:e|ing) (?:fail|conflict)|congest|shim ?dma channel"),
    ("numerics", r"\bnan\b|cosine|\bcos\b|\bcorr\b|correlation|precision|garbage|wrong (?:output|token|result)|rounding|tolerance|drift|diverge|top-1|\bmae\b"),
    ("performance", r"\bms/|\btok/s|latency|slow|speedup|throughput|gflop|overhead"),
    ("compile", r"\bcompil|aircc|\bllc\b|\blower(?:ing|ed)?\b|linker|\bpass(?:es)? (?:fails|crash)|builder"),
    ("integration", r"import|path|module|symlink|scaffold|cache|monkey-?patch|filenotfound|argument order|instance_name"),
    ("runtime_error", r"\bxrt\b|\bert_|runtime error"),
)  # fmt: skip
_KERNELS = (
    ("flash_attention", r"flash ?attention|\bfa\b|flash_attn|attn_npu2"), ("gemm", r"\bgemms?\b"), ("gemv", r"\bgemvs?\b|matvec"),
    ("rmsnorm", r"rms ?norm"), ("rope", r"\brope\b"), ("silu_mul", r"silu|swiglu"), ("eltwise_add", r"eltwise|residual add"),
    ("qk_norm", r"q/?k[ -]?norm"), ("qkv_bias", r"qkv[ -]bias"), ("lm_head_gemv", r"lm[ _-]head"),
)  # fmt: skip


def field_of(label: str) -> str | None:
    """The part of a lesson a label introduces; None for another label."""
    low = plain(label).lower().strip(" :*_").removeprefix("the ")
    low = re.sub(r"\s*\([^)]*\)", "", low)
    if len(low.split()) > 12:
        return None
    return next((name for name, pattern in _FIELDS if pattern.match(low)), None)


def fails(text: str) -> bool:
    """Whether `text` speaks of something going wrong."""
    return _FAILS.search(text) is not None


def mends(text: str) -> bool:
    """Whether `text` speaks of a change, or of what has to be done."""
    return _MENDS.search(text) is not None


def broke_and_mended(text: str) -> bool:
    """Whether `text` says plainly that something broke and what was done about it."""
    return _BROKE.search(text) is not None and _MENDED.search(text) is not None


def broke(text: str) -> bool:
    """Whether `text` says plainly that something broke."""
    return _BROKE.search(text) is not None


def names_a_failure(title: str) -> bool:
    """Whether a heading is itself about something broken or in the way."""
    return (
        re.search(
            r"(?i)\b(?:bugs?|blockers?|blocked|unblocked|hangs?|garbage|exhaust\w*|walls?|traps?|workarounds?|root cause|budget|breaks?|broken|silently|wrong|stale|conflicts?|exceed\w*|fail\w*|regression)\b",
            title,
        )
        is not None
    )


def speaks_of_success_only(text: str) -> bool:
    """Whether an item merely reports that something passed."""
    return _SUCCESS_ONLY.match(text) is not None or _TICKED_OFF.match(text) is not None


def organises(title: str) -> bool:
    """Whether a title or lead merely organises a page."""
    return not title or (_ORGANISES.match(title.strip(" :*")) is not None and not names_a_failure(title))


def is_lesson_heading(title: str, path: tuple[str, ...]) -> bool:
    """Whether a heading, or the one above it, announces things that went wrong or were learnt."""
    return bool(_LESSON_HEADING.search(title) or (path and _LESSON_HEADING.search(path[-1])))


def clean_title(title: str) -> str:
    """A title without numbering, dates and marks."""
    text = plain(title).replace("`", "")
    text = _NUMBERED.sub("", text)
    text = re.sub(
        r"\s*\((?:[^()]*\b(?:20\d\d-\d\d-\d\d|phase \w+|critical|informational)\b[^()]*)\)\s*$",
        "",
        text,
        flags=re.IGNORECASE,
    )
    return " ".join(text.split()).strip(" :—–-.")[:150]


def date_in(text: str) -> date | None:
    """The latest date in `text`."""
    found: list[date] = []
    for year, month, day in _DATE.findall(text):
        try:
            found.append(date(int(year), int(month), int(day)))
        except ValueError:
            continue
    return max(found, default=None)


def phase_in(text: str) -> str | None:
    """The deployment phase `text` names first."""
    match = _PHASE.search(text)
    return match[1] if match is not None else None


def sentences(text: str) -> Iterator[str]:
    """The sentences of `text`, each on one line."""
    for part in _SENTENCE.split(text):
        line = " ".join(part.split())
        if line:
            yield line


def diagnostics_in(text: str) -> list[str]:
    """What in `text` was quoted from a tool: lines of code blocks, and spans in back quotes that read like diagnostics."""
    found = [line.strip() for block in code_of(text) for line in block.split("\n") if _DIAGNOSTIC.search(line)]
    outside = re.sub(r"(?ms)^\s*```.*?^\s*```", "", text)
    for span in re.findall(r"(?<!`)`([^`]{8,240})`(?!`)|\"([^\"\n]{12,200})\"", outside):
        quoted = " ".join((span[0] or span[1]).split())
        if _DIAGNOSTIC.search(quoted) and (len(quoted.split()) >= 3 or re.fullmatch(r"[A-Z_]{8,}", quoted)):
            found.append(quoted)
    return list(dict.fromkeys(line[:400] for line in found))[:8]


def category_of(text: str) -> str:
    """The category whose words stand first in `text`, else "process"."""
    low = text.lower()
    return next((name for name, pattern in _CATEGORIES if re.search(pattern, low)), "process")


def kernels_in(title: str) -> list[str]:
    """The kernels a title names."""
    low = title.lower()
    return [name for name, pattern in _KERNELS if re.search(pattern, low)]


def draft_of(
    title: str, parts: Mapping[str, str], evidence: Evidence, phase: str | None, origin: Origin = "note"
) -> Draft:
    """A lesson of the named parts. A missing symptom is the title; a missing cause or fix is named as missing."""
    missing = [name for name in ("symptom", "cause", "fix") if not parts.get(name)]
    fix = parts.get("fix", "")
    apply = parts.get("apply", "")
    if not fix and apply:
        fix, apply = apply, ""
        missing.remove("fix")
    elif apply:
        fix = f"{fix}\n\nWhere it applies: {apply}"
    symptom = parts.get("symptom") or title
    quoted = diagnostics_in(f"{parts.get('symptom', '')}\n{title}")
    fenced = {line.strip() for block in code_of(symptom) for line in block.split("\n")}
    fresh = [line for line in quoted if line not in fenced]
    if fresh:
        symptom = symptom + "\n\n```\n" + "\n".join(fresh) + "\n```"
    fields: dict[str, object] = {
        "title": title, "symptom": symptom, "cause": parts.get("cause", ""), "fix": fix, "verify": parts.get("verify", ""),
        "did_not_help": parts.get("did_not_help", ""),
        "category": category_of(f"{title} {symptom} {parts.get('cause', '')}"),
        "phases": [phase] if phase else [], "kernels": kernels_in(title),
    }  # fmt: skip
    return Draft("lesson", fields, evidence, origin, tuple(missing))
