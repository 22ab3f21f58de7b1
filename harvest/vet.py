"""Drafts to candidates fit to store, or refusals with a reason.

A draft is refused when it has no change to tell of, when it is too vague to be found by anybody, when it holds secrets
or personal data, when its text gives orders to a reader, or when its fix would harm whoever follows it. Home paths,
hosts and addresses are taken out and the rest is kept. Nothing is added to what the source says.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from harvest.draft import NOT_STATED, Case, Draft, Evidence, Origin
from kb.errors import RecordInvalid
from kb.memory import slug
from kb.records import Record, record_from_dict, texts_of
from kb.redact import instructions_in, redact_value
from kb.store import fingerprint
from kb.tokens import terms

SOFT = frozenset({"home-path", "host", "ip", "mac", "user"})
"""What is taken out while the rest stays; any other redaction means a secret stood there, and the draft is refused."""
MAX_FIELD_CHARS = 4_000
MAX_READ_CHARS = 20_000
MIN_SYMPTOM_TERMS = 5
MIN_FIX_TERMS = 1
MIN_TERMS = 8
_CUT = " … (cut; the source has the rest)"
_INVISIBLE = re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\u00ad\ufeff\U000e0000-\U000e007f]")
_PERSONAL: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("e-mail address", r"<redacted:e-mail>"),
        ("telephone number", r"(?<![\w.+-])(?:\(\d{2,4}\)[ .-]?\d{3,4}[ .-]\d{3,5}|\d{3}[-.]\d{3}[-.]\d{4})(?![\w.-]*\d)|(?<![\w.])\+\d{1,3}[ .-]?\d{2,5}[ .-]?\d{4,9}(?!\w)|(?i:\b(?:tel|phone|mobile|call me)\b\W{0,4}[\d+() .-]{7,20})"),
        ("bank account", r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b"),
        ("social security number", r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"),
        ("identity document", r"(?i)\b(?:passport|driving licen[cs]e|identity card|national id|ssn|social security)\b\W{0,6}(?:no\.?|number|n°|#)?\W{0,4}[A-Z0-9-]{6,16}"),
        ("date of birth", r"(?i)\b(?:date of birth|born(?: on)?|dob)\b\W{0,4}\d{1,4}[-/. ]\w{1,9}[-/. ]\d{2,4}"),
        ("postal address", r"(?i)\b\d{1,5}\s+(?:[A-Z][a-z]+\s+){1,3}(?:street|st\.|avenue|ave\.?|road|rd\.|lane|boulevard|blvd|drive)\b|\blives at\b|\bhome address\b"),
        ("health or pay", r"(?i)\b(?:diagnosed with|medical record|salary (?:is|of)|iban|credit card|cvv)\b"),
    )
)  # fmt: skip
_CARD = re.compile(r"(?<![\w.-])(?:\d{4}([ -]?)\d{4}\1\d{4}\1\d{1,7}|3[47]\d{2}[ -]?\d{6}[ -]?\d{5})(?![\w.-])")
_HARMFUL: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("pipes a download into a shell", r"\b(?:curl|wget|iwr|fetch)\b[^\n]{0,200}(?:\||&&|;)\s*(?:sudo\s+)?(?:ba|z|da)?(?:sh|python\d?|perl)\b|\$\((?:curl|wget)"),
        ("deletes or overwrites a disk", r"\brm\s+-\w*[rf]\w*\s+(?:--no-preserve-root\s+)?(?:/|~|\$HOME|\*)(?:\s|$|\*|/(?:\s|$|\*))|\bmkfs\b|\bdd\b[^\n]{0,80}\bof=/dev/|>\s*/dev/(?:sd|nvme)|:\(\)\s*\{|\bshred\b|\bformat c:"),
        ("opens a way in", r"authorized_keys|\bnc\s+-\w*e|\bncat\b|/dev/tcp/|reverse shell|\bchmod\s+(?:-R\s+)?[0-7]?777\s+/|\bvisudo\b|NOPASSWD|/etc/(?:passwd|sudoers|shadow)|\bsetuid\b|chmod\s+u\+s"),
        ("installs from an untrusted place", r"--trusted-host|--(?:extra-)?index-url\s+http://|--no-verify-ssl|\bpip3?\s+install\b[^\n]{0,80}(?:git\+|https?://)(?!\S*(?:github\.com/(?:Xilinx|amd|llvm|nod-ai|huggingface|pytorch)/|files\.pythonhosted\.org|download\.pytorch\.org))|\bnpm\s+(?:i|install)\b[^\n]{0,40}https?://"),
        ("switches protection off", r"\b(?:disable|turn off|switch off)\b.{0,30}\b(?:firewall|selinux|apparmor|secure boot|iommu|antivirus|signature (?:check|verification)|tls|ssl)|setenforce\s+0|GIT_SSL_NO_VERIFY|verify\s*=\s*False|--insecure\b|NODE_TLS_REJECT"),
        ("runs hidden code", r"\bbase64\s+(?:-d|--decode)|\beval\s*[(\"'$`]|\bexec\(|powershell\b[^\n]{0,40}-enc|frombase64string|\\x[0-9a-f]{2}(?:\\x[0-9a-f]{2}){7}"),
        ("defeats the gate instead of fixing the kernel", r"\b(?:set|raise|loosen|increase|change|bump|relax)\b.{0,40}\b(?:r?tol(?:erance)?|atol|rtol|threshold|gate)s?\b.{0,40}(?:\b1e\d{1,3}\b|\binf\b|\bnan\b|\b[1-9]\d{1,}(?:\.\d+)?\b|until (?:it|the gate) pass|so (?:that )?(?:it|everything|the gate) pass)|\b(?:r|a)tol\s*[=:]\s*(?:1e\+?[1-9]|inf\b|[1-9]\d+(?:\.\d+)?(?![\d.e-]))|\b(?:copy|return|write|load|use)\b.{0,40}\b(?:reference|golden|expected|oracle)\b.{0,30}\b(?:as|to|into|for|instead of)\b.{0,25}\b(?:the |npu )?(?:output|result)|(?<!never )(?<!not )(?<!don't )\b(?:skip|comment out|delete|remove|disable|bypass)\b.{0,30}\b(?:gate|verification|verify step|assert(?:ion)?s?|evaluator|phase 7|hash chain|ledger)\b|\b(?:edit|patch|change|overwrite)\b.{0,25}\b(?:oracle|reference|ledger|verdict)\b.{0,40}\b(?:match|agree|pass)|\breport (?:it )?as pass"),
        ("exposes data", r"\b(?:upload|post|send|paste|push)\b.{0,60}\b(?:\.env|credentials?|tokens?|secrets?|private key|ssh key|home directory|weights)\b.{0,60}\b(?:https?://|server|gist|pastebin|webhook|bucket)|\bscp\b[^\n]{0,80}@|\bcat\b[^\n]{0,60}(?:\.ssh|\.aws|\.netrc|\.env)"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Candidate:
    """A record ready to be stored, as one source tells it. `missing`: fields nobody stated. `key` names it for ever."""

    record: Record
    origin: Origin
    missing: tuple[str, ...] = ()
    redacted: tuple[str, ...] = ()
    case: Case | None = None

    @property
    def key(self) -> str:
        """The text and where it was found: the same candidate found again has the same key."""
        return f"{fingerprint(self.record)}@{self.record.provenance[0].evidence}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A draft that is not kept. `needs`: what would have to be filled in; empty when nothing would make it fit."""

    title: str
    evidence: str
    code: str
    reason: str
    needs: tuple[str, ...] = ()
    draft: Draft | None = None


