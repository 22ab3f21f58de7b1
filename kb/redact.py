"""What must not be stored is taken out before it is: secrets, home paths, hosts, addresses.

`redact` returns the text with `<redacted:kind>` marks and what was taken, so that the reply can say
so. `instructions_in` finds text that talks to a reading agent; such text is kept, flagged, and only
ever shown as a quotation.

    redact("token ghp_… in /home/ann/x").text == "token <redacted:github-token> in ~/x"
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text fit to store, and how often each kind of thing was taken out."""

    text: str
    removed: dict[str, int] = field(default_factory=dict[str, int])


def _c(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


_SECRETS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("private-key", _c(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----BEGIN )[\s\S]){0,20000}?(?:(?=-----BEGIN )|-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)")),
    ("putty-key", _c(r"PuTTY-User-Key-File-\d:[\s\S]{0,8000}?Private-MAC: \w+")),
    ("age-key", _c(r"AGE-SECRET-KEY-1[0-9A-Z]{40,70}")),
    ("aws-key", _c(r"\b(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ANVA|ABIA|ACCA)[A-Z0-9]{16}\b")),
    ("github-token", _c(r"\b(?:gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_[A-Za-z0-9_]{22,255})")),
    ("gitlab-token", _c(r"\bgl(?:pat|dt|rt|ptt|ft|soat|agent|cbt|imt|oas|ffct)-[\w.-]{20,300}")),
    ("anthropic-key", _c(r"\bsk-ant-[\w-]{20,200}")),
    ("openai-key", _c(r"\bsk-(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,200}")),
    ("huggingface-token", _c(r"\b(?:hf|api_org)_[A-Za-z0-9]{28,60}\b")),
    ("slack-token", _c(r"\bxox[abeoprs]-[\w-]{10,250}|\bxapp-\d-[\w-]{10,250}")),
    ("slack-webhook", _c(r"https://hooks\.slack\.com/(?:services|workflows)/[\w/+-]{20,100}")),
    ("discord-webhook", _c(r"https://(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks/\d+/[\w-]{30,120}")),
    ("discord-token", _c(r"\b[MNO][A-Za-z\d_-]{23,27}\.[\w-]{6}\.[\w-]{27,45}\b")),
    ("telegram-token", _c(r"\b\d{8,10}:AA[\w-]{32,36}\b")),
    ("google-key", _c(r"\bAIza[\w-]{35}\b")),
    ("google-oauth", _c(r"\bya29\.[\w-]{20,300}|\bGOCSPX-[\w-]{20,60}")),
    ("stripe-key", _c(r"\b(?:sk|rk|pk|whsec)_(?:live|test)_[A-Za-z0-9]{16,200}|\bwhsec_[A-Za-z0-9+/=]{24,100}")),
    ("twilio-key", _c(r"\b(?:SK|AC)[0-9a-f]{32}\b")),
    ("sendgrid-key", _c(r"\bSG\.[\w-]{16,32}\.[\w-]{32,64}\b")),
    ("mailgun-key", _c(r"\bkey-[0-9a-f]{32}\b")),
    ("npm-token", _c(r"\bnpm_[A-Za-z0-9]{36}\b")),
    ("pypi-token", _c(r"\bpypi-[\w-]{50,300}")),
    ("docker-token", _c(r"\bdckr_(?:pat|oat)_[\w-]{20,80}")),
    ("digitalocean-token", _c(r"\bdo[opr]_v1_[0-9a-f]{64}\b")),
    ("azure-key", _c(r"(?i)\b(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/=]{20,120}|[?&]sig=[A-Za-z0-9%+/=]{30,120}")),
    ("azure-secret", _c(r"\b[\w~.-]{3}8Q~[\w~.-]{31,34}")),
    ("databricks-token", _c(r"\bdapi[0-9a-f]{32}(?:-\d)?\b")),
    ("vault-token", _c(r"\bhv[sbr]\.[\w-]{24,300}")),
    ("shopify-token", _c(r"\bshp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}\b")),
    ("linear-key", _c(r"\blin_api_[A-Za-z0-9]{30,60}")),
    ("notion-token", _c(r"\b(?:secret_[A-Za-z0-9]{43}|ntn_[A-Za-z0-9]{40,60})\b")),
    ("grafana-token", _c(r"\bgl(?:sa|c)_[A-Za-z0-9_+/=]{32,300}")),
    ("replicate-token", _c(r"\br8_[A-Za-z0-9]{30,60}\b")),
    ("groq-key", _c(r"\bgsk_[A-Za-z0-9]{40,80}\b")),
    ("xai-key", _c(r"\bxai-[A-Za-z0-9]{40,100}\b")),
    ("wandb-key", _c(r"(?i)\bwandb[\w -]{0,20}[:= ]+[0-9a-f]{40}\b")),
    ("nvidia-key", _c(r"\bnvapi-[\w-]{40,100}")),
    ("tailscale-key", _c(r"\btskey-[\w-]{20,100}")),
    ("1password-token", _c(r"\bops_[A-Za-z0-9+/=_-]{50,2000}")),
    ("terraform-token", _c(r"\b\w{14}\.atlasv1\.[\w-]{50,100}")),
    ("square-token", _c(r"\bsq0[a-z]{3}-[\w-]{20,50}")),
    ("figma-token", _c(r"\bfigd_[\w-]{30,80}")),
    ("sentry-token", _c(r"\bsntry[su]_[\w+/=]{30,300}")),
    ("facebook-token", _c(r"\bEAA[A-Za-z0-9]{50,300}\b")),
    ("perplexity-key", _c(r"\bpplx-[A-Za-z0-9]{40,80}\b")),
    ("mapbox-token", _c(r"\b[ps]k\.eyJ[\w-]{20,300}\.[\w-]{20,80}")),
    ("ssh-public-key", _c(r"\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w+) AAAA[A-Za-z0-9+/=]{20,2000}(?: [^\s@]{1,64}@\S{1,64})?")),
    ("jwt", _c(r"\beyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]{8,2000}")),
    ("url-password", _c(r"(?i)\b([a-z][a-z0-9+.-]{1,20}://)[^\s/:@\"'<>]{0,120}:[^\s/@\"'<>]{1,200}@")),
    ("bearer-token", _c(r"(?i)\b(bearer|basic|token)\s+[A-Za-z0-9+/_.=~-]{20,2000}")),
    ("cookie", _c(r"(?i)\b((?:set-)?cookie:\s*)[^\n]{8,2000}")),
    ("header-token", _c(r"(?i)\b(x-[\w-]{0,40}(?:token|key|secret|auth)[\w-]{0,20}[\"']?\s*:\s*)[^\s\"']{8,2000}")),
    ("password", _c(r"(?i)\b((?:login|user(?:name)?)\s+\S{1,100}\s+password\s+)\S{3,400}")),
    ("password", _c(r"(?i)\b(mysql\w{0,12}\b[^\n]{0,80}\s-p)[^\s-]\S{3,100}")),
    (
        "password",
        _c(
            r"(?i)((?:\b|[\w-])(?:password|passwd|passphrase|pwd|secret|api[_-]?key|apikey|access[_-]?key|auth[_-]?token"
            r"|access[_-]?token|refresh[_-]?token|client[_-]?secret|private[_-]?key|secret[_-]?(?:access[_-]?)?key"
            r"|credential)s?[\"']?\s*(?:[:=]|\bis\b|=>)\s*)(?:\"[^\"\n]{4,400}\"|'[^'\n]{4,400}'|[^\s\"',;)]{4,400})"
        ),
    ),
    # An environment variable, or a long opaque value: `issue_token=True` and `num_tokens: 2048` are diagnostics.
    ("token", _c(r"(\b[A-Z][A-Z0-9_]*_TOKEN[\"']?\s*[:=]\s*[\"']?)(?=[^\s\"',;)]{0,400}\d)[^\s\"',;)]{8,2000}")),
    ("token", _c(r"(?i)(\b[\w-]{0,40}token[\"']?\s*[:=]\s*[\"']?)(?=[\w+/.~-]{0,60}\d)(?=[\w+/.~-]{0,60}[A-Za-z])[\w+/.~-]{20,2000}={0,2}")),
    ("password", _c(r"(?i)((?<![\w-])--(?:password|pass|token|api-key|secret)[= ])[^\s\"'`,;)]{4,400}")),
    ("password", _c(r"(?i)(\b(?:curl|wget|http)\b[^\n]{0,160}\s(?:-u|--user)[ =])[^\s:]{1,100}:\S{1,200}")),
    ("password", _c(r"(?i)(\b(?:docker|podman|helm|oras|az|npm)\s+login\b[^\n]{0,160}\s-p[ =]?)[^\s-]\S{2,200}")),
    # NAME=value in a shell or a log: both letters and digits, so no word, count or identifier.
    ("password", _c(r"(?<![\w%.-])((?:[A-Z0-9]+_)*(?:PASS|PASSWD|PW|TOKEN|SECRET)=)(?=\S*\d)(?=\S*[A-Za-z])[\w+/=.-]{6,400}")),
    ("password", _c(r"(?<![\w%.-])((?:token|passwd|pass|pw)=)(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{6,400}(?![\w(\[.])")),
)  # fmt: skip
_KEEP_PREFIX = frozenset({"url-password", "bearer-token", "cookie", "password", "token", "header-token"})
_INNOCENT_VALUE = re.compile(
    r"(?i)(?:none|null|nil|true|false|required|missing|empty|not|set|unset|include|omit|optional|\$\{?\w+\}?|%\w+%|<[^>\s]*>?"
    r"|\*+|x{3,}|\w{0,8}(?:\.{3}|…)|os\.environ\S*|\w*getenv\S*|[A-Za-z_][\w.]*\([^)]*)"
)
"""Values that keep no secret: words of a message, placeholders, code that fetches it."""
_PLAIN_WORD = re.compile(r"[a-z]+|[A-Z]{4,}(?:_[A-Z]+)*")
_IDENTIFIER = re.compile(r"[a-z]+(?:[_.-][a-z0-9]+)+|[a-z]+")

