"""Harvest: what one deployment learnt, the next one knows.

>>> from harvest import apply_plan, plan_harvest
>>> plan = plan_harvest(memory, Path("workspace"))
>>> print(plan.diff())
>>> apply_plan(memory, plan)

Reads ledgers, jobs, logs, notes, registries and transcripts; all text is untrusted data. Deterministic, without any
language model: what a source does not state stays missing and is asked for.
"""

from harvest.apply import Applied, Status, apply_plan, status, undo
from harvest.errors import HarvestError, NothingToUndo, NotReproducible, SourceUnusable
from harvest.plan import Item, Plan, plan_harvest
from harvest.reproduce import Reproduced, proven, reproduce

__all__ = [
    "Applied", "HarvestError", "Item", "NotReproducible", "NothingToUndo", "Plan", "Reproduced",
    "SourceUnusable", "Status", "apply_plan", "plan_harvest", "proven", "reproduce", "status", "undo",
]  # fmt: skip
