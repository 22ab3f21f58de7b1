"""The AIR front end: reads MLIR-AIR programs, generic and custom forms, and prints the generic form.

>>> from npu_tools.air import parse_program
>>> program = parse_program(text, name="gemm.mlir")
>>> [function.sym_name.data for function in program.functions()]
['matmul_bf16']
"""

from npu_tools.air.forms_bench import FormsMeasured, FormsOfFile, measure_forms
from npu_tools.air.parse import parse_program
from npu_tools.air.program import Place, Program
from npu_tools.air.verify import verify
from npu_tools.air.windows import Window

__all__ = ["FormsMeasured", "FormsOfFile", "Place", "Program", "Window", "measure_forms", "parse_program", "verify"]