_HOME = re.compile(r"(?:/home/|/Users/|/var/home/|/export/home/)[^/\s:\"'<>|()\[\],;]+|(?<![\w.:])/root(?=/|\b)")
"""Not behind a colon, as in `-v ~/x:/root`: there it is a path inside a container."""
_OTHER_HOME = re.compile(
    r"(?<![\w/.~])~[a-z][\w-]{1,30}(?=/)|(?<![\w.:/])(?:/[\w.-]+){1,3}/(?:users|homes?)/[^/\s:\"'<>|()\[\],;]+"
)
"""Another account's home, and homes below a data folder."""
_WINDOWS_HOME = re.compile(
    r"(?i)\b[a-z]:[\\/]+(?:users|documents and settings)[\\/]+"
    r"(?:[^\\/\s:\"'<>|]+(?: [^\\/\s:\"'<>|]+){1,3}(?=[\\/])|[^\\/\s:\"'<>|]+)"
)
_EMAIL = re.compile(r"(?<![\w.@])(?!git@)[\w.+%-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}\.){1,5}[A-Za-z]{2,24}\b")
_PROMPT = re.compile(
    r"(?m)(?<![\w.])[a-z_][\w.-]{0,31}@(?!v?\d)[A-Za-z][\w.-]{1,62}(?=:[~/]|\s*[#$]\s|(?: [^\]\s]{1,60})?\][#$])"
)
_SHARE = re.compile(r"(?m)(?:^|(?<=[\s\"'=(`]))\\\\[A-Za-z][\w.-]{2,62}(?=\\[\w$])")
_IPV4 = re.compile(r"(?<![\w.])(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.])")
_IPV6 = re.compile(
    r"(?i)(?<![\w:.])(?:[0-9a-f]{1,4}:){5,7}[0-9a-f]{1,4}(?![\w:])|\bfe80::[0-9a-f:]+"
    r"|(?<![\w:.])(?=[0-9a-f:]{0,40}::)(?:[23][0-9a-f]{3}|f[cd][0-9a-f]{2}):(?:[0-9a-f]{0,4}:){1,6}[0-9a-f]{0,4}(?![\w:])"
)
_MAC = re.compile(r"(?i)(?<![\w:])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![\w:])")
_HOST = re.compile(
    r"(?i)(?<![\w.-])(?:[a-z0-9][a-z0-9-]{0,62}(?:\.[a-z0-9-]{1,63}){0,4}\.(?:lan|intranet|corp|home\.arpa|localdomain)"
    r"|(?!(?:self|threading|torch|mlir|module|node|this|cls|ctx|np|tf)\.)[a-z0-9][a-z0-9-]{0,62}\.local"
    # `.internal` is also a namespace and Docker's own name: a host of that kind has a number or a dash.
    r"|(?=[a-z0-9.]{0,80}[0-9-])[a-z0-9][a-z0-9-]{0,62}(?:\.[a-z0-9-]{1,63}){0,4}\.internal)(?![\w(=-]|\.\w)"
)
_NAMED_HOST = re.compile(
    r"(?i)(\bhost(?:name)?\s*[:=]?\s+)(?!x86|i[3-6]86|arm|aarch|amd64|linux|npu\d?(?![\w-])|v?\d)(?=[\w.-]*\d)[a-z][\w-]*(?:\.[\w-]+)*\b(?![(=])"
    r"|(\bssh://(?:[\w.-]+@)?)(?!github\.com|gitlab\.com|bitbucket\.org|codeberg\.org)[\w.-]+"
    r"|((?<=[a-z])://)(?!host\.docker\.internal)[\w-]+(?:\.[\w-]+)*\.(?:internal|corp|local|lan|intranet)\b"
)
"""A machine named as such: after `host`, in an SSH address, in the address of an inner network."""
_USER_AT = re.compile(r"(?<![\w.])[a-z_][\w.-]{0,31}(?=@<redacted:)")
_SYSLOG_HOST = re.compile(r"(?m)^(\s*[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d )[\w.-]+(?= [\w./-]+(?:\[\d+\])?:)")
_LOOPBACK = re.compile(r"127\.\d+\.\d+\.\d+|0\.0\.0\.0|255\.255\.255\.\d+")
_VERSION_BEFORE = re.compile(
    r"(?i)(?:version|ver|v|release|driver|xrt|firmware|fw|build|[=<>~])[\s:\"'(=]*(?:(?:here|is|was|to|from)\s+)?$"
)
_ADDRESS_BEFORE = re.compile(
    r"(?i)(?:://|@|\b(?:host|ip|addr|address|ssh|ping|peer|server|client|inet|listening on|connect(?:ed|ing)? to)[\s:=\"'(\[]+)$"
)


