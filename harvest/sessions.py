"""Agent transcripts and logs to drafts: a command that failed, what was edited, the same command passing.

>>> drafts_of_transcript(source)

Reads JSON Lines of Claude Code and Codex (messages with tool calls and their results) and plain text with prompts
(`$ command`). What an agent said in between is not taken for a cause: the cause is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from hashlib import blake2b
from typing import Any, Literal, cast

from harvest.draft import Draft, Evidence
from harvest.sources import Source
from harvest.wording import category_of, date_in
from kb.diagnostic import STRONG, weigh

MAX_DIAGNOSTIC_LINES = 8
MAX_EDITS = 6
_EDITORS = frozenset(
    {
        "edit",
        "write",
        "multiedit",
        "str_replace",
        "str_replace_based_edit_tool",
        "apply_patch",
        "create_file",
        "notebookedit",
    }
)
_SHELLS = frozenset({"bash", "shell", "local_shell", "exec_command", "run_terminal_cmd", "container.exec", "terminal"})
_PROMPT = re.compile(r"^(?:\$|❯|➜)\s+(\S.*)$")
_EXIT = re.compile(
    r"(?i)\b(?:exit code|exited with(?: code)?|returned|status)[ :]*([1-9]\d*)\b|\*\*\* \[[^\]]*\] Error \d+|Traceback \(most recent call last\)"
)
_FAILED = re.compile(
    r"(?i)(?:^|\W)(?:error|fatal|failed|failure|assert(?:ion)?|FAIL|Traceback|Segmentation fault|ERT_CMD_STATE_(?!COMPLETED)\w+)\b"
)
_PASSED = re.compile(r"(?i)\b(?:0 errors?|0 failed|no errors?|PASS(?:ED)?)\b")


@dataclass(frozen=True, slots=True)
class _Act:
    """One thing done: a command with its output, or an edit."""

    kind: Literal["command", "edit"]
    what: str
    output: str = ""
    failed: bool = False
    when: date | None = None


def drafts_of_transcript(source: Source) -> list[Draft]:
    """A draft for every command that failed, was followed by edits, and then passed."""
    acts = list(_json_acts(source.text)) if source.text.lstrip().startswith("{") else list(_text_acts(source.text))
    drafts: list[Draft] = []
    for position, act in enumerate(acts):
        if act.kind != "command" or not act.failed:
            continue
        edits: list[str] = []
        for later in acts[position + 1 :]:
            if later.kind == "edit":
                edits.append(later.what)
            elif _same_command(later.what, act.what):
                if not later.failed and edits:
                    drafts.append(_lesson(source, act, later, edits))
                break
            elif later.failed is False and _changes_something(later.what):
                edits.append(f"`{later.what[:200]}`")
    return drafts


def drafts_of_log(source: Source) -> list[Draft]:
    """A log by itself tells of a failure and of no change: a draft that lacks cause and fix, to be filled in."""
    lines = _diagnostics(source.text)
    if not lines or not (_FAILED.search("\n".join(lines))):
        return []
    fields = {"title": lines[0][:150], "symptom": "```\n" + "\n".join(lines) + "\n```", "cause": "", "fix": "",
              "category": category_of(" ".join(lines))}  # fmt: skip
    return [
        Draft("lesson", fields, Evidence(f"log:{source.label}"[:390], date_in(source.text)), "log", ("cause", "fix"))
    ]


def _lesson(source: Source, failing: _Act, after: _Act, edits: list[str]) -> Draft:
    lines = _diagnostics(failing.output)
    title = lines[0][:150] if lines else f"{failing.what[:100]} failed"
    fields = {
        "title": title, "symptom": f"`{failing.what[:200]}` failed.\n\n```\n" + "\n".join(lines) + "\n```", "cause": "",
        "fix": "\n".join(f"{n}. {edit}" for n, edit in enumerate(dict.fromkeys(edits[-MAX_EDITS:]), 1)),
        "verify": f"`{after.what[:200]}` then passes.", "category": category_of(" ".join(lines)),
    }  # fmt: skip
    mark = blake2b(f"{failing.what}\n{failing.output}\n{edits}".encode(), digest_size=6).hexdigest()
    return Draft(
        "lesson",
        fields,
        Evidence(f"transcript:{source.label}@{mark}"[:390], failing.when or date_in(source.text)),
        "transcript",
        ("cause",),
    )


def _diagnostics(output: str) -> list[str]:
    strong = [line.text.strip() for line in weigh(output) if line.weight >= STRONG]
    return list(dict.fromkeys(line[:400] for line in strong if line))[:MAX_DIAGNOSTIC_LINES]


def _same_command(a: str, b: str) -> bool:
    return " ".join(a.split()) == " ".join(b.split())


def _changes_something(command: str) -> bool:
    return (
        re.match(
            r"(?:sed -i|export \w+=|rm -rf? \S*(?:cache|build|air_project)|make clean|git apply|patch )",
            command.strip(),
        )
        is not None
    )


def _json_acts(text: str) -> Iterator[_Act]:
    calls: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for raw in text.split("\n"):
        try:
            line: Any = json.loads(raw)
        except (ValueError, RecursionError):
            continue
        if not isinstance(line, dict):
            continue
        fields = cast("dict[str, Any]", line)
        when = date_in(str(fields.get("timestamp", "")))
        for part in _parts(fields):
            kind = part.get("type")
            if kind in ("tool_use", "function_call", "local_shell_call", "custom_tool_call"):
                name = str(part.get("name") or "shell").lower()
                calls[str(part.get("id") or part.get("call_id") or "")] = (name, _arguments(part))
                if name in _EDITORS:
                    yield _Act("edit", _edit(_arguments(part)), when=when)
            elif kind in ("tool_result", "function_call_output", "custom_tool_call_output"):
                name, given = calls.get(str(part.get("tool_use_id") or part.get("call_id") or ""), ("", {}))
                if name in _SHELLS:
                    output = _text(part.get("content") if "content" in part else part.get("output"))
                    bad = bool(part.get("is_error")) or _went_wrong(output)
                    yield _Act("command", _command(given), output, bad, when)


def _parts(line: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    message = line.get("message") or line.get("payload") or line.get("item") or line
    if not isinstance(message, dict):
        return
    fields = cast("Mapping[str, Any]", message)
    content = fields.get("content")
    if isinstance(content, list):
        for part in cast("list[Any]", content):
            if isinstance(part, dict):
                yield cast("Mapping[str, Any]", part)
    if fields.get("type"):
        yield fields


def _arguments(part: Mapping[str, Any]) -> Mapping[str, Any]:
    given: Any = part.get("input") or part.get("arguments") or part.get("action") or {}
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            return {"patch": given}
    return cast("Mapping[str, Any]", given) if isinstance(given, dict) else {}


def _command(given: Mapping[str, Any]) -> str:
    command = given.get("command") or given.get("cmd") or ""
    if isinstance(command, list):
        words = [str(word) for word in cast("list[Any]", command)]
        command = words[-1] if words[:1] and words[0].endswith("sh") else " ".join(words)
    return str(command).strip()


def _edit(given: Mapping[str, Any]) -> str:
    path = str(given.get("file_path") or given.get("path") or "")
    patch = str(given.get("patch") or given.get("diff") or "")
    if not patch:
        old = str(given.get("old_string") or given.get("old_str") or "")
        new = str(
            given.get("new_string") or given.get("new_str") or given.get("content") or given.get("file_text") or ""
        )
        patch = "".join(f"-{line}\n" for line in old.split("\n")[:8] if line) + "".join(
            f"+{line}\n" for line in new.split("\n")[:8] if line
        )
    name = path.replace("\\", "/").rsplit("/", 1)[-1]
    return f"Edit {name or 'a file'}:\n```\n{patch.strip()[:900]}\n```"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_text(item) for item in cast("list[Any]", value))
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return _text(fields.get("text") or fields.get("output") or fields.get("content") or "")
    return ""


def _text_acts(text: str) -> Iterator[_Act]:
    """Commands behind prompts with what they printed; unified diffs in between are edits."""
    command: str | None = None
    output: list[str] = []
    for line in [*text.split("\n"), "$ end"]:
        prompt = _PROMPT.match(line)
        if prompt is None:
            output.append(line)
            continue
        if command is not None:
            said = "\n".join(output).strip()
            if re.match(r"(?:git diff|diff |vi |vim |nano |edit |apply)", command) or re.search(r"(?m)^@@ .* @@", said):
                yield _Act("edit", f"Edit:\n```\n{(said or command)[:900]}\n```")
            else:
                yield _Act("command", command, said, _went_wrong(said))
        command, output = prompt[1].strip(), []


def _went_wrong(output: str) -> bool:
    return bool(_EXIT.search(output)) or bool(_FAILED.search(output) and not _PASSED.search(output))
