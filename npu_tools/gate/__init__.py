"""Judging an output: tolerances as data, the element-wise gate, what an error looks like, the token-set gate.

>>> from npu_tools.gate import judge, tolerance_for
>>> judge(actual, reference, tolerance_for("gemv")).passed
"""

from npu_tools.gate.compare import Verdict, judge
from npu_tools.gate.looks_like import Likeness
from npu_tools.gate.tokens import TokenVerdict, judge_tokens
from npu_tools.gate.tolerance import Tolerance, given, kernel_names, tolerance_for

__all__ = [
    "Likeness",
    "TokenVerdict",
    "Tolerance",
    "Verdict",
    "given",
    "judge",
    "judge_tokens",
    "kernel_names",
    "tolerance_for",
]
