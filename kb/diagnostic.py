"""A raw paste to weighted lines: which of its lines say what went wrong.

Every line keeps some weight: dropping lines by keyword was measured to make retrieval worse.
Tool-aware patterns raise compiler errors and notes, tracebacks, XRT/ERT states and kernel log
lines; make, pip, CMake, progress and download lines sink. Works on pastes of any size in bounded
time: of very long ones it reads the head, the tail, and every line that looks like an error.

    lines = weigh("make: entering\\nerror: 'aie.tile' op allocated buffers exceeded …")
    lines[0].weight < lines[1].weight
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_PASTE_CHARS = 2_000_000
"""Of a longer paste only the first and last quarter of this are read in full; the middle is scanned for errors."""
MAX_LINES = 1500
"""Lines weighed after the scan; the rest are the dullest ones."""
MAX_LINE_CHARS = 600

STRONG, TELLING, PLAIN, FAINT, NOISE = 4.0, 2.5, 1.0, 0.35, 0.08

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufeff]")

_STRONG = re.compile(
    r"(?i:\b(?:fatal )?error:(?! 0\b))|\berror\[|^\s*\w*(?:Error|Exception|Interrupt)\b:?|\b\w+(?:Error|Exception):\s"
    r"|ERT_CMD_STATE_(?!COMPLETED|NEW|QUEUED)|\berr(?:or)?[ =:]+-\d+|\bret(?:=|:| )-?\d+\b.*fail|\*ERROR\*"
    r"|amdxdna[ :].*(?i:fail|error|timeout|timed out|denied|unable|not |invalid|abort|can't|reject)"
    r"|(?i:segmentation fault|core dumped|stack dump|assertion .*failed|undefined reference|undefined symbol"
    r"|no such file|cannot open shared object|not found\b|permission denied|out of memory|oom-kill|killed\b"
    r"|unable to|couldn'?t |could not|failed to|cannot |can not |can't |unsupported|not supported|incompatible|invalid"
    r"|exceed|exhaust|overflow|timed? ?out|timeout|deadlock|hang|stuck|mismatch|illegal|unresolved|refused|denied"
    r"|\bnan\b|\binf\b|all zeros|\bfail(?:ed|ure|s)?\b|not available|no space|panic|oops|bug:)"
)
_TELLING = re.compile(
    r"(?i:\bnote:|\bremark:|see current operation|\bwarn(?:ing)?\b|\bexpected\b|\bgot\b|required?|\bwrong\b|\bslow"
    r"|tok(?:en)?s?/s|max_(?:abs|rel)|cosine|corr(?:elation)?\b|rtol|atol|\bdiff\b|0 devices|fallback|falling back|ignored"
    r"|deprecated|missing|lost|stale|garbage|zero|instead of|skipp|nothing)"
)
_NOISE = re.compile(
    r"^\s*(?:make(?:\[\d+\])?: (?:Entering|Leaving|Nothing)|make(?:\[\d+\])?: \*\*\*|mkdir -p|cd /|source /|export \w+="
    r"|Collecting |Downloading |Requirement already|Using cached|Installing collected|Successfully installed|Obtaining "
    r"|Looking in |Preparing metadata|Building wheel|Created wheel|Stored in|Attempting uninstall|Found existing|Uninstalling"
    r"|-- (?!.*(?:NOT|not|fail|Could|error))|\[ *\d+%\]|\[ *\d+/ *\d+\]|\[\d+/\d+\]|Loading checkpoint shards|##\[(?:end)?group\]"
    r"|\d+ warnings? generated|.{0,60}\[-W[\w-]+\]$|shell: |env:$|  (?:PEANO_INSTALL_DIR|XILINX_XRT|PYTHON\w*|PATH|LD_LIBRARY_PATH): "
    r"|\[aircc\] (?:pass \d+/\d+|generated|linking|Compiling)|Using Peano compiler from|XRT build version|\[(?:config|weights|warmup)\] "
    r"|INFO:|\[INFO\]|DEBUG:|Reading package lists|Building dependency tree|Get:\d+ |Hit:\d+ |Selecting previously|Unpacking |Setting up "
    r"|\s*warnings\.warn\(|.*(?:FutureWarning|DeprecationWarning|UserWarning): |prompt: |Warning: the following|[=\-*_#~\s|+.]{3,}$"
    r"|Traceback \(most recent call last\)|During handling of the above|The above exception was"
    r"|  \S+\.o\s+[\d.]+ s$|clang(?:\+\+)?: error: (?:ld|linker) command failed|ninja: build stopped|make(?:\[\d+\])?: \[|\w+file:\d+: recipe for)"
)
_FRAME = re.compile(
    r'^\s*(?:File "[^"]+", line \d+|at [\w.$<>]+\(|#\d+ 0x|#\d+\s+\S+ |\S+\.\w+:\d+(?::\d+)?: note: |>>> )'
)
_GENERIC = re.compile(
    r"(?i)^\s*(?:error: command .* failed|subprocess-exited-with-error|.*CalledProcessError.*|.*returned non-zero exit status.*"
    r"|make.*Error \d+|collect2: error.*|error: process completed with exit code.*|FAILED:? .*|aircc compilation failed:?"
    r"|npu compilation failed.*|process exited.*|error: could not build .*|clang.*frontend command failed.*)\s*$"
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a paste: its cleaned text and how much it tells (0.08 noise … 4 diagnostic)."""

    text: str
    weight: float


