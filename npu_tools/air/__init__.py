"""The AIR front end: reads MLIR-AIR programs, generic and custom forms, and prints the generic form.

>>> from npu_tools.air import parse_program
>>> program = parse_program(text, name="gemm.mlir")
>>> [function.sym_name.data for function in program.functions()]
['matmul_bf16']
"""

from npu_tools.air.parse import parse_program
from npu_tools.air.program import Place, Program
from npu_tools.air.windows import Window

__all__ = ["Place", "Program", "Window", "parse_program"]