def vet(draft: Draft, today: date) -> Candidate | Refusal:
    """`draft` as a candidate, or why not. `today` dates what has no date of its own."""
    title = _shown(str(draft.fields.get("title", "")))
    shown = _shown(draft.evidence.id)

    def refused(code: str, reason: str, needs: tuple[str, ...] = ()) -> Refusal:
        return Refusal(title, shown, code, reason, needs, draft if needs else None)

    raw = {name: _plain(_shortened(value)) for name, value in draft.fields.items()}
    said = "\n".join(_strings(raw)) + "\n" + _plain(draft.evidence.id)
    orders = instructions_in(said) or instructions_in(_INVISIBLE.sub(" ", said))
    if orders:
        return Refusal("(not shown)", shown if not instructions_in(shown) else "(not shown)", "instructions",
                       "its text gives orders to whoever reads it")  # fmt: skip
    removed: dict[str, int] = {}
    clean = {name: redact_value(value, removed) for name, value in raw.items()}
    evidence = str(redact_value(_plain(draft.evidence.id), removed))
    secrets = sorted(set(removed) - SOFT - {"e-mail"})
    if secrets:
        return Refusal("(not shown)", _shown(evidence), "secret",
                       f"it holds a secret ({', '.join(secrets)}); take it out of the source, change it, and harvest again")  # fmt: skip
    whole = "\n".join(_strings(clean)) + "\n" + evidence
    personal = [name for name, pattern in _PERSONAL if pattern.search(whole)]
    if personal or _has_card(whole):
        return Refusal(
            "(not shown)",
            "(not shown)",
            "personal",
            f"it holds personal data ({', '.join(personal or ['card number'])})",
        )
    harm = next((name for name, pattern in _HARMFUL if pattern.search(_advice(clean))), None)
    if harm is not None:
        return refused("harmful", f"its fix {harm}")
    if draft.kind == "lesson":
        if "fix" in draft.missing or not str(clean.get("fix", "")).strip():
            return refused("incomplete", "no change is recorded that made the failure go away", _needed(draft))
        vague = _vague(clean)
        if vague is not None:
            return refused("vague", vague)
    return _candidate(draft, clean, evidence, tuple(sorted(set(removed) & SOFT)), today, refused)


