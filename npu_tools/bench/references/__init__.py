"""What upstream's example programs compute, written in plain numpy from the mathematics, with inputs to try them on.

>>> from npu_tools.bench.references import reference_for
>>> build = reference_for("matrix_multiplication__i8__run", "matmul_i8")
>>> trial = build(Case.of(program, program.functions()[0], "matrix_multiplication__i8__run"))
>>> trial.inputs["arg0"], trial.expected["arg2"].values

Nothing here uses the emulator: float64 and int64 arithmetic, sizes from the arguments' shapes.
"""

from npu_tools.bench.references.case import Case, Expected, Trial
from npu_tools.bench.references.registry import reference_for

__all__ = ["Case", "Expected", "Trial", "reference_for"]
