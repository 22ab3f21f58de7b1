"""Benches around the emulator: real programs against independent references, speed beside torch.

>>> from npu_tools.bench.programs import judge_program
>>> judge_program(Path("gemm.mlir")).agrees
"""