def redact(text: str) -> Redacted:
    """`text` without secrets, home paths, e-mail addresses and hosts. Idempotent."""
    removed: Counter[str] = Counter()
    for _ in range(8):  # what is taken out may uncover a word boundary, and so the next thing
        before, text = text, _pass(text, removed)
        if text == before:
            break
    return Redacted(text, dict(removed))


def redact_value(value: Any, removed: dict[str, int], longest: int | None = None) -> Any:
    """`value` with every text in it redacted, mapping keys too; what was taken out is added to `removed`.

    A text of more than `longest` characters is left as it is: only for callers that refuse it afterwards.
    """
    if isinstance(value, str):
        if longest is not None and len(value) > longest:
            return value
        result = redact(value)
        for kind, count in result.removed.items():
            removed[kind] = removed.get(kind, 0) + count
        return result.text
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        return {redact_value(key, removed, longest): redact_value(item, removed, longest) for key, item in pairs}
    if isinstance(value, list | tuple):
        return [redact_value(item, removed, longest) for item in cast("Sequence[Any]", value)]
    return value


def _pass(text: str, removed: Counter[str]) -> str:
    for kind, pattern in _SECRETS:
        if kind in _KEEP_PREFIX:
            text = pattern.sub(lambda m, kind=kind: _after_prefix(m, kind, removed), text)
        else:
            text = pattern.sub(lambda _m, kind=kind: _mark(kind, removed), text)

    def home(_match: re.Match[str]) -> str:
        removed["home-path"] += 1
        return "~"

    text = _WINDOWS_HOME.sub(home, text)
    text = _HOME.sub(home, text)
    text = _OTHER_HOME.sub(home, text)
    text = _EMAIL.sub(lambda _m: _mark("e-mail", removed), text)
    text = _PROMPT.sub(lambda _m: _mark("host", removed), text)
    text = _SHARE.sub(lambda _m: "\\\\" + _mark("host", removed), text)
    text = _NAMED_HOST.sub(lambda m: (m[1] or m[2] or m[3]) + _mark("host", removed), text)
    text = _HOST.sub(lambda _m: _mark("host", removed), text)
    text = _SYSLOG_HOST.sub(lambda m: m[1] + _mark("host", removed), text)
    text = _MAC.sub(lambda _m: _mark("mac", removed), text)
    text = _IPV6.sub(lambda _m: _mark("ip", removed), text)
    text = _IPV4.sub(lambda m: _ipv4(m, removed), text)
    return _USER_AT.sub(lambda _m: _mark("user", removed), text)


