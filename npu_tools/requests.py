"""What check, compile and run are asked, in one form for the command line, MCP and jobs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from npu_tools.backends.xrt.toolchain import Toolchain

Backend = Literal["emulator", "xrt"]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ProgramSource(_Request):
    """A program by its text; `name` is what messages call it."""

    text: str
    name: str = "program.mlir"


class CheckRequest(_Request):
    """Check a program against a device."""

    program: ProgramSource
    device: str = "npu2"


class CompileRequest(_Request):
    """Parse, verify, check and lower a program; `cache` is the artefact folder.

    `options` (XRTBackend's, by name) and `toolchain` (where mlir-air and XRT are) concern the xrt backend alone.
    """

    program: ProgramSource
    cache: str
    device: str = "npu2"
    function: str | None = None
    backend: Backend = "emulator"
    numerics: Literal["faithful", "f32"] = "faithful"
    options: dict[str, Any] = Field(default_factory=dict)
    toolchain: Toolchain | None = None


class RunRequest(_Request):
    """Run a program. Inputs come from a file, or from `seed`; outputs go to a file (by
    default in the job's folder) and never into an answer.

    `timeout_s` counts wall-clock seconds of the run; `memory_mb` bounds the live buffers (10^6 bytes each). `cache`,
    `options`, `toolchain` and `profile` (measure it, in runs of their own) concern the xrt backend alone, which compiles
    before it runs.
    """

    program: ProgramSource
    outputs: str = ""
    function: str | None = None
    inputs: str | None = None
    seed: int | None = None
    device: str = "npu2"
    backend: Backend = "emulator"
    numerics: Literal["faithful", "f32"] = "faithful"
    grouping: Literal["lifted", "per-tile"] = "lifted"
    timeout_s: float = Field(default=600, gt=0, le=24 * 3600)
    memory_mb: float = Field(default=8000, gt=0)
    timeline: str | None = None
    tile_map: str | None = None
    rounding: bool = False
    profile: bool = False
    cache: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    toolchain: Toolchain | None = None
