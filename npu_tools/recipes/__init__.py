"""Recipes: kernels as folders of data, read by path: a manifest, a design that prints AIR, a reference, a page.

>>> from npu_tools.recipes import recipe, run_case
>>> gemm = recipe(folder, "gemm")
>>> resolved = gemm.resolve("512x512x512", {"method": "drain"})
>>> text = gemm.program(resolved)
>>> run_case(gemm, "512x512x512").passed

The folder is the caller's to know (mcp_server/config.py). `design.py`, `reference.py` and `host.py` are run in this
process: call this from a worker, a bench or a command, not from the server.
"""

from npu_tools.recipes.cases import CaseRun, RefusalRun, run_case, run_cases, run_refusals
from npu_tools.recipes.fuse import fused_program
from npu_tools.recipes.recipe import Argument, Part, Recipe, Resolved, recipe, recipes, sibling
from npu_tools.recipes.stitch import Slice, misuses, stitch
from npu_tools.recipes.text import L1, L2, Index, Text, Value, Window, memref

__all__ = [
    "L1",
    "L2",
    "Argument",
    "CaseRun",
    "Index",
    "Part",
    "Recipe",
    "RefusalRun",
    "Resolved",
    "Slice",
    "Text",
    "Value",
    "Window",
    "fused_program",
    "memref",
    "misuses",
    "recipe",
    "recipes",
    "run_case",
    "run_cases",
    "run_refusals",
    "sibling",
    "stitch",
]
