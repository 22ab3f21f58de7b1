"""Launches: how many a function has, what may stand outside them, and what the output format allows."""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects.builtin import MemRefType, SymbolRefAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation

from npu_tools.air.dialect import HerdOp, Hierarchy, LaunchOp, RankOp, SegmentOp
from npu_tools.check.subject import Subject
from npu_tools.check.walk import around
from npu_tools.findings import Finding

BARE_SOURCE = "Xilinx/mlir-air skills/debug-multi-launch-merge"
ELF_SOURCE = "Xilinx/mlir-air python/air/backend/xrt.py (output_format)"
LIMIT_SOURCE = "tonyjie/mlir-air programming_examples/_llm_shared/docs/multi-launch"
_FLASH = ("fused_softmax", "exp_up_minus_u", "accum_sp_r_s", "matmul_a_b", "matmul_g_b", "max_g", "apply_causal_mask")
"""Kernels that only FlashAttention calls; a launch with several of them is one."""


def find(subject: Subject) -> Iterator[Finding]:
    """Functions whose launches cannot be compiled or run together as they are."""
    for function, launches in subject.facts.launches.items():
        bare = [op for op in _rooms(function) if around(op, LaunchOp) is None and isinstance(op, HerdOp | SegmentOp)]
        bare = [op for op in bare if not isinstance(around(op, Hierarchy), SegmentOp)]
        if launches and bare:
            yield _bare(subject, bare[0], len(launches), "air.launch")
        loose = [
            op for op in _rooms(function) if isinstance(op, HerdOp) and isinstance(around(op, Hierarchy), LaunchOp)
        ]
        if len(launches) > 1 and loose:
            yield _bare(subject, loose[0], len(launches), "air.segment")
        if len(launches) > 1:
            yield from _several(subject, function, launches)
        elif len(launches) == 1 or bare:
            yield from _arguments(subject, function, (launches or bare)[0])
    for op in subject.facts.ops:
        if isinstance(op, RankOp) and isinstance(around(op, Hierarchy), LaunchOp | SegmentOp | HerdOp):
            text = "cannot be nested inside air.segment, air.herd, or air.launch"
            yield subject.finding(
                op, "error", "rank-nested", text, diagnostic=f"'air.rank' op {text}",
                source="Xilinx/mlir-air mlir/lib/Dialect/AIR/IR/AIRDialect.cpp (RankOp)",
                remedy="put air.rank around the launch",
            )  # fmt: skip


def _rooms(function: FuncOp) -> Iterator[Hierarchy]:
    for op in function.walk():
        if isinstance(op, Hierarchy):
            yield op


def _bare(subject: Subject, op: Operation, launches: int, missing: str) -> Finding:
    return subject.finding(
        op,
        "error",
        "herd-outside-launch",
        f"this {op.name} stands outside any {missing} in a function with {launches} launches; in a module of several "
        "launches its data movements are left over, or it does nothing and the output stays zero",
        diagnostic="failed to legalize operation 'airrt.dma_memcpy_nd'",
        source=BARE_SOURCE,
        remedy="wrap it: air.launch { air.segment { air.herd … } }, handing the arguments through",
        certain=False,
    )


def _several(subject: Subject, function: FuncOp, launches: list[LaunchOp]) -> Iterator[Finding]:
    wanted = subject.options.output_format
    if wanted == "xclbin" or (wanted is None and subject.device.name == "npu1"):
        why = "as xclbin they run wrongly" if wanted == "xclbin" else f"{subject.device.name} has no ELF output"
        yield subject.finding(
            launches[1],
            "error" if wanted == "xclbin" else "warning",
            "multi-launch-format",
            f"@{function.sym_name.data} has {len(launches)} launches, which run together only from an ELF; {why}",
            source=ELF_SOURCE,
            remedy='compile with output_format="elf" (npu2), or make each launch a function of its own',
            certain=False,
        )
    elif wanted is None:
        yield subject.finding(
            launches[1],
            "note",
            "multi-launch-elf",
            f"@{function.sym_name.data} has {len(launches)} launches: it must be compiled to an ELF; as xclbin it runs "
            "wrongly",
            source=ELF_SOURCE,
            remedy=f'compile with output_format="elf" and instance_name="{function.sym_name.data}"',
            certain=False,
        )
    limit = subject.device.limit("launch.elf_launches")
    if len(launches) > limit.value:
        parts = -(-len(launches) // limit.value)
        yield subject.finding(
            launches[limit.value],
            "warning",
            "multi-launch-count",
            f"@{function.sym_name.data} has {len(launches)} launches; compile time grows steeply past {limit.value} (nine "
            "took over ten minutes, fifteen over an hour)",
            limit=limit,
            remedy=f"split it into {parts} ELFs of at most {-(-len(launches) // parts)} launches",
            certain=False,
        )
    flash = next((launch for launch in launches if _is_flash_attention(launch)), None)
    if flash is not None:
        yield subject.finding(
            flash,
            "warning",
            "flash-attention-stitched",
            f"this launch is FlashAttention, which takes 20 channels by itself; stitched with {len(launches) - 1} other "
            "launches it compiles for more than ten minutes or not at all",
            source=LIMIT_SOURCE,
            remedy="compile FlashAttention as an ELF of its own",
            certain=False,
        )


def _is_flash_attention(launch: LaunchOp) -> bool:
    called: set[str] = set()
    for op in launch.walk():
        callee = op.properties.get("callee") if op.name == "func.call" else None
        if isinstance(callee, SymbolRefAttr):
            called.update(name for name in _FLASH if callee.string_value().startswith(name))
    return len(called) >= 3


def _arguments(subject: Subject, function: FuncOp, op: Operation) -> Iterator[Finding]:
    limit = subject.device.limit("xclbin.data_arguments")
    count = sum(isinstance(kind, MemRefType) for kind in function.function_type.inputs)
    if count <= limit.value or subject.options.output_format == "elf":
        return
    decided = subject.options.output_format == "xclbin"
    yield subject.finding(
        op,
        "error" if decided else "note",
        "xclbin-arguments",
        f"@{function.sym_name.data} takes {count} buffers; an xclbin kernel takes {limit.value}",
        diagnostic="Too many arguments",
        limit=limit,
        remedy='compile with output_format="elf", or pack buffers together',
        certain=decided,
    )
