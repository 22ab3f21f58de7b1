"""Read MLIR text into a `Program`.

>>> program = parse_program(text, name="gemm.mlir")
>>> program.where(op)
Place(line=12, column=7)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Dialect, Operation
from xdsl.utils.exceptions import ParseError

from npu_tools.air import (
    affine_forms,
    aie_forms,
    air_forms,
    arith_forms,
    linalg_forms,
    llvm_gpu_forms,
    memref_forms,
    scf_forms,
    transform_forms,
    vector_forms,
)
from npu_tools.air.dialect import AIR
from npu_tools.air.program import Program, line_starts, place_at
from npu_tools.air.reader import Form, Reader
from npu_tools.errors import ProgramSyntaxError

FORMS: dict[str, Form] = {
    **air_forms.FORMS,
    **affine_forms.FORMS,
    **aie_forms.FORMS,
    **arith_forms.FORMS,
    **linalg_forms.FORMS,
    **llvm_gpu_forms.FORMS,
    **memref_forms.FORMS,
    **scf_forms.FORMS,
    **transform_forms.FORMS,
    **vector_forms.FORMS,
}
"""The custom forms that are read here rather than by xDSL, by op."""

PREFIX_FORMS: dict[str, Form] = {**transform_forms.PREFIX_FORMS}
"""The forms of all other ops whose name begins so, the longest prefix first."""


def find_form(name: str) -> Form | None:
    """How the custom form of that op is read here, None where that is left to xDSL or not known."""
    if (form := FORMS.get(name)) is not None:
        return form
    return next((form for prefix, form in PREFIX_FORMS.items() if name.startswith(prefix)), None)


XDSL_DIALECTS = {
    "affine": "affine.Affine",
    "arith": "arith.Arith",
    "bufferization": "bufferization.Bufferization",
    "cf": "cf.Cf",
    "complex": "complex.Complex",
    "func": "func.Func",
    "gpu": "gpu.GPU",
    "linalg": "linalg.Linalg",
    "llvm": "llvm.LLVM",
    "math": "math.Math",
    "memref": "memref.MemRef",
    "ml_program": "ml_program.MLProgram",
    "scf": "scf.Scf",
    "tensor": "tensor.Tensor",
    "ub": "ub.UB",
    "vector": "vector.Vector",
}
"""Module and name, in xdsl.dialects, of the dialects read with xDSL's classes."""


MAX_CHARACTERS = 8 << 20
"""The longest text that is read; the largest programs known have some hundred thousand characters."""

_SPLIT = re.compile(r"^[ \t]*// -----[^\n]*$", re.MULTILINE)
_COMMENT = re.compile(r"//[^\n]*")


def parse_program(text: str, name: str = "<program>", *, max_characters: int = MAX_CHARACTERS) -> Program:
    """The program that `text` holds; `name` is what errors call it.

    A file of several programs, split by lines `// -----` as upstream's tests are, becomes a module of modules.

    Raises:
        ProgramSyntaxError: with line, column and the line itself.
    """
    if len(text) > max_characters:
        message = f"the text has {len(text)} characters, more than the {max_characters} that are read"
        raise ProgramSyntaxError(f"{message}; split it into one file a program", name=name, line=1, column=1)
    offsets: dict[Operation, int] = {}
    modules: list[ModuleOp] = []
    resources: list[str] = []
    for start, chunk in chunks(text):
        reader = _read(text, name, start, chunk)
        modules.append(reader.module)
        resources += reader.resources
        offsets[reader.module] = start
        offsets.update((op, start + offset) for op, offset in reader.offsets.items())
    if not modules:
        raise syntax_error(text, name, "there is no operation in the text", 0)
    module = modules[0] if len(modules) == 1 else ModuleOp([*modules])
    offsets.setdefault(module, 0)
    return Program(module, text, name, offsets, tuple(resources))


def chunks(text: str) -> list[tuple[int, str]]:
    """The programs of a text with the offset of each; parts without anything but comments are left out."""
    edges = [0, *(edge for mark in _SPLIT.finditer(text) for edge in mark.span()), len(text)]
    parts = [(start, text[start:end]) for start, end in zip(edges[::2], edges[1::2], strict=True)]
    return [(start, part) for start, part in parts if _COMMENT.sub("", part).strip()]


def _read(text: str, name: str, start: int, chunk: str) -> Reader:
    reader: Reader | None = None
    try:
        reader = Reader(new_context(), without_preamble(chunk), name, find_form)
        reader.read_module()
    except ParseError as fault:
        raise syntax_error(text, name, fault.msg, start + fault.span.start) from fault
    except RecursionError as fault:
        place = start if reader is None else start + reader.pos
        raise syntax_error(text, name, "types, attributes or expressions are nested too deep here", place) from fault
    except Exception as fault:
        # xDSL's dialects refuse text with whatever their constructors raise (ValueError, VerifyException, KeyError, …).
        place = start if reader is None else start + reader.pos
        reason = str(fault).strip().splitlines() or [type(fault).__name__]
        raise syntax_error(text, name, f"what stands before this place is refused: {reason[0][:300]}", place) from fault
    return reader


def without_preamble(text: str) -> str:
    """The text with blanks for lines that a builder printed in front of the program, all positions kept.

    Upstream's builders print their configuration to the same stream as the program ("RoPE LUT: seq_len=64, …").
    """
    position = 0
    for line in text.splitlines(keepends=True):
        if line.strip() and not _PRINTED.fullmatch(line.strip()):
            return re.sub(r"[^\n]", " ", text[:position]) + text[position:]
        position += len(line)
    return text


_PRINTED = re.compile(r"(?!module\b|func\b|[a-z_]+\.[a-z_]|//)[A-Za-z][^%{}\"@#<>!^]*")
"""A line that cannot be the beginning of a program."""


def new_context() -> Context:
    """A context that loads each dialect when it is first met."""
    context = Context(allow_unregistered=True)
    context.register_dialect("builtin", _xdsl_dialect("builtin.Builtin"))
    for dialect, path in XDSL_DIALECTS.items():
        context.register_dialect(dialect, _xdsl_dialect(path))
    context.register_dialect("air", lambda: AIR)
    context.register_dialect("transform", lambda: transform_forms.TRANSFORM)
    return context


def _xdsl_dialect(path: str) -> Callable[[], Dialect]:
    module, _, name = path.rpartition(".")
    return lambda: cast("Dialect", getattr(import_module(f"xdsl.dialects.{module}"), name))


def syntax_error(text: str, name: str, message: str, offset: int) -> ProgramSyntaxError:
    """The error at that offset, with the line and a mark under the place."""
    place = place_at(line_starts(text), min(offset, len(text)))
    line = text.split("\n")[place.line - 1]
    shown, mark = line, place.column - 1
    if len(line) > 160:
        cut = max(0, mark - 80)
        shown, mark = line[cut : cut + 160], mark - cut
    return ProgramSyntaxError(
        message, name=name, line=place.line, column=place.column, snippet=f"{shown}\n{' ' * mark}^"
    )
