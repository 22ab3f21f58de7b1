"""A fused kernel's program: its parts as `check_kernel` resolved them, printed by their own recipes and stitched.

A design of a fused kernel is its wiring: which of the kernel's arguments each part reads and writes. A manifest with
`[[parts]]` holds it itself, for kernels that nobody taught `check_kernel` as a whole.

    WIRING = {"norm": ("x", "norm_weight", "normed"), "q": ("normed", "wq", "q"), …}
    def design(shape, settings): return fused_program(__file__, shape, settings, WIRING)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npu_tools.errors import UnusableInput
from npu_tools.recipes.recipe import Part, part_methods, recipe
from npu_tools.recipes.stitch import Slice, stitch
from npu_tools.recipes.text import memref


def fused_program(
    file: str,
    shape: Mapping[str, int],
    settings: Mapping[str, Any],
    wiring: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """The module of the recipe that `file` is the design of. `settings["parts"]` are its launches in order; a projection
    that casts in a launch of its own takes the f32 scratch argument ROLE_f32 before its result.

    Raises:
        UnusableInput: a part without wiring, or one that does not fit its arguments.
    """
    folder = Path(file).parent
    own = recipe(folder.parent, folder.name)
    parts: tuple[Part, ...] = tuple(settings["parts"])
    names = {**part_methods(parts), **settings, **shape}
    arguments = {one.name: memref(one.shape, one.element) for one in own.concrete(own.manifest.arguments, names)}
    if wiring is None:
        wiring = {part.role: part.arguments for part in own.manifest.parts}
    missing = [part.role for part in parts if part.role not in wiring]
    if missing:
        raise UnusableInput(f"{own.name}: nothing says what {', '.join(missing)} reads and writes")
    slices: list[Slice] = []
    for part in parts:
        given = list(wiring[part.role])
        if part.settings.get("method") == "fused-cast":
            given.insert(-1, f"{part.label}_f32")
        slices.append(Slice(part.label, recipe(folder.parent, part.kernel).part_program(part, settings), given))
    return stitch(own.name, arguments, slices)
