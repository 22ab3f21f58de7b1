"""Phase 7: an evaluation in a fresh process that believes nothing a deployment wrote.

>>> run_evaluator(workspace, kernels=shipped)["verdict"]

The record's chain and plausibility, the gates' criteria, tolerances and extent, recipes that were changed, kept files
and arrays, figures, modelled times; then kernels and model run again on inputs nobody could foresee. reasons.py lists what it
can say, cheats.py and forgeries.py what it was tried on, benign.py what it must not accuse.

What it cannot tell: a record written anew whole, chain, head file, registry, folders and all, by somebody who may write
everything, from an honest one. A hash of the ledger kept elsewhere tells (`head`; every deploy prints it).
"""

from npu_tools.evaluator.child import run_evaluator
from npu_tools.evaluator.reasons import CODES, Reason, verdict_of

__all__ = ["CODES", "Reason", "run_evaluator", "verdict_of"]
