"""aircc is asked exactly what upstream's own backend asks it: compared with a clone's xrt.py (`--mlir-air DIR`).

Its module is run with empty stand-ins for what it imports and for the process it starts; only the command is looked at.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from npu_tools.air import parse_program
from npu_tools.backends.xrt.options import DEFAULTS, plan_compile
from npu_tools.device import device
from npu_tools.emulator.run import choose_function
from tests.npu_tools.xrt_support import gemv

CHOICES: dict[str, list[Any]] = {
    "output_format": ["xclbin", "elf"], "omit_while_true_loop": [True, False], "omit_pingpong": ["", "L1", "L2", "all"],
    "lower_linalg_to_func": ["", "mm.o"], "derive_library_call": [True, False], "air_loop_fusion": [True, False],
    "runtime_loop_tiling_sizes": [[], [4, 4], [16, 16]], "omit_auto_broadcast": [True, False],
    "channel_multiplexing": [[], ["L1"], ["L1", "L2"]], "use_lock_race_condition_fix": [True, False],
    "use_lock_race_condition_fix_v2": [True, False], "coalesce_shim_dma": [True, False], "trace_size": [0, 4096],
    "trace_offset": [0, 64], "kernel_name": ["", "K"], "kernel_id": ["", "0x10"], "xclbin_input": ["", "in.xclbin"],
    "num_device_cols": [0, 1, 4], "debug_ir": [True, False], "bf16_emulation": [True, False],
    "stack_size": [1024, 4096], "verbose": [False, True],
}  # fmt: skip


@pytest.fixture
def upstream(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    given = request.config.getoption("--mlir-air")
    source = Path(given) / "python" / "air" / "backend" / "xrt.py" if given else None
    if source is None or not source.is_file():
        pytest.skip("give --mlir-air DIR, a clone of Xilinx/mlir-air, to compare with its own backend")

    def module(name: str, **members: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        made.__dict__.update(members)
        made.__path__ = []
        monkeypatch.setitem(sys.modules, name, made)
        return made

    class Nothing:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    air = module("air")
    air.__dict__.update(ir=module("air.ir", Context=Nothing, Module=object), passmanager=module("air.passmanager"))
    air.__dict__["compiler"] = module("air.compiler", util=module("air.compiler.util"))
    module("air.dialects", air=module("air.dialects.air"))
    module("air.tools", resolve_tool=lambda name: f"/bin/{name}")
    module("air.backend")
    module("air.backend.abc", AirBackend=object, AirBackendError=type("AirBackendError", (Exception,), {}))
    made = module("air.backend.xrt")
    made.__package__ = "air.backend"
    exec(compile(source.read_text(encoding="utf-8"), str(source), "exec"), made.__dict__)
    return made


def test_aircc_is_asked_what_upstreams_backend_asks_it(
    upstream: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PEANO_INSTALL_DIR", str(tmp_path))
    asked: list[list[str]] = []

    def run(command: list[str], **_: object) -> Any:
        asked.append(command[1:])
        return types.SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(upstream, "subprocess", types.SimpleNamespace(run=run, PIPE=-1))
    text = gemv()[0]
    function = choose_function(parse_program(text, "gemv.mlir"), None)
    rng = random.Random(0)
    for _ in range(300):
        chosen = {name: rng.choice(values) for name, values in CHOICES.items()}
        if chosen["use_lock_race_condition_fix"] and chosen["use_lock_race_condition_fix_v2"]:
            continue
        plan = plan_compile(function, chosen, device("npu2"))
        assert not isinstance(plan, list)
        more = {"instance_name": "gemv"} if chosen["output_format"] == "elf" else {}
        with contextlib.redirect_stdout(io.StringIO()):
            backend = upstream.XRTBackend(target_device="npu2", **chosen, **more)
            artefact = backend.compile(text, kernel=chosen["kernel_name"] or "MLIR_AIE")
        assert plan.arguments(tmp_path) == asked[-1]
        assert (plan.kernel, plan.binary) == (artefact.kernel, artefact.output_binary)


def test_every_option_and_default_of_upstreams_backend_is_known(upstream: Any) -> None:
    theirs = inspect.signature(upstream.XRTBackend.__init__).parameters
    known = {"self", "target_device", "n_perf_iters", "n_warmup_iters", *DEFAULTS}
    assert set(theirs) <= known
    for name, default in DEFAULTS.items():
        if name != "output_format":  # ours decides by the program where nobody says
            assert (theirs[name].default or default) == default, name
