"""How a program is compiled: XRTBackend's options by name, checked, and as aircc's command line.

aircc is started as XRTBackend starts it (Xilinx/mlir-air python/air/backend/xrt.py `compile`): the same options in the
same order, and the device always named, never guessed. What XRTBackend refuses is refused here before anything runs.

    plan = plan_compile(program, function, {"output_format": "elf"}, device)     # CompilePlan, or findings
    plan.arguments(peano)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from xdsl.dialects.builtin import MemRefType
from xdsl.dialects.func import FuncOp

from npu_tools.air.dialect import LaunchOp
from npu_tools.backends.xrt.outcomes import outcome
from npu_tools.device import Device
from npu_tools.errors import UnusableInput
from npu_tools.findings import Finding

Format = Literal["elf", "xclbin"]
INPUT = "air.mlir"
INSTS = "air.insts.bin"
XCLBIN_KERNEL = "MLIR_AIE"
TILING = "runtime_loop_tiling_sizes"
DEFAULTS: dict[str, Any] = {
    "output_format": "", "instance_name": "", "omit_while_true_loop": False, "omit_pingpong": "",
    "lower_linalg_to_func": "", "derive_library_call": False, "air_loop_fusion": False, TILING: [],
    "omit_auto_broadcast": False, "channel_multiplexing": [], "use_lock_race_condition_fix": False,
    "use_lock_race_condition_fix_v2": False, "coalesce_shim_dma": False, "trace_size": 0, "trace_offset": 0,
    "kernel_name": "", "kernel_id": "", "xclbin_input": "", "num_device_cols": 0, "debug_ir": False,
    "emit_txn_cpp": False, "bf16_emulation": False, "stack_size": 1024, "verbose": False,
}  # fmt: skip
"""XRTBackend's own defaults. Not XRTRunner's, whose omit_while_true_loop is True."""
OURS = ("objects", "timeout_s", "target_device")
"""Options of this adapter: sources of external kernels, seconds a compile may take; and target_device, which must agree."""


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """A compile decided: which format and why, the entry, and every option."""

    function: str
    device: str
    format: Format
    why: str
    kernel: str
    options: Mapping[str, Any]
    objects: Mapping[str, Any] = field(default_factory=dict[str, Any])
    timeout_s: float | None = None

    @property
    def binary(self) -> str:
        """The file aircc leaves."""
        return f"air.{self.format}"

    @property
    def insts(self) -> str | None:
        """The instruction file; an ELF has its own."""
        return None if self.format == "elf" else INSTS

    def arguments(self, peano: Path) -> list[str]:
        """aircc's arguments."""
        said = self.options
        columns = int(said["num_device_cols"])
        device = f"{self.device}_{columns}col" if columns else self.device
        found = ["--device", device, INPUT]
        found += ["--elf-name", self.binary] if self.format == "elf" else ["-o", self.binary, "-i", INSTS]
        found += [f"--air-runtime-loop-tiling-sizes={size}" for size in said[TILING]]
        found += ["-v"] if said["verbose"] else []
        found += ["--omit-while-true-loop"] if said["omit_while_true_loop"] else []
        found += [f"--omit-ping-pong-transform={said['omit_pingpong']}"] if said["omit_pingpong"] else []
        if said["lower_linalg_to_func"]:
            found += ["--lower-linalg-to-func", str(said["lower_linalg_to_func"])]
            found += ["--derive-library-call"] if said["derive_library_call"] else []
        for name, flag in _SWITCHES[:2]:
            found += [flag] if said[name] else []
        found += [f"--air-channel-multiplexing={space}" for space in said["channel_multiplexing"]]
        for name, flag in _SWITCHES[2:]:
            found += [flag] if said[name] else []
        if said["trace_size"]:
            found += ["-trace-size", str(said["trace_size"]), "-trace-offset", str(said["trace_offset"])]
        found += ["--output-format", self.format]
        for name in ("kernel_name", "instance_name", "kernel_id"):
            value = self.function if name == "instance_name" and self.format == "elf" else said[name]
            found += [f"--xclbin-{name.replace('_', '-')}", str(value)] if value else []
        found += ["--xclbin-input", str(said["xclbin_input"])] if said["xclbin_input"] else []
        found += ["--peano", str(peano), "--no-xchesscc", "--no-xbridge"]
        found += ["--debug-ir"] if said["debug_ir"] else []
        found += ["--bf16-emulation"] if said["bf16_emulation"] else []
        found += ["--stack-size", str(said["stack_size"])] if said["stack_size"] != DEFAULTS["stack_size"] else []
        return found


_SWITCHES = (
    ("air_loop_fusion", "--air-loop-fusion"),
    ("omit_auto_broadcast", "--omit-auto-broadcast"),
    ("use_lock_race_condition_fix", "--use-lock-race-condition-fix"),
    ("use_lock_race_condition_fix_v2", "--use-lock-race-condition-fix-v2"),
    ("coalesce_shim_dma", "--coalesce-shim-dma"),
)


