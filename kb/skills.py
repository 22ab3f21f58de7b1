"""Agent Skills: SKILL.md files, read as records so that the memory's own search finds them.

A skill is a folder with a SKILL.md: front matter (`name` equal to the folder, `description`, `metadata` of texts)
and a Markdown body. `metadata` says where its facts come from (source-repo, source-path, source-commit, source-date),
the deployment phase and the other names it goes by.

    skill = read_skill(Path("kb/skills/deploy-new-llm/SKILL.md"))
    install(skills_folder, Path("~/.claude/skills").expanduser())
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, cast

from kb.errors import FileInvalid, KbError
from kb.files import read_front_matter, read_text
from kb.records import Skill, explain_validation

SKILL_FILE = "SKILL.md"
TRIGGERS_FILE = "triggers.toml"
MAX_BODY_LINES = 500
_NAME = re.compile(r"^[a-z0-9]+(?:-[a-z0-9]+)*$")
_FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}


@dataclass(frozen=True, slots=True)
class Trigger:
    """A prompt, and whether it must bring this skill up first."""

    skill: str
    prompt: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class Triggered:
    """What a prompt brought up first; None where the memory abstained."""

    trigger: Trigger
    first: str | None
    confidence: float

    @property
    def right(self) -> bool:
        """Whether it is what the case asks for."""
        return (self.first == self.trigger.skill) == self.trigger.wanted


@dataclass(frozen=True, slots=True)
class Installed:
    """What became of one skill: new, changed (the older one is kept as SKILL.md.bak), same."""

    name: str
    path: str
    action: Literal["new", "changed", "same"]


def skill_files(folder: Path) -> list[Path]:
    """The SKILL.md files below `folder`, one folder a skill."""
    return sorted(folder.glob(f"*/{SKILL_FILE}"))


def read_skill(path: Path) -> Skill:
    """The skill in `path`.

    Raises:
        FileInvalid: no valid Agent Skill, or one that does not say where its facts come from.
    """
    front, body, _ = read_front_matter(read_text(path), str(path))
    problems = _problems(front, body, path.parent.name)
    if problems:
        raise FileInvalid(f"{path}: {'; '.join(problems)}")
    return _record(front, "\n".join(body).strip("\n"), str(path))


def _problems(front: Mapping[str, Any], body: list[str], folder: str) -> list[str]:
    found: list[str] = []
    name = front.get("name")
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > 64:
        found.append("name: lower-case words with single hyphens, at most 64 characters")
    elif name != folder:
        found.append(f"name {name!r} differs from its folder {folder!r}")
    description = front.get("description")
    if not isinstance(description, str) or not 0 < len(description.strip()) <= 1024:
        found.append("description: say what it does and when to use it, in 1 to 1,024 characters")
    unknown = sorted(set(front) - _FIELDS)
    if unknown:
        found.append(f"unknown fields {', '.join(unknown)}; further ones go into metadata")
    metadata = front.get("metadata", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in cast("dict[Any, Any]", metadata).items()
    ):
        found.append("metadata: texts by name (quote dates and numbers)")
    if len(body) > MAX_BODY_LINES:
        found.append(f"{len(body)} lines, over {MAX_BODY_LINES}: move detail into files beside it")
    return found


def _record(front: Mapping[str, Any], body: str, where: str) -> Skill:
    from pydantic import ValidationError

    said: dict[str, str] = front.get("metadata", {})
    heading = next((line[2:] for line in body.split("\n") if line.startswith("# ")), front["name"])
    source = {
        "repo": said.get("source-repo"),
        "path": said.get("source-path"),
        "commit": said.get("source-commit"),
        "date": said.get("source-date"),
    }
    try:
        return Skill.model_validate(
            {
                "id": front["name"],
                "title": heading,
                "status": "documented",
                "phases": [said["phase"]] if said.get("phase", "any") != "any" else [],
                "description": front["description"],
                "aliases": [alias.strip() for alias in said.get("aliases", "").split(",")],
                "body": body,
                "provenance": [{key: value for key, value in source.items() if value}],
            }
        )
    except ValidationError as error:
        raise FileInvalid(f"{where}: {explain_validation(error)}") from None


def digest_of(path: Path) -> str:
    """SHA-256 of a skill's file, line ends apart: clients tell by it whether theirs is current."""
    return sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def install(folder: Path, target: Path, names: list[str] | None = None) -> list[Installed]:
    """Copy the skills of `folder` (all, or those named) into `target`, an agent's skills folder.

    A SKILL.md there that says something else is kept beside the new one as SKILL.md.bak; what else lies in a skill's
    folder is left alone.

    Raises:
        KbError: an unknown name, or `target` cannot be written.
    """
    known = {path.parent.name: path for path in skill_files(folder)}
    wrong = [name for name in names or [] if name not in known]
    if wrong:
        raise KbError(f"no skill {', '.join(wrong)}; there are {', '.join(known)}")
    done: list[Installed] = []
    try:
        for name in names or list(known):
            place = target / name / SKILL_FILE
            if place.exists() and digest_of(place) == digest_of(known[name]):
                done.append(Installed(name, str(place), "same"))
                continue
            changed = place.exists()
            if changed:
                shutil.copy2(place, _free(place.with_name(SKILL_FILE + ".bak")))
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(known[name], place)
            done.append(Installed(name, str(place), "changed" if changed else "new"))
    except OSError as error:
        raise KbError(f"cannot write into {target}: {error.strerror or error}") from None
    return done


def _free(path: Path) -> Path:
    """`path`, or the first of path.1, path.2 … that is not taken: an older copy is never overwritten."""
    number, free = 0, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def read_triggers(folder: Path) -> list[Trigger]:
    """The prompts of `folder`/triggers.toml.

    Raises:
        FileInvalid: no readable TOML, or a skill without three prompts that should and two that should not.
    """
    path = folder / TRIGGERS_FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileInvalid(f"{path}: {error}") from None
    known = {file.parent.name for file in skill_files(folder)}
    problems = [f"{name} has no prompts" for name in sorted(known - set(data))]
    problems += [f"{name} is no skill" for name in sorted(set(data) - known)]
    problems += [
        f"{name}: at least three 'yes' and two 'no'"
        for name, said in data.items()
        if len(said.get("yes", [])) < 3 or len(said.get("no", [])) < 2
    ]
    if problems:
        raise FileInvalid(f"{path}: {'; '.join(problems)}")
    return [
        Trigger(name, prompt, wanted)
        for name, said in data.items()
        for wanted, prompts in ((True, said["yes"]), (False, said["no"]))
        for prompt in prompts
    ]


def score_triggers(triggers: list[Trigger], ask: Callable[[str], tuple[str | None, float]]) -> list[Triggered]:
    """Each prompt with what `ask` brings up first: (the skill's name or None, its confidence)."""
    return [Triggered(trigger, *ask(trigger.prompt)) for trigger in triggers]