def clean(paste: str) -> str:
    """`paste` without colour codes, control characters and lone surrogates; `\\r` progress kept as lines."""
    paste = paste.replace("\r\n", "\n").replace("\r", "\n")
    if "\x1b" in paste:
        paste = _ANSI.sub("", paste)
    return _CONTROL.sub("", paste)


def weigh(paste: str) -> list[Line]:
    """The distinct lines of `paste` in order, each with its weight.

    A short text without line structure (a sentence describing the symptom) comes back whole and plain.
    """
    raw = [line.rstrip() for line in clean(_bounded(paste)).split("\n")]
    raw = [line for line in raw if line.strip()]
    if len(raw) > MAX_LINES:
        raw = _thin(raw)
    prose = _is_prose(raw)
    seen: dict[str, None] = {}
    lines: list[Line] = []
    for text in raw:
        text = text[:MAX_LINE_CHARS]
        key = re.sub(r"\d+", "0", text)
        if key in seen and not prose:
            continue
        seen[key] = None
        lines.append(Line(text.strip(), PLAIN if prose else line_weight(text)))
    return lines


def line_weight(text: str) -> float:
    """How much one line of a log tells of a failure."""
    if _GENERIC.match(text):
        return FAINT
    if _NOISE.match(text):
        return NOISE
    if _STRONG.search(text):
        return STRONG
    if _FRAME.match(text):
        return FAINT
    if _TELLING.search(text):
        return TELLING
    return PLAIN


def strongest(lines: list[Line], limit: int = 6) -> list[str]:
    """The most telling lines, in their order in the paste."""
    top = sorted(range(len(lines)), key=lambda i: (-lines[i].weight, i))[:limit]
    return [lines[i].text for i in sorted(top)]


def _is_prose(raw: list[str]) -> bool:
    """A description in sentences, not a log: few lines, mostly plain words."""
    if not raw or len(raw) > 12:
        return False
    text = " ".join(raw)
    words = text.split()
    plain = sum(word.strip(".,;:()\"'?!").isalpha() for word in words)
    loggy = sum(bool(_NOISE.match(line) or _FRAME.match(line) or re.match(r"\s*\S+:\d+", line)) for line in raw)
    return loggy == 0 and len(words) >= 4 and plain >= 0.72 * len(words)


def _bounded(paste: str) -> str:
    if len(paste) <= MAX_PASTE_CHARS:
        return paste
    quarter = MAX_PASTE_CHARS // 4
    middle = paste[quarter:-quarter]
    picked: list[str] = []
    # One error every few kilobytes is enough of the middle. Plain `find` is ten times quicker than a pattern.
    after = {word: middle.find(word) for word in _ALARMS}
    at = 0
    while len(picked) < 400:
        for word, found in after.items():
            if 0 <= found < at:
                after[word] = middle.find(word, at)
        first = min((found for found in after.values() if found >= 0), default=-1)
        if first < 0:
            break
        start = max(middle.rfind("\n", 0, first) + 1, first - MAX_LINE_CHARS)
        end = middle.find("\n", first)
        end = first + MAX_LINE_CHARS if end < 0 else min(end, first + MAX_LINE_CHARS)
        picked.append(middle[start:end])
        at = end + 2000
    return "\n".join([paste[:quarter], *picked, paste[-quarter:]])


_ALARMS = ("error", "Error", "ERROR", "fail", "Fail", "FAIL", "ERT_CMD", "xceed", "XCEED", "imed out", "xception")
"""What marks a line of the middle of a very long paste as worth reading."""


def _thin(raw: list[str]) -> list[str]:
    """The most telling MAX_LINES lines, order kept; head and tail first among equals."""
    seen: set[str] = set()
    distinct: list[tuple[float, int, str]] = []
    for i, text in enumerate(raw):
        key = re.sub(r"\d+", "0", text[:120])
        if key in seen:
            continue
        seen.add(key)
        distinct.append((-line_weight(text[:MAX_LINE_CHARS]), min(i, len(raw) - i), text))
        if len(seen) > 60_000:
            break
    order = {id(item): i for i, item in enumerate(distinct)}
    kept = sorted(distinct, key=lambda item: item[:2])[:MAX_LINES]
    kept.sort(key=lambda item: order[id(item)])
    return [text for _, _, text in kept]
