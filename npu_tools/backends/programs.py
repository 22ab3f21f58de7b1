"""What every backend does with a program's text before it is compiled: parsed, named by content, its outputs chosen."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from npu_tools.air import Program, parse_program
from npu_tools.arrays import Argument
from npu_tools.backends.protocol import Refused
from npu_tools.errors import ProgramSyntaxError, UnusableInput
from npu_tools.findings import Finding


def program_digest(program: str, options: Mapping[str, Any]) -> str:
    """Digest of text and options: what results are traced to, whichever backend ran."""
    said = json.dumps(dict(options), sort_keys=True, default=str)
    return hashlib.sha256(f"{said}\n{program}".encode("utf-8", "surrogatepass")).hexdigest()[:32]


def kernel_key(digest: str, name: str, outputs: Sequence[int] | None) -> str:
    """What a loaded kernel is kept under."""
    return f"{digest}/{name}/{'all' if outputs is None else ','.join(map(str, outputs))}"


def parsed(text: str, name: str) -> Program | Refused:
    """The program of a text; text that is no program is refused with the place."""
    try:
        return parse_program(text, f"{name}.mlir")
    except ProgramSyntaxError as error:
        return Refused(name, (Finding("error", "syntax", str(error), line=error.line, column=error.column),))


def chosen_outputs(name: str, arguments: Sequence[Argument], outputs: Sequence[int] | None) -> tuple[int, ...]:
    """The positions to give back: those asked for, or every memref.

    Raises:
        UnusableInput: a position that is no memref.
    """
    memrefs = tuple(position for position, one in enumerate(arguments) if one.shape is not None)
    wanted = memrefs if outputs is None else tuple(outputs)
    if not set(wanted) <= set(memrefs):
        raise UnusableInput(f"{name}: outputs {list(wanted)} are not all memrefs; those are {list(memrefs)}")
    return wanted
