"""Where kernels run: the emulator, or a device over XRT. Both speak one protocol.

>>> kernel = EmulatorBackend().load(text, name="gemv")
>>> kernel.bind({0: weight}).run({1: vector}).outputs[2]
"""

from npu_tools.backends.emulator import EmulatorBackend
from npu_tools.backends.protocol import Backend, BackendName, Bound, Kernel, KernelRun, Measured, RanOn, Refused

__all__ = ["Backend", "BackendName", "Bound", "EmulatorBackend", "Kernel", "KernelRun", "Measured", "RanOn", "Refused"]