def plan_compile(function: FuncOp, options: Mapping[str, Any], device: Device) -> CompilePlan | list[Finding]:
    """The compile decided, or what stands against it.

    Raises:
        UnusableInput: an option XRTBackend does not have, or a value of another kind.
    """
    said, objects, timeout_s = _checked(options, device), _objects(options), _timeout(options)
    name = function.sym_name.data
    launches = sum(isinstance(op, LaunchOp) for op in function.walk())
    buffers = sum(isinstance(kind, MemRefType) for kind in function.function_type.inputs.data)
    most = device.limit("xclbin.data_arguments").value
    form, why = _format(str(said["output_format"]), launches, buffers, most, device)
    findings = list(_refusals(said, form, name, launches, buffers, most, device))
    if findings:
        return findings
    kernel = f"main:{name}" if form == "elf" else str(said["kernel_name"] or XCLBIN_KERNEL)
    return CompilePlan(name, device.compile_target, cast("Format", form), why, kernel, said, objects, timeout_s)


def _timeout(options: Mapping[str, Any]) -> float | None:
    given = options.get("timeout_s")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 < given < math.inf:
        raise UnusableInput(f"option timeout_s takes a positive number of seconds, not {given!r}")
    return float(given)


def _objects(options: Mapping[str, Any]) -> dict[str, Any]:
    given: Any = options.get("objects") or cast("dict[str, Any]", {})
    if not isinstance(given, Mapping):
        raise UnusableInput(f"option objects takes names of objects with what each is built of, not {given!r}")
    return dict(cast("Mapping[str, Any]", given))


def _format(asked: str, launches: int, buffers: int, most: int, device: Device) -> tuple[str, str]:
    if asked:
        return asked, "asked for"
    if device.name != "npu1":  # npu1 takes no ELF
        if launches > 1:
            return "elf", f"{launches} launches"
        if buffers > most:
            return "elf", f"{buffers} buffers"
    return "xclbin", "one launch and few buffers" if launches <= 1 and buffers <= most else "npu1 takes no ELF"


def _refusals(
    said: Mapping[str, Any], form: str, function: str, launches: int, buffers: int, most: int, device: Device
) -> list[Finding]:
    found: list[Finding] = []
    if form not in ("elf", "xclbin") or said["emit_txn_cpp"]:
        found.append(outcome("unloadable-format", given="txn (emit_txn_cpp)" if said["emit_txn_cpp"] else form))
    if form == "elf" and device.name == "npu1":
        found.append(outcome("elf-on-npu1"))
    if form == "xclbin" and launches > 1:
        found.append(outcome("multi-launch-format", function=function, count=launches))
    if form == "xclbin" and buffers > most:
        found.append(outcome("xclbin-arguments", function=f"@{function}", count=buffers, limit=most))
    given = str(said["instance_name"])
    if form == "elf" and given not in ("", function):
        found.append(outcome("entry-name", given=given, function=function))
    if said["use_lock_race_condition_fix"] and said["use_lock_race_condition_fix_v2"]:
        found.append(outcome("lock-fixes"))
    if not 0 <= int(said["num_device_cols"]) < device.columns:
        columns = said["num_device_cols"]
        found.append(outcome("device-columns", given=columns, device=device.name, most=device.columns - 1))
    return found


def _checked(options: Mapping[str, Any], device: Device) -> dict[str, Any]:
    unknown = sorted(set(options) - set(DEFAULTS) - set(OURS))
    if unknown:
        hint = (
            "; times are measured by 'herdbook kernel profile'"
            if unknown[0] in ("n_perf_iters", "n_warmup_iters")
            else ""
        )
        raise UnusableInput(
            f"{unknown[0]!r} is no option of XRTBackend{hint}; there are {', '.join(DEFAULTS)}, {', '.join(OURS)}"
        )
    target = options.get("target_device")
    if target not in (None, "", device.compile_target):
        raise UnusableInput(f"target_device {target!r} contradicts the device {device.name}; leave it out")
    said = dict(DEFAULTS)
    for name, value in options.items():
        if name in OURS or value is None:
            continue
        default = DEFAULTS[name]
        if name == "omit_pingpong" and isinstance(value, bool):
            value = "all" if value else ""
        if isinstance(default, list) and isinstance(value, (int, str)):
            value = [value]
        fits = isinstance(value, (list, tuple)) if isinstance(default, list) else isinstance(value, type(default))
        if not fits or (isinstance(value, bool) and not isinstance(default, bool)):
            raise UnusableInput(f"option {name} takes {_kind(default)}, not {value!r}")
        said[name] = list(cast("list[Any]", value)) if isinstance(default, list) else value
    if said["omit_pingpong"] not in ("", "L1", "L2", "all"):
        raise UnusableInput(f"omit_pingpong is '', 'L1', 'L2' or 'all', not {said['omit_pingpong']!r}")
    if said["stack_size"] <= 0:
        raise UnusableInput("stack_size must be a positive number of bytes")
    return said


def _kind(default: Any) -> str:
    return {bool: "true or false", str: "text", int: "a whole number", list: "a list"}[type(default)]
