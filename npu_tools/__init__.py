"""Check, run and judge NPU kernels and models without an NPU.

>>> from npu_tools import parse_program
"""
