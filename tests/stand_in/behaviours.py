"""Every failure the stand-in reproduces: what the tools do, where that is documented, what the adapter must say.

Texts are upstream's own, as short as they stay telling. `fact` names the place that was read: repository, path, and pull
request or issue where that is the source. Commits: Xilinx/mlir-air e972f2942, Xilinx/XRT 963c58ee, amd/xdna-driver 856409ca.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

AIR, XRT, DRIVER = "Xilinx/mlir-air ", "Xilinx/XRT ", "amd/xdna-driver "
HWCTX = "DRM_IOCTL_AMDXDNA_CREATE_HWCTX IOCTL failed "


@dataclass(frozen=True)
class Behaviour:
    """One failure. `at` is where the adapter must say `code`: loading (compile included) or the first or second run."""

    name: str
    fact: str
    scenario: Mapping[str, Any]
    code: str
    at: Literal["load", "run", "second run"] = "load"
    severity: Literal["error", "warning"] = "error"
    ok: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    npu: str = "strix"


def _fails(text: str, code: int = 1) -> dict[str, Any]:
    return {"aircc": {"stderr": text + "\n", "exit": code}}


COMPILE = (
    Behaviour("BD exhaustion", AIR + "tools/aircc/aircc.cpp; .claude/skills/debug-multi-launch-merge/SKILL.md",
              _fails("air.mlir:7:9: error: 'aiex.dma_configure_task' op Allocator exhausted available buffer descriptor IDs"), "core-bd-count"),
    Behaviour("too many active BDs", AIR + "programming_examples/kernel_registry/details/SiLU_Mul_bf16.md",
              _fails("error: Too many simultaneously active buffer descriptors on tile (0, 1)"), "core-bd-count"),
    Behaviour("repeat count", AIR + ".claude/skills/debug-multi-launch-merge/SKILL.md",
              _fails("error: 'aiex.npu.push_queue' op Repeat count exceeds the [0:255] range."), "queue-repeat"),
    Behaviour("shim channels", AIR + "programming_examples/kernel_registry/details/RoPE_bf16.md",
              _fails("error: no ShimNOCTile has sufficient DMA capacity for 2 input/1 output channels"), "shim-dma-channels"),
    Behaviour("tile memory", AIR + "python/air/api/_compile.py",
              _fails("error: 'aie.tile' op allocated buffers exceeded available memory"), "tile-memory"),
    Behaviour("stride", AIR + ".claude/skills/debug-multi-launch-merge/SKILL.md",
              _fails("error: 'aie.dma_bd' op Stride 2097152 exceeds the [1:1048576] range."), "bd-stride"),
    Behaviour("bare herd in a merged module", AIR + ".claude/skills/debug-multi-launch-merge/SKILL.md",
              _fails("error: failed to legalize operation 'airrt.dma_memcpy_nd'"), "multi-launch-elf"),
    Behaviour("sub-word transfer", AIR + ".claude/skills/debug-multi-launch-merge/SKILL.md",
              _fails("error: Transfer sizes must be multiples of 4 bytes."), "dma-granule"),
    Behaviour("no placement", AIR + "python/air/api/_compile.py", _fails("error: No valid placement found."), "herd-placement"),
    Behaviour("routing", "Xilinx/mlir-aie lib/Dialect/AIE/Transforms/AIECreatePathFindFlows.cpp",
              _fails("error: Unable to find a legal routing"), "routing"),
    Behaviour("llvm-link of LLVM 23 before Peano's opt", AIR + ".github/workflows/nightlyPerfBenchmark.yml; PR 1783",
              _fails("immarg operand has non-immediate parameter"), "llvm-link-too-new"),
    Behaviour("aiecc not on PATH, noticed by aircc", AIR + "tools/aircc/aircc.cpp:1061",
              _fails("Error: could not find aiecc in PATH"), "aiecc-missing"),
    Behaviour("aiecc not on PATH, noticed before", AIR + "tools/aircc/aircc.cpp:1061", {"missing": ["aiecc"]}, "aiecc-missing"),
    Behaviour("aircc nowhere", AIR + "python/air/tools.py resolve_tool", {"missing": ["aircc"]}, "toolchain-missing"),
    Behaviour("no Peano", AIR + "python/air/backend/xrt.py _find_peano_install_dir", {"missing": ["peano"]}, "peano-missing"),
    Behaviour("device guessed although it was named", AIR + "python/air/backend/xrt.py detect_target_device",
              {"aircc": {"stdout": "WARNING: could not detect the NPU generation (x); falling back to 'npu1'.\n"}}, "device-fallback"),
    Behaviour("compiler never ends", AIR + "programming_examples/llms/llama32_1b/docs/profile.md; PR 1840",
              {"aircc": {"hang": True}}, "compile-timeout"),
    Behaviour("compiler never ends and is deaf to SIGTERM", AIR + "python/air/backend/xrt.py (subprocess.run without timeout)",
              {"aircc": {"hang": True, "deaf": True}}, "compile-timeout"),
    Behaviour("compiler killed for want of memory", AIR + "tools/aircc/aircc.cpp (-j 0); Xilinx/mlir-aie issue 3261",
              {"aircc": {"signal": 9}}, "compiler-killed"),
    Behaviour("compiler asserts", AIR + "tools/aircc/aircc.cpp (MLIR asserts abort); issue 335",
              {"aircc": {"stderr": "aircc: Casting.h:566: Assertion `isa<To>(Val)' failed.\n", "signal": 6}}, "compiler-crashed"),
    Behaviour("disk full", AIR + "tools/aircc/aircc.cpp:623 (Error writing file)",
              _fails("Error writing file air_project/aie.air.mlir: No space left on device"), "disk-full"),
    Behaviour("truncated xclbin", XRT + "src/runtime_src/core/include/xrt/detail/xclbin.h (m_length)",
              {"aircc": {"truncate": True}}, "output-truncated"),
    Behaviour("truncated ELF", XRT + "src/runtime_src/core/common/api/xrt_elf.cpp",
              {"aircc": {"truncate": True}}, "output-truncated", options={"output_format": "elf"}),
    Behaviour("empty xclbin", XRT + "src/runtime_src/core/include/xrt/detail/xclbin.h", {"aircc": {"empty": True}}, "output-truncated"),
    Behaviour("no output and exit code 0", AIR + "python/air/backend/xrt.py (compile checks nothing but the code)",
              {"aircc": {"no_output": True}}, "output-missing"),
    Behaviour("torn instruction file", AIR + "python/air/backend/xrt.py load (uint32 words)",
              {"aircc": {"insts_bytes": 14}}, "output-truncated"),
    Behaviour("undefined symbol", AIR + "programming_examples/llms/shared/infra/cache.py prepare_air_project",
              _fails("ld.lld: error: undefined symbol: matvec_vectorized_bf16_bf16"), "linking"),
    Behaviour("object of another machine", "amd/IRON issue 166",
              _fails("Inconsistent Elf processor header machine flags 3/4"), "object-machine"),
    Behaviour("Peano refuses the kernel", AIR + "programming_examples/llms/shared/infra/external_kernels.py",
              {"clang": {"stderr": "mv.cc:12:1: error: static assertion failed\n", "exit": 1}}, "kernel-build"),
    Behaviour("AIE API headers missing", AIR + "programming_examples/llms/shared/infra/external_kernels.py _get_aie_include_dir",
              {"missing": ["aie_api"]}, "aie-header-missing"),
    Behaviour("kernel sources missing", AIR + "programming_examples/llms/shared/infra/external_kernels.py",
              {"missing": ["examples"]}, "kernel-source-missing"),
    Behaviour("Peano that miscompiles", AIR + ".github/workflows/buildAndTestRyzenAI.yml",
              {"packages": {"llvm_aie": "22.0.0.2026081201+046b11f9"}}, "peano-miscompiles"),
    Behaviour("Peano of the same line", AIR + ".github/workflows/nightlyPerfBenchmark.yml",
              {"packages": {"llvm_aie": "22.0.0.2026082101+aaaaaaaa"}}, "peano-unpinned", severity="warning", ok=True),
    Behaviour("warnings of a compile that succeeded", AIR + "python/air/backend/xrt.py (captured output is thrown away)",
              {"aircc": {"stderr": "air.mlir:3:5: warning: packet ids disagree\n"}}, "compiler-warning", severity="warning", ok=True),
    Behaviour("a failure nobody described", AIR + "python/air/backend/xrt.py (aircc compilation failed:)",
              _fails("air.mlir:9:1: error: something new", 3), "compile-failed"),
    Behaviour("RTTI wheels mixed", AIR + "docs/buildingRyzenLin.md",
              _fails("aircc: undefined symbol: _ZTIN4mlir4PassE"), "wheel-import"),
)  # fmt: skip
"""Failures of compiling."""

REFUSED = (
    Behaviour("trace", AIR + "docs/trace.md; python/air/backend/xrt_runner.py run_test", {}, "trace-not-read",
              options={"output_format": "elf", "trace_size": 8192}),
    Behaviour("several launches as xclbin", AIR + "programming_examples/llms/shared/infra/backend_presets.py",
              {}, "multi-launch-format", options={"output_format": "xclbin"}),
    Behaviour("ELF entry that is no function", AIR + "python/air/backend/xrt.py compile (instance_name); issue 1563",
              {}, "entry-name", options={"output_format": "elf", "instance_name": "nobody"}),
    Behaviour("too many columns asked for", AIR + "python/air/backend/xrt.py compile (num_device_cols)",
              {}, "device-columns", options={"output_format": "elf", "num_device_cols": 8}),
    Behaviour("both lock protocols", AIR + "python/air/backend/xrt.py __init__", {}, "lock-fixes",
              options={"output_format": "elf", "use_lock_race_condition_fix": True, "use_lock_race_condition_fix_v2": True}),
    Behaviour("a format XRT does not load", AIR + "python/air/backend/xrt.py load (.pdi)",
              {}, "unloadable-format", options={"output_format": "pdi"}),
)  # fmt: skip
"""What is refused before any tool runs; the program has two launches."""

DEVICE = (
    Behaviour("no pyxrt", AIR + "python/air/backend/xrt.py load", {"missing": ["pyxrt"]}, "pyxrt-missing", "run"),
    Behaviour("pyxrt of another Python", AIR + "docs/buildingRyzenWin.md; Xilinx/mlir-aie docs/buildHostLinNonUbuntu.md",
              {"pyxrt": {"import": "other_python"}}, "pyxrt-other-python", "run"),
    Behaviour("pyxrt too old for an ELF", XRT + "src/python/pybind11/src/pyxrt.cpp (elf, ext)",
              {"pyxrt": {"api": "old"}}, "pyxrt-too-old", "run", options={"output_format": "elf"}),
    Behaviour("no device", XRT + "src/runtime_src/core/common/system.cpp", {"pyxrt": {"device": "No such device with index '0'"}}, "no-device", "run"),
    Behaviour("device node closed to the user", "Xilinx/mlir-aie docs/buildHostLinNonUbuntu.md",
              {"pyxrt": {"device": "Open /dev/accel/accel0 failed (err=-13): Permission denied"}}, "device-permission", "run"),
    Behaviour("memlock: EAGAIN", DRIVER + "README.md; drivers/accel/amdxdna/amdxdna_ubuf.c",
              {"pyxrt": {"device": "mmap(len=67108864) failed (err=-11): Resource temporarily unavailable"}}, "memlock", "run"),
    Behaviour("memlock: Lock limit exceeded", DRIVER + "README.md",
              {"pyxrt": {"bo": "Lock limit exceeded: CREATE_BO IOCTL failed (err=-12)"}}, "memlock", "run"),
    Behaviour("no context left", DRIVER + "drivers/accel/amdxdna/npu4_regs.c; " + AIR + "programming_examples/llms/smolvla/docs/profile.md",
              {"pyxrt": {"contexts": 0}}, "contexts-exhausted", "run"),
    Behaviour("driver older than XRT", DRIVER + "README.md", {"pyxrt": {"context": "GET_ARRAY IOCTL failed (err=-95): Operation not supported"}},
              "driver-protocol", "run"),
    Behaviour("wait hangs", XRT + "src/python/pybind11/src/pyxrt.cpp (no gil_scoped_release around wait)",
              {"pyxrt": {"wait": "hang"}}, "run-hung", "run"),
    Behaviour("device hangs when opened", XRT + "src/python/pybind11/src/pyxrt.cpp", {"pyxrt": {"device": "hang"}}, "run-hung", "run"),
    Behaviour("watchdog: a state is returned", DRIVER + "drivers/accel/amdxdna/aie2_ctx.c (tdr_timeout_ms); " + XRT + "src/runtime_src/core/include/xrt/xrt_kernel.h",
              {"pyxrt": {"wait": "ERT_CMD_STATE_TIMEOUT"}}, "run-timeout", "run"),
    Behaviour("watchdog: an exception instead", XRT + "src/runtime_src/core/common/api/xrt_kernel.cpp throw_command_error",
              {"pyxrt": {"wait": "raise:ERT_CMD_STATE_TIMEOUT"}}, "run-timeout", "run"),
    Behaviour("firmware aborts", DRIVER + "README.md", {"pyxrt": {"wait": "ERT_CMD_STATE_ABORT"}}, "run-aborted", "run"),
    Behaviour("command ends in error", XRT + "src/runtime_src/core/include/ert.h", {"pyxrt": {"wait": "ERT_CMD_STATE_ERROR"}}, "run-error-state", "run"),
    Behaviour("unexpected command state", XRT + "src/runtime_src/core/common/api/hw_queue.cpp",
              {"pyxrt": {"start": "qds_device::wait() unexpected command state"}}, "run-error-state", "run"),
    Behaviour("firmware does not answer", XRT + "src/runtime_src/core/include/ert.h",
              {"pyxrt": {"wait": "ERT_CMD_STATE_NORESPONSE"}}, "run-no-response", "run"),
    Behaviour("wedged device", AIR + ".github/workflows/buildAndTestRyzenAI.yml",
              {"pyxrt": {"start": "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-5): Input/output error"}}, "device-wedged", "run"),
    Behaviour("driver gone between two runs", "Xilinx/mlir-aie docs/buildHostLinNonUbuntu.md",
              {"pyxrt": {"start": "DRM_IOCTL_AMDXDNA_EXEC_CMD IOCTL failed (err=-19): No such device", "from_run": 2}}, "device-gone", "second run"),
    Behaviour("XRT aborts the process", XRT + "src/runtime_src/core/common/api/xrt_kernel.cpp abort_coredump_or_noop; PR 9773",
              {"pyxrt": {"die": "SIGABRT"}}, "child-died", "run"),
    Behaviour("the process faults", "Xilinx/mlir-aie PR 2809", {"pyxrt": {"die": "SIGSEGV"}}, "child-segfault", "run"),
    Behaviour("the process is killed for want of memory", AIR + "programming_examples/llms/verify/verify_runner.py",
              {"pyxrt": {"die": "SIGKILL"}}, "child-killed", "run"),
    Behaviour("a fault of XRT nobody described", XRT + "src/runtime_src/core/common/api/xrt_kernel.cpp",
              {"pyxrt": {"start": "bad argument index 9"}}, "run-failed", "run"),
    Behaviour("nothing is written", AIR + ".claude/skills/debug-bo-corruption/SKILL.md (hypothesis 4)",
              {"pyxrt": {"compute": "nothing"}}, "output-not-written", "run"),
    Behaviour("half is written", AIR + ".claude/skills/debug-bo-corruption/SKILL.md", {"pyxrt": {"compute": "half"}}, "output-partly-written", "run"),
    Behaviour("stale rows from the second run on", AIR + "programming_examples/llms/smolvla/docs/profile.md",
              {"pyxrt": {"compute": "stale"}}, "output-partly-written", "second run"),
    Behaviour("zeros", AIR + "python/air/backend/xrt.py; PR 1689", {"pyxrt": {"compute": "zeros"}}, "output-zero", "run", "warning", True),
    Behaviour("NaN after a bad Peano", AIR + ".github/workflows/buildAndTestRyzenAI.yml", {"pyxrt": {"compute": "nan"}}, "output-nan", "run", "warning", True),
)  # fmt: skip
"""Failures of loading and running."""

TOLERATED = (
    Behaviour("older pyxrt: waits without a limit return a state", XRT + "src/python/pybind11/src/pyxrt.cpp", {"pyxrt": {"api": "old"}}, ""),
    Behaviour("a wait that returns None", XRT + "src/runtime_src/core/include/xrt/xrt_kernel.h (wait2)", {"pyxrt": {"wait": "none"}}, ""),
    Behaviour("a library prints to standard output", XRT + "src/runtime_src/core/common/message.cpp", {"pyxrt": {"noise": True}}, ""),
)  # fmt: skip
"""What must not disturb a run."""

ALL = (*COMPILE, *REFUSED, *DEVICE, *TOLERATED)
