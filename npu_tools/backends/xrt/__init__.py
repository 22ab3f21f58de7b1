"""The real stack behind the backend protocol: mlir-air compiles, XRT runs, on a Ryzen AI machine.

    with XrtBackend(toolchain, cache=folder) as backend:
        backend.load(text, name="gemv")

Written from upstream's sources and tested against a stand-in; it has not run on silicon. Nothing here imports air, aie
or pyxrt: that happens in children (`children/`), which may hang or die without harm. `rules.toml` lists every rule of
the toolchain that concerns this adapter, with the test that covers it.
"""

from npu_tools.backends.xrt.backend import XrtBackend
from npu_tools.backends.xrt.machine import Machine, probe
from npu_tools.backends.xrt.outcomes import lesson_of
from npu_tools.backends.xrt.session import Patience
from npu_tools.backends.xrt.toolchain import Toolchain

__all__ = ["Machine", "Patience", "Toolchain", "XrtBackend", "lesson_of", "probe"]
