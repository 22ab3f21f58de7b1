"""What is new here, as a folder for a pull request; and what others shared, taken in.

>>> export_new(memory, Path("out")).written
>>> import_shared(memory, Path("team.git"))

The folder holds one record file each, as the corpus has them, and a README that lists them with their sources. It may be
a checkout already: nothing in it is overwritten. A git directory without a working tree is read through `git archive`;
what comes in is checked, redacted and merged as any import (kb.exchange).
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from kb.errors import ImportRefused
from kb.exchange import ImportReport, import_from
from kb.files import dump_record
from kb.memory import Memory
from kb.records import Lesson, Record
from kb.redact import instructions_in, redact
from kb.store import Stored

EXPORTED = "exported"
ARCHIVE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What was written: ids, and those left out with the reason."""

    target: str
    written: tuple[str, ...]
    left_out: tuple[tuple[str, str], ...]


def export_new(memory: Memory, target: Path) -> Shared:
    """Write the user records that were added or changed since the last such export.

    Raises:
        ImportRefused: `target` is a file, or holds another text under a record's name.
    """
    store = memory._writable()  # pyright: ignore[reportPrivateUsage]
    if target.exists() and not target.is_dir():
        raise ImportRefused(f"{target} is a file; give a new folder or a checkout")
    since = max((int(event.data.get("seq", 0)) for event in store.events() if event.type == EXPORTED), default=0)
    newest = store.last_seq()
    chosen: list[Stored] = []
    left: list[tuple[str, str]] = []
    for stored in store.changed_since(since):
        why = _unfit(stored)
        if why:
            left.append((stored.record.id, why))
        else:
            chosen.append(stored)
    files = {f"{s.record.kind}s/{s.record.id}.md": dump_record(s.record) for s in chosen}
    clash = [
        n for n, text in files.items() if (target / n).exists() and (target / n).read_text(encoding="utf-8") != text
    ]
    if clash:
        raise ImportRefused(
            f"{target / clash[0]} is there with another text; nothing was written: move it, or take a new folder"
        )
    for name, text in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
    if chosen and not (target / "README.md").exists():
        (target / "README.md").write_text(_summary(chosen, left), encoding="utf-8", newline="\n")
    if chosen:
        store.note(EXPORTED, "export", {"seq": newest, "records": [s.record.id for s in chosen], "to": target.name})
    return Shared(str(target), tuple(s.record.id for s in chosen), tuple(left))


def import_shared(memory: Memory, source: Path, reviewed: bool = False) -> ImportReport:
    """Take in a folder, an archive, a checkout, or a git directory without a working tree.

    Raises:
        ImportRefused: nothing was written.
    """
    if not _is_git_directory(source):
        return import_from(memory, source, reviewed)
    with tempfile.TemporaryDirectory(prefix="herdbook-") as folder:
        archive = Path(folder) / f"{source.stem or 'git'}.tar"
        command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", f"--git-dir={source}", "archive",
                   "--format=tar", f"--output={archive}", "HEAD"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ARCHIVE_TIMEOUT_S, check=False)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ImportRefused(f"{source} cannot be read with git ({error}); clone it and give the checkout") from None
        if done.returncode != 0:
            raise ImportRefused(f"{source} cannot be read with git: {done.stderr.strip()[:200]}; give a checkout")
        return import_from(memory, archive, reviewed)


def _is_git_directory(source: Path) -> bool:
    """A bare repository, or the .git folder of a checkout."""
    return (source / "HEAD").is_file() and (source / "objects").is_dir() and (source / "refs").is_dir()


def _unfit(stored: Stored) -> str:
    """Why a record is not for a pull request; empty when it is."""
    if any(flag.startswith("instruction") for flag in stored.flags):
        return "its text reads like orders to an agent"
    text = dump_record(stored.record)
    removed = redact(text).removed
    if removed:
        return f"it holds what must not be shared: {', '.join(removed)}"
    return "its text reads like orders to an agent" if instructions_in(text) else ""


def _summary(chosen: list[Stored], left: list[tuple[str, str]]) -> str:
    lines = [
        "# Records from a deployment",
        "",
        f"{len(chosen)} records, by `herdbook export --new`. Review each: one cause, own words, sources somebody opened.",
        "",
    ]
    for stored in chosen:
        lines.append(f"- {_line(stored.record)} (seen {stored.seen} times)")
    if left:
        lines += ["", "Left out:", "", *(f"- {name}: {why}" for name, why in left)]
    return "\n".join(lines) + "\n"


def _line(record: Record) -> str:
    source = record.provenance[0]
    lacks = "; no cause stated" if isinstance(record, Lesson) and record.cause.startswith("Not stated") else ""
    return f"`{record.kind}s/{record.id}.md`: {record.title}. {record.status}, {source.evidence or source.repo} of {source.date}{lacks}"
