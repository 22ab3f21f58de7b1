"""Legality: what a device will refuse, said before a compile of minutes.

>>> from npu_tools.check import check_program_text
>>> check_program_text(text, "gemm.mlir", device("npu2")).findings[0].remedy
"""

from npu_tools.check.program import CheckReport, check_program, check_program_text
from npu_tools.check.subject import CheckOptions

__all__ = ["CheckOptions", "CheckReport", "check_program", "check_program_text"]
