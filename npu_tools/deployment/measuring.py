"""Measured times on a device: a kernel's, and those of all calls of a plan.

>>> measure_plan(site, plan)
PlanTimes(prefill_us=(412.0, …), decode_us=(61.2, …), …)

Apart from the runs whose outputs are judged: every call is run 5 times to warm up and 20 times timed, one layer's calls
and the head's in the plan's order and in turn, so that each begins after another kernel as in the model. Values do not
matter to the time: kernels run on the inputs they were gated with. The emulator measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npu_tools.backends.protocol import Array, Backend, Bound, Call, Measured, Refused
from npu_tools.deployment.site import Site
from npu_tools.deployment.world import KernelUse, Plan
from npu_tools.errors import NotMeasured
from npu_tools.findings import Finding
from npu_tools.recipes import Argument, Recipe, Resolved

SEED = 1
"""Of the inputs kernels are gated and timed with."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A recipe's kernel loaded and bound, with the inputs of a run."""

    bound: Bound
    inputs: Mapping[int, Array]
    tensors: Mapping[str, Array]
    arguments: Sequence[Argument]

    @property
    def call(self) -> Call:
        """What a device measures."""
        return self.bound, self.inputs


@dataclass(frozen=True, slots=True)
class PlanTimes:
    """Median µs of each call of a layer and then of the head, and how they were taken."""

    prefill_us: tuple[float, ...]
    decode_us: tuple[float, ...]
    how: Mapping[str, Any]
    """Warm-ups, iterations, what is timed, the environment, and the digests of the programs that were timed."""


def prepare(recipe: Recipe, resolved: Resolved, backend: Backend) -> Prepared | Refused:
    """Load a recipe's program and bind its static arguments."""
    arguments = recipe.arguments(resolved)
    outputs = [position for position, one in enumerate(arguments) if one.role == "output"]
    loaded = backend.load(
        recipe.program(resolved), name=recipe.name, options=recipe.compile_options(resolved), outputs=outputs
    )
    if isinstance(loaded, Refused):
        return loaded
    tensors = recipe.inputs(resolved, SEED)
    arranged = recipe.arrange(tensors, resolved)
    static = {at: arranged[one.name] for at, one in enumerate(arguments) if one.role == "static"}
    given = {at: arranged[one.name] for at, one in enumerate(arguments) if one.role == "input"}
    return Prepared(loaded.bind(static), given, tensors, arguments)


def measure_plan(site: Site, plan: Plan) -> PlanTimes | None:
    """What each call of a plan takes; None where the backend measures nothing.

    Raises:
        NotMeasured: a kernel was refused, or a timed run failed.
    """
    backend = site.backend()
    if backend.name == "emulator":
        return None
    known: dict[str, Prepared] = {}
    halves: list[Measured] = []
    for uses in ((*plan.prefill, *plan.head), (*plan.decode, *plan.head)):
        site.pause()
        calls = [_prepared(site, use, backend, known).call for use in uses]
        measured = backend.measure(calls, context_length=site.seq_len)
        if measured is None:
            return None
        if isinstance(measured, Finding):
            raise NotMeasured(f"timing failed: {measured.code}: {measured.message}", measured)
        halves.append(measured)
    said = halves[0].as_dict()
    how = {name: said[name] for name in ("warm_up", "iterations", "timed", "environment")}
    how["programs"] = sorted({each.bound.kernel.digest for each in known.values()})
    return PlanTimes(halves[0].medians_us, halves[1].medians_us, how)


def _prepared(site: Site, use: KernelUse, backend: Backend, known: dict[str, Prepared]) -> Prepared:
    """A kernel of the plan, bound once whatever it is for."""
    found = known.get(use.key())
    if found is None:
        recipe = site.recipe(use.kernel)
        made = prepare(recipe, recipe.resolve(use.extents, dict(use.settings)), backend)
        if isinstance(made, Refused):
            raise NotMeasured(str(made), made.first)
        found = known.setdefault(use.key(), made)
    return found
