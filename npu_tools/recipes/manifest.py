"""kernel.toml: what a recipe takes, gives, and must pass.

Shapes, counts and defaults are expressions over the axes and settings (expressions.py). `kernels/README.md` has the
grammar with an example.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from npu_tools.errors import UnusableInput

Scalar = bool | int | float | str
Role = Literal["input", "static", "output", "scratch"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Setting(_Model):
    """One setting of a kernel. `source` says who chooses it where the caller does not: "check", by the rules of
    `check_kernel`, or "recipe", by `default` (an expression if it begins with "="), or "both": by `default`, and
    handed on to `check_kernel`."""

    help: str
    source: Literal["check", "recipe", "both"] = "check"
    default: Scalar | None = None
    choices: list[Scalar] = []


class Tensor(_Model):
    """One array. `dtype` may be a setting in braces. `repeat` makes it several, name_0 … name_{n-1}; `when` leaves it
    out unless the expression holds. `scale` is the standard deviation of its trial values. A weight is "static", what
    the device writes for itself is "scratch"."""

    name: str
    role: Role
    dtype: str = "bf16"
    shape: list[str | int]
    repeat: str | int | None = None
    when: str | None = None
    scale: str | float = 1.0


class ToleranceName(_Model):
    """Which row of npu_tools/gate/tolerances.toml judges the outputs; `tier` may be an expression."""

    kernel: str
    tier: str | None = None


class Case(_Model):
    """A shape with settings that must pass the gate; `mean_rel_l1` is the published error."""

    shape: dict[str, int]
    settings: dict[str, Scalar] = {}
    size: Literal["small", "large"]
    why: str
    mean_rel_l1: float | None = None


class Refused(_Model):
    """A shape with settings that `check_kernel` must refuse with this finding."""

    shape: dict[str, int]
    settings: dict[str, Scalar] = {}
    code: str
    why: str


class Measured(_Model):
    """Settings measured best on a device, used for this shape when the caller leaves them open."""

    shape: dict[str, int]
    settings: dict[str, Scalar]
    source: str | None = None


class PartSpec(_Model):
    """One launch of a fused kernel: which recipe prints it, of which shape, and the kernel's arguments it takes. Shapes
    and settings are expressions where they are strings that begin with "="."""

    role: str = Field(pattern=r"^[a-z][a-z0-9_ ]*$")
    kernel: str
    shape: list[str | int] = Field(min_length=1)
    settings: dict[str, Scalar] = {}
    arguments: list[str] = Field(min_length=1)


class Manifest(_Model):
    """The whole of a kernel.toml. `check` is the kernel's name in `check_kernel`, its own by default. `arguments` are
    those of the function; `tensors` what the model sees, where host.py translates between the two."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    title: str
    aliases: list[str] = []
    check: str | None = None
    shape: list[str] = Field(min_length=1)
    settings: dict[str, Setting] = {}
    arguments: list[Tensor] = Field(min_length=1)
    tensors: list[Tensor] = []
    tolerance: ToleranceName
    objects: list[str] = []
    """Object files the herds link with."""
    parts: list[PartSpec] = []
    """The launches of a fused kernel `check_kernel` does not know as a whole; it judges them one by one."""
    compile: dict[str, Scalar | list[int]] = {}
    """Options aircc needs for this program, as XRTBackend names them; "= …" is an expression."""
    cases: list[Case] = Field(min_length=1)
    refused: list[Refused] = []
    measured: list[Measured] = []


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file.

    Raises:
        UnusableInput: it cannot be read, or says something a manifest may not say.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnusableInput(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UnusableInput(f"{path} is no TOML: {error}") from None
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnusableInput(f"{path}: {where}: {first['msg']}") from None
