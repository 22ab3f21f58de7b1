"""A stand-in for mlir-air, Peano, XRT and an NPU, for tests alone: see `machine.py`."""
