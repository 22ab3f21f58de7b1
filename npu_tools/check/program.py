"""The legality check of AIR programs: every rule over one program on one device.

    report = check_program_text(text, "gemm.mlir", device("npu2"))
    report.ok, report.findings

An error that is `certain` is one the toolchain surely refuses, whatever the compile options; the rest says what is
likely, or what depends on an option. It does not run the program, and does not judge numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npu_tools.air import Program, parse_program, verify
from npu_tools.check import (
    cascade,
    channels,
    counts,
    dma_channels,
    launches,
    linking,
    locality,
    memory,
    memory_space,
    pins,
    placement,
    shim,
    statics,
    traps,
    windows,
)
from npu_tools.check.subject import CheckOptions, Rule, Subject
from npu_tools.check.walk import Facts
from npu_tools.device import Device
from npu_tools.errors import ProgramSyntaxError
from npu_tools.findings import Finding

RULES: tuple[Rule, ...] = (
    statics.find,
    memory_space.find,
    channels.find,
    counts.find,
    linking.find,
    placement.find,
    pins.find,
    memory.find,
    windows.find,
    dma_channels.find,
    cascade.find,
    locality.find,
    launches.find,
    shim.find,
    traps.find,
)
_UNREADABLE = frozenset({"operand-groups", "hierarchy-arguments"})
_ORDER = {"error": 0, "warning": 1, "note": 2}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check came to: whether the text is a program, whether nothing refuses it, and every finding."""

    parsed: bool
    ok: bool
    findings: tuple[Finding, ...]


def check_program(program: Program, device: Device, options: CheckOptions | None = None) -> list[Finding]:
    """What the device or its toolchain has against a program, errors first, each at its place.

    A program whose ops have the wrong operand groups is not looked at further: nothing more can be said of it.
    """
    structure = verify(program)
    found: list[Finding] = []
    if not any(one.code in _UNREADABLE for one in structure):
        subject = Subject(Facts.of(program), device, options or CheckOptions())
        for rule in RULES:
            found.extend(rule(subject))
    said = {(one.code, one.line) for one in found}
    found.extend(one for one in structure if (one.code, one.line) not in said)
    return sorted(_once(found), key=lambda one: (_ORDER[one.severity], not one.certain, one.line or 0, one.code))


def check_program_text(text: str, name: str, device: Device, options: CheckOptions | None = None) -> CheckReport:
    """The report on a program's text; text that is no program is a finding as well."""
    try:
        program = parse_program(text, name=name)
    except ProgramSyntaxError as error:
        return CheckReport(False, False, (_syntax(error),))
    found = tuple(check_program(program, device, options))
    return CheckReport(True, not any(one.severity == "error" for one in found), found)


def _once(found: list[Finding]) -> list[Finding]:
    """Findings without repetitions of one code on one line, and notes without those of one code anywhere; the first says
    how many there were, and where."""
    alike: dict[tuple[str, int | None, str | None], list[Finding]] = {}
    for one in found:
        key = (one.code, None, None) if one.severity == "note" else (one.code, one.line, one.op)
        alike.setdefault(key, []).append(one)
    return [_together(several) for several in alike.values()]


def _together(several: list[Finding]) -> Finding:
    first = min(several, key=lambda one: one.line or 0)
    others = sorted({one.line for one in several if one.line is not None} - {first.line})
    if others:
        said = ", ".join(map(str, others[:8])) + (" …" if len(others) > 8 else "")
        return replace(first, message=f"{first.message} (also at line{'s' * (len(others) > 1)} {said})")
    return replace(first, message=f"{first.message} (and {len(several) - 1} more here)") if len(several) > 1 else first


def _syntax(error: ProgramSyntaxError) -> Finding:
    shown = f"\n{error.snippet}" if error.snippet else ""
    return Finding(
        severity="error",
        code="syntax",
        message=f"{error.message}{shown}",
        line=error.line,
        column=error.column,
        diagnostic=error.message,
        remedy="correct the text at this place; print it in generic form (--mlir-print-op-generic) where a custom form "
        "is not known",
    )