def _candidate(
    draft: Draft, clean: Mapping[str, Any], evidence: str, redacted: tuple[str, ...], today: date, refused: Any
) -> Candidate | Refusal:
    fields = {name: _cut(value) for name, value in clean.items() if value not in (None, "", [], {})}
    if draft.kind == "lesson":
        fields.setdefault("cause", NOT_STATED)
        fields["resolution"] = "workaround"
    provenance: dict[str, Any] = {"evidence": evidence, "date": draft.evidence.when or today}
    if draft.evidence.when is None:
        provenance["note"] = "date of the harvest; the source has none"
    data = {**fields, "kind": draft.kind, "status": "observed", "provenance": [provenance], "id": "x"}
    try:
        record = record_from_dict(data)
        record = record.model_copy(update={"id": identity(record)})
    except RecordInvalid as error:
        return refused("invalid", f"it does not make a record: {error}")
    return Candidate(record, draft.origin, draft.missing, redacted, draft.case)


def identity(record: Record) -> str:
    """An id made of what the record says: the same text has the same id in every home, in any order of harvests."""
    return f"{slug(record.title)[:60].strip('-')}-{fingerprint(record)[:8]}"


def checked_again(record: Record) -> bool:
    """Whether nothing in a finished record reads like orders; the last look before it is stored."""
    return not instructions_in(texts_of(record))


def _needed(draft: Draft) -> tuple[str, ...]:
    wanted = dict.fromkeys(("fix", *draft.missing))
    return tuple(wanted)


def _vague(fields: Mapping[str, Any]) -> str | None:
    symptom = set(terms(f"{fields.get('title', '')} {fields.get('symptom', '')} {fields.get('cause', '')}"))
    fix = set(terms(str(fields.get("fix", ""))))
    if len(symptom) < MIN_SYMPTOM_TERMS:
        return "too vague: nobody's failure would match so few words; give the diagnostic lines or the figures"
    if len(fix) < MIN_FIX_TERMS or len(symptom | fix) < MIN_TERMS:
        return "too vague: the fix says too little to act on"
    return None


def _advice(fields: Mapping[str, Any]) -> str:
    return "\n".join(
        str(fields.get(name, "")) for name in ("title", "fix", "verify", "cause", "symptom", "notes", "steps")
    )


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for key, item in value.items() for text in (*_strings(key), *_strings(item))]  # pyright: ignore
    if isinstance(value, list | tuple):
        return [text for item in value for text in _strings(item)]  # pyright: ignore
    return []


def _plain(value: Any) -> Any:
    """`value` with compatibility forms folded and invisible characters gone, so that nothing hides from the checks."""
    if isinstance(value, str):
        if value.isascii():
            return value
        visible = _INVISIBLE.sub("", value)
        folded = "".join(
            unicodedata.normalize("NFKC", c) if 0xFF00 <= ord(c) <= 0xFFEF or 0x1D400 <= ord(c) <= 0x1D7FF else c
            for c in visible
        )
        return folded
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}  # pyright: ignore
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]  # pyright: ignore
    return value


def _shortened(value: Any) -> Any:
    """What is looked at of a text: far more than is kept, and little enough for every check."""
    if isinstance(value, str) and len(value) > MAX_READ_CHARS:
        return value[:MAX_READ_CHARS] + _CUT
    return value


def _cut(value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_FIELD_CHARS:
        return value[: MAX_FIELD_CHARS - len(_CUT)].rsplit("\n", 1)[0] + _CUT
    return value


def _has_card(text: str) -> bool:
    for match in _CARD.finditer(text):
        digits = [int(c) for c in match[0] if c.isdigit()]
        if 13 <= len(digits) <= 19 and digits[0] in (3, 4, 5, 6) and len(set(digits)) > 1:
            doubled = [d if n % 2 == 0 else (2 * d - 9 if d > 4 else 2 * d) for n, d in enumerate(reversed(digits))]
            if sum(doubled) % 10 == 0:
                return True
    return False


def _shown(text: str) -> str:
    """`text` fit for a message: redacted, one line, short."""
    removed: dict[str, int] = {}
    return " ".join(str(redact_value(_plain(text), removed)).split())[:160]


__all__ = ["Candidate", "Evidence", "Refusal", "checked_again", "identity", "vet"]
