"""The records of the memory: pydantic models, one class a kind.

A record is small, self-contained and carries its source. This module says what a record *is*;
`kb.files` says how it looks on disk and `kb.store` where it lives. Nothing here reads files.

    Lesson(id="mv-pingpong-l1", title="K=8192 GEMV overflows L1", cause="…", fix="…",
           provenance=[Provenance(repo="Xilinx/mlir-air", issue=1234, date="2026-06-01")])
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from kb.errors import RecordInvalid

SCHEMA_VERSION = 1
"""Version of the record format written today; older ones are lifted by `kb.migrations`."""

ID_PATTERN = r"^[a-z0-9](?:[a-z0-9-]{0,98}[a-z0-9])?$"
MAX_TEXT_CHARS = 20_000
"""Longest single text field. A lesson should stay under about 300 words in all."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_HALF_PAIR = re.compile(r"[\ud800-\udfff]")


def clean_text(value: str) -> str:
    """Text as it is stored: `\\n` line ends, no control characters, no outer blank space.

    Raises:
        ValueError: half a surrogate pair, which no file and no database holds.
    """
    if not value.isascii() and _HALF_PAIR.search(value):
        raise ValueError("half a surrogate pair; give the text as valid UTF-8")
    value = value.replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", value).strip()


def _one_line(value: str) -> str:
    return " ".join(clean_text(value).split())


def _as_text(value: Any) -> Any:
    """YAML reads `phase: 3` and `version: 1.10` as numbers; names are text here."""
    if isinstance(value, bool | int | float):
        return str(value)
    return value


def _no_doubles(values: list[str]) -> list[str]:
    return list(dict.fromkeys(v for v in values if v))


Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS), AfterValidator(clean_text)]
Line = Annotated[str, BeforeValidator(_as_text), Field(max_length=400), AfterValidator(_one_line)]
Id = Annotated[str, Field(pattern=ID_PATTERN)]
Names = Annotated[list[Line], Field(max_length=60), AfterValidator(_no_doubles)]

Status = Literal["documented", "observed", "reproduced", "superseded", "disputed"]
"""documented: from a public source; observed: seen once by a user; reproduced: a gate confirmed it."""

Resolution = Literal["fixed", "workaround", "by_design", "open", "negative"]
"""negative: tried and did not help; open: no known cause upstream."""

Category = Literal[
    "bo_corruption", "compile", "driver_install", "integration", "numerics", "performance",
    "placement", "process", "resource_limit", "routing", "runtime_error", "runtime_hang",
]  # fmt: skip


class _Model(BaseModel):
    # JSON has no infinity: such a figure could be stored but not read back.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Provenance(_Model):
    """Where a record comes from. Exactly one of three forms, always dated:

    `repo` + `path` + `commit`, `repo` + `issue` (issue or pull request number),
    or `evidence` (the id of a run, ledger entry or contribution of this product).
    """

    repo: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$", max_length=140)] | None = None
    path: Line | None = None
    commit: Annotated[str, BeforeValidator(_as_text), Field(pattern=r"^[0-9a-f]{7,40}$")] | None = None
    issue: Annotated[int, Field(ge=1)] | None = None
    evidence: Line | None = None
    date: date
    note: Line | None = None

    @model_validator(mode="after")
    def _one_form(self) -> Provenance:
        file_form = self.path is not None
        forms = [file_form, self.issue is not None, self.evidence is not None]
        if sum(forms) != 1:
            raise ValueError("give exactly one of path (with repo and commit), issue (with repo), or evidence")
        if self.evidence is None and self.repo is None:
            raise ValueError("repo is missing: write owner/name")
        if file_form and self.commit is None:
            raise ValueError("commit is missing: a path needs the commit it was read at")
        return self


class _Record(_Model):
    SECTIONS: ClassVar[dict[str, str]] = {}
    """Markdown heading → field. Fields not named here live in the front matter."""

    schema_version: Literal[1] = SCHEMA_VERSION
    id: Id
    title: Annotated[Line, Field(min_length=3, max_length=160)]
    status: Status = "observed"
    components: Names = []
    devices: Names = []
    phases: Names = []
    kernels: Names = []
    models: Names = []
    versions: dict[Line, Line] = {}
    provenance: Annotated[list[Provenance], Field(min_length=1, max_length=200)]


class Lesson(_Record):
    """One failure, one cause: symptom → cause → fix → how to verify → what did not help."""

    SECTIONS: ClassVar = {
        "Symptom": "symptom",
        "Also seen as": "also_seen_as",
        "Cause": "cause",
        "Fix": "fix",
        "Verify": "verify",
        "Did not help": "did_not_help",
    }

    kind: Literal["lesson"] = "lesson"
    category: Category
    resolution: Resolution = "workaround"
    superseded_by: Id | None = None
    symptom: Annotated[Text, Field(min_length=3)]
    also_seen_as: Annotated[list[Line], Field(max_length=12)] = []
    cause: Annotated[Text, Field(min_length=3)]
    fix: Annotated[Text, Field(min_length=3)]
    verify: Text = ""
    did_not_help: Text = ""


