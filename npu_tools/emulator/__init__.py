"""The emulator: runs AIR programs with the numerics of AIE2P, without a device or its toolchain.

>>> from npu_tools.air import parse_program
>>> from npu_tools.emulator import run_program
>>> result = run_program(parse_program(text, name="gemm.mlir"), {"arg0": a, "arg1": b})
>>> result.ok, result.outputs["arg2"], result.findings, result.counters.as_dict()

What it is made of: lowering of bodies to flat code (`code`, `control`, `memops`, `movement`, `hierarchy`), groups of
lanes and their scheduler (`tasks`, `schedule`, `stall`), memory (`memory`, `windows`), `channels`, op modules (`ops`),
external kernels (`kernels`) and `numerics`.
"""

from npu_tools.emulator.bound import BoundInputs
from npu_tools.emulator.run import RunResult, bind_inputs, run_program
from npu_tools.emulator.trace import Event, Trace, Use

__all__ = ["BoundInputs", "Event", "RunResult", "Trace", "Use", "bind_inputs", "run_program"]