def _mark(kind: str, removed: Counter[str]) -> str:
    removed[kind] += 1
    return f"<redacted:{kind}>"


def _after_prefix(match: re.Match[str], kind: str, removed: Counter[str]) -> str:
    prefix = match[1]
    value = match[0][len(prefix) :]
    if "<redacted:" in value or _is_innocent(kind, prefix, value):
        return match[0]
    tail = "@" if kind == "url-password" else ""
    space = " " if kind == "bearer-token" else ""
    return f"{prefix}{space}{_mark(kind, removed)}{tail}"


def _is_innocent(kind: str, prefix: str, value: str) -> bool:
    bare = value.strip().strip("\"'`.,)]}")
    if kind == "bearer-token":
        return _IDENTIFIER.fullmatch(bare) is not None
    if kind in ("password", "token", "header-token"):
        said = prefix.rstrip().lower().endswith("is") or "--" in prefix  # "the password is wrong", "--token TOKEN"
        return (
            not bare
            or _INNOCENT_VALUE.fullmatch(bare) is not None
            or (said and _PLAIN_WORD.fullmatch(bare) is not None)
        )
    return False


def _ipv4(match: re.Match[str], removed: Counter[str]) -> str:
    """Four-part version numbers look like addresses: 2.21.75.1 after 'version' stays."""
    before = match.string[max(0, match.start() - 24) : match.start()]
    if _LOOPBACK.fullmatch(match[0]):
        return match[0]
    if _ADDRESS_BEFORE.search(before) or re.match(r":\d{2,5}\b", match.string[match.end() : match.end() + 7]):
        return _mark("ip", removed)
    if _VERSION_BEFORE.search(before):
        return match[0]
    first = int(match[0].split(".")[0])
    private = re.match(
        r"10\.|192\.168\.|172\.(?:1[6-9]|2\d|3[01])\.|169\.254\.|100\.(?:6[4-9]|[7-9]\d|1[01]\d|12[0-7])\.", match[0]
    )
    if not private and (first < 20 or 30 <= first <= 32):
        return match[0]  # driver and package versions (1.7.1.14, 2.18.0.0, 32.0.203.240) are far likelier
    return _mark("ip", removed)