class KernelNote(_Record):
    """What is known of one kernel: contract, constraints, pitfalls."""

    SECTIONS: ClassVar = {"Note": "note"}

    kind: Literal["kernel_note"] = "kernel_note"
    note: Annotated[Text, Field(min_length=3)]


class Figure(_Model):
    """One number. `high` is set when the source gives a range."""

    metric: Line
    value: float
    high: float | None = None
    unit: Line


class KernelRow(_Record):
    """One row measured on a device: a kernel, a shape, a configuration and its figures."""

    SECTIONS: ClassVar = {"Notes": "notes"}

    kind: Literal["kernel_row"] = "kernel_row"
    kernel: Line
    shape: dict[Line, int]
    dtype: Line
    tile: dict[Line, int] = {}
    herd: Line | None = None
    method: Line | None = None
    precision: Line | None = None
    figures: list[Figure] = []
    rtol: float | None = None
    atol: float | None = None
    measured_on: date | None = None
    power_mode: Line | None = None
    used_by: Line | None = None
    notes: Text = ""


class Step(_Model):
    """One step of a trajectory; `before`/`after` are null where the source gives none."""

    when: Line
    change: Line
    before: float | None = None
    after: float | None = None
    after_high: float | None = None
    unit: Line | None = None
    detail: Line | None = None
    helped: bool | None = None


class Trajectory(_Record):
    """The ordered steps by which a deployment got faster (or did not)."""

    SECTIONS: ClassVar = {"Notes": "notes"}

    kind: Literal["trajectory"] = "trajectory"
    subject: Line
    stage: Line
    steps: Annotated[list[Step], Field(min_length=1, max_length=200)]
    notes: Text = ""


class ModelRow(_Record):
    """One model as upstream deployed it: configuration axes, ELF sequence, dated speeds."""

    SECTIONS: ClassVar = {"Notes": "notes"}

    kind: Literal["model_row"] = "model_row"
    hub_id: Line
    config: dict[Line, int | float | str]
    prefill_elfs: list[Line] = []
    decode_elfs: list[Line] = []
    lm_head: Line | None = None
    speeds: list[Step] = []
    notes: Text = ""


class Position(_Model):
    """One side of a dispute."""

    claim: Line
    source: Line


class Dispute(_Record):
    """Sources that disagree, and the better-supported value with the reason."""

    SECTIONS: ClassVar = {"Notes": "notes"}

    kind: Literal["dispute"] = "dispute"
    topic: Line
    positions: Annotated[list[Position], Field(min_length=2, max_length=20)]
    better_supported: Line
    reason: Line | None = None
    notes: Text = ""


class Skill(_Record):
    """How to do one part of a deployment: an Agent Skill (`kb.skills`). `aliases`: other names it goes by."""

    SECTIONS: ClassVar = {"Description": "description", "Body": "body"}

    kind: Literal["skill"] = "skill"
    description: Annotated[Text, Field(min_length=3, max_length=1024)]
    aliases: Names = []
    body: Annotated[Text, Field(min_length=3)]


Record = Annotated[
    Lesson | KernelNote | KernelRow | Trajectory | ModelRow | Dispute | Skill, Field(discriminator="kind")
]
KINDS: dict[str, type[_Record]] = {
    "lesson": Lesson,
    "kernel_note": KernelNote,
    "kernel_row": KernelRow,
    "trajectory": Trajectory,
    "model_row": ModelRow,
    "dispute": Dispute,
    "skill": Skill,
}
_ADAPTER: TypeAdapter[Any] = TypeAdapter(Record)


def record_from_dict(data: dict[str, Any]) -> Record:
    """The record these fields describe. Raises RecordInvalid naming every wrong field."""
    try:
        return _ADAPTER.validate_python(data)
    except ValidationError as error:
        raise RecordInvalid(explain_validation(error)) from None


def explain_validation(error: ValidationError) -> str:
    """The wrong fields of a record, one a line, without echoing large values."""
    lines: list[str] = []
    for item in error.errors(include_url=False, include_input=False)[:12]:
        where = ".".join(str(part)[:60] for part in item["loc"] if part not in KINDS) or "record"
        # pydantic counts "items" of a text that a validator has passed on.
        text = item.get("ctx", {}).get("field_type") == "Value"
        lines.append(f"{where}: {item['msg'].replace('items', 'characters') if text else item['msg']}")
    return "; ".join(lines)


def texts_of(record: Record) -> str:
    """Everything a record says, one text a line, sources left out."""
    found: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                walk(key)
                walk(item)
        elif isinstance(value, list):
            for item in cast("list[Any]", value):
                walk(item)

    for name, value in record.model_dump(mode="json", exclude={"provenance", "id", "kind", "status"}).items():
        if name != "schema_version":
            walk(value)
    return "\n".join(found)
