"""What every rule is given: a program's facts, the device, the compile options, and a way to say a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from xdsl.ir import Operation

from npu_tools.check.walk import Facts
from npu_tools.device import Device, Limit
from npu_tools.findings import Finding, Severity

Rule = Callable[["Subject"], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How the program will be compiled; None where that is not decided yet.

    `omit_pingpong` and `stack_bytes` are upstream's arguments of the same name, `output_format` is "xclbin" or "elf".
    """

    omit_pingpong: Literal["", "L1", "L2", "all"] | None = None
    stack_bytes: int | None = None
    output_format: Literal["xclbin", "elf"] | None = None

    @staticmethod
    def of(options: Mapping[str, Any]) -> CheckOptions:
        """What upstream's compile options say of them; `stack_size` is upstream's name, `stack_bytes` the recipes'."""
        omit, form = options.get("omit_pingpong"), options.get("output_format")
        stack = options.get("stack_size", options.get("stack_bytes"))
        return CheckOptions(
            omit_pingpong=omit if omit in ("", "L1", "L2", "all") else None,
            stack_bytes=stack if isinstance(stack, int) else None,
            output_format=form if form in ("xclbin", "elf") else None,
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """One program on one device."""

    facts: Facts
    device: Device
    options: CheckOptions

    @property
    def stack_bytes(self) -> int:
        """The stack of a core."""
        return self.device.stack_bytes if self.options.stack_bytes is None else self.options.stack_bytes

    def finding(
        self,
        op: Operation,
        severity: Severity,
        code: str,
        message: str,
        *,
        remedy: str,
        diagnostic: str | None = None,
        limit: Limit | None = None,
        source: str | None = None,
        certain: bool = True,
    ) -> Finding:
        """A finding at the place of an op."""
        place = self.facts.program.where(op)
        return Finding(
            severity=severity,
            code=code,
            message=message,
            op=op.name,
            line=place.line if place else None,
            column=place.column if place else None,
            diagnostic=diagnostic,
            limit=str(limit) if limit else None,
            source=source or (limit.source if limit else None),
            remedy=remedy,
            certain=certain,
        )