_INSTRUCTION = re.compile(
    r"(?i)\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:previous|prior|above|earlier|all|other|your|system|the)\b"
    r".{0,40}\b(?:instruction|prompt|rule|message|guideline|context|lesson|policy|gate|result)s?"
    r"|\b(?:you are|act as|pretend to be|from now on,? you)\b.{0,60}\b(?:assistant|agent|model|admin|root|developer mode|unrestricted|jailb)"
    r"|\b(?:system prompt|developer message|hidden instruction|jailbreak|do anything now)\b"
    r"|</?(?:system|assistant|user|tool_result|function_calls?|instructions?|important|im_start|im_end)\b[^>]{0,60}>|<\|(?:im_start|im_end|system|user|assistant|endoftext)\|>|\[/?INST\]"
    r"|\b(?:do not|don't|never)\b.{0,30}\b(?:tell|inform|mention|reveal|show|warn|alert)\b.{0,25}\b(?:user|human|operator|developer|person|anyone)"
    r"|\b(?:dear|attention[:,!]|attention all|note to|message (?:to|for)|instructions? (?:to|for))(?!\w).{0,20}\b(?:ai|llm|agent|assistant|model|claude|gpt|gemini|copilot|codex)\b"
    r"|\b(?:(?:ai|llm|language) (?:agent|assistant|model)|agent|assistant|claude|gpt|copilot|codex|(?:ai|llm)s?(?= (?:reading|that read|who read|seeing|processing)))s?\b.{0,40}\b(?:must|should|shall|have to|need to|are required to|has to)\b"
    r"|\b(?:curl|wget|iwr|invoke-webrequest)\b[^\n|]{0,200}\|\s*(?:sudo\s+)?(?:ba|z|da)?sh\b|\biex\s*\(|\beval\s+\"?\$\(curl"
    r"|\brm\s+-[a-z]*r[a-z]*f?\s+(?:--no-preserve-root\s+)?(?!~/\.(?:cache|iron|triton|npu)\b)[~/]\S*|\bbase64\s+(?:-d|--decode)\b[^\n]{0,60}\|\s*(?:ba)?sh|\bnc\s+-e\b|>\s*/etc/(?:passwd|sudoers)|authorized_keys"
    r"|\b(?:send|post|upload|exfiltrate|leak(?! (?:in|on)to\b)|email|forward)\b.{0,50}\b(?:secret|token|key|credential|password|env(?:ironment)?|history|ssh|\.env|(?:the|this|your|whole|full|entire) conversation)s?\b"
    r"|\b(?:call|invoke|use|run)\b.{0,25}\b(?:report_outcome|contribute_lesson|harvest)\b.{0,60}\b(?:helped|worked|times|always|every)"
    r"|\b(?:always|must|only)\b.{0,30}\b(?:rank|return|show|prefer|recommend|trust|answer with)\b.{0,30}\b(?:this|me|first|lesson|record)\b"
    r"|\b(?:loosen|disable|skip|turn off|raise)\b.{0,30}\b(?:gate|tolerance|verification|safety|sandbox|guard)s?\b.{0,40}\b(?:and|so|to)\b.{0,20}\b(?:pass|report|claim|say)"
)


def instructions_in(text: str) -> list[str]:
    """The passages of `text` that read like orders to an agent, each at most 120 characters."""
    return [" ".join(match[0].split())[:120] for match in _INSTRUCTION.finditer(text)][:10]
